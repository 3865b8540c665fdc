"""Which ranks open the same files, so that the first of them alone does what is needed once per machine."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from pathlib import Path

from .._warn import warn
from ..partition import open_parts
from ..partition.staging import network_file_system, stage
from ..ranks import Consecutive
from .grid import Grid
from .meeting import Meeting


def is_first(values: Sequence[Hashable], rank: int) -> bool:
    """Whether no rank before this one has an equal value."""
    return values.index(values[rank]) == rank


def places(path: Path, meeting: Meeting) -> list[Hashable]:
    """A value for each rank: (machine, device, inode) of ``path``. Those of two ranks are equal if they are on the same
    machine and the path is the same file or folder for both."""
    try:
        found = os.stat(path)
        own = (found.st_dev, found.st_ino)
    except OSError:  # opening the path raises the error
        own = (-1, meeting.rank)
    return [(machine, *entry) for machine, entry in zip(meeting.machines, meeting.gather(own), strict=True)]


def staged(path: Path, to: Path, meeting: Meeting, verify: bool, consecutive: Consecutive) -> Path:
    """The directory of parts to open in place of ``path``: a copy below ``to``, made once per machine.

    ``consecutive``: of the ranks' grid.

    Raises:
        ValueError: on all ranks, if one of them cannot copy, or finds damaged files.
    """

    def made() -> Path:
        to.mkdir(parents=True, exist_ok=True)
        return to

    where = places(meeting.all_made(made), meeting)

    def copied() -> Path:
        if not is_first(where, meeting.rank):
            return to
        with open_parts(path, verify=False) as parts:
            grid = Grid(meeting.world, parts.book.num_parts, consecutive)
        return stage(path, to, [grid.part(rank) for rank, of in enumerate(where) if of == where[meeting.rank]], verify)

    copies = meeting.gather(str(meeting.all_made(copied)))
    return Path(copies[where.index(where[meeting.rank])])


def warn_of_network(path: Path, where: Sequence[Hashable], meeting: Meeting) -> None:
    """Warns, once per machine, if a directory of parts lies on a network file system."""
    if is_first(where, meeting.rank) and path.exists() and (kind := network_file_system(path)):
        warn(f"{path}: expected a disk of this machine, found a file system of type {kind}, from which pages come when "
             f"they are first touched; open_part(..., stage=DIR), or gnnscale train --stage DIR, copies what this "
             f"machine needs to its folder DIR")  # fmt: skip
