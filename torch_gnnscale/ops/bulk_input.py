"""What bulks are drawn from, checked, and how what operators return becomes samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .._user import warn
from .arguments import check_ids, check_int, check_key, check_readable, check_vector
from .graph_arguments import Sample, relations
from .tiers import MAX_TIERS, check_spread, open_peer

T = TypeVar("T")
_AT_ONCE = "too many at once: "
"""How the error of an operator begins that would draw fewer batches (``cuda/sample/bulk_rooms.h``)."""
MAX_BATCHES = (1 << 24) - 1
"""Batches of one call of :func:`sample_bulk`; where trees are disjoint, seeds."""


class StoredEdges(NamedTuple):
    """The edges of one relation as bulks read them, each kind of values in as many parts."""

    colptr: Tensor
    row: list[Tensor]
    edge_id: list[Tensor] | None
    weight: list[Tensor] | None
    time: list[Tensor] | None
    spread: list[int]
    """The parts of each tier: see :func:`sample_bulk`."""
    src_type: int = 0
    dst_type: int = 0
    reverse: int = -1
    """The number of the relation that holds its reverse edges, or -1: see :func:`relations`."""

    @property
    def values(self) -> list[list[Tensor]]:
        """row, edge_id, weight and time; those that edges lack have no parts."""
        return [self.row, *([] if of is None else of for of in (self.edge_id, self.weight, self.time))]


class BulkInput(NamedTuple):
    """What a bulk is sampled from, checked: see :func:`sample_bulk`."""

    colptr: Tensor
    row: list[Tensor]
    edge_id: list[Tensor]
    spread: list[int]
    seeds: Tensor
    seed_ptr: list[int]
    keys: list[int]


def check_bulk_input(
    colptr: Tensor,
    row: Tensor | Sequence[Tensor],
    seeds: Tensor,
    seed_ptr: Sequence[int],
    keys: Sequence[int],
    edge_id: Tensor | Sequence[Tensor] | None,
    spread: Sequence[int] | None,
) -> BulkInput:
    """Raises TypeError or ValueError for what :func:`sample_bulk` does not take; it has the arguments."""
    graph = relations([colptr], [torch.empty(0, dtype=torch.int64)])
    check_ids("seeds", seeds)
    rows, ids = _parts(row), [] if edge_id is None else _parts(edge_id)
    if spread is None and not 1 <= len(rows) <= MAX_TIERS:
        raise ValueError(f"row: expected 1 to {MAX_TIERS} parts, found {len(rows)}")
    of_tiers = [1] * len(rows) if spread is None else list(spread)
    edges = StoredEdges(graph.colptr[0], rows, None if edge_id is None else ids, None, None, of_tiers)
    check_edges(edges, graph.sizes, seeds.device)
    keys = [check_key(key) for key in keys]
    if len(keys) > MAX_BATCHES:
        raise ValueError(f"keys: expected at most {MAX_BATCHES} batches, found {len(keys)}")
    ends = [check_int("seed_ptr", end, 0) for end in seed_ptr]
    if len(ends) != len(keys) + 1:
        raise ValueError(f"seed_ptr: expected {len(keys) + 1} entries for {len(keys)} keys, found {len(ends)}")
    if ends != sorted(ends) or ends[0] != 0 or ends[-1] != len(seeds):
        raise ValueError(f"seed_ptr: expected numbers that do not fall, from 0 to {len(seeds)} seeds, found {ends}")
    return BulkInput(graph.colptr[0], rows, ids, of_tiers, seeds.to(torch.int64).contiguous(), ends, keys)


def check_edges(edges: StoredEdges, sizes: Sequence[int], device: torch.device) -> None:
    """Raises TypeError or ValueError unless these are edges between nodes of types of these ``sizes``, which the device
    can read. Their values are not looked at."""
    for name in ("src_type", "dst_type"):
        check_int(name, getattr(edges, name), 0, len(sizes) - 1)
    check_vector("colptr", edges.colptr, sizes[edges.dst_type] + 1)
    if not edges.colptr.is_contiguous():
        raise ValueError("colptr: expected a contiguous vector")
    check_readable("colptr", edges.colptr, device, "the seeds are")
    for name, parts in zip(("row", "edge_id", "weight", "time"), edges.values, strict=True):
        for part in parts:
            if name in ("weight", "time"):
                check_vector(name, part, part.numel() if isinstance(part, Tensor) else 0)
            else:
                check_ids(name, part)
            if part.dtype != parts[0].dtype:
                raise TypeError(f"{name}: expected parts of one dtype, found {parts[0].dtype} and {part.dtype}")
            if part.device.type == device.type == "cuda":
                open_peer("seeds", device, part.device)
            else:
                check_readable(name, part, device, "the seeds are")
        if name != "row" and not parts:
            continue
        if (found := sum(map(len, parts))) != (count := sum(map(len, edges.row))):
            raise ValueError(f"{name}: expected one for each of {count} edges, found {found}")
        if len(parts) != len(edges.row):
            raise ValueError(f"{name}: expected {len(edges.row)} parts, as many as row has, found {len(parts)}")
        check_spread(name, list(map(len, parts)), edges.spread)


def split_bulk(
    batches: int,
    hops: int,
    layers: bool,
    with_col: bool,
    node: Tensor,
    colptr: Tensor,
    edge_index: Tensor,
    edge_id: Tensor | None,
    edge_weight: Tensor | None,
    counts: Tensor,
    of_type: Sequence[int] = (1,),
    dst: Sequence[int] = (0,),
    order: Sequence[int] = (0,),
    tree: Tensor | None = None,
    whole: bool = False,
) -> list[Sample]:
    """The samples of a bulk, views of the buffers that an operator returned.

    Args:
        layers: every hop expands all nodes found so far.
        with_col: ``edge_index`` has destinations beside the sources.
        of_type: how many relations each node type is the source of.
        dst, order: of each relation, by the type of its sources: the type of its destinations, and its number.
        whole: edges are those of subgraphs, whose columns are all nodes, not those that were drawn.
    """
    groups, hops_of_nodes = len(of_type) * batches, hops + 1
    num_nodes_of = counts[: groups * hops_of_nodes].view(len(of_type), batches, hops_of_nodes)
    num_segments = len(order) * batches
    drawn = counts[groups * hops_of_nodes :][: num_segments * hops].view(num_segments, hops)
    known = num_nodes_of if whole else num_nodes_of[:, :, :hops]
    columns_of = (known.cumsum(2) if layers else known).sum(2) + 1
    segments = [  # (batch, place among the sorted relations)
        (b, k)
        for first, count in zip(accumulate(of_type, initial=0), of_type, strict=False)
        for b in range(batches)
        for k in range(first, first + count)
    ]
    edges = (counts[-1 - num_segments : -1] if whole else drawn.sum(1)).tolist()
    columns, node_counts, edge_counts = columns_of.tolist(), num_nodes_of.tolist(), drawn.tolist()
    nodes = [sum(counts_of) for of in node_counts for counts_of in of]
    node_parts = node.split(nodes)
    tree_parts = None if tree is None else tree.split(nodes)
    colptr_parts = colptr.split([columns[dst[k]][b] for b, k in segments])
    index_parts = edge_index.split([count * (1 + with_col) for count in edges])
    id_parts = None if edge_id is None else edge_id.split(edges)
    weight_parts = None if edge_weight is None else edge_weight.split(edges)
    place = {(b, order[k]): s for s, (b, k) in enumerate(segments)}
    samples = []
    for b in range(batches):
        of_batch = range(b, groups, batches)
        at = [place[b, number] for number in range(len(order))]
        samples.append(
            Sample(
                [node_parts[v] for v in of_batch],
                [colptr_parts[s] for s in at],
                [index_parts[s].view(1 + with_col, -1) for s in at],
                [] if id_parts is None else [id_parts[s] for s in at],
                [] if tree_parts is None else [tree_parts[v] for v in of_batch],
                [of_type_counts[b] for of_type_counts in node_counts],
                [edge_counts[s] for s in at],
                [] if weight_parts is None else [weight_parts[s] for s in at],
            )
        )
    return samples


def _parts(given: Tensor | Sequence[Tensor]) -> list[Any]:
    """Values of stored edges as a list of parts."""
    return list(given) if isinstance(given, (list, tuple)) else [given]


def joined_on(device: torch.device, parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The parts in one tensor on the device; those in host memory are copied at once."""
    if all(part.device == parts[0].device for part in parts):
        return torch.cat(list(parts), dim).to(device, non_blocking=True).contiguous()
    return torch.cat([part.to(device, non_blocking=True) for part in parts], dim).contiguous()


def in_halves(
    draw: Callable[[Sequence[T], Sequence[int]], list[Sample]], seeds: Sequence[T], keys: Sequence[int]
) -> list[Sample]:
    """What ``draw`` returns for batches of seeds, of one key each; nothing for no batches. Where the device has no
    memory for all of them at once, or they are more than one call can draw, a warning says so, and each half of them is
    drawn for itself, with the same samples."""
    if len(keys) == 0:
        return []
    try:
        return draw(seeds, keys)
    except RuntimeError as error:
        is_memory, text = isinstance(error, torch.OutOfMemoryError), str(error)
        if len(keys) < 2 or not (is_memory or text.startswith(_AT_ONCE)):
            raise
        why = "memory ran out" if is_memory else "one call draws no more"
    half = len(keys) // 2  # drawn after the handler, whose error keeps what the call had
    warn(f"bulk: {len(keys)} batches are drawn as {half} and {len(keys) - half}, for {why}: {text}")
    return in_halves(draw, seeds[:half], keys[:half]) + in_halves(draw, seeds[half:], keys[half:])
