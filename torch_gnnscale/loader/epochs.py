"""A loader's position in its epochs, which its iterators move; and the share of an epoch's batches that each rank of a
distributed run takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import torch
from torch.utils.data import DistributedSampler

from .._private import count_function_modes
from .._user import on_host
from ..comm.mesh import Ranks, check_alike
from ..comm.steps import Steps
from ..feature.contract import RowStore
from ..ops.arguments import check_choice, to_int
from ..random import draw_seed

Shard: TypeAlias = bool | tuple[int, int] | None
"""A loader's ``shard``: True for the ranks of torch.distributed, or (rank, number of ranks)."""
SharedOrder: TypeAlias = Literal["global", "owned"]
"""``global``: the batches that one process would make, dealt to the ranks in turn. ``owned``: each part's seeds are
ordered by themselves, and the ranks of a part take its batches in turn. With a split plan, ranks share batches of every
part's seeds, so that a :class:`Share` is global either way (:class:`torch_gnnscale.loader.order.ChunksOfParts`)."""
Uneven: TypeAlias = Literal["pad", "drop", "serve"]
"""Where some ranks have more batches than others: ``pad`` repeats seeds under new keys, ``drop`` leaves batches out,
``serve`` lets the others end earlier; they still answer requests for rows."""


class Position(NamedTuple):
    """One step of a rank."""

    number: int
    """The number of the batch over all ranks, which its key is made of."""
    chunk: int
    """The number of the chunk that the batch takes from its order of seeds; numbers go on after the last chunk
    (:class:`torch_gnnscale.loader.order.Chunks`)."""


@dataclass(frozen=True)
class Share:
    """What one rank takes of an epoch.

    Step s of rank r of P is batch k = k0 + sP + r, where k0 batches were made before. With the order ``global`` it
    takes chunk k of all seeds; with ``owned`` chunk t of its part's seeds, t = (k0 / P + s)c + j, where c ranks share
    the part and this is rank j of them, from 0.
    """

    ranks: Ranks
    seed_order: SharedOrder
    uneven: Uneven
    counts: tuple[int, ...] = ()
    """The number of chunks of each order of seeds: one entry per part, or one for all seeds. If the share is global and
    there are several orders, each of them adds a chunk to every batch."""

    @property
    def copies(self) -> int:
        """c: how many ranks take the batches of one order of seeds; all of them if it is global."""
        return self.ranks.world if self.seed_order == "global" else self.ranks.copies

    @property
    def part(self) -> int:
        """The order of seeds that this rank takes batches of: its part's number; 0 if the order is global."""
        return 0 if self.seed_order == "global" else self.ranks.part

    def with_counts(self, counts: list[int]) -> Share:
        """The share of an epoch that has ``counts[i]`` chunks of order of seeds i.

        Raises:
            ValueError: a part without a batch, or ``drop`` that leaves no step, unless ``serve``.
        """
        share = replace(self, counts=tuple(counts))
        if self.uneven != "serve":
            if 0 in counts:
                of = f"part {counts.index(0)} to have " if self.seed_order == "owned" or len(counts) > 1 else ""
                instead = "'serve' or seed_order='global'" if of else "'serve'"
                raise ValueError(f"uneven={self.uneven!r}: expected {of}at least one batch, found none; use {instead}")
            if share.steps(0) == 0:
                raise ValueError(
                    f"uneven='drop': expected a batch for each of {self.ranks.world} ranks, found {counts} in all"
                )
        return share

    def steps(self, first: int) -> int:
        """Steps of this rank in an epoch of which ``first`` batches were made, by all ranks together."""
        if self.uneven == "serve":
            walked = [self.part] if self.seed_order == "owned" else range(len(self.counts))
            return max(self._own_steps(part, self._turn, first) for part in walked)
        # Turns of lower numbers have as many batches as later ones, or one more.
        turn = 0 if self.uneven == "pad" else self.copies - 1
        each = [self._own_steps(part, turn, first) for part in range(len(self.counts))]
        return max(each) if self.uneven == "pad" else min(each)

    def steps_of_all(self, first: int) -> int:
        """The number of steps in which all ranks take part: that of the rank with most batches."""
        return max(self._own_steps(part, 0, first) for part in range(len(self.counts)))

    @property
    def _turn(self) -> int:
        """j: this rank's number among those that take the batches of one order of seeds in turn."""
        return self.ranks.rank if self.seed_order == "global" else self.ranks.copy

    def _own_steps(self, part: int, turn: int, first: int) -> int:
        left = self.counts[part] - first * self.copies // self.ranks.world - turn
        return max(0, -(-left // self.copies))

    def inputs_of_step(self, number: int, size_of: Callable[[int], int]) -> int:
        """How many inputs all ranks have together in a step; the order is global.

        Args:
            number: of this rank's batch in that step.
            size_of: returns how many inputs a batch has, by its number.
        """
        numbers = [number - self.ranks.rank + rank for rank in range(self.ranks.world)]
        return sum(size_of(of_rank) for of_rank in numbers if self.uneven != "serve" or of_rank < max(self.counts))

    def positions(self, first: int) -> Iterator[Position]:
        """The steps of this rank after ``first`` batches of all ranks."""
        world, copies = self.ranks.world, self.copies
        number, chunk = first + self.ranks.rank, first * copies // world + self._turn
        return map(Position, count(number, world), range(chunk, chunk + self.steps(first) * copies, copies))


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


T = TypeVar("T")


class Epochs:
    """Keeps the position of training: (epoch, number of the next batch).

    Args:
        seed: the loader's.
        share: what this rank makes of an epoch; None: everything.
        dealt: the user's sampler that deals inputs to ranks, if there is one. Its ``set_epoch`` may go ahead of the
            epochs counted here; keys are made of the later of the two.
    """

    def __init__(self, seed: int, share: Share | None = None, dealt: DistributedSampler | None = None) -> None:
        self.seed = seed
        self.share, self.dealt = share, dealt
        self.epoch, self.batch = 0, 0
        """The epoch of the next batch to be delivered, and how many of its batches all ranks have made before."""
        self._next = (0, 0)  # where the next iterator begins
        self._iterations = 0
        self._fresh = False  # whether the latest iterator exists and has delivered no batch

    @property
    def position(self) -> tuple[int, int]:
        """The epoch of the next batch, and how many of its batches all ranks have made before."""
        if self.dealt is not None and self.dealt.epoch > self.epoch:
            return self.dealt.epoch, 0
        return self.epoch, self.batch

    def set_next(self, epoch: int, batch: int = 0) -> None:
        """The next iterator begins at this position; later iterators begin the epochs after it."""
        self._next = (epoch, batch)
        self._jump(epoch, batch)

    def begin(self) -> None:
        """Called when an iterator begins: sets its position."""
        self._jump(*self._next)
        self._next = (self.epoch + 1, 0)

    def follow_epoch(self, epoch: int) -> None:
        """The latest iterator goes on in ``epoch`` if it has delivered no batch yet, and so does one that takes its
        place before its first batch; otherwise the next one begins there. A position within that epoch stays.

        Lightning calls it between ``iter()`` and the first batch, and between two ``iter()`` of a loader that it has
        just made anew.
        """
        if not self._fresh and self._next[0] != epoch:
            self.set_next(epoch)
        elif self._fresh:
            if self.epoch != epoch:
                self.epoch, self.batch = epoch, 0
            self._next = (self.epoch, self.batch)

    def _jump(self, epoch: int, batch: int) -> None:
        """Sets the position. Iterators that began before no longer move it."""
        self.epoch, self.batch = epoch, batch
        self._iterations += 1
        self._fresh = False

    def follow(self, make: Callable[[], Iterator[T]]) -> Followed[T]:
        """The iterator ``make()`` over the epoch from the current position on. It moves the position, until another
        iterator begins."""
        followed = Followed(make, self, self._iterations)
        self._fresh = True
        return followed

    def forget(self, iteration: int) -> None:
        """The iterator of ``iteration`` delivers no more batches."""
        self._fresh = self._fresh and iteration != self._iterations

    def has_moved(self, iteration: int, begun: tuple[int, int]) -> bool:
        """Whether the latest iterator, of ``iteration``, was sent from where it began to another epoch."""
        return self._fresh and iteration == self._iterations and self.position != begun

    def move(self, iteration: int, ended: bool) -> None:
        """Moves the position by one batch of each rank, or to the next epoch if ``ended``; ignored for an older
        iteration."""
        if iteration != self._iterations:
            return
        if self._fresh:
            (self.epoch, self.batch), self._fresh = self.position, False
            self._next = (self.epoch + 1, 0)
        if ended:
            self.epoch, self.batch = self.epoch + 1, 0
        else:
            self.batch += 1 if self.share is None else self.share.ranks.world


_next = on_host(next)
"""Only called where the thread has modes, of which a default device is one."""


class Followed(Generic[T]):
    """An iterator that moves the position of a loader by each batch that it delivers or that fails.

    The epoch ends when the iterator raises StopIteration; not when it is closed, or stops because of an error.
    """

    def __init__(self, make: Callable[[], Iterator[T]], epochs: Epochs, iteration: int) -> None:
        self._make, self._epochs, self._iteration = make, epochs, iteration
        self._ended = self._failed = False
        self._begin()

    def _begin(self) -> None:
        self._begun = self._epochs.position
        self._iterator = self._make()

    def __iter__(self) -> Followed[T]:
        return self

    def __next__(self) -> T:
        if self._epochs.has_moved(self._iteration, self._begun):
            self._stop()
            self._begin()
        try:
            batch = _next(self._iterator) if count_function_modes() else next(self._iterator)
        except StopIteration:
            if not self._ended and not self._failed:
                self._epochs.move(self._iteration, ended=True)
            self._ended = True
            raise
        except Exception:
            self._failed = True
            self._epochs.move(self._iteration, ended=False)
            raise
        self._failed = False
        self._epochs.move(self._iteration, ended=False)
        return batch

    def close(self) -> None:
        """Stops the threads that prepare batches."""
        self._ended = True
        self._epochs.forget(self._iteration)
        self._stop()

    def _stop(self) -> None:
        if hasattr(self._iterator, "close"):
            self._iterator.close()

    def __del__(self) -> None:
        if "_iterator" in self.__dict__:
            self._epochs.forget(self._iteration)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # while unpickling
            raise AttributeError(name)
        return getattr(self._iterator, name)
