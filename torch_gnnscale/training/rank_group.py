"""What the ranks that train one model exchange, besides the exchanges of their loaders."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..comm.mesh import Ranks

T = TypeVar("T")
ALONE = Ranks(0, 1)
"""The ranks of a run of one process."""


class RankGroup:
    """The ranks that train one model, over torch.distributed's default group; without a group if there is one rank.

    Every method is a collective: all ranks call it, in the same order, on the thread that trains.

    Args:
        ranks: the ranks of the run.
    """

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self.rank, self.world = ranks.rank, ranks.world

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which alone prints and writes files."""
        return self.rank == 0

    def parallel(self, module: nn.Module, unused: bool) -> nn.Module:
        """The module, with the weights of rank 0 on all ranks. A backward pass leaves the means of the ranks'
        gradients.

        Args:
            module: called once in each training step.
            unused: whether there may be parameters on which a loss does not depend.
        """
        if self.world == 1:
            return module
        made = DistributedDataParallel(module, find_unused_parameters=unused)
        made.register_comm_hook(self.world, lambda world, bucket: _mean_in_order(world, bucket.buffer()))
        return made

    def total(self, values: Tensor) -> Tensor:
        """The sum of the ranks' ``values``, which have the same shape on all ranks."""
        if self.world == 1:
            return values
        out = values.clone()
        dist.all_reduce(out)
        return out

    def gathered(self, rows: Tensor) -> Tensor:
        """The rows of all ranks, [n, ...], in the order of ranks; n may differ between ranks."""
        if self.world == 1:
            return rows
        counts, width = self.everyone(len(rows)), math.prod(rows.shape[1:])
        if not (most := max(counts) * width):
            return rows.new_empty(sum(counts), *rows.shape[1:])
        sent = rows.new_zeros(most)
        sent[: rows.numel()] = rows.reshape(-1)
        received = torch.empty(self.world, sent.nbytes, dtype=torch.uint8)
        dist.all_gather(list(received.unbind()), sent.view(torch.uint8))  # as bytes: Gloo does not take every dtype
        found = [entry.view(rows.dtype)[: count * width] for entry, count in zip(received, counts, strict=True)]
        return torch.cat(found).view(-1, *rows.shape[1:])

    def everyone(self, value: Any) -> list[Any]:
        """The values of all ranks, in the order of ranks."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value)
        return found

    def first(self, make: Callable[[], T]) -> T:
        """Calls ``make()`` on rank 0 alone; returns its result, or raises its OSError or ValueError, on all ranks.

        If it raises another Exception, the other ranks raise RuntimeError.
        """
        if self.world == 1:
            return make()
        told: list[Any] = [None, None]
        own: Exception | None = None
        if self.is_first:
            try:
                told[0] = make()
            except (OSError, ValueError) as error:
                told[1] = own = error
            except Exception as error:  # sent as a text, because it may not be possible to pickle it
                told[1], own = RuntimeError(f"rank 0: {type(error).__name__}: {error}"), error
        dist.broadcast_object_list(told, src=0)
        if told[1] is not None:
            raise own or told[1]
        return told[0]


def _mean_in_order(world: int, flat: Tensor) -> torch.futures.Future[Tensor]:
    """The mean of a bucket of gradients [n] over the ranks: ((g_0 + g_1) + g_2 + ...) / P for each number.

    Gloo's all-reduce adds in an order that depends on a number's place in its bucket, and DDP arranges its buckets anew
    after its first step: a run that goes on from a checkpoint would round differently from one that was not stopped.
    """
    share = -(-len(flat) // world)
    padded = flat.new_zeros(world * share)
    padded[: len(flat)] = flat
    received = torch.empty_like(padded)
    dist.all_to_all_single(received, padded)
    mean, *others = received.view(world, share).unbind()
    for other in others:
        mean += other
    mean /= world
    dist.all_gather(list(padded.view(world, share).unbind()), mean)
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(padded[: len(flat)])
    return future


@contextmanager
def launched() -> Iterator[None]:
    """A context with the process group that a launcher such as torchrun describes in the environment, if it started
    several ranks.

    torchrun may keep its store when it restarts ranks, so each attempt has keys of its own in the store.
    """
    if dist.is_initialized() or launched_ranks() == 1:
        yield
        return
    store, rank, world = next(dist.rendezvous("env://"))
    of_attempt = dist.PrefixStore(f"restart {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group("gloo", store=of_attempt, rank=rank, world_size=world)
    try:
        yield
        dist.barrier()  # else a rank that ends while Gloo's threads serve another one may abort
    finally:
        dist.destroy_process_group()


def launched_ranks() -> int:
    """The environment's WORLD_SIZE, 1 if it is not set. Raises ValueError if it is not an integer of at least 1."""
    value = os.environ.get("WORLD_SIZE", "1")
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"WORLD_SIZE: expected an integer of at least 1, found {value!r}")
    return int(value)
