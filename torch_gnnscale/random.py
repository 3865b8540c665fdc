"""Keys of random draws: draw = Philox(key, counter), key = mix(seed, epoch, number of the batch, purpose)."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._private import TorchDispatchMode

_MASK = (1 << 64) - 1


class Purpose(IntEnum):
    """The purpose of draws. Draws of different purposes are independent."""

    SAMPLE = 0
    SHUFFLE = 1
    AD_HOC = 2
    GENERATE = 3
    NEGATIVE = 4
    PARTITION = 5
    LAYER = 6
    TRAIN = 7
    TRANSFORM = 8
    POSITIVE = 9
    OWN_NEGATIVE = 10


def _mix(value: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014): a bijection of 64-bit words."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def batch_key(seed: int, epoch: int = 0, batch: int = 0, purpose: Purpose = Purpose.SAMPLE) -> int:
    """The 64-bit key of a batch, as the signed integer that the operators take.

    Args:
        seed: the run's seed, any integer; only its lower 64 bits are used.
        epoch: the number of the epoch.
        batch: the number of the batch in the epoch, counted over all ranks.
        purpose: the purpose of the draws.
    """
    key = _mixed(_mixed(_of_epoch(seed, epoch), batch), int(purpose))
    return key - (1 << 64) if key >> 63 else key


def _mixed(key: int, value: int) -> int:
    return _mix((key + 0x9E3779B97F4A7C15 & _MASK) ^ (value & _MASK))


@lru_cache(maxsize=64)
def _of_epoch(seed: int, epoch: int) -> int:
    """What the keys of an epoch's batches have in common."""
    return _mixed(_mixed(0, seed), epoch)


def ids_key(seed: int, ids: Tensor) -> int:
    """The key of a batch without a number: a hash of its ids (integers, any shape) takes the number's place."""
    return batch_key(seed, 0, digest(ids.to(torch.int64).contiguous().numpy().tobytes()), Purpose.AD_HOC)


def digest(data: bytes) -> int:
    """A hash of bytes, in [0, 2^64)."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def draw_seed(generator: torch.Generator | None = None) -> int:
    """A seed in [0, 2^62), drawn from ``generator``; by default from torch's own, which ``torch.manual_seed`` sets."""
    return int(torch.randint(1 << 62, (), generator=generator))


@contextmanager
def seeded_draws(key: int) -> Iterator[None]:
    """A context in which torch's, Python's and NumPy's own generators are seeded by a key; after it they go on as if it
    had not been. No other thread may draw from them meanwhile."""
    key &= _MASK
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(key)
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(key)
        random.seed(key)
        np.random.seed([key & 0xFFFFFFFF, key >> 32])
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


class NoDraws(TorchDispatchMode):
    """A context in which this thread may not draw from torch's own generators, which other threads use meanwhile. Draws
    from Python's and NumPy's are not seen.

    Args:
        name: what runs in it, for the error.

    Raises:
        RuntimeError: an operator that draws, without ``generator=``.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [*args, *(kwargs or {}).values()]
        if torch.Tag.nondeterministic_seeded in func.tags and not any(isinstance(x, torch.Generator) for x in given):
            raise RuntimeError(
                f"{self._name}: expected draws by generator= where ranks read or sample together, because a thread "
                f"shares torch's own generator with the model, found {func}; a generator may be seeded by the sample: "
                f"torch.Generator().manual_seed(int(out.node.sum()))"
            )
        return func(*args, **(kwargs or {}))
