"""The order of seeds: batches are numbered, shuffled by a key, and resumed where a run was stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import DistributedSampler

from ..random import Purpose, batch_key
from .chunks import Chunks, ChunksOfParts
from .epochs import Epochs
from .share import Share

FORMAT = 3
"""Version of the format of states."""


class NumberedBatch(NamedTuple):
    """A batch's epoch and number, from which its key is made, and the positions of its inputs."""

    epoch: int
    number: int
    positions: np.ndarray


class FromElsewhere(NamedTuple):
    """A batch that a DataLoader of others took from a loader's inputs."""

    batch: NumberedBatch | list[int]
    """A list of positions, if nothing says the number."""


class NumberedBatches:
    """The batches of an epoch, numbered.

    Args:
        batches: a torch batch sampler.
        chunks: the inputs of batches; None if the sampler is the user's.
        start: returns (epoch, number of the first batch, counted over all ranks).
        share: which batches this rank makes; None: all.
        dealt: the user's sampler that deals inputs to ranks: batch s of rank r of P has number sP + r.
    """

    def __init__(
        self, batches: Any, chunks: Chunks | ChunksOfParts | None, start: Callable[[], tuple[int, int]],
        share: Share | None = None, dealt: DistributedSampler | None = None,
    ) -> None:  # fmt: skip
        self.batches, self.chunks = batches, chunks
        self.start = start
        self.share, self.dealt = share, dealt

    def __len__(self) -> int:
        return len(self.batches) if self.share is None else self.share.steps(0)

    @property
    def keyed(self) -> bool:
        """Whether an epoch's batches are a function of (seed, epoch); False for a sampler of the user's."""
        return self.chunks is not None

    def __iter__(self) -> Iterator[NumberedBatch]:
        epoch, first = self.start()
        if self.chunks is None:
            return self._number(islice(iter(self.batches), first, None), epoch, first, self.dealt)
        inputs, share = self.chunks.of_epoch(epoch), self.share
        chosen = ((k, k) for k in range(first, len(self.batches))) if share is None else share.positions(first)
        return (NumberedBatch(epoch, number, inputs(chunk)) for number, chunk in chosen)

    @staticmethod
    def _number(
        chosen: Iterator[Any], epoch: int, first: int, dealt: DistributedSampler | None
    ) -> Iterator[NumberedBatch]:
        rank, world = (0, 1) if dealt is None else (dealt.rank, dealt.num_replicas)
        for step, positions in enumerate(chosen, first):
            yield NumberedBatch(epoch, step * world + rank, np.asarray(positions, dtype=np.int64))


class SeedOrder(Epochs):
    """Numbers batches, makes their keys, and keeps the position of training; arguments as of :class:`Epochs`."""

    chunks_of_parts: ChunksOfParts | None = None
    """The inputs of batches, where each batch has some of every part's; set by the loader."""

    def key(self, index: NumberedBatch, purpose: Purpose = Purpose.SAMPLE) -> int:
        """The key of a batch."""
        return batch_key(self.seed, index.epoch, index.number, purpose)

    def numbered(self, batches: Any, epoch: int | None = None) -> NumberedBatches:
        """A batch sampler's batches from the current position on, or all batches of ``epoch``."""
        chunks = Chunks.of(batches) if self.chunks_of_parts is None else self.chunks_of_parts

        def start() -> tuple[int, int]:
            return self.position if epoch is None else (epoch, 0)

        return NumberedBatches(batches, chunks, start, self.share, self.dealt)

    # States ##########################################################################################################

    def options(self) -> dict[str, Any]:
        """What decides which batches an epoch has, in plain values. With one order for the seeds of all parts, neither
        the ranks nor ``uneven`` are among them: a run may go on with others."""
        share = self.share
        if share is None or (share.seed_order == "global" and self.chunks_of_parts is None):
            return {"seed_order": "global"}
        ranks = share.ranks
        of_parts: dict[str, Any] = {"ranks": ranks.world, "parts": ranks.parts, "consecutive": ranks.consecutive}
        if self.chunks_of_parts is not None:
            of_parts = self.chunks_of_parts.options()
        return {"seed_order": "owned", **of_parts, "uneven": share.uneven}

    def state(self) -> dict[str, Any]:
        """The seed and the position in plain values."""
        epoch, batch = self.position
        return {"format": FORMAT, "seed": self.seed, "epoch": epoch, "batch": batch}

    def load(self, state: dict[str, Any], expected: dict[str, Any]) -> None:
        """Sets the seed and the position from a state; ValueError unless it has all entries of ``expected``."""
        check_state(state, expected)
        self.seed = state["seed"]
        self.set_next(state["epoch"], state["batch"])


def check_state(state: Any, expected: dict[str, Any]) -> None:
    """Raises ValueError unless ``state`` has the format of a loader's state and all entries of ``expected``."""
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = f"format {state.get('format')!r}" if isinstance(state, dict) else type(state).__name__
        raise ValueError(f"state: expected what state_dict() returned (format {FORMAT}), found {found}")
    for name, value in expected.items():
        if state.get(name) != value:
            raise ValueError(f"state: expected a loader with {name}={state.get(name)!r}, found {name}={value!r}")
    for name in ("seed", "epoch", "batch"):
        if type(state.get(name)) is not int or (name != "seed" and state[name] < 0):
            raise ValueError(f"state: expected a number as {name}, found {state.get(name)!r}")
