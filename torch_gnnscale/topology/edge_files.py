"""Edges from files, in chunks: .npy, parquet and text."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Source = str | os.PathLike | tuple[str | os.PathLike, str | os.PathLike]
_TEXT = (".csv", ".tsv", ".txt", ".edges")
_DELIMITERS = ",\t; "
ENDS = (("src", "dst"), ("source", "target"), ("source", "destination"), ("from", "to"), ("row", "col"), ("u", "v"),
        ("head", "tail"), ("sender", "receiver"))  # fmt: skip
"""Names of columns that say which is which, in any case."""


class EdgeFiles:
    """The edges of several files, one behind the other.

    Args:
        sources: files, each of edges: ``.npy`` of shape [2, E] or [E, 2], or a pair of ``.npy`` vectors (sources,
            destinations); ``.parquet``; text (``.csv``, ``.tsv``, ``.txt``, ``.edges``), with or without a header
            line, after any comment lines that begin with #. Parquet and text are read by pyarrow.
        columns: the names of the columns of sources and of destinations, in files that have names. By default those
            that are named as one of :data:`ENDS`, else a file's only two columns. Without names the first two count.

    Raises:
        FileNotFoundError, TypeError, ValueError: names the file that is missing or of another kind.
    """

    def __init__(self, sources: Sequence[Source], columns: tuple[str, str] | None = None) -> None:
        if isinstance(sources, (str, os.PathLike)):
            raise TypeError(f"sources: expected a list of files, found {sources!r}")
        if columns is not None and (isinstance(columns, str) or len(columns) != 2):
            raise ValueError(f"columns: expected the names of two, found {columns!r}")
        self.sources, self.columns = list(sources), columns
        for source in self.sources:
            for file in source if isinstance(source, tuple) else (source,):
                path = Path(file)
                if not path.is_file():
                    raise FileNotFoundError(f"{path}: not found")
                kinds = (".npy",) if isinstance(source, tuple) else (".npy", ".parquet", *_TEXT)
                if path.suffix not in kinds:
                    raise ValueError(f"{path}: expected a file of edges {kinds}, found {path.suffix!r}")

    def count(self) -> int | None:
        """How many edges there are, if the files' headers say so."""
        total = 0
        for source in self.sources:
            if isinstance(source, tuple):
                total += len(_array(source[0]))
            elif (path := Path(source)).suffix == ".npy":
                total += _pairs(path).shape[1]
            elif path.suffix == ".parquet":
                total += _pyarrow("pyarrow.parquet").ParquetFile(path).metadata.num_rows
            else:
                return None
        return total

    def num_nodes(self, chunk: int = 1 << 22) -> int:
        """One more than the largest id; reads everything once."""
        return max((int(edges.max()) + 1 for edges in self.chunks(chunk) if edges.numel()), default=0)

    def chunks(self, chunk: int = 1 << 22) -> Iterator[Tensor]:
        """The edges in order, about ``chunk`` at a time: int64, shape [2, any] each."""
        for source in self.sources:
            if isinstance(source, tuple):
                yield from _vectors(Path(source[0]), Path(source[1]), chunk)
            elif (path := Path(source)).suffix == ".npy":
                count = _pairs(path).shape[1]
                for at in range(0, count, chunk):  # mapped anew, so that what was read does not stay mapped
                    yield _tensor(path, _pairs(path)[:, at : at + chunk])
            elif path.suffix == ".parquet":
                file = _pyarrow("pyarrow.parquet").ParquetFile(path)
                ends = _ends(path, file.schema_arrow.names, self.columns)
                for batch in file.iter_batches(chunk, columns=ends):
                    yield _columns(path, batch, ends)
            else:
                for batch, named in _text(path, chunk):
                    yield _columns(path, batch, _ends(path, batch.schema.names if named else None, self.columns))


def _array(file: str | os.PathLike) -> np.ndarray:
    try:
        array = np.load(file, mmap_mode="r")
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{file}: expected a .npy file, found something else ({error})") from None
    if array.dtype.kind not in "iu":
        raise ValueError(f"{file}: expected integers, found {array.dtype}")
    return array


def _pairs(path: Path) -> np.ndarray:
    array = _array(path)
    if array.ndim != 2 or 2 not in array.shape:
        raise ValueError(f"{path}: expected shape (2, edges) or (edges, 2), found {array.shape}")
    return array if array.shape[0] == 2 else array.T


def _vectors(src: Path, dst: Path, chunk: int) -> Iterator[Tensor]:
    sizes = [_array(file).shape for file in (src, dst)]
    if sizes[0] != sizes[1] or len(sizes[0]) != 1:
        raise ValueError(f"{src} and {dst}: expected vectors of one length, found shapes {sizes[0]} and {sizes[1]}")
    for at in range(0, sizes[0][0], chunk):
        yield torch.stack([_tensor(file, _array(file)[at : at + chunk]) for file in (src, dst)])


def _tensor(path: Path, values: np.ndarray) -> Tensor:
    if values.dtype == np.uint64 and values.size and int(values.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{path}: expected ids below 2^63, found {values.max()}")
    return torch.from_numpy(np.ascontiguousarray(values).astype(np.int64))


def _pyarrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError("parquet and text files are read by pyarrow: pip install pyarrow") from error


def _ends(path: Path, names: list[str] | None, columns: tuple[str, str] | None) -> list[str] | list[int]:
    """Which of the columns are the sources and the destinations; ``names`` is None where they have none."""
    if columns is not None:
        if missing := [name for name in columns if name not in (names or ())]:
            found = "columns without names" if names is None else f"{names} without {missing}"
            raise ValueError(f"{path}: expected columns {list(columns)}, found {found}")
        return list(columns)
    if names is None:
        return [0, 1]
    known = {name.strip().lower(): name for name in names}
    pairs = [pair for pair in ENDS if all(end in known for end in pair)]
    if len(pairs) == 1:
        return [known[end] for end in pairs[0]]
    if len(names) == 2 and not pairs:
        return names
    raise ValueError(
        f"{path}: expected two columns, or some named as sources and destinations are (src and dst, ...), found "
        f"{names}; name them by columns="
    )


def _columns(path: Path, batch: Any, ends: list[str] | list[int]) -> Tensor:
    if batch.num_columns < 2:
        raise ValueError(f"{path}: expected two columns, found {batch.num_columns}")
    columns = []
    for column in (batch.column(end) for end in ends):
        if column.null_count:
            raise ValueError(f"{path}: expected ids, found {column.null_count} empty cells")
        values = column.to_numpy(zero_copy_only=False)
        if values.dtype.kind not in "iu":
            raise ValueError(f"{path}: expected integers, found {column.type}")
        columns.append(_tensor(path, values))
    return torch.stack(columns)


def _text(path: Path, chunk: int) -> Iterator[tuple[Any, bool]]:
    """Batches of lines, and whether the file names their columns."""
    csv = _pyarrow("pyarrow.csv")
    skipped, line = 0, ""
    with path.open() as stream:
        for line in stream:
            if not line.startswith("#"):
                break
            skipped += 1
        else:
            return  # nothing but comments
    delimiter = next((mark for mark in _DELIMITERS if mark in line.strip()), ",")
    fields = line.strip().split(delimiter)
    header = not all(field.strip().lstrip("-").isdigit() for field in fields[:2])
    read = csv.ReadOptions(skip_rows=skipped, autogenerate_column_names=not header, block_size=max(16 * chunk, 1 << 20))
    try:
        for batch in csv.open_csv(path, read, csv.ParseOptions(delimiter=delimiter)):
            yield batch, header
    except ValueError as error:  # pyarrow's own is one
        raise ValueError(f"{path}: expected lines of two integers, found something else ({error})") from None
