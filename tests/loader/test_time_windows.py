"""Loaders whose seeds or links have time windows: which edges a tree has, the ways to say it, and what is refused."""

import math
import re
import warnings

import numpy as np
import pytest
import torch
from helpers.data import make_data, our_stores, plain, processes, stop_workers
from helpers.hetero import AUTHOR, PAPER, make_hetero, with_times
from helpers.slow import SLOW
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, NegativeSampling

from torch_gnnscale import LayerSampler, LinkNeighborLoader, NeighborLoader, NeighborSampler
from torch_gnnscale.random import batch_key
from torch_gnnscale.sampler import KeyedSampler

LEAST = torch.iinfo(torch.int64).min
IDS = torch.arange(0, 200, 5)
ENDS = torch.arange(40) * 7 % 50
STARTS = ENDS - torch.arange(40) % 25
EDGES = make_data(200, 3000).edge_index
NODES = {"input_time": ENDS, "input_start_time": STARTS}


def timed(of="nodes", floating=False) -> Data:
    """Nodes, or edges, with times up to 49, and edges with weights."""
    data, generator = make_data(200, 3000), torch.Generator().manual_seed(5)
    count = 200 if of == "nodes" else 3000
    times = torch.randint(50, (count,), generator=generator)
    data["time" if of == "nodes" else "edge_time"] = times / 2 if floating else times
    data.weight = torch.rand(3000, generator=generator) + 0.1
    return data


def loader_of(data, of="nodes", seeds=IDS, **options):
    attr = {"nodes": "time", "edges": "edge_time"}[of]
    options = {"batch_size": 16, "shuffle": True, "seed": 3, "time_attr": attr, **options}
    return NeighborLoader(data, [5, 4], seeds, **options)


def links_of(data, of="nodes", **options):
    attr = {"nodes": "time", "edges": "edge_time"}[of]
    times = {"edge_label_time": ENDS, "edge_label_start_time": STARTS}
    options = {"batch_size": 16, "shuffle": True, "seed": 3, "time_attr": attr, **times, **options}
    return LinkNeighborLoader(data, [5, 4], EDGES[:, :40], **options)


def times_of_edges(data, of):
    return data.time[data.edge_index[0]] if of == "nodes" else data.edge_time


def tree_of(out, tree):
    """The nodes of a tree, and its edges by the user's ids."""
    mine = out.batch[out.col] == tree
    return out.node[out.batch == tree].tolist(), out.edge[mine].tolist(), out.node[out.col[mine]].tolist()


MODES: dict[str, dict] = {
    "uniform": {},
    "replace": {"replace": True},
    "weights": {"weight_attr": "weight"},
    "induced": {"subgraph_type": "induced"},
    "last": {"temporal_strategy": "last"},
}


@pytest.mark.parametrize("of", ["nodes", "edges"])
@pytest.mark.parametrize("mode", MODES)
def test_a_tree_is_that_of_the_filtered_data(of, mode):
    """Weights are 1/4 to 1, so that those of a column become the same integers without its largest."""
    data, options = timed(of), MODES[mode]
    data.weight = 2.0 ** -(torch.arange(3000) % 3)
    times, drawn = times_of_edges(data, of), 0
    loader = loader_of(data, of, **NODES, **options)
    for number, out in enumerate(loader.samples(0)):
        for tree, place in enumerate(out.metadata[0].tolist()):
            kept = ((times >= STARTS[place]) & (times <= ENDS[place])).nonzero().view(-1)
            filtered = Data(edge_index=data.edge_index[:, kept], edge_time=times[kept], num_nodes=200)
            filtered.weight = data.weight[kept]
            sampler, seeds = NeighborSampler(filtered, [5, 4], time_attr="edge_time", **options), IDS[out.metadata[0]]
            alone = sampler.sample(seeds, torch.full((len(seeds),), 50), batch_key(3, 0, number))
            alone.edge = kept[alone.edge]
            assert tree_of(out, tree) == tree_of(alone, tree)
            drawn += len(alone.edge)
    assert drawn > 100


def batches(loader):
    return [plain(batch) for batch in loader]


def test_one_window_said_in_every_way():
    data = timed()
    starts = ENDS - 10
    expected = batches(loader_of(data, input_time=ENDS, input_start_time=starts))
    assert expected != batches(loader_of(data, input_time=ENDS))
    for said in (
        {"input_end_time": ENDS, "input_start_time": starts},
        {"input_time": ENDS, "time_window": 10},
        {"input_end_time": ENDS, "time_window": 10.0},
        {"input_time": ENDS, "time_window": np.int64(10)},
        {"input_time": ENDS, "input_start_time": starts - 0.5},  # no time lies between
        {"input_time": ENDS, "time_window": 10.5},
        {"input_time": ENDS.int(), "input_start_time": starts.to(torch.int16)},
    ):
        assert [dict(batch)["e_id"] for batch in batches(loader_of(data, **said))] == [
            dict(batch)["e_id"] for batch in expected
        ]


@pytest.mark.parametrize("window", [1 << 70, math.inf, 10**400])
@pytest.mark.parametrize("floating", [False, True])
def test_windows_before_all_times(window, floating):
    data = timed(floating=floating)
    assert batches(loader_of(data, input_time=ENDS, time_window=window)) == batches(loader_of(data, input_time=ENDS))
    early = torch.full((40,), LEAST + 3)
    if not floating:
        assert (
            NeighborLoader(
                data, [2], IDS, input_time=early, time_window=window, time_attr="time"
            ).input_data.start_time.tolist()
            == [LEAST] * 40
        )


@pytest.mark.parametrize("window", [1 << 64, math.inf, 10**400])
def test_windows_of_any_length_have_infinite_times(window):
    """Of seeds at infinity as well, and where int64 cannot hold end - window."""
    times = torch.tensor([-math.inf, -1e30, 0, 5, math.inf], dtype=torch.float64)
    edge_index = torch.stack([torch.arange(1, 6), torch.zeros(5).long()])
    data = Data(edge_index=edge_index, edge_time=times, num_nodes=6)
    ids, options = torch.zeros(2).long(), {"time_attr": "edge_time", "batch_size": 2, "time_window": window}
    for ends, drawn in ((torch.tensor([5, -8]), [4, 2]), (torch.tensor([math.inf, 1.0]), [5, 3])):
        if ends.is_floating_point() and window == 1 << 64:  # shorter than from infinity, or 1e30, to it
            drawn = [1, 1]
        batch = next(iter(NeighborLoader(data, [-1], ids, input_time=ends, **options)))
        assert batch.batch[batch.edge_index[1]].bincount(minlength=2).tolist() == drawn


def test_a_start_is_the_length_before_the_end_or_the_least_time():
    """Of the shortest lengths, and those around the range of int64, whose ends are times, too."""
    ends = [LEAST, LEAST + 1, -1, 0, 1, -LEAST - 1]
    data = timed()
    for length in (0, 1, 2, -LEAST - 2, -LEAST - 1, -LEAST, -LEAST + 1, (1 << 64) - 1, 1 << 64):
        loader = NeighborLoader(
            data, [2], torch.arange(len(ends)), input_time=torch.tensor(ends), time_window=length, time_attr="time"
        )
        assert loader.input_data.start_time.tolist() == [max(end - length, LEAST) for end in ends], length


@pytest.mark.parametrize("scale", [1, 1_700_000_000_000_000_000])
def test_starts_of_floats_are_rounded_up_and_ends_down(scale):
    """Also where times are nanoseconds, which floats do not hold: a whole number as a float is that number."""
    edge_index = torch.stack([torch.arange(1, 8), torch.zeros(7).long()])
    data = Data(edge_index=edge_index, edge_time=scale + torch.arange(7), num_nodes=8)

    def drawn(**said):
        return next(iter(NeighborLoader(data, [-1], torch.tensor([0]), time_attr="edge_time", **said))).e_id.tolist()

    assert drawn(input_time=torch.tensor([scale + 5]), time_window=2.0) == [3, 4, 5]
    assert drawn(input_time=torch.tensor([scale + 5]), time_window=0) == [5]
    if scale == 1:
        assert drawn(input_time=torch.tensor([5.9]), input_start_time=torch.tensor([3.1])) == [3, 4]
        assert drawn(input_time=torch.tensor([5.9]), time_window=2) == [3, 4]
        assert drawn(input_time=torch.tensor([5.9]), input_start_time=torch.tensor([5.1])) == []


@pytest.mark.parametrize("floating", [False, True])
def test_both_ends_of_a_window_are_in_it(floating):
    times = torch.arange(7) / 4 if floating else torch.arange(7)
    edge_index = torch.stack([torch.arange(1, 8), torch.zeros(7).long()])
    data = Data(edge_index=edge_index, edge_time=times, num_nodes=8)
    loader = NeighborLoader(
        data, [-1], torch.zeros(3).long(), input_time=times[[4, 4, 6]], input_start_time=times[[2, 4, 0]],
        time_attr="edge_time", batch_size=3,
    )  # fmt: skip
    batch = next(iter(loader))
    assert [batch.e_id[batch.batch[batch.edge_index[1]] == tree].tolist() for tree in range(3)] == [
        [2, 3, 4], [4], [0, 1, 2, 3, 4, 5, 6],
    ]  # fmt: skip
    assert torch.equal(batch.seed_time, times[[4, 4, 6]])


WAYS = {
    "ahead": {"prefetch": 3},
    "bulk": {"bulk": 2},
    "sampler": {},
    "stores": {},
    "workers": processes(2),
    "workers that gather": {**processes(1), "filter_per_worker": True},
}


@pytest.mark.parametrize("way", [name if "workers" not in name else SLOW(name) for name in WAYS])
@pytest.mark.parametrize("links", [False, True])
def test_every_way_gives_the_same_batches(way, links):
    data = timed("edges")
    make = links_of if links else lambda data, of, **more: loader_of(data, of, **{**NODES, **more})
    options = {"neg_sampling": "binary"} if links else {}
    expected = batches(make(data, "edges", prefetch=0, **options))
    given = our_stores(data) if way == "stores" else data
    options |= WAYS[way]
    if way == "sampler":
        options["neighbor_sampler"] = NeighborSampler(data, [5, 4], time_attr="edge_time")
    loader = make(given, "edges", **options)
    found = batches(loader)
    stop_workers(loader)
    fields = [{**dict(batch), "num_nodes": None} for batch in expected]  # which batches of stores lack
    assert [{**dict(batch), "num_nodes": None} for batch in found] == fields


@pytest.mark.parametrize("negatives", [None, "binary", "triplet"])
@pytest.mark.parametrize("exclude", [False, True])
def test_links(negatives, exclude):
    """The trees of a link and of its negatives have its window; negatives know the end alone."""
    data, earlier = timed(), 0
    times = data.time
    neg = None if negatives is None else NegativeSampling(negatives, 2)
    for batch in links_of(data, neg_sampling=neg, exclude_seed_edges=exclude):
        of_links = ENDS[batch.input_id], STARTS[batch.input_id]
        end, start = (of_link[batch.batch[batch.edge_index[1]]] for of_link in of_links)
        drawn = times[batch.n_id[batch.edge_index[0]]]
        assert ((drawn >= start) & (drawn <= end)).all()
        assert len(drawn) > 20
        if exclude:
            ends = batch.n_id[batch.edge_index]
            links = {tuple(link) for link in data.edge_index[:, :40][:, batch.input_id].t().tolist()}
            assert not links & {tuple(edge) for edge in ends.t().tolist()}
        if negatives == "triplet":
            of_negatives = times[batch.n_id[batch.dst_neg_index]]
            assert (of_negatives <= of_links[0][:, None]).all()
            earlier += int((of_negatives < of_links[1][:, None]).sum())
    assert negatives != "triplet" or earlier > 5


def test_links_by_an_equal_length():
    data = timed()
    expected = batches(links_of(data, edge_label_start_time=ENDS - 9))
    assert batches(links_of(data, edge_label_start_time=None, time_window=9)) == expected


def test_a_state_tells_of_windows():
    data = timed()
    loader = loader_of(data, input_time=ENDS, time_window=10)
    iterator = iter(loader)
    next(iterator)
    state, rest = loader.state_dict(), batches(iterator)
    again = loader_of(data, input_time=ENDS, input_start_time=ENDS - 10)
    again.load_state_dict(state)
    assert batches(again) == rest
    with pytest.raises(ValueError, match=r"^state: expected a loader with key_of_inputs="):
        loader_of(data, input_time=ENDS, time_window=11).load_state_dict(state)
    bare = loader_of(data, input_time=ENDS)
    with pytest.raises(ValueError, match=r"^state: expected a loader with key_of_inputs="):
        bare.load_state_dict(state)
    assert "time_windows" not in bare.state_dict()


def test_made_again_from_its_own_attributes():
    loader = loader_of(timed(), **NODES)
    names = ("data", "input_nodes", "input_time", "input_start_time", "input_end_time", "time_window", "batch_size")
    kept = {name: getattr(loader, name) for name in names}
    again = NeighborLoader(
        num_neighbors=[5, 4], neighbor_sampler=loader.node_sampler, sampler=loader.sampler, seed=3, **kept
    )
    assert batches(again) == batches(loader)


# What is refused ######################################################################################################

LATE = STARTS.clone()
LATE[7] = 1000
NAN = STARTS.double()
NAN[3] = math.nan


class Plain(BaseSampler):
    def sample_from_nodes(self, inputs):
        raise NotImplementedError

    sample_from_edges = sample_from_nodes


class Keyed(KeyedSampler):
    is_temporal = True


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"input_time": ENDS, "input_end_time": ENDS}, ValueError,
         "input_time, input_end_time: expected one of them, which mean the same, found both"),
        ({**NODES, "time_window": 3}, ValueError, "input_start_time, time_window: expected one of them, found both"),
        ({"input_start_time": STARTS}, ValueError,
         "input_start_time: expected input_time, where windows end, beside it, found none"),
        ({"time_window": 3}, ValueError, "time_window: expected input_time, where windows end, beside it, found none"),
        ({**NODES, "time_attr": None}, ValueError, "input_start_time: expected none without time_attr, found some"),
        ({"time_window": 3, "time_attr": None}, ValueError, "time_window: expected none without time_attr, found some"),
        ({**NODES, "time_attr": None, "method": "labor"}, ValueError,
         "input_start_time: expected none without time_attr, found some"),
        ({**NODES, "method": "ladies"}, ValueError, "time_attr='time': expected None with method='ladies'"),
        ({**NODES, "input_start_time": LATE}, ValueError,
         "input_start_time[7] = 1000: expected at most input_time[7] = 49"),
        ({**NODES, "input_start_time": NAN}, ValueError, "input_start_time[3]: expected a number, found nan"),
        ({"input_time": NAN, "time_window": 3}, ValueError, "input_time[3]: expected a number, found nan"),
        ({**NODES, "input_start_time": STARTS[:3]}, ValueError,
         "input_start_time: expected 40 times, found shape (3,)"),
        ({**NODES, "input_start_time": [1, 2]}, TypeError, "input_start_time: expected a tensor, found list"),
        ({**NODES, "input_start_time": STARTS > 3}, TypeError,
         "input_start_time: expected integers or real numbers, found torch.bool"),
        ({"input_time": ENDS, "time_window": -1}, ValueError, "time_window: expected a number of at least 0, found -1"),
        ({"input_time": ENDS, "time_window": math.nan}, ValueError,
         "time_window: expected a number of at least 0, found nan"),
        ({"input_time": ENDS, "time_window": True}, TypeError, "time_window: expected a number, found bool"),
        ({"input_time": ENDS, "time_window": "1d"}, TypeError, "time_window: expected a number, found str"),
        ({"input_time": ENDS + (1 << 60), "time_window": 0.5}, ValueError,
         "input_time: expected times up to 2^53, because windows of 0.5 are floats; found larger ones"),
        ({**NODES, "neighbor_sampler": Plain()}, ValueError,
         "input_start_time: expected a KeyedSampler that takes windows (takes_windows), found a Plain"),
        ({**NODES, "neighbor_sampler": Keyed()}, ValueError,
         "input_start_time: expected a KeyedSampler that takes windows (takes_windows), found a Keyed"),
    ],
)  # fmt: skip
def test_refused(options, error, message):
    data = timed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(error, match=f"^{re.escape(message)}$"):
            loader_of(data, **options)


def test_refused_of_links():
    data = timed()
    for options, message in (
        ({"time_window": 3}, "edge_label_start_time, time_window: expected one of them, found both"),
        (
            {"edge_label_time": None},
            "'edge_label_time' is not set while 'time_attr' is set: expected both for temporal",
        ),
        ({"edge_label_time": None, "time_attr": None}, "edge_label_start_time: expected none without time_attr"),
        ({"edge_label_start_time": LATE}, "edge_label_start_time[7] = 1000: expected at most edge_label_time[7] = 49"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            links_of(data, **options)


def test_refused_of_layerwise_samplers():
    data = timed()
    with pytest.raises(ValueError, match=r"^time_window: expected none without time_attr, found some$"):
        loader_of(data, input_time=ENDS, time_window=3, time_attr=None, neighbor_sampler=LayerSampler(data, [5, 4]))


def test_the_sampler_alone():
    data = timed()
    sampler = NeighborSampler(data, [5, 4], time_attr="time")
    out = sampler.sample(IDS, ENDS, 5, seed_start_time=STARTS)
    drawn, tree = data.time[out.node[out.row]], out.batch[out.col]
    assert ((drawn >= STARTS[tree]) & (drawn <= ENDS[tree])).all()
    own = sampler.sample(IDS, None, 5, seed_start_time=data.time[IDS] - 4)
    drawn, end = data.time[own.node[own.row]], data.time[IDS][own.batch[own.col]]
    assert ((drawn >= end - 4) & (drawn <= end)).all()
    for given, message in (
        ((ENDS, LATE), "seed_start_time[7] = 1000: expected at most seed_time[7] = 49"),
        ((ENDS, NAN), "seed_start_time[3]: expected a number, found nan"),
        ((None, torch.where(LATE < 1000, -1, LATE)),
         f"seed_start_time[7] = 1000: expected at most seed_time[7] = {int(data.time[35])}"),
        ((ENDS, STARTS[:2]), "seed_start_time: expected 40 times, found shape (2,)"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            sampler.sample(IDS, given[0], 5, seed_start_time=given[1])
    with pytest.raises(TypeError, match=r"^seed_time: expected a tensor of times, found "):
        sampler.sample(IDS, ENDS.tolist(), 5, seed_start_time=STARTS)
    with pytest.raises(IndexError, match=r"^seeds\[0\] = 200 is out of range: expected nodes in \[0, 200\)$"):
        sampler.sample(torch.tensor([200]), None, 5, seed_start_time=torch.tensor([3]))
    edges = NeighborSampler(timed("edges"), [5], time_attr="edge_time")
    with pytest.raises(ValueError, match=r"^seed_time: expected times for the seeds, whose nodes have no times"):
        edges.sample(IDS, None, 5, seed_start_time=STARTS)
    typed = NeighborSampler(with_times(make_hetero()), [2], time_attr="time")
    with pytest.raises(ValueError, match=r"^seed_start_time: expected node types of \['paper'\], found 'author'$"):
        typed.sample({PAPER: IDS[:2]}, None, 5, seed_start_time={AUTHOR: STARTS[:2]})
    with pytest.raises(
        ValueError, match=r"^seed_start_time: expected none from a sampler without time_attr, found some$"
    ):
        NeighborSampler(data, [5]).sample(IDS, None, 5, seed_start_time=STARTS)
