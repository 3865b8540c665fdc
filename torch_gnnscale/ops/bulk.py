"""Batches sampled many at a time, as a GPU samples them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .arguments import MAX_COUNT, OPS, check_choice, check_ids, check_int, check_key, resolve_threads
from .bulk_input import MAX_BATCHES, StoredEdges, check_bulk_input, check_edges, in_halves, joined_on, split_bulk
from .graph_arguments import (
    BIDIRECTIONAL,
    DISJOINT,
    INDUCED,
    LAST,
    LAYERS,
    MAX_RELATIONS,
    OF_SUBGRAPH,
    REPLACE,
    SUBGRAPHS,
    WITH_COL,
    WITH_EDGE_ID,
    Sample,
    Subgraph,
    check_fanouts,
    check_one_each,
    checked_reverse,
    excluded_pairs,
    name_of,
    times_of,
)


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
        RuntimeError: the graph is malformed, or a hop of the bulk has more than 2^31 edges, or all hops 2^30 nodes;
            :meth:`PreparedBulks.sample_many` draws the halves of such a bulk.
        torch.OutOfMemoryError: the device has no memory for as much as the batches are known to need.
    """
    given = check_bulk_input(colptr, row, seeds, seed_ptr, keys, edge_id, spread)
    edges = StoredEdges(
        given.colptr, given.row, given.edge_id if edge_id is not None else None, None, None, given.spread
    )
    prepared = PreparedBulks(
        [edges], [len(given.colptr) - 1], fanouts, given.seeds.device, replace=replace, layers=layers,
        with_edge_id=with_edge_id, with_col=with_col,
    )  # fmt: skip
    samples, at = prepared.draw(given.seeds, given.seed_ptr, given.keys, threads=threads)
    if at >= 0:
        size = len(given.colptr) - 1
        raise IndexError(f"seeds[{at}] = {int(seeds[at])} is out of range: expected nodes in [0, {size})")
    return samples


class PreparedBulks:
    """Bulks in every mode, of a graph and options that are checked once: each batch equals bit for bit what
    :func:`sample_neighbors` draws with its key, which says what the modes do. :func:`sample_bulk` has the steps.

    All relations draw in the same launches. Segments of edges, one for each relation and batch, stand by the node type
    of their sources, then by batch, then by relation, so that those which find nodes of one type and batch stand
    together, in the order in which a single batch draws them. Where trees are disjoint, the hash table has (tree, node)
    for (batch, node). By weight without replacement, a thread makes all draws of a node; otherwise each draw has one.
    Excluded edges are looked for in the lists of the nodes that excluded pairs lead to, and left out of their draws.
    For induced subgraphs, all edges into the nodes look up their sources in the hash table at the end; the host waits
    twice more. For bidirectional ones, the drawn edges and their reverses are sorted by destination and source, and the
    first of equal ones is kept; the host waits once more.

    Args:
        edges: of each relation, in the order of their numbers; where ``device`` can read them (:func:`sample_bulk`).
            Weights and times are int64, as of :func:`relations`.
        sizes: the number of nodes of each type.
        fanouts, replace, disjoint, last, layers, subgraph, with_edge_id, with_col: as of :func:`sample_neighbors`.
        device: where bulks are drawn and returned.

    Raises:
        TypeError, ValueError: wrong dtypes, shapes, devices, numbers of entries or fanouts; times without ``disjoint``.
    """

    def __init__(
        self,
        edges: Sequence[StoredEdges],
        sizes: Sequence[int],
        fanouts: Sequence[int] | Sequence[Sequence[int]],
        device: torch.device,
        *,
        replace: bool = False,
        disjoint: bool = False,
        last: bool = False,
        layers: bool = False,
        subgraph: Subgraph = "directional",
        with_edge_id: bool = True,
        with_col: bool = True,
    ) -> None:
        check_choice("subgraph", subgraph, SUBGRAPHS)
        if layers and subgraph != "directional":
            raise ValueError(f"layers: expected subgraph='directional', whose hops have edges, found {subgraph!r}")
        if len(sizes) == 0:
            raise ValueError("sizes: expected at least one node type, found none")
        if len(edges) > MAX_RELATIONS:
            raise ValueError(f"edges: expected at most {MAX_RELATIONS} relations, found {len(edges)}")
        self._sizes = [check_int("sizes", size, 0, MAX_COUNT) for size in sizes]
        for of in edges:
            check_edges(of, self._sizes, device)
        self._device, self._with_col, self._layers = device, with_col, layers
        by_relation = check_fanouts(fanouts, len(edges))
        self._hops = hops = len(by_relation) // max(len(edges), 1)
        self.timed = any(of.time is not None for of in edges)
        if self.timed and not disjoint:
            raise ValueError("time: expected disjoint=True, for each seed has a time of its own")
        ends = [(of.src_type, of.dst_type) for of in edges]
        reverse = checked_reverse([of.reverse for of in edges], *map(list, zip(*ends, strict=True))) if edges else []
        order = sorted(range(len(edges)), key=lambda number: edges[number].src_type)
        place = {number: k for k, number in enumerate(order)} | {-1: -1}
        self._order, sorted_edges = order, [edges[number] for number in order]
        self._dst = [of.dst_type for of in sorted_edges]
        self._of_type = [sum(of.src_type == t for of in edges) for t in range(len(self._sizes))]
        values = zip(*(of.values for of in sorted_edges), strict=True) if edges else ([], [], [], [])
        layout = [
            [of.src_type, of.dst_type, number, place[reverse[number]], len(of.spread), len(of.row),
             *(len(v) > 0 for v in of.values[1:])]
            for number, of in zip(order, sorted_edges, strict=True)
        ]  # fmt: skip
        self._graph = (
            [of.colptr for of in sorted_edges], *([part for of in kind for part in of] for kind in values),
            [count for of in sorted_edges for count in of.spread],
            [int(entry) for of in layout for entry in of], self._sizes,
        )  # fmt: skip
        self._fanouts = [fanout for r in order for fanout in by_relation[r * hops : (r + 1) * hops]]
        self._disjoint, self._with_edge_id = disjoint, with_edge_id
        flags = {REPLACE: replace, DISJOINT: disjoint, LAST: last, LAYERS: layers, WITH_EDGE_ID: with_edge_id,
                 WITH_COL: with_col}  # fmt: skip
        self._options = OF_SUBGRAPH[subgraph] + sum(option for option, asked in flags.items() if asked)

    def sample_many(
        self,
        seeds: Sequence[Sequence[Tensor]],
        keys: Sequence[int],
        seed_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        seed_start_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        exclude: Sequence[Sequence[Tensor | None] | None] | None = None,
        threads: int = 0,
    ) -> list[Sample]:
        """A sample for each batch, views of buffers that all of them share. All are drawn by one call, or, with a
        warning, by several where the device's memory runs out.

        Args:
            seeds, keys, seed_time, seed_start_time, exclude: of each batch, as of :func:`sample_neighbors`; on any
                device.
            threads: see the package; of no effect on a GPU.

        Raises:
            TypeError, ValueError, IndexError, RuntimeError, torch.OutOfMemoryError: as of :func:`sample_bulk`; times or
                pairs as of :func:`sample_neighbors`.
        """
        count = len(seeds)
        check_one_each(count, keys=keys, seed_time=seed_time, seed_start_time=seed_start_time, exclude=exclude)
        given = [[None] * count if of is None else of for of in (seed_time, seed_start_time, exclude)]
        numbers = [f"[{b}]" if len(keys) > 1 else "" for b in range(len(keys))]
        batches = [self._batch(*of_batch) for of_batch in zip(numbers, seeds, *given, strict=True)]
        trees = sum(len(ids) for batch in batches for ids in batch.seeds) if self._disjoint else count
        if trees > MAX_BATCHES:
            what = "seeds of disjoint trees" if self._disjoint else "batches"
            raise ValueError(f"seeds: expected at most {MAX_BATCHES} {what} at once, found {trees}")
        keys = [check_key(key) for key in keys]
        return in_halves(lambda some, keys: self._sample(some, keys, threads), batches, keys)

    def _batch(self, of_batch: str, seeds: Sequence[Tensor], times: Any, starts: Any, pairs: Any) -> _Batch:
        """A batch, checked; ``of_batch``: its number in errors."""
        types, timed = len(self._sizes), self.timed
        if len(seeds) != types:
            raise ValueError(f"seeds{of_batch}: expected one entry for each of {types} node types, found {len(seeds)}")
        names = [name_of(f"seeds{of_batch}", t, types) for t in range(types)]
        for name, ids in zip(names, seeds, strict=True):
            check_ids(name, ids)
        of_seeds = times_of("seed_time", timed, list(seeds), times, timed)
        if starts is not None:
            starts = times_of("seed_start_time", timed, list(seeds), starts, False)
        return _Batch(
            names, seeds, of_seeds, starts, None if pairs is None else excluded_pairs(pairs, len(self._order))
        )

    def _sample(self, batches: Sequence[_Batch], keys: Sequence[int], threads: int) -> list[Sample]:
        """The samples of batches, by one call."""
        types = range(len(self._sizes))
        seeds = [batch.seeds[t] for t in types for batch in batches]
        time = start_time = None
        if self.timed:
            time = self._by_group(seeds, [batch.times for batch in batches])
            if any(batch.starts is not None for batch in batches):
                start_time = self._by_group(seeds, [batch.starts for batch in batches])
        exclude, exclude_ptr = self._pairs(batches)
        ids = joined_on(self._device, [of_group.to(torch.int64) for of_group in seeds])
        samples, at = self.draw(
            ids, [0, *accumulate(map(len, seeds))], list(keys), time, start_time, exclude, exclude_ptr, threads
        )
        if at >= 0:
            for batch in batches:
                for name, of_type, size in zip(batch.names, batch.seeds, self._sizes, strict=True):
                    check_ids(name, of_type, size, "nodes")
        return samples

    def _by_group(self, seeds: Sequence[Tensor], times: Sequence[Sequence[Tensor | None] | None]) -> Tensor:
        """Times of seeds, by node type and batch; of seeds without any, the least of all times."""
        given = [None if of is None else of[t] for t in range(len(self._sizes)) for of in times]
        least = torch.iinfo(torch.int64).min
        pairs = zip(seeds, given, strict=True)
        return joined_on(self._device, [torch.full((len(ids),), least) if of is None else of for ids, of in pairs])

    def _pairs(self, batches: Sequence[_Batch]) -> tuple[Tensor | None, list[int]]:
        """The excluded pairs of all segments, and where each one's begin."""
        found, first = [], 0
        for count in self._of_type:
            for batch in batches:
                for number in self._order[first : first + count]:
                    pairs = None if batch.pairs is None else batch.pairs[number]
                    found.append(torch.empty(2, 0, dtype=torch.int64) if pairs is None else pairs)
            first += count
        ends = [0, *accumulate(pairs.size(1) for pairs in found)]
        return (joined_on(self._device, found, 1).view(-1), ends) if ends[-1] else (None, [])

    def draw(
        self,
        seeds: Tensor,
        seed_ptr: list[int],
        keys: list[int],
        time: Tensor | None = None,
        start_time: Tensor | None = None,
        exclude: Tensor | None = None,
        exclude_ptr: Sequence[int] = (),
        threads: int = 0,
    ) -> tuple[list[Sample], int]:
        """The samples, and the position of the first seed that is no node, or -1; arguments as the operator takes them:
        seeds stand by node type, then by batch."""
        node, colptr, edge_index, edge, tree, counts = OPS.sample_bulk(
            *self._graph, seeds, seed_ptr, time, start_time, exclude, exclude_ptr, self._fanouts, keys, self._options,
            [], resolve_threads(threads),
        )  # fmt: skip
        return split_bulk(
            len(keys), self._hops, self._layers, self._with_col, node, colptr, edge_index,
            edge if self._with_edge_id else None, None, counts, self._of_type, self._dst, self._order,
            tree if self._disjoint else None, bool(self._options & (INDUCED | BIDIRECTIONAL)),
        ), int(counts[-1])  # fmt: skip


class _Batch(NamedTuple):
    """What is sampled for a batch, by node type or relation; see :meth:`PreparedBulks.sample_many`."""

    names: list[str]
    """Of ``seeds``, for errors."""
    seeds: Sequence[Tensor]
    times: list[Tensor | None]
    starts: list[Tensor | None] | None
    pairs: list[Tensor | None] | None
