"""The prefetch buffers of one loader, by type of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .. import ops
from ..ops.rows import as_words
from .buffer import PrefetchBuffer
from .policies import BufferStep
from .rows import Travelled


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

    Called by the thread of the loader's steps: :meth:`ask` and :meth:`take` in turn. A buffer is filled in the first
    step, by the same exchange that brings the batch's rows.
    """

    def __init__(self, buffers: Sequence[PrefetchBuffer | None]) -> None:
        self._buffers = list(buffers)
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

    def take(self, asked: Asked, came: list[list[Travelled]]) -> list[list[Travelled]]:
        """The rows of a step's ids by type and attribute.

        Args:
            asked: what :meth:`ask` returned.
            came: the rows of ``asked.ids``, by type and attribute.
        """
        out = []
        for number, (step, start, travelled) in enumerate(zip(asked.steps, asked.starts, came, strict=True)):
            buffer = self._buffers[number]
            if buffer is None or step is None:
                out.append(travelled)
                continue
            ids = asked.ids[number]
            rows = [entry.rows(buffer.rows[name]) for name, entry in enumerate(travelled)]
            if start is not None:
                at = torch.searchsorted(ids, start)
                buffer.fill({name: ops.gather_rows(entry, at) for name, entry in enumerate(rows)})
                self._starts[number] = None
                at = torch.searchsorted(ids, step.fetch)
                rows = [ops.gather_rows(entry, at) for entry in rows]
            hits = buffer.take(step)
            out.append([Travelled.of(_merged(step, hits[name], entry)) for name, entry in enumerate(rows)])
            buffer.enter(step, dict(enumerate(rows)))
        return out


def _merged(step: BufferStep, hits: Tensor, fetched: Tensor) -> Tensor:
    """The rows of a step's ids: its hits, and of the rest those that were fetched."""
    if not len(hits) and len(step.missed) == len(fetched):
        return fetched
    rows = fetched.new_empty((len(step.hit), *fetched.shape[1:]))
    if rows.numel():
        words = as_words(rows)
        words[step.hit] = as_words(hits)
        words[~step.hit] = as_words(ops.gather_rows(fetched, step.missed))
    return rows
