"""Ids that a loader's own sampler found are not checked again, and all others are."""

import copy

import pytest
import torch
from torch_geometric.data import Data

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, NeighborSampler, ops

NODES, EDGES = 2000, 20_000


@pytest.fixture
def data():
    ids = torch.arange(EDGES)
    return Data(
        x=torch.arange(NODES).float().unsqueeze(1),
        edge_index=torch.stack([ids * 7919 % NODES, ids % NODES]),
        edge_attr=ids.float().unsqueeze(1),
    )


def loader_of(data, **options):
    return NeighborLoader(data, [5], torch.arange(100), batch_size=50, prefetch=0, **options)


def test_ids_of_our_own_sampler_are_not_checked_again(data, monkeypatch):
    asked, select_rows = [], ops.select_rows
    monkeypatch.setattr(ops, "select_rows", lambda *args, check=True: asked.append(check) or select_rows(*args))
    for source in (data, (FeatureStore.from_data(Data(x=data.x)), GraphStore.from_data(data))):
        list(loader_of(source))
    assert asked
    assert not any(asked)


def test_a_sampler_of_a_larger_graph(data):
    sampler = NeighborSampler(data, [5])
    few = Data(x=data.x[:150], edge_index=data.edge_index[:, :10] % 150)
    with pytest.raises(IndexError, match=r"out of range: expected rows in \[0, 150\)"):
        list(loader_of(few, neighbor_sampler=sampler))
    few = Data(x=data.x, edge_index=data.edge_index[:, :10], edge_attr=data.edge_attr[:10])
    with pytest.raises(IndexError, match=r"out of range: expected rows in \[0, 10\)"):
        list(loader_of(few, neighbor_sampler=sampler))


def test_rows_that_were_taken_away_since(data):
    loader = loader_of(data)
    data.x = data.x[:500]
    with pytest.raises(IndexError, match=r"out of range: expected rows in \[0, 500\)"):
        list(loader)


def test_ids_that_the_user_changes(data):
    def change(out):
        out.node = out.node + NODES
        return out

    given, set_later = loader_of(data, transform_sampler_output=change), loader_of(data)
    list(set_later)
    set_later.transform_sampler_output = change
    for loader in (given, set_later):
        with pytest.raises(IndexError, match=r"out of range: expected rows in \[0, 2000\)"):
            list(loader)


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("edges", [False, True])
def test_a_single_row_that_was_taken_away_since(data, in_order, edges):
    if in_order:
        data.edge_index = data.edge_index[:, data.edge_index[1].argsort(stable=True)]
    loader = NeighborLoader(data, [-1], torch.tensor([NODES - 1]), prefetch=0, is_sorted=in_order)
    assert EDGES - 1 in next(iter(loader)).e_id
    if edges:
        data.edge_index, data.edge_attr = data.edge_index[:, :-1], data.edge_attr[:-1]
    else:
        data.x = data.x[:-1]
    rows = (EDGES if edges else NODES) - 1
    with pytest.raises(IndexError, match=rf" = {rows} is out of range: expected rows in \[0, {rows}\)"):
        list(loader)


class Shifted(FeatureStore):
    """A user's store, which asks ours for other rows."""

    def _get_tensor(self, attr):
        attr = copy.copy(attr)
        attr.index = attr.index + NODES
        return super()._get_tensor(attr)


def test_a_users_own_store(data):
    features = Shifted()
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    with pytest.raises(IndexError, match=r"out of range: expected rows in \[0, 2000\)"):
        list(loader_of((features, GraphStore.from_data(data))))
