"""Samples one rank's part of each batch of a partitioned graph: the ranks draw it together."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.sampler import NodeSamplerInput

from ..comm.steps import Steps
from ..distributed.executor import PartitionedExecutor, not_implemented
from ..partition import PartitionBook
from ..sampler.keyed import Inputs, KeyedSampler
from ..sampler.neighbor import NeighborSampler
from ..topology.sort_on_disk import id_dtype
from .checks import check_sampler
from .growing import GrowingCut
from .split_sampler import RankSampler, SplitOutput


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
