"""Time windows of a loader's inputs: where each begins, from the arguments of the loader."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..sampler.base import KeyedSampler, name_of
from ..sampler.graph import check_exact, check_times, check_windows
from ..sampler.inputs import ByType, each_type, windowed


class GivenWindows(NamedTuple):
    """Arguments of a loader. The window of an input is ``start <= t <= end``."""

    end_name: str
    """The name of the argument that gives the ends."""
    start_name: str
    """The name of the argument ``start``."""
    start: Any
    """Where windows begin, in the form of the ends; None without this argument."""
    length: Any
    """The argument ``time_window``: end - start of all windows; None without it."""

    @property
    def given(self) -> bool:
        """Whether there are windows."""
        return self.start is not None or self.length is not None

    def check(self, sampler: KeyedSampler) -> None:
        """Raises ValueError for both arguments at once, or for a loader's sampler that takes no windows."""
        if self.start is not None and self.length is not None:
            raise ValueError(f"{self.start_name}, time_window: expected one of them, found both")
        if not self.given:
            return
        if not sampler.keyed or not (sampler.takes_windows or not sampler.is_temporal):
            raise ValueError(
                f"{self._name}: expected a KeyedSampler that takes windows (takes_windows), found a {name_of(sampler)}"
            )
        if not sampler.is_temporal:
            raise ValueError(f"{self._name}: expected none without time_attr, found some")

    def of(self, inputs: Any, starts: Mapping[Any, Tensor], typed: bool) -> Any:
        """A loader's inputs with windows, if there are some.

        Args:
            inputs: with their times, of one type or of several.
            starts: ``start`` by type of inputs.
            typed: whether the user gave dictionaries, which errors then name with the type.

        Raises:
            TypeError, ValueError: what is no time, window or number of times; inputs without an end; a window that ends
                before it begins.
        """
        if not self.given:
            return inputs
        found = []
        for entry in each_type(inputs):
            of = f"[{entry.input_type!r}]" if typed else ""
            if self.length is None and entry.input_type not in starts:
                found.append(entry)
                continue
            if entry.time is None:
                raise ValueError(
                    f"{self._name}: expected {self.end_name}{of}, where windows end, beside it, found none"
                )
            check_times(f"{self.end_name}{of}", entry.time, entry.time.numel())
            start = starts[entry.input_type] if self.length is None else _before(self.end_name, entry.time, self.length)
            check_windows(f"{self._name}{of}", start.cpu(), f"{self.end_name}{of}", entry.time)
            found.append(windowed(entry, start.cpu()))
        return type(inputs)(found) if isinstance(inputs, ByType) else found[0]

    @property
    def _name(self) -> str:
        return self.start_name if self.length is None else "time_window"


def _before(name: str, end: Tensor, length: Any) -> Tensor:
    """``end - length``: int64 where both are whole numbers, and at least -2^63; else float64, of which an infinite
    length makes -inf. ``name``: of the ends."""
    if isinstance(length, bool) or not isinstance(length, Real):
        raise TypeError(f"time_window: expected a number, found {type(length).__name__}")
    number: Any = length
    if not number >= 0:
        raise ValueError(f"time_window: expected a number of at least 0, found {length}")
    left = int(min(number, 1 << 64))  # of a longer one, each start is before -2^63
    if end.is_floating_point() or left != min(number, 1 << 64):
        check_exact(name, end, f"windows of {length}")
        try:
            size = float(number)
        except OverflowError:
            size = math.inf
        return (
            torch.full(end.shape, -math.inf, dtype=torch.float64) if size == math.inf else end.to(torch.float64) - size
        )
    least, most = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    start = end.to(torch.int64)
    while left > 0:  # in steps that int64 has
        step = min(left, most)
        start = torch.where(start < least + step, least, start - step)
        left -= step
    return start
