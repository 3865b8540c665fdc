"""Stores whose types of nodes are renumbered: saved with their order, opened with it, and damaged."""

import json
import pickle
import re

import pytest
import torch
from helpers.data import plain
from helpers.hetero import make_hetero
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, TieredFeatureStore, files
from torch_gnnscale.topology.reorder import Order, TypedOrder, by_score

KINDS = pytest.mark.parametrize("kind", [FeatureStore, GraphStore])


def orders(data, *node_types):
    """Each node type in an order of its own."""
    generator = torch.Generator().manual_seed(1)
    sizes = {node_type: data[node_type].num_nodes for node_type in node_types}
    return TypedOrder({t: Order.from_permutation(torch.randperm(n, generator=generator), n) for t, n in sizes.items()})


def saved(folder, data, order):
    """Both stores, opened again."""
    stores = []
    for kind, name in ((FeatureStore, "features"), (GraphStore, "graph")):
        kind.from_data(data, order=order).save(folder / name)
        stores.append(kind.open(folder / name))
    return tuple(stores)


@pytest.mark.parametrize("node_types", [("author", "paper"), ("venue",), ()], ids=str)
def test_an_order_of_types_is_opened_as_it_was_saved(tmp_path, node_types):
    data = make_hetero()
    order = orders(data, *node_types)
    opened = saved(tmp_path, data, order)
    for store in (*opened, *pickle.loads(pickle.dumps(opened))):
        assert isinstance(store.order, TypedOrder)
        assert list(store.order) == list(node_types)
        for node_type in node_types:
            assert all(map(torch.equal, store.order[node_type], order[node_type]))
    stores = FeatureStore.from_data(data, order=order), GraphStore.from_data(data, order=order)
    found, expected = (
        [plain(batch) for batch in NeighborLoader(source, [3, 2], "paper", batch_size=16, seed=1)]
        for source in (opened, stores)
    )
    assert found == expected


def test_a_type_that_is_only_a_source_keeps_its_order(tmp_path):
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 5, 3
    data["a", "to", "b"].edge_index = torch.tensor([[4, 0, 2], [0, 1, 1]])
    order = orders(data, "a")
    store = GraphStore.from_data(data, order=order)
    assert store._num_nodes() == {"a": 5, "b": 3}
    store.save(tmp_path / "graph")
    assert GraphStore.open(tmp_path / "graph").order.equals(order)


def test_a_type_without_relations_keeps_its_order(tmp_path):
    data = make_hetero()
    data["tag"].x = torch.arange(4.0)
    order = orders(data, "tag", "paper")
    for store in saved(tmp_path, data, order):
        assert store.order.equals(order)


def test_features_of_one_type_keep_their_order(tmp_path):
    data = Data(x=torch.arange(5.0), edge_index=torch.tensor([[0, 1], [2, 4]]))
    score = torch.tensor([3, 9, 1, 9, 0])
    stores = saved(tmp_path, data, by_score(score))
    (batch,) = NeighborLoader(stores, [-1], torch.arange(5), batch_size=5)
    assert torch.equal(batch.x, data.x[batch.n_id])
    with TieredFeatureStore.open(tmp_path / "features", score, host="60%", renumbered=True) as tiers:
        (batch,) = NeighborLoader((tiers, stores[1]), [-1], torch.arange(5), batch_size=5)
        assert torch.equal(batch.x, data.x[batch.n_id])
    for hotness, renumbered in ((score, False), (-score, True)):
        message = (
            f"{tmp_path}/features: expected renumbered=True and the hotness by which its rows were ordered when it was "
            f"saved, found renumbered={renumbered}"
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            TieredFeatureStore.open(tmp_path / "features", hotness, renumbered=renumbered)


@KINDS
def test_another_numbering_cannot_be_saved(tmp_path, kind):
    store = kind()
    store.__dict__["order"] = by_score
    with pytest.raises(NotImplementedError, match=r"^save of a store that is numbered by function is not implemented"):
        store.save(tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


# Name: (what is done to the arrays and the metadata, the file that the message names, part of the message).
DAMAGES = {
    "a node twice": (
        lambda arrays, _: arrays["order_1"][3:4].copy_(arrays["order_1"][4]), "order*.npy", "expected every node once",
    ),
    "no node": (
        lambda arrays, _: arrays["order_0"][3:4].fill_(25), "order*.npy", "order_0[3] = 25 is out of range",
    ),
    "negative": (lambda arrays, _: arrays["order_1"][0:1].fill_(-1), "order*.npy", "order_1[0] = -1 is out of range"),
    "int32": (
        lambda arrays, _: arrays.update(order_1=arrays["order_1"].int()), "order*.npy", "order_1: expected int64",
    ),
    "missing": (lambda arrays, _: arrays.pop("order_1"), "order*.npy", "found no entry 'order_1'"),
    "a type too many": (lambda _, meta: meta["orders"].append("venue"), "order*.npy", "found no entry 'order_2'"),
    "no list": (lambda _, meta: meta.update(orders=3), "order*.npy", "not iterable"),
}  # fmt: skip


@KINDS
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_order_is_found(tmp_path, kind, name, verify):
    damage, file, message = DAMAGES[name]
    data = make_hetero()
    kind.from_data(data, order=orders(data, "author", "paper")).save(tmp_path / "good")
    manifest = json.loads((tmp_path / "good" / files.MANIFEST).read_text())
    arrays = {array: tensor.clone() for array, tensor in files.load(tmp_path / "good", manifest["kind"])[0].items()}
    damage(arrays, manifest["meta"])
    files.save(tmp_path / "bad", manifest["kind"], arrays, manifest["meta"])
    with pytest.raises(ValueError, match=f"^{re.escape(str(tmp_path / 'bad' / file))}: .*{re.escape(message)}"):
        kind.open(tmp_path / "bad", verify)


@KINDS
def test_an_order_that_is_cut_or_changed_in_its_file_is_found(tmp_path, kind):
    data = make_hetero()
    kind.from_data(data, order=orders(data, "author", "paper")).save(tmp_path / "saved")
    file = tmp_path / "saved" / "order_0.npy"
    content = file.read_bytes()
    file.write_bytes(content[:-16] + content[-8:] + content[-16:-8])  # a permutation, but another one
    with pytest.raises(ValueError, match=r"order_0\.npy: checksum of block 0"):
        kind.open(tmp_path / "saved")
    file.write_bytes(content[:-8])
    for verify in (True, False):
        with pytest.raises(ValueError, match=r"order_0\.npy: expected .* bytes, found"):
            kind.open(tmp_path / "saved", verify)


@pytest.mark.parametrize("end", [0, 2], ids=["of sources", "of destinations"])
def test_an_order_of_other_nodes_than_the_relations_is_found(tmp_path, end):
    data = make_hetero()
    for edge_type in data.edge_types:  # authors are one of the two alone
        if edge_type[end] != "author" or edge_type[2 - end] == "author":
            del data[edge_type]
    assert data.edge_types
    order = orders(data, "author")
    store = GraphStore.from_data(data, order=order)
    store.order["author"] = Order.from_permutation(torch.arange(24), 24)
    store.save(tmp_path / "graph")
    with pytest.raises(ValueError, match=r"order_0: expected int64 of shape \(25,\), found torch\.int64 \(24,\)$"):
        GraphStore.open(tmp_path / "graph")
