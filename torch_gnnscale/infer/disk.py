"""Rows of nodes between the stages of an inference, and its results: in files of a folder, from which it resumes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from .. import files
from ..memory import format_bytes
from ..nn.trial import agree
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


# What the results depend on ###########################################################################################

_SAMPLE = 1024
"""Nodes whose rows and edges are looked at."""
_VALUES = 256
"""Numbers of each type's output that are looked at."""
_OUTPUT = "output on a part of the graph"


def fingerprint(
    model: nn.Module, graph: StagedGraph, plan: StagePlan, nodes: Mapping[Any, Tensor] | None, **options: Any
) -> dict[str, Any]:
    """What the results depend on, each by the name that an error gives it: all parameters and buffers of the model, the
    layers that it calls, the numbers of nodes and edges and a sample of the edges and of the rows, the wanted nodes,
    the options, and some of the model's output on a small part of the graph. That output depends on all else: ``call``,
    code, and attributes of Python."""
    calls = [[call.title, call.level, str(call.outputs)] for call in plan.calls]
    samples = {t: _sample(size) + graph.first[t] for t, size in graph.sizes.items()}
    hop = graph.one_hop(samples)
    of_rows = of_edges = 0
    for store in graph.batch(hop, {}).stores:
        for name, value in sorted(store.items()):
            if isinstance(value, Tensor) and name in ("edge_index", "n_id", "e_id"):
                of_edges = files.bytes_checksum(value, of_edges)
            elif isinstance(value, Tensor):
                of_rows = files.bytes_checksum(value, of_rows)
    for ids in hop.nodes.values():
        of_edges = files.bytes_checksum(ids, of_edges)
    sizes = [[str(t), size] for t, size in graph.sizes.items()]
    edges = [[str(t), csc.num_edges] for t, csc in graph.columns.items()]
    return {
        "model": [of_model(model), calls], "graph": [sizes, edges, of_edges], "rows": of_rows,
        "nodes": of_nodes(nodes),
        "torch": str(torch.__version__), **options,
        _OUTPUT: {str(node_type): _values(rows) for node_type, rows in plan.sample.items()},
    }  # fmt: skip


def of_model(model: nn.Module) -> int:
    """A checksum of all parameters and buffers of a model, and of what ``repr`` says of it."""
    found = zlib.crc32(repr(model).encode())
    for name, value in sorted(model.state_dict().items()):
        found = files.bytes_checksum(value, zlib.crc32(name.encode(), found)) if isinstance(value, Tensor) else found
    return found


def of_nodes(nodes: Mapping[Any, Tensor] | None) -> list[Any] | None:
    """Number and checksum of the wanted nodes, by type."""
    return None if nodes is None else [[str(t), len(ids), files.bytes_checksum(ids, 0)] for t, ids in nodes.items()]


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What the first entry that differs is called, of two fingerprints; None if none does. Outputs may differ as those
    of sums in another order do: :func:`.agree`."""
    for name, value in now.items():
        if name == _OUTPUT:
            outputs = [{t: _tensor(*of) for t, of in of_types.items()} for of_types in (before.get(name, {}), value)]
            same = outputs[0].keys() == outputs[1].keys() and agree(*outputs)
        else:
            same = before.get(name) == value
        if not same:
            return name
    return None


def _values(rows: Tensor) -> tuple[str, list[Any]]:
    """Some of the numbers of a tensor, and their dtype."""
    flat = (torch.view_as_real(rows) if rows.is_complex() else rows).reshape(-1)
    chosen = torch.randperm(len(flat), generator=torch.Generator().manual_seed(0))[:_VALUES]
    return str(flat.dtype).removeprefix("torch."), flat[chosen].tolist()


def _tensor(dtype: str, values: list[Any]) -> Tensor:
    return torch.tensor(values, dtype=getattr(torch, dtype))


def _sample(size: int) -> Tensor:
    count = min(size, _SAMPLE)
    return torch.arange(count) * size // max(count, 1)
