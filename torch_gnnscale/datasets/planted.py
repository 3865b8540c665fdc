"""A generated node-classification task that needs the graph."""

from __future__ import annotations

import torch
from torch_geometric.data import Data

from .stream import Communities, Stream


def planted(
    num_nodes: int = 50_000,
    avg_degree: float = 20,
    num_classes: int = 16,
    num_features: int = 64,
    *,
    homophily: float = 0.6,
    signal: float = 1.0,
    exponent: float = 2.5,
    split: tuple[float, float] = (0.5, 0.2),
    seed: int = 0,
) -> Data:
    """A power-law graph with planted communities. The labels are weakly visible in a node's own features, clearly in
    those of its neighbors.

    A degree-corrected stochastic block model (Karrer & Newman, Phys. Rev. E 83, 2011): both ends of an edge are drawn
    in proportion to power-law weights, the second from the community of the first with probability ``homophily``, else
    from all nodes. Features are ``signal`` times a unit vector of the community plus standard normal noise.

    Args:
        num_nodes: nodes.
        avg_degree: edges a node, both directions counted, before self loops are left out.
        num_classes: communities, which are the labels.
        num_features: features a node.
        homophily: share of the edges that are drawn within a community.
        signal: length of a community's mean feature vector; the noise in its direction has length 1.
        exponent: of the power law of expected degrees, above 2.
        split: shares of the nodes for training and validation; the rest is for testing.
        seed: decides everything.

    Returns:
        A Data with ``x`` float32 [N, F], ``y`` int64 [N], ``edge_index`` int64 [2, E] in both directions, and
        ``train_mask``, ``val_mask``, ``test_mask``.
    """
    random = Stream(seed)
    masks = random.masks(num_nodes, split)
    y = random.integers(num_nodes, num_classes)
    nodes = Communities(random, y, num_classes, exponent)
    num_edges = int(num_nodes * avg_degree / 2)
    src = nodes.draw(num_edges)
    within = random.uniform(num_edges) < homophily
    dst = torch.where(within, nodes.draw_from(y[src]), nodes.draw(num_edges))
    edges = torch.stack([src, dst])[:, src != dst]
    return Data(
        x=random.features(y, num_classes, num_features, signal),
        edge_index=torch.cat([edges, edges.flip(0)], dim=1),
        y=y,
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
    )
