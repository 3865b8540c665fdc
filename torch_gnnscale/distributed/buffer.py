"""The prefetch buffer: rows of other parts that a rank keeps, so that it need not fetch them again. A loader has one
for each type of rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.typing import NodeType

from .. import ops
from ..feature.tiered_rows import sent
from ..memory import Budget, budget_bytes, is_bytes
from ..ops.arguments import check_choice
from ..ops.rows import as_words
from ..partition.directory import PartitionBook
from ..partition.reading import Halo
from .lookahead import WINDOW, Lookahead
from .policies import NONE, BufferStep, MassiveGNN, Policy, Static, buffer_step
from .row_exchange import Came

POLICIES: dict[str, Callable[..., Policy]] = {
    "massivegnn": MassiveGNN,
    "static": Static,
    "lookahead": lambda capacity, halo, degree, *, window=WINDOW: Lookahead(capacity, window=window),
}
"""Makers of policies, by name: ``POLICIES[name](capacity, halo, degree, **options)``; options are keyword-only."""


def capacities(
    budget: Budget, halo: Mapping[Any, int], remote: Mapping[Any, int], row_bytes: Mapping[Any, int]
) -> dict[Any, int]:
    """How many rows of each node type a buffer holds.

    A share f gives floor(f |halo|) rows of each type. Bytes are divided over the types in proportion to the bytes of
    their halos' rows, and give as many rows as fit, at most all that other parts have.

    Args:
        budget: the user's argument ``buffer``.
        halo: the number of rows in the part's halo, by type.
        remote: the number of rows that other parts have, by type.
        row_bytes: bytes of a row, summed over the attributes, by type.

    Raises:
        TypeError, ValueError: not a budget.
    """
    if not is_bytes(budget):
        return {kind: budget_bytes("buffer", budget, rows) for kind, rows in halo.items()}
    bytes_, sizes = budget_bytes("buffer", budget, 0), {kind: rows * row_bytes[kind] for kind, rows in halo.items()}
    whole = max(1, sum(sizes.values()))
    return {
        kind: min(remote[kind], bytes_ * size // whole // row_bytes[kind]) if size else 0
        for kind, size in sizes.items()
    }


@dataclass(frozen=True)
class Kept:
    """Which rows of other parts each loader keeps, as the user says it: arguments of ``open_part``.

    Raises:
        TypeError, ValueError: not a budget; an unknown policy; a policy or options without a budget; options that the
            policy has not, or wrong values of them.
    """

    budget: Budget | None = None
    """How many (:func:`capacities`); None: none."""
    policy: str | None = None
    """A name in :data:`POLICIES`; by default "massivegnn"."""
    options: Mapping[str, Any] | None = None
    """Further arguments of the policy."""

    def __post_init__(self) -> None:
        if self.budget is None and (self.policy is not None or self.options):
            raise ValueError("policy, policy_options: expected none without a buffer")
        if self.policy is not None:
            check_choice("policy", self.policy, list(POLICIES))
        if self.budget is not None:
            budget_bytes("buffer", self.budget, 0)
            self._check_options()

    def _check_options(self) -> None:
        policy = self.policy or "massivegnn"
        parameters = inspect.signature(POLICIES[policy]).parameters.values()
        known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        for name in self.options or {}:
            if name not in known and not takes_any:
                raise ValueError(f"policy_options: expected options of {policy!r} among {known}, found {name!r}")
        nobody = torch.empty(0, dtype=torch.int64)
        self.make(0, nobody, nobody)  # raises for wrong values

    def make(self, capacity: int, halo: Tensor, degree: Tensor) -> Policy:
        """The policy of one loader and node type."""
        return POLICIES[self.policy or "massivegnn"](capacity, halo, degree, **(self.options or {}))


class PrefetchBuffer:
    """The rows of one node type that a policy keeps: a slot of each attribute for each row. ::

        step = buffer.step(ids)
        hits = buffer.take(step)              # the rows of ids[step.hit]
        rows = fetch(step.fetch)              # by attribute; the policy updates meanwhile
        buffer.enter(step, rows)              # rows[name][step.missed] are the rows of ids[~step.hit]
        buffer.entered(step)

    A step may fail between :meth:`step` and :meth:`entered`: the rows that should have entered are fetched when they
    are asked for again. Where it is certain that they come, :meth:`entered` may be called before they do, and later
    steps may be asked for; each step is then taken and entered in turn, by any thread.

    Args:
        policy: decides what is kept.
        attrs: dtype and shape of a row of each attribute, by name.
        device: has the rows; None: the CPU.
    """

    def __init__(
        self, policy: Policy, attrs: Mapping[Any, tuple[torch.dtype, tuple[int, ...]]],
        device: torch.device | None = None,
    ) -> None:  # fmt: skip
        self.policy = policy
        slots = policy.capacity
        self._device = device or torch.device("cpu")
        self.rows = {
            name: torch.empty((slots, *shape), dtype=dtype, device=self._device)
            for name, (dtype, shape) in attrs.items()
        }
        """The rows of each attribute by slot, shape [capacity, ...]. Which of them are filled the policy knows."""
        self._awaited = NONE  # slots of rows that did not come, so far

    @property
    def num_bytes(self) -> int:
        """The bytes of the rows."""
        return sum(rows.nbytes for rows in self.rows.values())

    def fill(self, rows: Mapping[Any, Tensor]) -> None:
        """Puts the rows of ``policy.start()``, in this order, into the first slots."""
        for name, kept in self.rows.items():
            kept[: len(rows[name])] = rows[name]

    def step(self, ids: Tensor) -> BufferStep:
        """The policy's step of a batch; ``ids``: its distinct rows of other parts, sorted, int64."""
        step = self.policy.step(ids)
        if len(self._awaited):
            step = self._without(self._awaited, step, ids.numpy())
        at = step.at.numpy()
        self._awaited = np.union1d(self._awaited, at) if len(self._awaited) else at
        return step

    @staticmethod
    def _without(awaited: np.ndarray, step: BufferStep, ids: np.ndarray) -> BufferStep:
        """The step, changed for slots whose rows have not come: what it would have taken from them is fetched, and
        enters these slots again unless another row does."""
        slot = np.full(len(ids), -1)
        slot[step.hit.numpy()] = step.slot.numpy()
        gone = np.isin(slot, awaited)
        again = gone & ~np.isin(slot, step.at.numpy())
        enter, at = np.append(step.enter.numpy(), ids[again]), np.append(step.at.numpy(), slot[again])
        order = np.argsort(enter)
        slot[gone] = -1
        return buffer_step(ids, slot, enter[order], at[order])

    def take(self, step: BufferStep) -> dict[Any, Tensor]:
        """The rows of the step's hits, in the order of their ids; to be called before :meth:`enter`."""
        slot = sent(step.slot, self._device)
        return {name: ops.gather_rows(kept, slot, check=False) for name, kept in self.rows.items()}

    def enter(self, step: BufferStep, rows: Mapping[Any, Tensor]) -> None:
        """Puts the rows that enter into their slots; ``rows``: those of ``step.fetch``."""
        source, slot = sent(step.source, self._device), sent(step.at, self._device)
        for name, kept in self.rows.items():
            coming = ops.gather_rows(rows[name], source, check=False)
            as_words(kept).index_copy_(0, slot, as_words(coming))

    def entered(self, step: BufferStep) -> None:
        """Tells that the rows that enter have come, or come for certain. Called by the thread that calls :meth:`step`,
        in turn."""
        at = step.at.numpy()
        self._awaited = NONE if len(self._awaited) == len(at) else np.setdiff1d(self._awaited, at)


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


def check_halo(halo: Halo, book: PartitionBook, part: int, node_type: NodeType | None) -> None:
    """Raises ValueError unless the halo of a part is rising ids of other parts' nodes."""
    ids, own = halo.ids, book.nodes(part, node_type)
    outside = ops.first_outside(ids, book.num_nodes(node_type)) >= 0
    if outside or bool((ids[1:] <= ids[:-1]).any()) or bool(((ids >= own.start) & (ids < own.stop)).any()):
        kind = "nodes" if node_type is None else f"{node_type} nodes"
        raise ValueError(f"part {part}: expected a halo of rising stored ids of other parts' {kind}, found others")
