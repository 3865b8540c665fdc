"""The rows of a part's own nodes and edges: mapped from files, or in tiers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from .. import ops
from ..feature.tiered_rows import TieredRows, sent
from ..ops.rows import as_words


class OwnRows(ABC):
    """One attribute's rows of a part's own nodes or edges. Several threads may read at once.

    Ids are row numbers in the part: int64, in host memory.
    """

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def gather(self, ids: Tensor) -> Tensor:
        """The rows of ``ids``, on the device where batches have them; shape [n, ...]. Ids are not checked."""

    @abstractmethod
    def table(self, ids: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """The rows that other ranks ask for.

        Args:
            ids: for each other rank, the rows that it asks for.

        Returns:
            A tensor in host memory, shape [m, ...], and for each entry of ``ids`` the positions of its rows in this
            tensor. Ids are checked here, or when the positions are used.
        """

    @abstractmethod
    def join(self, place: Tensor, other: Tensor, at: Tensor) -> Tensor:
        """The rows of a batch, on the device of :meth:`gather`: row i is the part's row ``place[i]`` if ``place[i] >=
        0``, else the row whose bytes begin at ``other[at[-1 - place[i]]]``. Arguments as in
        :func:`torch_gnnscale.ops.join_rows`."""


class MappedRows(OwnRows):
    """Rows in a tensor.

    Args:
        rows: shape [n, ...], in host memory or mapped, with contiguous rows.
    """

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @override
    def gather(self, ids: Tensor) -> Tensor:
        return ops.gather_rows(self._rows, ids, check=False)

    def table(self, ids: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """See :meth:`OwnRows.table`: all rows, and the ids."""
        return self._rows, ids

    @override
    def join(self, place: Tensor, other: Tensor, at: Tensor) -> Tensor:
        return ops.join_rows(self._rows, other, at, place, check=False)


class TierRows(OwnRows):
    """Rows in tiers, on a GPU if one gathers them."""

    def __init__(self, rows: TieredRows) -> None:
        self._rows = rows
        # Answers to other ranks do not wait for the training: rows never change, so any stream may read them.
        self._stream = None if rows.device.type == "cpu" else torch.cuda.Stream(rows.device)

    def __len__(self) -> int:
        return self._rows.shape[0]

    @override
    def gather(self, ids: Tensor) -> Tensor:
        return self._rows.gather(ids, check=False)

    def table(self, ids: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """See :meth:`OwnRows.table`: the rows that are asked for, one after another."""
        with torch.cuda.stream(self._stream):
            rows = self._rows.gather(torch.cat(list(ids))).cpu()
        return rows, torch.arange(len(rows)).split([len(some) for some in ids])

    @override
    def join(self, place: Tensor, other: Tensor, at: Tensor) -> Tensor:
        is_own = place >= 0
        own = self.gather(place[is_own])
        if len(own) == len(place):
            return own
        if own.device.type == "cpu":
            return ops.join_rows(own, other, at, place.masked_scatter(is_own, torch.arange(len(own))), check=False)
        return joined_there(own, is_own, other, at, place)


def joined_there(own: Tensor, is_own: Tensor, other: Tensor, at: Tensor, place: Tensor) -> Tensor:
    """The rows of a batch on the device of ``own``, to which those of other parts are copied through pinned memory.

    Args:
        own: those of this part, shape [m, ...].
        is_own: which rows of the batch they are: bool, shape [n].
        other, at, place: as in :meth:`OwnRows.join`.

    Returns:
        Shape [n, ...].
    """
    none = torch.empty(0, *own.shape[1:], dtype=own.dtype)
    came = sent(ops.join_rows(none, other, at, place[~is_own], check=False), own.device)
    return merged(own, came, is_own)


def merged(own: Tensor, came: Tensor, is_own: Tensor) -> Tensor:
    """The rows of a batch: those of this part where ``is_own``, of shape [n] in host memory, else those that came, in
    their order; all on one device. Shape [n, ...]."""
    out = own.new_empty(len(is_own), *own.shape[1:])
    for rows, chosen in ((own, is_own), (came, ~is_own)):
        as_words(out).index_copy_(0, sent(chosen.nonzero().view(-1), own.device), as_words(rows))
    return out
