"""The ranks that open a part together: what they tell each other besides the steps of loaders."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from torch import distributed as dist

from .. import machine
from .exchange import Exchange
from .hosts import Card, check_cards, check_open_files, own_card
from .presence import Presence

T = TypeVar("T")
_OF_GLOO = ("gloo", "Connection", "imed out", "Broken pipe")
"""Words in the errors of collectives."""


class Meeting:
    """The ranks of a run, in a Gloo group of their own; one rank alone needs none. All ranks make it together.

    Every method but :meth:`lost` is called by one thread, in the same order on all ranks.

    Args:
        rank, world: of torch.distributed.
        timeout: seconds after which a rank that does not answer is an error.

    Raises:
        RuntimeError: a rank does not come, or ends in the meantime; names it.
        ValueError: on all ranks, if one of them could not connect to the others: :func:`hosts.check_cards`.
    """

    def __init__(self, rank: int, world: int, timeout: float) -> None:
        self.rank, self.world, self._timeout = rank, world, timeout
        self._presence: Presence | None = None
        self._exchange = Exchange(None, 1, 0)
        self.machines = [machine.identity()]
        """That of each rank: :func:`torch_gnnscale.machine.identity`."""
        if world == 1:
            return
        connections = world if rank == 0 else 1  # to the store, which rank 0 may keep
        own = own_card(_files(range(world)) + connections)
        presence = self._presence = Presence(rank, world, timeout)
        try:
            cards = [Card(*card) for card in presence.come(own)]
            check_cards(cards)
            group = presence.together(lambda: _group(list(range(world)), timeout))
        except BaseException:
            presence.close()
            raise
        self.machines = [card.machine for card in cards]
        self._exchange = Exchange(group, world, rank)

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank, which pickle takes. RuntimeError if a rank has ended; names it."""
        try:
            return self._exchange.objects(value)
        except RuntimeError as error:
            if (lost := self.lost(error)) is None:
                raise
            raise RuntimeError(lost) from error

    def all_made(self, make: Callable[[], T]) -> T:
        """``make()``, once all ranks have made theirs.

        Args:
            make: may raise OSError or ValueError.

        Raises:
            ValueError: on all ranks, if ``make`` failed on one of them, which is named.
            RuntimeError: a rank has ended; names it.
        """
        made, error = None, None
        try:
            made = make()
        except (OSError, ValueError) as found:
            error = found
        if self.world == 1 and error is not None:
            raise error
        for rank, text in enumerate(self.gather(None if error is None else f"{type(error).__name__}: {error}")):
            if text is not None:
                raise ValueError(f"rank {rank}: {text}") from error
        assert made is not None
        return made

    def groups(self, of_ranks: list[list[int]]) -> list[dist.ProcessGroup | None]:
        """A new Gloo group of each list of ranks, None for one alone. Errors as of :meth:`all_made`."""
        if self._presence is None:
            return [None] * len(of_ranks)
        own = [ranks for ranks in of_ranks if self.rank in ranks]
        self.all_made(lambda: check_open_files(sum(map(_files, own))))
        return self._presence.together(lambda: [_group(ranks, self._timeout) for ranks in of_ranks])

    def lost(self, error: RuntimeError) -> str | None:
        """If it is the error of a collective of these ranks, a text that names those that are gone."""
        if self._presence is None or not any(word in str(error) for word in _OF_GLOO):
            return None
        return f"{self._presence.gone() or 'a rank failed'}: {error}"

    def close(self) -> None:
        """Ends the group."""
        group, self._exchange.group = self._exchange.group, None
        if group is not None:
            end_group(group)
        if self._presence is not None:
            self._presence.close()


def _files(ranks: Sequence[int]) -> int:
    """How many a Gloo group of these opens on each of them: sockets to the others, one that listens, three besides."""
    return 0 if len(ranks) == 1 else len(ranks) + 3


def end_group(group: dist.ProcessGroup) -> None:
    """Destroys a group, of which ranks may be gone."""
    if dist.is_initialized():
        with contextlib.suppress(Exception):
            dist.destroy_process_group(group)


def _group(ranks: list[int], timeout: float) -> dist.ProcessGroup | None:
    """A Gloo group of these ranks, None for one alone. All ranks call it for all groups, in one order."""
    return None if len(ranks) == 1 else dist.new_group(ranks, timedelta(seconds=timeout), "gloo")
