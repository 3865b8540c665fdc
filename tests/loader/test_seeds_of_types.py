"""Loaders whose seeds have several node types: which are in a batch, its fields, and the same batches by every way."""

import copy
import pickle

import pytest
import torch
from helpers.cluster import cluster
from helpers.data import our_stores, plain, processes, stop_workers
from helpers.hetero import AUTHOR, PAPER, VENUE, check_edges, foreign_stores, make_hetero
from helpers.parts import as_plain, stores_of
from helpers.slow import SLOW
from helpers.typed_seeds import AUTHORS, IDS, PAPERS, SEEDS, TIMES, data_of, loader_of
from torch_geometric.nn import SAGEConv, to_hetero

from torch_gnnscale import NeighborSampler, ops, partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.loader import accesses
from torch_gnnscale.loader.epochs import Epochs
from torch_gnnscale.loader.order import ChunksOfTypes, KeyedShuffle
from torch_gnnscale.nn import narrow
from torch_gnnscale.random import Purpose, batch_key

MODES = {
    "directional": {},
    "induced": {"subgraph_type": "induced"},
    "disjoint": {"disjoint": True},
    "weighted": {"weight_attr": "weight", "replace": True},
}


def inputs_of(epoch, size=6, shuffle=True):
    """By the definition: per batch, the positions of its inputs in the list of each type."""
    count = sum(map(len, IDS.values()))
    order = torch.arange(count)
    if shuffle:
        order = ops.permutation(count, batch_key(3, epoch, 0, Purpose.SHUFFLE))
    for chunk in order.split(size):
        begin, found = 0, {}
        for of, ids in IDS.items():
            found[of] = torch.tensor([p - begin for p in chunk.tolist() if begin <= p < begin + len(ids)]).long()
            begin += len(ids)
        yield found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_batch_is_the_sample_of_what_falls_into_it(mode, shuffle):
    data = data_of()
    loader = loader_of(data, shuffle=shuffle, **MODES[mode])
    sampler = NeighborSampler(data, [3, 2], **MODES[mode])
    for epoch in range(2):
        expected = list(inputs_of(epoch, shuffle=shuffle))
        batches = list(loader)
        assert len(batches) == len(loader) == len(expected) == 4
        for number, (batch, positions) in enumerate(zip(batches, expected, strict=True)):
            seeds = {of: IDS[of][at] for of, at in positions.items()}
            out = sampler.sample(seeds, None, batch_key(3, epoch, number))
            for of, ids in seeds.items():
                assert torch.equal(batch[of].n_id, out.node[of])
                assert torch.equal(batch[of].n_id[: batch[of].batch_size], ids)
                assert torch.equal(batch[of].input_id, positions[of])
                assert "seed_time" not in batch[of]
                if out.batch is not None:
                    assert torch.equal(batch[of].batch, out.batch[of])
            for of in data.edge_types:
                assert torch.equal(batch[of].e_id, out.edge[of])
            check_edges(data, batch)


@pytest.mark.parametrize("options", [{}, {"time_attr": "time", "input_time": TIMES[PAPER]}])
def test_one_type_by_a_dictionary_is_that_type(options):
    typed = {name: {PAPER: value} if name == "input_time" else value for name, value in options.items()}
    one, same = loader_of(seeds=(PAPER, PAPERS), **options), loader_of(seeds={PAPER: PAPERS}, **typed)
    assert plain(list(one)) == plain(list(same))
    assert one.state_dict() == same.state_dict()
    sizes = loader_of(seeds={PAPER: PAPERS}, batch_size={PAPER: 6}, **typed)
    assert plain(list(loader_of(seeds=(PAPER, PAPERS), **options))) == plain(list(sizes))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_fixed_number_of_each_type(shuffle, last):
    sizes = {VENUE: 1, PAPER: 4, AUTHOR: 2}
    loader = loader_of(batch_size=sizes, shuffle=shuffle, drop_last=last)
    assert loader.batch_size == sizes
    assert len(loader) == 4 if last else 5
    for epoch in range(2):
        batches, seen = list(loader), {of: [] for of in IDS}
        assert len(batches) == len(loader)
        for number, batch in enumerate(batches):
            for of, ids in IDS.items():
                left = max(len(ids) - number * sizes[of], 0)
                assert batch[of].batch_size == (min(sizes[of], left) if not last or left >= sizes[of] else 0)
                assert torch.equal(batch[of].n_id[: batch[of].batch_size], ids[batch[of].input_id])
                seen[of] += batch[of].input_id.tolist()
        for number, (of, ids) in enumerate(IDS.items()):
            taken = len(ids) // sizes[of] * sizes[of] if last else len(ids)
            order = torch.arange(len(ids))
            if shuffle:
                order = ops.permutation(len(ids), batch_key(3, epoch, number, Purpose.SHUFFLE))
            assert seen[of] == order[:taken].tolist()


WAYS = {
    "prefetch": {"prefetch": 4},
    "here": {"prefetch": 0},
    "bulk": {"bulk": 3},
    "processes": processes(2),
    "processes that gather": {**processes(2), "filter_per_worker": True},
}


@pytest.mark.parametrize("way", [SLOW(way) if way.startswith("processes") else way for way in WAYS])
@pytest.mark.parametrize("options", [{}, {"batch_size": {PAPER: 2, AUTHOR: 3, VENUE: 1}}])
def test_every_way_makes_the_same_batches(way, options):
    iterator = iter(loader_of(**options, **WAYS[way]))
    assert plain(list(iterator)) == plain(list(loader_of(**options)))
    stop_workers(iterator)


@pytest.mark.parametrize("source", [our_stores, foreign_stores])
def test_stores_give_the_same_batches(source):
    data = data_of()
    for ours, theirs in zip(loader_of(source(data)), loader_of(data), strict=True):
        check_edges(data, ours)
        for of in SEEDS:
            assert torch.equal(ours[of].n_id, theirs[of].n_id)
            assert torch.equal(ours[of].input_id, theirs[of].input_id)


def test_renumbered_stores_take_and_give_the_user_s_ids(tmp_path):
    data = data_of()
    partition.write(data, tmp_path / "parts", parts=2, method="random")
    stores = stores_of(data, str(tmp_path / "parts"))
    loader = loader_of(stores)
    for batch, positions in zip(loader, inputs_of(0), strict=True):
        check_edges(data, batch)
        for of, at in positions.items():
            assert torch.equal(batch[of].n_id[: batch[of].batch_size], IDS[of][at])


@pytest.mark.parametrize("options", [{}, {"batch_size": {PAPER: 2, AUTHOR: 3, VENUE: 1}}])
def test_a_state_goes_on_in_the_middle_of_an_epoch(options):
    loader, other = loader_of(**options), loader_of(**options)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    other.load_state_dict(loader.state_dict())
    assert plain(list(other)) == plain(list(iterator))
    assert plain(list(other)) == plain(list(loader))
    found = {"batch_size": 5, "seeds": {of: SEEDS[of] for of in (AUTHOR, PAPER, VENUE)}}
    with pytest.raises(ValueError, match=r"^state: expected a loader with input_type="):
        loader_of(**{**options, **found}).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("options", [{}, {"batch_size": {PAPER: 2, AUTHOR: 3, VENUE: 1}}])
def test_copies_have_an_order_of_their_own(options):
    loader = loader_of(**options)
    for made in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert [plain(batch) for batch in made] == [plain(batch) for batch in loader_of(**options)]
        made.load_state_dict({**made.state_dict(), "seed": 4, "epoch": 0, "batch": 0})
        assert [plain(batch) for batch in made] == [plain(batch) for batch in loader_of(seed=4, **options)]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("options", [{}, {"batch_size": {PAPER: 2, AUTHOR: 3, VENUE: 1}}])
def test_a_loader_made_again_with_its_sampler_as_by_lightning(options, shuffle):
    loader = loader_of(shuffle=shuffle, **options)
    again = loader_of(**options, shuffle=False, sampler=loader.sampler)
    assert [plain(batch) for batch in again] == [plain(batch) for batch in loader]


@pytest.mark.parametrize("uneven", ["pad", "drop", "serve"])
@pytest.mark.parametrize("options", [{}, {"batch_size": {PAPER: 2, AUTHOR: 3, VENUE: 1}}])
def test_ranks_share_the_batches_of_one_process(uneven, options):
    whole = plain(list(loader_of(**options)))
    shares = [list(loader_of(shard=(rank, 3), uneven=uneven, **options)) for rank in range(3)]
    steps = {"pad": -(-len(whole) // 3), "drop": len(whole) // 3, "serve": None}[uneven]
    for rank, share in enumerate(shares):
        own = whole[rank::3]
        assert plain(share)[: len(own)] == own[: len(share)]
        assert len(share) == (len(own) if steps is None else steps)
        assert all(sum(batch[of].batch_size for of in SEEDS) for batch in share)


def test_times_of_each_type():
    data = data_of()
    loader = loader_of(data, time_attr="time", input_time=TIMES)
    sampler = NeighborSampler(data, [3, 2], time_attr="time")
    for number, (batch, positions) in enumerate(zip(loader, inputs_of(0), strict=True)):
        seeds, times = ({of: of_type[of][at] for of, at in positions.items()} for of_type in (IDS, TIMES))
        out = sampler.sample(seeds, times, batch_key(3, 0, number))
        for of in SEEDS:
            assert torch.equal(batch[of].seed_time, times[of])
            assert torch.equal(batch[of].n_id, out.node[of])
            limits = torch.cat([times[other] for other in SEEDS])[batch[of].batch]
            if of != VENUE:  # which has no times
                later = batch[of].time > limits
                assert not later[batch[of].batch_size :].any()


def test_types_that_are_given_no_times_have_those_of_their_nodes():
    data = data_of()
    loader = loader_of(data, {PAPER: PAPERS, AUTHOR: AUTHORS}, time_attr="time", input_time={AUTHOR: TIMES[AUTHOR]})
    own = {PAPER: data[PAPER].time[PAPERS], AUTHOR: TIMES[AUTHOR]}
    given = loader_of(data, {PAPER: PAPERS, AUTHOR: AUTHORS}, time_attr="time", input_time=own)
    for ours, theirs in zip(loader, given, strict=True):
        assert "seed_time" not in ours[PAPER]
        assert torch.equal(ours[AUTHOR].seed_time, theirs[AUTHOR].seed_time)
        assert torch.equal(ours[PAPER].n_id, theirs[PAPER].n_id)


@pytest.mark.parametrize("seeds", [(AUTHOR, torch.arange(4)), {AUTHOR: torch.arange(4)}, SEEDS])
def test_times_of_seeds_whose_nodes_have_none_are_missed_when_the_loader_is_made(seeds):
    data = data_of()
    del data[AUTHOR].time
    text = f"^input_time: expected times for the seeds of '{AUTHOR}', whose nodes have no times, found none$"
    with pytest.raises(ValueError, match=text):
        loader_of(data, seeds, time_attr="time")
    given = TIMES if seeds is SEEDS else {AUTHOR: torch.arange(4)} if isinstance(seeds, dict) else torch.arange(4)
    assert len(list(loader_of(data, seeds, input_time=given, time_attr="time"))) > 0


def test_ids_of_the_user():
    ids = {PAPER: torch.arange(10) + 100, AUTHOR: torch.arange(9) + 200, VENUE: torch.tensor([7, 8])}
    for batch, positions in zip(loader_of(input_id=ids), inputs_of(0), strict=True):
        for of, at in positions.items():
            assert torch.equal(batch[of].input_id, ids[of][at])


def test_positions_without_a_number_are_those_of_all_types():
    data = data_of()
    loader = loader_of(data)
    batch = loader([0, 11, 19])  # papers are 0..9, authors 10..18, venues 19 and 20
    for of, ids in {PAPER: [3], AUTHOR: [3], VENUE: [4]}.items():
        assert batch[of].n_id[: batch[of].batch_size].tolist() == ids
    assert plain(batch) == plain(loader_of(data)([0, 11, 19]))
    assert plain(batch) != plain(loader_of(data, seed=4)([0, 11, 19]))


def test_accesses_are_counted():
    data = data_of()
    loader, counts = loader_of(data), {of: torch.zeros(data[of].num_nodes, dtype=torch.int64) for of in SEEDS}
    found = accesses(loader, [0])
    for batch in loader:
        for of, count in counts.items():
            count.index_add_(0, batch[of].n_id, torch.ones_like(batch[of].n_id))
    assert all(torch.equal(found[of], count) for of, count in counts.items())


class Sage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 4)

    def forward(self, x, edge_index):
        return self.two(self.one(x, edge_index).relu(), edge_index)


def test_a_narrowed_model_gives_the_rows_of_all_seeds():
    data = make_hetero()
    del data[VENUE, "likes", AUTHOR]
    for of in (PAPER, AUTHOR):
        data[of].x = torch.randn(data[of].num_nodes, 5, dtype=torch.float64)
    data = data.edge_type_subgraph([(PAPER, "cites", PAPER), (AUTHOR, "writes", PAPER), (PAPER, "rev_writes", AUTHOR)])
    seeds = {PAPER: PAPERS, AUTHOR: AUTHORS}
    torch.manual_seed(0)
    model = to_hetero(Sage(), data.metadata()).double()
    batches = list(loader_of(data, seeds))
    with torch.no_grad():
        model(batches[0].x_dict, batches[0].edge_index_dict)
    narrowed = narrow(copy.deepcopy(model), lambda m, b: m(b.x_dict, b.edge_index_dict))
    for batch in batches:
        expected, found = model(batch.x_dict, batch.edge_index_dict), narrowed(batch)
        for of in seeds:
            torch.testing.assert_close(found[of], expected[of][: batch[of].batch_size], rtol=1e-12, atol=1e-12)


def batches_of_part(path, options):
    with open_part(path) as part:
        of = "all" if options.get("seed_order") == "global" else "part"
        seeds = {node_type: part.input_nodes(None, of, node_type)[1][::3] for node_type in (PAPER, AUTHOR)}
        loader = loader_of((part.features, part.graph), seeds, **options)
        return {str(of): ids.tolist() for of, ids in seeds.items()}, [as_plain(batch) for batch in loader]


def test_each_type_of_each_part_is_shuffled_by_a_key_of_its_own():
    """The keys of part 1 begin after the three of part 0."""
    types, epoch = torch.arange(60) % 3, 2
    for part in range(3):
        shuffle = KeyedShuffle(range(60), Epochs(7), part=part)
        of_batch = ChunksOfTypes(types, [20] * 3, False, shuffle).of_epoch(epoch)
        orders = [3 * ops.permutation(20, batch_key(7, epoch, 3 * part + of, Purpose.SHUFFLE)) + of for of in range(3)]
        assert of_batch(0).tolist() == torch.cat(orders).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"seed_order": "global"}, {}, {"batch_size": {PAPER: 3, AUTHOR: 1}}])
def test_ranks_over_parts_make_the_batches_of_one_process(tmp_path, options):
    data, path = data_of(), str(tmp_path / "parts")
    partition.write(data, path, parts=2, method="random")
    found = cluster(2).run(batches_of_part, path, {"uneven": "serve", **options})
    stores, owned = stores_of(data, path), "seed_order" not in options
    sizes = {name: value for name, value in options.items() if name == "batch_size"}
    given = [{of: torch.tensor(ids) for of, ids in of_rank.items()} for of_rank, _ in found]
    loaders = [loader_of(stores, seeds, **sizes) for seeds in given]
    for part, loader in enumerate(loaders if owned else ()):
        loader.sampler.part = part
        if sizes:
            each = list(sizes["batch_size"].values())
            loader._seed_order.chunks = ChunksOfTypes(loader.input_data.types, each, False, loader.sampler)
    for rank, (_, batches) in enumerate(found):
        loader = loaders[rank if owned else 0]
        whole = list(loader._seed_order.numbered(loader.batch_sampler, 0))
        for k, batch in enumerate(whole if owned else ()):
            batch.number = 2 * k + rank
        mine = whole if owned else whole[rank::2]
        assert batches == [as_plain(loader.collate_fn(batch)) for batch in mine]
        assert batches
