"""What the constructor of a loader refuses or announces where it has a GPU, several ranks, or types of torch-sparse.
What stands for them is made here."""

import copy
import re
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from helpers.data import ForeignFeatureStore, make_data, plain
from torch_geometric.data import Data, TensorAttr
from torch_geometric.sampler import BaseSampler, NodeSamplerInput

from torch_gnnscale import CSC, FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader, NeighborSampler
from torch_gnnscale.comm.mesh import Ranks
from torch_gnnscale.feature.attributes import stored_values
from torch_gnnscale.feature.contract import RowStore
from torch_gnnscale.loader import checks, order
from torch_gnnscale.loader.adapter import InputPositions
from torch_gnnscale.loader.epochs import Followed
from torch_gnnscale.loader.execution import Execution
from torch_gnnscale.loader.fields import edge_device
from torch_gnnscale.loader.given_data import given_data
from torch_gnnscale.sampler.base import keyed
from torch_gnnscale.sampler.links import check_links
from torch_gnnscale.sampler.minibatch import MiniBatch

GPU = torch.device("cuda", 0)
DATA = make_data()


def whole(message: str) -> str:
    return f"^{re.escape(message)}$"


def stores_of(**attributes) -> tuple[FeatureStore, GraphStore]:
    features = FeatureStore.from_data(Data(x=DATA.x))
    features.__dict__.update(attributes)
    return features, GraphStore.from_data(DATA)


# Bulks, and GPUs that make batches ####################################################################################


class Sampler(NeighborSampler):
    """On a GPU."""

    device = GPU

    def check_many(self, inputs, how):
        assert (inputs, how) == (NodeSamplerInput, "device='cuda:0'")


@pytest.mark.parametrize(
    ("data", "sampler", "layout", "options", "error", "message"),
    [
        (DATA, BaseSampler, "coo", {}, ValueError,
         "device='cuda:0': expected a neighbor_sampler that is a KeyedSampler, found SimpleNamespace"),
        (stores_of(ranks=Ranks(0, 1)), Sampler, "coo", {}, NotImplementedError,
         "device='cuda:0' with the stores of a part is not implemented; use device='cpu'"),
        (DATA, Sampler, "coo", {"num_workers": 1}, ValueError, "device='cuda:0': expected num_workers=0, found 1"),
        (DATA, Sampler, "coo", {"pin_memory": True}, ValueError,
         "device='cuda:0': expected pin_memory=False, because batches are on the GPU, found True"),
        (DATA, Sampler, "SparseTensor", {}, NotImplementedError,
         "edge_layout='SparseTensor' with device='cuda:0' is not implemented; use 'sparse_csr'"),
    ],
)  # fmt: skip
def test_what_a_gpu_does_not_make(data, sampler, layout, options, error, message):
    given = Sampler(DATA, [2]) if sampler is Sampler else keyed(SimpleNamespace())
    with pytest.raises(error, match=whole(message)):
        checks.checked_bulk(1, given_data(data), given, GPU, NodeSamplerInput, {None: layout}, options)


def test_how_many_batches_are_made_at_once():
    def bulk(given, device=GPU, **options):
        return checks.checked_bulk(
            given, given_data(DATA), Sampler(DATA, [2]), device, NodeSamplerInput, {None: "coo"}, options
        )

    assert [bulk(given) for given in (1, 7)] == [1, 7]
    assert bulk(1, None, num_workers=3, pin_memory=True) == 1
    assert bulk(None) == Sampler(DATA, [2]).usual_bulk
    mine = keyed(SimpleNamespace(usual_bulk=9))
    assert checks.checked_bulk(None, given_data(DATA), mine, None, NodeSamplerInput, {}, {}) == 1


def test_rows_that_are_copied_to_a_gpu_are_announced():
    features, graph = stores_of()
    for data, name, instead in (
        (Data(x=DATA.x), "data.x", "data.to('cuda:0') if it fits"),
        ((features, graph), "features[None, 'x']", "tensors or tiers on cuda:0"),
    ):
        message = (
            f"{name} is in host memory: its rows are gathered there and copied to cuda:0, which is slower than "
            f"gathering them on cuda:0; use {instead}"
        )
        with pytest.warns(UserWarning, match=whole(message)):
            given_data(data).warn_of_rows(GPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        given_data(Data(x=DATA.x.to("meta"))).warn_of_rows(GPU)
    assert not given_data((features, graph)).has_rows_on_gpu
    features.device_of = lambda attr: GPU
    assert given_data((features, graph)).has_rows_on_gpu
    assert NeighborLoader((features, graph), [2]).filter_per_worker is False
    assert NeighborLoader((features, graph), [2], filter_per_worker=True).filter_per_worker is True


@pytest.mark.parametrize("bulk", [1, 3])
@pytest.mark.parametrize("prefetch", [0, 4])
def test_batches_on_streams_are_the_same(recorded_cuda, bulk, prefetch):
    def loader(**options):
        return NeighborLoader(DATA, [3, 2], torch.arange(60), batch_size=9, seed=1, **options)

    here, there = loader(), loader(bulk=bulk, prefetch=prefetch)
    there._execution = Execution(bulk, GPU)
    assert [plain(batch) for batch in there] == [plain(batch) for batch in here]
    log = recorded_cuda.taken()
    assert sum(line.startswith("consumer waits for") for line in log) == -(-7 // bulk)
    assert recorded_cuda.streams > 0
    assert there.seconds["stall"] == 0
    assert "stall" not in here.seconds


# Ranks ################################################################################################################


@pytest.fixture
def three_ranks(monkeypatch):
    """torch.distributed as it is for rank 1 of 3; of rank 0, what is broadcast."""

    def broadcast(values, src):
        assert src == 0
        values[:] = [12345]

    for name, value in (("is_initialized", True), ("get_rank", 1), ("get_world_size", 3)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", broadcast)


def test_every_rank_has_all_batches_unless_it_was_told_its_share(three_ranks):
    message = (
        "torch.distributed has 3 ranks, and this loader goes through all of its inputs on each; pass shard=True for "
        "the share of each rank, or shard=False if every rank was given its own inputs"
    )
    with pytest.warns(UserWarning, match=whole(message)):
        assert len(NeighborLoader(DATA, [2], batch_size=10)) == 20
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for options in ({"shard": True}, {"shard": False}, {"sampler": range(200)}, {"shard": (2, 5), "seed": 1}):
            NeighborLoader(DATA, [2], batch_size=10, **options)
        checks.warn_of_unshared_inputs(shared=True)


def test_ranks_share_the_seed_that_rank_0_draws(three_ranks):
    loader = NeighborLoader(DATA, [2], batch_size=10, shard=True)
    assert (loader.seed, len(loader)) == (12345, 7)
    assert NeighborLoader(DATA, [2], batch_size=10, shard=True, seed=4).seed == 4
    assert order.common_seed(None, None, torch.Generator().manual_seed(1)) != 12345
    alone = NeighborLoader(DATA, [2], torch.arange(200), batch_size=10, seed=12345)
    assert [plain(batch) for batch in loader] == [plain(batch) for batch in alone][1::3][:7]


def test_one_rank_draws_its_seed_itself(three_ranks, monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    torch.manual_seed(7)
    found = NeighborLoader(DATA, [2], shard=True).seed
    torch.manual_seed(7)
    assert found == NeighborLoader(DATA, [2]).seed != 12345


# Layouts of torch-sparse ##############################################################################################


class SparseTensor:
    """What is used of torch_sparse's class."""

    def __init__(self, row, col, value, sparse_sizes, is_sorted, trust_data):
        assert (is_sorted, trust_data) == (False, True)
        self.row, self.col, self.sizes = row, col, sparse_sizes
        self.storage = SimpleNamespace(value=lambda: value)

    def csr(self):
        order = torch.argsort(self.row, stable=True)
        pointer = torch._convert_indices_from_coo_to_csr(self.row[order], self.sizes[0])
        return pointer, self.col[order], self.storage.value()

    def sparse_sizes(self):
        return self.sizes

    def sparse_size(self, dim):
        return self.sizes[dim]

    def device(self):
        return self.row.device


@pytest.fixture
def torch_sparse(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_sparse", SimpleNamespace(SparseTensor=SparseTensor))


def transposed(data: Data, value=None) -> SparseTensor:
    return SparseTensor(data.edge_index[1], data.edge_index[0], value, (200, 200), False, True)


def test_batches_with_sparse_tensors(torch_sparse):
    asked = NeighborLoader(DATA, [3, 2], batch_size=20, seed=1, edge_layout="SparseTensor")
    with_adj_t = Data(x=DATA.x, adj_t=transposed(DATA))
    own = NeighborLoader(with_adj_t, [3, 2], batch_size=20, seed=1)
    for loader, data in ((asked, DATA), (own, with_adj_t)):
        coo = NeighborLoader(data, [3, 2], batch_size=20, seed=1, edge_layout="coo")
        for found, expected in zip(loader, coo, strict=True):
            assert isinstance(found.adj_t, SparseTensor)
            assert "edge_index" not in found
            assert torch.equal(torch.stack([found.adj_t.col, found.adj_t.row]), expected.edge_index)
            assert found.adj_t.sizes == (expected.num_nodes,) * 2
            assert found.adj_t.storage.value() is None


def test_weights_are_the_values_of_sparse_tensors(torch_sparse):
    asked, coo = (
        NeighborLoader(DATA, [12, 9], method="ladies", batch_size=20, seed=1, edge_layout=layout)
        for layout in ("SparseTensor", "coo")
    )
    for found, expected in zip(asked, coo, strict=True):
        assert torch.equal(torch.stack([found.adj_t.col, found.adj_t.row]), expected.edge_index)
        assert torch.equal(found.adj_t.storage.value(), expected.edge_weight)
        assert "edge_weight" not in found


def test_graphs_of_sparse_tensors(torch_sparse):
    found, expected = CSC.from_adj_t(transposed(DATA)), CSC.from_edge_index(DATA.edge_index, 200)
    assert torch.equal(found.colptr, expected.colptr)
    assert torch.equal(found.row, expected.row)
    assert (found.num_src, found.edge_id) == (200, None)
    wide = SparseTensor(torch.tensor([0, 1]), torch.tensor([4, 2]), None, (2, 5), False, True)
    assert (CSC.from_adj_t(wide).num_src, CSC.from_adj_t(wide).num_dst) == (5, 2)
    assert edge_device(Data(adj_t=transposed(Data(edge_index=DATA.edge_index.to("meta"))))).type == "meta"
    assert edge_device(Data(x=DATA.x)).type == "cpu"
    value = torch.rand(DATA.num_edges)
    assert stored_values(Data(adj_t=transposed(DATA, value))) is value
    message = "edge_layout='EdgeIndex': batches do not have the values of adj_t; add them to the data as edge_attr"
    with pytest.warns(UserWarning, match=whole(message)):
        NeighborLoader(Data(x=DATA.x, adj_t=transposed(DATA, value)), [2], edge_layout="EdgeIndex")


# Others ###############################################################################################################


def test_links_of_stores_whose_order_has_no_way_back():
    class OneWay:
        """Ids of the store plus 1, for the users'; edges are not told by the users' ids."""

        def to_stored(self, ids, node_type=None):
            return ids.long()

        def to_user(self, ids, node_type=None):
            return None

        def to(self, device):
            return self

        def equals(self, other):
            return other is self

    features, graph = stores_of()
    features.__dict__["order"] = graph.__dict__["order"] = OneWay()
    message = "edge_label_index=None over these stores is not implemented; give the links"
    with pytest.raises(NotImplementedError, match=whole(message)):
        LinkNeighborLoader((features, graph), [2])
    LinkNeighborLoader((features, graph), [2], edge_label_index=DATA.edge_index)


class Partly:
    """Lacks methods of a Numbering."""

    def to_stored(self, ids, node_type=None):
        return ids.flip(0)

    def to_user(self, ids, node_type=None):
        return ids.flip(0)


@pytest.mark.parametrize("which", ["FeatureStore", "GraphStore"])
@pytest.mark.parametrize(
    ("order", "missing"),
    [
        (Partly(), "to, equals"),
        ("by name", "to_stored, to_user, to, equals"),
        (torch.arange(200), "to_stored, to_user, equals"),
    ],
)
def test_an_order_that_lacks_methods_is_refused(which, order, missing):
    stores = stores_of()
    stores[which == "GraphStore"].__dict__["order"] = order
    message = f"order of a {which}: expected the methods of a torch_gnnscale.topology.reorder.Numbering, found a "
    with pytest.raises(TypeError, match=whole(f"{message}{type(order).__name__} without {missing}")):
        NeighborLoader(stores, [2])


def test_a_foreign_store_may_use_the_name_order():
    store, graph = ForeignFeatureStore(), stores_of()[1]
    store.put_tensor(DATA.x, group_name=None, attr_name="x", index=None)
    store.order = "by name"
    assert all(torch.equal(batch.x, DATA.x[batch.n_id]) for batch in NeighborLoader((store, graph), [2], batch_size=50))
    store.order = Partly()
    with pytest.raises(
        TypeError, match=r"^order of a ForeignFeatureStore: expected the methods of .* without to, equals"
    ):
        NeighborLoader((store, graph), [2])


def test_a_store_of_rows_tells_their_number():
    class Rows(RowStore):
        def _put_tensor(self, tensor, attr):
            raise AssertionError

        _get_tensor = _remove_tensor = _put_tensor

        def _get_tensor_size(self, attr):
            return (7, 2)

        def get_all_tensor_attrs(self):
            return [TensorAttr(None, "x")]

    store = Rows()
    assert [attr.attr_name for attr in store.all_attrs()] == ["x"]
    store.check_graph(False, {None: 7})
    with pytest.raises(ValueError, match=whole("data: expected a row of (None, 'x') for each of 8 nodes, found 7")):
        store.check_graph(False, {None: 8})
    message = "data: expected features of types of nodes or edges, as the graph has, found ['x'] of none"
    with pytest.raises(ValueError, match=whole(message)):
        store.check_graph(True, {})


def test_positions_are_a_dataset():
    positions = InputPositions(5, 2)
    assert [*positions] == [0, 1, 2, 3, 4]
    batch = MiniBatch(0, 1, torch.tensor([3, 1]).numpy())
    assert positions.__getitems__(batch) is batch
    with pytest.raises(IndexError):
        positions[5]


def test_iterators_are_their_own():
    for options in ({}, {"prefetch": 0}, {"bulk": 2}):
        iterator = iter(NeighborLoader(DATA, [2], batch_size=50, **options))
        assert iter(iterator) is iterator
        assert iter(iterator._iterator) is iterator._iterator
        iterator.close()
    with pytest.raises(AttributeError, match=r"^_iterator$"):
        copy.copy(Followed.__new__(Followed))._iterator  # noqa: B018


def test_links_without_ranges():
    links = torch.tensor([[0, 1 << 40], [5, 6]])
    check_links("links", links, None, None)
    with pytest.raises(IndexError, match=whole(f"links[0, 1] = {1 << 40} is out of range: expected nodes in [0, 9)")):
        check_links("links", links, None, {None: 9})
    check_links("links", links[:, :1], None, {None: 6})
