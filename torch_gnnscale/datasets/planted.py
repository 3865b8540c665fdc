"""A generated node-classification task that needs the graph."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch_geometric.data import Data

from .. import ops
from ..random import Purpose, batch_key


class _Stream:
    """Independent random tensors, numbered in the order of the calls."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.calls = 0

    def integers(self, count: int, below: int | Tensor) -> Tensor:
        """Integers in [0, below): int64, shape [count]; the bias is at most below / 2^63."""
        key = batch_key(self.seed, 0, self.calls, Purpose.GENERATE)
        self.calls += 1
        return (ops.random_bits(count, key) & (2**63 - 1)) % below

    def uniform(self, count: int) -> Tensor:
        """Numbers in (0, 1): float64, shape [count]."""
        return (self.integers(count, 1 << 53).double() + 0.5) / (1 << 53)

    def normal(self, count: int) -> Tensor:
        """Standard normal numbers by the method of Box and Muller: float32, shape [count]."""
        half = (count + 1) // 2
        radius, angle = (-2 * self.uniform(half).log()).sqrt(), 2 * math.pi * self.uniform(half)
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count].float()


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
    """A power-law graph with planted communities, whose labels features tell faintly and neighbors clearly.

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
    if exponent <= 2:
        raise ValueError(f"exponent: expected more than 2, found {exponent}")
    if not 0 < sum(split) < 1 or min(split) <= 0:
        raise ValueError(f"split: expected two positive shares with a sum below 1, found {split}")
    random = _Stream(seed)
    y = random.integers(num_nodes, num_classes)

    # Expected degrees, in integers so that drawing is exact; no node expects more than sqrt(N) times the least.
    weight = random.uniform(num_nodes).pow(-1 / (exponent - 1)).clamp(max=math.sqrt(num_nodes)).mul(1024).long()
    by_class = torch.argsort(y, stable=True)
    end = weight[by_class].cumsum(0)  # of each node's range of tickets, class after class
    tickets = torch.zeros(num_classes, dtype=torch.int64).index_add_(0, y, weight)
    first_ticket = tickets.cumsum(0) - tickets

    def draw(first: Tensor | int, count: Tensor | int) -> Tensor:
        ticket = first + random.integers(num_edges, count)
        return by_class[torch.searchsorted(end, ticket, right=True)]

    num_edges = int(num_nodes * avg_degree / 2)
    total = int(end[-1])
    src = draw(0, total)
    within = random.uniform(num_edges) < homophily
    community = y[src]
    dst = torch.where(within, draw(first_ticket[community], tickets[community]), draw(0, total))
    edges = torch.stack([src, dst])[:, src != dst]

    means = torch.nn.functional.normalize(random.normal(num_classes * num_features).view(num_classes, num_features))
    noise = random.normal(num_nodes * num_features).view(num_nodes, num_features)
    order = ops.permutation(num_nodes, batch_key(seed, 1, 0, Purpose.GENERATE))
    bounds = [int(num_nodes * split[0]), int(num_nodes * (split[0] + split[1]))]
    masks = [torch.zeros(num_nodes, dtype=torch.bool) for _ in range(3)]
    for mask, part in zip(masks, order.tensor_split(bounds), strict=True):
        mask[part] = True
    return Data(
        x=signal * means[y] + noise,
        edge_index=torch.cat([edges, edges.flip(0)], dim=1),
        y=y,
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
    )
