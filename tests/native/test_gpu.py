"""What only a GPU can show: random calls equal the CPU's, memory that processes share, registrations that end."""

import multiprocessing.queues
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from helpers.data import processes
from helpers.gpu_cases import (
    check_random_aggregation,
    check_random_choice,
    check_random_cut,
    check_random_gather,
    check_random_hop,
    check_random_layers,
    check_random_relabelling,
    check_random_sample,
    check_random_shuffle,
)
from helpers.graphs import assert_same, random_graph, random_ids, with_tensors
from helpers.tiers import NODES, node_data

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, ops
from torch_gnnscale import TieredFeatureStore as Tiered
from torch_gnnscale.feature import plan_tiers
from torch_gnnscale.feature.tier_devices import check_room
from torch_gnnscale.sampler.hop_by_hop import Frontier, sample_by_hops
from torch_gnnscale.stream_time import StreamTime

pytestmark = pytest.mark.cuda


# Equal to the CPU ####################################################################################################


def put(tensor: torch.Tensor, place: str) -> torch.Tensor:
    return tensor.pin_memory() if place == "pinned" else tensor.cuda()


@pytest.mark.parametrize("seed", range(200))
def test_random_gathers(seed):
    check_random_gather(seed, put)


@pytest.mark.parametrize("seed", range(60))
def test_random_samples(seed):
    check_random_sample(seed, put)


@pytest.mark.parametrize("seed", range(60))
def test_random_shuffles(seed):
    check_random_shuffle(seed, put)


@pytest.mark.parametrize("seed", range(60))
def test_random_aggregations(seed):
    check_random_aggregation(seed, put)


@pytest.mark.parametrize("seed", range(60))
def test_random_hops(seed):
    check_random_hop(seed, put)
    check_random_relabelling(seed, put)


@pytest.mark.parametrize("seed", range(60))
def test_random_cuts(seed):
    check_random_cut(seed, put)


@pytest.mark.parametrize("seed", range(60))
def test_random_layers(seed):
    check_random_layers(seed, put)
    check_random_choice(seed, put)


@pytest.mark.parametrize("disjoint", [False, True])
def test_hop_by_hop(disjoint):
    graph, seeds = random_graph(4000, 8, seed=5), random_ids(4000, 300, seed=6)
    there = ops.relations([graph.colptr.cuda()], [graph.row.pin_memory()])

    def pick(frontier: Frontier) -> ops.Picks:
        ends = [0, len(frontier.node)]
        return ops.pick_neighbors(there, frontier.node, ends, [7], frontier.hop, frontier.fanout, tree=frontier.tree)

    found = sample_by_hops(pick, seeds.cuda(), [5, -1, 40], disjoint=disjoint)
    assert found.node[0].is_cuda
    here = with_tensors(found, torch.Tensor.cpu)
    assert_same(here, graph.sample(ops, seeds, [5, -1, 40], 7, disjoint=disjoint))


def test_more_rows_than_a_grid_has_groups():
    table = torch.arange(1 << 10, device="cuda").to(torch.uint8).view(-1, 1)
    index = torch.randint(len(table), ((1 << 30) + 77,), dtype=torch.int32, device="cuda")
    assert torch.equal(ops.gather_tiers([table], index).view(-1), index.to(torch.uint8))


BROKEN = """
import torch
from torch_gnnscale import ops
parts, index = [torch.zeros(5, 3, device="cuda")], torch.arange(3, device="cuda")
ops.gather_tiers(parts, index, place=torch.tensor([0, 5, 1], device="cuda"))
torch.cuda.synchronize()
"""


def test_a_broken_map_stops_the_process_on_this_gpu():
    done = subprocess.run([sys.executable, "-c", BROKEN], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode != 0
    assert "device-side assert" in done.stderr
    assert "place has an entry that is out of range" in done.stdout + done.stderr


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

    def state() -> tuple[int, int, int]:
        torch.cuda.synchronize()
        maps = Path("/proc/self/maps").read_text().count("gnnscale-tiers")
        return len(os.listdir("/proc/self/fd")), maps, torch.cuda.memory_allocated()

    for round_ in range(1001):
        with Tiered.from_data(data, hotness="out_degree", gpu="30%") as store:
            if round_ % 100 == 0:
                assert torch.equal(store[None, "x", index].cpu(), data.x)
        del store
        if round_ == 0:
            before = state()
    assert state() == before
