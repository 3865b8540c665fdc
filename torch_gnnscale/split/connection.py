"""The process groups of a split model: which ranks compute together, which failed and why, and how the groups end."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from .. import machine
from ..comm.exchange import Broken, Exchange, keep_for_ever
from ..comm.mesh import Grid
from ..comm.rendezvous import Rendezvous, end_group
from ..comm.row_transport import ENDED, RowTransport

_ENDED: Any = object()
"""Stands for a group that has ended. None would not do: it stands for the missing group of a single rank."""


class Connection:
    """What connects one split model to those of the other ranks; without a process group, nothing.

    One thread at a time issues its collectives: the one that calls the model, or autograd's thread while the
    former waits for it.

    It ends with the last reference to this object, and with the program at the latest: groups, memory and threads are
    then freed, and ranks that wait for this one fail.

    Args:
        rank, world: of torch.distributed.
        timeout: seconds after which a rank that does not answer is an error.
    """

    def __init__(self, rank: int, world: int, timeout: float) -> None:
        self.rank, self.world = rank, world
        self._held = _Held(Rendezvous(rank, world, timeout))
        self._end = weakref.finalize(self, self._held.end)
        self.all = self.exchange([list(range(world))])
        """Between all ranks: headers, and what they say when the model is made."""
        self.sums = self.exchange([list(range(world))])
        """Between all ranks, in a group of its own: gradients of parameters, and statistics of norms."""
        self.transports: dict[tuple[Grid, tuple[int, ...]], RowTransport] = self._held.transports
        """Keyed by (grid, devices). Each column of the grid makes one batch; ``devices[r]``: where rank r has its
        batch."""

    def exchange(self, of_ranks: list[list[int]], backend: str = "gloo") -> _Connected:
        """Makes a group for each list of ranks, of which this rank is in one; all ranks call it alike.

        A collective of it that fails is a RuntimeError that names the rank which failed, is gone, or did not come.
        """
        own = next(number for number, ranks in enumerate(of_ranks) if self.rank in ranks)
        ranks, group = of_ranks[own], self._held.rendezvous.groups(of_ranks, backend)[own]
        made = _Connected(group, len(ranks), ranks.index(self.rank), self._held, backend)
        if backend == "gloo":
            made.board = self._held.rendezvous.board(of_ranks)
        self._held.exchanges.append(made)
        return made

    @property
    def of_all(self) -> RowTransport:
        """Over ``sums``, of rows on the CPU; it ends with this connection. Set once."""
        assert self._held.of_all is not None
        return self._held.of_all

    @of_all.setter
    def of_all(self, transport: RowTransport) -> None:
        self._held.of_all = transport

    @property
    def ended(self) -> bool:
        """Whether the model cannot be called any more."""
        return self._held.ended

    @contextmanager
    def failing_alone(self) -> Iterator[None]:
        """Within, an error is this rank's alone: the others are told, and the model ends."""
        try:
            yield
        except BaseException as error:
            self.fail(f"{type(error).__name__}: {error}")
            raise

    def fail(self, why: str) -> None:
        """Ends the model on all ranks: the others, which may wait for this one, raise an error that says why."""
        if self.world > 1:
            self._held.end(why, failed=True)

    def end(self) -> None:
        """Ends the model on this rank."""
        self._end()


@dataclass
class _Held:
    """What ends with the connection."""

    rendezvous: Rendezvous
    exchanges: list[_Connected] = field(default_factory=list)
    transports: dict[tuple[Grid, tuple[int, ...]], RowTransport] = field(default_factory=dict)
    of_all: RowTransport | None = None
    ended: bool = False

    def end(self, why: str = "its model was closed or dropped", failed: bool = False) -> None:
        """Frees everything, the first time it is called; any thread may call it. The other ranks are told ``why``,
        unless it is empty. ``failed``: whether a rank failed; others may then still wait in a collective."""
        if self.ended:
            return
        self.ended = True
        if why:
            self.rendezvous.fail(why)
        for transport in (*self.transports.values(), self.of_all):
            if transport is not None:
                transport.close()
        for exchange in self.exchanges:  # the others notice it when the last reference to a group is gone
            group, exchange.group, exchange.board = exchange.group, None, None
            if group is None:
                continue
            exchange.group = _ENDED
            if exchange.waits or (failed and exchange.backend == "nccl"):  # a collective may not end
                keep_for_ever(group)  # its end would wait, too
            else:
                end_group(group)
            del group
        self.rendezvous.close()


class _Connected(Exchange):
    """An exchange whose errors name the rank that failed."""

    def __init__(self, group: dist.ProcessGroup | None, size: int, rank: int, held: _Held, backend: str) -> None:
        super().__init__(group, size, rank)
        self._held, self.backend = weakref.ref(held), backend
        self._purpose = ""  # of the collective that this rank is in

    def broadcast(self, tensor: Tensor) -> None:
        """Overwrites ``tensor`` on all ranks with that of the first one."""
        if self.group is not None:
            with self._named("parameters"):
                try:
                    dist.broadcast(tensor, dist.get_global_rank(self.group, 0), self.group)
                except RuntimeError as error:
                    raise Broken(str(error)) from error

    def numbers(self, sent: Tensor, purpose: str, *args: Any, **options: Any) -> Tensor:
        """See :meth:`Exchange.numbers`."""
        with self._named(purpose):
            return super().numbers(sent, purpose, *args, **options)

    def bytes(
        self, sent: Tensor, lengths: Sequence[int], sizes: Sequence[int], purpose: str, *args: Any, **options: Any
    ) -> Tensor:
        """See :meth:`Exchange.bytes`."""
        with self._named(purpose):
            return super().bytes(sent, lengths, sizes, purpose, *args, **options)

    def _all_to_all(self, *args: Any, **options: Any) -> None:
        with self._named(self._purpose):
            super()._all_to_all(*args, **options)

    @contextmanager
    def _named(self, purpose: str) -> Iterator[None]:
        held = self._held()
        if held is None or held.ended:
            raise RuntimeError(f"split: {ENDED}")
        before, self._purpose = self._purpose, purpose
        try:
            yield
        except Broken as error:
            why = held.rendezvous.lost(error, waited_for=purpose)
            held.end("", failed=True)
            raise RuntimeError(f"split: {why}") from error
        finally:
            self._purpose = before


def nccl_exchange(
    connection: Connection, columns: list[list[int]], device: torch.device, wanted: bool
) -> Exchange | None:
    """An exchange over NCCL between the ranks of this one's column; None without. All ranks call it alike.

    There is one if torch.distributed was initialized with NCCL, any rank wants one, and each rank has a GPU of its own:
    NCCL refuses two ranks on one.

    Args:
        connection: between all ranks.
        columns: of ranks.
        device: of this rank's rows.
        wanted: whether this rank's column needs one.
    """
    has_nccl = device.type == "cuda" and "cuda:nccl" in dist.get_backend_config().split(",")
    gpu = machine.identity(), str(torch.cuda.get_device_properties(device).uuid) if has_nccl else ""
    wants, have, gpus = zip(*connection.all.objects((wanted, has_nccl, gpu)), strict=True)
    if any(wants) and all(have) and len(set(gpus)) == len(gpus):
        return connection.exchange(columns, "nccl")
    return None
