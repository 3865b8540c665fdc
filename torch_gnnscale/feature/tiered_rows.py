"""One attribute's rows in tiers: how they are put there, and how they are gathered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import ops
from .tier_memory import HostMemory, Rows, open_rows

STEP = 64 << 20
"""Bytes that are moved at a time while tiers are filled."""


@dataclass(frozen=True)
class Attribute:
    """What another process needs to know of an attribute."""

    key: tuple[Any, str]
    shape: tuple[int, ...]
    dtype: torch.dtype
    """Of what is gathered."""
    storage: torch.dtype
    """Of what is stored."""
    tiers: tuple[str, ...]
    spread: tuple[int, ...]
    parts: tuple[Rows, ...]
    place: Rows | None
    counts: Rows
    """int64, shape [tiers, 2], shared by all processes: rows and nanoseconds."""

    @property
    def disk(self) -> bool:
        """Whether the last tier lies in a file."""
        return self.tiers[-1] == "disk"


class TieredRows:
    """An attribute opened in this process; stands for its tensor in a FeatureStore."""

    def __init__(self, attribute: Attribute, memory: HostMemory, device: torch.device) -> None:
        self.attribute = attribute
        self.shape = attribute.shape
        self.counts = open_rows(attribute.counts, memory)
        self._parts = [open_rows(part, memory) for part in attribute.parts]
        self._place = None if attribute.place is None else open_rows(attribute.place, memory)
        self.device = device
        for part in self._parts:
            if part.device.type == "cuda" and part.device != device:
                torch.zeros(1, device=device).to(part.device)  # torch enables peer access with the first copy
        self._device_counts = self.counts if device.type == "cpu" else torch.zeros_like(self.counts, device=device)

    @property
    def row_bytes(self) -> int:
        """Stored bytes of a row."""
        return math.prod(self.shape[1:]) * self.attribute.storage.itemsize

    def gather(self, index: Tensor) -> Tensor:
        """The rows at ``index``, on the device that gathers."""
        return ops.gather_tiers(
            self._parts,
            index.to(self.device),
            spread=self.attribute.spread,
            place=self._place,
            disk=self.attribute.disk,
            dtype=self.attribute.dtype,
            counts=self._device_counts,
        )

    def total(self) -> Tensor:
        """Rows and nanoseconds of each tier so far: int64, shape [tiers, 2]."""
        return self.counts if self.device.type == "cpu" else self.counts + self._device_counts.cpu()


def fill(out: Tensor, source: Tensor, ids: Tensor) -> None:
    """Puts the rows of ``source`` at ``ids`` into ``out``, in the order in which they are stored in ``source``.

    Args:
        out: shape [n, ...], on any device, of the dtype of ``source`` or a narrower one.
        source: shape [N, ...], in host memory or mapped.
        ids: int64, shape [n].
    """
    ids, at = ids.sort()
    step = max(1, STEP // max(source[:1].nbytes, 1))
    for some, to in zip(ids.split(step), at.split(step), strict=True):
        out[to.to(out.device)] = narrowed(ops.gather_rows(source, some), out.dtype).to(out.device)


def narrowed(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows as they are stored; ValueError for a finite number that becomes infinite."""
    out = rows.to(dtype)
    if dtype != rows.dtype and bool((out.isinf() & rows.isfinite()).any()):
        largest = float(rows[rows.isfinite()].abs().max())
        raise ValueError(
            f"storage: expected numbers of at most {torch.finfo(dtype).max:g} for {dtype}, found {largest:g}"
        )
    return out
