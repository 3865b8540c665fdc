"""What loaders put into batches is read as it was put, whatever class the data are of."""

import copy
import warnings

import pytest
import torch
import torch_geometric.loader
from helpers.data import loader_of, make_data, our_stores, plain
from helpers.hetero import PAPER, make_hetero
from torch_geometric.data import Batch, Data, HeteroData, TemporalData
from torch_geometric.nn import GraphSAGE

from torch_gnnscale import FeatureStore, LinkNeighborLoader, NeighborLoader, patch_pyg
from torch_gnnscale.nn import narrow

LINKS = torch.stack([torch.arange(60), torch.arange(60).flip(0)])


def graphs(number=5):
    return [make_data(60, 300, seed) for seed in range(number)]


def without(data, *names):
    """The same attributes in a Data."""
    return Data.from_dict({name: value for name, value in data.to_dict().items() if name not in names})


@pytest.mark.parametrize("options", [{}, {"prefetch": 2}, {"bulk": 2}, {"layers": True}], ids=str)
def test_a_batch_of_graphs_is_data(options):
    data = Batch.from_data_list(graphs())
    expected = [plain(batch) for batch in loader_of(without(data, "ptr"), **options)]
    found = list(loader_of(data, **options))
    assert [plain(batch) for batch in found] == expected
    for batch in found:
        assert type(batch) is Data
        assert torch.equal(batch.batch, data.batch[batch.n_id])
        assert batch.batch_size == len(batch.input_id)
        assert not {"_slice_dict", "_inc_dict", "_num_graphs"} & batch.__dict__.keys()
    assert sum(batch.batch_size for batch in found) == data.num_nodes
    assert isinstance(data, Batch)
    assert len(data.ptr) == 6
    assert data.num_graphs == 5


@pytest.mark.parametrize(("rows", "warned"), [(5, []), (1, []), (4, ["4"]), (6, ["6"])])
def test_labels_of_the_graphs_of_a_batch(rows, warned, recwarn):
    data = Batch.from_data_list(graphs())
    data.y = torch.arange(rows)
    loader_of(data)
    assert [str(found.message).split()[2] for found in recwarn] == warned


def test_links_of_a_batch_of_graphs():
    data = Batch.from_data_list(graphs())
    for loader in (LinkNeighborLoader(source, [3], LINKS, batch_size=16, seed=1, neg_sampling="triplet")
                   for source in (data, without(data, "ptr"))):  # fmt: skip
        batches = list(loader)
        assert all(type(batch) is Data for batch in batches)
        assert sum(len(batch.input_id) for batch in batches) == 60


def test_a_batch_of_graphs_with_types_is_hetero_data():
    data = Batch.from_data_list([make_hetero(), make_hetero()])
    for batch in loader_of(data, input_nodes=PAPER):
        assert type(batch) is HeteroData
        assert batch[PAPER].batch_size == len(batch[PAPER].input_id)
        assert torch.equal(batch[PAPER].batch, data[PAPER].batch[batch[PAPER].n_id])
        assert "ptr" not in batch[PAPER]


def test_disjoint_trees_of_a_batch_of_graphs():
    batch = next(iter(loader_of(Batch.from_data_list(graphs()), disjoint=True)))
    assert batch.batch.max() == 31


def test_batches_of_pygs_loaders_that_are_patched():
    data = Batch.from_data_list(graphs())
    with patch_pyg():
        for batch in torch_geometric.loader.NeighborLoader(data, [3], batch_size=50):
            assert type(batch) is Data
            assert batch.batch_size == 50


def test_narrowed_models():
    data = Batch.from_data_list(graphs())
    data.x = data.x.float()
    model = GraphSAGE(3, 8, 2, 4).eval()
    narrowed, seen = narrow(model), 0
    for batch in loader_of(data, batch_size=50):
        out = narrowed(batch)
        assert len(out) == batch.batch_size
        torch.testing.assert_close(out, model(batch.x, batch.edge_index)[:50])
        seen += len(out)
    assert seen == data.num_nodes
    batch = next(iter(loader_of(data)))
    whole = Batch.from_data_list([without(batch, "batch"), without(batch, "batch")])
    with pytest.raises(ValueError, match=r"^batch: expected a batch of a loader, found a torch_geometric"):
        narrow(model)(whole)


class WithMethods(Data):
    """Only adds to Data."""

    scale = 2

    @property
    def num_nodes(self):
        return self.x.size(0)

    def doubled(self):
        return self.x * self.scale


class Sized(Data):
    """Hides a field of batches."""

    @property
    def batch_size(self):
        return 1


class Named(WithMethods):
    """Hides two, by a method and a value."""

    input_id = None

    def n_id(self):
        return 3


class SizedTypes(HeteroData):
    @property
    def batch_size(self):
        return 1


def made(kind, data):
    found = kind()
    for name, value in data.to_dict().items():
        found[name] = value
    return found


def test_subclasses_that_only_add_stay():
    data = made(WithMethods, make_data())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        loader = loader_of(data)
    for batch, expected in zip(loader, loader_of(make_data()), strict=True):
        assert type(batch) is WithMethods
        assert torch.equal(batch.doubled(), expected.x * 2)
        assert plain(batch) == plain(expected)


@pytest.mark.parametrize(
    ("kind", "names"),
    [(Sized, "batch_size"), (Named, "input_id, n_id")],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_subclasses_that_hide_fields_are_replaced(kind, names):
    text = rf"^batches are of class Data, because {names} of {kind.__name__} would hide what the loader puts there$"
    with pytest.warns(UserWarning, match=text):
        loader = loader_of(made(kind, make_data()))
    for batch, expected in zip(loader, loader_of(make_data()), strict=True):
        assert type(batch) is Data
        assert plain(batch) == plain(expected)
        assert batch.batch_size == len(batch.input_id)
        assert copy.copy(batch).n_id is batch.n_id


def test_subclasses_with_types_that_hide_fields_are_replaced():
    data = SizedTypes()
    for store in (source := make_hetero()).stores:
        if store._key is not None:
            data[store._key].update(store.to_dict())
    with pytest.warns(
        UserWarning, match=r"^batches are of class HeteroData, because batch_size of SizedTypes would hide"
    ):
        loader = loader_of(data, input_nodes=PAPER)
    for batch, expected in zip(loader, loader_of(source, input_nodes=PAPER), strict=True):
        assert type(batch) is HeteroData
        assert plain(batch) == plain(expected)


@pytest.mark.parametrize("kind", [Sized, Batch])
def test_classes_of_batches_of_stores_that_hide_fields_are_refused(kind):
    text = rf"^custom_cls: expected a class without batch_size, which a loader puts into .*, found {kind.__name__}$"
    with pytest.raises(ValueError, match=text):
        NeighborLoader(our_stores(make_data()), [2], custom_cls=kind)


def test_classes_of_batches_of_data_that_hide_fields_are_refused():
    with pytest.raises(ValueError, match=r"^custom_cls: expected a class without batch_size, .*, found Sized$"):
        loader_of(make_data(), custom_cls=Sized)


def test_stores_of_a_batch_of_graphs():
    data = Batch.from_data_list(graphs())
    for batch in loader_of(our_stores(data)):
        assert type(batch) is Data
        assert batch.batch_size == len(batch.input_id)
        assert torch.equal(batch.batch, data.batch[batch.n_id])
    assert (None, "ptr") not in FeatureStore.from_data(data)._tensors


def test_temporal_data_is_refused():
    data = TemporalData(src=torch.arange(3), dst=torch.arange(3), t=torch.arange(3), msg=torch.ones(3, 2))
    for kind, inputs in ((NeighborLoader, torch.arange(3)), (LinkNeighborLoader, LINKS[:, :3])):
        with pytest.raises(TypeError, match=r"^data: expected .* found TemporalData"):
            kind(data, [2], inputs)
