"""Draws samples of a graph whose topology is partitioned, hop by hop, in exchanges of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..feature.contract import Steps
from ..ops.arguments import check_key
from ..partition import PartitionBook
from ..sampler.executor import Drawing, Executor
from ..sampler.graph import SampledGraph
from ..sampler.hop_by_hop import Frontier, Hops, by_hops, finish_together
from ..topology.sort_on_disk import id_dtype
from .steps import RankSteps


def not_implemented(mode: str) -> NotImplementedError:
    """The error for a mode that a partitioned topology lacks."""
    return NotImplementedError(
        f"{mode} with a partitioned topology is not implemented; write the parts with topology='replicated'"
    )


class _Requests(NamedTuple):
    """The requests of all ranks that this one answers, rank after rank."""

    node: Tensor
    tree: Tensor | None
    time: Tensor | None
    ends: list[int]
    """Those of batch j of rank i are ends[i k + j]..ends[i k + j + 1] - 1, k being the number of batches per rank."""
    keys: list[int]
    """The key of each of these batches."""


class PartitionedExecutor(Executor):
    """Draws hop by hop: for each node of a frontier, the rank that owns its column draws the neighbors.

    A hop takes two rounds, of requests and of drawn edges, for all batches of a bulk. The first hop takes none where
    all seeds are the rank's own. All ranks take the same rounds, whatever their frontiers hold.

    Args:
        graph: this rank's columns.
        book: says which part has which nodes.
        part: this one.
        problem: what is wrong with this rank's columns, if anything.
    """

    device = torch.device("cpu")
    collective = True

    def __init__(self, graph: SampledGraph, book: PartitionBook, part: int, problem: Exception | None) -> None:
        super().__init__(graph)
        self._bounds, self._part, self._problem = book.bounds[None], part, problem
        self._requests = id_dtype(book.num_nodes())
        self._picks = id_dtype(max(book.num_nodes(), book.num_edges()))
        self._steps: RankSteps | None = None
        self._own_seeds = False

    def check(self, drawing: Drawing, how: str, many: bool) -> None:
        """See :meth:`Executor.check`."""
        if drawing.subgraph != "directional":
            raise not_implemented(f"subgraph_type={drawing.subgraph!r}")
        if many and drawing.disjoint:  # which edges with times imply
            raise not_implemented(f"disjoint trees with {how}")

    def check_links(self) -> None:
        """See :meth:`Executor.check_links`."""
        raise not_implemented("sampling of links")

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """See :meth:`Executor.join`.

        Raises:
            ValueError: on all ranks, if the columns of one are malformed; or the sampler is another loader's.
        """
        assert isinstance(steps, RankSteps)
        if self._steps not in (None, steps):
            raise ValueError("neighbor_sampler: expected one of this loader alone, found one that another loader has")
        found = steps.gather(None if self._problem is None else f"{type(self._problem).__name__}: {self._problem}")
        for rank, text in enumerate(found):
            if text is not None:
                raise ValueError(f"rank {rank}: {text}") from self._problem
        self._steps, self._own_seeds = steps, own_seeds

    def sample(
        self, seeds: Sequence[Tensor], key: int, drawing: Drawing, seed_time: Sequence[Tensor | None] | None = None,
        exclude: Sequence[Tensor | None] | None = None,
    ) -> ops.Sample:  # fmt: skip
        """See :meth:`Executor.sample`; in a step of the loader.

        Raises:
            RuntimeError: not in a step; or another rank could not draw.
        """
        if exclude is not None:
            raise not_implemented("exclusion of edges")
        self.check(drawing, "one batch", many=False)
        time = None if seed_time is None else seed_time[0]
        return self._made([by_hops(
            seeds[0], drawing.fanouts[0], disjoint=drawing.disjoint, layers=drawing.layers, seed_time=time,
        )], [key], drawing)[0]  # fmt: skip

    def sample_many(self, seeds: Sequence[Tensor], keys: Sequence[int], drawing: Drawing) -> list[ops.Sample]:
        """See :meth:`Executor.sample_many`: in a step of the loader, in which each rank samples as many batches. The
        requests of all batches travel together."""
        self.check(drawing, f"bulk={len(keys)}", many=True)
        return self._made([by_hops(of, drawing.fanouts[0], layers=drawing.layers) for of in seeds], keys, drawing)

    def _made(self, samples: Sequence[Hops], keys: Sequence[int], drawing: Drawing) -> list[ops.Sample]:
        if self._steps is None or not self._steps.running:
            raise RuntimeError(
                "sample: expected an iteration of a torch_gnnscale.NeighborLoader over the stores of a part, in whose "
                "steps all ranks sample together, found a call outside of one"
            )
        steps, given = self._steps, [check_key(key) for key in keys]

        def pick(frontiers: list[Frontier]) -> Sequence[ops.Picks]:
            asked = _all_of(frontiers)
            counts = [len(frontier.node) for frontier in frontiers]
            if asked.hop == 0 and self._own_seeds:
                ends = list(accumulate(counts, initial=0))
                requests = _Requests(asked.node, asked.tree, asked.time, ends, given)
                picks = self._drawn(requests, asked, drawing)
            else:
                picks = self._exchanged(steps, asked, counts, given, drawing)
            return _divided(picks, counts)

        return finish_together(samples, pick, len(drawing.fanouts[0]))

    # One hop #########################################################################################################

    def _drawn(self, requests: _Requests, frontier: Frontier, drawing: Drawing) -> ops.Picks:
        """The edges that this rank draws for requests of a hop."""
        return ops.pick_neighbors(
            self.graph.stored, requests.node, requests.ends, requests.keys, frontier.hop, frontier.fanout,
            first=int(self._bounds[self._part]), tree=requests.tree, time=requests.time, replace=drawing.replace,
            last=drawing.last and frontier.time is not None,
        )  # fmt: skip

    def _exchanged(
        self, steps: RankSteps, frontier: Frontier, counts: list[int], keys: list[int], drawing: Drawing
    ) -> ops.Picks:
        """The edges that the owners of a frontier's nodes draw; meanwhile this rank draws for the others.

        All that may fail is done before sizes are exchanged, so that an error travels in their place: a rank that has
        told sizes sends the bytes.

        Args:
            steps: of the loader.
            frontier: of all batches, one after the other.
            counts: how many nodes of it each batch has.
            keys: of the batches.
            drawing: the options.
        """
        owner = torch.searchsorted(self._bounds, frontier.node, right=True) - 1
        order = torch.argsort(owner, stable=True)
        parts, batches = len(self._bounds) - 1, len(keys)
        batch = torch.arange(batches).repeat_interleave(torch.tensor(counts), output_size=len(owner))
        table = torch.bincount(owner * batches + batch, minlength=parts * batches).view(parts, batches)
        wanted = table.sum(1)
        fields = [entry for entry in (frontier.node, frontier.tree, frontier.time) if entry is not None]
        dtype = self._requests if frontier.time is None else torch.int64
        sent = list(torch.stack([entry[order] for entry in fields], 1).to(dtype).split(wanted.tolist()))
        head = torch.tensor(keys[0] if batches == 1 else batches).expand(parts)
        received = steps.counted(torch.stack([wanted, head], 1), None, "sampling")
        asked, of_batches = received[:, 0].tolist(), received
        if batches > 1:
            told = torch.cat([table, torch.tensor(keys).expand(parts, -1)], 1)
            of_batches = steps.rows.numbers(told, "counts")
        each, of_keys = of_batches[:, :batches].flatten(), of_batches[:, batches:].flatten()
        answered = self._all_to_all(steps, sent, [len(fields) * count for count in asked], "requests")

        replies: list[Tensor] = []
        sizes, error = torch.zeros(parts, 2, dtype=torch.int64), None
        try:
            requests = _requests(answered, asked, each.tolist(), of_keys.tolist(), frontier)
            replies = self._replies(self._drawn(requests, frontier, drawing), asked, sizes)
        except Exception as failed:  # the others wait for what this rank draws
            error = failed
        drawn = steps.counted(sizes, error, "drawing neighbors")[:, 0]
        found = self._all_to_all(steps, replies, (wanted + 2 * drawn).tolist(), "picks")
        pieces = [
            entry.to(torch.int64).split([count, edges, edges])
            for entry, count, edges in zip(found, wanted.tolist(), drawn.tolist(), strict=True)
        ]
        return _in_order(ops.Picks(*(torch.cat(entries) for entries in zip(*pieces, strict=True))), order)

    def _replies(self, picks: ops.Picks, asked: list[int], sizes: Tensor) -> list[Tensor]:
        """What was drawn for each rank, of which ``asked[i]`` requests came: the number of edges of each request, their
        sources, their ids. Puts the numbers of edges into ``sizes[:, 0]``."""
        each = _divided(picks, asked)
        sizes[:, 0] = torch.tensor([len(entry.source) for entry in each])
        return [torch.cat([*entry[:2], _ids(entry)]).to(self._picks) for entry in each]

    def _all_to_all(self, steps: RankSteps, pieces: list[Tensor], lengths: list[int], purpose: str) -> list[Tensor]:
        """What the rank of each part sent to this one; a rank's own piece does not travel.

        Args:
            steps: of the loader.
            pieces: for each part, contiguous and all of one dtype.
            lengths: how many elements the rank of each part sends.
            purpose: what the traffic is counted as.
        """
        own = pieces[self._part].reshape(-1)
        each = [own[:0] if part == self._part else piece.reshape(-1) for part, piece in enumerate(pieces)]
        given = [entry.nbytes for entry in each]
        sizes = [0 if part == self._part else own.element_size() * length for part, length in enumerate(lengths)]
        found = steps.rows.bytes(torch.cat(each).view(torch.uint8), given, sizes, purpose).split(sizes)
        return [own if part == self._part else entry.view(own.dtype) for part, entry in enumerate(found)]


def _ids(picks: ops.Picks) -> Tensor:
    assert picks.edge_id is not None
    return picks.edge_id


def _all_of(frontiers: list[Frontier]) -> Frontier:
    """The nodes that the batches of a bulk expand, batch after batch."""
    first = frontiers[0]
    if len(frontiers) == 1:
        return first
    assert first.tree is None
    return first._replace(node=torch.cat([frontier.node for frontier in frontiers]))


def _divided(picks: ops.Picks, counts: list[int]) -> list[ops.Picks]:
    """The edges of consecutive groups of requests, ``counts[i]`` of them in group i."""
    if len(counts) == 1:
        return [picks]
    ends = torch.tensor([0, *accumulate(counts)])
    edges = torch.cat([picks.num_edges.new_zeros(1), picks.num_edges.cumsum(0)])[ends].diff().tolist()
    each = (picks.num_edges.split(counts), picks.source.split(edges), _ids(picks).split(edges))
    return [ops.Picks(*entries) for entries in zip(*each, strict=True)]


def _requests(
    answered: list[Tensor], asked: list[int], each: list[int], keys: list[int], frontier: Frontier
) -> _Requests:
    """The requests that ranks sent, ``asked[i]`` of rank i, ``each[j]`` of a batch; they have trees and times if
    ``frontier`` has."""
    fields = 1 + (frontier.tree is not None) + (frontier.time is not None)
    tables = [entry.view(count, fields) for entry, count in zip(answered, asked, strict=True)]
    node, *others = torch.cat(tables).to(torch.int64).unbind(1)
    tree = None if frontier.tree is None else others.pop(0)
    ends = list(accumulate(each, initial=0))
    return _Requests(node, tree, None if frontier.time is None else others.pop(), ends, keys)


def _in_order(picks: ops.Picks, order: Tensor) -> ops.Picks:
    """Edges of requests i as those of requests ``order[i]``."""
    assert picks.edge_id is not None
    count = torch.empty_like(picks.num_edges)
    count[order] = picks.num_edges
    begin = torch.empty_like(count)
    begin[order] = picks.num_edges.cumsum(0) - picks.num_edges
    shift = begin - (count.cumsum(0) - count)
    place = torch.arange(len(picks.source)) + shift.repeat_interleave(count, output_size=len(picks.source))
    return ops.Picks(count, picks.source[place], picks.edge_id[place])
