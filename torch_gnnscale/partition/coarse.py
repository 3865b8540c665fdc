"""METIS over clusters, for graphs that are too large for METIS (as Meyerhenke, Sanders and Schulz, "Partitioning
Complex Networks via Size-constrained Clustering", SEA 2014)."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import ops
from ..random import Purpose, batch_key
from . import metis
from .whole import Whole

CLUSTERS = 50
"""A cluster takes nodes until it has 1/50 of what a part has on average, of any constraint."""
_LEVELS = 8
_ROUNDS, _WORTH = 3, 20  # per level: at most 3 rounds of label propagation, until less than 1/20 moves in one
_REFINING, _WORTH_REFINING = 20, 200  # the same for nodes, after METIS
_LEAST_EDGES = 1 << 22  # METIS takes a graph of at most this many merged edges,
_REDUCTION = 64  # or of at most 1 / 64 of the graph's edges in both directions, if that is more
_STUCK = 0.95  # no further level if the last one left more than this share of the clusters before it


def partition(whole: Whole, parts: int, seed: int) -> metis.Found:
    """Clusters the nodes by label propagation, then the clusters, until the graph between them is small enough for
    METIS. After METIS, moves single nodes if that cuts fewer edges and leaves the parts as equal.

    Memory: the edges a second time, by source, 4 bytes each; about 100 bytes per node; and 16 bytes per merged edge
    that METIS takes. METIS's process takes about 70 bytes per merged edge; by then this process has freed the edges by
    source and the pages of mapped files.

    Raises:
        ImportError, RuntimeError: see :func:`torch_gnnscale.partition.metis.part_graph`.
    """
    metis.check_installed()
    owner, peak = _coarsely(whole, parts, seed)
    sums = _sums(whole.weight, owner, parts)
    most, fewest = [], []
    for total, largest, smallest in zip(*(t.tolist() for t in (sums.sum(0), sums.amax(0), sums.amin(0))), strict=True):
        most.append(max(int(metis.TOLERANCE * total / parts), -(-total // parts), largest))
        fewest.append(min(int((2 - metis.TOLERANCE) * total / parts), smallest))
    sides = whole.both_sides()
    ops.pool_trim()
    owner = ops.propagate_labels(
        sides,
        whole.num_nodes,
        owner,
        whole.weight,
        most,
        fewest=fewest,
        key=batch_key(seed, _LEVELS + 1, 0, Purpose.PARTITION),
        rounds=_REFINING,
        least=whole.num_nodes // _WORTH_REFINING,
    )
    return metis.Found(owner, peak)


def _coarsely(whole: Whole, parts: int, seed: int) -> metis.Found:
    """METIS's partition of the clusters."""
    sides = whole.both_sides()
    ops.pool_trim()
    bounds = (whole.weight.sum(0) // (CLUSTERS * parts)).clamp(min=1).tolist()
    most_edges = max(_LEAST_EDGES, 2 * whole.num_edges // _REDUCTION)
    group, weight, count = None, whole.weight, whole.num_nodes
    for level in range(_LEVELS):
        key = batch_key(seed, 1 + level, 0, Purpose.PARTITION)
        label = ops.propagate_labels(
            sides,
            whole.num_nodes,
            torch.arange(count),
            weight,
            bounds,
            key=key,
            group=group,
            rounds=_ROUNDS,
            least=count // _WORTH,
        )
        ops.pool_trim()  # the next buffers have other sizes, and could not reuse these
        label, found = _numbered(label)
        group = label if group is None else label[group]
        weight = _sums(weight, label, found)
        last = found > _STUCK * count or level + 1 == _LEVELS
        graph = ops.contract(sides, whole.num_nodes, group, found, most=ops.MAX_COUNT if last else most_edges)
        if last or int(graph[0][-1]) <= most_edges:
            break
        count = found
    assert group is not None
    del sides, label
    ops.pool_trim()  # METIS needs the memory
    for side in whole.sides:
        ops.release_pages(side.colptr)
        ops.release_pages(side.row)
    cut = metis.part_graph(*graph, weight, whole.names, parts, seed)
    return metis.Found(cut.owner[group], cut.peak_bytes)


def _numbered(label: Tensor) -> tuple[Tensor, int]:
    """Labels in [0, n) numbered without gaps, in their order: int64, shape [n]; and how many there are."""
    used = torch.zeros(len(label), dtype=torch.int64)
    used[label] = 1
    return (used.cumsum(0) - 1)[label], int(used.sum())


def _sums(weight: Tensor, label: Tensor, count: int) -> Tensor:
    """The sum of the weights of each label: int64, shape [count, constraints]."""
    return weight.new_zeros(count, weight.size(1)).index_add_(0, label, weight)
