"""Where a loader is in its order, so that a run that was stopped goes on with the batches that would have come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

FORMAT = 1
T = TypeVar("T")


class Position:
    """The epoch of the next batch to be delivered, and its number there."""

    def __init__(self) -> None:
        self.epoch = 0
        self.batch = 0
        self._iterations = 0

    def jump(self, epoch: int, batch: int) -> None:
        """To another place; iterators at work no longer move it."""
        self.epoch, self.batch = epoch, batch
        self._iterations += 1

    def follow(self, iterator: Iterator[T]) -> Followed[T]:
        """The iterator, which moves the position from here, until the next jump."""
        return Followed(iterator, self, self._iterations)

    def move(self, iteration: int, ended: bool) -> None:
        """One batch was delivered, or the epoch has ended, in that iteration."""
        if iteration != self._iterations:
            return
        if ended:
            self.epoch, self.batch = self.epoch + 1, 0
        else:
            self.batch += 1


class Followed(Generic[T]):
    """An iterator whose deliveries are counted, and as such the batches that failed.

    An epoch has ended when all of it was asked for: not when the iterator was closed, or ends because of an error.
    """

    def __init__(self, iterator: Iterator[T], position: Position, iteration: int) -> None:
        self._iterator = iterator
        self._position = position
        self._iteration = iteration
        self._ended = self._failed = False

    def __iter__(self) -> Followed[T]:
        return self

    def __next__(self) -> T:
        try:
            batch = next(self._iterator)
        except StopIteration:
            if not self._ended and not self._failed:
                self._position.move(self._iteration, ended=True)
            self._ended = True
            raise
        except Exception:
            self._failed = True
            self._position.move(self._iteration, ended=False)
            raise
        self._failed = False
        self._position.move(self._iteration, ended=False)
        return batch

    def close(self) -> None:
        """Stops what prepares batches; there are no more."""
        self._ended = True
        if hasattr(self._iterator, "close"):
            self._iterator.close()

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # not there yet
            raise AttributeError(name)
        return getattr(self._iterator, name)


def check_state(state: Any, expected: dict[str, Any]) -> None:
    """Raises unless ``state`` has the format of a loader's state and all entries of ``expected``."""
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = f"format {state.get('format')!r}" if isinstance(state, dict) else type(state).__name__
        raise ValueError(f"state: expected what state_dict() returned (format {FORMAT}), found {found}")
    for name, value in expected.items():
        if state.get(name) != value:
            raise ValueError(f"state: expected a loader with {name}={state.get(name)!r}, found {name}={value!r}")
    for name in ("seed", "epoch", "batch"):
        if not isinstance(state.get(name), int) or (name != "seed" and state[name] < 0):
            raise ValueError(f"state: expected a number as {name}, found {state.get(name)!r}")
