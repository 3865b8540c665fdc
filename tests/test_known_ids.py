"""Ids that are not checked when rows are gathered: those that a loader's own sampler found, and no others."""

import pytest
import torch
from datasets_for_tests import make_data, node_rows
from hetero_for_tests import PAPER, make_hetero
from tiers_for_tests import NODES, make, node_data, own_ids
from torch_geometric.sampler import BaseSampler, SamplerOutput

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, NeighborSampler, ops
from torch_gnnscale.ops import rows, tiers


@pytest.fixture
def checked(monkeypatch):
    """Whether each gather so far looked at its ids."""
    found = []

    def check(name, ids, limit=None, *rest):
        if name == "index":
            found.append(limit is not None)
        return rows_check(name, ids, limit, *rest)

    rows_check = rows.check_ids
    for module in (rows, tiers):
        monkeypatch.setattr(module, "check_ids", check)
    return found


@pytest.mark.parametrize("budgets", ["memory", "memory and disk", "renumbered memory and disk"])
def test_a_tiered_store_checks_users_ids_alone(budgets, checked, tmp_path):
    data = node_data()
    with make("from_data", budgets, tmp_path) as store:
        checked.clear()
        graph = GraphStore.from_data(data, order=store.order)
        for batch in NeighborLoader((store, graph), [3, 2], batch_size=50, prefetch=0):
            assert torch.equal(batch.x, data.x[batch.n_id])
        assert len(checked) == 3 * 4  # attributes x batches
        assert not any(checked)
        index = torch.tensor([5, 0])
        assert torch.equal(store[None, "x", own_ids(store, index)], data.x[index])
        assert checked[12:] == [True]


def test_a_feature_store_checks_users_ids_and_those_of_edges(checked):
    data = make_data()
    loader = NeighborLoader((FeatureStore.from_data(data), GraphStore.from_data(data)), [3], batch_size=200, prefetch=0)
    batch = next(iter(loader))
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
    assert sorted(checked) == [False, False, True]  # x, y, edge_attr
    assert torch.equal(loader.data[0][None, "y", torch.tensor([3])], data.y[3:4])
    assert checked[3:] == [True]


def test_node_types(checked):
    data = make_hetero()
    stores = FeatureStore.from_data(data), GraphStore.from_data(data)
    batch = next(iter(NeighborLoader(stores, [3, 2], PAPER, batch_size=10, prefetch=0)))
    for node_type in data.node_types:
        assert torch.equal(batch[node_type].x, data[node_type].x[batch[node_type].n_id])
    nodes = sum(name in data[node_type] for node_type in data.node_types for name in ("x", "y"))
    assert checked.count(False) == nodes


class Foreign(BaseSampler):
    """A sampler of a user's that gives ids of no nodes."""

    edge_permutation = None

    def sample_from_nodes(self, inputs):
        return outside(NeighborSampler(node_data(), [3]).sample_from_nodes(inputs))

    def sample_from_edges(self, inputs, neg_sampling=None):
        raise NotImplementedError


def outside(out: SamplerOutput) -> SamplerOutput:
    out.node[-1] = NODES
    return out


@pytest.mark.parametrize("kind", ["data", "stores", "tiers"])
def test_ids_that_were_changed_are_checked(kind, tmp_path):
    data = node_data()
    with make("from_data", "memory and disk", tmp_path) as store:
        features = store if kind == "tiers" else FeatureStore.from_data(data)
        source = data if kind == "data" else (features, GraphStore.from_data(data))
        message = rf"^index\[\d+\] = {NODES} is out of range: expected rows in \[0, {NODES}\)$"
        loader = NeighborLoader(source, [3], torch.arange(10), transform_sampler_output=outside)
        with pytest.raises(IndexError, match=message):
            next(iter(loader))

        with pytest.warns(UserWarning, match="prefetch=4 has no effect"):
            loader = NeighborLoader(source, [3], torch.arange(10), neighbor_sampler=Foreign())
        with pytest.raises(IndexError, match=message):
            next(iter(loader))


def test_fewer_rows_than_nodes():
    features = FeatureStore()
    features.put_tensor(node_rows(torch.arange(NODES // 2)), group_name=None, attr_name="x", index=None)
    loader = NeighborLoader((features, GraphStore.from_data(make_data())), [3, 3], batch_size=NODES)
    with pytest.raises(IndexError, match=rf"is out of range: expected rows in \[0, {NODES // 2}\)$"):
        next(iter(loader))


def test_tiers_without_a_check():
    parts, index = [node_rows(torch.arange(20)), node_rows(torch.arange(20, 50))], torch.tensor([49, 0, 20])
    for place in (None, torch.randperm(50)):
        expected = ops.gather_tiers(parts, index, place=place)
        assert torch.equal(ops.gather_tiers(parts, index, place=place, check=False), expected)
    with pytest.raises(RuntimeError, match=r"place has an entry that is not in \[0, 50\)"):
        ops.gather_tiers(parts, torch.tensor([50]), check=False)
