"""The contract of row sources: what a loader's line asks of an object that reads the rows of samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from typing_extensions import override

from ..comm.steps import Steps
from ..sampler.base import KeyedSampler
from ..sampler.minibatch import MiniBatch, SampledEdges
from .fields import EdgeLayout, EdgeLayouts


class Ids:
    """Ids, copied at most once to each device."""

    def __init__(self, ids: Tensor) -> None:
        self._ids = ids
        self._on: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """The ids on that device."""
        if device == self._ids.device:
            return self._ids
        if device not in self._on:
            self._on[device] = self._ids.to(device)
        return self._on[device]


class Bounds:
    """Bounds of the sampled ids, as the sampler states them; no bounds if it is None. They do not hold for an output
    that the user's transform has changed."""

    def __init__(self, sampler: KeyedSampler | None = None) -> None:
        self._sampler = sampler
        self.of_nodes: Mapping[Any, int] = {} if sampler is None else sampler.node_bounds() or {}
        """By node type: all sampled ids are below it."""

    def of_edges(self, edge_type: Any) -> int | None:
        """All sampled ids of this edge type are below it; None if not known."""
        return None if self._sampler is None else self._sampler.edge_bound(edge_type)


NO_ROWS = torch.empty(0)
"""Takes the place of rows that are read when their batch is delivered."""


class BatchSource(ABC):
    """Reads the rows of samples (``fetch``) and makes batches of them without reading (``batch``). A loader has one."""

    threads: bool
    """Whether several threads may fetch at once."""
    waits: bool = False
    """Whether reads mostly wait for what is no core of this machine. Only if several threads may fetch at once."""
    collective: bool
    """Whether all ranks of a process group must fetch together."""

    own: RowSource
    """What reads the rows of a sample's own nodes and edges, and knows their versions."""

    @abstractmethod
    def fetch(self, sampled: MiniBatch, bounds: Bounds, versions: Any = None) -> Any:
        """All rows of a sample. Ids are checked unless ``bounds`` show that they are in range.

        ``versions``: as :meth:`RowSource.versions` returned them before. Rows of a version without a number are left
        out; :data:`NO_ROWS` takes their place. None: rows are read when their batch is delivered, all of them."""

    def start(self, sampled: MiniBatch, bounds: Bounds, versions: Any = None) -> Callable[[], Any]:
        """Starts to read what :meth:`fetch` returns; the function waits for it and returns it."""
        rows = self.fetch(sampled, bounds, versions)
        return lambda: rows

    @abstractmethod
    def renew(self, batch: Data | HeteroData, sampled: MiniBatch, bounds: Bounds, keys: Collection[Any]) -> None:
        """Reads rows again and puts them into their batch, in the thread that iterates.

        Args:
            batch, sampled, bounds: of one batch.
            keys: of the attributes; one that there is no more is removed.
        """

    @abstractmethod
    def batch(self, sampled: MiniBatch, rows: Any, layouts: EdgeLayouts | None) -> Data | HeteroData:
        """A batch of these rows with the sampled edges in these layouts; ``layouts=None`` puts no sampled edges."""


class RowSource(BatchSource):
    """Reads the rows of samples by itself.

    Where rows are read ahead, the rows of attributes that have changed since are read again when their batch is
    delivered (``versions``, ``changed``, ``renew``)."""

    @property
    def own(self) -> RowSource:  # type: ignore[override]
        """This object."""
        return self

    @abstractmethod
    def versions(self) -> Any:
        """The versions of all attributes whose rows may change while they are read ahead, for :meth:`changed` and
        :meth:`fetch`. None: there are none."""

    @abstractmethod
    def changed(self, versions: Any) -> list[Any]:
        """The keys (type, name) of attributes that have other versions now, or versions without a number."""

    @abstractmethod
    def learned(self) -> list[Any]:
        """The keys of attributes whose versions have no number."""

    def put_plain(self, batch: Data | HeteroData, versions: Any, keys: list[Any]) -> list[Any]:
        """Puts attributes that were and are numbers or strings, or are not there, into a batch.

        Args:
            batch: of a worker process, made of attributes of these versions.
            versions: as :meth:`versions` returned them.
            keys: of the attributes that have other versions now.

        Returns:
            The keys of all others, which are left as they are.
        """
        return keys

    @abstractmethod
    def edges(
        self, rows: Any, edge_type: Any, edges: SampledEdges, layout: EdgeLayout
    ) -> tuple[SampledEdges, Tensor | None]:
        """Sampled edges of a type on the device of a batch's edges (``edge_id`` is not moved), and their values: those
        that they have in this layout if it is an ``adj_t``. ``rows``: what :meth:`fetch` returned."""

    @abstractmethod
    def node_rows(self, rows: Any, name: str) -> Any:
        """The rows of one attribute of a homogeneous graph's nodes, taken from ``rows``, which :meth:`fetch` returned;
        None if there is no such attribute, or its rows are read later."""


class CollectiveSource(BatchSource):
    """Reads rows in steps that all ranks take together: one step for each sample, in the order of batches. ``needs`` is
    what one batch reads."""

    threads = False
    collective = True
    steps: Steps
    """Of the loader, after :meth:`join`."""
    rows_here: bool = False
    """Whether the thread that iterates exchanges the rows: :meth:`read` asks for them, and :meth:`arrive` gets them."""
    window: int | Literal["epoch"] = 0
    """Of how many later steps :meth:`announce` is told the needs before a step, at most those of the epoch."""
    counted: int = 0
    """How many numbers :meth:`counts` has for each rank, the same on all ranks; 0: it is not called."""

    counts_inputs = False
    """Whether ``sampled.fields`` get ``global_batch_size``, the number of inputs that all ranks have together in a
    step, before :meth:`needs` is called."""

    def join(self, steps: Steps) -> None:
        """Called once, when the ranks have met to make the loader, before rows are read in its steps."""
        self.steps = steps

    @abstractmethod
    def needs(self, sampled: MiniBatch, bounds: Bounds, versions: Any) -> Any:
        """What a sample reads; several threads may call it at once. Arguments as of :meth:`fetch`."""

    def announce(self, needs: Any) -> None:
        """Tells the needs of a step that comes later, in the order of steps; called on their thread."""

    def withdraw(self) -> None:
        """Takes back what was announced of steps that do not come."""

    def counts(self, needs: Any) -> Tensor:
        """``counts`` of :meth:`Steps.step`. Called once for a batch, on the thread of the steps, in their order."""
        raise NotImplementedError

    @abstractmethod
    def read(self, needs: Any, asked: Tensor) -> Callable[[], None] | None:
        """Gets what a batch asks of other ranks, and answers them. ``asked``: their counts. Called in a step.

        Returns a function that is called on the thread of the steps when all ranks have taken this one; it needs no
        other rank, and the others are told of its error. None: nothing is left to do. With ``rows_here``,
        :meth:`arrive` follows.
        """

    def arrive(self, needs: Any) -> None:
        """With ``rows_here``, gets the rows that :meth:`read` asked for. Called by the thread that iterates, on all
        ranks, for each step that was taken, in their order.

        Raises:
            RuntimeError: a rank is gone.
        """

    @abstractmethod
    @override
    def batch(self, sampled: MiniBatch, rows: Any, layouts: EdgeLayouts | None) -> Data | HeteroData:
        """A batch, once the rows have come. ``rows``: the batch's needs. Several threads may call it at once; with
        ``rows_here``, the thread that iterates does, after :meth:`arrive`."""
