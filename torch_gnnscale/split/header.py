"""What ranks tell one another before they compute a batch together."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..distributed.exchange import Exchange
from ..distributed.grid import Grid
from ..ops import MAX_HOPS
from .description import Description
from .kinds import DTYPES, dtype_text, kind_of, kind_text
from .shuffle_index import ShuffleIndex

_COMMON: dict[str, Callable[[int], str]] = {
    "parts": str,
    "hops": str,
    "training": lambda number: str(bool(number)),
    "grad mode": lambda number: str(bool(number)),
    "autocast": lambda number: "none" if number < 0 else dtype_text(number),
    "x": kind_text,
    "model": str,
}
"""What must be the same on all ranks, and the words for its numbers."""
_SAID = len(_COMMON) + 4


class Agreed(NamedTuple):
    """What all ranks find in the headers."""

    grid: Grid
    """The grid of ranks of which each column has shares of one batch."""
    knows_calls: bool
    """Whether all ranks know how the model calls its layers."""
    knows_halo: bool
    """Whether all ranks of this one's column have the halo's rows of ``batch.x``."""


def own_header(model: Description, batch: Any, world: int, known: Container[int]) -> Tensor:
    """What this rank tells all others: int64, [n], n being the same on all.

    Args:
        model: what is computed.
        batch: of this rank.
        world: the number of ranks.
        known: the numbers of hops with which this rank knows how the model calls its layers.
    """
    index: ShuffleIndex = batch.shuffle_index
    x, hops, device = getattr(batch, "x", None), len(batch.num_sampled_edges), index.sent.device.type
    autocast = DTYPES.index(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else -1
    knows_halo = "x_halo" in batch and index.knows_halo_of(x)
    digest = model.digest if world > 1 else 0
    said = [index.parts, hops, model.model.training, torch.is_grad_enabled(), autocast, kind_of(x), digest,
            index.part, int(batch.batch_key), hops in known, knows_halo]  # fmt: skip
    rows = torch.zeros(2, world, MAX_HOPS, dtype=torch.int64)
    if index.parts <= world:
        rows[:, : index.parts, :hops] = torch.tensor([index.num_sent, index.num_received])
    return torch.cat([torch.tensor([int(value) for value in said]), rows.view(-1)])


def compare_headers(own: Tensor, model: Description, exchange: Exchange) -> Agreed:
    """In one round between all ranks: all get the same numbers, and so all decide alike.

    Args:
        own: of :func:`own_header`.
        model: what is computed.
        exchange: between all ranks.

    Raises:
        ValueError: on all ranks, unless each column has shares of one batch, and all run one model in one way.
    """
    headers = own.unsqueeze(0)
    if exchange.size > 1:
        headers = exchange.numbers(own.expand(exchange.size, -1), "header")
    said, rows = headers[:, :_SAID].tolist(), headers[:, _SAID:].view(exchange.size, 2, exchange.size, MAX_HOPS)
    parts = [of_rank[0] for of_rank in said]
    if len(set(parts)) > 1:
        raise ValueError(f"batch: expected as many parts on all ranks, found {parts}")
    for rank, theirs in enumerate(said):
        for (name, text), first, their in zip(_COMMON.items(), said[0], theirs, strict=False):
            if first != their:
                words = f"{text(first)} and on rank {rank} {text(their)}"
                found = model.compare(exchange) or words if name == "model" else words
                raise ValueError(f"split: {name}: expected the same on all ranks, found {found}")
    grid = _grid_of([part for *_, part, _, _, _ in said], parts[0])
    for copy in range(grid.copies):
        _compare_shares([said[rank][-3] for rank in grid.column(copy)], rows[grid.column(copy)], grid.column(copy))
    column = grid.column(grid.copy(exchange.place))
    return Agreed(grid, all(of_rank[-2] for of_rank in said), all(said[rank][-1] for rank in column))


def _grid_of(part_of: list[int], parts: int) -> Grid:
    grids = [Grid(len(part_of), parts), Grid(len(part_of), parts, consecutive="parts")]
    expected = [[grid.part(rank) for rank in range(grid.ranks)] for grid in grids]
    if part_of not in expected:
        raise ValueError(f"batch: expected ranks of the parts {expected[0]} or {expected[1]}, found {part_of}")
    return grids[expected.index(part_of)]


def _compare_shares(keys: list[int], rows: Tensor, column: list[int]) -> None:
    """Raises ValueError unless the ranks of a column have shares of one batch.

    Args:
        keys: of their batches.
        rows: how many they send and await, by peer and level: [parts, 2, ranks, levels].
        column: the ranks, by part.
    """
    for rank, key in zip(column, keys, strict=True):
        if key != keys[0]:
            raise ValueError(
                f"split: batch_key: expected the same on all ranks of a batch, found {keys[0]} on rank {column[0]} "
                f"and {key} on rank {rank}"
            )
    sent, awaited = rows[:, :, : len(column)].unbind(1)
    for reader, sender in (sent.transpose(0, 1) != awaited).any(2).nonzero().tolist():
        levels = awaited[reader, sender].tolist()
        raise ValueError(
            f"split: batch: expected {levels} rows by level from part {sender} for part {reader}, found others"
        )
