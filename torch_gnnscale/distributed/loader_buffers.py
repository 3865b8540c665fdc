"""The prefetch buffers of one loader, by type of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..feature.tiered_rows import sent
from ..ops.feature_rows import as_words
from .buffer import PrefetchBuffer
from .policies import BufferStep
from .row_exchange import Came


class Asked(NamedTuple):
    """What one step asks of other parts."""

    ids: list[Tensor]
    """By type: the ids whose rows are fetched, sorted: misses, rows that enter, and at first those of the start."""
    steps: list[BufferStep | None]
    """By type; None without a buffer."""
    starts: list[Tensor | None]
    """By type: the ids with which a buffer is filled in this step."""


class LoaderBuffers:
    """Prefetch buffers, by type; None for a type whose rows are not kept.

    Called by the thread of the loader's steps: :meth:`ask`, :meth:`take` and :meth:`entered` in turn. Where the thread
    that iterates exchanges rows, :meth:`entered` is called when it is certain that they come, and that thread calls
    :meth:`take`. A buffer is filled in the first step, by the same exchange that brings the batch's rows.
    """

    def __init__(self, buffers: Sequence[PrefetchBuffer | None]) -> None:
        self._buffers = list(buffers)
        self.is_lost = False
        """Whether rows that were certain to come never reached the buffer, in which later steps expect them."""
        self._starts = [None if buffer is None else buffer.policy.start() for buffer in buffers]

    @property
    def window(self) -> int | Literal["epoch"]:
        """How many batches the policies want to know before they come."""
        windows = [buffer.policy.window for buffer in self._buffers if buffer is not None]
        return "epoch" if "epoch" in windows else max(windows, default=0)

    def announce(self, ids: Sequence[Tensor]) -> None:
        """Tells what a later step asks for, by type."""
        for buffer, of_type in zip(self._buffers, ids, strict=True):
            if buffer is not None:
                buffer.policy.announce(of_type)

    def withdraw(self) -> None:
        """Takes back what was announced."""
        for buffer in self._buffers:
            if buffer is not None:
                buffer.policy.withdraw()

    def ask(self, ids: Sequence[Tensor]) -> Asked:
        """What to fetch for a step that reads these rows of other parts, by type: sorted ids."""
        fetched, steps = [], []
        for buffer, start, of_type in zip(self._buffers, self._starts, ids, strict=True):
            step = None if buffer is None else buffer.step(of_type)
            steps.append(step)
            fetch = of_type if step is None else step.fetch
            fetched.append(fetch if start is None else torch.cat([fetch, start]).unique())
        return Asked(fetched, steps, list(self._starts))

    def update(self) -> None:
        """What the policies do while rows travel."""
        for buffer in self._buffers:
            if buffer is not None:
                buffer.policy.update()

    def entered(self, asked: Asked) -> None:
        """Tells that a step's rows have come, or come for certain."""
        for number, (buffer, step) in enumerate(zip(self._buffers, asked.steps, strict=True)):
            if buffer is not None:
                assert step is not None
                buffer.entered(step)
                self._starts[number] = None

    def take(self, asked: Asked, came: Sequence[Sequence[Came]]) -> list[list[Came]]:
        """The rows of a step's ids by type and attribute.

        Args:
            asked: what :meth:`ask` returned.
            came: the rows of ``asked.ids``, by type and attribute.
        """
        out: list[list[Came]] = []
        for number, (step, start, travelled) in enumerate(zip(asked.steps, asked.starts, came, strict=True)):
            if step is None:
                out.append(list(travelled))
                continue
            buffer, ids = self._buffers[number], asked.ids[number]
            assert buffer is not None
            rows = [entry.rows(buffer.rows[name]) for name, entry in enumerate(travelled)]
            if start is not None:
                at = torch.searchsorted(ids, start)
                buffer.fill({name: _taken(entry, at) for name, entry in enumerate(rows)})
                at = torch.searchsorted(ids, step.fetch)
                rows = [_taken(entry, at) for entry in rows]
            hits = buffer.take(step)
            kept = [_merged(step, hits[name], entry) for name, entry in enumerate(rows)]
            out.append([entry.of(found) for entry, found in zip(travelled, kept, strict=True)])
            buffer.enter(step, dict(enumerate(rows)))
        return out


def _taken(rows: Tensor, at: Tensor) -> Tensor:
    """The rows at these places, which are in host memory."""
    return ops.gather_rows(rows, sent(at, rows.device))


def _merged(step: BufferStep, hits: Tensor, fetched: Tensor) -> Tensor:
    """The rows of a step's ids: its hits, and of the rest those that were fetched."""
    if not len(hits) and len(step.missed) == len(fetched):
        return fetched
    rows = fetched.new_empty((len(step.hit), *fetched.shape[1:]))
    if rows.numel():
        words = as_words(rows)
        hit = sent(step.hit, rows.device)
        words[hit] = as_words(hits)
        words[~hit] = as_words(_taken(fetched, step.missed))
    return rows
