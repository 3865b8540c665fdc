"""Samples one rank's part of each batch of a partitioned graph: the ranks draw it together, hop by hop (GSplit,
algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import NodeSamplerInput

from .. import ops
from ..comm.steps import Steps
from ..distributed.neighbor_sampling import PartitionedExecutor, not_implemented
from ..ops.cuts import Cut
from ..partition import PartitionBook
from ..sampler.base import Inputs, KeyedSampler
from ..sampler.neighbor import NeighborSampler
from ..sampler.output import NO_IDS
from ..topology.sort_on_disk import id_dtype
from .cut_sampler import RankSampler, SplitOutput, check_sampler


class GrowingCut:
    """The cut of one rank, while the ranks of a batch draw it together.

    In each hop, draw the edges into ``frontier``, pass them to :meth:`drawn`, send the others what it returns, and pass
    what they sent to :meth:`came`. Each remote node is sent once to its owner, in the first hop in which this rank
    draws an edge from it, so that both know its level. All nodes have numbers in the order in which this rank finds
    them; :meth:`cut` turns the numbers into rows.

    Args:
        seeds: the rank's own, in the batch's order, with repeats: int64, shape [s].
        bounds: rank i owns the nodes bounds[i]..bounds[i + 1] - 1: int64, shape [ranks + 1].
        part: the number of this rank.
    """

    def __init__(self, seeds: Tensor, bounds: Tensor, part: int) -> None:
        self.frontier = seeds
        """The own nodes of the last group: int64, ascending, except for seeds, which have the order of the batch."""
        self._bounds, self._part = bounds, part
        self._known = seeds  # ids by number
        self._groups = [torch.arange(len(seeds))]  # numbers of own nodes
        self._asked: list[list[Tensor]] = []  # numbers of remote nodes, by level and owner
        self._sent: list[Sequence[Tensor]] = []  # numbers of own nodes, by level and the rank that asked
        self._found: tuple[Tensor, Tensor] = NO_IDS, NO_IDS  # ids and numbers of the own nodes that this hop found here
        self._degrees: list[Tensor] = []
        self._edges: list[tuple[Tensor, Tensor]] = []  # numbers of sources, and ids of edges, by hop

    def drawn(self, picks: ops.Picks) -> list[Tensor]:
        """Takes the edges drawn into the frontier, in its order; returns the ids to send to each rank.

        Args:
            picks: with the ids of edges.

        Returns:
            For each rank, those of its nodes that are new to this one: int64, ascending; none for this rank.
        """
        assert picks.edge_id is not None
        found, first = ops.relabel(self._known, picks.source), len(self._known)
        self._known = torch.cat([self._known, found.node])
        self._degrees.append(picks.num_edges)
        self._edges.append((found.local, picks.edge_id))
        ids, order = found.node.sort()
        sizes = torch.searchsorted(ids, self._bounds).diff().tolist()
        of_ranks, numbers = list(ids.split(sizes)), list((order + first).split(sizes))
        self._found = of_ranks[self._part], numbers[self._part]
        of_ranks[self._part] = numbers[self._part] = NO_IDS
        self._asked.append(numbers)
        return of_ranks

    def came(self, asked: Sequence[Tensor]) -> None:
        """Takes what each rank sent, which ends the hop: the own nodes that are new are the next frontier."""
        ids, first = torch.cat(list(asked)), len(self._known)
        found = ops.relabel(self._known, ids)
        self._known = torch.cat([self._known, found.node])
        self._sent.append(found.local.split([len(of_rank) for of_rank in asked]))
        numbers = torch.cat([self._found[1], torch.arange(first, len(self._known))])
        self.frontier, order = torch.cat([self._found[0], found.node]).sort()
        self._groups.append(numbers[order])

    def cut(self) -> Cut:
        """The cut after the last hop, as :func:`torch_gnnscale.ops.cut_batch` would return it, but with ids in place of
        positions in the batch: ``local`` and ``halo`` have ids of nodes, ``edge`` ids of edges."""
        ranks = range(len(self._bounds) - 1)
        own, halo, sent = (
            torch.cat([*pieces, NO_IDS])
            for pieces in (self._groups, _by_rank(self._asked, ranks), _by_rank(self._sent, ranks))
        )
        row = torch.empty_like(self._known)
        row[own] = torch.arange(len(own))
        row[halo] = torch.arange(len(own), len(own) + len(halo))
        degrees, sources, edges = (
            torch.cat([*pieces, NO_IDS])
            for pieces in (self._degrees, [hop[0] for hop in self._edges], [hop[1] for hop in self._edges])
        )
        return Cut(
            self._known[own], [len(group) for group in self._groups], [len(hop[0]) for hop in self._edges],
            torch.cat([NO_IDS.new_zeros(1), degrees.cumsum(0)]), row[sources], edges, self._known[halo],
            _counts(self._asked, ranks), row[sent], _counts(self._sent, ranks),
        )  # fmt: skip


def _by_rank(levels: Sequence[Sequence[Tensor]], ranks: range) -> list[Tensor]:
    """The pieces in the order of (rank, level), given in the order of (level, rank)."""
    return [level[rank] for rank in ranks for level in levels]


def _counts(levels: Sequence[Sequence[Tensor]], ranks: range) -> list[list[int]]:
    """counts[rank][level]."""
    return [[len(level[rank]) for level in levels] for rank in ranks]


class CooperativeSampler(RankSampler):
    """Every rank draws the edges into its own nodes, and tells the owners of remote sources that they are needed
    (GSplit, section 3 and algorithm 1).

    A hop takes one round, of the ids of remote nodes, each of which is sent once per batch. All ranks take the rounds
    of all hops, even if their frontiers are empty. Samples equal those of :class:`SplitSampler` over the whole graph,
    bit for bit.

    Args:
        sampler: a :class:`NeighborSampler` over the stores of a part whose topology is partitioned.
        book: of the parts.
        part: the number of this rank's.

    Raises:
        NotImplementedError: another sampler, or a mode of it that cannot be cut.
    """

    collective = True

    def __init__(self, sampler: KeyedSampler, book: PartitionBook, part: int) -> None:
        check_sampler(sampler, collective=True)
        if not isinstance(sampler, NeighborSampler) or not isinstance(sampler.executor, PartitionedExecutor):
            raise not_implemented(f"split= of a {type(sampler).__name__}")
        super().__init__(sampler, book.num_parts, part)
        self._neighbors, self._executor = sampler, sampler.executor
        self._bounds, self._ids = book.bounds[None], id_dtype(book.num_nodes())

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """See :meth:`KeyedSampler.join`.

        Raises:
            ValueError: as of :meth:`PartitionedExecutor.join`.
        """
        self._executor.join(steps, own_seeds)

    def check_many(self, inputs: type[Inputs], how: str) -> None:
        """See :meth:`KeyedSampler.check_many`."""
        raise not_implemented(f"{how} of split batches")

    def _sampled(self, inputs: NodeSamplerInput, key: int) -> SplitOutput:
        """Called in a step of the loader. Raises RuntimeError outside of one, or if another rank could not draw."""
        steps, seeds = self._executor.owners.steps, inputs.node.to(torch.int64)
        own = ((seeds >= self._bounds[self.part]) & (seeds < self._bounds[self.part + 1])).nonzero().view(-1)
        drawing = self._neighbors.drawing
        growing = GrowingCut(seeds[own], self._bounds, self.part)
        # If a rank fails between two rounds, the others learn it in their next `counted`; after the last round, in the
        # `counted` of the step.
        for hop in range(len(drawing.fanouts[0])):
            wanted = growing.drawn(self._executor.pick_own(growing.frontier, key, hop, drawing))
            counts, sent = torch.tensor([[len(ids), 0] for ids in wanted]), [ids.to(self._ids) for ids in wanted]
            sizes = steps.counted(counts, None, "sampling")[:, 0].tolist()
            asked = steps.rows.tensors(sent, sizes, "frontiers")
            growing.came([ids.to(torch.int64) for ids in asked])
        cut = growing.cut()
        metadata: list[Any] = [None if entry is None else entry[own] for entry in (inputs.input_id, inputs.time)]
        out = self._output(cut, cut.edge, tuple(metadata), seeds, key)
        out.whole = {"key": key, "number of seeds": len(seeds), "sum of seeds": int(seeds.sum())}
        return out
