"""A row is as it is when its batch is delivered, however far ahead batches are made."""

import threading
import weakref
from types import SimpleNamespace

import pytest
import torch
from helpers.data import ForeignFeatureStore, edge_rows, loader_of, make_data, node_rows, our_stores, plain
from helpers.hetero import PAPER, WRITES, make_hetero
from helpers.modes import MODES, of_processes
from torch_geometric.data import Data

from torch_gnnscale import FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader
from torch_gnnscale.loader.line import Collator
from torch_gnnscale.sampler.minibatch import MiniBatch

LINKS = torch.stack([torch.arange(60), torch.arange(60).flip(0)])


def loader_over(source, kind, **options):
    if kind is LinkNeighborLoader:
        return kind(source, [3, 2], LINKS, batch_size=16, seed=1, neg_sampling="binary", **options)
    return kind(source, [3, 2], batch_size=32, seed=1, **options)


def trained(source, loader, change):
    """The batches of an epoch, after each of which ``change(source, batch)`` changes rows."""
    found = []
    for batch in loader:
        found.append(plain(batch.clone()))
        change(source, batch)
    return found


def in_place(source, batch):
    source.x[batch.n_id] += 1
    source.y[batch.n_id] = source.y[batch.n_id] * 3 % 7
    source.edge_attr[batch.e_id] *= 2


def replaced(source, batch):
    source.y = source.y * 3 % 7
    source.edge_attr = source.edge_attr + 1


def other_attributes(source, batch):
    """Each is added, and removed again."""
    if "h" in source:
        del source.h
    else:
        source.h = node_rows(torch.arange(200)) + len(batch.n_id)


def renamed(source, batch):
    """The very same tensor, unchanged."""
    old, new = ("y", "h") if "y" in source else ("h", "y")
    source[new] = source[old]
    del source[old]


def of_the_graph(source, batch):
    source.threshold = getattr(source, "threshold", 0) + 1


def test_an_attribute_that_comes_and_goes_while_rows_are_read(monkeypatch):
    data = make_data()
    line = loader_over(data, NeighborLoader)._line
    source, versions = line.collator.source, line.collator.source.versions

    def then_added():
        found = versions()
        data.h = data.x + 1
        return found

    monkeypatch.setattr(source, "versions", then_added)
    fetched = line.fetch(line.sample([1, 2]))
    del data.h
    assert "h" not in line.deliver(line.collate(fetched))


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("of_graph", [False, True])
def test_an_attribute_that_is_there_only_while_a_batch_is_made(typed, of_graph):
    """Rows of nodes, or a value of the graph."""
    data = make_hetero() if typed else make_data()
    line = loader_of(data, [2], (PAPER, torch.arange(9)) if typed else None)._line

    def attributes(of):
        return of._global_store if of_graph and typed else of[PAPER] if typed else of

    value = 0.5 if of_graph else torch.rand(data[PAPER].num_nodes if typed else data.num_nodes)
    fetched = line.fetch(line.sample([1, 2]))
    attributes(data)["h"] = value
    made = line.collate(fetched)
    del attributes(data)["h"]
    assert "h" not in attributes(line.deliver(made))


@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_number_of_edges_that_is_set_again_is_the_batch_s(prefetch):
    data = make_data()
    data.num_edges = 5000
    for batch in NeighborLoader(data, [2], batch_size=10, prefetch=prefetch):
        assert batch.num_edges == batch.edge_index.size(1)
        data.num_edges = int("5000")  # another object


@pytest.mark.parametrize("kind", [NeighborLoader, LinkNeighborLoader])
@pytest.mark.parametrize("change", [in_place, replaced, other_attributes, renamed, of_the_graph])
def test_changes_of_a_data_between_batches(kind, change):
    def run(options):
        data = make_data()
        return trained(data, loader_over(data, kind, **options), change)

    def by_name(batches):
        return [sorted(batch, key=lambda field: field[0]) for batch in batches]

    expected = run(MODES[0])
    assert expected != [plain(batch) for batch in loader_over(make_data(), kind)]
    for options in MODES[1:]:
        assert by_name(run(options)) == by_name(expected), options


def put_whole(source, batch):
    features, data = source
    data.x = data.x + 1
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)


def update_rows(source, batch):
    source[0].update_tensor(torch.zeros(3, 3, dtype=torch.float64), group_name=None, attr_name="x",
                            index=batch.n_id[:3])  # fmt: skip
    source[0].update_tensor(edge_rows(batch.e_id) * 2, group_name=(None, None), attr_name="edge_attr",
                            index=batch.e_id)  # fmt: skip


def edit(source, batch):
    source[1].x[batch.n_id] += 1
    source[1].edge_attr[batch.e_id] *= 2


def put_and_remove(source, batch):
    features, key = source[0], {"group_name": None, "attr_name": "h", "index": None}
    if features.get_tensor_size(**key) is None:
        features.put_tensor(torch.arange(200.0) + len(batch.n_id), **key)
    else:
        features.remove_tensor(**key)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NeighborLoader, LinkNeighborLoader])
@pytest.mark.parametrize("change", [put_whole, update_rows, edit, put_and_remove])
def test_changes_of_our_store_between_batches(kind, change):
    def run(options):
        data = make_data()
        features, graph = our_stores(data)
        links = {"edge_label_index": LINKS} if kind is LinkNeighborLoader else {}
        loader = kind((features, graph), [3, 2], batch_size=16, seed=1, **links, **options)
        batches = trained((features, data), loader, change)
        return [sorted(batch, key=lambda field: field[0]) for batch in batches]

    expected = run(MODES[0])
    for options in MODES[1:]:
        assert run(options) == expected, options


def test_a_foreign_store_in_bulks_is_asked_for_each_batch():
    def run(options):
        data, features = make_data(), ForeignFeatureStore()
        features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
        loader = loader_of((features, GraphStore.from_data(data)), **options)
        return trained(data, loader, lambda data, batch: data.x[batch.n_id].mul_(2) is None or data.x.add_(1))

    expected = run(MODES[0])
    for options in MODES[1:]:
        assert run(options) == expected, options


@pytest.mark.slow
def test_changes_of_types_between_batches():
    def change(data, batch):
        data[PAPER].x[batch[PAPER].n_id] += 1
        data[WRITES].edge_attr = data[WRITES].edge_attr * 2
        data.level = getattr(data, "level", 0) + 1

    def run(options, stores):
        data = make_hetero()
        source = our_stores(data) if stores else data
        return trained(data, loader_of(source, input_nodes=PAPER, **options), change)

    for stores in (False, True):
        expected = run(MODES[0], stores)
        for options in MODES[1:]:
            found = run(options, stores)
            assert [sorted(map(str, batch)) for batch in found] == [sorted(map(str, batch)) for batch in expected]


@pytest.mark.parametrize("options", MODES[1:], ids=str)
def test_an_attribute_that_moves_to_another_type(options):
    data = make_hetero()
    types = [PAPER, "author"]
    data[types[0]].h = torch.arange(float(data[types[0]].num_nodes))
    for batch in loader_of(data, input_nodes=PAPER, **options):
        assert "h" in batch[types[0]]
        assert "h" not in batch[types[1]]
        data[types[1]].h = data[types[0]].h
        del data[types[0]].h
        types.reverse()


@pytest.mark.parametrize("options", MODES[1:], ids=str)
def test_values_of_an_adjacency_matrix(options):
    def run(options):
        edges = make_data().edge_index.flip(0)
        values = torch.arange(1.0, edges.size(1) + 1)
        coo = torch.sparse_coo_tensor(edges, values, (200, 200)).coalesce()
        data = Data(adj_t=coo.to_sparse_csr(), num_nodes=200)
        return trained(data, loader_of(data, **options), lambda data, _: data.adj_t.values().mul_(2))

    assert run(options) == run(MODES[0])


def test_fields_of_the_loaders_own_are_not_overwritten():
    """A Data of RandomLinkSplit has labels under the names that batches have."""

    def run(options):
        data = make_data()
        data.edge_label, data.edge_label_index = torch.ones(60), LINKS
        loader = LinkNeighborLoader(data, [3], LINKS, data.edge_label.clone(), batch_size=16, seed=1, **options)
        data.n_id = torch.arange(200)
        return trained(data, loader, lambda data, _: (data.edge_label.add_(1), data.n_id.add_(7)))

    expected = run(MODES[0])
    for options in MODES[1:]:
        assert run(options) == expected, options


class Removed(FeatureStore):
    """Loses an attribute while a thread reads it."""

    def multi_get_tensor(self, attrs, *args, **kwargs):
        if threading.current_thread() is not threading.main_thread():
            self.remove_tensor(group_name=None, attr_name="y", index=None)
        return super().multi_get_tensor(attrs, *args, **kwargs)


def test_an_attribute_that_is_removed_while_it_is_read():
    data = make_data()
    expected = [plain(batch) for batch in loader_of((FeatureStore.from_data(Data(x=data.x)), our_stores(data)[1]))]
    source = Removed.from_data(Data(x=data.x, y=data.y)), our_stores(data)[1]
    assert [plain(batch) for batch in loader_of(source, prefetch=2)] == expected


def test_an_error_of_what_did_not_change_is_raised():
    data = make_data()
    features, graph = our_stores(data)
    loader = loader_of((features, graph), prefetch=2)
    features.multi_get_tensor = None
    iterator = iter(loader)
    for _ in range(7):
        with pytest.raises(TypeError):
            next(iterator)
    assert not list(iterator)


def test_inference_tensors_have_no_version():
    data = make_data()
    with torch.inference_mode():
        data.x = data.x.clone()
    expected = [plain(batch) for batch in loader_of(make_data(), prefetch=2)]
    assert [plain(batch) for batch in loader_of(data, prefetch=2)] == expected


@pytest.mark.slow
def test_worker_processes_that_only_sample_see_changes():
    def run(make, **options):
        data = make_data()
        return trained(data, make(data, **options), in_place)

    assert run(of_processes, filter_per_worker=False) == run(loader_of, prefetch=0)


def test_what_is_made_ahead_does_not_hold_batches():
    """A delivered batch is freed as soon as it is dropped."""
    data = make_data()
    iterator = iter(loader_of(data, prefetch=2))
    batch = next(iterator)
    seen = weakref.ref(batch)
    del batch
    assert seen() is None
    list(iterator)


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"bulk": 4, "prefetch": 0}], ids=str)
def test_a_type_that_is_removed(options):
    data = make_hetero()
    for batch in loader_of(data, input_nodes=PAPER, **options):
        if "venue" in data.node_types:
            del data["venue"]
        data[PAPER].x += 1
        assert torch.equal(data[PAPER].x[batch[PAPER].n_id], batch[PAPER].x + 1)


@pytest.mark.parametrize("options", MODES)
def test_a_type_that_comes_and_goes(options):
    """It has no edges, so no sample reaches it."""
    data, there = make_hetero(), False
    for batch in loader_of(data, [2], PAPER, batch_size=4, **options):
        assert ("city" in batch.node_types) == there
        assert not there or [(name, len(value)) for name, value in batch["city"].items()] == [("x", 0), ("n_id", 0)]
        if there:
            del data["city"]
        else:
            data["city"].x = torch.ones(3, 2)
        there = not there


def test_what_was_noted_may_be_reset_by_another_thread():
    """Between two looks of the one that begins a batch."""
    found = [lambda: None]

    class Reset(Collator):
        _noted = property(lambda self: found.pop() if found else None, lambda self, value: None)

    collator = loader_of(data := make_data())._line.collator
    collator.__class__ = Reset
    assert collator.begin(MiniBatch()).versions.fields[None]["x"] is data.x


@pytest.mark.parametrize("options", MODES)
def test_what_has_the_rows_of_an_attribute_may_change(options):
    data = make_data()
    loader = NeighborLoader(data, [3], batch_size=50, seed=1, **options)
    for data.mark, of in ((torch.arange(200), "n_id"), (torch.arange(1500), "e_id"), (torch.arange(200), "n_id")):
        assert all(torch.equal(batch.mark, batch[of]) for batch in loader)
    data.mark = torch.arange(7)  # the graph's
    assert all(torch.equal(batch.mark, data.mark) for batch in loader)


@pytest.mark.parametrize(
    ("own", "earlier", "expected"),
    [([], [], []), (["x"], [], [["x"]]), ([], ["y"], [["y"]]), (["x"], ["x", "y"], [["x", "y"]])],
)
def test_rows_are_read_again_that_changed_before_they_were_read(own, earlier, expected):
    """Of batches that streams made: since the batch's own versions, and since those of its iteration."""
    renewed = []
    changed = {"own": [(None, name) for name in own], "earlier": [(None, name) for name in earlier]}
    collator = Collator.__new__(Collator)
    collator.device, collator.bounds = None, lambda batch: None
    collator.source = collator.own = SimpleNamespace(
        changed=changed.get, renew=lambda data, batch, bounds, keys: renewed.append([name for _, name in keys])
    )
    collator.deliver(SimpleNamespace(versions="own", data=Data()), "earlier")
    assert renewed == expected
