"""The shares of ranks: what each makes of an epoch, and that together they make the epoch."""

import itertools
import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import forked
from helpers.data import make_data, plain
from helpers.slow import SLOW
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, RandomSampler

from torch_gnnscale import FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader
from torch_gnnscale.comm.mesh import Ranks
from torch_gnnscale.feature.contract import CollectiveRowStore
from torch_gnnscale.loader.epochs import Chunks, Epochs, Share
from torch_gnnscale.loader.order import KeyedShuffle, agreed_share
from torch_gnnscale.loader.row_source import StoreRows


def loader_of(shard=None, nodes=75, **options):
    options = {"batch_size": 10, "seed": 4, "shuffle": True, **options}
    return NeighborLoader(make_data(), [3, 2], torch.arange(nodes), shard=shard, **options)


def links_of(shard=None, **options):
    data = make_data()
    links = data.edge_index[:, :75]
    options = {"batch_size": 10, "seed": 4, "shuffle": True, "neg_sampling": "binary", **options}
    return LinkNeighborLoader(data, [3, 2], links, shard=shard, **options)


MODES = {
    "nodes": loader_of,
    "links": links_of,
    "disjoint": lambda shard=None, **options: loader_of(shard, disjoint=True, **options),
    "layers": lambda shard=None, **options: loader_of(shard, layers=True, **options),
    "bulk": lambda shard=None, **options: loader_of(shard, bulk=2, **options),
    "in input order": lambda shard=None, **options: loader_of(shard, **{**options, "shuffle": False}),
}


@pytest.mark.parametrize("make", MODES.values(), ids=MODES)
@pytest.mark.parametrize("drop_last", [SLOW(False), True])
def test_ranks_make_the_batches_of_one_process(make, drop_last):
    whole = make(drop_last=drop_last)
    for _ in range(2):
        expected = [plain(batch) for batch in whole]
        for world in (1, 2, 3):
            shares = [make((rank, world), uneven="serve", drop_last=drop_last) for rank in range(world)]
            for share in shares:
                share.set_epoch(whole.state_dict()["epoch"] - 1)
            found = [[plain(batch) for batch in share] for share in shares]
            assert [len(batches) for batches in found] == [len(share) for share in shares]
            dealt = [batch for step in itertools.zip_longest(*found) for batch in step if batch is not None]
            assert dealt == expected


def test_pad_takes_seeds_again_with_other_draws():
    expected = [dict(plain(batch))["input_id"] for batch in loader_of()]
    shares = [loader_of((rank, 3)) for rank in range(3)]
    found = [[dict(plain(batch)) for batch in share] for share in shares]
    assert [len(share) for share in shares] == [len(batches) for batches in found] == [3, 3, 3]
    assert found[2][2]["input_id"] == expected[0]  # batch 8 takes the seeds of batch 8 mod 8
    assert found[2][2]["e_id"] != found[0][0]["e_id"]


def test_drop_leaves_batches_out():
    expected = [plain(batch) for batch in loader_of()]
    shares = [loader_of((rank, 3), uneven="drop") for rank in range(3)]
    found = [[plain(batch) for batch in share] for share in shares]
    assert [len(share) for share in shares] == [2, 2, 2]
    assert [batch for step in zip(*found, strict=True) for batch in step] == expected[:6]


@pytest.mark.slow
@pytest.mark.parametrize("uneven", ["pad", "drop", "serve"])
def test_a_global_state_goes_on_with_any_number_of_ranks(uneven):
    whole = list(map(plain, loader_of(nodes=200)))  # 20 batches
    for before, after in ((2, 3), (3, 2), (1, 4), (4, 1)):
        first = [loader_of((rank, before), nodes=200, uneven=uneven) for rank in range(before)]
        iterators = [iter(loader) for loader in first]
        found = [plain(next(iterator)) for _ in range(2) for iterator in iterators]
        states = [loader.state_dict() for loader in first]
        assert all(state == states[0] for state in states)
        assert states[0]["batch"] == 2 * before
        then = [loader_of((rank, after), nodes=200, uneven=uneven, seed=9) for rank in range(after)]
        for loader in then:
            loader.load_state_dict(states[0])
        rest = [list(map(plain, loader)) for loader in then]
        found += [batch for step in itertools.zip_longest(*rest) for batch in step if batch is not None]
        count = len(found) if uneven == "drop" else len(whole)
        assert found[:count] == whole[:count]
        assert len(found) >= len(whole) - (after if uneven == "drop" else 0)


def test_the_state_of_all_batches_goes_on_in_shares():
    loader = loader_of(nodes=200)
    iterator = iter(loader)
    found = [plain(next(iterator)) for _ in range(4)]
    shares = [loader_of((rank, 2), nodes=200) for rank in range(2)]
    for share in shares:
        share.load_state_dict(loader.state_dict())
    rest = [list(map(plain, share)) for share in shares]
    found += [batch for step in zip(*rest, strict=True) for batch in step]
    assert found == list(map(plain, loader_of(nodes=200)))


def test_samples_are_those_of_the_share():
    loader = loader_of((1, 3))
    expected = [batch.n_id.tolist() for batch in loader]
    assert [out.node.tolist() for out in loader.samples(0)] == expected


@pytest.mark.slow
@given(
    st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(0, 9), min_size=4, max_size=4),
    st.sampled_from(["pad", "drop", "serve"]), st.integers(0, 3),
)  # fmt: skip
def test_owned_shares(parts, copies, counts, uneven, done):
    counts = counts[:parts]
    world = parts * copies
    shares = []
    for rank in range(world):
        share = Share(Ranks(rank, world, rank // copies, parts), "owned", uneven)
        smallest = min(len(range(r % copies, counts[r // copies], copies)) for r in range(world))
        if uneven != "serve" and 0 in counts:
            with pytest.raises(ValueError, match=rf"^uneven='{uneven}': expected part {counts.index(0)} to have at"):
                share.with_counts(counts)
            return
        if uneven == "drop" and smallest == 0:
            with pytest.raises(ValueError, match=rf"^uneven='drop': expected a batch for each of {world} ranks, found"):
                share.with_counts(counts)
            return
        shares.append(share.with_counts(counts))
    longest = max(math.ceil(count / copies) for count in counts)
    for rank, share in enumerate(shares):
        own = list(range(rank % copies, counts[rank // copies], copies))
        steps = {"pad": longest, "drop": smallest, "serve": len(own)}[uneven]
        found = list(share.positions(0))
        assert [step.number for step in found] == [s * world + rank for s in range(steps)]
        taken = [rank % copies + s * copies for s in range(steps)]
        assert [step.chunk for step in found] == taken
        assert share.steps_of_all(0) == longest
        later = min(done, len(found))
        assert list(share.positions(later * world)) == found[later:]  # after `later` steps of all ranks


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (ValueError, r"shard: expected a rank in [0, 2), found 2", {"shard": (2, 2)}),
        (TypeError, r"shard: expected True, False or (rank, number of ranks), found 3", {"shard": 3}),
        (TypeError, r"shard: expected an int, found float", {"shard": (0.0, 2)}),
        (ValueError, "shard=True: expected torch.distributed to be initialized; use (rank, number of ranks)",
         {"shard": True}),
        (ValueError, "seed: expected one with shard=(0, 2), the same on all ranks, found none",
         {"shard": (0, 2), "seed": None}),
        (ValueError, "seed_order='owned': expected the stores of a part, found others; use 'global'",
         {"shard": (0, 2), "seed_order": "owned"}),
        (ValueError, "seed_order: expected one of ('global', 'owned'), found 'local'",
         {"shard": (0, 2), "seed_order": "local"}),
        (ValueError, "uneven: expected one of ('pad', 'drop', 'serve'), found 'join'",
         {"shard": (0, 2), "uneven": "join"}),
        (ValueError, "seed_order, uneven: expected none with shard=None, which makes all batches", {"uneven": "drop"}),
        (ValueError, "shard: expected no DistributedSampler beside it, found one; with Lightning, pass "
         "use_distributed_sampler=False to the Trainer",
         {"shard": (0, 2), "shuffle": False, "sampler": DistributedSampler(range(75), 2, 0)}),
        (ValueError, "shard: expected neither sampler nor batch_sampler beside it, found one",
         {"shard": (0, 2), "shuffle": False, "sampler": RandomSampler(range(75))}),
        (ValueError, "uneven='drop': expected a batch for each of 9 ranks, found [8] in all",
         {"shard": (0, 9), "uneven": "drop"}),
        (ValueError, "uneven='pad': expected at least one batch, found none; use 'serve'",
         {"shard": (0, 2), "batch_size": 100, "drop_last": True}),
    ],
)  # fmt: skip
def test_bad_input(error, message, options):
    with pytest.raises(error) as found:
        loader_of(**options)
    assert str(found.value) == message


def test_nothing_to_do_is_no_error_for_serve():
    assert list(loader_of((1, 2), batch_size=100, uneven="serve")) == []
    assert list(loader_of((0, 1), batch_size=100, drop_last=True, uneven="serve")) == []


def test_a_state_of_another_order_of_seeds_is_refused():
    state = {**loader_of().state_dict(), "seed_order": "owned"}
    with pytest.raises(ValueError, match=r"expected a loader with seed_order='owned', found seed_order='global'$"):
        loader_of((0, 2)).load_state_dict(state)


RANKS = """
import sys, torch
from torch import distributed
from test_share import loader_of
from helpers.data import plain
rank, folder = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", f"file://{folder}/ranks", rank=rank, world_size=2)
torch.manual_seed(rank)  # rank 0's seed counts
loader = loader_of(True, seed=None)
torch.save((loader.seed, [plain(batch) for batch in loader]), f"{folder}/{rank}.pt")
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_shard_true_is_the_share_of_the_process_group_and_its_seed_is_rank_0s(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda rank: forked.run(RANKS, str(rank), str(tmp_path)), range(2)))
    assert [run.returncode for run in ended] == [0, 0], ended
    (seed, first), (of_other, second) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    torch.manual_seed(0)
    assert seed == of_other == loader_of(seed=None).seed
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        whole = [plain(batch) for batch in loader_of(seed=seed)]
    assert [batch for step in zip(first, second, strict=True) for batch in step] == whole


def test_inputs_of_a_step_of_all_ranks():
    chunks = Chunks(np.arange, 18, 4, drop_last=False)
    share = Share(Ranks(1, 3), "global", "pad").with_counts(chunks.counts)  # 5 batches
    assert [share.inputs_of_step(number, chunks.size_of) for number in (1, 4)] == [
        12,
        10,
    ]  # the last has 2, then the first
    serving = Share(Ranks(1, 3), "global", "serve").with_counts(chunks.counts)
    assert [serving.inputs_of_step(number, chunks.size_of) for number in (1, 4)] == [12, 6]


@pytest.mark.parametrize("rank", range(4))
def test_steps_after_a_resume_are_those_that_were_left(rank):
    share = Share(Ranks(rank, 4, rank // 2, 2), "owned", "pad", (8, 7))
    assert list(share.positions(8)) == list(share.positions(0))[2:]


@pytest.mark.parametrize("uneven", ["serve", "pad", "drop"])
def test_ranks_of_another_number_take_what_is_left(uneven):
    """Of 11 batches, after ``done`` by any number of ranks: each once, or as many as ``uneven`` says."""
    for done, world in itertools.product(range(11), (1, 2, 3, 4)):
        shares = [Share(Ranks(rank, world), "global", uneven).with_counts([11]) for rank in range(world)]
        taken = sorted(position.number for share in shares for position in share.positions(done))
        left = 11 - done
        count = {"serve": left, "pad": -(-left // world) * world, "drop": left // world * world}[uneven]
        assert taken == list(range(done, done + count))
        assert all(position.chunk == position.number for share in shares for position in share.positions(done))


def test_all_ranks_take_as_many_rounds_as_the_part_with_most():
    share = Share(Ranks(0, 4, 0, 2), "owned", "serve", (3, 5))
    assert (share.steps_of_all(0), share.steps_of_all(4)) == (3, 2)


class Steps:
    """Steps with another rank, which says ``others``."""

    def __init__(self, *others):
        self.others = others

    def gather(self, value):
        return [value, *self.others]


def test_what_is_wrong_with_the_inputs_of_one_rank_names_it():
    share, decides = Share(Ranks(0, 2, 0, 2), "owned", "pad"), {"seed": 1}
    for own, other, text in (
        (None, "too few", "rank 1: too few"), ("too few", "too few", "too few"), ("none", "too few", "rank 0: none"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{text}$"):
            agreed_share(share, Steps((decides, [1], 1, other, 0)), decides, [1], own, 0)


def test_parts_have_inputs_and_numbers_of_batches_of_their_own():
    share = Share(Ranks(1, 4, 0, 2), "owned", "pad")
    said = {part: {"seed": 1, "inputs": part, "key_of_inputs": 7 + part} for part in range(2)}
    others = [(said[part], [3 + part], part, None, 6) for part in (0, 1, 1)]
    found, inputs, seed = agreed_share(share, Steps(*others), said[0], [3], None, 5)
    assert (found.counts, inputs, seed) == ((3, 4), {"inputs": [0, 1], "key_of_inputs": [7, 8]}, 5)
    for at, name, value, of in ((0, "inputs", 5, "the ranks of part 0"), (2, "seed", 2, "all ranks")):
        differs = [*others]
        differs[at] = ({**others[at][0], name: value}, *others[at][1:])
        with pytest.raises(ValueError, match=f"^{name}: expected the same on {of}, found "):
            agreed_share(share, Steps(*differs), said[0], [3], None, 5)


class RowsOfTwo(FeatureStore, CollectiveRowStore):
    """Rows that two ranks read together, of which the other one has another ``bulk``."""

    ranks = Ranks(0, 2)
    beyond_part = None

    def row_source(self, *given):
        return StoreRows(self, *given)

    def open_steps(self):
        def gather(value):
            decides, *others = value
            return [value, ({**decides, "bulk": 3}, *others)]

        return SimpleNamespace(gather=gather, drop=lambda: None)


def test_ranks_whose_bulks_differ_are_told():
    stores = RowsOfTwo(), GraphStore.from_data(make_data())
    with pytest.raises(ValueError, match=r"^bulk: expected the same on all ranks, found \[2, 3\]$"):
        NeighborLoader(stores, [3], batch_size=10, seed=4, seed_order="global", bulk=2)


def test_each_part_has_a_shuffle_of_its_own_and_may_have_no_seeds():
    orders = [KeyedShuffle(range(50), Epochs(7), part=part).positions(0).tolist() for part in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len(set(map(tuple, orders))) == 3
    assert orders[2] == KeyedShuffle(range(9), Epochs(7)).permutation(50, 0, 2).tolist()
    nobody = KeyedShuffle(range(0), Epochs(7), part=1)
    assert (len(nobody), list(nobody)) == (0, [])
