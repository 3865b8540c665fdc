"""DataLoaders and samplers that other tools make of a loader's parts: Accelerate's, Ray's, Lightning's."""

import itertools
import warnings
from collections import deque
from types import SimpleNamespace

import pytest
import torch
from helpers.cluster import cluster
from helpers.data import make_data, processes
from helpers.parts import with_links
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from torch_gnnscale import FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader
from torch_gnnscale.distributed import open_part
from torch_gnnscale.loader import adapter
from torch_gnnscale.loader.epochs import Epochs, FromElsewhere

TOLD = r"^another DataLoader, such as those that Accelerate and Ray make, takes this loader.s inputs"
WITHOUT_NUMBERS = r"prepare_data_loader\(.*\)\)\. Its batches have no numbers, so their neighbors are drawn by"


def loader_of(data, **options):
    return NeighborLoader(data, [3, 2], torch.arange(150), **{"batch_size": 16, "seed": 5, "shuffle": True, **options})


def plain(batches):
    return [(batch.n_id.tolist(), batch.e_id.tolist(), batch.input_id.tolist(), batch.x.tolist()) for batch in batches]


class Dealt(BatchSampler):
    """Batch s of rank r of P is the (sP + r)-th, as Accelerate deals them."""

    def __init__(self, batches, rank, world):
        self.batches, self.rank, self.world = batches, rank, world

    def __iter__(self):
        return itertools.islice(iter(self.batches), self.rank, None, self.world)

    def __len__(self):
        return len(range(self.rank, len(self.batches), self.world))


def of_batches(loader, rank=0, world=1, **options):
    """As Accelerate makes a DataLoader of a loader."""
    batches = Dealt(loader.batch_sampler, rank, world)
    return DataLoader(loader.dataset, batch_sampler=batches, collate_fn=loader.collate_fn, **options)


def of_inputs(loader, rank, world, shuffle):
    """As Ray's prepare_data_loader makes a DataLoader of a loader."""
    sampler = DistributedSampler(loader.dataset, world, rank, shuffle=shuffle)
    return DataLoader(loader.dataset, loader.batch_size, sampler=sampler, collate_fn=loader.collate_fn)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("options", [{}, {"filter_per_worker": False}, {"drop_last": True}], ids=str)
def test_batches_dealt_by_others_are_the_loader_s(options, shuffle):
    data = make_data()
    if "filter_per_worker" in options:
        data = FeatureStore.from_data(data), GraphStore.from_data(data)
    one = loader_of(data, shuffle=shuffle, **options)
    expected = [plain(one) for _ in range(3)]
    for rank in range(2):
        loader = loader_of(data, shuffle=shuffle, **options)
        others = of_batches(loader, rank, 2)
        assert isinstance(loader.sampler, RandomSampler if shuffle else SequentialSampler)  # which Ray asks
        with pytest.warns(UserWarning, match=TOLD) as told:
            found = [plain(others) for _ in range(2)]
        assert len(told) == 1
        loader.sampler.set_epoch(1)  # as Accelerate does before each epoch
        assert [*found, plain(others)] == [expected[0][rank::2], expected[1][rank::2], expected[1][rank::2]]


@pytest.mark.filterwarnings("ignore:another DataLoader")
def test_batches_of_another_size_have_numbers_of_their_own():
    loader = loader_of(make_data(), drop_last=False)
    found = []
    loader._line.sample, sample = (lambda index: (found.append(index.number), sample(index))[1]), loader._line.sample
    deque(DataLoader(loader.dataset, 5, sampler=loader.sampler, collate_fn=loader.collate_fn), maxlen=0)
    assert len(found) == len(set(found)) == 30
    assert found[0] == 0  # begins where batch 0 of the loader does


@pytest.mark.slow
def test_batches_dealt_by_others_to_worker_processes():
    expected, loader = loader_of(make_data()), loader_of(make_data(), **processes(1))
    others = of_batches(loader, num_workers=2)
    assert [plain(others) for _ in range(2)] == [plain(expected) for _ in range(2)]


@pytest.mark.filterwarnings("ignore:another DataLoader")
def test_links_dealt_by_others_go_on_from_a_state():
    data = make_data()

    def made():
        return LinkNeighborLoader(data, [2], data.edge_index[:, :90], neg_sampling="binary", batch_size=20, seed=3)

    expected, loader = [plain(made())][0], made()
    loader.load_state_dict({**made().state_dict(), "batch": 2})
    assert plain(of_batches(loader)) == expected[2:]


@pytest.mark.parametrize("shuffle", [True, False])
def test_inputs_dealt_by_others_are_told_of(shuffle):
    loader = loader_of(make_data(), shuffle=shuffle)
    with pytest.warns(UserWarning, match=WITHOUT_NUMBERS) as told:
        found = [[plain(of_inputs(loader, rank, 2, shuffle)) for rank in range(2)] for _ in range(2)]
    assert len(told) == 1
    assert found[0] == found[1]
    seeds = [seed for batches in found[0] for batch in batches for seed in batch[2]]
    assert sorted(seeds) == list(range(150))


def test_a_loader_itself_and_its_calls_are_silent():
    loader = loader_of(make_data())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        list(loader)
        loader([3, 4])
        list(loader_of(make_data(), sampler=loader.sampler))


# Lightning's way: a loader that is made again, or sent to an epoch ####################################################


@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_sampler_that_deals_to_ranks_draws_by_rank_and_epoch(prefetch):
    data = make_data()
    every = range(150)

    def made(rank):
        sampler = DistributedSampler(every, 2, rank, shuffle=False)
        return loader_of(data, shuffle=False, batch_size=15, sampler=sampler, prefetch=prefetch), sampler

    (first, _), (second, _) = made(0), made(1)
    assert [batch.number for batch in first._index_sampler] == [0, 2, 4, 6, 8]
    assert [batch.number for batch in second._index_sampler] == [1, 3, 5, 7, 9]
    epochs = [plain(first) for _ in range(3)]
    assert epochs[0] != epochs[1]
    again, of_again = made(0)
    iterator = iter(again)
    of_again.set_epoch(2)  # between iter() and the first batch
    assert again.state_dict()["epoch"] == 2
    assert plain(iterator) == epochs[2]
    assert again.state_dict()["epoch"] == 3
    again, of_again = made(0)
    older, latest = iter(again), iter(again)
    of_again.set_epoch(2)
    assert plain(older) == epochs[0], "it was sent nowhere"
    assert plain(latest) == epochs[2]


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_rank_whose_sampler_deals_goes_on_within_an_epoch(ahead):
    """``ahead``: the epoch that the sampler is sent to; the loader counts from 0."""
    data = make_data()

    def made():
        sampler = DistributedSampler(range(150), 2, 1, shuffle=True)
        sampler.set_epoch(ahead)
        return loader_of(data, shuffle=False, batch_size=15, sampler=sampler), sampler

    expected, (left, _) = plain(made()[0]), made()
    iterator = iter(left)
    for taken in range(1, 5):
        assert plain([next(iterator)]) == expected[taken - 1 : taken]
        state = left.state_dict()
        assert (state["epoch"], state["batch"]) == (ahead, taken)
        again, of_again = made()
        again.load_state_dict(state)
        assert plain(again) == expected[taken:]
        of_again.set_epoch(ahead + 3)  # the state's position is of an earlier epoch
        again.load_state_dict(state)
        state = again.state_dict()
        assert (state["epoch"], state["batch"]) == (ahead + 3, 0)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"prefetch": 4}, {"bulk": 3}, {"shuffle": False, "prefetch": 2}], ids=str)
def test_an_iterator_is_sent_to_an_epoch_before_its_first_batch(options):
    data = make_data()
    whole = loader_of(data, **options)
    expected = [plain(whole) for _ in range(5)]
    loader = loader_of(data, **options)
    iterator = iter(loader)
    loader.sampler.set_epoch(2)
    assert plain(iterator) == expected[2]
    assert plain(loader) == expected[3]
    # A state within an epoch stays where it is; one at an epoch's end goes on in the next.
    for batch, epoch, rest in ((4, 1, expected[1][4:]), (10, 2, expected[2])):
        loader.load_state_dict({**loader.state_dict(), "epoch": 1, "batch": batch})
        iterator = iter(loader)
        loader.sampler.set_epoch(epoch)
        assert plain(iterator) == rest
        assert plain(loader) == expected[epoch + 1]


@pytest.mark.parametrize(("start", "epoch", "batch"), [((0, 0), 2, 0), ((1, 4), 1, 4), ((0, 0), 0, 0)], ids=str)
def test_an_iterator_in_the_place_of_one_that_was_sent_to_an_epoch_begins_there(start, epoch, batch):
    data = make_data()
    expected = [plain(list(b)) for loader in [loader_of(data)] for b in [loader] * 4]
    loader = loader_of(data)
    loader.load_state_dict({**loader.state_dict(), "epoch": start[0], "batch": start[1]})
    sent = iter(loader)
    loader.sampler.set_epoch(epoch)
    assert plain(loader) == expected[epoch][batch:]
    assert plain(loader) == expected[epoch + 1]
    del sent


def test_epochs_follow():
    epochs = Epochs(seed=1)
    epochs.follow_epoch(3)
    assert epochs.position == (3, 0)
    epochs.set_next(3, 7)
    epochs.follow_epoch(3)
    assert epochs.position == (3, 7)
    epochs.begin()
    dropped = epochs.follow(lambda: iter("ab"))
    assert next(dropped) == "a"
    epochs.follow_epoch(3)  # the next iterator's epoch was 4
    epochs.begin()
    assert epochs.position == (3, 0)
    del dropped
    dropped = epochs.follow(lambda: iter("ab"))
    del dropped  # without a batch: no iterator is left to go elsewhere
    epochs.follow_epoch(9)
    epochs.begin()
    assert epochs.position == (9, 0)


# Refused ##############################################################################################################


def take_by_another(path):
    with open_part(path) as part:
        loader = NeighborLoader((part.features, part.graph), [2], part.input_nodes("train"), batch_size=8, seed=1)
        try:
            next(iter(of_batches(loader)))
        except ValueError as error:
            return str(error)


@pytest.mark.slow
def test_ranks_that_make_their_batches_together_are_asked_by_no_other_loader(tmp_path_factory):
    _, path = with_links(tmp_path_factory, 2)
    text = (
        "NeighborLoader: expected to be iterated itself, because its ranks make their batches together, found another "
        "DataLoader that was made of it; leave it out of Accelerate's prepare() and Ray's prepare_data_loader()"
    )
    assert cluster(2).run(take_by_another, path) == [text] * 2


@pytest.mark.parametrize(("worker", "warnings_"), [(None, 1), (0, 1), (1, 0)])
def test_the_loop_or_its_first_worker_warns_once(monkeypatch, recwarn, worker, warnings_):
    info = None if worker is None else SimpleNamespace(id=worker)
    monkeypatch.setattr(adapter, "get_worker_info", lambda: info)
    positions = adapter.InputPositions(10, 4)
    for _ in range(2):
        assert isinstance(positions.__getitems__([0, 1]), FromElsewhere)
    assert [str(each.message) for each in recwarn] == [adapter.FOREIGN + adapter.WITHOUT_NUMBERS] * warnings_
