"""The ranks of a run as a grid of parts and copies (matrix-based sampling, section 5.2), over what rows travel, and by
what ranks agree: headers of steps, a number for the type and width of rows, values that all must have alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor
from torch import distributed as dist

from .._user import warn
from ..ops.arguments import check_choice
from ..random import digest

Consecutive: TypeAlias = Literal["copies", "parts"]
"""What :attr:`Ranks.consecutive` may be."""


class Ranks(NamedTuple):
    """The ranks of a distributed run, of which this process is one."""

    rank: int
    world: int
    """How many ranks there are."""
    part: int = 0
    """The part that this rank holds."""
    parts: int = 1
    """How many parts there are; ``world`` is a multiple of it."""
    consecutive: Consecutive = "copies"
    """Which ranks have consecutive numbers: those that hold one part, or those that together hold all parts."""

    @property
    def grid(self) -> Grid:
        """All ranks."""
        return Grid(self.world, self.parts, self.consecutive)

    @property
    def copies(self) -> int:
        """How many ranks hold a part."""
        return self.grid.copies

    @property
    def copy(self) -> int:
        """Which of the ranks that hold its part this one is, from 0."""
        return self.grid.copy(self.rank)

    @property
    def alone(self) -> Ranks:
        """The same ranks, each of which holds a part that no other one holds: its share of its part."""
        return Ranks(self.rank, self.world, self.grid.shares().part(self.rank), self.world)


@dataclass(frozen=True)
class Grid:
    """P ranks that hold K parts, each part c = P / K times.

    A row of the grid is the c ranks that hold one part; a column is K ranks that together hold all parts.

    Args:
        ranks: P.
        parts: K.
        consecutive: which ranks have consecutive numbers: the ``copies`` of a part (rank = part * c + copy) or the
            ``parts`` of a column (rank = copy * K + part).

    Raises:
        ValueError: P is not a multiple of K.
    """

    ranks: int
    parts: int
    consecutive: Consecutive = "copies"

    def __post_init__(self) -> None:
        if self.parts < 1 or self.ranks < 1 or self.ranks % self.parts:
            raise ValueError(f"ranks: expected a multiple of {self.parts} parts, found {self.ranks} ranks")

    @property
    def copies(self) -> int:
        """c."""
        return self.ranks // self.parts

    def part(self, rank: int) -> int:
        """The part that a rank holds."""
        return rank // self.copies if self.consecutive == "copies" else rank % self.parts

    def copy(self, rank: int) -> int:
        """Which of the copies of its part a rank holds: the number of its column."""
        return rank % self.copies if self.consecutive == "copies" else rank // self.parts

    def rank(self, part: int, copy: int) -> int:
        """The rank that holds a copy of a part."""
        return part * self.copies + copy if self.consecutive == "copies" else copy * self.parts + part

    def ranks_of(self, rank: int) -> Ranks:
        """What a rank's stores say of the ranks."""
        return Ranks(rank, self.ranks, self.part(rank), self.parts, self.consecutive)

    def row(self, part: int) -> list[int]:
        """The ranks that hold a part, by copy."""
        return [self.rank(part, copy) for copy in range(self.copies)]

    def column(self, copy: int) -> list[int]:
        """Ranks that together hold all parts, by part."""
        return [self.rank(part, copy) for part in range(self.parts)]

    def shares(self) -> Grid:
        """The same ranks, each of which holds its share of its part alone: part ``p c + j`` is share j of part p."""
        return _Shares(self.ranks, self.ranks, of=self)


@dataclass(frozen=True)
class _Shares(Grid):
    of: Grid = field(kw_only=True)

    def part(self, rank: int) -> int:
        return self.of.part(rank) * self.of.copies + self.of.copy(rank)

    def copy(self, rank: int) -> int:
        return 0

    def rank(self, part: int, copy: int) -> int:
        return self.of.rank(*divmod(part, self.of.copies))


def check_one_machine(grid: Grid, machines: Sequence[str]) -> None:
    """Raises ValueError, equal on all ranks, unless the ranks of each column are on one machine; ``machines``: by
    rank."""
    for copy in range(grid.copies):
        column = grid.column(copy)
        if len({machines[rank] for rank in column}) > 1:
            raise ValueError(
                f"transport='memory': expected ranks {column} on one machine, found several; use transport='auto', or "
                f"consecutive='parts' if each machine has as many ranks as there are parts"
            )


class RowGroup(NamedTuple):
    """How rows of other parts come, where the thread that iterates exchanges them."""

    backend: str
    """Of torch.distributed."""
    device: torch.device
    """Where rows are sent from and arrive."""


TransportName: TypeAlias = Literal["auto", "gloo", "nccl", "memory"]
"""How rows travel between ranks: over Gloo or NCCL, or through memory of one machine; "auto": memory where it can be
had."""
TRANSPORTS = get_args(TransportName)
Transport: TypeAlias = TransportName | RowGroup
"""The argument ``transport`` of :func:`torch_gnnscale.distributed.open_part`."""


_EARLIER: dict[Any, str] = {None: "auto", "peers": "auto", "all_to_all": "all_to_all"}
"""Earlier names of transports of split models. With "all_to_all", rows go over NCCL where it can be had, else over
Gloo."""


def transport_named(transport: Any) -> Any:
    """One of ``TRANSPORTS``, or "all_to_all"; an earlier name warns. Raises ValueError for another one."""
    if transport not in _EARLIER:
        check_choice("transport", transport, TRANSPORTS)
        return transport
    if transport is not None:
        now = "'auto' or 'memory'" if transport == "peers" else "'gloo' or 'nccl'"
        warn(f"transport: expected one of {TRANSPORTS}, found {transport!r}, an earlier name of {now}", FutureWarning)
    return _EARLIER[transport]


def transport_of(transport: Transport) -> Transport:
    """How the ranks of parts exchange rows: a :class:`RowGroup` for "nccl", else what is given.

    Raises:
        ValueError: an unknown name; "nccl" without what it needs.
    """
    if isinstance(transport, RowGroup):
        return transport
    check_choice("transport", transport, TRANSPORTS)
    if transport != "nccl":
        return transport
    needed = {"GPU that torch sees": torch.cuda.is_available(), "NCCL in torch": dist.is_nccl_available()}
    if missing := [name for name, there in needed.items() if not there]:
        raise ValueError(f"transport='nccl': expected a {' and '.join(needed)}, found no {' and no '.join(missing)}")
    return RowGroup("nccl", torch.device("cuda", torch.cuda.current_device()))


# Agreement ############################################################################################################

COMPLETED = -1
"""In place of the batch after which a rank left an iteration: it left it after the last step."""


class Status(IntEnum):
    """What a rank says in a header."""

    GO = 0
    FAIL = 1
    STOP = 2


class Header(NamedTuple):
    """What one rank says. All ranks have the same but for ``status`` and ``number``."""

    status: int
    number: int
    """The number of the rank's batch."""
    iteration: int
    """The number of the iteration over the loader."""
    epoch: int
    first: int
    """The epoch's batch at which the iteration began."""
    step: int
    """The number of the step in the iteration, from 0."""
    left: int
    """The batch after which the rank left the iteration before, or ``COMPLETED``."""
    fingerprint: int
    """A hash of what decides the batches of the iteration: seed, inputs, options, partition book, versions."""


_ALIKE = {
    "iteration": "iteration",
    "epoch": "epoch",
    "first": "first batch",
    "step": "step",
    "left": "batch after which they left the last iteration (-1: all)",
}
"""Fields that all ranks must have alike, and what they are called in errors."""


def fingerprint_of(values: Mapping[str, Any]) -> int:
    """A hash of plain values by name, in 64 bits with a sign."""
    found = digest(repr(sorted(values.items())).encode())
    return found - (1 << 64) if found >> 63 else found


def check_positions(headers: Sequence[Header], expected: Sequence[int]) -> None:
    """Raises ValueError, equal on all ranks, unless the ranks are at the same step and make the batches of these
    numbers."""
    for attribute, name in _ALIKE.items():
        values = [getattr(header, attribute) for header in headers]
        if any(value != values[0] for value in values):
            raise ValueError(f"loader: expected all ranks at the same {name}, found {values}")
    numbers = [header.number for header in headers]
    if numbers != list(expected):
        raise ValueError(f"loader: expected the ranks to make batches {expected}, found {numbers}; iterate "
                         f"over a loader once at a time")  # fmt: skip


DTYPES = tuple(sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str))
"""All dtypes of torch, in the same order on all ranks."""


def kind_of(rows: Tensor | None) -> int:
    """A number for the type and the width of a tensor's rows; -1 if ``rows`` is not a tensor that has rows."""
    if not isinstance(rows, Tensor) or rows.dim() == 0:
        return -1
    return rows.shape[1:].numel() * len(DTYPES) + DTYPES.index(rows.dtype)


def kind_text(kind: int) -> str:
    """What a number of :func:`kind_of` means, in words."""
    if kind < 0:
        return "none"
    width, dtype = divmod(kind, len(DTYPES))
    return f"rows of {width} {dtype_text(dtype)}"


def check_kinds(purpose: str, kinds: Sequence[int]) -> None:
    """Raises ValueError unless all ranks exchange rows of one type and width; ``kinds``: what :func:`kind_of` said."""
    for rank, other in enumerate(kinds):
        if other != kinds[0]:
            raise ValueError(
                f"split: {purpose}: expected the same on all ranks, found {kind_text(kinds[0])} and on rank {rank} "
                f"{kind_text(other)}"
            )


def dtype_text(number: int) -> str:
    """The name of a type by its number in ``DTYPES``."""
    return str(DTYPES[number]).removeprefix("torch.")


def check_alike(of_ranks: Sequence[Mapping[str, Any]], ranks: str = "all ranks") -> None:
    """Raises ValueError, equal on all ranks, if the ranks have other values of a name. ``ranks``: which these are."""
    for name in dict.fromkeys(name for found in of_ranks for name in found):  # in one order on all ranks
        values = [found.get(name) for found in of_ranks]
        if any(value != values[0] for value in values):
            raise ValueError(f"{name}: expected the same on {ranks}, found {values}")
