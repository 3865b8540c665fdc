"""Methods that assign every node to a part."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from ..memory import Budget
from ..random import Purpose, batch_key
from ..topology import CSC

METHODS = ("random", "ranges")
"""The methods that :func:`assign` knows."""


class Assignment(NamedTuple):
    """A part for every node, and what it took."""

    owner: dict[NodeType | None, Tensor]
    """The part of each node, by type: int32, shape [n]."""
    method: str
    """The method that was used."""
    seconds: float
    peak_bytes: int
    """Of memory that the method took, at most."""


@dataclass(frozen=True)
class PartitionReport:
    """How well parts are balanced, and how many edges lead from one to another."""

    cut_edges: int
    num_edges: int
    nodes: list[int]
    """In each part."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.cut_edges:,} of {self.num_edges:,} edges cut; nodes per part: {self.nodes}"


def assign(
    relations: dict[EdgeType | None, CSC],
    num_nodes: dict[NodeType | None, int],
    parts: int,
    *,
    method: str = "auto",
    train: dict[NodeType | None, Tensor] | None = None,
    balance: Sequence[str] = ("nodes", "edges", "train"),
    seed: int = 0,
    memory: Budget | None = None,
) -> Assignment:
    """A part for every node: ``ranges`` of equal size in the user's order, or ``random``: those of a keyed permutation.

    Raises:
        ValueError: another method.
    """
    if method not in METHODS:
        raise ValueError(f"method: expected one of {METHODS}, found {method!r}")
    begin = time.perf_counter()
    owner = {}
    for number, (node_type, count) in enumerate(num_nodes.items()):
        owner[node_type] = (torch.arange(count) * parts // max(count, 1)).to(torch.int32)
        if method == "random":
            order = ops.permutation(count, batch_key(seed, 0, number, Purpose.GENERATE))
            owner[node_type] = owner[node_type][order]
    return Assignment(owner, method, time.perf_counter() - begin, 16 * max(num_nodes.values(), default=0))


def report(
    relations: dict[EdgeType | None, CSC],
    owner: dict[NodeType | None, Tensor],
    parts: int,
    train: dict[NodeType | None, Tensor] | None = None,
) -> PartitionReport:
    """The quality of an assignment."""
    cut = total = 0
    for edge_type, csc in relations.items():
        src, dst = (None, None) if edge_type is None else (edge_type[0], edge_type[-1])
        cut += int((owner[src][csc.row.to(torch.int64)] != owner[dst].repeat_interleave(csc.colptr.diff())).sum())
        total += csc.num_edges
    nodes = sum((torch.bincount(of_type, minlength=parts) for of_type in owner.values()), torch.zeros(parts)).long()
    return PartitionReport(cut, total, nodes.tolist())
