"""The ranks of a distributed run, and the contract of the steps that the ranks of a loader take together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from torch import Tensor

T = TypeVar("T")
Consecutive: TypeAlias = Literal["copies", "parts"]
"""See :attr:`Ranks.consecutive`."""


class Ranks(NamedTuple):
    """The ranks of a distributed run, of which this process is one."""

    rank: int
    world: int
    """How many ranks there are."""
    part: int = 0
    """The part that this rank holds."""
    parts: int = 1
    """How many parts there are; ``world`` is a multiple of it."""
    consecutive: Consecutive = "copies"
    """Which ranks have consecutive numbers: those that hold one part, or those that together hold all parts."""

    @property
    def copies(self) -> int:
        """How many ranks hold a part."""
        return self.world // self.parts

    @property
    def copy(self) -> int:
        """Which of the ranks that hold its part this one is, from 0."""
        return self.rank % self.copies if self.consecutive == "copies" else self.rank // self.parts


class Steps(ABC):
    """The steps that the ranks of a loader take together, in a process group of their own.

    An iteration has a number of steps that all ranks know. Every method but :meth:`gather` and
    :meth:`tell` runs on ``thread``.
    """

    thread: Executor
    """One thread. It alone issues collectives in the group."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """The value of each rank, in the order of ranks. Called while the loader is made."""

    @abstractmethod
    def begin(self, epoch: int, first: int, count: int, counted: int, decides: Mapping[str, Any]) -> None:
        """An iteration begins.

        Args:
            epoch: its epoch.
            first: the epoch's batch at which it begins.
            count: how many steps it has.
            counted: n of :meth:`step`, the same on all ranks.
            decides: what else decides its batches, in plain values by name, which all ranks must have alike.
        """

    @abstractmethod
    def step(self, number: int, error: Exception | None, counts: Tensor | None, run: Callable[[Tensor], T]) -> T:
        """One step: all ranks agree to take it, then ``run(counts of all ranks)`` is called.

        Args:
            number: the number of this rank's batch.
            error: why this rank cannot take the step; all ranks then raise.
            counts: int64, shape [ranks of the group of rows, n]: what this rank is going to ask each of them for. None
                if that is not known yet.
            run: issues the collectives of the step; gets what each of these ranks is going to ask this one for.

        Raises:
            ValueError: the ranks are not at the same step, or began an iteration with other values. Every rank raises
                the same error.
            RuntimeError: a rank failed, now or in :meth:`tell`; has left the loop; or is gone.
        """

    @abstractmethod
    def tell(self, number: int, error: Exception) -> None:
        """This rank failed to make a batch whose step was taken: all ranks raise in the next step. Any thread may call
        it.

        Args:
            number: of the batch.
            error: which this rank raises in place of the batch.
        """

    @abstractmethod
    def sampled(self, error: Exception | None, counts: Tensor | None) -> Tensor:
        """Within a step in which the ranks sampled together: ends the sampling on all of them alike.

        Args:
            error: why this rank has no sample; all ranks then raise, unless they know of it already.
            counts: as of :meth:`step`; None with an error.

        Returns:
            What each rank of the group of rows is going to ask this one for.
        """

    @abstractmethod
    def sampled_ahead(self, error: Exception | None) -> None:
        """Within a step in which the ranks sampled batches of later steps together: ends that on all of them alike. It
        returns although one failed, whose ``error`` is raised in the steps of these batches.

        Args:
            error: why this rank has no samples.

        Raises:
            RuntimeError: a rank is gone.
        """

    @abstractmethod
    def leave(self, delivered: int | None) -> None:
        """This rank leaves the iteration after so many batches; None: after the last step. Ranks that take a further
        step raise; if ranks left after different numbers of batches, all raise in the next iteration."""

    @abstractmethod
    def drop(self) -> None:
        """Called when the loader is gone: ends the steps without waiting for that. Any thread may call it, also the
        garbage collector."""


def check_alike(of_ranks: Sequence[Mapping[str, Any]], ranks: str = "all ranks") -> None:
    """Raises ValueError, equal on all ranks, if the ranks have other values of a name. ``ranks``: which these are."""
    for name in dict.fromkeys(name for found in of_ranks for name in found):  # in one order on all ranks
        values = [found.get(name) for found in of_ranks]
        if any(value != values[0] for value in values):
            raise ValueError(f"{name}: expected the same on {ranks}, found {values}")
