"""Draws samples of a graph whose topology is partitioned, hop by hop, in exchanges of the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..feature.contract import Steps
from ..ops.arguments import check_key
from ..partition import PartitionBook
from ..sampler.executor import Drawing, Executor
from ..sampler.graph import SampledGraph
from ..sampler.hop_by_hop import Frontier, sample_by_hops
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
    """Those of rank i are ends[i]..ends[i + 1] - 1."""


class PartitionedExecutor(Executor):
    """Draws hop by hop: for each node of a frontier, the rank that owns its column draws the neighbors.

    A hop takes two rounds, of requests and of drawn edges. The first one takes none where all seeds are the rank's own.
    All ranks take the same rounds, whatever their frontiers hold.

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
        if many:
            raise not_implemented(how)
        if drawing.subgraph != "directional":
            raise not_implemented(f"subgraph_type={drawing.subgraph!r}")

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
        self.check(drawing, "bulks", many=False)
        if self._steps is None or not self._steps.running:
            raise RuntimeError(
                "sample: expected an iteration of a torch_gnnscale.NeighborLoader over the stores of a part, in whose "
                "steps all ranks sample together, found a call outside of one"
            )
        steps, key = self._steps, check_key(key)

        def pick(frontier: Frontier) -> ops.Picks:
            if frontier.hop == 0 and self._own_seeds:
                requests = _Requests(frontier.node, frontier.tree, frontier.time, [0, len(frontier.node)])
                return self._drawn(requests, [key], frontier, drawing)
            return self._exchanged(steps, frontier, key, drawing)

        return sample_by_hops(
            pick, seeds[0], drawing.fanouts[0], disjoint=drawing.disjoint, layers=drawing.layers,
            seed_time=None if seed_time is None else seed_time[0],
        )  # fmt: skip

    def sample_many(self, seeds: Sequence[Tensor], keys: Sequence[int], drawing: Drawing) -> list[ops.Sample]:
        """See :meth:`Executor.sample_many`."""
        raise not_implemented("bulks")

    # One hop #########################################################################################################

    def _drawn(self, requests: _Requests, keys: list[int], frontier: Frontier, drawing: Drawing) -> ops.Picks:
        """The edges that this rank draws for requests."""
        return ops.pick_neighbors(
            self.graph.stored, requests.node, requests.ends, keys, frontier.hop, frontier.fanout,
            first=int(self._bounds[self._part]), tree=requests.tree, time=requests.time, replace=drawing.replace,
            last=drawing.last and frontier.time is not None,
        )  # fmt: skip

    def _exchanged(self, steps: RankSteps, frontier: Frontier, key: int, drawing: Drawing) -> ops.Picks:
        """The edges that the owners of a frontier's nodes draw; meanwhile this rank draws for the others.

        All that may fail is done before sizes are exchanged, so that an error travels in their place: a rank that has
        told sizes sends the bytes.
        """
        owner = torch.searchsorted(self._bounds, frontier.node, right=True) - 1
        order = torch.argsort(owner, stable=True)
        counts = torch.bincount(owner, minlength=len(self._bounds) - 1)
        fields = [entry for entry in (frontier.node, frontier.tree, frontier.time) if entry is not None]
        dtype = self._requests if frontier.time is None else torch.int64
        sent = list(torch.stack([entry[order] for entry in fields], 1).to(dtype).split(counts.tolist()))
        received = steps.counted(torch.stack([counts, torch.full_like(counts, key)], 1), None, "sampling")
        asked, keys = received.T.tolist()
        answered = self._all_to_all(steps, sent, [len(fields) * count for count in asked], "requests")

        replies: list[Tensor] = []
        sizes, error = torch.zeros_like(received), None
        try:
            requests = _requests(answered, asked, frontier)
            replies = self._replies(self._drawn(requests, keys, frontier, drawing), requests.ends, sizes)
        except Exception as failed:  # the others wait for what this rank draws
            error = failed
        drawn = steps.counted(sizes, error, "drawing neighbors")[:, 0]
        found = self._all_to_all(steps, replies, (counts + 2 * drawn).tolist(), "picks")
        each = [
            entry.to(torch.int64).split([count, edges, edges])
            for entry, count, edges in zip(found, counts.tolist(), drawn.tolist(), strict=True)
        ]
        return _in_order(ops.Picks(*(torch.cat(entries) for entries in zip(*each, strict=True))), order)

    def _replies(self, picks: ops.Picks, ends: list[int], sizes: Tensor) -> list[Tensor]:
        """What was drawn for each rank: the number of edges of each of its requests, their sources, their ids. Puts the
        numbers of edges into ``sizes[:, 0]``."""
        assert picks.edge_id is not None
        before = torch.cat([picks.num_edges.new_zeros(1), picks.num_edges.cumsum(0)])[torch.tensor(ends)]
        sizes[:, 0] = before.diff()
        each = [entry.split(sizes[:, 0].tolist()) for entry in (picks.source, picks.edge_id)]
        counts = picks.num_edges.split([last - first for first, last in pairwise(ends)])
        return [torch.cat(entries).to(self._picks) for entries in zip(counts, *each, strict=True)]

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


def _requests(answered: list[Tensor], asked: list[int], frontier: Frontier) -> _Requests:
    """The requests that ranks sent, ``asked[i]`` of rank i; they have trees and times if ``frontier`` has."""
    fields = 1 + (frontier.tree is not None) + (frontier.time is not None)
    tables = [entry.view(count, fields) for entry, count in zip(answered, asked, strict=True)]
    node, *others = torch.cat(tables).to(torch.int64).unbind(1)
    tree = None if frontier.tree is None else others.pop(0)
    return _Requests(node, tree, None if frontier.time is None else others.pop(), list(accumulate(asked, initial=0)))


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
