"""A plan's store: every rank reads its own rows, at the rates that the plan's counts predict, from shared memory."""

import functools
import os
import re
from types import SimpleNamespace

import pytest
import torch
from helpers.cluster import cluster
from helpers.data import make_data
from helpers.slow import SLOW
from torch import distributed as dist
from torch_geometric.data import Data

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, TieredFeatureStore, split
from torch_gnnscale.comm.rendezvous import rank_and_world
from torch_gnnscale.split.planning import FIRST_EPOCH

SEEDS = torch.arange(0, 200, 3)


def graph() -> Data:
    data = make_data()
    del data.edge_attr
    data.x = torch.arange(200)[:, None] * 1.0 + torch.arange(24) / 64
    return data


@functools.cache
def plan_of(parts: int) -> split.Plan:
    owners = torch.randint(parts, (200,), generator=torch.Generator().manual_seed(parts))
    return split.plan(graph(), SEEDS, [3, 2], parts, weights=owners, batch_size=16, epochs=2)


def opened(data: Data, folder: str | None) -> FeatureStore | Data:
    if folder is None:
        return data
    return FeatureStore.open(os.path.join(folder, "features"))


def read(parts: int, folder: str | None, options: dict) -> tuple:
    """(all own rows are right, tiers with what is expected and what was found there, the memory) of this rank."""
    data, plan = graph(), plan_of(parts)
    rank, world = rank_and_world()
    mine = plan.owners == rank % parts if world > 1 else torch.ones(200, dtype=torch.bool)
    loader = NeighborLoader(data, [3, 2], SEEDS, batch_size=16, shuffle=True, seed=0, shard=False)
    with plan.store(opened(data, folder), **options) as store:
        right = True
        for epoch in (FIRST_EPOCH, FIRST_EPOCH + 1):
            for out in loader.samples(epoch):
                own = out.node[mine[out.node]]
                right &= torch.equal(store[None, "x", own].cpu(), data.x[own])
        expected = {tier.name: tier.hit_rate for tier in store.plan.tiers}
        found = {name: (use.rows, use.hit_rate) for name, use in store.stats().items()}
        status = os.fstat(store._memory._descriptor)
        right &= torch.equal(store[None, "x", None].cpu(), data.x)
        if "gpu" in options:
            on_gpu = store._tensors[None, "x"].place.cpu() < store.plan.rows("gpu")
            others = plan.rows[mine & ~on_gpu]
            right &= 0 < int(on_gpu.sum()) == int((on_gpu & mine).sum()) == store.plan.rows("gpu")
            right &= int(plan.rows[on_gpu].min()) >= int(others.max())
        if world > 1:
            dist.barrier()
        return right, expected, found, (status.st_dev, status.st_ino), int(plan.rows[mine].sum())


def check(found: list[tuple], tiers: list[str]) -> None:
    for right, expected, uses, memory, reads in found:
        assert right
        assert list(expected) == list(uses) == tiers
        assert sum(rows for rows, _ in uses.values()) == reads
        for name, (_, rate) in uses.items():
            assert rate == pytest.approx(expected[name])
        assert memory == found[0][3]
    assert len({tuple(expected.items()) for _, expected, *_ in found}) == len(found) or len(tiers) == 1


@pytest.mark.parametrize("options", [{}, {"host": "40%"}], ids=str)
@pytest.mark.parametrize("files", [False, SLOW(True)])
def test_without_other_ranks_all_rows_are_own(tmp_path, options, files):
    if files:
        FeatureStore.from_data(graph()).save(tmp_path / "features")
    elif options:
        options = {**options, "disk": tmp_path}
    check([read(3, str(tmp_path) if files else None, options)], ["host", "disk"] if options else ["host"])


@pytest.mark.slow
@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize(("world", "parts"), [(2, 2), (4, 2), (3, 3)])
def test_ranks_share_memory_and_read_what_was_predicted(tmp_path, world, parts, files):
    FeatureStore.from_data(graph()).save(tmp_path / "features")
    options = {"host": "40%"} if files else {"host": "40%", "disk": str(tmp_path)}
    found = cluster(world).run(read, parts, str(tmp_path) if files else None, options)
    for first, again in zip(found, found[parts:], strict=False):  # the ranks of one part
        assert first[1:] == again[1:]
    check(found[:parts], ["host", "disk"])


@pytest.mark.cuda
@pytest.mark.parametrize("world", [1, SLOW(2)])
def test_the_hottest_own_rows_are_on_the_gpu(world):
    """Two ranks may share one."""
    options = None, {"gpu": "30%"}
    check(cluster(world).run(read, world, *options) if world > 1 else [read(3, *options)], ["gpu", "host"])


def trained_on(folder: str) -> tuple:
    """The nodes of each batch of the presampled epochs on this rank; what its tiers were expected and found to have."""
    data, plan, nodes = graph(), plan_of(2), []
    with plan.store(data, host="40%", disk=folder, names=["x"]) as store:
        stores = store, GraphStore.from_data(data)
        loader = NeighborLoader(stores, [3, 2], SEEDS, batch_size=16, shuffle=True, seed=0, split=plan)
        loader.set_epoch(FIRST_EPOCH)
        for _ in range(2):
            for batch in loader:
                assert torch.equal(batch.x, data.x[batch.n_id])
                nodes.append(batch.n_id.tolist())
        expected = {tier.name: tier.hit_rate for tier in store.plan.tiers}
        found = {name: (use.rows, use.hit_rate) for name, use in store.stats().items()}
        dist.barrier()
        return nodes, expected, found, int(plan.rows[plan.owners == dist.get_rank()].sum())


@pytest.mark.slow
def test_ranks_of_a_loader_read_each_node_of_a_batch_once(tmp_path):
    """Together as many rows as one process, which reads those of a batch's distinct nodes."""
    ranks = cluster(2).run(trained_on, str(tmp_path))
    loader = NeighborLoader(graph(), [3, 2], SEEDS, batch_size=16, shuffle=True, seed=0)
    whole = [out.node.tolist() for epoch in (0, 1) for out in loader.samples(FIRST_EPOCH + epoch)]
    assert [sorted(first + second) for first, second in zip(*(nodes for nodes, *_ in ranks), strict=True)] == [
        sorted(set(nodes)) for nodes in whole
    ]
    assert sum(rows for _, _, found, _ in ranks for rows, _ in found.values()) == sum(map(len, whole))
    for nodes, expected, found, reads in ranks:
        assert sum(map(len, nodes)) == reads == sum(rows for rows, _ in found.values())
        assert {name: rate for name, (_, rate) in found.items()} == pytest.approx(expected)
        assert min(rows for rows, _ in found.values()) > 0


@pytest.mark.parametrize("world", [1, 3])
def test_hot_rows_of_all_ranks_are_in_memory(tmp_path, monkeypatch, world):
    """The first of several ranks makes the store of its machine, which is seen here before others open it."""
    rendezvous = SimpleNamespace(machines=["here"] * world, all_made=lambda make: make(), close=lambda: None)
    fakes = {
        "rank_and_world": lambda: (0, world),
        "Rendezvous": lambda *_: rendezvous,
        "opened_once": lambda budgets, machines, rendezvous, make_store, opened: make_store(world),
        "own_view": lambda store, *_: store,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(f"torch_gnnscale.split.rank_rows.{name}", fake)
    with plan_of(3).store(graph(), host="40%", disk=tmp_path) as store:
        rows, hot = plan_of(3).rows, torch.arange(200)
        place = store._tensors[None, "x"].place
        kept = hot[place < store.plan.rows("host")]
        assert int(rows[kept].min()) >= int(rows[hot[place >= store.plan.rows("host")]].max())


def store_of(parts: int, budgets: list, data: Data | None = None) -> None:
    """A store, on rank 1 of ``data``."""
    data = graph() if data is None or dist.get_rank() == 0 else data
    plan_of(parts).store(data, host=budgets[dist.get_rank()]).close()


@pytest.mark.parametrize(
    ("parts", "budgets", "message"),
    [
        (2, ["1MiB", "2MiB"], "rank 0: ValueError: tiers: expected equal budgets on ranks that share them, found "),
        (3, [None, None], "rank 0: ValueError: ranks: expected a multiple of 3 parts, found 2 ranks"),
        (2, [10, 10], "rank 0: ValueError: "),
    ],
)
def test_what_fails_on_one_rank_is_raised_on_all(parts, budgets, message):
    for done, error in cluster(2).results(store_of, parts, budgets):
        assert not done
        assert error.startswith(f"ValueError: {message}")


def test_a_graph_of_one_rank_that_has_other_nodes():
    text = "ValueError: rank 1: ValueError: data: expected a row of 'x' for each of 200 nodes, found 7"
    assert cluster(2).results(store_of, 2, [None, None], Data(x=torch.zeros(7, 2))) == [(False, text)] * 2


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: make_data(30, 50),
            NotImplementedError,
            "tiers of edges' attributes are not implemented, found ['edge_attr']; name the others by names=",
        ),
        (
            lambda: Data(x=torch.zeros(7, 2)),
            ValueError,
            "data: expected a row of 'x' for each of 200 nodes, found 7",
        ),
        (lambda: 3, NotImplementedError, "data: expected a Data, or a FeatureStore in the user's ids, found a int"),
        (
            lambda: TieredFeatureStore.from_data(graph(), hotness="out_degree"),
            NotImplementedError,
            "data: expected a Data, or a FeatureStore in the user's ids, found a TieredFeatureStore",
        ),
        (FeatureStore, ValueError, "names: expected some of [], found []"),
    ],
)
def test_refusals(make, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        plan_of(3).store(make())


class Halved(FeatureStore):
    """Rows that are not as they lie in memory or in files."""

    def _get_tensor(self, attr):
        return super()._get_tensor(attr) / 2


def test_rows_are_those_that_a_store_returns(tmp_path):
    FeatureStore.from_data(graph()).save(tmp_path / "features")
    for halved in (Halved.from_data(graph()), Halved.open(tmp_path / "features")):
        with plan_of(3).store(halved, names=["x"], host=1000, disk=tmp_path) as store:
            assert torch.equal(store[None, "x", None], graph().x / 2)


@pytest.mark.slow
def test_a_loader_reads_it(tmp_path):
    data = graph()
    with plan_of(3).store(data, host="40%", disk=tmp_path) as store:
        stores = store, GraphStore.from_data(data)
        for batch in NeighborLoader(stores, [3, 2], SEEDS, batch_size=16):
            assert torch.equal(batch.x, data.x[batch.n_id])
