"""Links as seeds of our sampler, also inside PyG's own LinkLoader."""

import math

import pytest
import reference
import torch
import torch_geometric.loader
from helpers.data import processes
from helpers.links import (
    RATED,
    RATES,
    TYPES,
    binary_links,
    edges,
    graph_of,
    homogeneous,
    inputs_of,
    pairs_of,
    part,
    sampled_edges,
    times_of,
    triplets,
)
from helpers.slow import SLOW
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from torch_gnnscale import NeighborSampler, ops
from torch_gnnscale.sampler.ends import _by_end
from torch_gnnscale.sampler.graph import end_types
from torch_gnnscale.sampler.links import _Links


def time_of(data, node_type):
    return data.time if node_type is None else data[node_type].time


def negative_sampling(mode, amount, data, edge_type, weighted=False):
    if mode is None:
        return None
    if not weighted:
        return NegativeSampling(mode, amount)
    weights = [torch.arange(len(time_of(data, node_type))).float() % 4 for node_type in end_types(edge_type)]
    return NegativeSampling(mode, amount, *[weight.index_fill(0, torch.tensor(0), 1) for weight in weights])


def test_links_of_several_relations_are_numbered_one_after_another():
    """By type of nodes: the first relation's sources, then its destinations, with negatives of its links in turn, then
    the second relation's."""

    def drawn(src, dst, size, negatives):
        ids = torch.arange(size)
        inputs = EdgeSamplerInput(None, ids, ids, input_type=(src, "to", dst))
        return _Links(inputs, None, [ids], [ids, torch.arange(negatives)] if negatives else [ids], negatives)

    found = _by_end([drawn("a", "b", 3, 0), drawn("b", "a", 2, 4), drawn("b", "b", 1, 0)], "numbers")
    assert {of: values.tolist() for of, values in found.items()} == {
        "a": [0, 1, 2, 3, 4, 3, 4, 3, 4],
        "b": [0, 1, 2, 3, 4, 5, 5],
    }


@pytest.mark.parametrize("edge_type", TYPES, ids=str)
@pytest.mark.parametrize(
    ("mode", "amount"), [(None, 0), ("binary", 1), ("binary", 0.4), ("triplet", 1), ("triplet", 3)]
)
@pytest.mark.parametrize("how", ["plain", "disjoint", "temporal", "strict"])
def test_equals_the_twin(edge_type, mode, amount, how, monkeypatch):
    data = graph_of(edge_type)
    links = edges(data, edge_type)[:, 5:18]
    negatives = negative_sampling(mode, amount, data, edge_type, weighted=how != "plain")
    options = {
        "plain": {"exclude_seed_edges": True},
        "disjoint": {"disjoint": True, "replace": True},
        "temporal": {"time_attr": "time", "temporal_strategy": "last"},
        "strict": {"strict_negatives": True, "exclude_seed_edges": "reverse", "subgraph_type": "induced"},
    }[how]
    time = {"time": times_of(13, 4)} if how == "temporal" else {}
    sampler = NeighborSampler(data, [3, 2], **options)
    out = sampler.sample_from_edges(inputs_of(links, edge_type, **time), negatives, key=9)
    again = NeighborSampler(data, [3, 2], **options)
    monkeypatch.setattr(ops, "sample_neighbors", reference.sample_neighbors)
    monkeypatch.setattr(ops, "sample_negatives", reference.sample_negatives)
    expected = again.sample_from_edges(inputs_of(links, edge_type, **time), negatives, key=9)
    for name in ("node", "row", "col", "edge", "batch", "num_sampled_nodes", "num_sampled_edges", "metadata"):
        found, wanted = getattr(out, name), getattr(expected, name)
        assert plain(found) == plain(wanted), name


def plain(value):
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.tolist()
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


# Binary ##############################################################################################################


@pytest.mark.parametrize("edge_type", TYPES, ids=str)
@pytest.mark.parametrize("amount", [None, 1, 0.3, 2.5, 4])
@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("label", ["none", "float", "classes", "rows"])
def test_binary(edge_type, amount, disjoint, label):
    data = graph_of(edge_type)
    links = edges(data, edge_type)[:, 20:31]
    given = {"none": None, "float": torch.rand(11), "classes": torch.arange(11) % 3 + 1, "rows": torch.rand(11, 2)}[
        label
    ]
    negatives = None if amount is None else NegativeSampling("binary", amount)
    sampler = NeighborSampler(data, [4, 4], disjoint=disjoint)
    out = sampler.sample_from_edges(inputs_of(links, edge_type, label=given), negatives, key=3)
    count = 0 if amount is None else math.ceil(11 * amount)
    found = binary_links(out, edge_type)
    assert found.shape == (2, 11 + count)
    assert torch.equal(found[:, :11], links)
    input_id, _, labels, time = out.metadata
    assert torch.equal(input_id, torch.arange(11))
    assert time is None
    if amount is None:
        assert labels is given
    else:
        positive = torch.ones(11) if given is None else given
        assert labels.dtype == positive.dtype
        assert torch.equal(labels[:11], positive)
        assert labels[11:].shape == (count, *positive.shape[1:])
        assert not labels[11:].any()
    for node_type, index in zip(end_types(edge_type), out.metadata[1], strict=True):
        node = part(out.node, node_type)
        if disjoint:
            assert torch.equal(part(out.batch, node_type)[index], torch.arange(11 + count) % 11)
            assert len(index.unique()) == 11 + count
        else:
            assert len(node.unique()) == len(node)
            seeds = node[: part(out.num_sampled_nodes, node_type)[0]]
            assert torch.equal(seeds, seeds.unique())


@pytest.mark.parametrize("edge_type", TYPES, ids=str)
@pytest.mark.parametrize("amount", [1, 2])
@pytest.mark.parametrize("disjoint", [False, True])
def test_triplets(edge_type, amount, disjoint):
    data = graph_of(edge_type)
    links = edges(data, edge_type)[:, 20:31]
    sampler = NeighborSampler(data, [4, 4], disjoint=disjoint, strict_negatives=True)
    out = sampler.sample_from_edges(inputs_of(links, edge_type), NegativeSampling("triplet", amount), key=3)
    src, dst, negatives = triplets(out, edge_type)
    assert torch.equal(torch.stack([src, dst]), links)
    assert out.metadata[3].shape == ((11,) if amount == 1 else (11, amount))
    assert negatives.shape == (11, amount)
    known = pairs_of(edges(data, edge_type))
    for column in negatives.t():
        assert not known & pairs_of(torch.stack([src, column]))
    if disjoint:
        dst_batch = part(out.batch, end_types(edge_type)[1])
        assert torch.equal(part(out.batch, end_types(edge_type)[0])[out.metadata[1]], torch.arange(11))
        assert torch.equal(dst_batch[out.metadata[2]], torch.arange(11))
        assert torch.equal(dst_batch[out.metadata[3]].reshape(11, -1), torch.arange(11)[:, None].expand(11, amount))


@pytest.mark.parametrize("edge_type", TYPES, ids=str)
@pytest.mark.parametrize(("mode", "amount"), [(None, 0), ("binary", 1), ("triplet", 1), ("triplet", 2)])
@pytest.mark.parametrize("disjoint", [False, True])
def test_no_links(edge_type, mode, amount, disjoint):
    sampler = NeighborSampler(graph_of(edge_type), [4], disjoint=disjoint, exclude_seed_edges=True)
    links = torch.empty(2, 0, dtype=torch.int64)
    negatives = None if mode is None else NegativeSampling(mode, amount)
    out = sampler.sample_from_edges(inputs_of(links, edge_type), negatives, key=3)
    assert part(out.node, end_types(edge_type)[0]).numel() == 0
    assert out.metadata[1].shape == ((0,) if mode == "triplet" else (2, 0))
    if mode == "triplet":
        assert out.metadata[3].shape == ((0,) if amount == 1 else (0, 2))


def test_the_key_decides():
    data, negatives = homogeneous(), NegativeSampling("binary", 2)
    sampler, links = NeighborSampler(data, [3]), data.edge_index[:, :20]
    one, two, other = (sampler.sample_from_edges(inputs_of(links), negatives, key=key) for key in (1, 1, 2))
    assert torch.equal(binary_links(one), binary_links(two))
    assert torch.equal(one.node, two.node)
    assert not torch.equal(binary_links(one), binary_links(other))
    torch.manual_seed(7)
    first = binary_links(sampler.sample_from_edges(inputs_of(links), negatives))
    assert not torch.equal(first, binary_links(sampler.sample_from_edges(inputs_of(links), negatives)))
    torch.manual_seed(7)
    assert torch.equal(first, binary_links(sampler.sample_from_edges(inputs_of(links), negatives)))


# Times ###############################################################################################################


@pytest.mark.parametrize("edge_type", TYPES, ids=str)
@pytest.mark.parametrize(("mode", "amount"), [("binary", 2), ("binary", 0.7), ("triplet", 2)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("floating", [False, True])
def test_no_negative_is_later_than_its_link(edge_type, mode, amount, weighted, floating):
    data = graph_of(edge_type)
    if floating:
        for store in [data] if edge_type is None else data.node_stores:
            store.time = store.time / 4
    links, time = edges(data, edge_type)[:, :30], times_of(30, 8) / 4 if floating else times_of(30, 8)
    sampler = NeighborSampler(data, [3, 3], time_attr="time")
    negatives = negative_sampling(mode, amount, data, edge_type, weighted)
    out = sampler.sample_from_edges(inputs_of(links, edge_type, time=time), negatives, key=5)
    src_time, dst_time = (time_of(data, node_type) for node_type in end_types(edge_type))
    if mode == "triplet":
        _, _, drawn = triplets(out, edge_type)
        assert bool((dst_time[drawn] <= time[:, None]).all())
        assert torch.equal(out.metadata[4], time)
    else:
        drawn = binary_links(out, edge_type)[:, 30:]
        limits = time[torch.arange(drawn.size(1)) % 30]
        assert torch.equal(out.metadata[3], torch.cat([time, limits]))
        for end_time, ids in zip((src_time, dst_time), drawn, strict=True):
            assert bool((end_time[ids] <= limits).all())
    for node_type in {*end_types(edge_type)}:
        nodes, batch = part(out.node, node_type), part(out.batch, node_type)
        seeds = part(out.num_sampled_nodes, node_type)[0]
        assert bool((time_of(data, node_type)[nodes[seeds:]] <= time[batch[seeds:]]).all())


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64])
@pytest.mark.parametrize("of_links", [torch.int64, torch.float64])
def test_negatives_are_all_nodes_up_to_the_very_time_of_their_link(dtype, of_links):
    data = homogeneous()
    data.time = (torch.arange(60) // 4).to(dtype)
    limits = torch.tensor([0, 3, 14]).to(of_links) + (0.75 if of_links == torch.float64 else 0)
    sampler = NeighborSampler(data, [1], time_attr="time")
    links = torch.zeros(2, 3, dtype=torch.int64)
    out = sampler.sample_from_edges(inputs_of(links, time=limits), NegativeSampling("triplet", 1000), key=5)
    drawn = triplets(out)[2]
    assert [len(of_link.unique()) for of_link in drawn] == [4, 16, 60]
    assert [int(of_link.max()) for of_link in drawn] == [3, 15, 59]


def test_times_of_edges_do_not_limit_negatives():
    data = homogeneous()
    del data.time
    data.stamp = torch.arange(300)
    links, time = data.edge_index[:, :30], torch.zeros(30, dtype=torch.int64)
    sampler = NeighborSampler(data, [-1], time_attr="stamp")
    out = sampler.sample_from_edges(inputs_of(links, time=time), NegativeSampling("binary", 1), key=5)
    assert len(binary_links(out)[:, 30:].unique()) > 20
    assert set(out.edge.tolist()) <= {0}


# Exclusions ##########################################################################################################


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("exclude", [False, True, "reverse"])
@pytest.mark.parametrize("edge_type", [*TYPES, RATED], ids=str)
def test_no_seed_edge_is_sampled(edge_type, exclude, disjoint):
    data = graph_of(edge_type)
    if edge_type != RATES and edge_type != RATED:  # with all reverses
        both = torch.cat([edges(data, edge_type), edges(data, edge_type).flip(0)], dim=1)
        (data if edge_type is None else data[edge_type]).edge_index = both
        if edge_type is None:
            del data.edge_attr
    links = edges(data, edge_type)[:, :9]
    reverse = {RATES: RATED, RATED: RATES}.get(edge_type, edge_type)
    sampler = NeighborSampler(data, [-1, -1], disjoint=disjoint, exclude_seed_edges=exclude)
    out = sampler.sample_from_edges(inputs_of(links, edge_type), NegativeSampling("binary"), key=1)
    found, turned = pairs_of(sampled_edges(out, edge_type)), pairs_of(sampled_edges(out, reverse))
    seeds, back = pairs_of(links), pairs_of(links.flip(0))
    assert bool(seeds & found) == (exclude is False)
    assert bool((back - seeds) & turned) == (exclude != "reverse")
    if not disjoint and edge_type is None:
        everything = pairs_of(edges(data, None)[:, torch.isin(edges(data, None)[1], out.node)])
        without = {False: set(), True: seeds, "reverse": seeds | back}[exclude]
        seeds_in = {pair for pair in everything if pair[1] in set(binary_links(out).unique().tolist())}
        assert seeds_in - without <= found


def test_backward():
    data = homogeneous()
    links = data.edge_index[:, :9]
    sampler = NeighborSampler(data, [-1], sample_direction="backward", exclude_seed_edges=True, strict_negatives=True)
    out = sampler.sample_from_edges(inputs_of(links), NegativeSampling("triplet", 40), key=1)
    found = pairs_of(sampled_edges(out))
    assert found
    assert not pairs_of(links) & found
    src, _, negatives = triplets(out)
    assert not pairs_of(data.edge_index) & pairs_of(torch.stack([src.repeat_interleave(40), negatives.reshape(-1)]))


# Strict negatives ####################################################################################################


@pytest.mark.slow
@pytest.mark.parametrize("edge_type", TYPES, ids=str)
@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_no_strict_negative_is_an_edge(edge_type, mode):
    data = graph_of(edge_type)
    links = edges(data, edge_type)
    held_out = torch.stack([torch.arange(30), (torch.arange(30) * 7 + 3) % 40])
    known = held_out if edge_type is None else {edge_type: held_out}
    loose, strict, stricter = (
        NeighborSampler(data, [0], strict_negatives=option).sample_from_edges(
            inputs_of(links, edge_type), NegativeSampling(mode, 20), key=2
        )
        for option in (False, True, known)
    )

    def negatives(out):
        if mode == "binary":
            return pairs_of(binary_links(out, edge_type)[:, links.size(1) :])
        src, _, dst = triplets(out, edge_type)
        return pairs_of(torch.stack([src.repeat_interleave(20), dst.reshape(-1)]))

    assert negatives(loose) & pairs_of(links)
    assert not negatives(strict) & pairs_of(links)
    assert negatives(strict) & pairs_of(held_out)
    assert not negatives(stricter) & (pairs_of(links) | pairs_of(held_out))


@pytest.mark.parametrize(
    ("links", "undirected"), [([[1, 3], [2, 1]], False), ([[1, 2], [2, 1]], True), ([[], []], False)]
)
def test_where_edges_have_their_reverses_known_links_count_both_ways(links, undirected):
    data = homogeneous(8, 0)
    data.edge_index = torch.tensor(links, dtype=torch.int64)
    del data.edge_attr
    sampler = NeighborSampler(data, [0], strict_negatives=torch.tensor([[4], [5]]))
    out = sampler.sample_from_edges(inputs_of(torch.tensor([[4], [5]])), NegativeSampling("binary", 2000), key=1)
    negatives = pairs_of(binary_links(out)[:, 1:])
    assert (4, 5) not in negatives
    assert ((5, 4) in negatives) == (not undirected)
    assert len(negatives) == 64 - len(links[0]) - (2 if undirected else 1)


def test_known_links_of_the_sampler_and_of_a_loader():
    data = homogeneous(4, 0)
    del data.edge_attr
    sampler = NeighborSampler(data, [0], strict_negatives=torch.tensor([[0], [1]]))
    of_batches = NegativeSampling("binary", 500)
    sampler.prepare_links(None, of_batches, torch.tensor([[2], [3]]))
    out = sampler.sample_from_edges(inputs_of(torch.tensor([[0], [0]])), of_batches, key=1)
    everything = pairs_of(torch.cartesian_prod(torch.arange(4), torch.arange(4)).t())
    assert pairs_of(binary_links(out)[:, 1:]) == everything - {(0, 1), (2, 3)}


def test_other_weights_of_candidates():
    sampler, links = NeighborSampler(homogeneous(), [0]), torch.zeros(2, 5, dtype=torch.int64)
    for node in (7, 3):
        weights = [torch.zeros(60).index_fill(0, torch.tensor(end), 1) for end in (node, node + 1)]
        out = sampler.sample_from_edges(inputs_of(links), NegativeSampling("binary", 2, *weights), key=1)
        assert pairs_of(binary_links(out)[:, 5:]) == {(node, node + 1)}


@pytest.mark.parametrize("order", [1, -1])
def test_options_of_links_that_are_set_later(order):
    data = homogeneous()
    sampler, expected = NeighborSampler(data, [3]), NeighborSampler(
        data, [3], exclude_seed_edges=True, strict_negatives=True
    )  # fmt: skip
    for name in ("exclude_seed_edges", "strict_negatives")[::order]:
        setattr(sampler, name, True)
    assert sampler.options() == expected.options()
    negatives = NegativeSampling("binary", 30)
    found, twin = (s.sample_from_edges(inputs_of(data.edge_index), negatives, key=2) for s in (sampler, expected))
    assert torch.equal(found.edge, twin.edge)
    assert not pairs_of(binary_links(found)[:, 300:]) & pairs_of(data.edge_index)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_edges_of_weight_zero_are_edges(direction):
    data = homogeneous(8, 0)
    data.edge_index = torch.tensor([[0, 1, 2, 3, 5], [4, 2, 3, 0, 5]])
    data.weight = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0])
    del data.edge_attr
    sampler = NeighborSampler(data, [0], weight_attr="weight", strict_negatives=True, sample_direction=direction)
    out = sampler.sample_from_edges(inputs_of(data.edge_index), NegativeSampling("binary", 400), key=1)
    everything = pairs_of(torch.cartesian_prod(torch.arange(8), torch.arange(8)).t())
    assert pairs_of(binary_links(out)[:, 5:]) == everything - pairs_of(data.edge_index)


# PyG's own loader ####################################################################################################


@pytest.mark.parametrize("workers", [0, SLOW(2)])
@pytest.mark.parametrize("edge_type", TYPES, ids=str)
@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_in_pygs_link_loader(edge_type, mode, workers):
    data = graph_of(edge_type)
    sampler = NeighborSampler(data, [3, 3], strict_negatives=True, exclude_seed_edges=True)
    loader = torch_geometric.loader.LinkLoader(
        data, sampler, edge_type, neg_sampling=NegativeSampling(mode, 2), batch_size=70, **processes(workers)
    )
    seen = 0
    for batch in loader:
        src, dst = (batch if node_type is None else batch[node_type] for node_type in end_types(edge_type))
        store = batch if edge_type is None else batch[edge_type]
        seen += len(store.input_id)
        if mode == "binary":
            links = torch.stack([src.n_id[store.edge_label_index[0]], dst.n_id[store.edge_label_index[1]]])
            positives, negatives = links[:, store.edge_label == 1], links[:, store.edge_label == 0]
        else:
            positives = torch.stack([src.n_id[src.src_index], dst.n_id[dst.dst_pos_index]])
            negatives = torch.stack([positives[0].repeat_interleave(2), dst.n_id[dst.dst_neg_index].reshape(-1)])
        assert torch.equal(positives, edges(data, edge_type)[:, store.input_id])
        assert not pairs_of(negatives) & pairs_of(edges(data, edge_type))
        assert not pairs_of(positives) & pairs_of(
            torch.stack([src.n_id[store.edge_index[0]], dst.n_id[store.edge_index[1]]])
        )
    assert seen == edges(data, edge_type).size(1)
