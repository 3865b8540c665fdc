"""What ranks tell one another before they compute a batch together."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..distributed.exchange import Exchange
from ..ops import MAX_HOPS
from .shuffle_index import ShuffleIndex

_COMMON = ("hops", "batch_key", "model", "training", "grad mode")
"""What must be the same on all ranks."""


def compare_headers(model: nn.Module, batch: Any, exchange: Exchange) -> bool:
    """Whether all ranks of a split have the halo's rows of ``batch.x``.

    In one round: all ranks get the same numbers, and so they find the same.

    Raises:
        ValueError: on all ranks, unless they have shares of one batch, and run it in one way.
    """
    index: ShuffleIndex = batch.shuffle_index
    knows_halo = "x_halo" in batch and index.knows_halo_of(batch.x)
    if exchange.size == 1:
        return knows_halo
    learns = [parameter.requires_grad for parameter in model.parameters()]
    digest = hashlib.blake2b(repr((describe(model), learns)).encode(), digest_size=7).digest()
    hops = len(batch.num_sampled_edges)
    said = [hops, int(batch.batch_key), int.from_bytes(digest, "little"), int(model.training),
            int(torch.is_grad_enabled())]  # fmt: skip
    rows = torch.zeros(2, exchange.size, MAX_HOPS, dtype=torch.int64)
    rows[:, :, :hops] = torch.tensor([index.num_sent, index.num_received])
    header = torch.cat([torch.tensor([*said, int(knows_halo)]), rows.view(-1)])
    received = exchange.numbers(header.expand(exchange.size, -1), "header")
    common, known, counts = received.split([len(said), 1, rows.numel()], 1)
    for rank, theirs in enumerate(common.tolist()):
        for name, our, their in zip(_COMMON, said, theirs, strict=True):
            if our != their:
                raise ValueError(
                    f"split: {name}: expected the same on all ranks, found {our} and on rank {rank} {their}"
                )
    sent, awaited = counts.view(exchange.size, *rows.shape).unbind(1)
    for reader, sender in (sent.transpose(0, 1) != awaited).any(2).nonzero().tolist():
        levels = awaited[reader, sender, :hops].tolist()
        raise ValueError(
            f"split: batch: expected {levels} rows by level from part {sender} for part {reader}, found others"
        )
    return bool(known.all())


def describe(model: nn.Module) -> list[tuple[str, str, Any]]:
    """What must be the same on all ranks: the names and shapes of all that a model keeps, and its layers."""
    kept = [
        (name, str(tensor.dtype), None if is_lazy(tensor) else tuple(tensor.shape))
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    ]
    return [*kept, *((name, type(module).__name__, None) for name, module in model.named_modules())]
