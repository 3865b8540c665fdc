"""Executors: they draw the samples of a NeighborSampler on the CPU or on a GPU, with equal results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..comm.steps import Steps
from ..topology.segmented import SegmentedCSC
from .graph import SampledGraph


class Drawing(NamedTuple):
    """The options of :func:`torch_gnnscale.ops.sample_neighbors` that are the same for all batches."""

    fanouts: list[list[int]]
    """fanouts[relation][hop]."""
    replace: bool
    disjoint: bool
    last: bool
    layers: bool
    subgraph: ops.Subgraph


def check_bulk(graph: SampledGraph, drawing: Drawing, how: str) -> None:
    """Raises NotImplementedError naming the first mode in use that :func:`torch_gnnscale.ops.sample_bulk` lacks.

    ``how`` is the argument that requires it, such as "device='cuda:0'".
    """
    modes = ops.beyond_bulks(
        several_types=graph.is_hetero,
        weighted=any(relation.weight is not None for relation in graph.relations),
        timed=any(relation.time is not None for relation in graph.relations),
        disjoint=drawing.disjoint,
        subgraph="directional",
    )
    if drawing.subgraph != "directional":
        modes.append(f"subgraph_type={drawing.subgraph!r}")
    if modes:
        raise NotImplementedError(f"{modes[0]} with {how} is not implemented; use device='cpu'")


class Executor(ABC):
    """Draws samples of a graph. All executors return equal samples; a mode they lack raises NotImplementedError."""

    device: torch.device
    """The device of seeds and samples."""
    collective: bool = False
    """Whether all ranks of a process group must sample together."""

    def __init__(self, graph: SampledGraph) -> None:
        self.graph = graph

    @abstractmethod
    def check(self, drawing: Drawing, how: str, many: bool) -> None:
        """Raises NotImplementedError naming the first mode in use that :meth:`sample` lacks, or, if ``many``,
        :meth:`sample_many`. ``how`` is the argument that chose this executor or method, such as "bulk=4"."""

    @abstractmethod
    def check_links(self) -> None:
        """Raises NotImplementedError if samples of links cannot be drawn."""

    @abstractmethod
    def join(self, steps: Steps, own_seeds: bool) -> None:
        """See :meth:`KeyedSampler.join`."""

    @abstractmethod
    def sample(
        self, seeds: Sequence[Tensor], key: int, drawing: Drawing, seed_time: Sequence[Tensor | None] | None = None,
        exclude: Sequence[Tensor | None] | None = None,
    ) -> ops.Sample:  # fmt: skip
        """The sample of seeds (one tensor per node type); arguments as in
        :func:`torch_gnnscale.ops.sample_neighbors`."""

    @abstractmethod
    def sample_many(
        self, seeds: Sequence[Sequence[Tensor]], keys: Sequence[int], drawing: Drawing,
        seed_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        exclude: Sequence[Sequence[Tensor | None] | None] | None = None,
    ) -> list[ops.Sample]:  # fmt: skip
        """One sample per batch of seeds; arguments of each batch as in :meth:`sample`."""


class HostExecutor(Executor):
    """Draws on the CPU from a graph in host memory or in mapped files, in every mode."""

    device = torch.device("cpu")
    _last: tuple[Drawing, ops.PreparedNeighbors] | None = None
    """The options of the last sample, and what was prepared of them."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}  # as SampledGraph leaves out what is stored

    def check(self, drawing: Drawing, how: str, many: bool) -> None:
        """See :meth:`Executor.check`: it has all modes."""

    def check_links(self) -> None:
        """See :meth:`Executor.check_links`: they can."""

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """See :meth:`KeyedSampler.join`."""

    def sample(
        self, seeds: Sequence[Tensor], key: int, drawing: Drawing, seed_time: Sequence[Tensor | None] | None = None,
        exclude: Sequence[Tensor | None] | None = None,
    ) -> ops.Sample:  # fmt: skip
        """See :meth:`Executor.sample`."""
        return self._prepared(drawing).sample(seeds, key, seed_time, exclude)

    def sample_many(
        self, seeds: Sequence[Sequence[Tensor]], keys: Sequence[int], drawing: Drawing,
        seed_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        exclude: Sequence[Sequence[Tensor | None] | None] | None = None,
    ) -> list[ops.Sample]:  # fmt: skip
        """See :meth:`Executor.sample_many`; threads take whole batches."""
        return self._prepared(drawing).sample_many(seeds, keys, seed_time, exclude)

    def _prepared(self, drawing: Drawing) -> ops.PreparedNeighbors:
        last = self._last
        if last is None or (last[0] is not drawing and last[0] != drawing):
            last = self._last = drawing, ops.PreparedNeighbors(self.graph.stored, **drawing._asdict())
        return last[1]


class GPUExecutor(Executor):
    """Draws on a GPU from a graph in its memory, that of its peers or pinned host memory, always by
    :func:`torch_gnnscale.ops.sample_bulk`."""

    def __init__(self, graph: SampledGraph, csc: SegmentedCSC) -> None:
        super().__init__(graph)
        self.csc = csc
        self.device = csc.device

    def check(self, drawing: Drawing, how: str, many: bool) -> None:
        """See :meth:`Executor.check`."""
        check_bulk(self.graph, drawing, how)

    def check_links(self) -> None:
        """See :meth:`Executor.check_links`."""
        raise NotImplementedError(f"links with device={str(self.device)!r} are not implemented; use device='cpu'")

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """See :meth:`KeyedSampler.join`."""

    def sample(
        self, seeds: Sequence[Tensor], key: int, drawing: Drawing, seed_time: Sequence[Tensor | None] | None = None,
        exclude: Sequence[Tensor | None] | None = None,
    ) -> ops.Sample:  # fmt: skip
        """See :meth:`Executor.sample`; times and exclusions raise NotImplementedError."""
        return self.sample_many([seeds], [key], drawing, [seed_time], [exclude])[0]

    def sample_many(
        self, seeds: Sequence[Sequence[Tensor]], keys: Sequence[int], drawing: Drawing,
        seed_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        exclude: Sequence[Sequence[Tensor | None] | None] | None = None,
    ) -> list[ops.Sample]:  # fmt: skip
        """See :meth:`Executor.sample_many`; times and exclusions raise NotImplementedError."""
        if exclude is not None and any(pairs is not None for pairs in exclude):
            raise NotImplementedError(f"exclusions with device={str(self.device)!r} are not implemented; use 'cpu'")
        self.check(drawing, f"device={str(self.device)!r}", many=True)
        return self.csc.sample(
            [of_types[0] for of_types in seeds], drawing.fanouts[0], keys,
            replace=drawing.replace, layers=drawing.layers,
        )  # fmt: skip
