"""Stores on a GPU: memory that processes share, the order of streams, registrations that end."""

import gc
import multiprocessing.queues
import os
import pickle
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from helpers.data import processes
from helpers.tiers import NODES, node_data
from torch_geometric.data import Data

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader
from torch_gnnscale import TieredFeatureStore as Tiered
from torch_gnnscale.feature import plan_tiers
from torch_gnnscale.feature.tier_builder import check_room
from torch_gnnscale.feature.tiered_rows import StreamTime

pytestmark = pytest.mark.cuda


# Processes ###########################################################################################################


def read(store: Tiered, index: torch.Tensor, found: multiprocessing.queues.Queue) -> None:
    """In another process: sends what it gathers as bytes, so that no tensor depends on its life."""
    with store:
        found.put([store[None, name, index].cpu().numpy().tobytes() for name in ("x", "y", "train_mask")])


@pytest.mark.parametrize(
    "budgets", [{"gpu": "100%"}, {"gpu": "30%"}, {"gpu": "20%", "peers": ["30%"]}, {"device": "cuda"}], ids=str
)
def test_processes_that_share_a_gpu(budgets):
    """Rows on the GPU are opened by every process, rows in host memory are registered by each."""
    data, context = node_data(), torch.multiprocessing.get_context("spawn")
    index = torch.randint(NODES, (300,), generator=torch.Generator().manual_seed(0))
    expected = [data[name][index].numpy().tobytes() for name in ("x", "y", "train_mask")]
    with Tiered.from_data(data, hotness="out_degree", **budgets) as store:
        queues = [context.Queue() for _ in range(2)]
        processes = [context.Process(target=read, args=(store, index, queue)) for queue in queues]
        for process in processes:
            process.start()
        assert torch.equal(store[None, "x", index].cpu(), data.x[index])
        for process, queue in zip(processes, queues, strict=True):
            assert queue.get(timeout=120) == expected
            process.join(60)
            assert process.exitcode == 0
        assert torch.equal(store[None, "x", index].cpu(), data.x[index])


@pytest.mark.parametrize("budgets", [{"gpu": "30%"}, {"gpu": "30%", "renumbered": True}, {"device": "cuda"}], ids=str)
@pytest.mark.parametrize("prefetch", [0, 8])
@pytest.mark.parametrize("sampled_on", ["cpu", "cuda"])
def test_a_loader_over_tiers_on_a_gpu(sampled_on, prefetch, budgets):
    data = node_data()
    x, y = data.x.cuda(), data.y.cuda()
    with Tiered.from_data(data, hotness="out_degree", **budgets) as store:
        graph = GraphStore.from_data(data, order=store.order)
        options = {"batch_size": 20, "shuffle": True, "seed": 5, "prefetch": prefetch, "device": sampled_on}
        loader = NeighborLoader((store, graph), [4, 3], torch.arange(NODES), **options)
        wrong, rows = torch.zeros((), dtype=torch.int64, device="cuda"), 0
        for batch in loader:
            torch.cuda._sleep(10_000_000)  # the consumer's stream is behind, and nothing here waits for it
            ids = batch.n_id.pin_memory().to("cuda", non_blocking=True) if sampled_on == "cpu" else batch.n_id
            wrong += (batch.x != x[ids]).sum() + (batch.y != y[ids]).sum()
            assert batch.edge_index.device.type == sampled_on
            rows += len(batch.n_id)
        assert int(wrong) == 0
        assert set(loader.seconds) == {"sample", "gather", "stall"}
        stats = store.stats()
        assert sum(use.rows for use in stats.values()) == rows
        for use in stats.values():
            assert use.seconds > 0
            assert use.gb_per_s == pytest.approx(use.num_bytes / use.seconds / 1e9)


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_the_host_is_not_far_ahead_of_the_gpu(prefetch):
    data = node_data().cuda()
    loader = NeighborLoader(data, [3], torch.arange(NODES), batch_size=8, device="cuda", prefetch=prefetch, bulk=1)
    used = []
    for number, _ in enumerate(loader):
        if number > prefetch + 1:
            assert used[number - prefetch - 2].query()
        torch.cuda._sleep(50_000_000)
        used.append(torch.cuda.current_stream().record_event())
    assert len(used) > 6


def test_time_on_a_stream():
    time, device = StreamTime(), torch.device("cuda", 0)
    for _ in range(3):
        with time.measure(device):
            torch.cuda._sleep(20_000_000)
    assert 0.01 < time.seconds(wait=True) < 1
    assert time.seconds() == time.seconds(wait=True)
    assert pickle.loads(pickle.dumps(time)).seconds() == 0


def test_saved_features_on_peers(tmp_path):
    data, index = node_data(), torch.randint(NODES, (300,))
    FeatureStore.from_data(data).save(tmp_path / "features")
    with Tiered.open(tmp_path / "features", torch.arange(NODES), gpu="20%", peers=["30%"], host="20%") as store:
        assert [tier.name for tier in store.plan.tiers] == ["gpu", "peers", "host", "disk"]
        assert torch.equal(store[None, "x", index].cpu(), data.x[index])


def test_forked_workers_gather_no_rows_of_a_gpu():
    data = node_data()
    with Tiered.from_data(data, hotness="out_degree", gpu="30%") as store:
        loader = NeighborLoader((store, GraphStore.from_data(data)), [3], batch_size=20, seed=1, **processes(2))
        assert not loader.filter_per_worker
        for batch in loader:
            assert torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()])


@pytest.mark.parametrize("renumbered", [False, True])
def test_a_store_that_a_gpu_takes_over(renumbered):
    data, index = node_data(), torch.randint(NODES, (300,))
    with Tiered.from_data(data, hotness="out_degree", renumbered=renumbered, device="cpu") as store:
        ids = index if store.order is None else store.order.new[index]
        with store.on("cuda") as taken:
            assert taken[None, "x", ids].is_cuda
            assert torch.equal(taken[None, "x", ids].cpu(), data.x[index])
            assert torch.equal(store[None, "x", ids], data.x[index])
        assert taken.closed
        assert store.closed


def test_a_gpu_without_room():
    plan = plan_tiers(torch.ones(8), {"x": 1 << 44}, gpu="100%")
    with pytest.raises(
        MemoryError, match=r"^cuda:0: expected \d+ bytes of memory, found \d+ free; lower gpu= or peers=$"
    ):
        check_room(plan, torch.device("cuda", 0), 0, 0)


@pytest.mark.parametrize("budgets", [{"gpu": "100%"}, {"gpu": "50%", "peers": ["50%"]}], ids=str)
def test_memory_of_a_closed_store_is_not_reused_before_a_stream_has_read_it(budgets):
    """The stream is behind by far when the store is closed, and the next allocations are those that it had."""
    x = torch.randn(20_000, 64, generator=torch.Generator().manual_seed(0))
    index = torch.randint(len(x), (30_000,), generator=torch.Generator().manual_seed(1))
    falling, there, side = torch.arange(len(x)).flip(0), index.cuda(), torch.cuda.Stream()
    with Tiered.from_data(Data(x=x), hotness=falling, renumbered=True, **budgets) as store:
        assert {tier.name for tier in store.plan.tiers} == ({"gpu", "peers"} if "peers" in budgets else {"gpu"})
        assert torch.equal(store[None, "x", there].cpu(), x[index])
        sizes = [segment.nbytes for segment in store.rows_by_attribute()[None, "x"].segments]
        torch.zeros(9, dtype=torch.uint8, device="cuda")  # a kernel may be loaded at its first call, which waits
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(500_000_000)
            found = store.rows_by_attribute()[None, "x"].gather(there, check=False)  # a check would wait
    written = [torch.zeros(size, dtype=torch.uint8, device="cuda") for size in sizes * 3]
    torch.cuda.synchronize()
    assert torch.equal(found.cpu(), x[index])
    assert not any(int(entry.count_nonzero()) for entry in written)


# Registrations #######################################################################################################


def test_what_was_registered_is_no_longer():
    store = Tiered.from_data(node_data(), hotness="out_degree", gpu="30%")
    kept = store._memory._bytes
    assert kept.is_pinned()
    store.close()
    assert not kept.is_pinned()


def test_a_thousand_stores_leave_nothing():
    """The memory of one lies where the last one's was, which could not be registered if that still were."""
    data = node_data()
    index = torch.arange(NODES, device="cuda")
    others = {"gpu": "100%"}, {"gpu": "20%", "peers": ["30%"]}

    def state() -> tuple[int, int, int]:
        gc.collect()
        torch.cuda.synchronize()
        maps = Path("/proc/self/maps").read_text().count("gnnscale-tiers")
        return len(os.listdir("/proc/self/fd")), maps, torch.cuda.memory_allocated()

    for round_ in range(1021):
        budgets = others[round_ // 10 % 2] if round_ % 10 == 0 else {"gpu": "30%"}
        with Tiered.from_data(data, hotness="out_degree", **budgets) as store:
            if round_ % 10 == 0 or round_ % 100 == 1:
                assert torch.equal(store[None, "x", index].cpu(), data.x)
        del store
        if round_ == 20:  # each kind was there: what is made once, such as a stream's events, has been made
            before = state()
    assert state() == before
