"""What ranks tell each other through the store of torch.distributed, without a collective."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from torch import distributed as dist

T = TypeVar("T")
_numbers = itertools.count()


def on_all_ranks(make: Callable[[], T], rank: int, world: int, timeout: float) -> T:
    """``make()``, once all ranks have made theirs. All ranks call this in the same order.

    Args:
        make: may raise OSError or ValueError.
        rank, world: of torch.distributed, which is needed if there are several.
        timeout: seconds to wait for the others.

    Raises:
        ValueError: on all ranks, if ``make`` failed on one of them, which is named.
        RuntimeError: a rank does not come.
    """
    if world == 1:
        return make()
    made, error = None, None
    try:
        made = make()
    except (OSError, ValueError) as found:
        error = found
    store, name = dist.distributed_c10d._get_default_store(), f"gnnscale/meeting/{next(_numbers)}"
    store.set(f"{name}/{rank}", "" if error is None else f"{type(error).__name__}: {error}")
    for other in range(world):
        try:
            store.wait([f"{name}/{other}"], timedelta(seconds=timeout))
        except (RuntimeError, dist.DistStoreError) as missing:
            raise RuntimeError(f"rank {other}: expected it to come within {timeout:g} seconds, found that it is "
                               f"missing") from missing  # fmt: skip
        if text := store.get(f"{name}/{other}").decode():
            raise ValueError(f"rank {other}: {text}") from error
    assert made is not None
    return made
