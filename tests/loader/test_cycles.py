"""Batches whose memory is used again as soon as nothing refers to them, without Python's collector of cycles."""

import gc

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import LinkNeighborLoader, NeighborLoader, relational
from torch_gnnscale.datasets import planted_shop


def plain(tmp_path):
    data = Data(x=torch.randn(50, 3), edge_index=torch.randint(50, (2, 300)), time=torch.arange(50))
    return NeighborLoader(data, [3, 2], batch_size=10, time_attr="time", prefetch=0)


def typed(tmp_path):
    data = HeteroData(a={"x": torch.randn(50, 3)}, b={"x": torch.randn(20, 2), "names": [str(i) for i in range(20)]})
    data["b", "to", "a"].edge_index = torch.stack([torch.randint(20, (90,)), torch.randint(50, (90,))])
    data["a", "to", "b"].edge_index = data["b", "to", "a"].edge_index.flip(0)
    return NeighborLoader(data, [3, 2], "a", batch_size=10, prefetch=0)


def links(tmp_path):
    data = Data(x=torch.randn(50, 3), edge_index=torch.randint(50, (2, 300)))
    return LinkNeighborLoader(data, [3, 2], neg_sampling="binary", batch_size=50, prefetch=0)


def tables(tmp_path):
    return relational.task_loaders(planted_shop(tmp_path / "shop", 30), "customer-orders", [4, 4], batch_size=8)[
        "train"
    ]


@pytest.mark.parametrize("loader_of", [plain, typed, links, tables])
def test_a_batch_is_in_no_cycle(loader_of, tmp_path):
    batches = iter(loader_of(tmp_path))
    next(batches)  # what is made once
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            next(batches)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert [found for found in gc.garbage if isinstance(found, torch.Tensor)] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
