"""Bidirectional samples: a reverse edge has the id of the graph's own reverse edge, or edges have no ids."""

import re
import warnings

import pytest
import torch
from helpers.data import edge_rows, make_data
from helpers.hetero import PAPER
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler.base import SubgraphType

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, NeighborSampler

OPTIONS = {"batch_size": 20, "subgraph_type": "bidirectional", "seed": 2}
TO, BACK = (PAPER, "to", "other"), ("other", "rev_to", PAPER)


def undirected(num_nodes=100, num_links=300, seed=0) -> Data:
    """Both directions of random links, some of them several times and some from a node to itself, in a random order."""
    generator = torch.Generator().manual_seed(seed)
    links = torch.randint(num_nodes, (2, num_links), generator=generator)
    links = torch.cat([links, links[:, :40], torch.arange(9).expand(2, 9)], dim=1)
    time = torch.randint(50, (links.size(1),), generator=generator)
    order = torch.randperm(2 * links.size(1), generator=generator)
    data = make_data(num_nodes, 2 * links.size(1))
    data.edge_index = torch.cat([links, links.flip(0)], dim=1)[:, order]
    data.when = torch.cat([time, time])[order]
    return data


def typed(data: Data) -> HeteroData:
    """Papers and others, linked both ways; ``rev_to`` has its edges in another order."""
    hetero = HeteroData()
    hetero[PAPER].x = hetero["other"].x = data.x
    order = torch.randperm(data.num_edges, generator=torch.Generator().manual_seed(5))
    for edge_type, ends in ((TO, data.edge_index), (BACK, data.edge_index.flip(0)[:, order])):
        hetero[edge_type].edge_index = ends
        hetero[edge_type].edge_attr = edge_rows(torch.arange(data.num_edges))
    return hetero


def quiet(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return make()


def test_edges_whose_ids_are_their_positions():
    data = undirected()
    data.edge_index = data.edge_index[:, torch.argsort(data.edge_index[1], stable=True)]
    for batch in quiet(lambda: NeighborLoader(data, [3, 2], is_sorted=True, **OPTIONS)):
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


@pytest.mark.parametrize("more", [{}, {"disjoint": True}, {"time_attr": "when"}, {"replace": True}], ids=str)
def test_reverse_edges_have_ids_and_attributes_of_their_own(more):
    data = undirected()
    if "time_attr" in more:
        more = {**more, "input_nodes": torch.arange(60), "input_time": torch.full((60,), 30)}
    loader = quiet(lambda: NeighborLoader(data, [3, 2], **OPTIONS, **more))
    for batch in loader:
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, edge_rows(batch.e_id))
        if "time_attr" in more:
            assert int(data.when[batch.e_id].max()) <= 30


def check_types(batch, data):
    for edge_type in (TO, BACK):
        found, ends = batch[edge_type], (batch[edge_type[0]].n_id, batch[edge_type[2]].n_id)
        src, dst = (of[index] for of, index in zip(ends, found.edge_index, strict=True))
        assert torch.equal(torch.stack([src, dst]), data[edge_type].edge_index[:, found.e_id])
        assert torch.equal(found.edge_attr, edge_rows(found.e_id))


def test_reverse_edges_of_types_have_ids_of_their_own():
    data = typed(undirected())
    stores = FeatureStore.from_data(data), GraphStore.from_data(data)
    for source in (data, stores):
        loader = quiet(lambda source=source: NeighborLoader(source, [3, 2], PAPER, **OPTIONS))
        for batch in loader:
            check_types(batch, data)


@pytest.mark.parametrize("more", [TO, BACK])
def test_relations_whose_ids_end_elsewhere(more):
    """One has more edges, of weight 0, before the others."""
    data = typed(undirected())
    for edge_type in (TO, BACK):
        store, count = data[edge_type], 5 * (edge_type == more)
        store.edge_index = torch.cat([torch.zeros(2, count, dtype=torch.int64), store.edge_index], dim=1)
        store.edge_attr = edge_rows(torch.arange(store.num_edges))
        store.weight = (torch.arange(store.num_edges) >= count).float()
    for seeds in (PAPER, "other"):
        for batch in quiet(lambda seeds=seeds: NeighborLoader(data, [3, 2], seeds, weight_attr="weight", **OPTIONS)):
            check_types(batch, data)


@pytest.mark.parametrize("hetero", [False, True])
def test_reverse_edges_beside_the_original_ones_have_ids_of_their_own(hetero):
    data = typed(undirected()) if hetero else undirected()
    sampler = NeighborSampler(data, [3, 2], "bidirectional")
    sampler.keep_orig_edges = True
    batch = next(iter(NeighborLoader(data, [3, 2], PAPER if hetero else None, neighbor_sampler=sampler, batch_size=20)))
    for store, src, dst in (
        [(batch[t], batch[t[0]], batch[t[2]]) for t in (TO, BACK)] if hetero else [(batch, batch, batch)]
    ):
        of = data[store._key] if hetero else data
        ends = torch.stack([src.n_id[store.edge_index[0]], dst.n_id[store.edge_index[1]]])
        assert torch.equal(ends, of.edge_index[:, store.e_id])
        assert store.edge_index.size(1) > store._orig_edge_index.size(1)


def of_one_more(data: Data) -> Data:
    return Data(x=data.x, edge_index=torch.cat([data.edge_index, torch.tensor([[0], [99]])], dim=1))


def at_another_time(data: Data) -> Data:
    data.when[7] += 1
    return data


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (make_data(), {}),
        (of_one_more(undirected()), {}),
        (at_another_time(undirected()), {"time_attr": "when", "input_time": torch.full((100,), 30)}),
    ],
    ids=["directed", "one edge more", "another time"],
)
def test_without_all_reverse_edges_there_are_no_ids(data, options):
    message = (
        "subgraph_type='bidirectional': samples have no ids (e_id) and no attributes of edges, because the graph does "
        "not have the reverse of each of them"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        loader = NeighborLoader(data, [3, 2], **OPTIONS, **options)
    for batch in loader:
        assert "e_id" not in batch
        assert "edge_attr" not in batch
        assert batch.edge_index.size(1) > 0
    sampler = NeighborSampler(data, [3, 2], time_attr=options.get("time_attr"))
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        sampler.subgraph_type = SubgraphType.bidirectional
