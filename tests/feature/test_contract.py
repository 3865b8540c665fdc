"""What loaders ask of feature stores: threads, order, bounds and numbering."""

import itertools
import pickle
import threading
import time

import pytest
import torch
from helpers.data import ForeignFeatureStore, make_data, node_rows, plain
from helpers.hetero import make_hetero
from torch_geometric.data import TensorAttr

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader
from torch_gnnscale.feature.contract import BoundedAttr, RowStore, all_attrs, is_collective, may_be_read_by_threads
from torch_gnnscale.loader.pipeline import PrefetchTrial
from torch_gnnscale.topology.reorder import Numbering, Order, TypedOrder


class Recording(ForeignFeatureStore):
    """Notes which threads read, and whether any two of them read at once."""

    def __init__(self, data, **attributes):
        super().__init__()
        self.put_tensor(data.x, group_name=None, attr_name="x", index=None)
        self.__dict__.update(names=[], reading=0, at_once=False, lock=threading.Lock(), **attributes)

    def _get_tensor(self, attr):
        if isinstance(attr.index, torch.Tensor):
            with self.lock:
                self.__dict__["reading"] += 1
                self.__dict__["at_once"] |= self.reading > 1
            self.names.append(threading.current_thread().name)
            time.sleep(0.005)
            with self.lock:
                self.__dict__["reading"] -= 1
        return super()._get_tensor(attr)


@pytest.fixture(scope="module")
def data():
    return make_data()


def loader_of(data, features):
    graph = GraphStore.from_data(data)
    return NeighborLoader((features, graph), [3], torch.arange(200), batch_size=10, seed=1, prefetch=4)


@pytest.mark.parametrize(
    ("attributes", "thread"),
    [
        ({}, "MainThread"),
        ({"thread_safe": True}, "gnnscale-reads_"),
        ({"thread_safe": True, "waits": False}, "gnnscale-loader_"),
        ({"collective": True}, "gnnscale-loader-in-order"),
    ],
)
def test_foreign_stores_are_read_where_they_say(data, attributes, thread):
    store = Recording(data, **attributes)
    found = [plain(batch) for batch in loader_of(data, store)]
    assert found == [plain(batch) for batch in loader_of(data, FeatureStore.from_data(type(data)(x=data.x)))]
    assert len(store.names) == 20
    assert all(name.startswith(thread) for name in store.names)
    assert not store.at_once or "thread_safe" in attributes


def test_a_foreign_store_is_read_ahead_in_every_other_short_epoch_of_a_trial(data):
    store = Recording(data, thread_safe=True, waits=False)
    loader = NeighborLoader((store, GraphStore.from_data(data)), [3], torch.arange(40), batch_size=10, seed=1)
    loader._execution.trial = PrefetchTrial(clock=map(float, itertools.count()).__next__)  # a second per step
    for epoch in range(7):
        del store.names[:]
        assert len(list(loader)) == 4
        ahead = {name.startswith("gnnscale-loader_") for name in store.names}
        assert ahead == {epoch in (1, 3, 5)}  # equal times: not worth the threads


def test_stores_that_all_ranks_read_together_try_nothing_out(data):
    """A trial chooses by the time that this rank measures: others could choose otherwise."""
    store = Recording(data, collective=True)
    loader = NeighborLoader((store, GraphStore.from_data(data)), [3], torch.arange(40), batch_size=10, seed=1)
    for _ in range(2):
        assert len(list(loader)) == 4
    assert {name.startswith("gnnscale-loader-in-order") for name in store.names} == {True}


def test_features_may_have_more_rows_than_there_are_nodes(data):
    features = FeatureStore()
    features.put_tensor(node_rows(torch.arange(300)), group_name=None, attr_name="x", index=None)
    for batch in loader_of(data, features):
        assert torch.equal(batch.x, node_rows(batch.n_id))


def test_a_store_says_how_it_may_be_read():
    assert may_be_read_by_threads(FeatureStore())
    assert not is_collective(FeatureStore())
    assert not may_be_read_by_threads(ForeignFeatureStore())
    assert not is_collective(ForeignFeatureStore())
    assert isinstance(FeatureStore(), RowStore)


def test_bounds_hold_for_the_ids_that_they_were_given_for():
    ids = torch.tensor([0, 3])
    attr = BoundedAttr(None, "x", ids, 4, ids)
    assert BoundedAttr.covers(attr, 4)
    assert not BoundedAttr.covers(attr, 3)
    assert not BoundedAttr.covers(TensorAttr(None, "x", ids), 4)
    attr.index = ids + 2
    assert not BoundedAttr.covers(attr, 4)


def test_a_subclass_that_asks_for_other_rows_is_checked(data):
    class Shifted(FeatureStore):
        def _get_tensor(self, attr):
            attr.index = attr.index + 150
            return super()._get_tensor(attr)

    features = Shifted()
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    with pytest.raises(IndexError, match=r"index\[\d+\] = \d+ is out of range: expected rows in \[0, 200\)"):
        list(loader_of(data, features))


class Reversed:
    """Stored ids count down from the last node; nobody keeps a table, for rows know their ids."""

    def __init__(self, size):
        self.size = size

    def to_stored(self, ids, node_type=None):
        return self.size - 1 - ids.to(torch.int64)

    def to_user(self, ids, node_type=None):
        return None

    def to(self, device):
        return self

    def equals(self, other):
        return isinstance(other, Reversed) and other.size == self.size


def test_ids_without_a_table_of_all_nodes(data):
    numbering, size = Reversed(data.num_nodes), data.num_nodes
    assert isinstance(numbering, Numbering)
    features = FeatureStore()
    features.put_tensor(data.x.flip(0), group_name=None, attr_name="x", index=None)
    features.put_tensor(torch.arange(size).flip(0), group_name=None, attr_name="n_id", index=None)
    graph = GraphStore.from_edge_index(size - 1 - data.edge_index, size)
    features.__dict__["order"] = graph.__dict__["order"] = numbering
    seeds = torch.tensor([5, 0, 77])
    (batch,) = NeighborLoader((features, graph), [-1], seeds, batch_size=3, seed=1)
    assert batch.n_id[:3].tolist() == seeds.tolist()
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])


def test_types_are_renumbered_behind_the_users_ids():
    data = make_hetero()
    sizes = {node_type: data[node_type].num_nodes for node_type in ("paper", "author")}
    order = TypedOrder({t: Order.from_permutation(torch.randperm(size), size) for t, size in sizes.items()})
    stores = FeatureStore.from_data(data, order=order), GraphStore.from_data(data, order=order)
    stores = pickle.loads(pickle.dumps(stores))
    assert stores[0].order.equals(order)
    assert not order.equals(TypedOrder())
    found = 0
    for batch in NeighborLoader(stores, [-1, 3], ("paper", torch.tensor([3, 0, 9])), batch_size=2, seed=1):
        assert batch["paper"].n_id[: batch["paper"].batch_size].tolist() in ([3, 0], [9])
        for node_type in batch.node_types:
            assert torch.equal(batch[node_type].x, data[node_type].x[batch[node_type].n_id])
        for edge_type in batch.edge_types:
            src, dst = (batch[edge_type[end]].n_id for end in (0, -1))
            edges = batch[edge_type].edge_index
            ends = torch.stack([src[edges[0]], dst[edges[1]]])
            assert torch.equal(data[edge_type].edge_index[:, batch[edge_type].e_id], ends)
            found += edges.size(1)
    assert found > 20


def test_the_whole_neighborhoods_of_renumbered_types_are_those_of_the_graph():
    data = make_hetero()
    order = TypedOrder(
        paper=Order.from_permutation(torch.arange(data["paper"].num_nodes).flip(0), data["paper"].num_nodes)
    )
    stores = FeatureStore.from_data(data, order=order), GraphStore.from_data(data, order=order)
    plainly, renumbered = (
        next(iter(NeighborLoader(source, [-1, -1], "paper", batch_size=20, seed=1))) for source in (data, stores)
    )
    for edge_type in plainly.edge_types:
        assert torch.equal(plainly[edge_type].e_id.sort().values, renumbered[edge_type].e_id.sort().values)


def test_orders_of_other_kinds_and_nodes(data):
    hetero, wrong = make_hetero(), Order.from_permutation(torch.arange(3), 3)
    for kind in (FeatureStore, GraphStore):
        with pytest.raises(TypeError, match=r"^order: expected TypedOrder, such as a store's order, found Order"):
            kind.from_data(hetero, order=wrong)
        with pytest.raises(TypeError, match=r"^order: expected Order, such as a store's order, found TypedOrder"):
            kind.from_data(data, order=TypedOrder())
    with pytest.raises(ValueError, match=r"^order: expected one of 200 nodes, as 'x' has, found 3"):
        FeatureStore.from_data(data, order=wrong)
    with pytest.raises(ValueError, match=r"^order of \w+: expected one of \d+ nodes, found one of 3"):
        GraphStore.from_data(hetero, order=TypedOrder(paper=wrong))
    with pytest.raises(ValueError, match=r"^order: expected node types of .*, found \['pages'\]"):
        GraphStore.from_data(hetero, order=TypedOrder(pages=wrong))


def test_two_numberings_are_refused(data):
    features, graph = FeatureStore.from_data(data), GraphStore.from_data(data)
    graph.__dict__["order"] = Reversed(data.num_nodes)
    with pytest.raises(ValueError, match=r"^data: expected features and graph in one order of nodes"):
        NeighborLoader((features, graph), [1], torch.arange(4))
    features.__dict__["order"] = Reversed(data.num_nodes + 1)
    with pytest.raises(ValueError, match=r"found another and another"):
        NeighborLoader((features, graph), [1], torch.arange(4))


def test_attributes_of_foreign_stores(data):
    store = ForeignFeatureStore()
    store.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    assert [attr.attr_name for attr in all_attrs(store)] == ["x"]


def test_rows_are_compared_with_known_numbers_of_nodes_alone():
    store = FeatureStore.from_data(make_hetero())
    sizes = {t: store.num_rows(next(a for a in store.all_attrs() if a.group_name == t)) for t in ("paper", "author")}
    store.check_graph(True, {})
    store.check_graph(True, {"paper": sizes["paper"]})
    with pytest.raises(ValueError, match=rf"expected a row of .* for each of {sizes['author'] + 1} nodes"):
        store.check_graph(True, {"author": sizes["author"] + 1})
