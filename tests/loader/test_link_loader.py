"""LinkNeighborLoader: its batches, by any number of workers, and resume."""

import copy
import json
from contextlib import nullcontext

import pytest
import torch
import torch_geometric.loader
from helpers.data import edge_rows, node_rows, plain, processes
from helpers.forked import FORKED
from helpers.links import (
    NEGATIVES,
    RATES,
    TYPES,
    edges,
    graph_of,
    homogeneous,
    ids,
    loader_of,
    pairs_of,
    parts,
    times_of,
)
from helpers.slow import SLOW
from torch_geometric.sampler import NegativeSampling

from torch_gnnscale import LinkNeighborLoader, NeighborSampler


@pytest.mark.parametrize("edge_type", TYPES, ids=str)
@pytest.mark.parametrize("negatives", NEGATIVES, ids=str)
@pytest.mark.parametrize("workers", [0, SLOW(2)])
def test_batches(edge_type, negatives, workers):
    data = graph_of(edge_type)
    loader = loader_of(data, edge_type, neg_sampling=negatives, **processes(workers), exclude_seed_edges=True)
    links, seen = edges(data, edge_type), 0
    assert len(loader) == -(-links.size(1) // 32)
    for batch in loader:
        link, src, dst = parts(batch, edge_type)
        assert torch.equal(src.x, node_rows(src.n_id))
        assert torch.equal(dst.x, node_rows(dst.n_id))
        sampled = torch.stack([src.n_id[link.edge_index[0]], dst.n_id[link.edge_index[1]]])
        assert torch.equal(sampled, links[:, link.e_id])
        if edge_type is None:
            assert torch.equal(batch.edge_attr, edge_rows(batch.e_id))
        count = len(link.input_id)
        if negatives is None or negatives.is_binary():
            found = torch.stack([src.n_id[link.edge_label_index[0]], dst.n_id[link.edge_label_index[1]]])[:, :count]
            assert "edge_label_time" not in link
            if negatives is not None:
                assert link.edge_label.tolist() == [1.0] * count + [0.0] * -(-3 * count // 2)
        else:
            found = torch.stack([src.n_id[src.src_index], dst.n_id[dst.dst_pos_index]])
            assert dst.dst_neg_index.shape == (count, 2)
        assert torch.equal(found, links[:, link.input_id])
        assert not pairs_of(found) & pairs_of(sampled)
        seen += count
    assert seen == links.size(1)


@pytest.mark.parametrize("edge_type", TYPES, ids=str)
@pytest.mark.parametrize("negatives", NEGATIVES[1:], ids=str)
@pytest.mark.parametrize("temporal", [False, True])
def test_fields_and_their_order_are_those_of_pyg(edge_type, negatives, temporal):
    data = graph_of(edge_type)
    options = {"edge_label_index": edge_type, "batch_size": 32, "neg_sampling": negatives}
    if temporal:
        options |= {"edge_label_time": times_of(edges(data, edge_type).size(1), 1), "time_attr": "time"}
    ours = next(iter(LinkNeighborLoader(data, [3, 2], **options)))
    link_loader = torch_geometric.loader.LinkLoader
    sampler = NeighborSampler(data, [3, 2], time_attr="time" if temporal else None)
    theirs = next(iter(link_loader(data, sampler, **{k: v for k, v in options.items() if k != "time_attr"})))
    stores = [(batch.stores if edge_type is not None else [batch._store]) for batch in (ours, theirs)]
    for found, expected in zip(*stores, strict=True):
        assert found._key == expected._key
        for store in (found, expected):
            store.pop("num_sampled_edges", None)
        assert {key: getattr(found[key], "dtype", None) for key in found} == {
            key: getattr(expected[key], "dtype", None) for key in expected
        }
        assert sorted(found.keys()) == sorted(expected.keys())


@pytest.mark.slow
@pytest.mark.parametrize("edge_type", [None, RATES], ids=str)
@pytest.mark.parametrize("negatives", NEGATIVES[1:], ids=str)
@pytest.mark.parametrize("temporal", [False, True])
def test_workers_and_prefetch_do_not_matter(edge_type, negatives, temporal):
    data = graph_of(edge_type)
    links = edges(data, edge_type)
    weights = [torch.rand(len(parts(data, edge_type)[end].x)) + 0.1 for end in (1, 2)]
    options = {"neg_sampling": copy.copy(negatives), "shuffle": True, "exclude_seed_edges": True}
    options["neg_sampling"].src_weight, options["neg_sampling"].dst_weight = weights
    if temporal:
        options |= {"edge_label_time": times_of(links.size(1), 1) + 3, "time_attr": "time"}
    else:
        options |= {"strict_negatives": True}
    expected = [[ids(batch, edge_type) for batch in epoch] for epoch in [loader_of(data, edge_type, **options)] * 2]
    assert expected[0] != expected[1]
    for other in (
        {"prefetch": 0},
        {"prefetch": 2},
        {"bulk": 3},
        processes(2),
        {**processes(1), "filter_per_worker": False},
    ):
        loader = loader_of(data, edge_type, **options, **other)
        assert [[ids(batch, edge_type) for batch in epoch] for epoch in [loader] * 2] == expected


@pytest.mark.slow
def test_workers_that_do_not_descend_from_this_process():
    data = homogeneous()
    options = {
        "neg_sampling": NegativeSampling("binary", 1, torch.rand(60)),
        "strict_negatives": True,
        "batch_size": 100,
    }
    expected = [ids(batch, None) for batch in loader_of(data, None, **options)]
    loader = loader_of(data, None, num_workers=1, multiprocessing_context=FORKED, **options)
    assert [ids(batch, None) for batch in loader] == expected


@pytest.mark.parametrize("edge_type", [None, RATES], ids=str)
@pytest.mark.parametrize(("workers", "then"), [(0, 0), SLOW(0, 2), SLOW(2, 0)])
def test_resume(edge_type, workers, then):
    data = graph_of(edge_type)
    options = {"neg_sampling": "binary", "shuffle": True, "strict_negatives": True}
    whole = loader_of(data, edge_type, **options)
    expected = [[ids(batch, edge_type) for batch in whole] for _ in range(3)]
    first = loader_of(data, edge_type, **processes(workers), **options)
    list(first)
    iterator = iter(first)
    found = [ids(next(iterator), edge_type) for _ in range(3)]
    state = json.loads(json.dumps(first.state_dict()))
    assert (state["epoch"], state["batch"], state["negatives"]) == (1, 3, ["binary", 1])
    second = loader_of(data, edge_type, **processes(then), **{**options, "seed": 99})
    second.load_state_dict(state)
    assert found + [ids(batch, edge_type) for batch in second] == expected[1]
    assert [ids(batch, edge_type) for batch in second] == expected[2]
    for other in ({"neg_sampling": "triplet"}, {"strict_negatives": False}, {"exclude_seed_edges": True}):
        with pytest.raises(ValueError, match=r"^state: expected a loader with (negatives|strict|exclude)"):
            loader_of(data, edge_type, **{**options, **other}).load_state_dict(state)


@pytest.mark.parametrize("edge_type", [None, RATES], ids=str)
def test_called_with_positions(edge_type):
    data = graph_of(edge_type)
    loader = loader_of(data, edge_type, neg_sampling="binary")
    once, again, other = loader([3, 5, 8]), loader(torch.tensor([3, 5, 8])), loader([3, 5, 9])
    assert ids(once, edge_type) == ids(again, edge_type) != ids(other, edge_type)
    assert parts(once, edge_type)[0].input_id.tolist() == [3, 5, 8]


@pytest.mark.parametrize(("collective", "failing"), [(False, [2]), (True, [0, 1, 2, 3])])
@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_batch_of_a_bulk_fails_alone_unless_ranks_sample_together(collective, failing, prefetch):
    data = homogeneous()
    links = torch.arange(16).expand(2, -1)
    all_of_five = torch.stack([torch.full((data.num_nodes,), 5), torch.arange(data.num_nodes)])
    options = {"neg_sampling": "triplet", "batch_size": 2, "seed": 1}
    sampler = NeighborSampler(data, [2], strict_negatives=all_of_five)
    whole = iter(LinkNeighborLoader(data, [2], links, neighbor_sampler=sampler, bulk=1, prefetch=0, **options))
    sampler = copy.copy(sampler)
    sampler.executor = copy.copy(sampler.executor)
    sampler.executor.collective = collective
    found = iter(LinkNeighborLoader(data, [2], links, neighbor_sampler=sampler, bulk=4, prefetch=prefetch, **options))
    text = r"^negative 1: expected a destination for source 5 that is not an edge, found none$"
    for number in range(8):
        expected = None
        with pytest.raises(ValueError, match=text) if number == 2 else nullcontext():
            expected = next(whole)
        with pytest.raises(ValueError, match=text) if number in failing else nullcontext():
            assert plain(next(found)) == plain(expected)
    assert next(found, None) is None
