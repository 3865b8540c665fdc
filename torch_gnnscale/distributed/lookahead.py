"""The policy that knows the batches to come."""

from __future__ import annotations

from collections import deque
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from ..ops.arguments import check_int
from .policies import NONE, BufferStep, Policy, id_array, least

NEVER = 1 << 62
"""The step of the next use of a row that no announced batch uses; larger than any step."""
WINDOW = 16
"""How many batches are announced before they come, by default."""
LEAST_COUNT = 1 << 16
"""How many ids may have a number before numbers are taken back for the first time."""


class Lookahead(Policy):
    """Keeps, of the rows that it has and those of the batch, the rows whose next use is nearest among the announced
    batches, then those that were used last (ties: rows that it has, then smaller ids). Starts empty.

    A row of the batch does not enter if all rows that the buffer keeps come before it in this order. If all of an epoch
    is announced, no policy that fetches only what batches ask for has fewer misses (Belady's MIN with bypass). If
    nothing is announced, the rows that were used last stay (LRU).

    Ids are searched for once, when they are announced; a step follows links from each use of a row to its next one.
    Memory: 24 bytes per slot, 32 per announced use, and 40 per distinct id, up to twice the number of those that are in
    the buffer or announced.

    Args:
        capacity: the number of slots.
        window: how many batches are announced before they come; "epoch" for the rest of the epoch.

    Raises:
        TypeError, ValueError: a capacity or window below 0, or another word than "epoch".
    """

    def __init__(self, capacity: int, *, window: int | Literal["epoch"] = WINDOW) -> None:
        if isinstance(window, str) and window != "epoch":
            raise ValueError(f"window: expected a number of batches or 'epoch', found {window!r}")
        self.window = window if isinstance(window, str) else check_int("window", window)
        self.capacity = check_int("capacity", capacity)
        self._step = self._announced = 0  # the numbers of the last step and of the last one announced
        self._queue: deque[_Batch] = deque()
        self._links = _Links()  # of each announced use: the step of the next use of its row
        self._numbers = _Numbers()
        # By number of an id: its slot or -1, its last announced use or -1, the step of its next use. With spare room.
        self._slot, self._use, self._next = NONE, NONE, NONE
        self._most = LEAST_COUNT  # numbers, before those of forgotten ids are taken back
        # By slot, of the first ``_filled``: the number of its id, its id, the step that used it last.
        self._number, self._id, self._last = np.empty((3, self.capacity), dtype=np.int64)
        self._filled = 0

    def start(self) -> Tensor:
        """The ids before the first step: none."""
        return torch.from_numpy(NONE)

    @override
    def announce(self, ids: Tensor) -> None:
        wanted = id_array(ids)
        if self._numbers.count > self._most:
            self._forget()
        self._announced += 1
        number = self._numbers.of(wanted)
        self._grow(self._numbers.count)
        use = self._use[number]
        ahead = use >= self._links.first
        self._links.set(use[ahead], self._announced)
        self._next[number[~ahead]] = self._announced
        self._use[number] = self._links.add(len(wanted))
        self._queue.append(_Batch(wanted, number))

    @override
    def step(self, ids: Tensor) -> BufferStep:
        if not self._queue:
            self.announce(ids)
        wanted, number = self._queue.popleft()
        assert np.array_equal(wanted, ids.numpy()), "a batch comes that was not announced"
        self._step += 1
        self._next[number] = self._links.pop(len(number))
        slot = self._slot[number]
        hit = slot >= 0
        self._last[slot[hit]] = self._step
        fetch = wanted[~hit]
        source, at = self._replace(fetch, number[~hit])
        found = (hit, slot[hit], fetch, np.arange(len(fetch)), fetch[source], at, source)
        return BufferStep(*map(torch.from_numpy, found))

    @override
    def withdraw(self) -> None:
        for batch in self._queue:
            self._links.pop(len(batch.ids))
        self._queue.clear()
        self._announced = self._step
        self._next[:] = NEVER

    def _replace(self, ids: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The positions of the missing rows that enter, and their slots."""
        filled = self._filled
        stay = np.ones(filled + len(ids), dtype=bool)
        if len(stay) > self.capacity:
            until = self._next[np.append(self._number[:filled], number)]
            unknown = np.flatnonzero(until == NEVER)
            # Rows without an announced use come after all others. Among them, those that were used longer ago come
            # later; the batch's own rows are used now.
            until[unknown] = self._announced + 1
            unknown = unknown[: np.searchsorted(unknown, filled)]
            until[unknown] += self._step - self._last[unknown]

            def tie(at: np.ndarray) -> np.ndarray:
                kept = at[at < filled]  # they come first, because ``at`` is sorted
                return np.append(self._id[kept] - NEVER, ids[at[len(kept) :] - filled])

            stay[:] = False
            stay[least(until, self.capacity, tie)] = True
        leave, source = np.flatnonzero(~stay[:filled]), np.flatnonzero(stay[filled:])
        ids, number = ids[source], number[source]
        at = np.append(leave, np.arange(filled, filled + len(ids) - len(leave)))
        self._slot[self._number[leave]] = -1
        self._slot[number] = at
        self._number[at], self._id[at], self._last[at] = number, ids, self._step
        self._filled += len(ids) - len(leave)
        return source, at

    def _grow(self, count: int) -> None:
        """Makes room for ``count`` numbers."""
        if (more := count - len(self._slot)) > 0:
            more += count
            self._slot, self._use = (np.append(a, np.full(more, -1)) for a in (self._slot, self._use))
            self._next = np.append(self._next, np.full(more, NEVER))

    def _forget(self) -> None:
        """Takes back the numbers of ids that are neither in the buffer nor announced."""
        kept = (self._slot >= 0) | (self._use >= self._links.first)
        moved = self._numbers.keep(kept)
        self._slot, self._use, self._next = self._slot[kept], self._use[kept], self._next[kept]
        self._number[: self._filled] = moved[self._number[: self._filled]]
        self._queue = deque(_Batch(ids, moved[number]) for ids, number in self._queue)
        self._most = max(LEAST_COUNT, 2 * self._numbers.count)


class _Batch(NamedTuple):
    """An announced batch: its ids and their numbers."""

    ids: np.ndarray
    number: np.ndarray


class _Links:
    """For each announced use of a row, the step of the row's next use. Uses are numbered 0, 1, ... in their order,
    through all batches."""

    def __init__(self) -> None:
        self.first = 0
        """The number of the first use that is not popped."""
        self._step = np.empty(1024, dtype=np.int64)
        self._base = self._end = 0  # the number of the use at the front of ``_step``, and one past the last use

    def add(self, count: int) -> np.ndarray:
        """Adds ``count`` uses whose rows have no next use yet; returns their numbers."""
        if self._end + count - self._base > len(self._step):
            rest = self._step[self.first - self._base : self._end - self._base]
            self._step = np.empty(2 * (len(rest) + count), dtype=np.int64)
            self._step[: len(rest)] = rest
            self._base = self.first
        self._step[self._end - self._base :][:count] = NEVER
        self._end += count
        return np.arange(self._end - count, self._end)

    def set(self, uses: np.ndarray, step: int) -> None:
        """Sets the step of the next use of these uses."""
        self._step[uses - self._base] = step

    def pop(self, count: int) -> np.ndarray:
        """The steps of the first ``count`` uses, which are forgotten."""
        self.first += count
        return self._step[self.first - count - self._base :][:count].copy()


class _Numbers:
    """Numbers of distinct ids, 0, 1, ... in the order in which they come.

    Sorted ids are kept in two runs, so that a few new ones do not move all.
    """

    def __init__(self) -> None:
        self.count = 0
        self._main, self._recent = (NONE, NONE), (NONE, NONE)  # ids, sorted, and their numbers

    def of(self, ids: np.ndarray) -> np.ndarray:
        """The numbers of distinct sorted ids; those that are new get the next ones."""
        number = _look_up(self._main, ids)
        rest = np.flatnonzero(number < 0)
        number[rest] = _look_up(self._recent, ids[rest])
        new = rest[number[rest] < 0]
        if len(new):
            number[new] = np.arange(self.count, self.count + len(new))
            self.count += len(new)
            self._recent = _merged(self._recent, (ids[new], number[new]))
            if 4 * len(self._recent[0]) > len(self._main[0]):
                self._main, self._recent = _merged(self._main, self._recent), (NONE, NONE)
        return number

    def keep(self, kept: np.ndarray) -> np.ndarray:
        """Drops the numbers for which ``kept`` is False, and closes the gaps: returns the new number of each."""
        moved = np.cumsum(kept) - 1
        ids, number = _merged(self._main, self._recent)
        stay = kept[number]
        self._main, self._recent = (ids[stay], moved[number[stay]]), (NONE, NONE)
        self.count = len(self._main[0])
        return moved


def _look_up(run: tuple[np.ndarray, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """The numbers of ids in a sorted run; -1 where it does not have them."""
    known, number = run
    if len(known) == 0:
        return np.full(len(ids), -1)
    place = np.searchsorted(known, ids)
    place[place == len(known)] = 0
    return np.where(known[place] == ids, number[place], -1)


def _merged(run: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Two sorted runs as one."""
    ids, number = (np.append(ours, theirs) for ours, theirs in zip(run, other, strict=True))
    order = np.argsort(ids, kind="stable")  # merges sorted runs in linear time
    return ids[order], number[order]
