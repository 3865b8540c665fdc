"""Where a NeighborSampler's draws are made: the executors behind one sampler, which all draw the same samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..topology.segmented import SegmentedCSC
from .graph import SampledGraph


class Drawing(NamedTuple):
    """How neighborhoods are drawn: the options of :func:`torch_gnnscale.ops.sample_neighbors`."""

    fanouts: list[list[int]]
    """A list per relation."""
    replace: bool
    disjoint: bool
    last: bool
    layers: bool
    subgraph: ops.Subgraph


def check_bulk(graph: SampledGraph, drawing: Drawing, how: str) -> None:
    """Raises NotImplementedError naming the first mode in use that bulks lack; ``how`` says what asks for a bulk."""
    modes = ops.beyond_bulks(
        several_types=graph.is_hetero,
        weighted=any(relation.weight is not None for relation in graph.relations),
        timed=any(relation.time is not None for relation in graph.relations),
        disjoint=drawing.disjoint,
        subgraph=drawing.subgraph,
    )
    if modes:
        raise NotImplementedError(f"{modes[0]} with {how} is not implemented; use device='cpu' and bulk=1")


class Executor(ABC):
    """Draws samples of a graph. Every executor gives the same samples, or refuses a mode by its name."""

    device: torch.device
    """Where seeds are expected and samples are."""
    collective: bool = False
    """Whether all ranks of a process group draw together."""

    def __init__(self, graph: SampledGraph) -> None:
        self.graph = graph

    @abstractmethod
    def check(self, drawing: Drawing, how: str, many: bool) -> None:
        """Raises NotImplementedError naming the first mode in use that is not drawn here, or not in a call of
        :meth:`sample_many`; ``how`` says what asks for it."""

    @abstractmethod
    def sample(
        self, seeds: Sequence[Tensor], key: int, drawing: Drawing, seed_time: Sequence[Tensor | None] | None = None,
        exclude: Sequence[Tensor | None] | None = None,
    ) -> ops.Sample:  # fmt: skip
        """The sample of seeds by node type; arguments as of :func:`torch_gnnscale.ops.sample_neighbors`."""

    @abstractmethod
    def sample_many(self, seeds: Sequence[Tensor], keys: Sequence[int], drawing: Drawing) -> list[ops.Sample]:
        """The sample of each batch of seeds; see :func:`torch_gnnscale.ops.sample_bulk`."""


class HostExecutor(Executor):
    """Draws on the CPU, from a graph in host memory or in files: every mode, one batch at a time."""

    device = torch.device("cpu")
    _last: tuple[Drawing, ops.PreparedNeighbors] | None = None
    """The options of the last sample, and what was prepared of them."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}  # as SampledGraph leaves out what is stored

    def check(self, drawing: Drawing, how: str, many: bool) -> None:
        """Many at a time: only what bulks have."""
        if many:
            check_bulk(self.graph, drawing, how)

    def sample(
        self, seeds: Sequence[Tensor], key: int, drawing: Drawing, seed_time: Sequence[Tensor | None] | None = None,
        exclude: Sequence[Tensor | None] | None = None,
    ) -> ops.Sample:  # fmt: skip
        """See :meth:`Executor.sample`."""
        last = self._last
        if last is None or last[0] != drawing:
            last = self._last = drawing, ops.PreparedNeighbors(self.graph.stored, **drawing._asdict())
        return last[1].sample(seeds, key, seed_time, exclude)

    def sample_many(self, seeds: Sequence[Tensor], keys: Sequence[int], drawing: Drawing) -> list[ops.Sample]:
        """See :meth:`Executor.sample_many`."""
        graph = SegmentedCSC.on_cpu(self.graph.relations[0].csc)
        return graph.sample(seeds, drawing.fanouts[0], keys, replace=drawing.replace, layers=drawing.layers)


class PlacedExecutor(Executor):
    """Draws on a GPU, from a graph in its memory or in pinned host memory: bulks alone, of one batch or many."""

    def __init__(self, graph: SampledGraph, csc: SegmentedCSC) -> None:
        super().__init__(graph)
        self.csc = csc
        self.device = csc.device

    def check(self, drawing: Drawing, how: str, many: bool) -> None:
        """Only what bulks have."""
        check_bulk(self.graph, drawing, how)

    def sample(
        self, seeds: Sequence[Tensor], key: int, drawing: Drawing, seed_time: Sequence[Tensor | None] | None = None,
        exclude: Sequence[Tensor | None] | None = None,
    ) -> ops.Sample:  # fmt: skip
        """See :meth:`Executor.sample`; without times or exclusions."""
        if exclude is not None:
            raise NotImplementedError(f"exclusions with device={str(self.device)!r} are not implemented; use 'cpu'")
        self.check(drawing, f"device={str(self.device)!r}", many=False)
        return self.sample_many([seeds[0]], [key], drawing)[0]

    def sample_many(self, seeds: Sequence[Tensor], keys: Sequence[int], drawing: Drawing) -> list[ops.Sample]:
        """See :meth:`Executor.sample_many`."""
        return self.csc.sample(seeds, drawing.fanouts[0], keys, replace=drawing.replace, layers=drawing.layers)
