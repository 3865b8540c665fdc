"""Who owns which node: METIS, METIS over clusters, a random permutation, or ranges of ids."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.typing import EdgeType, NodeType

from .. import machine, ops
from ..memory import Budget, budget_bytes
from ..ops.arguments import check_int, to_int
from ..random import Purpose, batch_key
from ..topology import CSC
from . import metis
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
    peak_bytes: int
    """The largest resident memory of this process since it began or, if that is more, of it and METIS's process
    together; in bytes."""


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

    Methods:

    - "metis": METIS's k-way partition of the graph with edges in both directions; parallel edges are one, weighted by
      their number.
    - "coarse": METIS's partition of clusters (see :mod:`torch_gnnscale.partition.metis`), for larger graphs.
    - "auto": "metis" if 127 bytes for each edge in both directions fit ``memory``, else "coarse".
    - "random": a keyed permutation of the nodes of each type, in equal ranges.
    - "ranges": equal ranges of the ids of each type.

    Types are parted together: METIS balances the nodes of each type.

    Args:
        relations: the edges, by edge type; None for the one relation of a homogeneous graph. They may be mapped.
        num_nodes: the nodes of each type; None for those of a homogeneous graph.
        parts: how many parts there shall be.
        method: one of :data:`METHODS`.
        train: ids of the training nodes, by node type.
        balance: what METIS divides equally over the parts, up to max / mean 1.05 if that is possible: "nodes" of each
            type, "edges" by their destinations, "train" for training nodes.
        seed: of the random choices. METIS's answer may differ between its versions.
        memory: how much "auto" lets METIS take: bytes, or a share of the available memory; by default half of it.

    Raises:
        TypeError, ValueError, IndexError: an argument that is malformed or out of range; the message names it.
        ImportError: METIS is needed and pymetis is not installed.
        RuntimeError: METIS crashed or failed.
    """
    parts = check_int("parts", parts, 1, torch.iinfo(torch.int32).max)
    if method not in METHODS:
        raise ValueError(f"method: expected one of {METHODS}, found {method!r}")
    seed = to_int("seed", seed)
    start = time.perf_counter()
    whole = Whole.of(relations, num_nodes, train or {}, balance)
    if method == "auto":
        limit = budget_bytes("memory", 0.5 if memory is None else memory, machine.available_memory())
        method = "metis" if metis.EDGE_BYTES * 2 * whole.num_edges <= limit else "coarse"
    peak = 0
    if method in ("random", "ranges"):
        owner = {}
        for number, (node_type, size) in enumerate(whole.sizes.items()):
            key = batch_key(seed, 0, number, Purpose.PARTITION) if method == "random" else None
            owner[node_type] = _equal_ranges(size, parts, key)
    else:
        of_clusters = method == "coarse" and 1 < parts < whole.num_nodes
        found = metis.partition_clusters(whole, parts, seed) if of_clusters else by_metis(whole, parts, seed)
        owner, peak = whole.by_type(found.owner.to(torch.int32)), found.peak_bytes
    return Assignment(owner, method, time.perf_counter() - start, max(peak, machine.resident_memory(peak=True)))


def by_metis(whole: Whole, parts: int, seed: int, tolerance: float = metis.TOLERANCE) -> metis.Found:
    """METIS's partition of a whole, in which max / mean of each constraint is at most ``tolerance``, if possible.

    Raises:
        ImportError, RuntimeError: as of :func:`assign`.
    """
    if parts == 1 or whole.num_nodes <= parts:  # METIS would leave parts empty
        return metis.Found(torch.arange(whole.num_nodes) % parts, 0)
    metis.check_installed()
    graph = whole.merged()
    ops.pool_trim()  # METIS needs the memory
    return metis.part_graph(*graph, whole.weight, whole.names, parts, seed, tolerance)


def _equal_ranges(size: int, parts: int, key: int | None) -> Tensor:
    """Each part's range of [0, size) or of a permutation of it, part after part: int32, shape [size]."""
    bounds = torch.tensor([size * part // parts for part in range(parts + 1)])
    owner = torch.arange(parts, dtype=torch.int32).repeat_interleave(bounds.diff())
    return owner if key is None else torch.empty_like(owner).index_copy_(0, ops.permutation(size, key), owner)
