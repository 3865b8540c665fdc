"""A generated graph with node labels that a model can predict only from the graph."""

from __future__ import annotations

import torch
from torch_geometric.data import Data

from ..ops.arguments import check_int
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
    """A power-law graph with planted communities. A node's label shows weakly in its own features, and clearly in the
    features of its neighbors.

    A degree-corrected stochastic block model (Karrer & Newman, Phys. Rev. E 83, 2011). Each end of an edge is drawn
    with P(node) proportional to its power-law weight: the first from all nodes; the second, with probability
    ``homophily``, from the community of the first, else from all nodes. x[v] = signal * unit
    vector of v's community + N(0, 1).

    Args:
        num_nodes: number of nodes.
        avg_degree: edges per node, both directions counted, before self loops are removed.
        num_classes: number of communities; a node's label is its community.
        num_features: number of features per node.
        homophily: P(the second end of an edge is drawn from the community of the first).
        signal: length of a community's mean feature vector; the noise in its direction has length 1.
        exponent: exponent of the power law of expected degrees, above 2.
        split: fractions of the nodes for training and validation; the rest is for testing.
        seed: seed of all random numbers.

    Returns:
        A Data with ``x`` float32 [N, F], ``y`` int64 [N], ``edge_index`` int64 [2, E] in both directions, and
        ``train_mask``, ``val_mask``, ``test_mask``.
    """
    num_nodes, num_classes = check_int("num_nodes", num_nodes, 1), check_int("num_classes", num_classes, 1)
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
