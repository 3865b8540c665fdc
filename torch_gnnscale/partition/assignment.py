"""Gives each node to a part: at random, in ranges, by METIS (k-way partitioning: Karypis and Kumar, SIAM J. Sci. Comp.
1998) in a child process, or by METIS over clusters, for graphs that are too large for it (as Meyerhenke, Sanders and
Schulz, "Partitioning Complex Networks via Size-constrained Clustering", SEA 2014)."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.typing import EdgeType, NodeType

from .. import machine, ops
from .._user import warn
from ..memory import Budget, budget_bytes, memory_file
from ..ops.arguments import check_choice, check_int, to_int
from ..random import Purpose, batch_key
from ..topology import CSC
from .whole import BALANCED, PartitionReport, Whole, report

TOLERANCE = 1.05
"""What max / mean over the parts may be, of each constraint, unless another bound is given."""
EDGE_BYTES = 127
"""Memory that METIS was found to take for each symmetrised edge."""
_CHILD = Path(__file__).with_name("metis_child.py")
_CODES = {-2: "refused its input", -3: "ran out of memory"}  # METIS_ERROR_INPUT, METIS_ERROR_MEMORY
_ADVICE = "try another seed, balance fewer things (balance=['nodes']) or method='random'"


class Found(NamedTuple):
    """What METIS found."""

    owner: Tensor
    """The part of each node: int64, shape [n]."""
    peak_bytes: int
    """The largest resident memory of the child plus that of this process meanwhile, in bytes."""


def check_installed() -> None:
    """Raises ImportError, which names the extra, where there is no pymetis."""
    if importlib.util.find_spec("pymetis") is None:
        raise ImportError("METIS is called through pymetis, which is missing: pip install 'torch_gnnscale[partition]'")


def part_graph(
    colptr: Tensor, row: Tensor, edge_weight: Tensor, weight: Tensor, names: Sequence[str], parts: int, seed: int,
    tolerance: float = TOLERANCE,
) -> Found:  # fmt: skip
    """Cuts a graph into parts of about equal weights, with few edges between them.

    Args:
        colptr: int64, shape [n + 1].
        row: the neighbors of each node: int64, shape [m]; symmetric, without loops and repetitions.
        edge_weight: int64, shape [m]; symmetric, positive.
        weight: what each node adds to each constraint: int64, shape [n, constraints].
        names: what each constraint is called.
        parts: how many parts, at least 2.
        seed: of METIS's random choices; its lower 31 bits are used.
        tolerance: what max / mean over the parts may be, of each constraint.

    Raises:
        ImportError: pymetis is not installed.
        RuntimeError: METIS crashed or failed, or its answer is not a partition.
    """
    check_installed()
    if weight.size(1) == 0:
        weight, names = weight.new_ones(len(weight), 1), ["nodes"]
    arrays = {"xadj": colptr, "adjncy": row, "adjwgt": edge_weight, "vwgt": weight.contiguous().view(-1)}
    num_nodes = len(weight)
    with ExitStack() as stack:
        files = {name: _memory_file(stack, name, 8 * max(values.numel(), 1)) for name, values in arrays.items()}
        for name, values in arrays.items():
            _write(files[name], values)
        files["owner"] = _memory_file(stack, "owner", 8 * num_nodes)
        files["status"] = _memory_file(stack, "status", 0)
        counts = {name: values.numel() for name, values in arrays.items()} | {"owner": num_nodes}
        request = {name: (files[name], count) for name, count in counts.items()} | {
            "status": files["status"], "parts": parts, "seed": seed & 0x7FFFFFFF, "path": sys.path,
            "tolerance": _tolerance(weight, parts, tolerance), "one_weight": False,
        }  # fmt: skip
        status, ended = _run(request, list(files.values()))
        if status.get("stage") == "trial":  # it crashed there: pymetis's library takes other types than we pass
            status, ended = _run({**request, "one_weight": True}, list(files.values()))
        if ended or status.get("stage") != "done":
            raise RuntimeError(f"METIS {ended or 'ended early'}: {_ADVICE}")
        if status["code"] != 1:
            raise RuntimeError(f"METIS {_CODES.get(status['code'], 'failed')} (code {status['code']}): {_ADVICE}")
        with open(files["owner"], "rb", closefd=False) as answer:
            owner = torch.from_numpy(np.fromfile(answer, np.int64))
    if status["count"] != num_nodes or not bool(((owner >= 0) & (owner < parts)).all()):
        raise RuntimeError(f"METIS's answer is no partition of {num_nodes} nodes into {parts} parts: {_ADVICE}")
    if not status["all_weights"] and weight.size(1) > 1:
        warn(f"this pymetis balances one weight only: {names[0]!r}, but not {list(names[1:])}")
    if empty := parts - len(owner.unique()):
        warn(f"METIS left {empty} of {parts} parts without nodes: expected fewer parts for {num_nodes} nodes")
    return Found(owner, status["peak"] + machine.resident_memory())


def _tolerance(weight: Tensor, parts: int, wanted: float = TOLERANCE) -> list[float]:
    """The max / mean that METIS may have of each constraint: more than ``wanted`` only if no partition has less."""
    found = []
    for column in weight.unbind(1):
        mean = max(float(column.sum()) / parts, 1e-9)
        found.append(max(wanted, -(-int(column.sum()) // parts) / mean, float(column.max()) / mean))
    return found


def _memory_file(stack: ExitStack, name: str, num_bytes: int) -> int:
    """The descriptor of a file in memory, closed with the stack."""
    descriptor = memory_file(name)
    stack.callback(os.close, descriptor)
    os.ftruncate(descriptor, num_bytes)
    return descriptor


def _write(descriptor: int, values: Tensor) -> None:
    left = memoryview(values.contiguous().view(-1).view(torch.uint8).numpy().data)
    while len(left):
        left = left[os.write(descriptor, left) :]


def _run(request: dict[str, Any], descriptors: list[int]) -> tuple[dict[str, Any], str]:
    """Runs the child; returns its last status, and how it ended: "" if well."""
    os.ftruncate(request["status"], 0)
    done = subprocess.run(
        [sys.executable, str(_CHILD), json.dumps(request)], pass_fds=descriptors, capture_output=True, text=True
    )
    size = os.fstat(request["status"]).st_size
    status = json.loads(os.pread(request["status"], size, 0)) if size else {}
    if done.returncode < 0:
        return status, f"crashed ({signal.Signals(-done.returncode).name})"
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
    return status, f"failed ({': '.join(said)})" if done.returncode else ""


CLUSTERS = 50
"""A cluster takes nodes until it has 1/50 of what a part has on average, of any constraint."""
_LEVELS = 8
_ROUNDS, _WORTH = 3, 20  # per level: at most 3 rounds of label propagation, until less than 1/20 moves in one
_REFINING, _WORTH_REFINING = 20, 200  # the same for nodes, after METIS
_LEAST_EDGES = 1 << 22  # METIS takes a graph of at most this many merged edges,
_REDUCTION = 64  # or of at most 1 / 64 of the graph's edges in both directions, if that is more
_STUCK = 0.95  # no further level if the last one left more than this share of the clusters before it


def partition_clusters(whole: Whole, parts: int, seed: int) -> Found:
    """Clusters the nodes by label propagation, then the clusters, until the graph between them is small enough for
    METIS. After METIS, moves single nodes if that cuts fewer edges and leaves the parts as equal.

    Memory: the edges a second time, by source, 4 bytes each; about 100 bytes per node; and 16 bytes per merged edge
    that METIS takes. METIS's process takes about 70 bytes per merged edge; by then this process has freed the edges by
    source and the pages of mapped files.

    Raises:
        ImportError, RuntimeError: see :func:`torch_gnnscale.partition.assignment.part_graph`.
    """
    check_installed()
    owner, peak = _coarsely(whole, parts, seed)
    sums = _sums(whole.weight, owner, parts)
    most, fewest = [], []
    for total, largest, smallest in zip(*(t.tolist() for t in (sums.sum(0), sums.amax(0), sums.amin(0))), strict=True):
        most.append(max(int(TOLERANCE * total / parts), -(-total // parts), largest))
        fewest.append(min(int((2 - TOLERANCE) * total / parts), smallest))
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
    return Found(owner, peak)


def _coarsely(whole: Whole, parts: int, seed: int) -> Found:
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
    cut = part_graph(*graph, weight, whole.names, parts, seed)
    return Found(cut.owner[group], cut.peak_bytes)


def _numbered(label: Tensor) -> tuple[Tensor, int]:
    """Labels in [0, n) numbered without gaps, in their order: int64, shape [n]; and how many there are."""
    used = torch.zeros(len(label), dtype=torch.int64)
    used[label] = 1
    return (used.cumsum(0) - 1)[label], int(used.sum())


def _sums(weight: Tensor, label: Tensor, count: int) -> Tensor:
    """The sum of the weights of each label: int64, shape [count, constraints]."""
    return weight.new_zeros(count, weight.size(1)).index_add_(0, label, weight)


# Methods ##############################################################################################################

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
    - "coarse": METIS's partition of clusters (see :mod:`torch_gnnscale.partition.assignment`), for larger graphs.
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
    check_choice("method", method, METHODS)
    seed = to_int("seed", seed)
    start = time.perf_counter()
    whole = Whole.of(relations, num_nodes, train or {}, balance)
    if method == "auto":
        limit = budget_bytes("memory", 0.5 if memory is None else memory, machine.available_memory())
        method = "metis" if EDGE_BYTES * 2 * whole.num_edges <= limit else "coarse"
    peak = 0
    if method in ("random", "ranges"):
        owner = {}
        for number, (node_type, size) in enumerate(whole.sizes.items()):
            key = batch_key(seed, 0, number, Purpose.PARTITION) if method == "random" else None
            owner[node_type] = _equal_ranges(size, parts, key)
    else:
        of_clusters = method == "coarse" and 1 < parts < whole.num_nodes
        found = partition_clusters(whole, parts, seed) if of_clusters else by_metis(whole, parts, seed)
        owner, peak = whole.by_type(found.owner.to(torch.int32)), found.peak_bytes
    return Assignment(owner, method, time.perf_counter() - start, max(peak, machine.resident_memory(peak=True)))


def by_metis(whole: Whole, parts: int, seed: int, tolerance: float = TOLERANCE) -> Found:
    """METIS's partition of a whole, in which max / mean of each constraint is at most ``tolerance``, if possible.

    Raises:
        ImportError, RuntimeError: as of :func:`assign`.
    """
    if parts == 1 or whole.num_nodes <= parts:  # METIS would leave parts empty
        return Found(torch.arange(whole.num_nodes) % parts, 0)
    check_installed()
    graph = whole.merged()
    ops.pool_trim()  # METIS needs the memory
    return part_graph(*graph, whole.weight, whole.names, parts, seed, tolerance)


def _equal_ranges(size: int, parts: int, key: int | None) -> Tensor:
    """Each part's range of [0, size) or of a permutation of it, part after part: int32, shape [size]."""
    bounds = torch.tensor([size * part // parts for part in range(parts + 1)])
    owner = torch.arange(parts, dtype=torch.int32).repeat_interleave(bounds.diff())
    return owner if key is None else torch.empty_like(owner).index_copy_(0, ops.permutation(size, key), owner)
