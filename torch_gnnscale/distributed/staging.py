"""Copies of directories of parts on a machine's own disk, and which ranks open the same files: the first of them does
what is needed once per machine."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .. import files
from .._user import warn
from ..comm.mesh import Consecutive, Grid
from ..comm.rendezvous import Rendezvous
from ..partition import directory, open_parts
from ..remote import file_system, hiding_secrets, is_url

_NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs",
    "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
}  # fmt: skip
"""Types of file systems whose pages come over a network or from another process; "fuse.NAME" counts as "fuse"."""
_ROOT = Path("/")


def network_file_system(path: str | os.PathLike, root: Path = _ROOT) -> str | None:
    """The type of the file system on which a path lies, if it is a network file system; else None."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == wanted and source.split()[0].partition(".")[0] in _NETWORK:
            return source.split()[0]
    return None


class _Remote:
    """A directory of parts on a file system of fsspec."""

    def __init__(self, url: str) -> None:
        self._files, self._root = file_system(url)

    def sizes(self, name: str) -> dict[str, int]:
        """The bytes of a folder's files by their names; FileNotFoundError if there is none."""
        found = self._files.ls(f"{self._root}/{name}", detail=True, refresh=True)
        return {entry["name"].rsplit("/", 1)[-1]: entry["size"] for entry in found if entry["type"] == "file"}

    def get(self, name: str, file: str, to: Path) -> None:
        """Copies a file of a folder into a folder."""
        self._files.get_file(f"{self._root}/{name}/{file}", str(to / file))

    @contextmanager
    def described(self, to: Path) -> Iterator[Path]:
        """A directory below ``to`` that has the book and the mark of completeness."""
        with tempfile.TemporaryDirectory(prefix=".book-", dir=to) as there:
            for name in ("complete", "book"):
                (folder := Path(there) / name).mkdir()
                for file in self.sizes(name):
                    self.get(name, file, folder)
                files.verify(folder)
            yield Path(there)

    def checksum(self, name: str, to: Path) -> int:
        """The checksum of a folder's manifest."""
        with tempfile.TemporaryDirectory(prefix=".manifest-", dir=to) as there:
            self.get(name, files.MANIFEST, Path(there))
            return files.checksum(there)


class _Local:
    """A directory of parts that this machine sees; see :class:`_Remote`."""

    def __init__(self, path: str | os.PathLike) -> None:
        with open_parts(path, verify=False) as opened:
            self.path = opened.path

    def sizes(self, name: str) -> dict[str, int]:
        """The bytes of a folder's files by their names; FileNotFoundError if there is none."""
        return {file.name: file.stat().st_size for file in (self.path / name).iterdir()}

    def get(self, name: str, file: str, to: Path) -> None:
        """Copies a file of a folder into a folder."""
        shutil.copyfile(self.path / name / file, to / file)

    @contextmanager
    def described(self, to: Path) -> Iterator[Path]:
        """The directory itself."""
        yield self.path

    def checksum(self, name: str, to: Path) -> int:
        """The checksum of a folder's manifest."""
        return files.checksum(self.path / name)


def stage(
    path: str | os.PathLike, to: str | os.PathLike, parts: Iterable[int] | Callable[[int], Iterable[int]],
    verify: bool = True,
) -> Path:  # fmt: skip
    """Copies the parts that the ranks of a machine open; returns the directory to open in place of ``path``.

    The copy is ``to``/parts-FINGERPRINT. It has what all ranks need, and the given parts. Each of its folders appears
    when it is complete and its checksums were compared; folders that are there already are not copied again. If another
    process is copying to the same place, this one warns, and waits until it has done so, or has ended.

    Args:
        path: the directory of parts; or a URL of one that fsspec reads.
        to: a directory on a disk of this machine; made if it is missing.
        parts: the numbers of the parts to copy; or a function of the number of all parts that returns them.
        verify: also compare the checksums of folders that are there already.

    Raises:
        OSError: there is too little space, or a file cannot be copied.
        ValueError: ``to`` is ``path`` or lies below it; what is there is no copy.
        FileNotFoundError, ValueError: as :func:`open_parts`.
        ImportError: fsspec, or what it needs for such a URL, is missing.
    """
    with hiding_secrets([path]):
        return _copied(path, to, parts, verify)


def _copied(
    path: str | os.PathLike, to: str | os.PathLike, parts: Iterable[int] | Callable[[int], Iterable[int]], verify: bool
) -> Path:
    source = _Remote(str(path)) if is_url(path) else _Local(path)
    if isinstance(source, _Local) and Path(to).resolve().is_relative_to(source.path.resolve()):
        raise ValueError(f"to: expected a directory outside {path}, found {to}")
    Path(to).mkdir(parents=True, exist_ok=True)
    with source.described(Path(to)) as known:
        book, meta = directory.load_book(known)
        wanted = sorted(set(parts(book.num_parts) if callable(parts) else parts))
        copy = Path(to).resolve() / f"parts-{directory.fingerprint_of_parts(known):016x}"
    shared = [name for name in ("book", "ids", "graph", "attrs") if name == "book" or name in meta["folders"]]
    names = [*shared, *(directory.part_folder(copy, part).name for part in wanted), "complete"]
    with _alone(copy.with_suffix(".lock")):
        there = [name for name in names if (copy / name / files.MANIFEST).is_file()]
        for name in there:
            if files.checksum(copy / name) != source.checksum(name, Path(to)):
                raise ValueError(f"{copy / name}: expected a copy of {path}/{name}, found something else; remove it")
        if verify:
            for name in there:
                files.verify(copy / name)
        sizes = {name: source.sizes(name) for name in names if name not in there}
        if (needed := sum(sum(of.values()) for of in sizes.values())) > (free := shutil.disk_usage(to).free):
            raise OSError(f"{to}: expected {needed} bytes of free space for a copy of {path}, found {free}")
        for name, of in sizes.items():
            with files.creating(copy / name) as folder:
                for file in of:
                    source.get(name, file, folder)
                files.verify(folder)
    return copy


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """A context that one process of this machine at a time can be in for the same file, which is made and remains.

    Others can foresee the file's name: what is there is not written to, and no link is followed.

    Raises:
        OSError: the file is a link, or of another user.
    """
    try:
        lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(error.errno, "expected a file of this package, found a link", str(file)) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            warn(f"{file.parent}: another process copies the same parts there; waiting until it has ended")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)  # the lock ends with the process, too, however that ends


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


def staged(path: str | Path, to: Path, rendezvous: Rendezvous, verify: bool, consecutive: Consecutive) -> Path:
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
        of_machine = [rank for rank, of in enumerate(where) if of == where[rendezvous.rank]]

        def parts(count: int) -> list[int]:
            grid = Grid(rendezvous.world, count, consecutive)
            return [grid.part(rank) for rank in of_machine]

        return stage(path, to, parts, verify)

    copies = rendezvous.gather(str(rendezvous.all_made(copied)))
    return Path(copies[where.index(where[rendezvous.rank])])


def warn_of_network(path: Path, where: Sequence[Hashable], rendezvous: Rendezvous) -> None:
    """Warns, once per machine, if a directory of parts lies on a network file system."""
    if is_first(where, rendezvous.rank) and path.exists() and (kind := network_file_system(path)):
        warn(f"{path}: expected a disk of this machine, found a file system of type {kind}, from which pages come when "
             f"they are first touched; open_part(..., stage=DIR), or gnnscale train --stage DIR, copies what this "
             f"machine needs to its folder DIR")  # fmt: skip
