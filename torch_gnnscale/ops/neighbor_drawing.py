"""All hops of a batch: neighbors of seeds, and the weights by which they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from .arguments import ID_DTYPES, OPS, check_choice, check_ids, check_key, check_tensor, resolve_threads
from .bulk import PreparedBulks
from .bulk_input import StoredEdges
from .graph_arguments import (
    DISJOINT,
    LAST,
    LAYERS,
    OF_SUBGRAPH,
    REPLACE,
    SUBGRAPHS,
    WITH_COL,
    WITH_EDGE_ID,
    Relations,
    Sample,
    Subgraph,
    check_fanouts,
    check_one_each,
    excluded_pairs,
    name_of,
    times_of,
)


def sample_neighbors(
    graph: Relations,
    seeds: Sequence[Tensor],
    fanouts: Sequence[int] | Sequence[Sequence[int]],
    key: int,
    *,
    seed_time: Sequence[Tensor | None] | None = None,
    seed_start_time: Sequence[Tensor | None] | None = None,
    exclude: Sequence[Tensor | None] | None = None,
    replace: bool = False,
    disjoint: bool = False,
    last: bool = False,
    layers: bool = False,
    subgraph: Subgraph = "directional",
    with_edge_id: bool = True,
    with_col: bool = True,
    threads: int = 0,
) -> Sample:
    """Draws all hops of a batch and writes them as CSC with local ids (FastSample, section 3.2, algorithm 1).

    In each hop every relation in turn expands the nodes of its destination type that the hop before found. Draw k of a
    node is a function of (key, node, tree, hop, relation, k). Of d candidates, the stored neighbors that neither time
    nor ``exclude`` rules out, a node of fanout at least d keeps all, in stored order. Else, k are drawn:

    - uniformly, by Floyd's method from ``floor(r * range / 2^64)``, without replacement;
    - by weight, one after the other, in proportion to the integer weights of those that are left;
    - with replacement, k independent ones.

    If some seeds are on a GPU, it samples a bulk of one batch, with the same result (:class:`PreparedBulks`); the rules
    of :func:`sample_bulk` say where the graph may lie.

    Args:
        graph: from :func:`relations`.
        seeds: per node type, int32 or int64, shape [s]; repeats keep rows of their own.
        fanouts: of each hop; -1 takes all candidates. One list for all relations, or one list per relation.
        key: 64 bits, from :func:`torch_gnnscale.random.batch_key`.
        seed_time: per node type, int64, shape [s]; needed for types with seeds where edges have times, and of no effect
            where none have.
        seed_start_time: the same; an edge of a seed's tree has a time t with ``seed_start_time <= t <= seed_time``.
            Without it, for all types or for one, the start is before all times.
        exclude: per relation, pairs (source, destination) that are not sampled: int64, shape [2, m], sorted by
            destination, then source.
        replace: draw with replacement.
        disjoint: every seed's tree has nodes of its own. Needed where edges have times.
        last: of candidates with times, only the last ones remain candidates: as many as the fanout.
        layers: expand every node found so far in each hop (the papers' rule), not only the new ones (PyG's rule). Hop
            h then has columns of its own, one for each node known before it.
        subgraph: ``directional``, the edges that were drawn; ``bidirectional``, these and their reverses, each once,
            sorted by source in a column; ``induced``, all edges between the sampled nodes (of one tree), in stored
            order, as far as time and ``exclude`` allow.
        with_edge_id: return original edge ids; of an edge that was not drawn, but is the reverse of one that was, -1
            - (that one's id).
        with_col: return destinations beside the sources.
        threads: see the package.

    Raises:
        TypeError, ValueError, IndexError: wrong dtypes, shapes, numbers of entries or fanouts; seeds out of range.
        RuntimeError: values of the graph, which :func:`relations` does not look at, are malformed.
    """
    prepared = PreparedNeighbors(
        graph, fanouts, replace=replace, disjoint=disjoint, last=last, layers=layers, subgraph=subgraph,
        with_edge_id=with_edge_id, with_col=with_col,
    )  # fmt: skip
    return prepared.sample(seeds, key, seed_time, seed_start_time, exclude, threads)


class PreparedNeighbors:
    """:func:`sample_neighbors` with a graph and options that are checked once, for any number of batches.

    Arguments and errors as of :func:`sample_neighbors`.
    """

    def __init__(
        self,
        graph: Relations,
        fanouts: Sequence[int] | Sequence[Sequence[int]],
        *,
        replace: bool = False,
        disjoint: bool = False,
        last: bool = False,
        layers: bool = False,
        subgraph: Subgraph = "directional",
        with_edge_id: bool = True,
        with_col: bool = True,
    ) -> None:
        if not isinstance(graph, Relations):
            raise TypeError(f"graph: expected what relations() returns, found {type(graph).__name__}")
        check_choice("subgraph", subgraph, tuple(SUBGRAPHS))
        if layers and subgraph != "directional":
            raise ValueError(f"layers: expected subgraph='directional', whose hops have edges, found {subgraph!r}")
        if graph.timed and not disjoint:
            raise ValueError("time: expected disjoint=True, for each seed has a time of its own")
        self._graph, self._types, self._relations = graph, len(graph.sizes), len(graph.colptr)
        self._fanouts = check_fanouts(fanouts, self._relations)
        hops = len(self._fanouts) // max(self._relations, 1)
        by_relation = torch.tensor(self._fanouts, dtype=torch.int64, device="cpu")
        self._fanouts_by_relation = by_relation.view(self._relations, hops)
        self._options = (REPLACE * bool(replace) | DISJOINT * bool(disjoint) | LAST * bool(last)
                         | LAYERS * bool(layers) | WITH_EDGE_ID * bool(with_edge_id) | WITH_COL * bool(with_col)
                         | OF_SUBGRAPH[subgraph])  # fmt: skip
        self._subgraph = subgraph
        ids, trees = self._relations * bool(with_edge_id), self._types * bool(disjoint)
        bounds = accumulate([0, self._types, self._relations, self._relations, ids, trees])
        node, edge_index, colptr, edge_id, tree = (slice(*ends) for ends in pairwise(bounds))
        self._parts = itemgetter(node, colptr, edge_index, edge_id, tree)  # of what the operator returns for a batch
        self._node_hops = _ranges(0, self._types, hops + 1)
        self._edge_hops = _ranges(self._types * (hops + 1), self._relations, hops)
        self._held: Tensor | None = None  # the number by which the operator knows the graph in this process
        self._op = OPS.sample_neighbors.default  # without a choice among overloads in each call

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "_op": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _op=OPS.sample_neighbors.default)

    def sample(
        self,
        seeds: Sequence[Tensor],
        key: int,
        seed_time: Sequence[Tensor | None] | None = None,
        seed_start_time: Sequence[Tensor | None] | None = None,
        exclude: Sequence[Tensor | None] | None = None,
        threads: int = 0,
    ) -> Sample:
        """The sample of a batch; arguments and errors as of :func:`sample_neighbors`."""
        ids = self._checked("seeds", seeds)
        for entry in ids:
            if entry.is_cuda:
                return self._sample_on_gpu(entry.device, ids, key, seed_time, seed_start_time, exclude)
        limits = self._limits(ids, seed_time, seed_start_time, exclude)
        key, threads = check_key(key), resolve_threads(threads)
        try:
            found = self._run(ids, limits, [key], threads)
            return self._sample_of(found, found[-1].tolist()[0])
        except NotImplementedError:
            raise
        except RuntimeError as failed:
            error = failed
        self._check_range("seeds", ids, threads)
        raise error

    def sample_many(
        self,
        seeds: Sequence[Sequence[Tensor]],
        keys: Sequence[int],
        seed_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        seed_start_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        exclude: Sequence[Sequence[Tensor | None] | None] | None = None,
        threads: int = 0,
    ) -> list[Sample]:
        """The samples of many batches in host memory, each equal to what :meth:`sample` returns for it. Threads take
        whole batches: a thread that has finished one takes the next.

        Args:
            seeds, keys, seed_time, seed_start_time, exclude: of each batch, as of :meth:`sample`.
            threads: see the package.

        Raises:
            ValueError, TypeError, IndexError, RuntimeError: as :meth:`sample`, for the first batch that has an error;
                no batch is returned then. Another number of keys, times or exclusions than of batches; seeds on a GPU.
        """
        batches = len(seeds)
        keys = [check_key(key) for key in keys]
        check_one_each(batches, keys=keys, seed_time=seed_time, seed_start_time=seed_start_time, exclude=exclude)
        given = [[None] * batches if of is None else of for of in (seed_time, seed_start_time, exclude)]
        ids: list[Tensor] = []
        limits: list[list[Tensor | None]] = []
        for b, (batch, *of_batch) in enumerate(zip(seeds, *given, strict=True)):
            checked = self._checked(f"seeds[{b}]", batch)
            ids += checked
            limits.append(self._limits(checked, *of_batch))
        for entry in ids:
            if entry.is_cuda:
                raise ValueError(f"seeds: expected them in host memory, found some on {entry.device}")
        threads, none = resolve_threads(threads), [None] * (2 * self._types + self._relations)
        try:
            all_limits = [limit for of in limits for limit in of or none] if any(limits) else []
            *arrays, counts = self._run(ids, all_limits, keys, threads)
            size = len(arrays) // max(batches, 1)
            return [
                self._sample_of(arrays[b * size : (b + 1) * size], of_hops) for b, of_hops in enumerate(counts.tolist())
            ]
        except RuntimeError as failed:
            error = failed
        for b in range(batches):
            self._check_range(f"seeds[{b}]", ids[b * self._types : (b + 1) * self._types], threads)
        raise error

    def _checked(self, name: str, seeds: Sequence[Tensor]) -> list[Tensor]:
        """Seeds of a batch, contiguous."""
        if len(seeds) != self._types:
            raise ValueError(f"{name}: expected one entry for each of {self._types} node types, found {len(seeds)}")
        # Once per batch, with cold caches: options that are not used are not looked at, names are made for errors only.
        ids = []
        for t, entry in enumerate(seeds):
            if not (isinstance(entry, Tensor) and entry.dtype in ID_DTYPES and entry.dim() == 1):
                check_ids(name_of(name, t, self._types), entry)
            ids.append(entry.contiguous())
        return ids

    def _limits(
        self,
        ids: list[Tensor],
        seed_time: Sequence[Tensor | None] | None,
        seed_start_time: Sequence[Tensor | None] | None,
        exclude: Sequence[Tensor | None] | None,
    ) -> list[Tensor | None]:
        """What limits the draws of a batch: times and their starts by node type, excluded pairs by relation; empty:
        nothing does."""
        timed = self._graph.timed
        if not timed and seed_time is None and seed_start_time is None and exclude is None:
            return []
        times = times_of("seed_time", timed, ids, seed_time, timed)
        starts = times_of("seed_start_time", timed, ids, seed_start_time, False)
        return times + starts + excluded_pairs(exclude, self._relations)

    def _check_range(self, name: str, ids: list[Tensor], threads: int) -> None:
        """Raises IndexError for seeds of a batch that are no nodes."""
        for t, entry in enumerate(ids):
            check_ids(name_of(name, t, self._types), entry, self._graph.sizes[t], "nodes", threads)

    def _run(self, ids: list[Tensor], limits: list[Tensor | None], keys: list[int], threads: int) -> list[Tensor]:
        """What the operator returns."""
        if (held := self._held) is None:
            held = self._held = OPS.hold_relations(*self._graph[:-1])
        return self._op(held, self._fanouts_by_relation, ids, limits, keys, self._options, threads)

    def _sample_of(self, found: list[Tensor], counts: list[int]) -> Sample:
        """The sample of a batch: its tensors, which the operator returned in one list, and the counts of its hops."""
        num_nodes, num_edges = [counts[hops] for hops in self._node_hops], [counts[hops] for hops in self._edge_hops]
        node, colptr, edge_index, edge_id, tree = self._parts(found)
        return Sample(node, colptr, edge_index, edge_id, tree, num_nodes, num_edges)

    def _sample_on_gpu(
        self,
        device: torch.device,
        seeds: list[Tensor],
        key: int,
        seed_time: Sequence[Tensor | None] | None,
        seed_start_time: Sequence[Tensor | None] | None,
        exclude: Sequence[Tensor | None] | None,
    ) -> Sample:
        """A bulk of one batch."""
        graph, options, hops = self._graph, self._options, len(self._fanouts) // max(self._relations, 1)
        edges = [
            StoredEdges(
                graph.colptr[r], [graph.row[r]], _in_a_list(graph.edge_id[r]), _in_a_list(graph.weight[r]),
                _in_a_list(graph.time[r]), [1], graph.src_type[r], graph.dst_type[r], graph.reverse[r],
            )
            for r in range(self._relations)
        ]  # fmt: skip
        bulks = PreparedBulks(
            edges, graph.sizes, [self._fanouts[r * hops : (r + 1) * hops] for r in range(self._relations)], device,
            replace=bool(options & REPLACE), disjoint=bool(options & DISJOINT), last=bool(options & LAST),
            layers=bool(options & LAYERS), subgraph=self._subgraph, with_edge_id=bool(options & WITH_EDGE_ID),
            with_col=bool(options & WITH_COL),
        )  # fmt: skip
        return bulks.sample_many([seeds], [key], [seed_time], [seed_start_time], [exclude])[0]


def _in_a_list(values: Tensor | None) -> list[Tensor] | None:
    return None if values is None else [values]


def _ranges(begin: int, count: int, size: int) -> list[slice]:
    """``count`` ranges of ``size`` each, one after the other."""
    return [slice(begin + number * size, begin + (number + 1) * size) for number in range(count)]


def weight_sums(colptr: Tensor, weight: Tensor) -> Tensor:
    """Sums of integer weights over each column, for :func:`sample_neighbors`.

    A weight becomes ``round(2^32 w / max)``, max being the column's largest, and at least 1: a ratio of two weights of
    a column is kept up to a relative error of ``2^-33 max / w`` each, where ``w`` is not below ``2^-32 max``.

    Args:
        colptr: int64, shape [num_dst + 1].
        weight: positive and finite, any real dtype, shape [E], in stored order.

    Returns:
        int64, shape [E]: the sum over the column up to and with each edge.

    Raises:
        TypeError, ValueError: not such a vector; a weight that is not positive and finite.
    """
    check_tensor("weight", weight)
    if weight.dtype == torch.bool or weight.is_complex():
        raise TypeError(f"weight: expected real numbers, found {weight.dtype}")
    if weight.dim() != 1:
        raise ValueError(f"weight: expected a vector, found shape {tuple(weight.shape)}")
    if len(weight) != int(colptr[-1]):
        raise ValueError(f"weight: expected one for each of {int(colptr[-1])} edges, found {len(weight)}")
    values = weight.to(torch.float64)
    wrong = ~((values > 0) & torch.isfinite(values))
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        raise ValueError(f"weight[{at}] = {float(values[at])}: expected a positive and finite number")
    degree = colptr.diff()
    largest = torch.segment_reduce(values, "max", lengths=degree, initial=0) if len(degree) else values
    share = values / largest.repeat_interleave(degree)
    integer = (share * float(1 << 32)).round().clamp_(min=1).to(torch.int64)
    sums = integer.cumsum(0)  # modulo 2^64, as are the differences
    before = torch.cat([sums.new_zeros(1), sums])[colptr[:-1]]
    return sums - before.repeat_interleave(degree)
