"""What NeighborSampler refuses, by its exact error."""

import re

import numpy as np
import pytest
import torch
from helpers.data import ForeignFeatureStore, ForeignGraphStore, make_data, our_stores
from helpers.hetero import (
    CITES,
    LIKES,
    PAPER,
    REV_WRITES,
    VENUE,
    make_hetero,
    with_times,
)
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput
from torch_geometric.sampler.base import NumNeighbors

from torch_gnnscale import GraphStore, NeighborLoader, NeighborSampler
from torch_gnnscale.random import batch_key
from torch_gnnscale.sampler import LayerSampler

KEY = batch_key(3, 1, 4)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {CITES: [1]},
            ValueError,
            r"expected fanouts of edge type 'author__writes__paper' or a default, found neither",
        ),
        (NumNeighbors({("a", "b", "c"): [1]}, [1]), ValueError, r"expected edge types of .*, found \['a__b__c'\]"),
        ({("a", "b", "c"): [1]}, ValueError, r"expected edge types of \[\('.*, found \[\('a', 'b', 'c'\)\]"),
        (
            NumNeighbors({CITES: [1, 2]}, [1]),
            ValueError,
            r"number of hops must be the same across all edge types, found",
        ),
        (NumNeighbors({CITES: [1.5]}, [1]), TypeError, r"expected a list of ints, found \[1.5\]"),
        ({1, 2}, TypeError, r"expected a list of ints, found set"),
    ],
    ids=str,
)
def test_bad_fanouts(given, error, message):
    with pytest.raises(error, match=rf"^num_neighbors: {message}"):
        NeighborSampler(make_hetero(), given)


def ambiguous():
    """A graph of two edge types whose names joined by ``__`` are equal."""
    data, types = HeteroData(), (("a", "b__c", "d"), ("a__b", "c", "d"))
    for node_type in ("a", "a__b", "d"):
        data[node_type].x = torch.arange(8.0).view(8, 1)
    for edge_type in types:
        data[edge_type].edge_index = torch.stack([torch.arange(64) % 8, torch.arange(64) // 8])
    return data, *types


def test_fanouts_of_edge_types_whose_joined_names_are_equal():
    data, first, second = ambiguous()
    given = {first: [3], second: [0]}
    sampler = NeighborSampler(data, given)
    assert (sampler.fanouts, sampler.num_neighbors) == ([[3], [0]], given)
    batch = next(iter(NeighborLoader(data, given, "d", batch_size=8)))
    assert (batch[first].edge_index.size(1), batch[second].edge_index.size(1)) == (24, 0)
    message = (
        "num_neighbors: expected a dictionary whose keys are edge types, because 'a__b__c__d' could be any of "
        f"{[first, second]}"
    )
    for unclear in (NumNeighbors(given), {"a__b__c__d": [1]}, NumNeighbors({first: [1]}, [2])):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            NeighborSampler(data, unclear)


def test_fanouts_by_every_form_of_an_edge_type():
    data = HeteroData()
    data["a"].x = data["b"].x = torch.zeros(4, 1)
    types = [("a", "to", "b"), ("b", "rel", "a")]
    for edge_type in types:
        data[edge_type].edge_index = torch.tensor([[0, 1], [1, 2]])
    short = {("a", "b"): [1]}
    for given in ({**short, "b__rel__a": [2]}, {"a__to__b": [1], types[1]: [2]}, NumNeighbors(short, [2])):
        sampler = NeighborSampler(data, given)
        assert sampler.fanouts == [[1], [2]]
        assert isinstance(sampler.num_neighbors, NumNeighbors)
    message = f"num_neighbors: expected fanouts of {types[0]} once, found them twice"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        NeighborSampler(data, {types[0]: [1], "a__to__b": [2], types[1]: [1]})


def test_fanouts_by_type_of_a_graph_without_types():
    with pytest.raises(ValueError, match=r"^num_neighbors: expected a list of ints for a graph without edge types"):
        NeighborSampler(make_data(), {CITES: [1]})


def changed(change, data=None):
    data = make_hetero() if data is None else data
    change(data)
    return data


def weights(value, edge=7):
    def change(data):
        data[CITES].weight = torch.ones(data[CITES].num_edges)
        data[CITES].weight[edge] = value

    return change


def set_attribute(type_name, name, value):
    return lambda data: setattr(data[type_name], name, value)


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        (weights(-1.0), {"weight_attr": "weight"}, ValueError,
         r"weight_attr='weight' of \('paper', 'cites', 'paper'\): expected finite numbers of at least 0, found -1.0 at "
         r"edge 7"),
        (weights(float("nan"), 2), {"weight_attr": "weight"}, ValueError, r"weight_attr='weight'.*found nan at edge 2"),
        (weights(float("inf")), {"weight_attr": "weight"}, ValueError, r"weight_attr='weight'.*found inf at edge 7"),
        (set_attribute(CITES, "weight", torch.ones(3)), {"weight_attr": "weight"}, ValueError,
         r"weight_attr='weight' of .*: expected 240 weights, one per edge, found shape \(3,\)"),
        (set_attribute(CITES, "weight", torch.ones(240).bool()), {"weight_attr": "weight"}, TypeError,
         r"weight_attr='weight' of .*: expected real numbers, found torch.bool"),
        (set_attribute(CITES, "weight", "heavy"), {"weight_attr": "weight"}, TypeError,
         r"weight: expected a tensor, found str"),
        (lambda data: None, {"weight_attr": "mass"}, ValueError,
         r"weight_attr='mass': expected an attribute of edges, found none of this name"),
        (lambda data: None, {"time_attr": "when"}, ValueError,
         r"time_attr='when': expected an attribute of nodes or edges, found none of this name"),
        (set_attribute(PAPER, "time", torch.arange(7)), {"time_attr": "time"}, ValueError,
         r"time_attr='time' of 'paper': expected 40 times, found shape \(7,\)"),
        (set_attribute(PAPER, "time", torch.full((40,), torch.nan)), {"time_attr": "time"}, ValueError,
         r"time_attr='time' of 'paper'\[0\]: expected a number, found nan"),
        (set_attribute(PAPER, "time", torch.ones(40).bool()), {"time_attr": "time"}, TypeError,
         r"time_attr='time' of 'paper': expected integers or real numbers, found torch.bool"),
        (lambda data: with_times(with_times(data), edges=True), {"time_attr": "time"}, ValueError,
         r"time_attr='time': expected times of nodes or of edges, found both: "),
        (with_times, {"time_attr": "time", "sample_direction": "backward"}, NotImplementedError,
         r"time_attr='time' with sample_direction='backward' is not implemented"),
        (lambda data: None, {"sample_direction": "up"}, ValueError, r"sample_direction: expected 'forward' or "),
        (lambda data: None, {"temporal_strategy": "first"}, ValueError, r"temporal_strategy: expected 'uniform' or "),
        (lambda data: None, {"subgraph_type": "whole"}, ValueError, "subgraph_type: expected one of"),
        (lambda data: None, {"layers": True, "subgraph_type": "induced"}, ValueError,
         r"layers=True: expected subgraph_type='directional', found 'induced'"),
        (lambda data: None, {"layers": True, "sample_direction": "backward"}, ValueError,
         r"layers=True: expected sample_direction='forward', found 'backward'"),
        (set_attribute(("paper", "by", "ghost"), "edge_index", torch.zeros(2, 1).long()), {}, ValueError,
         r"data\['ghost'\]: expected it to know its number of nodes; set num_nodes"),
        (lambda data: data["x"].update({"name": "no size"}), {}, ValueError,
         r"data\['x'\]: expected it to know its number of nodes; set num_nodes"),
        (set_attribute(CITES, "edge_index", torch.tensor([[40], [0]])), {}, IndexError,
         r"edge_index\[0, 0\] = 40 is out of range: expected nodes in \[0, 40\)$"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)  # fmt: skip
def test_bad_data(change, options, error, message):
    with pytest.raises(error, match=rf"^{message}"):
        NeighborSampler(changed(change), [2], **options)


@pytest.mark.parametrize("source", [lambda data: data, our_stores], ids=["data", "stores"])
@pytest.mark.parametrize("length", [199, 201, 1499, 1501])
def test_weights_and_times_of_another_length(source, length):
    data = make_data()
    data.given = torch.ones(length)
    if source is our_stores:
        features, graph = our_stores(make_data())
        features.put_tensor(data.given, group_name=None, attr_name="given", index=None)
        data = (features, graph)
    found = rf"found shape \({length},\) for 200 nodes and 1500 edges$"
    with pytest.raises(ValueError, match=rf"^weight_attr='given': expected an attribute of edges, {found}"):
        NeighborSampler(data, [2], weight_attr="given")
    with pytest.raises(ValueError, match=rf"^time_attr='given': expected an attribute of nodes or e.*{found}"):
        NeighborSampler(data, [2], time_attr="given")


@pytest.mark.parametrize(
    ("seeds", "time", "exclude", "error", "message"),
    [
        (torch.arange(2), None, None, TypeError, "seeds: expected a dictionary by type, because the graph is "),
        ({"ghost": torch.arange(2)}, None, None, ValueError, "node type 'ghost': expected one of"),
        ({PAPER: torch.tensor([0.5])}, None, None, TypeError, "seeds: expected integers, found torch.float32"),
        ({PAPER: [1]}, None, None, TypeError, "seeds: expected a tensor, found list"),
        ({PAPER: torch.tensor([40])}, None, None, IndexError, r"seeds\[0\] = 40"),
        ({VENUE: torch.tensor([0])}, None, None, ValueError, "seed_time: expected times for the seeds of 'venue'"),
        ({PAPER: torch.tensor([0])}, {PAPER: torch.arange(2)}, None, ValueError, "seed_time of 'paper': expected 1 "),
        ({PAPER: torch.tensor([0])}, torch.arange(1), None, TypeError, "seed_time: expected a dictionary by type"),
        ({PAPER: torch.tensor([0])}, None, {("a", "b", "c"): torch.zeros(2, 0).long()}, ValueError,
         "exclude: expected edge types of "),
    ],
    ids=str,
)  # fmt: skip
def test_bad_seeds(seeds, time, exclude, error, message):
    sampler = NeighborSampler(with_times(make_hetero()), [2], time_attr="time")
    with pytest.raises(error, match=rf"^{message}"):
        sampler.sample(seeds, time, KEY, exclude)


def test_bad_seeds_of_a_homogeneous_graph():
    sampler = NeighborSampler(make_data(), [2])
    with pytest.raises(TypeError, match=r"^seeds: expected a tensor, found dict"):
        sampler.sample({PAPER: torch.arange(2)}, None, KEY)
    with pytest.raises(ValueError, match=r"^seed_time: expected none from a sampler without time_attr"):
        sampler.sample(torch.arange(2), torch.arange(2), KEY)
    data = make_data()
    data.edge_time = torch.arange(1500)
    with pytest.raises(ValueError, match=r"^seed_time: expected times for the seeds, whose nodes have no times"):
        NeighborSampler(data, [2], time_attr="edge_time").sample(torch.arange(2), None, KEY)


def test_times_that_cannot_be_compared():
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, edge_time=torch.tensor([0.5]))
    sampler = NeighborSampler(data, [-1], time_attr="edge_time")
    assert sampler.sample(torch.tensor([1]), torch.tensor([1 << 53]), KEY).edge.tolist() == [0]
    with pytest.raises(ValueError, match=r"^seed_time: expected times up to 2\^53"):
        sampler.sample(torch.tensor([1]), torch.tensor([(1 << 53) + 1]), KEY)
    with pytest.raises(ValueError, match=r"^seed_time\[0\]: expected a number, found nan"):
        sampler.sample(torch.tensor([1]), torch.tensor([torch.nan]), KEY)


@pytest.mark.parametrize("large", [(1 << 53) + 1, -(1 << 53) - 1, -(1 << 63)])
def test_large_times_beside_those_of_a_type_that_are_floats(large):
    """Integers that float64 would round cannot be compared with the other types' floats."""
    data = HeteroData({"a": {"num_nodes": 1, "time": torch.tensor([1 << 53])}})
    data["b"].update({"num_nodes": 1, "time": torch.tensor([0.5])})
    data["a", "to", "b"].edge_index = torch.tensor([[0], [0]])
    seeds, limit = {"b": torch.tensor([0])}, {"b": torch.tensor([2.0**53], dtype=torch.float64)}
    out = NeighborSampler(data, [-1], time_attr="time").sample(seeds, limit, KEY)
    assert out.edge["a", "to", "b"].tolist() == [0]
    data["a"].time = torch.tensor([large])
    message = "expected times up to 2^53, because other times of the graph are floats; found larger ones"
    with pytest.raises(ValueError, match=f"^time_attr='time' of 'a': {re.escape(message)}$"):
        NeighborSampler(data, [-1], time_attr="time")


def test_stores_that_disagree():
    features, graph = our_stores(make_hetero())
    graph.put_edge_index((torch.zeros(1).long(), torch.zeros(1).long()), LIKES, "coo", size=(5, 26))
    with pytest.raises(
        ValueError, match=r"^data: expected one number of nodes of 'author' in all edges, found 25 and 26; pass size="
    ):
        NeighborSampler((features, graph), [2])
    graph = GraphStore()
    graph.put_edge_index((torch.zeros(1).long(), torch.zeros(1).long()), None, "coo", size=(1, 1))
    graph.put_edge_index((torch.zeros(1).long(), torch.zeros(1).long()), REV_WRITES, "coo", size=(1, 1))
    with pytest.raises(ValueError, match=r"^data: expected typed edges, or only edges of type None, found"):
        NeighborSampler((features, graph), [2])


def test_a_time_of_stores_is_one_of_nodes():
    data = make_data()
    features, graph = our_stores(data)
    features.put_tensor(torch.arange(data.num_edges), group_name=None, attr_name="time", index=None)
    with pytest.raises(ValueError, match=r"^time_attr='time': expected 200 times, found shape \(1500,\)$"):
        NeighborSampler((features, graph), [2], time_attr="time")


@pytest.mark.parametrize("option", ["time_attr", "weight_attr"])
def test_times_and_weights_of_types_that_the_graph_does_not_have(option):
    data = make_hetero()
    features, graph = our_stores(data)
    features.put_tensor(torch.ones(240), group_name=CITES, attr_name="mass", index=None)
    NeighborSampler((features, graph), [2], **{option: "mass"})
    features.put_tensor(torch.ones(5), group_name=("x", "to", "y"), attr_name="mass", index=None)
    message = f"{option}='mass': expected a type of {data.edge_types}, found ('x', 'to', 'y')"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        NeighborSampler((features, graph), [2], **{option: "mass"})


def foreign_stores(sizes, layout, row, col):
    """Stores that know the numbers of nodes of two types by their rows alone."""
    features, graph = ForeignFeatureStore(), ForeignGraphStore()
    for node_type, size in sizes.items():
        features.put_tensor(torch.zeros(size, 1), group_name=node_type, attr_name="x", index=None)
    graph.put_edge_index((torch.tensor(row), torch.tensor(col)), ("a", "to", "b"), layout)
    return features, graph


@pytest.mark.parametrize(
    ("layout", "row", "col", "sizes"),
    [("csc", [4, 0], [0, 0, 1, 1, 2], {"a": 5, "b": 3}), ("csr", [0, 1, 1, 1, 1, 2], [3, 1], {"a": 4, "b": 4})],
)
def test_pointers_of_more_nodes_than_there_are_rows(layout, row, col, sizes):
    message = f"data: expected edges between {sizes['a']} and {sizes['b']} nodes, found CSC(num_src=5, num_dst=4, "
    with pytest.raises(ValueError, match=rf"^{re.escape(message)}"):
        NeighborSampler(foreign_stores(sizes, layout, row, col), [2])


def test_a_number_of_nodes_that_one_relation_tells_holds_for_the_others():
    features, graph = foreign_stores({"a": 8}, "coo", [0, 4], [3, 1])  # with a row to spare
    there, back = graph.get_edge_index(("a", "to", "b"), "coo")
    graph.put_edge_index((back, there), ("b", "from", "a"), "coo", size=(9, 7))
    graph.put_edge_index((there, back), ("a", "too", "b"), "coo")
    assert NeighborSampler((features, graph), [2]).num_nodes == {"a": 7, "b": 9}


@pytest.mark.parametrize("made", [NeighborSampler, LayerSampler])
def test_seeds_that_could_be_a_mask_and_ids_of_other_inputs(made):
    sampler = made(make_data(), [2])
    mask = (torch.arange(200) % 2).to(torch.uint8)
    message = "seeds: expected a mask of torch.bool, or ids, found uint8 values of 0 and 1 for each of 200 nodes, "
    with pytest.raises(ValueError, match=f"^{message}which could be either"):
        sampler.sample_from_nodes(NodeSamplerInput(None, mask), key=KEY)
    with pytest.raises(ValueError, match=f"^{message}which could be either"):
        sampler.sample(mask, None, KEY)
    with pytest.raises(TypeError, match=r"^seeds: expected integers, found torch.bool$"):
        sampler.sample_from_nodes(NodeSamplerInput(None, mask.bool()), key=KEY)
    for few in (mask[:40], mask + torch.tensor(1, dtype=torch.uint8)):
        out = sampler.sample_from_nodes(NodeSamplerInput(None, few), key=KEY)
        assert torch.equal(out.node[: len(few)], few.long())
    with pytest.raises(ValueError, match=r"^input_id: expected 3 ids, one per seed, found 9$"):
        sampler.sample_from_nodes(NodeSamplerInput(torch.arange(9), torch.arange(3)), key=KEY)


@pytest.mark.filterwarnings("ignore:edge type")
def test_seeds_of_a_type_that_could_be_a_mask():
    data = make_hetero()
    mask = torch.ones(data[PAPER].num_nodes, dtype=torch.uint8)
    with pytest.raises(ValueError, match=f"^seeds: .* for each of {len(mask)} nodes, which could be either"):
        NeighborSampler(data, [2]).sample_from_nodes(NodeSamplerInput(None, mask, input_type=PAPER), key=KEY)


@pytest.mark.parametrize("kind", [LayerSampler, NeighborSampler])
def test_keys_are_integers_of_64_bits(kind):
    data = make_data()
    sampler, links = kind(data, [12, 9]), data.edge_index[:, :9]
    negatives = NegativeSampling("binary")
    ways = [
        lambda key: sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(9)), key=key),
        lambda key: sampler.sample_from_edges(EdgeSamplerInput(None, *links), negatives, key=key),
    ]
    for sample in ways:
        assert torch.equal(sample(np.int64(1)).node, sample(1).node)
        for key in (1 << 63, -(1 << 70)):
            with pytest.raises(ValueError, match=f"^key: expected -{1 << 63} <= key <= {(1 << 63) - 1}, found {key}$"):
                sample(key)
