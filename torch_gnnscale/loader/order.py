"""The order of seeds: as they are, or shuffled by a key; all of them, or in groups, one for each part or type. Its
state, by which a run goes on. And the share of it that a loader's arguments ask for and ranks agree on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler
from typing_extensions import override

from .. import ops
from ..comm.mesh import Ranks, check_alike
from ..comm.steps import Steps
from ..feature.contract import RowStore
from ..ops.arguments import check_choice, to_int
from ..random import Purpose, batch_key, draw_seed, ids_key
from ..sampler.minibatch import MiniBatch
from .epochs import BatchChunks, Chunks, Epochs, NumberedBatches, Shard, Share, SharedOrder, Uneven


class Place(int):
    """The position of an input that knows its epoch and its place in the order of that epoch.

    Tools that make another DataLoader of a loader's samplers (Accelerate) deal out its batches as lists of these.
    """

    epoch: int
    place: int

    @classmethod
    def of(cls, position: int, epoch: int, place: int) -> Place:
        """The ``place``-th input of an epoch is ``position``."""
        found = cls(position)
        found.epoch, found.place = epoch, place
        return found


class PositionSampler(Sampler):
    """A torch sampler whose epochs are those of a loader.

    Our loaders ask :meth:`positions`. Only DataLoaders of others iterate it: each ``iter()`` takes the loader's next
    epoch, or the rest of the one that a state was loaded of, as :class:`Place` objects.
    """

    epochs: Epochs
    batch_size: int

    def positions(self, epoch: int) -> np.ndarray:
        """The positions of the inputs in the order of an epoch: int64, shape [inputs]."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning and Accelerate before an epoch: sets the loader's epoch unless it is there already."""
        self.epochs.follow_epoch(epoch)

    def __iter__(self) -> Iterator[Place]:
        self.epochs.begin()
        epoch, first = self.epochs.epoch, self.epochs.batch * self.batch_size
        for place, position in enumerate(self.positions(epoch)[first:].tolist(), first):
            yield Place.of(position, epoch, place)


def chunks_of(batches: Any) -> Chunks | None:
    """The chunks that a torch batch sampler makes of its sampler's order; None for samplers of the user's own."""
    if type(batches) is not BatchSampler or not isinstance(batches.sampler, PositionSampler):
        return None
    sampler = batches.sampler
    return Chunks(sampler.positions, len(sampler), batches.batch_size, batches.drop_last)  # type: ignore[arg-type]


FORMAT = 3
"""Version of the format of states."""


class SeedOrder(Epochs):
    """Numbers batches, makes their keys, and keeps the position of training; arguments as of :class:`Epochs`."""

    chunks: BatchChunks | None = None
    """The inputs of batches, where each batch has some of every part's or type's; set by the loader."""

    def key(self, index: MiniBatch, purpose: Purpose = Purpose.SAMPLE) -> int:
        """The key of a batch."""
        return batch_key(self.seed, index.epoch, index.number, purpose)

    def numbered(self, batches: Any, epoch: int | None = None) -> NumberedBatches:
        """A batch sampler's batches from the current position on, or all batches of ``epoch``."""
        chunks = chunks_of(batches) if self.chunks is None else self.chunks

        def start() -> tuple[int, int]:
            return self.position if epoch is None else (epoch, 0)

        return NumberedBatches(batches, chunks, start, self.share, self.dealt)

    # States ##########################################################################################################

    def options(self) -> dict[str, Any]:
        """What decides which batches an epoch has, in plain values. With one order for the seeds of all parts, neither
        the ranks nor ``uneven`` are among them: a run may go on with others."""
        share, of_parts = self.share, {} if self.chunks is None else self.chunks.options()
        if share is None or (share.seed_order == "global" and not of_parts):
            return {"seed_order": "global"}
        ranks = share.ranks
        own = {"ranks": ranks.world, "parts": ranks.parts, "consecutive": ranks.consecutive}
        return {"seed_order": "owned", **(of_parts or own), "uneven": share.uneven}

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


class KeyedShuffle(PositionSampler, RandomSampler):
    """A permutation of the inputs that is a function of (seed, epoch, part).

    Args:
        data_source: the inputs.
        epochs: of the loader, with its seed.
        batch_size: the inputs of a batch.
        part: 0 unless each part's seeds are ordered by themselves.
    """

    def __init__(self, data_source: Sequence, epochs: Epochs, batch_size: int = 1, part: int = 0) -> None:
        if len(data_source):
            RandomSampler.__init__(self, data_source)
        else:  # RandomSampler refuses an empty data source, although a rank may have no seeds
            self.data_source, self.replacement, self._num_samples, self.generator = data_source, False, None, None
        self.epochs, self.batch_size, self.part = epochs, batch_size, part

    @override
    def positions(self, epoch: int) -> np.ndarray:
        return self.permutation(len(self.data_source), epoch, self.part)

    def permutation(self, count: int, epoch: int, part: int) -> np.ndarray:
        """A permutation of ``count`` inputs of a part, for an epoch: int64, shape [count]."""
        return ops.permutation(count, batch_key(self.epochs.seed, epoch, part, Purpose.SHUFFLE)).numpy()


class InOrder(PositionSampler, SequentialSampler):
    """The inputs in their order; arguments as of :class:`KeyedShuffle`."""

    def __init__(self, data_source: Sequence, epochs: Epochs, batch_size: int = 1) -> None:
        SequentialSampler.__init__(self, data_source)
        self.epochs, self.batch_size = epochs, batch_size

    @override
    def positions(self, epoch: int) -> np.ndarray:
        return np.arange(len(self.data_source))


class ChunksOfGroups(BatchChunks):
    """Groups of inputs, each with an order of its own: batch t has chunk t of the first group, then of the second, and
    so on.

    Group i of n permutes its inputs by batch_key(seed, epoch, shuffle.part * n + i, SHUFFLE).

    Args:
        groups: the group of each input: integers, shape [inputs].
        sizes: sizes[i]: how many inputs group i adds to a batch.
        drop_last: leave out a group's last chunk if it is smaller.
        shuffle: permutes a group's inputs; None: they stay in their order.
    """

    def __init__(self, groups: Tensor, sizes: list[int], drop_last: bool, shuffle: KeyedShuffle | None) -> None:
        of = groups.numpy()
        first = 0 if shuffle is None else shuffle.part * len(sizes)
        self.each = [
            _chunks_of_group(np.flatnonzero(of == group), first + group, size, drop_last, shuffle)
            for group, size in enumerate(sizes)
        ]

    @property
    @override
    def count(self) -> int:
        return max(chunks.count for chunks in self.each)

    @override
    def of_epoch(self, epoch: int) -> Callable[[int], np.ndarray]:
        taken = [chunks.of_epoch(epoch) for chunks in self.each]
        return lambda number: np.concatenate([taken[group](at) for group, at in self._adding(number)] or [_NONE])

    @override
    def size_of(self, number: int) -> int:
        return sum(self.each[group].size_of(at) for group, at in self._adding(number))

    def _adding(self, number: int) -> list[tuple[int, int]]:
        """(group, number of its chunk) for the groups that add inputs to a batch."""
        raise NotImplementedError


class ChunksOfParts(ChunksOfGroups):
    """A group for each part. After its last chunk, a part begins again (``repeats``), or adds no inputs.

    Args:
        owners: the part of each input: integers, shape [inputs].
        parts: K, the number of parts.
        batch_size: the inputs of a batch; each part adds ``batch_size / K``.
        drop_last, shuffle: as of :class:`ChunksOfGroups`.
        repeats: whether a part begins again.

    Raises:
        ValueError: a batch size that is not a multiple of K.
    """

    def __init__(
        self, owners: Tensor, parts: int, batch_size: int, drop_last: bool, shuffle: KeyedShuffle | None, repeats: bool
    ) -> None:
        if batch_size % parts:
            raise ValueError(
                f"batch_size: expected a multiple of {parts} parts with seed_order='owned', found {batch_size}"
            )
        self._key_of_owners, self.repeats = ids_key(0, owners), repeats
        super().__init__(owners, [batch_size // parts] * parts, drop_last, shuffle)

    @property
    @override
    def counts(self) -> list[int]:
        return [chunks.count for chunks in self.each]

    @override
    def options(self) -> dict[str, Any]:
        """The parts; ``repeats`` is said elsewhere, as ``uneven``."""
        return {"parts": len(self.each), "key_of_owners": self._key_of_owners}

    @override
    def _adding(self, number: int) -> list[tuple[int, int]]:
        return [(part, number) for part, of in enumerate(self.each) if number < of.count or self.repeats]


class ChunksOfTypes(ChunksOfGroups):
    """A group for each type of inputs, which adds no more inputs after its last chunk. After the last batch come the
    batches once more, with larger numbers."""

    def _adding(self, number: int) -> list[tuple[int, int]]:
        at = number % self.count
        return [(group, at) for group, chunks in enumerate(self.each) if at < chunks.count]


_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class _OrderOfGroup:
    """The positions of a group's inputs, in the order of an epoch. A class, so that worker processes can be sent it."""

    inputs: np.ndarray
    number: int
    shuffle: KeyedShuffle | None

    def __call__(self, epoch: int) -> np.ndarray:
        if self.shuffle is None:
            return self.inputs
        return self.inputs[self.shuffle.permutation(len(self.inputs), epoch, self.number)]


def _chunks_of_group(
    inputs: np.ndarray, number: int, size: int, drop_last: bool, shuffle: KeyedShuffle | None
) -> Chunks:  # fmt: skip
    return Chunks(_OrderOfGroup(inputs, number, shuffle), len(inputs), size, drop_last)


def share_of(
    shard: Shard, order: SharedOrder | None, uneven: Uneven, features: Any, options: dict[str, Any], seed: Any,
    groups: Ranks | None = None,
) -> Share | None:  # fmt: skip
    """A loader's share, still without counts; None if it makes all batches.

    Args:
        shard, order, uneven: the loader's arguments ``shard``, ``seed_order`` and ``uneven``.
        features: the store that it reads, if any; one of a part knows its ranks.
        options: its arguments of DataLoader.
        seed: its seed, which must be given with ``shard=(rank, world)``.
        groups: of ranks that make each batch together, if they do
            (:class:`torch_gnnscale.loader.sharing.SplitBatches`).

    Raises:
        TypeError, ValueError: arguments that contradict each other, or ``shard=True`` without a process group.
    """
    ranks = features.ranks if isinstance(features, RowStore) else None
    for name, value, known in (("seed_order", order, get_args(SharedOrder)), ("uneven", uneven, get_args(Uneven))):
        if value is not None:
            check_choice(name, value, known)
    if groups is not None:
        if shard is not None:
            raise ValueError(f"shard: expected none with split=, by which ranks share each batch, found {shard!r}")
        ranks, order = groups, "global"  # one sequence of batches, whatever the seeds of each
    elif ranks is not None:
        if shard is not None and shard is not True:
            raise ValueError(f"shard: expected True or None with the stores of a part, found {shard!r}")
        order = order or "owned"
    elif shard is None or shard is False:
        if order is not None or uneven != "pad":
            raise ValueError(f"seed_order, uneven: expected none with shard={shard}, which makes all batches")
        return None
    else:
        ranks = _ranks_of(shard, seed)
        if order == "owned":
            raise ValueError("seed_order='owned': expected the stores of a part, found others; use 'global'")
        order = "global"
    sampler = options.get("sampler")
    if isinstance(sampler, DistributedSampler):
        raise ValueError(
            "shard: expected no DistributedSampler beside it, found one; with Lightning, pass "
            "use_distributed_sampler=False to the Trainer"
        )
    if sampler is not None or options.get("batch_sampler") is not None:
        name = "shard" if groups is None else "split"
        raise ValueError(f"{name}: expected neither sampler nor batch_sampler beside it, found one")
    return Share(ranks, order, uneven)


def _ranks_of(shard: bool | tuple[int, int], seed: Any) -> Ranks:
    if shard is True:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            raise ValueError("shard=True: expected torch.distributed to be initialized; use (rank, number of ranks)")
        return Ranks(distributed.get_rank(), distributed.get_world_size())
    if not isinstance(shard, (tuple, list)) or len(shard) != 2:
        raise TypeError(f"shard: expected True, False or (rank, number of ranks), found {shard!r}")
    rank, world = (to_int("shard", entry) for entry in shard)
    if not 0 <= rank < world:
        raise ValueError(f"shard: expected a rank in [0, {world}), found {rank}")
    if seed is None:
        raise ValueError(f"seed: expected one with shard={tuple(shard)}, the same on all ranks, found none")
    return Ranks(rank, world)


def common_seed(share: Share | None, seed: int | None, generator: torch.Generator | None) -> int:
    """The loader's seed. If none was given, one is drawn; for ranks that share an epoch, by rank 0."""
    if seed is not None:
        return to_int("seed", seed)
    drawn = draw_seed(generator)
    distributed = torch.distributed
    if share is None or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return drawn
    values = [drawn]
    torch.distributed.broadcast_object_list(values, src=0)
    return values[0]


def agreed_share(
    share: Share, steps: Steps, decides: dict[str, Any], counts: list[int], problem: str | None, seed: int
) -> tuple[Share, dict[str, Any], int]:
    """The share of a rank whose batches all ranks make together, after they have told each other what they have.

    Args:
        share: without counts.
        steps: of the loader.
        decides: what decides this rank's batches, in plain values; all ranks have the same but, where each part's seeds
            are ordered by themselves, for ``inputs`` and ``key_of_inputs``.
        counts: the batches of each order of seeds that this rank knows: of its part's, or of all that it takes.
        problem: what is wrong with this rank's inputs; all ranks then raise it.
        seed: of this rank's loader.

    Returns:
        The share with counts; where each part has its own inputs, these two entries of all parts; the seed of rank 0.

    Raises:
        ValueError: on all ranks, naming what differs between them.
    """
    own = ("inputs", "key_of_inputs") if share.seed_order == "owned" else ()
    found = steps.gather((decides, counts, share.part, problem, seed))
    texts = [entry[3] for entry in found]
    if problems := [(rank, text) for rank, text in enumerate(texts) if text is not None]:
        rank, text = problems[0]
        raise ValueError(text if all(other == text for other in texts) else f"rank {rank}: {text}")
    check_alike([{name: value for name, value in entry[0].items() if name not in own} for entry in found])
    for part in range(share.ranks.parts) if own else ():
        of_part = [{name: entry[0].get(name) for name in own} for entry in found if entry[2] == part]
        check_alike(of_part, f"the ranks of part {part}")
    if share.seed_order == "global":
        return share.with_counts(counts), {}, found[0][4]
    of_each = {entry[2]: entry for entry in found}
    inputs = {name: [of_each[part][0][name] for part in range(share.ranks.parts)] for name in own}
    counted = share.with_counts([count for part in range(share.ranks.parts) for count in of_each[part][1]])
    return counted, inputs, found[0][4]
