"""Drawing on a GPU: bulks of batches of any mode, from edges where the GPU can read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .. import ops
from ..memory import Budget
from ..topology.segmented import Edges, SegmentedCSC
from .executor import Drawing, Executor
from .graph import SampledGraph
from .minibatch import PreparedSeeds


def on_gpu(
    graph: SampledGraph, device: torch.device, budget: Budget | None, peers: Sequence[Budget]
) -> list[SegmentedCSC]:
    """The edges of all relations as a GPU reads them: see :meth:`SegmentedCSC.all_on_gpu`."""
    edges = [Edges(relation.csc, relation.weight, relation.time) for relation in graph.relations]
    return SegmentedCSC.all_on_gpu(edges, device, budget, peers)


class GPUExecutor(Executor):
    """Draws on a GPU from a graph in its memory, that of its peers or pinned host memory, always by
    :class:`torch_gnnscale.ops.PreparedBulks`. Seeds, times and exclusions may lie in host memory.

    Args:
        graph: what is sampled.
        device: the GPU.
        cscs: the edges of each relation, as the GPU reads them.
    """

    seeds_on = None
    _last: tuple[Drawing, ops.PreparedBulks] | None = None
    """The options of the last bulk, and what was prepared of them."""

    def __init__(self, graph: SampledGraph, device: torch.device, cscs: Sequence[SegmentedCSC]) -> None:
        super().__init__(graph)
        self.cscs = list(cscs)
        self.device = device

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}

    def draw(self, seeds: Sequence[PreparedSeeds], keys: Sequence[int], options: Drawing) -> list[ops.Sample]:
        """As :meth:`Executor.draw`: all batches in one bulk."""
        last = self._last
        if last is None or (last[0] is not options and last[0] != options):
            given = options._asdict()
            stored = self.graph.stored
            ends = zip(self.cscs, stored.src_type, stored.dst_type, stored.reverse, strict=True)
            edges = [csc.edges(*of_relation) for csc, *of_relation in ends]
            bulks = ops.PreparedBulks(edges, stored.sizes, given.pop("fanouts"), self.device, **given)
            last = self._last = options, bulks
        nodes, _, times, starts, pairs, *_ = map(list, zip(*seeds, strict=True)) if seeds else ([] for _ in range(6))
        return last[1].sample_many(nodes, keys, times, starts, pairs)
