"""Tables of text."""

from __future__ import annotations

from collections.abc import Sequence


def table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, one for each of ``lines``, whose cells are aligned on the right. All have as many cells."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
