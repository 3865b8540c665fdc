"""A generated graph with node labels that a model can predict only from the graph, and random tensors, functions
of a seed, of which generated graphs are made."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch_geometric.data import Data

from .. import ops
from ..ops.arguments import check_int, to_int
from ..random import Purpose, batch_key


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


class Stream:
    """Independent random tensors: each is a function of the seed and of the number of the call."""

    def __init__(self, seed: int) -> None:
        self.seed = to_int("seed", seed)
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

    def features(self, community: Tensor, count: int, width: int, signal: float) -> Tensor:
        """signal * m[community[v]] + N(0, 1) for each node v, with one random unit vector m[c] per community c of
        ``count``: float32, shape [N, width]."""
        means = torch.nn.functional.normalize(self.normal(count * width).view(count, width))
        return signal * means[community] + self.normal(len(community) * width).view(len(community), width)

    def masks(self, count: int, split: tuple[float, float]) -> list[Tensor]:
        """Three disjoint random masks [count] for training, validation and testing; ``split``: fractions of the first
        two."""
        if not 0 < sum(split) < 1 or min(split) <= 0:
            raise ValueError(f"split: expected two positive fractions with a sum below 1, found {split}")
        order = ops.permutation(count, batch_key(self.seed, 1, 0, Purpose.GENERATE))
        bounds = [int(count * split[0]), int(count * (split[0] + split[1]))]
        masks = [torch.zeros(count, dtype=torch.bool) for _ in range(3)]
        for mask, chosen in zip(masks, order.tensor_split(bounds), strict=True):
            mask[chosen] = True
        return masks


class Communities:
    """Draws nodes, of all or of given communities, with P(node) proportional to a power-law weight.

    Args:
        random: the source of random numbers.
        community: community of each node: int64, shape [N], N > 0.
        count: number of communities.
        exponent: exponent of the power law of the weights, above 2.
    """

    def __init__(self, random: Stream, community: Tensor, count: int, exponent: float) -> None:
        if exponent <= 2:
            raise ValueError(f"exponent: expected more than 2, found {exponent}")
        self.random = random
        # A node of weight w holds w consecutive tickets; a draw picks a ticket. Weights are integers, so draws are
        # exact, and at most sqrt(N) times the smallest.
        nodes = len(community)
        weight = random.uniform(nodes).pow(-1 / (exponent - 1)).clamp(max=math.sqrt(nodes)).mul(1024).long()
        self.nodes = torch.argsort(community, stable=True)
        self.end = weight[self.nodes].cumsum(0)  # end of each node's range of tickets, communities in order
        held = torch.zeros(count, dtype=torch.int64).index_add_(0, community, weight)
        self.first = (held.cumsum(0) - held).masked_fill(held == 0, 0)  # a community without nodes has all tickets
        self.tickets = held.masked_fill(held == 0, int(self.end[-1]))

    def draw(self, count: int) -> Tensor:
        """Nodes drawn from all communities: int64, shape [count]."""
        return self._holder(self.random.integers(count, int(self.end[-1])))

    def draw_from(self, community: Tensor) -> Tensor:
        """result[i]: a node drawn from community[i], or from all if that has none: int64, shape of ``community``."""
        return self._holder(self.first[community] + self.random.integers(len(community), self.tickets[community]))

    def _holder(self, ticket: Tensor) -> Tensor:
        return self.nodes[torch.searchsorted(self.end, ticket, right=True)]
