"""Tiered stores sent to processes that share nothing by birth: equal rows, one memory, common counts."""

import multiprocessing.queues
import os

import pytest
import torch
import torch.multiprocessing
from helpers.data import plain
from helpers.forked import FORKED
from helpers.tiers import NODES, make, node_data, own_ids

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader
from torch_gnnscale import TieredFeatureStore as Tiered
from torch_gnnscale.topology.reorder import reorder_data


def read(store: Tiered, index: torch.Tensor, found: multiprocessing.queues.Queue) -> None:
    """In another process: sends what it gathers as bytes, so that no tensor depends on its life."""
    with store:
        found.put([store[None, name, index].numpy().tobytes() for name in ("x", "y", "train_mask")])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "budgets", "context"),
    [
        ("from_data", "renumbered memory and disk", torch.multiprocessing.get_context("spawn")),
        ("open", "memory and disk", FORKED),
    ],
    ids=["spawned", "forked elsewhere"],
)
def test_another_process(way, budgets, context, tmp_path):
    data = node_data()
    index = torch.randint(NODES, (300,), generator=torch.Generator().manual_seed(0))
    with make(way, budgets, tmp_path) as store:
        files = sorted(tmp_path.rglob("*"))
        found = context.Queue()
        process = context.Process(target=read, args=(store, own_ids(store, index), found))
        process.start()
        rows = found.get(timeout=120)
        process.join(60)
        assert process.exitcode == 0
        assert rows == [data[name][index].numpy().tobytes() for name in ("x", "y", "train_mask")]
        assert sum(use.rows for use in store.stats().values()) == 300
        assert store.stats()["disk"].rows > 0
        assert sorted(tmp_path.rglob("*")) == files  # the other process closed its own
        assert torch.equal(store[None, "x", own_ids(store, index)], data.x[index])


@pytest.mark.slow
def test_workers(tmp_path):
    data = node_data()
    options = {"num_neighbors": [4, 3], "batch_size": 20, "shuffle": True, "seed": 5}
    seeds = torch.arange(0, NODES, 3)
    with make("from_data", "renumbered memory and disk", tmp_path) as store:
        graph = GraphStore.from_data(data, order=store.order)
        loader = NeighborLoader(
            (store, graph), input_nodes=seeds, num_workers=2, multiprocessing_context=FORKED,
            filter_per_worker=True, **options,
        )  # fmt: skip
        moved = reorder_data(data, store.order)
        stores = FeatureStore.from_data(moved), GraphStore.from_data(moved)
        expected = NeighborLoader(stores, input_nodes=store.order.new[seeds], **options)
        rows = 0
        for ours, theirs in zip(loader, expected, strict=True):
            theirs.n_id = store.order.old[theirs.n_id]
            assert plain(ours) == plain(theirs)
            rows += len(ours.n_id)
        assert sum(use.rows for use in store.stats().values()) == rows
    assert os.listdir(tmp_path) == []
