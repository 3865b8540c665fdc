"""The graph as operators that draw samples take it; their options, fanouts and bounds, and what they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .arguments import MAX_COUNT, check_ids, check_int, check_tensor, check_vector

MAX_HOPS = 64
"""Hops a draw's counter can tell apart."""
MAX_FANOUT = 1 << 17
"""Neighbors of one node that can be drawn at random in one hop."""
MAX_RELATIONS = 1 << 10
"""Relations a draw's counter can tell apart."""
Subgraph = Literal["directional", "bidirectional", "induced"]
"""Which edges a sample has: see :func:`sample_neighbors`."""
SUBGRAPHS = get_args(Subgraph)
REPLACE, DISJOINT, LAST, LAYERS, BIDIRECTIONAL, INDUCED, WITH_EDGE_ID, WITH_COL = (1 << bit for bit in range(8))
"""The options of the native operators, bits of one integer: see cuda/sample/options.h."""
KEEP_KNOWN, LAYER_DEPENDENCY, INCLUDE_DST = (1 << bit for bit in range(8, 11))
"""Further ones, of sample_layers."""
OF_SUBGRAPH = {"directional": 0, "bidirectional": BIDIRECTIONAL, "induced": INDUCED}
"""The option that asks for a subgraph."""


class Sample(NamedTuple):
    """The answer of :func:`sample_neighbors`; every list has one entry per node type or per relation."""

    node: list[Tensor]
    """Per node type, the sampled nodes' ids in order of first occurrence, seeds first: int64, shape [n]."""
    colptr: list[Tensor]
    """Per relation, where each column's edges begin: int64, shape [columns + 1]. Columns are the expanded nodes of the
    destination type, or all of its sampled nodes if ``subgraph`` is not directional."""
    edge_index: list[Tensor]
    """Per relation, local ids of sources and, if asked for, destinations: int64, shape [1 or 2, e]."""
    edge_id: list[Tensor]
    """Per relation, original edge ids, if asked for: int64, shape [e]. -1 for an edge that another relation drew."""
    tree: list[Tensor]
    """Per node type, each node's tree, if trees are disjoint: int64, shape [n]. Seeds are numbered over all types."""
    num_nodes: list[list[int]]
    """Per node type, how many nodes each hop found; the first of the hops + 1 entries is the number of seeds."""
    num_edges: list[list[int]]
    """Per relation, how many edges each hop drew."""
    edge_weight: Sequence[Tensor] = ()
    """Per relation, a weight of each edge, if the sampler has weights: floating point, shape [e]."""


def check_fanouts(fanouts: Sequence, relations: int) -> list[int]:
    """The fanouts of all hops, relation by relation; raises ValueError for what is none."""
    lists = list(fanouts)
    if not (lists and all(isinstance(entry, Sequence) for entry in lists)):
        _check_list(lists)
        return lists * relations
    if len(lists) != relations or len({len(entry) for entry in lists}) > 1:
        raise ValueError(f"fanouts: expected {relations} lists of as many hops, found {fanouts}")
    for entry in lists:
        _check_list(entry)
    return [fanout for entry in lists for fanout in entry]


def _check_list(fanouts: Sequence) -> None:
    if len(fanouts) > MAX_HOPS:
        raise ValueError(f"fanouts: expected at most {MAX_HOPS} hops, found {len(fanouts)}")
    for hop, fanout in enumerate(fanouts):
        if not isinstance(fanout, int) or isinstance(fanout, bool) or not -1 <= fanout <= MAX_FANOUT:
            raise ValueError(f"fanouts[{hop}]: expected -1 (all) or 0..{MAX_FANOUT}, found {fanout}")


class Relations(NamedTuple):
    """A graph as one CSC per relation, as :func:`relations` returns it; every list has one entry per relation."""

    colptr: list[Tensor]
    row: list[Tensor]
    edge_id: list[Tensor | None]
    weight: list[Tensor | None]
    time: list[Tensor | None]
    src_type: list[int]
    dst_type: list[int]
    reverse: list[int]
    sizes: list[int]
    """Per node type, how many nodes there are."""
    timed: bool
    """Whether some edges have times."""


def relations(
    colptr: Sequence[Tensor],
    row: Sequence[Tensor],
    *,
    edge_id: Sequence[Tensor | None] | None = None,
    weight: Sequence[Tensor | None] | None = None,
    time: Sequence[Tensor | None] | None = None,
    src_type: Sequence[int] | None = None,
    dst_type: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
    reverse: Sequence[int] | None = None,
) -> Relations:
    """Checks the dtypes and shapes of a graph's relations. Their values are not looked at: check them before
    (:func:`check_colptr`, :func:`first_outside`).

    Args:
        colptr: per relation, int64, shape [num_dst + 1].
        row: per relation, sources, int32 or int64, shape [E]; any stride.
        edge_id: per relation, the original id of each stored edge, or None where it is the position.
        weight: per relation, sums of positive integer weights over each column up to and with each stored edge (see
            :func:`weight_sums`): int64, shape [E], increasing in a column; None draws uniformly.
        time: per relation, the time of each stored edge: int64, shape [E], not decreasing in a column. A tree has only
            edges of times up to its seed's.
        src_type: per relation, the node type of its sources, numbered from 0; 0 by default.
        dst_type: per relation, the node type of its destinations; 0 by default.
        sizes: per node type, how many nodes there are; by default, as many as the relations into it have columns.
        reverse: per relation, the number of the relation that holds its reverse edges, or -1 for none; by default, a
            relation between nodes of one type is its own reverse. Only ``bidirectional`` samples use it.

    Raises:
        TypeError, ValueError: wrong dtypes, shapes or numbers of entries.
    """
    count = len(colptr)
    if count > MAX_RELATIONS:
        raise ValueError(f"colptr: expected at most {MAX_RELATIONS} relations, found {count}")
    given = {"row": row, "edge_id": edge_id, "weight": weight, "time": time, "src_type": src_type, "dst_type": dst_type}
    lists: dict[str, list] = {
        name: [0 if name.endswith("type") else None] * count if entries is None else list(entries)
        for name, entries in given.items()
    }
    for name, entries in lists.items():
        if len(entries) != count:
            raise ValueError(f"{name}: expected one entry for each of {count} relations, found {len(entries)}")
    for r, pointer in enumerate(colptr):
        check_tensor("colptr", pointer)
        if pointer.dtype != torch.int64 or pointer.dim() != 1 or pointer.numel() == 0:
            raise TypeError(f"colptr: expected an int64 vector, found {pointer.dtype} {tuple(pointer.shape)}")
        _check_edges(r, lists)
    if sizes is not None and len(sizes) == 0:
        raise ValueError("sizes: expected at least one node type, found none")
    most = max(2 * count - 1, 0) if sizes is None else len(sizes) - 1
    src_types, dst_types = (
        [check_int(name, entry, 0, most) for entry in lists[name]] for name in ("src_type", "dst_type")
    )
    weights, times = (
        [None if entry is None else entry.contiguous() for entry in lists[name]] for name in ("weight", "time")
    )
    return Relations(
        [pointer.contiguous() for pointer in colptr], lists["row"], lists["edge_id"], weights, times, src_types,
        dst_types, checked_reverse(reverse, src_types, dst_types), _checked_sizes(sizes, colptr, src_types, dst_types),
        any(entry is not None for entry in times),
    )  # fmt: skip


def _check_edges(r: int, given: dict[str, list]) -> None:
    row, edge_id = given["row"][r], given["edge_id"][r]
    check_ids("row", row)
    if edge_id is not None:
        check_ids("edge_id", edge_id)
        if len(edge_id) != len(row):
            raise ValueError(f"edge_id: expected one for each of {len(row)} edges, found {len(edge_id)}")
    for name in ("weight", "time"):
        if given[name][r] is not None:
            check_vector(name, given[name][r], len(row), r)


def _checked_sizes(
    sizes: Sequence[int] | None, colptr: Sequence[Tensor], src_type: list[int], dst_type: list[int]
) -> list[int]:
    """How many nodes each type has."""
    if sizes is None:
        known = {t: pointer.numel() - 1 for t, pointer in zip(dst_type, colptr, strict=True)}
        types = range(max([*src_type, *dst_type], default=0) + 1)
        if missing := [t for t in types if t not in known]:
            raise ValueError(f"sizes: expected them, for no relation leads to node types {missing}")
        sizes = [known[t] for t in types]
    counts = [check_int("sizes", size, 0, MAX_COUNT) for size in sizes]
    for r, (t, pointer) in enumerate(zip(dst_type, colptr, strict=True)):
        if pointer.numel() - 1 != counts[t]:
            raise ValueError(
                f"colptr[{r}]: expected {counts[t] + 1} entries for {counts[t]} nodes, found {pointer.numel()}"
            )
    return counts


def checked_reverse(reverse: Sequence[int] | None, src_type: list[int], dst_type: list[int]) -> list[int]:
    """The numbers of reverse relations: see :func:`relations`."""
    ends = list(zip(src_type, dst_type, strict=True))
    if reverse is None:
        return [r if src == dst else -1 for r, (src, dst) in enumerate(ends)]
    if len(reverse) != len(ends):
        raise ValueError(f"reverse: expected one entry for each of {len(ends)} relations, found {len(reverse)}")
    for r, other in enumerate(reverse):
        check_int("reverse", other, -1, len(ends) - 1)
        if other >= 0 and ends[other] != ends[r][::-1]:
            raise ValueError(f"reverse[{r}]: expected a relation from type {ends[r][1]} to {ends[r][0]}")
    return list(reverse)


def name_of(name: str, number: int, count: int) -> str:
    """The name of one of ``count`` entries."""
    return f"{name}[{number}]" if count > 1 else name


def check_one_each(count: int, **lists: Sequence[Any] | None) -> None:
    """Raises ValueError for a list, by its name, that has not one entry for each of ``count`` batches."""
    for name, entries in lists.items():
        if entries is not None and len(entries) != count:
            raise ValueError(f"{name}: expected one entry for each of {count} batches, found {len(entries)}")


def times_of(
    name: str, timed: bool, seeds: list[Tensor], given: Sequence[Tensor | None] | None, needed: bool
) -> list[Tensor | None]:
    """Times of a batch's seeds, None unless the graph is ``timed``; ``needed``: types with seeds must have some."""
    times: list[Tensor | None] = [None] * len(seeds) if given is None else list(given)
    if len(times) != len(seeds):
        raise ValueError(f"{name}: expected one entry for each of {len(seeds)} node types, found {len(times)}")
    for t, (ids, time) in enumerate(zip(seeds, times, strict=True)):
        if time is not None or (needed and ids.numel()):
            check_vector(name, time, ids.numel(), t)
            assert time is not None
            times[t] = time.contiguous() if timed else None
    return times


def excluded_pairs(pairs: Sequence[Tensor | None] | None, count: int) -> list[Tensor | None]:
    """The excluded pairs of each of ``count`` relations, contiguous; raises for what is none."""
    if pairs is None:
        return [None] * count
    if len(pairs) != count:
        raise ValueError(f"exclude: expected one entry for each of {count} relations, found {len(pairs)}")
    for r, entry in enumerate(pairs):
        if entry is not None:
            _check_pairs(f"exclude[{r}]", entry)
    return [None if entry is None else entry.contiguous() for entry in pairs]


def _check_pairs(name: str, pairs: Tensor) -> None:
    """Raises unless they are pairs sorted by destination, then source."""
    check_tensor(name, pairs)
    if pairs.dtype != torch.int64 or pairs.dim() != 2 or pairs.size(0) != 2:
        raise TypeError(f"{name}: expected int64 of shape [2, m], found {pairs.dtype} {tuple(pairs.shape)}")
    source, destination = pairs
    same = destination[1:] == destination[:-1]
    if bool(((destination[1:] < destination[:-1]) | (same & (source[1:] < source[:-1]))).any()):
        raise ValueError(f"{name}: expected pairs sorted by destination, then source")
