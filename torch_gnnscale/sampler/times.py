"""Times as int64, which the operator compares: f(a) <= f(b) exactly if a <= b."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.arguments import found_instead

_EXACT = 1 << 53
"""2^53: every integer of at most this size is exact as float64."""


def check_times(name: str, time: Tensor, count: int) -> None:
    """Raises TypeError or ValueError unless ``time`` is a vector of ``count`` integers or floats, none of them NaN."""
    if not isinstance(time, Tensor):
        raise TypeError(f"{name}: expected a tensor of times, found {found_instead(time)}")
    if time.dtype in (torch.bool, torch.uint64) or time.is_complex():
        raise TypeError(f"{name}: expected integers or real numbers, found {time.dtype}")
    if time.shape != (count,):
        raise ValueError(f"{name}: expected {count} times, found shape {tuple(time.shape)}")
    if time.is_floating_point() and bool((wrong := time.isnan()).any()):
        raise ValueError(f"{name}[{int(wrong.nonzero()[0])}]: expected a number, found nan")


def check_exact(name: str, time: Tensor, floats: str) -> None:
    """Raises ValueError if ``time`` has integers that float64 may round: above 2^53 in size. ``floats``: the times that
    are floats, for the error."""
    if not time.is_floating_point():
        time = time.to(torch.int64)
        if bool(((time < -_EXACT) | (time > _EXACT)).any()):
            raise ValueError(f"{name}: expected times up to 2^53, because {floats} are floats; found larger ones")


def ordered(time: Tensor, floating: bool) -> Tensor:
    """int64 that compare like ``time``: the integers themselves or, if ``floating``, the float64 bits, changed to sort
    as integers."""
    if not floating:
        return time.to(torch.int64)
    bits = (time.to(torch.float64) + 0.0).view(torch.int64)  # -0.0 + 0.0 is 0.0
    return torch.where(bits < 0, bits ^ torch.iinfo(torch.int64).max, bits)


def ordered_limit(name: str, time: Tensor, floating: bool) -> Tensor:
    """Limits for times from :func:`ordered`: ordered(t) <= ordered_limit(l) exactly if t <= l.

    Raises:
        ValueError: an integer limit above 2^53 where the graph's times are floats.
    """
    if floating:
        check_exact(name, time, "the graph's times")
        return ordered(time, True)
    if time.is_floating_point():
        limits = torch.iinfo(torch.int64)
        low, high = float(limits.min), float(limits.max)  # high is 2^63
        floor = time.to(torch.float64).floor()
        inside = floor.clamp(low, -low - 1024).to(torch.int64)
        return torch.where(floor >= high, limits.max, torch.where(floor < low, limits.min, inside))
    return time.to(torch.int64)
