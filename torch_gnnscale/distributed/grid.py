"""Ranks as a grid of parts and copies (matrix-based sampling, section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass

from ..ranks import Consecutive, Ranks


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
