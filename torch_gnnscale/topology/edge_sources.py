"""Edges in chunks: from files (.npy, parquet and text), or random ones, each a pure function of its seed."""

from __future__ import annotations

import os
import tokenize
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import ops
from .._library import needed
from ..ops.arguments import check_choice, to_int
from ..random import Purpose, batch_key
from .csc import CHUNK
from .edge_text import HEADERS, OF_WORDS, Columns, TextFormat, find_ends, find_format, first_refused, position

Source = str | os.PathLike | tuple[str | os.PathLike, str | os.PathLike]
_TEXT = (".csv", ".tsv", ".txt", ".edges")
_BLOCK = 1 << 20
"""Bytes that pyarrow parses at a time; larger ones take more memory and, where pages are new, time."""
_EDGES = 1 << 18
"""Of text, at least so many come at a time."""
_HEADER_ERRORS = (ValueError, EOFError, OSError, SyntaxError, tokenize.TokenError, RecursionError)
"""What NumPy raises for a file that is no .npy file of numbers."""


class Ends(NamedTuple):
    """The ids in one column of edges."""

    smallest: int = 0
    largest: int = -1
    """Below ``smallest`` if there are no edges."""
    file: Source = ""
    """The first file that has the largest id."""

    def with_ids(self, file: Source, ids: Tensor) -> Ends:
        """With those of further edges, of ``file``."""
        if not ids.numel():
            return self
        low, high = int(ids.min()), int(ids.max())
        smallest = low if self.largest < 0 else min(self.smallest, low)
        return self._replace(smallest=smallest) if high <= self.largest else Ends(smallest, high, file)


class EdgeFiles:
    """The edges of several files, one file after the other.

    Args:
        sources: files of edges: ``.npy`` of shape [2, E] or [E, 2] (2 x 2 is [2, E]), or a pair of ``.npy`` vectors
            (sources, destinations); ``.parquet``; text (``.csv``, ``.tsv``, ``.txt``, ``.edges``) in UTF-8. Text has
            an edge per line, after comment lines that begin with # and a header, where there are any. Ids are decimal,
            in text also hexadecimal (0x1f), below 2^63, and may be quoted. Parquet and text are read by pyarrow.
        columns: the names, or the positions from 0, of the columns of sources and of destinations, in parquet and text.
            By default those named as a pair of ``edge_columns.ENDS`` is (src and dst, ...), else a file's only two
            columns. In text without a header the first two columns count.
        header: whether the first line of text is a header. "auto": if it has the names that are given as ``columns``,
            or a pair of ``edge_columns.ENDS``; "yes"; "no". Every other line is an edge or an error.

    Raises:
        FileNotFoundError, TypeError, ValueError: an argument that is wrong, or a file that is missing or of another
            kind. What is wrong within a file is a ValueError when it is read, which names the file, and in text the
            line.
    """

    def __init__(self, sources: Sequence[Source], columns: Columns | None = None, header: str = "auto") -> None:
        if isinstance(sources, (str, os.PathLike)):
            raise TypeError(f"sources: expected a list of files, found {sources!r}")
        if columns is not None and (isinstance(columns, str) or len(columns) != 2 or columns[0] == columns[1]):
            raise ValueError(f"columns: expected two different names or positions, found {columns!r}")
        if columns is not None and not all(isinstance(column, (str, int)) for column in columns):
            raise TypeError(f"columns: expected names or positions, found {columns!r}")
        check_choice("header", header, HEADERS)
        self.sources, self.columns, self.header = list(sources), columns, header
        self._check_options()
        for source in self.sources:
            for file in source if isinstance(source, tuple) else (source,):
                path = Path(file)
                if path.is_dir():
                    raise ValueError(f"{path}: expected a file of edges, found a folder")
                if not path.is_file():
                    raise FileNotFoundError(f"{path}: not found")
                kinds = (".npy",) if isinstance(source, tuple) else (".npy", ".parquet", *_TEXT)
                if path.suffix not in kinds:
                    raise ValueError(f"{path}: expected a file of edges {kinds}, found {path.suffix!r}")
                named = [column for column in columns or () if position(column) is None]
                if path.suffix in _TEXT and named and header == "no":
                    raise ValueError(f"{path}: expected a header that names the columns {columns}, found header='no'")

    def _check_options(self) -> None:
        """Raises ValueError for options that no file reads."""
        kinds = {Path(source).suffix for source in self.sources if not isinstance(source, tuple)}
        for name, given, readers in (
            ("columns", self.columns is not None, (".parquet", *_TEXT)),
            ("header", self.header != "auto", _TEXT),
        ):
            if given and self.sources and not kinds.intersection(readers):
                raise ValueError(f"{name}: expected a file among {readers} beside it, found {sorted(kinds)}")

    def count(self) -> int | None:
        """How many edges there are, if the files' headers say so."""
        total = 0
        for source in self.sources:
            if isinstance(source, tuple):
                total += len(_vector_pair(*source)[0])
            elif (path := Path(source)).suffix == ".npy":
                total += _pairs(path).shape[1]
            elif path.suffix == ".parquet":
                with _parquet(path) as file:
                    total += file.metadata.num_rows
            else:
                return None
        return total

    def ends(self, chunk: int = CHUNK) -> tuple[Ends, Ends, int]:
        """The ids of sources, those of destinations, and the number of edges; reads everything once."""
        sources, destinations, total = Ends(), Ends(), 0
        for file, edges in self.chunks_of_files(chunk):
            sources, destinations = sources.with_ids(file, edges[0]), destinations.with_ids(file, edges[1])
            total += edges.size(1)
        return sources, destinations, total

    def num_nodes(self, chunk: int = CHUNK) -> int:
        """One more than the largest id; reads everything once."""
        sources, destinations, _ = self.ends(chunk)
        return 1 + max(sources.largest, destinations.largest)

    def chunks(self, chunk: int = CHUNK) -> Iterator[Tensor]:
        """The edges in order, about ``chunk`` at a time, of text fewer: int64, shape [2, any] each."""
        return (edges for _, edges in self.chunks_of_files(chunk))

    def chunks_of_files(self, chunk: int = CHUNK) -> Iterator[tuple[Source, Tensor]]:
        """As :meth:`chunks`, each with its file."""
        return ((source, edges) for source in self.sources for edges in self._read(source, chunk))

    def _read(self, source: Source, chunk: int) -> Iterator[Tensor]:
        if isinstance(source, tuple):
            yield from _read_vectors(source, chunk)
        elif (path := Path(source)).suffix == ".npy":
            count = _pairs(path).shape[1]
            for at in range(0, count, chunk):  # mapped anew, so that what was read does not stay mapped
                yield _ids(path, _pairs(path)[:, at : at + chunk], at)
        elif path.suffix == ".parquet":
            yield from _read_parquet(path, self.columns, chunk)
        elif (how := find_format(path, self.columns, self.header)) is not None:
            yield from _read_text(path, how, chunk)


def _array(file: str | os.PathLike) -> np.ndarray:
    try:
        array = np.lib.format.open_memmap(file, mode="r")
    except _HEADER_ERRORS as error:
        raise ValueError(f"{file}: expected a .npy file, found something else ({error})") from None
    if array.dtype.kind not in "iu":
        hint = f"; {OF_WORDS}" if array.dtype.kind in "US" else ""
        raise ValueError(f"{file}: expected integers, found {array.dtype}{hint}")
    return array


def _pairs(path: Path) -> np.ndarray:
    array = _array(path)
    if array.ndim != 2 or 2 not in array.shape:
        raise ValueError(f"{path}: expected shape (2, edges) or (edges, 2), found {array.shape}")
    return array if array.shape[0] == 2 else array.T


def _vector_pair(src: str | os.PathLike, dst: str | os.PathLike) -> tuple[np.ndarray, np.ndarray]:
    vectors = _array(src), _array(dst)
    sizes = [vector.shape for vector in vectors]
    if sizes[0] != sizes[1] or len(sizes[0]) != 1:
        raise ValueError(f"{src} and {dst}: expected vectors of one length, found shapes {sizes[0]} and {sizes[1]}")
    return vectors


def _read_vectors(files: tuple[str | os.PathLike, str | os.PathLike], chunk: int) -> Iterator[Tensor]:
    for at in range(0, len(_vector_pair(*files)[0]), chunk):
        parts = zip(files, _vector_pair(*files), strict=True)
        yield torch.stack([_ids(file, vector[at : at + chunk], at) for file, vector in parts])


def _ids(path: str | os.PathLike, values: np.ndarray, first: int) -> Tensor:
    """The ids of edges, [m] or [2, m], which are numbered from ``first`` in the file."""
    if values.dtype == np.uint64 and values.size and int(values.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{path}: expected ids below 2^63, found {values.max()}")
    if values.dtype.kind == "i" and values.size and values.min() < 0:
        at = np.unravel_index(np.argmax(values < 0), values.shape)
        raise ValueError(f"{path}, edge {first + int(at[-1])}: expected ids of at least 0, found {values[at]}")
    return torch.from_numpy(np.ascontiguousarray(values).astype(np.int64))


def _pyarrow(module: str) -> Any:
    return needed(module, "parquet and text files are read by pyarrow: pip install pyarrow")


@contextmanager
def _parquet(path: Path) -> Iterator[Any]:
    """The opened file; what pyarrow raises within the block, named."""
    parquet, arrow = _pyarrow("pyarrow.parquet"), _pyarrow("pyarrow")
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: expected a parquet file, found something else ({error})") from None


def _read_parquet(path: Path, columns: Columns | None, chunk: int) -> Iterator[Tensor]:
    first = 0
    with _parquet(path) as file:
        names = file.schema_arrow.names
        ends = [names[end] for end in find_ends(path, names, columns)]
        for batch in file.iter_batches(chunk, columns=ends):
            yield torch.stack([_cells(path, batch.column(end), first) for end in ends])
            first += batch.num_rows


def _cells(path: Path, column: Any, first: int) -> Tensor:
    """The ids of a column, whose rows are numbered from ``first``."""
    if column.null_count:
        at = first + column.is_null().index(True).as_py()
        raise ValueError(f"{path}, row {at}: expected an id, found an empty cell")
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind == "O" and len(values) and isinstance(values[0], str):
        raise ValueError(f"{path}, row {first}: expected an integer id, found {values[0]!r}; {OF_WORDS}")
    if values.dtype.kind not in "iu":
        raise ValueError(f"{path}: expected integers, found {column.type}")
    return _ids(path, values, first)


def _read_text(path: Path, how: TextFormat, chunk: int) -> Iterator[Tensor]:
    csv, arrow = _pyarrow("pyarrow.csv"), _pyarrow("pyarrow")
    names = [f"column {number}" for number in range(how.num_columns)]
    ends = [names[end] for end in how.ends]
    read = csv.ReadOptions(skip_rows=how.skipped, column_names=names, block_size=_BLOCK)
    convert = csv.ConvertOptions(column_types=dict.fromkeys(ends, arrow.uint64()), include_columns=ends, null_values=[])
    done, pending = 0, []
    try:
        for batch in csv.open_csv(path, read, csv.ParseOptions(delimiter=how.delimiter), convert):
            pending.append(torch.stack([_ids(path, batch.column(end).to_numpy(), done) for end in ends]))
            done += batch.num_rows
            if sum(edges.size(1) for edges in pending) >= min(chunk, _EDGES):
                yield torch.cat(pending, dim=1)
                pending = []
        if pending:
            yield torch.cat(pending, dim=1)
    except ValueError as error:  # pyarrow's own is one; it does not know the line
        refused = first_refused(path, how, done)
        raise ValueError(refused or f"{path}: expected lines of two ids, found something else ({error})") from None


GRAPH500 = (0.57, 0.19, 0.19)
"""Quadrant probabilities a, b, c of the Graph500 benchmark."""


def rmat(num_nodes: int, num_edges: int, seed: int = 0, quadrants: tuple[float, float, float] = GRAPH500) -> Tensor:
    """The edges of an R-MAT graph whose node ids are shuffled, so that ids and degrees are independent.

    Args:
        num_nodes: number of nodes; it need not be a power of two.
        num_edges: number of directed edges; repeated edges and self loops are kept, as in Graph500.
        seed: the edges are a function of it and of the other arguments.
        quadrants: probabilities a, b, c.

    Returns:
        int64, shape [2, num_edges].
    """
    (edges,) = rmat_chunks(num_nodes, num_edges, seed, quadrants, max(num_edges, 1))
    return edges


def rmat_chunks(
    num_nodes: int,
    num_edges: int,
    seed: int = 0,
    quadrants: tuple[float, float, float] = GRAPH500,
    chunk: int = CHUNK,
) -> Iterator[Tensor]:
    """The edges of :func:`rmat`, in order, at most ``chunk`` at a time: int64, shape [2, chunk] each."""
    seed = to_int("seed", seed)
    names = ops.permutation(num_nodes, batch_key(seed, 0, 1, Purpose.GENERATE))
    key = batch_key(seed, 0, 0, Purpose.GENERATE)
    for first in range(0, max(num_edges, 1), chunk):
        edges = ops.rmat_edges(num_nodes, min(chunk, num_edges - first), key, quadrants, first)
        yield ops.gather_rows(names, edges.view(-1)).view(2, -1)
