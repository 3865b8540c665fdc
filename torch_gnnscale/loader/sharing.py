"""How a loader's batches are shared among ranks: each rank makes its own alone, or all ranks make them together; what a
loader asks of its argument ``split``; and how the others learn what one rank refuses."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import BatchSampler
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.sampler.base import SubgraphType
from typing_extensions import override

from .._user import warn
from ..comm.mesh import Ranks
from ..comm.rendezvous import outcomes
from ..comm.steps import Steps
from ..feature.contract import CollectiveRowStore, RowStore
from ..ops.arguments import to_int
from ..random import draw_seed
from ..sampler.base import Inputs, KeyedSampler
from ..sampler.graph import subgraph_kind
from ..sampler.minibatch import MiniBatch
from . import checks
from .epochs import BatchChunks, Shard, Share, SharedOrder, Uneven
from .execution import Execution
from .fields import EdgeLayouts
from .given_data import GivenData
from .line import Line
from .order import ChunksOfParts, KeyedShuffle, SeedOrder, agreed_share, common_seed, share_of
from .pipeline import USUAL
from .row_source import BatchSource, CollectiveSource, RowSource
from .together import Together


def check_modes(subgraph: SubgraphType | str, others: Mapping[str, bool]) -> None:
    """Raises NotImplementedError by name for the first mode of sampling in use that split batches do not have.

    Args:
        subgraph: which edges a sample has.
        others: other modes that they do not have, by name, and whether each is in use.
    """
    subgraph = subgraph_kind(subgraph)
    modes = {**others, f"subgraph_type={str(subgraph.value)!r}": subgraph != SubgraphType.directional}
    for name, asked in modes.items():
        if asked:
            raise NotImplementedError(f"{name} with split parallelism is not implemented")


class SplitBatches(ABC):
    """One loader's share of batches that several ranks make together, each a part of every batch."""

    sampler: KeyedSampler
    """Samples this rank's part of a batch."""
    ranks: Ranks
    """``rank``: the number of this rank's group; ``world``: the number of groups. A group makes one batch together."""
    parts: int
    """K, the number of parts of the plan; it does not depend on the number of ranks."""

    @abstractmethod
    def owners_of(self, nodes: Tensor) -> Tensor:
        """The part of each node: integers, shape [nodes]. ``nodes``: stored ids, all in range."""

    @abstractmethod
    def source(self, rows: RowSource) -> CollectiveSource:
        """A source that reads the rows that this rank has of a batch. ``rows``: the source for whole batches."""

    @abstractmethod
    def open_steps(self) -> Steps:
        """The loader's steps, which end with it. Called once, by all ranks.

        Raises:
            ValueError: on all ranks: their splits differ, or do not fit the stores.
        """


class Split(ABC):
    """Which rank computes which nodes of a batch."""

    @abstractmethod
    def of_loader(
        self, sampler: KeyedSampler, inputs: type[Inputs], data: Any, timeout: float | None
    ) -> SplitBatches:  # fmt: skip
        """What a new loader uses instead of ``sampler``. Needs no other rank.

        Args:
            sampler: samples whole batches.
            inputs: what batches are sampled from.
            data: of the loader.
            timeout: seconds after which a rank that does not answer is an error; None or 0 for the default. With the
                stores of a part, the part's timeout counts instead.

        Raises:
            ValueError: batches that cannot be split, or not over these ranks.
            NotImplementedError: a sampler whose batches cannot be split.
        """

    @abstractmethod
    def refuse(self, data: Any, timeout: float | None, why: str) -> None:
        """Called in place of :meth:`SplitBatches.open_steps` on a rank that does not make its loader; see
        :meth:`torch_gnnscale.feature.contract.RowStore.refuse`. Other arguments as of :meth:`of_loader`."""


Owned: TypeAlias = list[tuple[Tensor, Any]]
"""Pairs (ids of nodes, their type)."""


class Sharing:
    """Of a loader that needs no other rank: it makes all batches, or this rank's share of them.

    Args:
        sampler: of the loader.
        share: what this rank takes of an epoch, without counts; None: everything.
    """

    def __init__(self, sampler: KeyedSampler, share: Share | None) -> None:
        self.sampler, self.share = sampler, share
        self.has_met = False
        """Whether the ranks have met to make this loader, or need not meet."""
        self.said_of_inputs: dict[str, Any] = {}
        """What the ranks of other parts said of their inputs, for states; {} without other parts."""

    def seed(self, given: int | None, generator: torch.Generator | None) -> int:
        """The loader's seed: ``given``, or one that is drawn, the same on all ranks that share an epoch."""
        return common_seed(self.share, given, generator)

    def check(self, options: Mapping[str, Any], layouts: EdgeLayouts) -> None:
        """Raises NotImplementedError for arguments that such a loader does not have: its ``options`` of DataLoader, or
        its layouts of edges by type."""

    def source(self, rows: RowSource) -> BatchSource:
        """What reads the rows of batches. ``rows``: the source for whole batches."""
        return rows

    def meet(
        self, order: SeedOrder, batches: BatchSampler, owned: Callable[[], Owned],
        decides: Callable[[], dict[str, Any]],
    ) -> None:  # fmt: skip
        """Sets the share of ``order``, with counts. Called when the loader is complete.

        Args:
            order: of the loader.
            batches: torch's batch sampler of all inputs that this rank was given.
            owned: returns, for each type of inputs, (the stores' ids of the nodes that decide which part an input
                belongs to, their type).
            decides: returns what decides batches besides the seed, in plain values.

        Raises:
            ValueError: on all ranks, if they differ in what decides batches they make together, or cannot make them.
        """
        self.has_met = True
        if self.share is not None:
            chunks = order.numbered(batches).chunks
            assert chunks is not None  # a loader with a share refuses a sampler of the user's
            order.share = self.share.with_counts(chunks.counts)

    def make(self, make: Callable[[], object]) -> None:
        """Has the ranks that make batches together call ``make()`` now, when the loader is complete. What takes memory
        is made so: an error of one rank is raised on all of them, by the others as a ValueError that names it."""

    def batches(
        self, line: Line, execution: Execution, numbered: Iterator[MiniBatch], prefetch: int | None
    ) -> Iterator[Any]:
        """Iterates over the rest of an epoch; arguments as of :meth:`Execution.batches`."""
        return execution.batches(line, numbered, prefetch)


class SharedSteps(Sharing, ABC):
    """Of a loader whose ranks make their batches in steps that all of them take together."""

    sampler: KeyedSampler
    share: Share
    steps: Steps
    """Of this loader, after :meth:`meet`."""

    def __init__(self, sampler: KeyedSampler, share: Share | None, inputs: type[Inputs]) -> None:
        assert share is not None
        super().__init__(sampler, share)
        self._own_seeds = share.seed_order == "owned" and inputs is NodeSamplerInput
        """Whether all seeds of a rank are of its own part; links and anchors lead to nodes of others."""
        self._together: Together | None = None

    def seed(self, given: int | None, generator: torch.Generator | None) -> int:
        """The loader's seed; one that is drawn becomes that of rank 0 when the ranks meet."""
        self._draws_seed = given is None
        return draw_seed(generator) if given is None else to_int("seed", given)

    @override
    def source(self, rows: RowSource) -> CollectiveSource:
        source = self._source(rows)
        source.join(self.steps)
        return source

    def _source(self, rows: Any) -> CollectiveSource:
        """The source of rows, which has not joined the steps."""
        return rows

    @abstractmethod
    def _open_steps(self) -> Steps:
        """The loader's steps."""

    @abstractmethod
    def _ordered(self, order: SeedOrder, batches: BatchSampler, owned: Owned) -> str | None:
        """Orders the inputs; returns None, or why that is not possible."""

    @override
    def meet(
        self, order: SeedOrder, batches: BatchSampler, owned: Callable[[], Owned],
        decides: Callable[[], dict[str, Any]],
    ) -> None:  # fmt: skip
        problem = self._ordered(order, batches, owned())

        def all_that_decides() -> dict[str, Any]:
            return {**decides(), "seed": order.seed, "uneven": self.share.uneven}

        self._seed_order, self._decides = order, all_that_decides
        self._chunks: BatchChunks | None = order.numbered(batches).chunks
        assert self._chunks is not None  # a loader with a share refuses a sampler of the user's
        told = {**all_that_decides(), "seed": None if self._draws_seed else order.seed}
        self.has_met = True
        self.steps = self._open_steps()
        weakref.finalize(self, self.steps.drop).atexit = False
        order.share, self.said_of_inputs, order.seed = agreed_share(
            self.share, self.steps, told, self._chunks.counts, problem, order.seed
        )
        self.share = order.share
        self.sampler.join(self.steps, self._own_seeds)

    @override
    def make(self, make: Callable[[], object]) -> None:
        _, error, texts = outcomes(make, self.steps.gather)
        if error is not None:
            raise error
        for rank, text in enumerate(texts):
            if text is not None:
                raise ValueError(f"rank {rank}: {text}")

    @override
    def batches(
        self, line: Line, execution: Execution, numbered: Iterator[MiniBatch], prefetch: int | None
    ) -> Iterator[Any]:
        assert self._chunks is not None
        if self._together is None:
            size_of = self._chunks.size_of
            self._together = Together(line, self.steps, self.share, execution, size_of, self._decides)
        ahead = USUAL if prefetch is None else prefetch
        return self._together.batches(numbered, self._seed_order.epoch, self._seed_order.batch, ahead)


class SharedParts(SharedSteps):
    """Of a loader over the stores of a part: each rank makes its own batches, whose rows the ranks read together."""

    def __init__(
        self, sampler: KeyedSampler, share: Share | None, inputs: type[Inputs], rows: CollectiveRowStore
    ) -> None:
        super().__init__(sampler, share, inputs)
        self._rows = rows

    def _open_steps(self) -> Steps:
        return self._rows.open_steps()

    def _ordered(self, order: SeedOrder, batches: BatchSampler, owned: Owned) -> str | None:
        if self.share.seed_order != "owned":
            return None
        found = (self._rows.beyond_part(nodes, node_type) for nodes, node_type in owned)
        return next((text for text in found if text is not None), None)


class SharedBatches(SharedSteps):
    """Of a loader with a split plan: the ranks make each batch together.

    Args:
        split: of this loader.
        share: what this rank's group takes of an epoch, without counts.
        of_parts: whether each batch has seeds of every part, in an order of their own.
    """

    def __init__(self, split: SplitBatches, share: Share | None, of_parts: bool) -> None:
        super().__init__(split.sampler, share, NodeSamplerInput)
        self._split, self._of_parts = split, of_parts

    @override
    def check(self, options: Mapping[str, Any], layouts: EdgeLayouts) -> None:
        checks.check_no_processes(options, "split=")
        if (layout := layouts[None]) != "coo":
            raise NotImplementedError(f"edge_layout={layout!r} with split= is not implemented; use 'coo'")

    @override
    def _source(self, rows: Any) -> CollectiveSource:
        return self._split.source(rows)

    def _open_steps(self) -> Steps:
        return self._split.open_steps()

    def _ordered(self, order: SeedOrder, batches: BatchSampler, owned: Owned) -> str | None:
        if not self._of_parts:
            return None
        shuffle = batches.sampler if isinstance(batches.sampler, KeyedShuffle) else None
        try:
            order.chunks = ChunksOfParts(
                self._split.owners_of(owned[0][0]), self._split.parts, batches.batch_size, batches.drop_last, shuffle,
                repeats=self.share.uneven != "serve",
            )  # fmt: skip
        except ValueError as error:
            return str(error)
        return None


def sharing_of(
    split: Split | None, shard: Shard, seed_order: SharedOrder | None, uneven: Uneven, given: GivenData,
    sampler: KeyedSampler, inputs: type[Inputs], options: dict[str, Any], seed: Any,
) -> Sharing:  # fmt: skip
    """How a loader's batches are shared.

    Args:
        split, shard, seed_order, uneven, seed: the loader's arguments.
        given, sampler: of the loader; with ``split``, it samples by what is returned instead.
        inputs: what batches are sampled from.
        options: the loader's arguments of DataLoader.

    Raises:
        TypeError, ValueError, NotImplementedError: as of :func:`share_of` and :meth:`Split.of_loader`.
    """
    if split is not None:
        if not isinstance(split, Split):
            raise TypeError(f"split: expected a split plan, found {type(split).__name__}")
        made = split.of_loader(sampler, inputs, given.data, options.get("timeout"))
        share = share_of(shard, seed_order, uneven, given.features, options, seed, made.ranks)
        return SharedBatches(made, share, of_parts=seed_order == "owned")
    share = share_of(shard, seed_order, uneven, given.features, options, seed)
    together = share is not None and given.reads_together
    return SharedParts(sampler, share, inputs, given.features) if together else Sharing(sampler, share)


Init = TypeVar("Init", bound=Callable[..., None])
WARNS_AFTER = 2.0
"""Seconds after which a rank that waits to tell the others of its error says so."""


def told_to_all(init: Init) -> Init:
    """Of a loader's ``__init__``: an error of this rank, before the ranks meet, is raised on all ranks at once. It is
    raised here as it is, when the others have come to make theirs; they raise a ValueError that names this rank."""

    @wraps(init)
    def made(self: Any, data: Any, *arguments: Any, **options: Any) -> None:
        try:
            init(self, data, *arguments, **options)
        except Exception as error:
            sharing = self.__dict__.get("_sharing")
            if sharing is None or not sharing.has_met:
                _tell(data, options, f"{type(error).__name__}: {error}")
            raise

    return cast(Init, made)


@contextmanager
def waiting_to_tell(lacks: str, others: str, why: str) -> Iterator[None]:
    """A context in which this rank, which ``lacks`` something, waits until the others come to ``others``, to tell them
    why; a warning says so if that takes long."""
    text = f"this rank {lacks}, and waits for the other ranks, which come to {others}, to tell them: {why}"
    waiting = threading.Timer(WARNS_AFTER, warn, [text])
    waiting.daemon = True
    waiting.start()
    try:
        yield
    finally:
        waiting.cancel()


def _tell(data: Any, options: dict[str, Any], why: str) -> None:
    split = options.get("split")
    with waiting_to_tell("makes no loader", "make theirs", why):
        if isinstance(split, Split):
            split.refuse(data, options.get("timeout"), why)
        elif isinstance(data, (tuple, list)) and data and isinstance(data[0], RowStore):
            data[0].refuse(why)
