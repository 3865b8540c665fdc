"""How the columns of a staged table become arrays, such as ``x``, ``edge_attr`` and ``category``, and the arrays of
stores, written row by row."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from .. import files
from ..feature.feature_store import KIND as FEATURES
from ..splits import SUBSETS
from .columns import vector_size
from .engine import Database, Engine
from .schema import Column
from .sources import Source, name
from .survey import MOST_ROWS, distinct, missing_of, moments_of, numbered

Encode: TypeAlias = Callable[..., np.ndarray]
"""Makes float32 of shape [n, d] of n strings and, where it is known, d."""


def encoder(path: str, column: Column) -> Encode:
    """The function that a column of text names, with checks of what it returns.

    Args:
        path: what errors call the table.
        column: one of kind ``text``.

    Raises:
        ValueError: there is no such function.
    """
    assert column.encoder is not None
    at = f"{path}.columns.{column.name}.encoder"
    module, _, function = column.encoder.partition(":")
    try:
        called: Any = importlib.import_module(module)
        for part in function.split("."):
            called = getattr(called, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{at}: expected {column.encoder} to be there, found {error}") from error

    def encode(texts: list[str], width: int | None = None) -> np.ndarray:
        rows = np.asarray(called(texts), dtype=np.float32)
        if rows.ndim != 2 or len(rows) != len(texts) or (width is not None and rows.shape[1] != width):
            expected = f"[{len(texts)}, {'d' if width is None else width}]"
            raise ValueError(f"{at}: expected an array of shape {expected}, found {list(rows.shape)}")
        if not np.isfinite(rows).all():
            row = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            raise ValueError(f"{at}: expected finite numbers, found others for {texts[row]!r}")
        return rows

    return encode


_BATCH_BYTES = 1 << 25
"""About that many bytes of features are in a batch."""


@dataclass(frozen=True)
class Feature:
    """A column of features, as it was found in the files."""

    column: Column
    staged: str
    """Its name in the staged table."""
    width: int
    """How many columns of ``x`` it takes: 0 for categories."""
    mean: float = 0.0
    std: float = 1.0
    missing: int = 0
    categories: tuple[str, ...] = ()
    """Category i + 1 is the i-th; 0: missing, or none of these."""
    encode: Encode | None = None
    """Makes numbers of a column of text; None for other columns."""

    def about(self) -> dict[str, Any]:
        """What is stored beside the arrays."""
        found: dict[str, Any] = {"column": self.column.name, "kind": self.column.kind}
        if self.column.kind == "category":
            return found | {"categories": list(self.categories)}
        if self.column.kind in ("vector", "text"):
            return found | {"width": self.width} | ({} if self.encode is None else {"encoder": self.column.encoder})
        indicator = {"indicator": True} if self.column.missing == "mean" else {}
        return found | {"mean": self.mean, "std": self.std} | indicator


def features_of(
    engine: Engine, source: Source, columns: Sequence[Column], staged: Sequence[str], table: str, kept: str
) -> list[Feature]:
    """The means, deviations and categories of columns.

    Args:
        engine: that has the staged table.
        source: its files.
        columns: the features.
        staged: their names in the staged table.
        table: the staged table.
        kept: the condition, in SQL, of rows that are kept.
    """
    wanted = dict(zip(staged, columns, strict=True))
    categories = [given for given, column in wanted.items() if column.kind == "category"]
    numbers = [given for given, column in wanted.items() if column.kind in ("number", "boolean", "time")]
    others = [given for given, column in wanted.items() if column.kind == "text"]
    missing = missing_of(engine, table, kept, [*categories, *numbers, *others])
    moments = moments_of(engine, table, kept, numbers)
    found = []
    for given, column in wanted.items():
        if column.kind == "vector":
            found.append(Feature(column, given, vector_size(source, column)))
        elif column.kind == "text":
            encode = encoder(source.path, column)
            found.append(Feature(column, given, encode([""]).shape[1], missing=missing[given], encode=encode))
        elif column.kind == "category":
            values = distinct(engine, table, kept, given)
            found.append(Feature(column, given, 0, missing=missing[given], categories=tuple(values)))
        else:
            mean, std = moments[given]
            scaled = column.kind != "boolean" and column.scale == "standard"
            width = 2 if column.missing == "mean" else 1
            found.append(Feature(column, given, width, mean, std if scaled else 1.0, missing[given]))
    return found


def make_codes(database: Database, features: Sequence[Feature], table: str) -> None:
    """Makes the tables with the codes of categories that :func:`selected` joins."""
    for feature in features:
        if feature.column.kind == "category":
            numbered(database, f"{table}_{feature.staged}", feature.categories, 1)


def drop_codes(database: Database, features: Sequence[Feature], table: str) -> None:
    """Drops the tables of :func:`make_codes`."""
    for feature in features:
        if feature.column.kind == "category":
            database.run(f"DROP TABLE {table}_{feature.staged}")


def selected(features: Sequence[Feature], table: str) -> tuple[str, str]:
    """(list for SELECT of columns named as in the staged table, joins): categories are codes."""
    codes = [feature.staged for feature in features if feature.column.kind == "category"]
    columns = "".join(
        f"coalesce({given}_of.code, 0) AS {given}, " if given in codes else f"staged.{given}, "
        for given in (feature.staged for feature in features)
    )
    joins = "".join(f" LEFT JOIN {table}_{given} AS {given}_of ON staged.{given} = {given}_of.value" for given in codes)
    return columns, joins


def widths(features: Sequence[Feature]) -> tuple[int, int]:
    """The numbers of columns of ``x`` and of ``category``."""
    return sum(feature.width for feature in features), sum(feature.column.kind == "category" for feature in features)


def batch_rows(features: Sequence[Feature]) -> int:
    """The number of rows that are converted at a time."""
    width, codes = widths(features)
    return max(1024, min(MOST_ROWS, _BATCH_BYTES // (8 * (width + codes) + 64)))


def numbers(batch: Any, features: Sequence[Feature]) -> Tensor:
    """The rows of ``x``: float32, shape [rows, F]."""
    out = np.empty((batch.num_rows, widths(features)[0]), dtype=np.float32)
    at = 0
    for feature in features:
        if feature.width == 0:
            continue
        column = batch.column(feature.staged)
        if feature.column.kind == "vector":
            flat = column.flatten().to_numpy(zero_copy_only=False)
            out[:, at : at + feature.width] = flat.reshape(-1, feature.width)
        elif feature.encode is not None:
            out[:, at : at + feature.width] = feature.encode(column.fill_null("").to_pylist(), feature.width)
        else:
            values = column.to_numpy(zero_copy_only=False)  # NaN where they are missing
            known = ~np.isnan(values)
            if feature.column.kind == "boolean" or feature.column.scale == "none":
                out[:, at] = np.where(known, values, feature.mean)
            else:
                out[:, at] = np.where(known, (values - feature.mean) / feature.std, 0.0)
            if feature.width == 2:
                out[:, at + 1] = ~known
        at += feature.width
    return torch.from_numpy(out)


def codes(batch: Any, features: Sequence[Feature]) -> Tensor:
    """The rows of ``category``: int64, shape [rows, C]."""
    found = [batch.column(feature.staged).to_numpy() for feature in features if feature.column.kind == "category"]
    return torch.from_numpy(np.stack(found, axis=1).astype(np.int64))


def staged_names(count: int) -> list[str]:
    """The names of features in a staged table."""
    return [f"f{number}" for number in range(count)]


def order_of(features: Sequence[Feature]) -> str:
    """The features as the end of an ORDER BY."""
    return "".join(f", {name(feature.staged)} NULLS FIRST" for feature in features)


class RowWriter(ABC):
    """Takes the rows of tables, batch after batch, as tensors."""

    def __init__(self) -> None:
        self.attrs: dict[tuple[Any, str], tuple[torch.dtype, tuple[int, ...]]] = {}
        """The dtypes and shapes of attributes, by group and name."""

    def add(self, group: Any, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        """A new array, that of an attribute."""
        self.attrs[group, name] = dtype, shape

    @abstractmethod
    def append(self, group: Any, name: str, rows: Tensor) -> None:
        """The next rows of an attribute that was added; nothing of another."""

    def add_rows(self, group: Any, count: int, features: Sequence[Feature], time: bool, split: bool) -> None:
        """The arrays of a table with ``count`` rows."""
        width, categories = widths(features)
        if width:
            self.add(group, "edge_attr" if isinstance(group, tuple) else "x", torch.float32, (count, width))
        if categories:
            self.add(group, "category", torch.int64, (count, categories))
        if time:
            self.add(group, "time", torch.int64, (count,))
        for subset in SUBSETS if split else ():
            self.add(group, f"{subset}_mask", torch.bool, (count,))

    def append_rows(self, group: Any, batch: Any, features: Sequence[Feature]) -> None:
        """The next rows of the arrays of :meth:`add_rows`: the batch has columns for the features, ``time`` and
        ``split``."""
        width, categories = widths(features)
        if width:
            self.append(group, "edge_attr" if isinstance(group, tuple) else "x", numbers(batch, features))
        if categories:
            self.append(group, "category", codes(batch, features))
        if (group, "time") in self.attrs:
            self.append(group, "time", integers(batch.column("time")))
        if (group, "train_mask") in self.attrs:
            number = integers(batch.column("split").fill_null(-1))
            for place, subset in enumerate(SUBSETS):
                self.append(group, f"{subset}_mask", number == place)


class KnownRows(RowWriter):
    """Attributes whose rows are written elsewhere."""

    @override
    def append(self, group: Any, name: str, rows: Tensor) -> None:
        raise AssertionError("rows are written elsewhere")


class FeatureWriter(RowWriter):
    """The directory of a FeatureStore, whose arrays are written from front to back.

    Args:
        folder: a new one.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        folder.mkdir()
        self._folder, self._stack = folder, ExitStack()
        self._writers: dict[tuple[Any, str], files.ArrayWriter] = {}

    @override
    def add(self, group: Any, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        super().add(group, name, dtype, shape)
        file = self._folder / f"{len(self._writers)}.npy"
        self._writers[group, name] = self._stack.enter_context(files.ArrayWriter(file, dtype, shape))

    @override
    def append(self, group: Any, name: str, rows: Tensor) -> None:
        if (group, name) in self._writers:
            self._writers[group, name].append(rows)

    def close(self) -> None:
        """Writes the manifest."""
        self._stack.close()
        entries = {str(number): writer.entry for number, writer in enumerate(self._writers.values())}
        tensors = [{"group": group, "name": name} for group, name in self._writers]
        files.finish(self._folder, FEATURES, entries, {"tensors": tensors})


def integers(column: Any) -> Tensor:
    """A column of Arrow without nulls as int64."""
    return torch.from_numpy(column.to_numpy(zero_copy_only=False).astype(np.int64))


def reals(column: Any) -> Tensor:
    """A column of numbers of Arrow as float32; NaN where they are missing."""
    return torch.from_numpy(column.to_numpy(zero_copy_only=False).astype(np.float32))


def degrees_of(dst: Tensor, at: int, held: int, most: int) -> Iterator[Tensor]:
    """The degrees of the destinations from ``at`` on that end in a run of edges that is sorted by destination: all but
    the run's last one.

    Args:
        dst: destinations of the next edges, rising, of at least ``at``: int64.
        at: the destination whose edges may go on.
        held: how many edges of ``at`` came before.
        most: how many destinations are counted at a time.
    """
    last = int(dst[-1])
    while at < last:
        end = min(at + most, last)
        here = dst[torch.searchsorted(dst, at) : torch.searchsorted(dst, end)]
        counts = torch.bincount(here - at, minlength=end - at)
        counts[0] += held
        at, held = end, 0
        yield counts
