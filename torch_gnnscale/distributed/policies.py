"""Policies of the prefetch buffer: which rows of other parts a rank keeps. They see ids, never rows.

Source: MassiveGNN, section 3 (algorithms 1 and 2, equation 1).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from ..ops.arguments import check_int
from ..topology.reorder import by_score

ROUNDING = 1e-11
"""Scores whose logarithms differ by less than this count as equal: after many decays they may differ by rounding."""
NONE: np.ndarray = np.empty(0, dtype=np.int64)
"""No ids."""


class BufferStep(NamedTuple):
    """What the buffer does in one step."""

    hit: Tensor
    """Which of the step's ids the buffer has: bool, shape [ids]."""
    slot: Tensor
    """The slot of each hit, in the order of the ids: int64, shape [hits]."""
    fetch: Tensor
    """The ids whose rows are fetched, sorted: misses, and others that enter; int64, shape [f]."""
    missed: Tensor
    """The position of each miss in ``fetch``, in the order of the ids: int64, shape [ids - hits]."""
    enter: Tensor
    """Ids that enter when the rows have come, sorted: int64, shape [m]."""
    at: Tensor
    """The slot of each id that enters; the row that was there leaves: int64, shape [m]."""
    source: Tensor
    """The position of each id that enters in ``fetch``: int64, shape [m]."""


class Policy(ABC):
    """Decides which rows a buffer of ``capacity`` slots keeps, for one node type.

    In each step: :meth:`announce` batches that come later, up to ``window`` after this one; :meth:`step`; ask for the
    rows that are missing; :meth:`update` while they travel. Slot i first has the i-th row of :meth:`start`.
    """

    capacity: int
    """The number of slots."""
    window: int | Literal["epoch"] = 0
    """How many batches are announced before their step: a number, or "epoch" for all of the epoch."""

    @abstractmethod
    def start(self) -> Tensor:
        """The ids that the buffer is filled with before the first step, sorted: int64, shape [at most capacity]."""

    def announce(self, ids: Tensor) -> None:
        """Tells the ids of the next step that was not announced. A step announces itself if nobody did."""
        return

    @abstractmethod
    def step(self, ids: Tensor) -> BufferStep:
        """The step of a batch; ``ids``: its distinct rows of other parts, sorted, int64."""

    def update(self) -> None:
        """Does the rest of the work of the last step. If it was not called, the next step begins with it."""
        return

    def withdraw(self) -> None:
        """Takes back the announcements of steps that will not come, because the run goes on with other batches."""
        return


class HaloPolicy(Policy):
    """A policy that keeps rows of the halo only, and starts with those of the largest out-degrees (ties: smaller ids).

    Args:
        capacity: the number of slots; what the halo does not need is not used.
        halo: the part's halo: sorted int64, shape [h].
        degree: the out-degree of each of these nodes in the whole graph: shape [h].

    Raises:
        TypeError, ValueError: a capacity below 0, or degrees of another shape.
    """

    def __init__(self, capacity: int, halo: Tensor, degree: Tensor) -> None:
        if degree.shape != halo.shape:
            raise ValueError(f"degree: expected shape {tuple(halo.shape)} like halo, found {tuple(degree.shape)}")
        self.capacity = min(check_int("capacity", capacity), len(halo))
        self._halo = id_array(halo)
        order = by_score(degree, "degree")
        self._rank = order.new.numpy()  # of each row of the halo, by falling out-degree
        self._row = np.sort(order.old.numpy()[: self.capacity])  # of each slot: its place in the halo
        self._slot = np.full(len(halo), -1)  # of each row of the halo; -1: it is outside the buffer
        self._slot[self._row] = np.arange(self.capacity)

    def start(self) -> Tensor:
        """The ids that the buffer is filled with before the first step."""
        return torch.from_numpy(self._halo[self._row])

    def _find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The place of each id in the halo, -1 outside it; and its slot, -1 outside the buffer."""
        if len(self._halo) == 0:
            return np.full(len(ids), -1), np.full(len(ids), -1)
        place = np.searchsorted(self._halo, ids)
        place[place == len(self._halo)] = 0
        inside = self._halo[place] == ids
        return np.where(inside, place, -1), np.where(inside, self._slot[place], -1)


class Static(HaloPolicy):
    """Keeps the rows that it starts with: those of the halo's largest out-degrees. For arguments see HaloPolicy."""

    @override
    def step(self, ids: Tensor) -> BufferStep:
        _, slot = self._find(id_array(ids))
        return buffer_step(id_array(ids), slot, NONE, NONE)


class MassiveGNN(HaloPolicy):
    """MassiveGNN's two scoreboards: S_E of each row in the buffer, S_A of each row of the halo outside it.

    Starts with the largest out-degrees, S_E = 1 and S_A = 0. Each step, by the buffer as it was::

        S_E *= gamma    for the rows that the batch did not use
        S_A += 1        for the batch's rows of the halo that the buffer did not have

    Every ``delta`` steps, after this, rows with S_E <= gamma^delta (equation 1) may leave, the lowest S_E first (ties:
    smaller out-degree, then larger id), and of the rows that were outside the buffer those with the largest S_A > 0
    may enter (ties: larger out-degree, then smaller id): as many as there are of both. A row that leaves gets S_A = its
    S_E, one that enters S_E = s = its S_A.

    S_E <= gamma^delta is decided by counting the steps since the row entered in which it was not used, whether it was
    used in between or not. The row may leave if they are at least ``delta + ceil(ln s / -ln gamma)``, its due, which is
    computed once, when it enters.

    In rounds of eviction, algorithm 2 forgets to count S_A; equation 1 and section 3.2 (both scores in every batch) are
    followed here. The paper's S_E < alpha never evicts a row that is unused in exactly ``delta`` steps.

    Memory: 32 bytes per row of the halo and per slot.

    Args:
        capacity, halo, degree: see :class:`HaloPolicy`.
        gamma: the decay of S_E in a step that does not use the row, in (0, 1).
        delta: the number of steps between rounds of eviction.

    Raises:
        TypeError, ValueError: see HaloPolicy; gamma or delta out of range.
    """

    def __init__(self, capacity: int, halo: Tensor, degree: Tensor, *, gamma: float = 0.995, delta: int = 64) -> None:
        super().__init__(capacity, halo, degree)
        if not 0 < gamma < 1:
            raise ValueError(f"gamma: expected 0 < gamma < 1, found {gamma}")
        self.gamma, self.delta = float(gamma), check_int("delta", delta, 1)
        self.steps = 0
        """The number of steps so far."""
        self._access = np.zeros(len(halo))  # S_A; 0 in the buffer
        self._score = np.ones(self.capacity)  # S_E by slot
        self._unused = np.zeros(self.capacity, dtype=np.int64)
        self._due = np.full(self.capacity, self.delta)
        self._pending: tuple[np.ndarray, np.ndarray] | None = None  # of the last step: slots used, places missed

    @override
    def step(self, ids: Tensor) -> BufferStep:
        self.update()
        self.steps += 1
        wanted = id_array(ids)
        place, slot = self._find(wanted)
        hit = slot >= 0
        self._pending = slot[hit], place[~hit & (place >= 0)]
        enter = at = NONE
        if self.steps % self.delta == 0:
            self.update()
            enter, at = self._replace()
        return buffer_step(wanted, slot, self._halo[enter], at)

    def update(self) -> None:
        """Counts the last step's uses and misses; see :meth:`Policy.update`."""
        if self._pending is None:
            return
        used, missed = self._pending
        self._pending = None
        kept = self._score[used]
        self._score *= self.gamma
        self._score[used] = kept
        self._unused += 1
        self._unused[used] -= 1
        self._access[missed] += 1

    def _replace(self) -> tuple[np.ndarray, np.ndarray]:
        """A round of eviction: the rows of the halo that enter, sorted, and their slots."""
        enter, leave = np.flatnonzero(self._access > 0), np.flatnonzero(self._unused >= self._due)
        count = min(len(enter), len(leave))
        hot = least(-self._access[enter], count, lambda at: self._rank[enter[at]])
        cold = least(self._score[leave], count, lambda at: -self._rank[self._row[leave[at]]])
        enter, leave = np.sort(enter[hot]), leave[cold]
        gone, score = self._row[leave], self._access[enter]
        self._slot[gone], self._slot[enter] = -1, leave
        self._access[gone], self._access[enter] = self._score[leave], 0
        self._row[leave], self._score[leave], self._unused[leave] = enter, score, 0
        self._due[leave] = self.delta + np.ceil((np.log(score) - ROUNDING) / -math.log(self.gamma)).astype(np.int64)
        return enter, leave


def id_array(ids: Tensor) -> np.ndarray:
    """Sorted distinct ids as an array."""
    array = ids.numpy()
    assert array.dtype == np.int64
    assert (array[1:] > array[:-1]).all()
    return array


def buffer_step(ids: np.ndarray, slot: np.ndarray, enter: np.ndarray, at: np.ndarray) -> BufferStep:
    """The step of ``ids``, given the slot of each (-1: missing) and what enters where (``enter`` is sorted)."""
    hit = slot >= 0
    fetch = ids[~hit]
    missed = np.arange(len(fetch))
    source = np.searchsorted(fetch, enter)
    if len(enter) and (np.append(fetch, -1)[source] != enter).any():
        both = np.union1d(fetch, enter)
        missed, source, fetch = np.searchsorted(both, fetch), np.searchsorted(both, enter), both
    return BufferStep(*map(torch.from_numpy, (hit, slot[hit], fetch, missed, enter, at, source)))


def least(values: np.ndarray, count: int, tie: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The positions of the ``count`` smallest values, in no order. Of equal values, those with a smaller ``tie`` come
    first; ``tie`` is given positions, and returns a distinct number for each."""
    if count == len(values):
        return np.arange(count)
    if count == 0:
        return NONE
    if np.issubdtype(values.dtype, np.integer) and (span := int(np.ptp(values))) <= 4 * len(values):
        # Steps lie close together: counting them is faster than selecting.
        low = values.min()
        bound = low + np.searchsorted(np.cumsum(np.bincount(values - low, minlength=span + 1)), count)
    else:
        bound = np.partition(values, count - 1)[count - 1]
    below, equal = np.flatnonzero(values < bound), np.flatnonzero(values == bound)
    rest = count - len(below)
    if rest < len(equal):
        equal = equal[np.argpartition(tie(equal), rest - 1)[:rest]]
    return np.concatenate([below, equal])
