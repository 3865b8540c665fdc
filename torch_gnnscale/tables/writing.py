"""The arrays of stores, written row by row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from .. import files
from ..feature.feature_store import KIND as FEATURES
from ..splits import SUBSETS
from .layout import Feature, codes, numbers, widths


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
