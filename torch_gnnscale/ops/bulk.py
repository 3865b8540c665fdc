"""Batches sampled many at a time, as a GPU samples them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._warn import warn
from .arguments import OPS, check_ids, check_int, check_key, check_readable, resolve_threads
from .graph_arguments import LAYERS, REPLACE, WITH_COL, WITH_EDGE_ID, Sample, Subgraph, check_fanouts, relations
from .rows import MAX_TIERS, check_spread, open_peer

MAX_BATCHES = (1 << 24) - 1
"""Batches of one call of :func:`sample_bulk`."""


def sample_bulk(
    colptr: Tensor,
    row: Tensor | Sequence[Tensor],
    seeds: Tensor,
    seed_ptr: Sequence[int],
    fanouts: Sequence[int],
    keys: Sequence[int],
    *,
    edge_id: Tensor | Sequence[Tensor] | None = None,
    spread: Sequence[int] | None = None,
    replace: bool = False,
    layers: bool = False,
    with_edge_id: bool = True,
    with_col: bool = True,
    threads: int = 0,
) -> list[Sample]:
    """Draws k batches of a homogeneous graph in one sequence of launches, each equal bit for bit to what
    :func:`sample_neighbors` draws with its key (FastSample, section 3.2, algorithm 1).

    Every step of a hop is a loop over independent items: count each column's edges, draw by Floyd's method from draws
    that are made all at once, enter the sources into a hash table of (batch, node) whose value falls to the least edge
    that found the node, and number the nodes by a prefix sum over the edges that were first. On a GPU, all of it is
    queued on the current stream, and the host waits once, for the counts; it runs a second time where an output needed
    more room than earlier calls with the same graph and fanouts did.

    On a CPU, threads run the same steps, which serves to check them. :meth:`PreparedNeighbors.sample_many` deals whole
    batches to threads instead, in every mode, and is faster.

    Args:
        colptr: int64, shape [N + 1]. Where ``seeds`` lie on a GPU, this one, ``row`` and ``edge_id`` lie there, or in
            pinned host memory, which is then read over the bus; ``row`` and ``edge_id`` may also lie on other GPUs that
            this one can read.
        row: sources, int32 or int64, shape [E]; any stride. Or several such tensors of one dtype, which may lie in
            different memories: by default up to 4, which hold the edges one after the other.
        seeds: of all batches, one batch after the other, int32 or int64, shape [s]; repeats keep rows of their own.
        seed_ptr: where each batch's seeds begin, and where the last one's end: k + 1 numbers.
        fanouts: of each hop; -1 takes all neighbors.
        keys: 64 bits for each batch, from :func:`torch_gnnscale.random.batch_key`.
        edge_id: the original id of each stored edge, in the same form, or None where it is the position.
        spread: the number of tensors of each tier, as of :func:`gather_tiers`: up to 4 tiers of up to 32 tensors in
            all hold the edges one after the other, and the r-th edge of a tier of P tensors is entry r // P of tensor
            r mod P. By default 1.
        replace: draw with replacement.
        layers: expand every node found so far in each hop, not only the new ones.
        with_edge_id: return original edge ids.
        with_col: return destinations beside the sources.
        threads: see the module; of no effect on a GPU.

    Returns:
        A sample for each batch, its tensors views of buffers that all of them share, on the device of ``seeds``.

    Raises:
        TypeError, ValueError, IndexError: wrong dtypes, shapes, devices, numbers of entries or fanouts; seeds out of
            range.
        RuntimeError: the graph is malformed, or a hop of the bulk has more than 2^31 edges.
        torch.OutOfMemoryError: the device has no memory for as much as the batches are known to need.
    """
    given = check_bulk_input(colptr, row, seeds, seed_ptr, keys, edge_id, spread)
    fanouts = check_fanouts(list(fanouts), 1)
    options = REPLACE * bool(replace) | LAYERS * bool(layers)
    options |= WITH_EDGE_ID * bool(with_edge_id) | WITH_COL * bool(with_col)
    node, pointer, edge_index, edge, counts = OPS.sample_bulk(
        given.colptr, given.row, given.edge_id, given.spread, given.seeds, given.seed_ptr, fanouts, given.keys,
        options, [], resolve_threads(threads),
    )  # fmt: skip
    if (at := int(counts[-1])) >= 0:
        size = len(given.colptr) - 1
        raise IndexError(f"seeds[{at}] = {int(seeds[at])} is out of range: expected nodes in [0, {size})")
    return split_bulk(
        len(given.keys), len(fanouts), layers, with_col, node, pointer, edge_index, edge if with_edge_id else None,
        None, counts,
    )  # fmt: skip


def in_halves(
    draw: Callable[[Sequence[Tensor], Sequence[int]], list[Sample]], seeds: Sequence[Tensor], keys: Sequence[int]
) -> list[Sample]:
    """What ``draw`` returns for batches of seeds, of one key each. Where the device has no memory for all of them at
    once, a warning says so, and each half of them is drawn for itself, with the same samples."""
    try:
        return draw(seeds, keys)
    except torch.OutOfMemoryError as error:
        if len(keys) < 2:
            raise
        text = str(error)
    half = len(keys) // 2  # drawn after the handler, whose error keeps what the call had
    warn(f"bulk: {len(keys)} batches are drawn as {half} and {len(keys) - half}, for memory ran out: {text}")
    return in_halves(draw, seeds[:half], keys[:half]) + in_halves(draw, seeds[half:], keys[half:])


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
    rows, ids = _parts("row", row, spread), [] if edge_id is None else _parts("edge_id", edge_id, spread)
    if edge_id is not None and (found := sum(map(len, ids))) != (count := sum(map(len, rows))):
        raise ValueError(f"edge_id: expected one for each of {count} edges, found {found}")
    if edge_id is not None and len(ids) != len(rows):
        raise ValueError(f"edge_id: expected {len(rows)} parts, as many as row has, found {len(ids)}")
    check_readable("colptr", graph.colptr[0], seeds.device, "the seeds are")
    for name, parts in (("row", rows), ("edge_id", ids)):
        for part in parts:
            if part.device.type == seeds.device.type == "cuda":
                open_peer("seeds", seeds.device, part.device)
            else:
                check_readable(name, part, seeds.device, "the seeds are")
    keys = [check_key(key) for key in keys]
    if len(keys) > MAX_BATCHES:
        raise ValueError(f"keys: expected at most {MAX_BATCHES} batches, found {len(keys)}")
    ends = [check_int("seed_ptr", end, 0) for end in seed_ptr]
    if len(ends) != len(keys) + 1:
        raise ValueError(f"seed_ptr: expected {len(keys) + 1} entries for {len(keys)} keys, found {len(ends)}")
    if ends != sorted(ends) or ends[0] != 0 or ends[-1] != len(seeds):
        raise ValueError(f"seed_ptr: expected numbers that do not fall, from 0 to {len(seeds)} seeds, found {ends}")
    of_tiers = [1] * len(rows) if spread is None else list(spread)
    return BulkInput(graph.colptr[0], rows, ids, of_tiers, seeds.to(torch.int64).contiguous(), ends, keys)


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
) -> list[Sample]:
    """The samples of a bulk, views of the buffers that an operator returned. ``layers``: every hop expands all nodes
    found so far. ``with_col``: ``edge_index`` has destinations beside the sources."""
    num_nodes_of = counts[: batches * (hops + 1)].view(batches, hops + 1)
    num_edges_of = counts[batches * (hops + 1) : -1].view(batches, hops)
    nodes, edges = num_nodes_of.sum(1).tolist(), num_edges_of.sum(1).tolist()
    known = num_nodes_of[:, :hops]
    columns = ((known.cumsum(1) if layers else known).sum(1) + 1).tolist()
    num_nodes, num_edges = num_nodes_of.tolist(), num_edges_of.tolist()
    ends_of_edges = edge_index.split([count * (1 + with_col) for count in edges])
    edge_ids: list[list[Tensor]] = [[]] * batches if edge_id is None else [[part] for part in edge_id.split(edges)]
    weights: list[list[Tensor]] = [[]] * batches
    if edge_weight is not None:
        weights = [[part] for part in edge_weight.split(edges)]
    return [
        Sample([n], [c], [e.view(1 + with_col, -1)], i, [], [num_nodes[b]], [num_edges[b]], w)
        for b, (n, c, e, i, w) in enumerate(
            zip(node.split(nodes), colptr.split(columns), ends_of_edges, edge_ids, weights, strict=True)
        )
    ]


def beyond_bulks(
    *, several_types: bool, weighted: bool, timed: bool, disjoint: bool, subgraph: Subgraph, excluding: bool = False
) -> list[str]:
    """The modes in use, by name, that :func:`sample_bulk` does not have and :func:`sample_neighbors` has on a CPU."""
    modes = {
        "a heterogeneous graph": several_types,
        "a weighted graph": weighted,
        "a graph with times": timed,
        "exclude": excluding,
        "disjoint=True": disjoint,
        f"subgraph={subgraph!r}": subgraph != "directional",
    }
    return [mode for mode, in_use in modes.items() if in_use]


def _parts(name: str, given: Tensor | Sequence[Tensor], spread: Sequence[int] | None) -> list[Tensor]:
    """Stored edges as a list of parts, checked."""
    parts: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    if spread is None and not 1 <= len(parts) <= MAX_TIERS:
        raise ValueError(f"{name}: expected 1 to {MAX_TIERS} parts, found {len(parts)}")
    for part in parts:
        check_ids(name, part)
        if part.dtype != parts[0].dtype:
            raise TypeError(f"{name}: expected parts of one dtype, found {parts[0].dtype} and {part.dtype}")
    if spread is not None:
        check_spread(name, list(map(len, parts)), spread)
    return parts
