"""NeighborSampler on every kind of data in every mode, against the twin on columns made edge by edge."""

import copy
import dataclasses
import pickle
import warnings

import numpy as np
import pytest
import torch
from helpers.data import make_data, our_stores
from helpers.hetero import (
    AUTHOR,
    CITES,
    HELD,
    PAPER,
    REV_WRITES,
    VENUE,
    WRITES,
    assert_output,
    foreign_stores,
    make_hetero,
    sample_by_definition,
    with_times,
    with_weights,
)
from helpers.warn import recorded
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.sampler.base import DataType, NumNeighbors

from torch_gnnscale import CSC, FeatureStore, GraphStore, NeighborSampler, ops
from torch_gnnscale.random import batch_key
from torch_gnnscale.sampler.fanouts import drawable
from torch_gnnscale.sampler.graph import reverse_relations

SOURCES = {"HeteroData": lambda data: data, "our stores": our_stores, "foreign stores": foreign_stores}
SUBGRAPHS = ["directional", "bidirectional", "induced"]
KEY = batch_key(3, 1, 4)


def seeds_of(data, count=6, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {t: torch.randint(data[t].num_nodes, (count,), generator=generator) for t in (PAPER, AUTHOR)}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("subgraph", SUBGRAPHS)
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_relations(source, subgraph, disjoint, seed):
    data, fanouts = make_hetero(seed), [3, 2]
    sampler = NeighborSampler(SOURCES[source](data), fanouts, subgraph, disjoint=disjoint, replace=seed == 2)
    seeds = seeds_of(data)
    reverse = {"reverse": reverse_relations(data.edge_types)} if subgraph == "bidirectional" else {}
    expected = sample_by_definition(
        data, seeds, fanouts, KEY, disjoint=disjoint, subgraph=subgraph, replace=seed == 2, **reverse
    )
    out = sampler.sample(seeds, None, KEY)
    assert_output(out, expected, data)
    assert (out.num_sampled_nodes is None) == (out.num_sampled_edges is None) == (subgraph != "directional")
    for edge_type, number in zip(data.edge_types, reverse.get("reverse", [-1] * 5), strict=True):
        assert (out.edge[edge_type] is None) == (number >= 0 and edge_type not in (WRITES, REV_WRITES))
    assert (out.batch is None) == (not disjoint)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("subgraph", SUBGRAPHS)
@pytest.mark.parametrize("edges", [False, True], ids=["nodes", "edges"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32], ids=str)
def test_times(source, subgraph, edges, strategy, dtype):
    data = with_times(make_hetero(5), dtype, edges)
    sampler = NeighborSampler(SOURCES[source](data), [3, 2], subgraph, time_attr="time", temporal_strategy=strategy)
    seeds = seeds_of(data)
    assert sampler.is_temporal
    assert sampler.disjoint
    given = {t: (torch.arange(len(ids)) * 3 - 8).to(dtype) for t, ids in seeds.items()}
    for seed_time in (given, None)[: 1 if edges else 2]:
        expected = sample_by_definition(
            data, seeds, [3, 2], KEY, seed_time=seed_time, time="edges" if edges else "nodes", subgraph=subgraph,
            last=strategy == "last", reverse=reverse_relations(data.edge_types),
        )  # fmt: skip
        assert_output(sampler.sample(seeds, seed_time, KEY), expected, data)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_weights(source, replace, timed, backward):
    if timed and backward:
        pytest.skip("refused")
    data = with_weights(make_hetero(7))
    data = with_times(data) if timed else data
    options = {"time_attr": "time"} if timed else {"sample_direction": "backward" if backward else "forward"}
    sampler = NeighborSampler(SOURCES[source](data), [2, 3], replace=replace, weight_attr="weight", **options)
    seeds = seeds_of(data)
    expected = sample_by_definition(
        data, seeds, [2, 3], KEY, replace=replace, weight=True, backward=backward, time="nodes" if timed else None
    )
    out = sampler.sample(seeds, None, KEY)
    assert_output(out, expected, data, backward=backward)
    for edge_type in (CITES, WRITES):
        assert bool((data[edge_type].weight[out.edge[edge_type]] > 0).all())


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("subgraph", SUBGRAPHS)
@pytest.mark.parametrize("disjoint", [False, True])
def test_backward(source, subgraph, disjoint):
    data = make_hetero(2)
    sampler = NeighborSampler(SOURCES[source](data), [3, 2], subgraph, disjoint=disjoint, sample_direction="backward")
    seeds = seeds_of(data)
    expected = sample_by_definition(
        data, seeds, [3, 2], KEY, backward=True, disjoint=disjoint, subgraph=subgraph,
        reverse=reverse_relations(data.edge_types),
    )  # fmt: skip
    out = sampler.sample(seeds, None, KEY)
    assert_output(out, expected, data, backward=True)
    assert out.colptr is None


def test_backward_is_forward_on_the_turned_graph():
    data = make_data()
    turned = Data(x=data.x, edge_index=data.edge_index.flip(0))
    seeds = torch.tensor([9, 0, 40])
    for one, other in ((data, turned), (turned, data)):
        backward = NeighborSampler(one, [3, 3], sample_direction="backward").sample(seeds, None, KEY)
        forward = NeighborSampler(other, [3, 3]).sample(seeds, None, KEY)
        for name, same in (("node", "node"), ("row", "col"), ("col", "row"), ("edge", "edge")):
            assert torch.equal(getattr(backward, name), getattr(forward, same))
        assert backward.num_sampled_edges == forward.num_sampled_edges


def test_transposed_graphs_of_any_ids():
    csc = CSC.from_edge_index(torch.tensor([[0, 3, 3, 1], [2, 0, 2, 2]]), (4, 3))
    named = CSC(csc.colptr, csc.row, torch.tensor([70, 10, 90, 30]), 4)
    for graph, ids in ((csc, [0, 3, 1, 2]), (named, [10, 30, 70, 90])):
        turned = graph.transposed()
        assert (turned.num_src, turned.num_dst) == (3, 4)
        edges = {(int(i), int(r), int(c)) for i, r, c in zip(graph.edge_id, graph.row, graph.col(), strict=True)}
        assert {
            (int(i), int(c), int(r)) for i, r, c in zip(turned.edge_id, turned.row, turned.col(), strict=True)
        } == edges
        assert sorted(turned.edge_id.tolist()) == sorted(ids)
        for column in range(4):
            part = turned.edge_id[turned.colptr[column] : turned.colptr[column + 1]]
            assert part.tolist() == sorted(part.tolist())


# Fanouts #############################################################################################################


@pytest.mark.parametrize("source", SOURCES)
def test_fanouts_by_edge_type(source):
    data, seeds = make_hetero(1), {PAPER: torch.arange(5)}
    lists = [[2, 1], [0, 3], [1, 1], [-1, 2], [4, 0]]
    by_type = dict(zip(data.edge_types, lists, strict=True))
    expected = sample_by_definition(data, seeds, lists, KEY)
    for given in (by_type, NumNeighbors(by_type), NumNeighbors({CITES: [2, 1], WRITES: [0, 3], HELD: [1, 1]}, [9, 9])):
        sampler = NeighborSampler(SOURCES[source](data), given)
        assert isinstance(sampler.num_neighbors, NumNeighbors)
        if given is not by_type and given.default is not None:
            expected = sample_by_definition(data, seeds, [*lists[:3], [9, 9], [9, 9]], KEY)
        assert_output(sampler.sample(seeds, None, KEY), expected, data)


def test_fanouts_can_be_set_again():
    data, seeds = make_hetero(1), {PAPER: torch.arange(5)}
    sampler = NeighborSampler(data, [1])
    for fanouts in ([3, 3], np.array([2, 1]), (4,)):
        sampler.num_neighbors = fanouts
        expected = sample_by_definition(data, seeds, [int(fanout) for fanout in fanouts], KEY)
        assert_output(sampler.sample(seeds, None, KEY), expected, data)
        assert sampler.num_neighbors.num_hops == len(fanouts)


# Seeds ###############################################################################################################


def test_trees_are_numbered_in_the_order_of_the_seeds():
    data = make_hetero()
    sampler = NeighborSampler(data, [2], disjoint=True)
    papers, authors = torch.tensor([3, 4, 4]), torch.tensor([0, 1])
    out = sampler.sample({AUTHOR: authors, PAPER: papers}, None, KEY)
    assert out.batch[AUTHOR][:2].tolist() == [0, 1]
    assert out.batch[PAPER][:3].tolist() == [2, 3, 4]
    other = sampler.sample({PAPER: papers, AUTHOR: authors}, None, KEY)
    assert other.batch[PAPER][:3].tolist() == [0, 1, 2]
    assert torch.equal(out.node[PAPER], other.node[PAPER])
    turned = torch.tensor([2, 3, 4, 0, 1])
    for node_type in data.node_types:
        assert torch.equal(turned[other.batch[node_type]], out.batch[node_type])


def test_sample_from_nodes():
    data = make_hetero()
    sampler = NeighborSampler(data, [2, 2])
    inputs = NodeSamplerInput(torch.arange(4), torch.arange(4), None, PAPER)
    out = sampler.sample_from_nodes(inputs, KEY)
    assert_output(out, sample_by_definition(data, {PAPER: torch.arange(4)}, [2, 2], KEY), data)
    assert out.metadata[0] is inputs.input_id
    assert out.metadata[1] is None
    torch.manual_seed(3)
    first = sampler.sample_from_nodes(inputs)
    torch.manual_seed(3)
    assert str(first) == str(sampler.sample_from_nodes(inputs))
    assert str(first).startswith("HeteroSamplerOutput(node=")


def test_excluded_pairs():
    data = make_hetero(degree=9)
    for direction in ("forward", "backward"):
        sampler = NeighborSampler(data, [-1, -1], sample_direction=direction)
        seeds = {node_type: torch.arange(data[node_type].num_nodes) for node_type in data.node_types}
        left_out = {CITES: slice(3, 90), WRITES: slice(5)}
        pairs = {edge_type: data[edge_type].edge_index[:, edges] for edge_type, edges in left_out.items()}
        out = sampler.sample(seeds, None, KEY, exclude=pairs)
        for edge_type in data.edge_types:
            gone = set(zip(*pairs[edge_type].tolist(), strict=True)) if edge_type in pairs else set()
            kept = [
                e for e, pair in enumerate(zip(*data[edge_type].edge_index.tolist(), strict=True)) if pair not in gone
            ]
            assert sorted(out.edge[edge_type].unique().tolist()) == kept


def test_what_users_read():
    data = with_times(make_hetero())
    sampler = NeighborSampler(data, [2], time_attr="time")
    assert sampler.is_hetero
    assert sampler.data_type == DataType.heterogeneous
    assert sampler.node_types == data.node_types
    assert sampler.edge_types == data.edge_types
    assert sampler.num_nodes == {PAPER: 40, AUTHOR: 25, VENUE: 5}
    assert list(sampler.node_time) == [PAPER, AUTHOR]
    assert torch.equal(sampler.node_time[AUTHOR], data[AUTHOR].time)
    assert sampler.edge_time is None
    assert sampler.edge_permutation is None
    homogeneous = NeighborSampler(make_data(), [2])
    assert (homogeneous.is_hetero, homogeneous.num_nodes, homogeneous.node_time) == (False, 200, None)
    assert not homogeneous.disjoint
    homogeneous.disjoint = True
    assert homogeneous.sample(torch.tensor([0, 0]), None, KEY).batch[:2].tolist() == [0, 1]
    assert NeighborSampler(our_stores(data), [2]).data_type == DataType.remote


@pytest.mark.parametrize("hetero", [False, True])
def test_bidirectional_with_the_original_edges(hetero):
    data = make_hetero() if hetero else make_data()
    seeds = {PAPER: torch.arange(3)} if hetero else torch.arange(3)
    sampler = NeighborSampler(data, [2, 2], "bidirectional")
    sampler.keep_orig_edges = True
    out, drawn = sampler.sample(seeds, None, KEY), NeighborSampler(data, [2, 2]).sample(seeds, None, KEY)
    assert out.colptr is None  # its edges are not sorted by destination
    assert out.edge_index is None
    sampler.keep_orig_edges = False
    both = sampler.sample(seeds, None, KEY)
    assert (out.num_sampled_nodes, out.num_sampled_edges) == (drawn.num_sampled_nodes, drawn.num_sampled_edges)
    for edge_type in data.edge_types if hetero else [None]:
        found, original, expected = (
            [getattr(o, n) if edge_type is None else getattr(o, n)[edge_type] for n in names]
            for o, names in ((out, ("row", "col")), (out, ("orig_row", "orig_col")), (both, ("row", "col")))
        )
        first = [getattr(drawn, n) if edge_type is None else getattr(drawn, n)[edge_type] for n in ("row", "col")]
        assert sorted(zip(*map(torch.Tensor.tolist, found), strict=True)) == sorted(
            zip(*map(torch.Tensor.tolist, expected), strict=True)
        )
        assert all(torch.equal(*pair) for pair in zip(original, first, strict=True))


def test_bidirectional_is_what_pyg_makes_of_directional():
    for seed in range(5):
        data, seeds = make_hetero(seed), {PAPER: torch.arange(6)}
        drawn = NeighborSampler(data, [3, 2]).sample(seeds, None, KEY).to_pyg()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = drawn.to_bidirectional()
            found = NeighborSampler(data, [3, 2], "bidirectional").sample(seeds, None, KEY)
        for edge_type in data.edge_types:
            pairs = [
                sorted(zip(out.row[edge_type].tolist(), out.col[edge_type].tolist(), strict=True))
                for out in (found, expected)
            ]
            assert pairs[0] == pairs[1]
            assert found.edge[edge_type] is not None or expected.edge[edge_type] is None


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("hetero", [False, True])
def test_ends_of_edges_are_made_on_first_use(hetero, backward):
    data, seeds = (make_hetero(), {PAPER: torch.arange(6)}) if hetero else (make_data(), torch.arange(6))

    def drawn(direction="backward" if backward else "forward"):
        return NeighborSampler(data, [3, 2], sample_direction=direction).sample(seeds, None, KEY)

    def lists(ends):
        return [{t: end.tolist() for t, end in by.items()} if hetero else by.tolist() for by in ends]

    out = drawn()
    assert backward or out._row is out._col is None
    assert (out.colptr is None) == (out.edge_index is None) == backward  # they would be those of the turned graph
    expected = lists(out.to_pyg().__dict__[name] for name in ("row", "col"))
    for made in (drawn(), copy.copy(drawn()), pickle.loads(pickle.dumps(drawn())), dataclasses.replace(drawn())):
        assert lists((made.row, made.col)) == expected
        assert made.row is made.row
    if not backward:
        index = [{t: ends[i] for t, ends in out.edge_index.items()} if hetero else out.edge_index[i] for i in (0, 1)]
        assert lists(index) == expected
    out.row = out.col
    assert lists((out.row, out.col)) == expected[1:] * 2


def test_relations_without_a_reverse_are_named():
    with pytest.warns(UserWarning, match=r"^edge type \('paper', 'at', 'venue'\) stays directional"):
        NeighborSampler(make_hetero(), [2], "bidirectional")


@pytest.mark.parametrize("forward", [False, True])
def test_a_relation_that_is_named_a_reverse_but_is_none_is_named(forward):
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = 3
    data["a", "rev_to", "b"].edge_index = torch.tensor([[0, 1], [1, 2]])
    if forward:
        data["b", "to", "a"].edge_index = torch.tensor([[1, 2], [0, 1]])
    with recorded() as found:
        NeighborSampler(data, [2], "bidirectional")
    named = [str(entry.message) for entry in found if "stays directional" in str(entry.message)]
    assert named == [] if forward else len(named) == 1 and named[0].startswith("edge type ('a', 'rev_to', 'b') stays")


def test_two_relations_that_lead_back_are_no_reverse():
    there, back, again = ("a", "to", "b"), ("b", "from", "a"), ("b", "again", "a")
    assert reverse_relations([there, back]) == [1, 0]
    assert reverse_relations([there, back, again]) == [-1, 0, 0]
    assert reverse_relations([("a", "rev_to", "b"), back]) == [-1, 0]


def test_directed_is_deprecated():
    with pytest.warns(UserWarning, match=r"^directed=False is deprecated: use subgraph_type='induced'$"):
        sampler = NeighborSampler(make_data(), [2], directed=False)
    assert sampler.subgraph_type.value == "induced"


@pytest.mark.parametrize("weights", [(1.0, 2.0), (1.0, 0.0)])
def test_edges_that_were_chosen_from_a_file_lie_in_memory(weights, tmp_path):
    data = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1], [1, 2]]), edge_attr=torch.tensor(weights))
    GraphStore.from_data(data).save(tmp_path / "graph")
    stores = FeatureStore.from_data(data), GraphStore.open(tmp_path / "graph")
    (relation,) = NeighborSampler(stores, [2], weight_attr="edge_attr").graph.relations
    assert relation.mapped == all(weights)


def test_types_without_edges_and_graphs_without_relations():
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 3, 2
    out = NeighborSampler(data, [2, 2]).sample({"b": torch.tensor([1, 1])}, None, KEY)
    assert out.node["b"].tolist() == [1, 1]
    assert out.node["a"].numel() == 0
    assert (out.row, out.num_sampled_edges) == ({}, {})


def test_fanouts_that_cannot_be_drawn_become_all_neighbors():
    most = ops.MAX_FANOUT
    assert drawable([[most, most + 1], [3, most + 9]], most + 1, False) == [[most, -1], [3, -1]]
    assert drawable([[most, 2]], 1 << 40, True) == [[most, 2]]
    for degree, replace in ((most + 2, False), (0, True)):
        with pytest.raises(ValueError, match=rf"num_neighbors: expected -1 \(all\) or 0..{most} each, found"):
            drawable([[most + 1, most + 5]], degree, replace)
