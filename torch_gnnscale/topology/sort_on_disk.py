"""CSC graphs larger than memory: built on disk, in bounded memory.

The edges are read once, in chunks, and written to temporary files, one per range of destinations. Then each range is
sorted in memory and appended to the saved graph; a range that is larger than the memory given is first divided into
smaller ranges. Neither a COO nor a permutation of all edges ever exists.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor
from torch_geometric.typing import EdgeType
from tqdm import tqdm

from .. import files, ops
from ..memory import format_bytes
from ..ops.arguments import check_int
from .csc import CHUNK
from .graph_store import KIND, GraphStore, relation_entry

_SORT_BYTES = 40  # of memory per edge, while its range is sorted
_NODE_BYTES = 64  # of memory per destination, while its range is sorted
_MAX_RANGES = 256  # written at the same time; each has up to two open files
_INT32_MAX = torch.iinfo(torch.int32).max
_NONE = torch.empty(0, dtype=torch.int64)
"""No degrees, no sources and no ids."""


class _Range:
    """The edges whose destinations are in [first, first + width), in temporary files, in the order of the input; no
    files without edges."""

    def __init__(self, folder: Path, first: int, width: int, dtype: torch.dtype, with_ids: bool) -> None:
        self.first, self.width, self.dtype = first, width, dtype
        self.num_edges = 0
        self._ends = folder / f"{first}_{width}.ends"
        self._ids = folder / f"{first}_{width}.ids" if with_ids else None
        self._streams: list[BinaryIO] = []

    def append(self, ends: Tensor, ids: Tensor | None) -> None:
        """Writes edges. ``ends``: sources and destinations, [m, 2]; ``ids``: [m], or None if no ids are kept."""
        self.num_edges += len(ends)
        if not self._streams:
            for file in self._files():
                self._streams.append(file.open("wb"))
        for stream, rows in zip(self._streams, (ends, ids), strict=False):
            assert rows is not None
            stream.write(rows.contiguous().numpy().data)

    def read(self, at: int, count: int) -> tuple[Tensor, Tensor | None]:
        """The ends [count, 2] and the ids [count] of the edges at positions [at, at + count)."""
        size = self.dtype.itemsize
        dtype = torch.empty(0, dtype=self.dtype).numpy().dtype
        ends = torch.from_numpy(np.fromfile(self._ends, dtype, 2 * count, offset=2 * size * at)).view(-1, 2)
        if self._ids is None:
            return ends, None
        return ends, torch.from_numpy(np.fromfile(self._ids, np.int64, count, offset=8 * at))

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def remove(self) -> None:
        for file in self._files() if self._streams else []:
            file.unlink()

    def _files(self) -> list[Path]:
        return [file for file in (self._ends, self._ids) if file is not None]


class _Sorter:
    """Divides edges into ranges of destinations until each range can be sorted in memory."""

    def __init__(self, folder: Path, num_src: int, dtype: torch.dtype, with_ids: bool, memory: int) -> None:
        self.folder, self.num_src, self.dtype, self.with_ids = folder, num_src, dtype, with_ids
        self.most_edges, self.most_nodes = max(1, memory // _SORT_BYTES), max(1, memory // _NODE_BYTES)

    def divide(
        self, chunks: Iterable[tuple[Tensor, Tensor | None]], first: int, width: int, num_edges: int | None
    ) -> list[_Range]:
        """Writes edges to smaller ranges.

        Args:
            chunks: ends [m, 2] and ids [m] of edges whose destinations are in [first, first + width).
            first, width: see ``chunks``.
            num_edges: how many edges there are, at least about; None if nobody knows.
        """
        of_edges = _MAX_RANGES if num_edges is None else math.ceil(2 * num_edges / self.most_edges)
        wanted = max(of_edges, math.ceil(width / self.most_nodes))
        shift = 0
        while (width - 1) >> shift >= min(max(wanted, 1), _MAX_RANGES):
            shift += 1
        ranges = []
        for begin in range(0, width, 1 << shift):
            size = min(1 << shift, width - begin)
            ranges.append(_Range(self.folder, first + begin, size, self.dtype, self.with_ids))
        try:
            for ends, ids in chunks:
                part = (ends[:, 1] - first) >> shift
                ptr, entries = ops.coo_to_csc(ends[:, 0], part, self.num_src, len(ranges))
                by_range = entries[:, 1]
                ends, ids = ops.gather_rows(ends, by_range), None if ids is None else ops.gather_rows(ids, by_range)
                bounds = ptr.tolist()
                for target, begin, end in zip(ranges, bounds[:-1], bounds[1:], strict=True):
                    if end > begin:
                        target.append(ends[begin:end], None if ids is None else ids[begin:end])
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            most = len(ranges) * (2 if self.with_ids else 1)
            raise OSError(error.errno, f"expected to open {most} files at a time, found a smaller limit (ulimit -n, or "
                          f"more memory for the sort)", str(self.folder.parent)) from error  # fmt: skip
        finally:  # also because removing the folder of an attempt that failed opens it
            for target in ranges:
                target.close()
        return ranges

    def sorted(self, ranges: list[_Range]) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """The pieces of the CSC, by rising destination: the degrees of the destinations that end in the piece, and the
        sources and ids of its edges."""
        left = ranges[::-1]
        while left:
            part = left.pop()
            if part.num_edges == 0:
                for count in _sizes(part.width, min(self.most_nodes, CHUNK)):
                    yield torch.zeros(count, dtype=torch.int64), _NONE, self._no_ids()
            elif part.width > 1 and (part.num_edges > self.most_edges or part.width > self.most_nodes):
                chunks = (part.read(at, count) for at, count in _steps(part.num_edges))
                left += self.divide(chunks, part.first, part.width, part.num_edges)[::-1]
            elif part.num_edges > self.most_edges:  # of one destination: already in order
                for at, count in _steps(part.num_edges):
                    ends, ids = part.read(at, count)
                    yield _NONE, ends[:, 0], ids
                yield torch.tensor([part.num_edges]), _NONE, self._no_ids()
            else:
                ends, ids = part.read(0, part.num_edges)
                ptr, entries = ops.coo_to_csc(ends[:, 0], ends[:, 1] - part.first, self.num_src, part.width)
                ids = None if ids is None else ops.gather_rows(ids, entries[:, 1])
                yield ptr.diff(), entries[:, 0], ids
                del ptr, entries, ends, ids
                ops.pool_trim()
            part.remove()

    def _no_ids(self) -> Tensor | None:
        return _NONE if self.with_ids else None


def _steps(total: int) -> Iterator[tuple[int, int]]:
    return ((at, count) for at, count in zip(range(0, total, CHUNK), _sizes(total, CHUNK), strict=True))


def _sizes(total: int, step: int) -> Iterator[int]:
    return (min(step, total - at) for at in range(0, total, step))


def build_on_disk(
    path: str | os.PathLike,
    chunks: Iterable[Tensor],
    size: int | tuple[int, int],
    *,
    edge_type: EdgeType | None = None,
    edge_ids: bool = True,
    num_edges: int | None = None,
    memory: int = 1 << 30,
    progress: bool = False,
) -> GraphStore:
    """Writes the CSC of a graph of one relation into a new directory, and opens it memory-mapped.

    The graph equals that of :meth:`CSC.from_edge_index` on all edges at once. Needs ``memory`` bytes and a few hundred
    MB of memory, for any number of edges and nodes. On disk the graph takes 8 bytes per node and 4 per edge (8 with
    ids, 12 above 2^31 edges); while it is built, temporary files take another 8 per edge (16 with ids; above 2^31
    nodes, twice as much).

    Args:
        path: the directory; it appears when it is complete.
        chunks: the edges in their order: int32 or int64, shape [2, any] each.
        size: number of nodes, or of (sources, destinations).
        edge_type: the relation of a graph with types; None: a homogeneous graph.
        edge_ids: keep the way back to the input's edges; without, an edge's id is its position in the CSC.
        num_edges: about how many edges there are; decides how many temporary files are written. None: 256 ranges.
        memory: bytes that sorting may use.
        progress: show progress bars, if stderr is a terminal.

    Raises:
        FileExistsError: ``path`` exists and is not an empty directory.
        TypeError, ValueError, IndexError: wrong dtype or shape, an id out of range.
        OSError: a file that cannot be written; less space on the disk than the column pointers of the nodes take.
    """
    num_src, num_dst = (check_int("size", count) for count in (size if isinstance(size, tuple) else (size, size)))
    check_int("memory", memory, 1)
    files.check_name(edge_type)
    _check_space(Path(path).resolve(), num_dst)
    dtype = id_dtype(max(num_src, num_dst))  # of both ends, while they are sorted
    with files.creating(path) as folder:
        with tempfile.TemporaryDirectory(prefix="edges-", dir=folder) as temporary:
            sorter = _Sorter(Path(temporary), num_src, dtype, edge_ids, memory)
            with _bar("edges read", num_edges, progress) as bar:
                ranges = sorter.divide(_numbered(chunks, num_src, num_dst, dtype, edge_ids, bar), 0, num_dst, num_edges)
            total = sum(part.num_edges for part in ranges)
            with _bar("edges sorted", total, progress) as bar:
                entries = write_relation(
                    folder, 0, sorter.sorted(ranges), num_dst, total, id_dtype(num_src), edge_ids, bar.update
                )
        files.finish(folder, KIND, entries, {"relations": [relation_entry(edge_type, num_src, num_dst, total)]})
    return GraphStore.open(path, verify=False)


def _check_space(path: Path, num_dst: int) -> None:
    """Raises OSError for more destinations than the disk has room for."""
    disk = next(folder for folder in (path, *path.parents) if folder.exists())
    needed, free = 8 * (num_dst + 1), shutil.disk_usage(disk).free
    if needed > free:
        text = f"{num_dst:,} nodes take {format_bytes(needed)} of column pointers, and {format_bytes(free)} are free"
        raise OSError(errno.ENOSPC, text, str(path))


def id_dtype(count: int) -> torch.dtype:
    """The dtype of ids below ``count``."""
    return torch.int32 if count <= _INT32_MAX else torch.int64


def _bar(title: str, total: int | None, shown: bool) -> tqdm:
    """A bar that counts edges; on a terminal only."""
    return tqdm(total=total, desc=title, unit=" edges", unit_scale=True, disable=None if shown else True)


def _numbered(
    chunks: Iterable[Tensor], num_src: int, num_dst: int, dtype: torch.dtype, edge_ids: bool, bar: tqdm
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Checked chunks as ends [m, 2] and ids [m]."""
    total = 0
    for edges in chunks:
        if not isinstance(edges, Tensor) or edges.dtype not in ops.ID_DTYPES:
            found = edges.dtype if isinstance(edges, Tensor) else type(edges).__name__
            raise TypeError(f"chunks: expected int32 or int64 tensors, found {found}")
        if edges.dim() != 2 or edges.size(0) != 2:
            raise ValueError(f"chunks: expected shape (2, edges), found {tuple(edges.shape)}")
        for name, ids, limit in (("source", edges[0], num_src), ("destination", edges[1], num_dst)):
            if (at := ops.first_outside(ids, limit)) >= 0:
                raise IndexError(
                    f"edge {total + at}: {name} {int(ids[at])} is out of range: expected nodes in [0, {limit})"
                )
        for part in edges.split(CHUNK, dim=1):
            count = part.size(1)
            yield part.t().to(dtype).contiguous(), torch.arange(total, total + count) if edge_ids else None
            total += count
            bar.update(count)


def write_relation(
    folder: Path,
    number: int,
    pieces: Iterable[tuple[Tensor, Tensor, Tensor | None]],
    num_dst: int,
    total: int,
    dtype: torch.dtype,
    edge_ids: bool,
    written: Callable[[int], object],
) -> dict[str, dict]:
    """The arrays of a saved graph's relation, as :meth:`GraphStore.save` lays them out.

    Args:
        folder: the directory.
        number: of the relation, from 0.
        pieces: of the CSC, by rising destination: the degrees of the destinations that end in the piece, and the
            sources and ids of its edges.
        num_dst: number of destinations.
        total: number of edges.
        dtype: of the sources.
        edge_ids: whether the pieces have ids.
        written: called with the number of edges of each piece.

    Returns:
        The entries of the manifest, by name.
    """
    together = edge_ids and (dtype == torch.int64 or total <= _INT32_MAX)
    names: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {f"{number}_colptr": (torch.int64, (num_dst + 1,))}
    if together:
        names[f"{number}_edges"] = (dtype, (total, 2))
    else:
        names[f"{number}_row"] = (dtype, (total,))
        if edge_ids:
            names[f"{number}_edge_id"] = (torch.int64, (total,))
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(files.ArrayWriter(folder / f"{name}.npy", *array))
            for name, array in names.items()
        }
        last = torch.zeros(1, dtype=torch.int64)
        writers[f"{number}_colptr"].append(last)
        for degrees, row, ids in pieces:
            if len(degrees):
                colptr = last + degrees.cumsum(0)
                writers[f"{number}_colptr"].append(colptr)
                last = colptr[-1:].clone()
            if together:
                assert ids is not None
                writers[f"{number}_edges"].append(torch.stack([row.to(dtype), ids.to(dtype)], dim=1))
            else:
                writers[f"{number}_row"].append(row.to(dtype))
                if ids is not None:
                    writers[f"{number}_edge_id"].append(ids)
            written(len(row))
    return {name: writer.entry for name, writer in writers.items()}
