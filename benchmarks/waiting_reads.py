"""A loop over a store whose reads wait, by the number of batches that are prepared; a part of bench_training.py.

A read takes 20 ms, as over a network, and a step 20 ms in which no core works, as on a GPU. The aim: with
``prefetch=8`` a step takes at most 1.1 times the model's time.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from common import compare, data_of, judged, report, say_aims
from torch import Tensor
from torch_geometric.data import Data, TensorAttr
from torch_geometric.data import FeatureStore as PyGFeatureStore

from torch_gnnscale import GraphStore, NeighborLoader

READ, STEP = 0.02, 0.02
"""Seconds."""
PREFETCH = (0, 1, 2, 4, 8, 16)


class Waiting(PyGFeatureStore):
    """Rows of a Data's x and y, after a while."""

    thread_safe = True

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.__dict__["data"] = data

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """See PyG's FeatureStore."""
        return [TensorAttr(None, "x"), TensorAttr(None, "y")]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        return tuple(self.data[attr.attr_name].shape)

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        time.sleep(READ)
        return self.data[attr.attr_name][attr.index]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise NotImplementedError

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise NotImplementedError


def measure_waits(batches: int, rounds: int) -> dict[str, Any]:
    """Milliseconds per step by ``prefetch``, and of the model alone, over so many batches."""
    data = data_of("200k-3M", 64, 16)
    stores = Waiting(data), GraphStore.from_data(data)
    seeds = torch.arange(256 * batches)

    def loop(prefetch: int) -> Any:
        loader = NeighborLoader(stores, [10, 5], seeds, batch_size=256, shuffle=True, seed=0, prefetch=prefetch)

        def epoch(_: int) -> None:
            for _batch in loader:
                time.sleep(STEP)

        return epoch

    loader = NeighborLoader(stores, [10, 5], seeds[:512], batch_size=256, shuffle=True, prefetch=2)
    assert all(torch.equal(batch.x, data.x[batch.n_id]) for batch in loader)
    alone = {"the model alone": lambda _: [time.sleep(STEP) for _ in range(batches)]}
    times = compare(alone | {f"prefetch={p}": loop(p) for p in PREFETCH}, max(1, rounds // 3), batches)
    report(f"a step, reads of {READ * 1e3:.0f} ms and a model of {STEP * 1e3:.0f} ms", times, "the model alone")
    ratio = times["prefetch=8"]["median_ms"] / times["the model alone"]["median_ms"]
    aims = {"a step over the model alone, prefetch=8": judged(ratio, most=1.1)}
    say_aims(aims)
    return {"times": times, "aims": aims}
