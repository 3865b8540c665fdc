"""Which ranks open the same files, so that the first of them alone does what is needed once per machine."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from pathlib import Path

from .._warn import warn
from ..comm.mesh import Consecutive, Grid
from ..comm.rendezvous import Rendezvous
from ..partition import open_parts
from ..partition.staging import network_file_system, stage


def is_first(values: Sequence[Hashable], rank: int) -> bool:
    """Whether no rank before this one has an equal value."""
    return values.index(values[rank]) == rank


def places(path: Path, rendezvous: Rendezvous) -> list[Hashable]:
    """A value for each rank: (machine, device, inode) of ``path``. Those of two ranks are equal if they are on the same
    machine and the path is the same file or folder for both."""
    try:
        found = os.stat(path)
        own = (found.st_dev, found.st_ino)
    except OSError:  # opening the path raises the error
        own = (-1, rendezvous.rank)
    return [(machine, *entry) for machine, entry in zip(rendezvous.machines, rendezvous.gather(own), strict=True)]


def staged(path: Path, to: Path, rendezvous: Rendezvous, verify: bool, consecutive: Consecutive) -> Path:
    """The directory of parts to open in place of ``path``: a copy below ``to``, made once per machine.

    ``consecutive``: of the ranks' grid.

    Raises:
        ValueError: on all ranks, if one of them cannot copy, or finds damaged files.
    """

    def made() -> Path:
        to.mkdir(parents=True, exist_ok=True)
        return to

    where = places(rendezvous.all_made(made), rendezvous)

    def copied() -> Path:
        if not is_first(where, rendezvous.rank):
            return to
        with open_parts(path, verify=False) as parts:
            grid = Grid(rendezvous.world, parts.book.num_parts, consecutive)
        return stage(
            path, to, [grid.part(rank) for rank, of in enumerate(where) if of == where[rendezvous.rank]], verify
        )

    copies = rendezvous.gather(str(rendezvous.all_made(copied)))
    return Path(copies[where.index(where[rendezvous.rank])])


def warn_of_network(path: Path, where: Sequence[Hashable], rendezvous: Rendezvous) -> None:
    """Warns, once per machine, if a directory of parts lies on a network file system."""
    if is_first(where, rendezvous.rank) and path.exists() and (kind := network_file_system(path)):
        warn(f"{path}: expected a disk of this machine, found a file system of type {kind}, from which pages come when "
             f"they are first touched; open_part(..., stage=DIR), or gnnscale train --stage DIR, copies what this "
             f"machine needs to its folder DIR")  # fmt: skip
