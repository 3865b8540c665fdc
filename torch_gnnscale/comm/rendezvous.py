"""The ranks that open parts together: what they check of their machines, how they connect, and what they exchange
besides the steps of loaders."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import pickle
import resource
import socket
import struct
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from torch import distributed as dist

from .. import machine, ops
from ..memory import HostMemory
from .exchange import Board, Broken, Exchange
from .liveness import Liveness
from .mesh import Grid, RowGroup, Transport

_OTHER_FILES = 16
"""Further files that a process may open for a moment."""
_SIOCGIFADDR = 0x8915


class Card(NamedTuple):
    """What a rank tells the others of its machine."""

    machine: str
    """:func:`torch_gnnscale.machine.identity`."""
    host: str
    """The machine's name."""
    address: str
    """The address at which Gloo listens; "" if that is not known."""
    problem: str | None
    """Why this rank cannot connect to others; None if it can."""


def own_card(files: int) -> Card:
    """The card of this process, which is going to open ``files`` files and sockets."""
    problem = None
    try:
        check_open_files(files)
    except OSError as error:
        problem = str(error)
    return Card(machine.identity(), socket.gethostname(), gloo_address(), problem)


def check_cards(cards: Sequence[Card]) -> None:
    """Checks the cards of all ranks.

    Raises:
        ValueError: a rank cannot connect; or ranks are on several machines, and Gloo of one listens at a loopback
            address, which other machines do not reach.
    """
    several = len({card.machine for card in cards}) > 1
    for rank, card in enumerate(cards):
        if card.problem is not None:
            raise ValueError(f"rank {rank}: {card.problem}")
        if several and card.address and ipaddress.ip_address(card.address).is_loopback:
            raise ValueError(
                f"rank {rank} on {card.host}: expected an address that other machines reach, found that Gloo listens "
                f"at {card.address}; set GLOO_SOCKET_IFNAME there to the name of a network interface, such as eth0"
            )


def check_open_files(files: int) -> int:
    """Checks that this process may open ``files`` files and sockets more; returns its limit of open files.

    Raises:
        OSError: the limit is too low.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = machine.open_files() + files + _OTHER_FILES
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise OSError(f"open files: expected a limit of at least {needed}, for {files} more, found {limit}; "
                      f"ulimit -n {needed} sets it")  # fmt: skip
    return limit


def gloo_address() -> str:
    """The address at which Gloo of this process listens: that of the interface that GLOO_SOCKET_IFNAME names ("" if it
    has no IPv4 address); else the first address of the host's name that belongs to this machine; else 127.0.0.1."""
    if names := os.environ.get("GLOO_SOCKET_IFNAME"):
        return _address_of(names.split(",")[0])
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.bind(address)
        except OSError:
            continue
        return str(address[0]).partition("%")[0]
    return "127.0.0.1"


def _address_of(interface: str) -> str:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])


T = TypeVar("T")


def rank_and_world() -> tuple[int, int]:
    """This process's rank and how many ranks torch.distributed has; 0 and 1 where it is not initialized."""
    known = dist.is_available() and dist.is_initialized()
    return (dist.get_rank(), dist.get_world_size()) if known else (0, 1)


def outcomes(
    make: Callable[[], T], gather: Callable[[Any], list[Any]]
) -> tuple[T | None, Exception | None, list[str | None]]:
    """Calls ``make()`` on all ranks: its result, the error that it raised here, and the errors of all ranks as texts.
    ``gather``: returns the values of all ranks."""
    made, error = None, None
    try:
        made = make()
    except Exception as found:
        error = found
    return made, error, gather(None if error is None else f"{type(error).__name__}: {error}")


class Rendezvous:
    """The ranks of a run, in a Gloo group of their own; without a group for a single rank. All ranks make it together.

    Every method except :meth:`lost` and :meth:`fail` is called by one thread, in the same order on all ranks.

    Args:
        rank, world: of torch.distributed.
        timeout: seconds after which a rank that does not answer is an error.

    Raises:
        RuntimeError: a rank does not come, or ends in the meantime; the message names it.
        ValueError: on all ranks, if one of them cannot connect to the others: :func:`check_cards`.
    """

    def __init__(self, rank: int, world: int, timeout: float) -> None:
        self.rank, self.world, self._timeout = rank, world, timeout
        self._liveness: Liveness | None = None
        self._exchange = Exchange(None, 1, 0)
        self._topics = 0
        self._has_lost = False  # whether a collective failed because of another rank
        self.machines = [machine.identity()]
        """The machine of each rank: :func:`torch_gnnscale.machine.identity`."""
        if world == 1:
            return
        connections = world if rank == 0 else 1  # to the store, which rank 0 may keep
        own = own_card(_files(range(world)) + connections)
        liveness = self._liveness = Liveness(rank, world, timeout)
        try:
            cards = [Card(*card) for card in liveness.come(own)]
            check_cards(cards)
            group = liveness.together(lambda: _group(list(range(world)), timeout))
        except BaseException:
            liveness.close()
            raise
        self.machines = [card.machine for card in cards]
        self._exchange = self._exchange_over(group, world, rank)

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, which pickle takes. Raises RuntimeError, which names the rank, if one has ended."""
        try:
            return self._exchange.objects(value)
        except Broken as error:
            raise RuntimeError(self.lost(error)) from error

    def all_made(self, make: Callable[[], T]) -> T:
        """Calls ``make()``; returns its result when the call has succeeded on all ranks.

        Args:
            make: may raise any Exception.

        Raises:
            ValueError: on all ranks, if ``make`` failed on one of them, which the message names. A rank on which it
                raised something else than OSError, ValueError or MemoryError raises that.
            RuntimeError: a rank has ended; the message names it.
        """
        made, error, texts = outcomes(make, self.gather)
        if self.world == 1 and error is not None:
            raise error
        if error is not None and not isinstance(error, (OSError, ValueError, MemoryError)):
            raise error
        for rank, text in enumerate(texts):
            if text is not None:
                raise ValueError(f"rank {rank}: {text}") from error
        assert made is not None
        return made

    def refuse(self, why: str) -> None:
        """In place of the :meth:`all_made` or :meth:`groups` to which the other ranks come: they raise its ValueError.
        ``why``: the error of this rank, which it raises itself."""
        with contextlib.suppress(RuntimeError):  # they are gone
            self.gather(why)

    def groups(self, of_ranks: list[list[int]], backend: str = "gloo") -> list[dist.ProcessGroup | None]:
        """A new group for each list of ranks, None for a single rank. Errors as of :meth:`all_made`."""
        if self._liveness is None:
            return [None] * len(of_ranks)
        own = [ranks for ranks in of_ranks if self.rank in ranks]
        self.all_made(lambda: check_open_files(sum(map(_files, own))))
        return self._liveness.together(lambda: [_group(ranks, self._timeout, backend) for ranks in of_ranks])

    def exchanges(self, grid: Grid, transport: Transport) -> tuple[Exchange, Exchange, Exchange | None]:
        """Exchanges over all ranks; over those of this one's column of a grid, by part; and over these again, if
        ``transport`` is a group for rows, in that. Errors as of :meth:`all_made`."""
        every, columns = list(range(grid.ranks)), [grid.column(copy) for copy in range(grid.copies)]
        alone, own = grid.copies == 1, grid.copy(self.rank)
        place = grid.parts, grid.part(self.rank), columns[own]
        groups = self.groups([every] if alone else [every, *columns])
        of_all = self._exchange_over(groups[0], grid.ranks, self.rank)
        of_column, of_rows = self._exchange_over(groups[0 if alone else 1 + own], *place), None
        of_all.board = board = self.board([every])
        of_column.board = board if columns == [every] else self.board(columns)
        if isinstance(transport, RowGroup):
            of_rows = self._exchange_over(self.groups(columns, transport.backend)[own], *place)
        return of_all, of_column, of_rows

    def row_exchange(self, grid: Grid) -> Exchange:
        """An exchange over the ranks of this one's row of a grid, by copy. Errors as of :meth:`all_made`."""
        groups = self.groups([grid.row(part) for part in range(grid.parts)])
        part = grid.part(self.rank)
        return self._exchange_over(groups[part], grid.copies, grid.copy(self.rank), grid.row(part))

    def _exchange_over(self, group: dist.ProcessGroup | None, *place: Any) -> Exchange:
        made = Exchange(group, *place)
        if self._liveness is not None:
            made.waiting = self._liveness.waiting
        return made

    def board(self, of_ranks: list[list[int]]) -> Board | None:
        """A board for each list of ranks; returns that of this rank. None if the ranks of its list are not on one
        machine, or cannot share memory. Errors as of :meth:`gather`."""
        ranks = next(ranks for ranks in of_ranks if self.rank in ranks)
        wanted = len(ranks) > 1 and len({self.machines[rank] for rank in ranks}) == 1
        memory = _board_memory(len(ranks)) if wanted and self.rank == ranks[0] else None
        handle = self.gather(None if memory is None else pickle.dumps(memory))[ranks[0]]
        if memory is None and handle is not None:
            memory = _opened(handle)
        have = self.gather(memory is not None)
        if memory is None:
            return None
        if not all(have[rank] for rank in ranks):
            memory.close()
            return None
        return Board(memory, len(ranks), ranks.index(self.rank))

    def topic(self) -> int:
        """A new number, equal on all ranks, for something that may fail on its own: ``about`` of :meth:`fail`."""
        self._topics += 1
        return self._topics

    def fail(self, why: str, about: int = 0) -> None:
        """Tells the other ranks why this one fails, before it ends its groups.

        Args:
            why: the text that the others' errors show.
            about: what fails: a :meth:`topic`; or 0, everything that the ranks do together.
        """
        if self._liveness is not None:
            with contextlib.suppress(RuntimeError):  # no thread can be started any more, or there is no store
                self._liveness.say(why, about)

    def lost(self, error: Broken, about: int = 0, waited_for: str = "") -> str:
        """Why a collective of these ranks failed. Every rank on which it failed calls this.

        Args:
            error: of the collective.
            about: as in :meth:`fail`.
            waited_for: what this rank does in the collective.

        Returns:
            A text that names a rank that said why it failed; if none did, the ranks that are gone; if none are, the
            ranks that did not come, or what each rank waited for.
        """
        liveness = self._liveness
        if liveness is None:
            return str(error)
        self._has_lost = True
        liveness.say("", about, waited_for)
        heard = liveness.heard(about)
        if not any(heard.values()):
            if gone := liveness.gone():
                return f"{gone}: {error}"
            heard = liveness.heard(about)  # by now the others have said something, too
        for rank, why in heard.items():
            if why:
                return f"rank {rank}: {why}"
        elsewhere = ", ".join(str(rank) for rank in range(self.world) if rank not in heard)
        if elsewhere:
            found = (
                f"rank {elsewhere} did not come within {self._timeout:g} seconds to what the others do together "
                f"(timeout=; a rank that is busy for longer needs a larger one)"
            )
            liveness.conclude(found, about)
        else:  # perhaps this rank came too late, to what the others have ended
            found = liveness.concluded(about) or _apart(liveness.waited(about)) or "a rank failed"
        return f"{found}: {error}"

    def leave(self, why: str) -> None:
        """Called instead of further calls when an error of this rank ends what the ranks do together: those that
        wait for it raise an error with its text at once. If the ranks were lost before, they know why."""
        if not self._has_lost:
            self.fail(why)
        self._end()

    def close(self) -> None:
        """Ends the group, and this rank's answers."""
        self._end()
        if self._liveness is not None:
            self._liveness.close()

    def _end(self) -> None:
        end_groups([self._exchange])


def _apart(waited: dict[int, str]) -> str:
    """What ranks waited for, if it was not the same; else ""."""
    if len(purposes := sorted(set(waited.values()))) < 2:
        return ""
    found = []
    for purpose in purposes:
        ranks = ", ".join(str(rank) for rank, of_rank in waited.items() if of_rank == purpose)
        found.append(f"rank {ranks} waited for the others in {purpose!r}")
    return "; ".join([*found, "did one of them leave out a call, such as a backward pass?"])


def _files(ranks: Sequence[int]) -> int:
    """How many files and sockets a Gloo group of these ranks opens on each: a socket to each other rank, one that
    listens, and three more."""
    return 0 if len(ranks) == 1 else len(ranks) + 3


def end_group(group: dist.ProcessGroup) -> None:
    """Destroys a group; some of its ranks may be gone."""
    if dist.is_initialized():
        with contextlib.suppress(Exception):
            dist.destroy_process_group(group)


def end_groups(exchanges: Sequence[Exchange]) -> None:
    """Destroys the groups of exchanges."""
    groups = {exchange.group for exchange in exchanges if exchange.group is not None}
    for exchange in exchanges:
        exchange.group = exchange.board = None
    while groups:  # pop, because the others notice the end only when this rank's last reference to a group is gone
        end_group(groups.pop())


def _group(ranks: list[int], timeout: float, backend: str = "gloo") -> dist.ProcessGroup | None:
    """A group of these ranks, None for a single rank. All ranks call it for all groups, in the same order."""
    return None if len(ranks) == 1 else dist.new_group(ranks, timedelta(seconds=timeout), backend)


def _board_memory(ranks: int) -> HostMemory | None:
    """Memory for the board of so many ranks; None if there is none."""
    try:
        return HostMemory(8 * ops.board_size(ranks), "board")
    except (MemoryError, OSError, RuntimeError):
        return None


def _opened(handle: bytes) -> HostMemory | None:
    """The memory that another rank pickled; None if this process cannot open it."""
    try:
        return pickle.loads(handle)
    except (MemoryError, OSError, RuntimeError):
        return None
