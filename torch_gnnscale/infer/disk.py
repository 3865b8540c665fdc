"""Rows of nodes between the stages of an inference, and its results: in files of a folder, from which it resumes; over
ranks in a folder for each part, and what puts them together."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from .. import files, ops
from ..memory import format_bytes
from ..ops.arguments import as_ids, as_tensor
from .look import difference
from .plan import StagePlan, Table
from .stage import Places, Rows
from .staged_graph import StagedGraph

KIND = "embeddings"
_PROGRESS, _LOCK, _PARTIAL = "progress.json", ".partial-lock", ".partial-"
_SECONDS = 10.0
"""The least time between two notes of the progress. It is ten times as long as writing a note took, if that is more."""


class Needed(NamedTuple):
    """What a folder needs of its disk."""

    folder: str
    disk: int
    """The number of the disk on its machine."""
    size: int
    """Bytes."""
    there: int
    """Bytes of them that it has."""


def check_space(of_folders: Sequence[Needed], own: Needed) -> None:
    """Raises OSError unless the disk of ``own`` has place for all folders of a machine that lie on it."""
    same = [needed for needed in of_folders if needed.disk == own.disk]
    size, free = sum(of.size for of in same), shutil.disk_usage(own.folder).free + sum(of.there for of in same)
    if size > free:
        found = f"expected {format_bytes(size)} for rows of nodes, found {format_bytes(free)} free"
        raise OSError(errno.ENOSPC, found, own.folder)


def missing(folder: Path) -> list[Path]:
    """The folder and those above it that are not there, the folder first."""
    return [path for path in (folder, *folder.absolute().parents) if not path.exists()]


class DiskRows(Rows):
    """:class:`Rows` in a folder. A process that is killed at any moment leaves a folder with which another one goes on;
    one that is refused before its first stage leaves nothing.

    Args:
        folder: a new or empty directory, or one in which the same inference was begun or finished.
        fingerprint: what the results depend on, in values that JSON keeps.
        ids: by type, the user's ids of the results, which are written beside them; None: they are not.
        new: what :func:`missing` returned before any rank made a folder; by default, what it returns now.

    Raises:
        FileExistsError: the folder holds something else.
        ValueError: another inference was begun or finished in it; the message says what differs.
        BlockingIOError: another process writes into it.
        OSError: the disk has too little space.
    """

    def __init__(
        self, plan: StagePlan, graph: StagedGraph, places: Mapping[Any, Places] | None, folder: Path,
        fingerprint: dict[str, Any], ids: Mapping[Any, Tensor] | None = None, new: Sequence[Path] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(plan, graph, places)
        self._folder, self._fingerprint, self._ids = folder, fingerprint, ids or {}
        self._files = {table: f"{_PARTIAL}rows{number}.npy" for number, table in enumerate(plan.tables)}
        self._names = {node_type: result_name(node_type) for node_type in plan.results}
        self._files |= {table: f"{self._names[node_type]}.npy" for node_type, table in plan.results.items()}
        self._maps: dict[Table, np.memmap] = {}
        self._saved, self._took = time.monotonic(), 0.0
        self._new = missing(folder) if new is None else new
        self._lock = self._open()

    def _open(self) -> Any:
        """The lock of the folder; None if the results are there, which are only read."""
        folder = self._folder
        begun = (folder / _PROGRESS).exists()
        self.finished = not begun and (folder / files.MANIFEST).exists()
        """Whether the results are there."""
        if self.finished:
            self._compare(files.load(folder, KIND, verify=False)[1]["of"])
            return None
        if not begun:
            files.check_unused(folder)
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("w")
        try:
            self._take(lock, begun)
        except BaseException:  # an error that is kept would keep the lock
            lock.close()
            raise
        return lock

    def _take(self, lock: Any, begun: bool) -> None:
        folder = self._folder
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, "another process writes into it", str(folder)) from None
        if begun:
            with files.described(folder / _PROGRESS, "the progress of an inference"):
                progress = json.loads((folder / _PROGRESS).read_text())
                before, self.stage, self.batches = progress["of"], int(progress["stage"]), int(progress["batches"])
            self._compare(before)

    def _compare(self, before: dict[str, Any]) -> None:
        if (name := difference(before, self._fingerprint)) is not None:
            raise ValueError(
                f"out: expected a new folder, or one in which the same inference was begun, found another {name} in "
                f"{self._folder}"
            )

    def needed(self, peak: int) -> Needed:
        """What the folder needs for ``peak`` bytes of rows, what is in it already included."""
        there = sum(file.stat().st_blocks * 512 for file in self._folder.glob("*.npy"))
        of_ids = sum(ids.nbytes for ids in self._ids.values())
        return Needed(str(self._folder), self._folder.stat().st_dev, peak + of_ids, there)

    # Stages ##########################################################################################################

    def begin(self, stage: int) -> None:
        """Begins a stage; files that earlier stages wrote are opened. The progress is noted before the first
        file is made."""
        if not (self._folder / _PROGRESS).exists():
            self._save(stage, 0)
        for table, name in self._files.items():
            if table.last < stage and table not in self._plan.results.values():
                (self._folder / name).unlink(missing_ok=True)
            elif table.written < stage and table not in self._of:
                self._of[table] = self._make(table, self._shape(table))
        super().begin(stage)

    def done(self, batches: int) -> None:
        """Says that a batch is done and, now and then, notes it in the folder."""
        super().done(batches)
        if time.monotonic() - self._saved > max(_SECONDS, 10 * self._took):
            self._save(self.stage, batches)

    @override
    def completed(self, stage: int) -> None:
        self._save(stage + 1, 0)

    def finish(self) -> dict[Any, Tensor]:
        """Ends the inference; returns its results, memory-mapped, by type."""
        if not self.finished:
            entries = {}
            for node_type, table in self._plan.results.items():
                rows = self._of[table] if table in self._of else self._make(table, self._shape(table))
                entries[self._names[node_type]] = {
                    "dtype": str(table.dtype).removeprefix("torch."), "shape": list(rows.shape),
                    "crc32": files.block_checksums(rows),
                }  # fmt: skip
            for node_type, ids in self._ids.items():
                name = ids_name(self._names[node_type])
                with files.ArrayWriter(self._folder / f"{name}.npy", ids.dtype, tuple(ids.shape)) as writer:
                    writer.append(ids)
                entries[name] = writer.entry
            types = {self._names[node_type]: node_type for node_type in self._plan.results}
            files.finish(self._folder, KIND, entries, {"types": types, "of": self._fingerprint})
            (self._folder / _PROGRESS).unlink()
            (self._folder / _LOCK).unlink()
        arrays, meta = files.load(self._folder, KIND, verify=False)
        return {node_type: arrays[name] for name, node_type in meta["types"].items()}

    def close(self) -> None:
        """Lets go of the files, and lets others write into the folder, which goes if nothing was begun in it."""
        self._of.clear()
        self._maps.clear()
        if self._lock is None:
            return
        if not (self._folder / _PROGRESS).exists():
            (self._folder / _LOCK).unlink(missing_ok=True)
            with suppress(OSError):  # until one in which something is
                for made in self._new:
                    made.rmdir()
        self._lock.close()

    def _save(self, stage: int, batches: int) -> None:
        """Writes the progress, after all rows."""
        begin = time.monotonic()
        for table, rows in self._maps.items():
            if table.written == self.stage:
                rows.flush()
        content = {"of": self._fingerprint, "stage": stage, "batches": batches}
        partial = self._folder / f"{_PARTIAL}progress"
        with partial.open("w") as stream:
            json.dump(content, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(self._folder / _PROGRESS)
        self._saved = time.monotonic()
        self._took = self._saved - begin

    def _make(self, table: Table, shape: tuple[int, ...]) -> Tensor:
        """The rows of a file, which is new unless this or an earlier stage has written rows to it."""
        file = self._folder / self._files[table]
        if 0 in shape:
            rows = torch.empty(shape, dtype=table.dtype)
            with files.ArrayWriter(file, table.dtype, shape):
                return rows
        if table.written < self.stage or self.batches > 0:
            self._check_file(file, table, shape)
            mapped = np.lib.format.open_memmap(file, "r+")
        else:
            mapped = np.lib.format.open_memmap(file, "w+", files.stored_dtype(table.dtype), shape)
            _allocate(file)
        self._maps[table] = mapped
        return torch.from_numpy(mapped).view(table.dtype)

    def _check_file(self, file: Path, table: Table, shape: tuple[int, ...]) -> None:
        """Raises ValueError unless a file has the size and the header that this or an earlier stage gave it."""
        try:
            files.map_array(file, {"dtype": str(table.dtype).removeprefix("torch."), "shape": list(shape)})
        except (FileNotFoundError, ValueError) as error:
            raise ValueError(f"{error}; the inference cannot go on, delete {self._folder} to begin anew") from None

    def _drop(self, table: Table) -> None:
        super()._drop(table)
        self._maps.pop(table, None)
        (self._folder / self._files[table]).unlink()


def _allocate(file: Path) -> None:
    """Takes the space of a sparse file: a full disk is an OSError here, and a SIGBUS where rows are written."""
    if not hasattr(os, "posix_fallocate"):  # macOS
        return
    with file.open("r+b") as stream:
        try:
            os.posix_fallocate(stream.fileno(), 0, file.stat().st_size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # the file system has no such call
                raise OSError(error.errno, os.strerror(error.errno or 0), str(file)) from None


def ids_name(name: str) -> str:
    """The name of the file of ids beside a file of results. It is no type's file: the @ of a type is escaped."""
    return f"{name}@id"


def result_name(node_type: Any) -> str:
    """The name of a file of results, without its ending: "nodes" in a homogeneous graph, else the type, in which
    characters that a file's name may lack are escaped as in URLs."""
    return "nodes" if node_type is None else quote(str(node_type), safe="")


_OWN = ("partition", "graph", "rows")
"""Entries of a fingerprint that are a part's own."""


def part_folder(out: Path, number: int) -> Path:
    """The folder of a part's results."""
    return out / f"part-{number}"


def check_folder(out: Path, count: int) -> None:
    """Raises FileExistsError if ``out`` holds something else than the folders of ``count`` parts."""
    if out.exists() and not out.is_dir():  # in this order: other ranks may make the directory meanwhile
        raise FileExistsError(f"{out}: expected a new or an empty directory, found a file")
    if out.is_dir():
        known = {part_folder(out, part).name for part in range(count)}
        found = sorted({file.name for file in out.iterdir()} - known)
        if found:
            raise FileExistsError(
                f"{out}: expected a new or an empty directory, or one of an inference over {count} parts, found "
                f"{found[0]} in it"
            )


def _of_all(meta: dict[str, Any]) -> dict[str, Any]:
    """What the results of all parts of an inference depend on."""
    return {name: value for name, value in meta["of"].items() if name not in _OWN}


class Results:
    """The results of nodes of one type in the folders of all parts, memory-mapped.

    Args:
        ids: of each part, the user's ids of its rows, rising: int64, [m].
        rows: of each part: [m, ...].
    """

    def __init__(self, ids: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
        self.parts = list(zip(ids, rows, strict=True))
        """Of each part, the user's ids of its rows, rising, int64, [m], and the rows, [m, ...]."""
        self.shape: tuple[int, ...] = tuple(rows[0].shape[1:])
        """Of a row."""
        self.dtype = rows[0].dtype

    def __len__(self) -> int:
        return sum(len(ids) for ids, _ in self.parts)

    def __getitem__(self, ids: Any) -> Tensor:
        """The rows of nodes.

        Args:
            ids: the user's ids, repeats allowed: [n].

        Returns:
            [n, ...], in memory.

        Raises:
            IndexError: a node without a row.
        """
        wanted = as_ids("ids", as_tensor("ids", ids)).to(torch.int64)
        if wanted.dim() != 1:
            raise ValueError(f"ids: expected a vector, found shape {tuple(wanted.shape)}")
        found = torch.empty(len(wanted), *self.shape, dtype=self.dtype)
        left = torch.ones(len(wanted), dtype=torch.bool)
        for known, rows in self.parts:
            if len(known) == 0:
                continue
            at = torch.searchsorted(known, wanted).clamp_(max=len(known) - 1)
            here = (known[at] == wanted).nonzero().view(-1)
            found[here] = ops.gather_rows(rows, at[here]) if ops.can_gather_rows(rows) else rows[at[here]]
            left[here] = False
        if bool(left.any()):
            missing = int(left.nonzero()[0])
            raise IndexError(f"ids[{missing}] = {int(wanted[missing])}: expected a node with a result, found none")
        return found

    @property
    def ids(self) -> Tensor:
        """The user's ids of all nodes with a result, rising: int64, [n]."""
        return torch.cat([ids for ids, _ in self.parts]).sort().values

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows of shape {list(self.shape)} in {len(self.parts)} parts)"


def open_results(out: str | os.PathLike, verify: bool = True) -> Any:
    """Opens what :func:`infer` left in a folder over the parts of several ranks.

    Args:
        out: the folder of all parts' folders.
        verify: read everything once and compare checksums.

    Returns:
        A :class:`Results`; by node type in a graph with types.

    Raises:
        FileNotFoundError, ValueError: a part is missing or not finished, or a file is missing, truncated or corrupt; or
            the parts are not of one inference.
    """
    folder = Path(out)
    named = ((re.fullmatch(r"part-(\d+)", path.name), path) for path in folder.glob("part-*"))
    known = sorted((int(match[1]), path) for match, path in named if match is not None)
    if not known:
        raise FileNotFoundError(f"{folder}: expected the folders part-0, part-1, ..., found none")
    opened = {number: files.load(path, KIND, verify) for number, path in known}
    _, first = opened[known[0][0]]
    with files.described(known[0][1] / files.MANIFEST, "the results of a part"):
        (_, count, book), names = first["of"]["partition"], first["types"]
    if missing := [number for number in range(count) if number not in opened]:
        raise FileNotFoundError(f"{folder}: expected the folders of {count} parts, found none of part {missing[0]}")
    for number, (_, meta) in opened.items():
        with files.described(part_folder(folder, number) / files.MANIFEST, "the results of a part"):
            if meta["of"]["partition"] != [number, count, book] or meta["types"] != names:
                raise ValueError(f"part {meta['of']['partition'][:2]}, expected {[number, count]} and types {[*names]}")
            if (name := difference(_of_all(first), _of_all(meta))) is not None:
                raise ValueError(f"another {name} than of part {known[0][0]}")
    each = [opened[number][0] for number in range(count)]
    found = {
        node_type: Results([arrays[ids_name(name)] for arrays in each], [arrays[name] for arrays in each])
        for name, node_type in names.items()
    }
    return found[None] if list(found) == [None] else found
