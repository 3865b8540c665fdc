import hashlib
import pickle

import pytest
import torch
from helpers import forked
from helpers.data import no_loader_threads, plain, processes, stop_workers
from helpers.forked import FORKED
from helpers.slow import SLOW
from torch_geometric.data import Data

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader
from torch_gnnscale.topology import rmat


def loader_of(data, seed=7, **kwargs):
    return NeighborLoader(data, [4, 3], **{"batch_size": 32, "shuffle": True, "seed": seed, **kwargs})


def epoch_of(loader):
    return [plain(batch) for batch in loader]


@pytest.fixture(scope="module")
def expected(data):
    """Three epochs, batch by batch, without threads or processes."""
    loader = loader_of(data, prefetch=0)
    return [epoch_of(loader) for _ in range(3)]


def test_two_runs(data, expected):
    assert epoch_of(loader_of(data)) == expected[0]
    assert epoch_of(loader_of(data)) == expected[0]


@pytest.mark.parametrize("prefetch", [0, 1, 4, 100])
def test_prefetch(data, expected, prefetch):
    loader = loader_of(data, prefetch=prefetch)
    assert [epoch_of(loader) for _ in range(3)] == expected


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_of_torch(data, expected, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert epoch_of(loader_of(data, prefetch=0)) == epoch_of(loader_of(data, prefetch=2)) == expected[0]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("filter_per_worker", [SLOW(True), False])
@pytest.mark.parametrize("persistent", [True, SLOW(False)])
@pytest.mark.parametrize("workers", [SLOW(1), 2])
def test_forked_workers(data, expected, filter_per_worker, persistent, workers):
    loader = loader_of(data, **processes(workers), filter_per_worker=filter_per_worker, persistent_workers=persistent)
    assert [epoch_of(loader) for _ in range(3)] == expected
    assert len(loader) == 7
    stop_workers(loader._iterator)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loader_that_has_made_batches_can_be_sent_to_a_process(data, expected, prefetch):
    loader = loader_of(data, prefetch=prefetch)
    assert epoch_of(loader) == expected[0]
    assert epoch_of(pickle.loads(pickle.dumps(loader))) == expected[1]


@pytest.mark.slow
@pytest.mark.parametrize(("filter_per_worker", "persistent"), [(True, True), (False, False)])
def test_workers_that_do_not_descend_from_this_process(data, expected, filter_per_worker, persistent):
    loader = loader_of(data, num_workers=1, filter_per_worker=filter_per_worker, persistent_workers=persistent,
                       multiprocessing_context=FORKED)  # fmt: skip
    assert [epoch_of(loader) for _ in range(2)] == expected[:2]
    stop_workers(loader._iterator)


@pytest.mark.slow
def test_stores_sent_to_workers(data, expected, tmp_path):
    FeatureStore.from_data(data).save(tmp_path / "features")
    GraphStore.from_data(data).save(tmp_path / "graph")
    stores = FeatureStore.open(tmp_path / "features"), GraphStore.open(tmp_path / "graph")
    loader = loader_of(stores, input_nodes=torch.arange(200), num_workers=1, multiprocessing_context=FORKED)
    for found, batch in zip(epoch_of(loader), expected[0], strict=True):
        assert dict(found).items() <= {**dict(batch), "num_nodes": dict(found)["num_nodes"]}.items()


@pytest.mark.slow
def test_persistent_workers_after_an_epoch_that_was_left(data, expected):
    loader = loader_of(data, **processes(2), persistent_workers=True)
    assert plain(next(iter(loader))) == expected[0][0]
    assert epoch_of(loader) == expected[1]
    stop_workers(loader._iterator)


OTHER_PROCESS = """
import hashlib, torch
from helpers.data import make_data, plain
from torch_gnnscale import NeighborLoader

torch.set_num_threads(1)
loader = NeighborLoader(make_data(), [4, 3], batch_size=32, shuffle=True, seed=7)
print(hashlib.sha256(repr([[plain(batch) for batch in loader] for _ in range(3)]).encode()).hexdigest())
"""


@pytest.mark.slow
def test_another_process(expected):
    digest = hashlib.sha256(repr(expected).encode()).hexdigest()
    done = forked.run(OTHER_PROCESS)
    assert done.stdout.strip() == digest, done.stderr


# Seeds and epochs ####################################################################################################


def test_epochs_differ(expected):
    order = [[dict(batch)["input_id"] for batch in epoch] for epoch in expected]
    assert order[0] != order[1] != order[2] != order[0]


def test_epochs_differ_without_a_shuffle(data):
    loader = loader_of(data, shuffle=False)
    first, second = epoch_of(loader), epoch_of(loader)
    assert [dict(batch)["input_id"] for batch in first] == [dict(batch)["input_id"] for batch in second]
    assert [dict(batch)["e_id"] for batch in first] != [dict(batch)["e_id"] for batch in second]
    # Batches of an epoch are drawn independently, even with the same seeds.
    same = NeighborLoader(data, [4, 3], batch_sampler=[list(range(30))] * 3, seed=0)
    drawn = [tuple(batch.e_id.tolist()) for batch in same]
    assert len(set(drawn)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch(data, expected, workers):
    loader = loader_of(data, **processes(workers), persistent_workers=workers > 0)
    for epoch in (2, 0, 1, 1):
        loader.set_epoch(epoch)
        assert epoch_of(loader) == expected[epoch]
    assert epoch_of(loader) == expected[2]
    stop_workers(loader._iterator)


def test_every_iterator_is_the_next_epoch(data, expected):
    loader = loader_of(data)
    next(iter(loader))
    iter(loader)
    assert epoch_of(loader) == expected[2]


@pytest.mark.parametrize("prefetch", [0, SLOW(1), 4])
@pytest.mark.parametrize("workers", [0, SLOW(1)])
def test_interleaved_iterators(data, expected, prefetch, workers):
    loader = loader_of(data, prefetch=prefetch, **processes(workers))
    one, two, three = iter(loader), iter(loader), iter(loader)
    found = [], [], []
    for i in range(7):
        for into, iterator in zip(found, (one, two, three) if i % 2 else (three, one, two), strict=True):
            into.append((iterator, plain(next(iterator))))
    for epoch, iterator in enumerate((one, two, three)):
        mine = [batch for into in zip(*found, strict=True) for owner, batch in into if owner is iterator]
        assert mine == expected[epoch]


def test_an_iterator_of_samples_is_closed(data):
    samples = NeighborLoader(data, [3], torch.arange(40), batch_size=5, prefetch=2).samples(0)
    next(samples)
    samples.close()
    assert no_loader_threads()
    assert list(samples) == []


@pytest.mark.parametrize("epoch", [0, 1])
def test_samples_of_an_epoch_in_the_middle_of_another(data, epoch):
    expected = [out.node for out in loader_of(data).samples(epoch)]
    loader = loader_of(data)
    iterator = iter(loader)
    delivered = [plain(next(iterator)) for _ in range(2)]
    found = [out.node for out in loader.samples(epoch)]
    assert len(found) == len(loader)
    assert all(map(torch.equal, found, expected))
    assert delivered + [plain(batch) for batch in iterator] == epoch_of(loader_of(data))


def test_seeds_differ(data, expected):
    for seed in (8, -7, 7 + (1 << 32)):
        assert epoch_of(loader_of(data, seed)) != expected[0]


def test_manual_seed_decides_where_no_seed_is_given(data):
    def batches(state, **kwargs):
        torch.manual_seed(state)
        return epoch_of(loader_of(data, None, **kwargs))

    first = batches(1)
    assert batches(1) == first
    assert batches(1, prefetch=0) == first
    assert batches(2) != first
    torch.manual_seed(1)
    one, other = loader_of(data, None), loader_of(data, None)
    assert one.seed != other.seed
    assert epoch_of(one) == first


def test_a_given_seed_leaves_torchs_generator_alone(data):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    for _ in loader_of(data):
        pass
    assert torch.equal(torch.rand(4), expected)


def test_torchs_generator_does_not_matter_where_a_seed_is_given(data, expected):
    torch.manual_seed(99)
    loader = loader_of(data)
    torch.rand(5)
    assert epoch_of(loader) == expected[0]


def test_the_batch_size_does_not_change_the_order(data):
    orders = []
    for batch_size in (10, 32, 200):
        loader = loader_of(data, batch_size=batch_size)
        orders.append(torch.cat([batch.input_id for batch in loader]).tolist())
    assert orders[0] == orders[1] == orders[2] != sorted(orders[0])


def test_ad_hoc_batches(data):
    one, other = loader_of(data)([5, 2]), loader_of(data, prefetch=0)([5, 2])
    assert plain(one) == plain(other)
    assert plain(loader_of(data, 8)([5, 2])) != plain(one)


def test_a_pickled_batch_is_the_batch(data, expected):
    assert [plain(pickle.loads(pickle.dumps(batch))) for batch in loader_of(data)] == expected[0]


def test_recorded_draws():
    """The draws of a seed are part of the interface: a change of them is a change for users."""
    graph = Data(num_nodes=200, edge_index=rmat(200, 1500, seed=3))
    first = next(iter(loader_of(graph, batch_size=3)))
    assert first.input_id.tolist() == [23, 173, 0]
    assert first.e_id.tolist() == [1185, 884, 999, 1401, 395, 1278, 361, 480, 406, 546, 1484, 90, 575, 1372]


def test_no_threads_are_left():
    assert no_loader_threads()
