"""Who owns which node: METIS, METIS over clusters, a random permutation, or ranges of ids."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from ..memory.budget import Budget
from ..ops.arguments import check_int
from ..random import Purpose, batch_key
from ..topology import CSC
from .report import PartitionReport, report
from .whole import BALANCED, Whole

__all__ = ["METHODS", "Assignment", "PartitionReport", "assign", "report"]

METHODS = ("auto", "metis", "coarse", "random", "ranges")


class Assignment(NamedTuple):
    """A partition, and what it took."""

    owner: dict[NodeType | None, Tensor]
    """The part of each node, by node type: int32, shape [n]."""
    method: str
    """The method that was used: what "auto" chose."""
    seconds: float


def assign(
    relations: Mapping[EdgeType | None, CSC],
    num_nodes: Mapping[NodeType | None, int],
    parts: int,
    *,
    method: str = "auto",
    train: Mapping[NodeType | None, Tensor] | None = None,
    balance: Sequence[str] = BALANCED,
    seed: int = 0,
    memory: Budget | None = None,
) -> Assignment:
    """Gives every node to a part.

    Args:
        relations: the edges, by edge type; None for the one relation of a homogeneous graph. They may be mapped.
        num_nodes: the nodes of each type; None for those of a homogeneous graph.
        parts: how many parts there shall be.
        method: how; one of :data:`METHODS`.
        train: ids of the training nodes, by node type.
        balance: what all parts shall have equal numbers of.
        seed: of the random choices.

    Raises:
        TypeError, ValueError, IndexError: what cannot be; names it.
    """
    parts = check_int("parts", parts, 1, torch.iinfo(torch.int32).max)
    if method not in METHODS:
        raise ValueError(f"method: expected one of {METHODS}, found {method!r}")
    start = time.perf_counter()
    whole = Whole.of(relations, num_nodes, train or {}, balance)
    owner = {}
    for number, (node_type, size) in enumerate(whole.sizes.items()):
        owner[node_type] = _equal_ranges(size, parts)
        if method == "random":
            order = ops.permutation(size, batch_key(seed, 0, number, Purpose.PARTITION))
            owner[node_type] = torch.empty_like(owner[node_type]).index_copy_(0, order, owner[node_type])
    return Assignment(owner, method, time.perf_counter() - start)


def _equal_ranges(size: int, parts: int) -> Tensor:
    """Each part's range of [0, size), part after part: int32, shape [size]."""
    bounds = torch.tensor([size * part // parts for part in range(parts + 1)])
    return torch.arange(parts, dtype=torch.int32).repeat_interleave(bounds.diff())
