"""A sampler of thirty lines that keeps the contract gets from the loaders what ours has."""

import threading
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from helpers.data import make_data, plain, processes
from helpers.warn import recorded
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.nn import GraphConv
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NodeSamplerInput

import torch_gnnscale
from torch_gnnscale import FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader, NeighborSampler
from torch_gnnscale.comm.mesh import Ranks
from torch_gnnscale.loader import accesses
from torch_gnnscale.loader.epochs import Share
from torch_gnnscale.loader.keyed_loader import OWN_NAMES
from torch_gnnscale.loader.pipeline import USUAL
from torch_gnnscale.random import draw_seed
from torch_gnnscale.sampler import KeyedSampler, Layer, NeighborOutput, WeightedLayer
from torch_gnnscale.topology import CSC


class RandomEdges(KeyedSampler):
    """Draws one in-edge per seed, at a keyed place, with a weight and a field of its own."""

    def __init__(self, data, weighted=True):
        self.csc, self.weighted = CSC.from_data(data), weighted

    def options(self):
        return {"sampler": "random edges"}

    def node_bounds(self):
        return {None: self.csc.num_dst}

    def sample_from_nodes(self, inputs, key=None):
        return self._sample(inputs.node, draw_seed() if key is None else key, inputs.input_id, inputs.time)

    def sample_from_edges(self, inputs, neg_sampling=None, key=None):
        ends = torch.stack([inputs.row, inputs.col])
        local = torch.arange(ends.numel()).view(2, -1)
        return self._sample(ends.flatten(), key, inputs.input_id, local, inputs.label, inputs.time)

    def _sample(self, seeds, key, *metadata):
        draws = torch.rand(len(seeds), generator=torch.Generator().manual_seed(key))
        degree = self.csc.colptr.diff()[seeds]
        col, place = degree.nonzero().view(-1), self.csc.colptr[seeds] + (draws * degree).long()
        edge = place[col] if self.csc.edge_id is None else self.csc.edge_id[place[col]].long()
        found, row = self.csc.row[place[col]].long().unique(return_inverse=True)
        colptr = torch.cat([degree.new_zeros(1), (degree > 0).cumsum(0)])
        weight, counts = 1.0 / degree[col] if self.weighted else None, ([len(seeds), len(found)], [len(col)])
        return NeighborOutput(torch.cat([seeds, found]), len(seeds) + row, col, edge, None, *counts,
                              metadata=metadata, colptr=colptr, edge_weight=weight, fields={"key": key})  # fmt: skip


@pytest.fixture(scope="module")
def data():
    return make_data()


def loader_of(data, sampler=None, **options):
    sampler = RandomEdges(data) if sampler is None else sampler
    return NeighborLoader(data, [1], batch_size=20, seed=3, neighbor_sampler=sampler, **{"shuffle": True, **options})


def batches(loader):
    return [plain(batch) for batch in loader]


def test_batches_have_rows_weights_and_fields(data):
    for batch in loader_of(data):
        src, dst = batch.edge_index
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
        degree = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
        assert torch.equal(batch.edge_weight, 1.0 / degree[batch.n_id[dst]])
        assert isinstance(batch.key, int)
        assert GraphConv(data.x.size(1), 2)(batch.x.float(), batch.edge_index, batch.edge_weight).shape[1] == 2
        assert src.min() >= batch.batch_size


def test_weights_beside_an_edge_index(data):
    for found, whole in zip(loader_of(data, edge_layout="EdgeIndex"), loader_of(data), strict=True):
        assert torch.equal(found.edge_weight, whole.edge_weight)


def test_ranks_that_sample_together_try_nothing_out(data):
    for collective, ahead in ((True, USUAL), (False, 0)):
        sampler = RandomEdges(data)
        sampler.collective = collective
        loader = loader_of(data, sampler)
        taken, line = [], loader._line
        line.sample = lambda index, sample=line.sample, taken=taken: taken.append(index.number) or sample(index)
        iterator = iter(loader)
        iterator.close()
        assert line.collective == collective
        assert len(taken) <= ahead
        assert bool(taken) == collective


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"prefetch": 0}, {"prefetch": 3}, {"bulk": 3, "prefetch": 0}, {"bulk": 2, "prefetch": 4},
     processes(2), {**processes(1), "filter_per_worker": False}],
)  # fmt: skip
def test_the_same_batches_in_every_way(data, options):
    assert batches(loader_of(data, **options)) == batches(loader_of(data, prefetch=0))


def test_epochs_differ_and_runs_resume(data):
    loader = loader_of(data)
    first, second = batches(loader), batches(loader)
    assert first != second
    again = loader_of(data)
    iterator = iter(again)
    taken = [plain(next(iterator)) for _ in range(3)]
    resumed = loader_of(data)
    resumed.load_state_dict(again.state_dict())
    assert taken + batches(resumed) == first
    assert batches(resumed) == second
    others = NeighborLoader(data, [1], batch_size=20, seed=3, shuffle=True)
    with pytest.raises(ValueError, match=r"expected a loader with sampler=None, found sampler='random edges'"):
        resumed.load_state_dict(others.state_dict())


def test_samples_accesses_and_ad_hoc_batches(data):
    loader = loader_of(data)
    nodes = [batch.n_id for batch in loader_of(data)]
    assert all(map(torch.equal, (out.node for out in loader.samples(0)), nodes))
    assert torch.equal(accesses(loader, [0]), torch.bincount(torch.cat(nodes), minlength=data.num_nodes))
    assert plain(loader([4, 7])) == plain(loader([4, 7]))


def test_layouts_layers_and_stores(data):
    for batch in loader_of(data, edge_layout="sparse_csr"):
        assert "edge_weight" not in batch
    plain_batches = list(loader_of(data))
    for batch, other in zip(loader_of(data, edge_layout="sparse_csr"), plain_batches, strict=True):
        assert torch.equal(batch.adj_t.values(), other.edge_weight)
    stores = FeatureStore.from_data(data), GraphStore.from_data(data)
    for batch, other in zip(loader_of(stores, RandomEdges(data)), plain_batches, strict=True):
        assert torch.equal(batch.edge_weight, other.edge_weight)
        assert torch.equal(batch.x, other.x)
    for weighted, kind in ((True, WeightedLayer), (False, Layer)):
        sampler = RandomEdges(data, weighted)
        sampler.layers = True
        for batch, other in zip(loader_of(data, sampler, layers=True), plain_batches, strict=True):
            (layer,) = batch.layers
            assert type(layer) is kind
            assert torch.equal(layer.edge_index, other.edge_index)
            assert layer.size == (other.num_nodes, other.batch_size)
            if weighted:
                assert torch.equal(layer.edge_weight, other.edge_weight)
    weighted = data.clone()
    weighted.edge_weight = torch.ones(data.num_edges)
    with pytest.raises(ValueError, match=r"^edge_weight: expected data without this attribute"):
        next(iter(loader_of(weighted)))


def with_values(data, value=None):
    """The edges as an adj_t of these values, by default 1, 2, ..."""
    edges = data.edge_index.unique(dim=1)
    size = (data.num_nodes, data.num_nodes)
    values = torch.arange(1.0, edges.size(1) + 1) if value is None else torch.full((edges.size(1),), value)
    return Data(x=data.x, y=data.y, adj_t=torch.sparse_coo_tensor(edges.flip(0), values, size).to_sparse_csr())


def named_values(make):
    """What make() returns, and the warnings about values of an adj_t."""
    with recorded() as caught:
        made = make()
    return made, [str(found.message) for found in caught if "adj_t" in str(found.message)]


@pytest.mark.parametrize("prefetch", [0, 3])
def test_values_of_the_input_that_the_sampler_s_weights_replace_are_named_once(data, prefetch):
    loader = loader_of(with_values(data), prefetch=prefetch)
    batches, messages = named_values(lambda: [*loader, *loader])
    assert messages == ["adj_t: batches have the sampler's edge weights in place of the input's values"]
    assert all((batch.adj_t.values() <= 1).all() for batch in batches)


@pytest.mark.parametrize("layout", ["coo", "EdgeIndex"])
def test_values_of_the_input_without_a_place_are_named_when_the_loader_is_made(data, layout):
    given = with_values(data)
    hetero = HeteroData({"a": {"x": data.x}, ("a", "to", "a"): {"adj_t": given.adj_t}})
    for graph, seeds, name in ((given, None, "adj_t"), (hetero, "a", "adj_t of ('a', 'to', 'a')")):
        make = partial(NeighborLoader, graph, [1], seeds, edge_layout=layout)
        message = f"edge_layout={layout!r}: batches do not have the values of {name}; add them to the data as edge_attr"
        assert named_values(make)[1] == [message]
    given.edge_attr = given.adj_t.values()
    batches, _ = named_values(lambda: list(NeighborLoader(given, [2], batch_size=20, edge_layout=layout)))
    assert all(torch.equal(batch.edge_attr, given.edge_attr[batch.e_id]) for batch in batches)


def test_values_that_are_all_one_or_find_a_place_are_not_named(data):
    for value, weighted, layout in ((1.0, True, None), (1.0, True, "coo"), (None, False, None)):
        given = with_values(data, value)
        make = partial(loader_of, given, RandomEdges(given, weighted), edge_layout=layout)
        assert not named_values(lambda make=make: list(make()))[1]


def test_links(data):
    def loader(**options):
        links = data.edge_index[:, :60]
        return LinkNeighborLoader(
            data, [1], links, batch_size=20, seed=3, neighbor_sampler=RandomEdges(data), **options
        )

    expected = batches(loader(prefetch=0))
    assert batches(loader(prefetch=3)) == batches(loader(bulk=2)) == expected
    with pytest.raises(IndexError, match=r"edge_label_index\[0, 1\] = 900 is out of range"):
        LinkNeighborLoader(data, [1], torch.tensor([[0, 900], [1, 2]]), neighbor_sampler=RandomEdges(data))


def test_inputs_are_checked_by_the_sampler_bounds(data):
    with pytest.raises(IndexError, match=r"input_nodes\[1\] = 900 is out of range: expected nodes in \[0, 200\)"):
        loader_of(data, input_nodes=torch.tensor([0, 900]), shuffle=False)
    with pytest.raises(ValueError, match=r"^input_time: expected none without time_attr, found some"):
        loader_of(data, input_nodes=torch.arange(4), input_time=torch.arange(4), shuffle=False)


class Recording(RandomEdges):
    """Notes in which threads, and for which keys, it is asked."""

    def __init__(self, data, **attributes):
        super().__init__(data)
        self.asked = []
        self.__dict__.update(attributes)

    def sample_from_nodes(self, inputs, key=None):
        self.asked.append((threading.current_thread().name, key))
        return super().sample_from_nodes(inputs, key)


@pytest.mark.parametrize("attributes", [{"collective": True}, {"thread_safe": False}])
def test_collective_and_unsafe_samplers_are_asked_in_order_on_one_thread(data, attributes):
    sampler = Recording(data, **attributes)
    loader = loader_of(data, sampler, prefetch=4)
    keys = [loader._seed_order.key(index) for index in loader._seed_order.numbered(loader._index_sampler.batches, 0)]
    assert batches(loader) == batches(loader_of(data, prefetch=0))
    names, asked = zip(*sampler.asked, strict=True)
    assert list(asked) == keys
    assert len(set(names)) == 1
    assert names[0].startswith("gnnscale-loader-in-order")


def test_safe_samplers_are_asked_by_threads(data):
    sampler = Recording(data)
    list(loader_of(data, sampler, prefetch=4))
    assert all(name.startswith("gnnscale-loader_") for name, _ in sampler.asked)


def test_what_the_contract_leaves_to_the_sampler():
    sampler = KeyedSampler()
    assert (sampler.options(), sampler.node_bounds(), sampler.edge_bound(None)) == ({}, None, None)
    with pytest.raises(NotImplementedError, match=r"^KeyedSampler does not sample from nodes"):
        sampler.sample_inputs(NodeSamplerInput(None, torch.arange(2)), 0)
    with pytest.raises(NotImplementedError, match=r"^KeyedSampler does not sample from links"):
        sampler.sample_inputs(EdgeSamplerInput(None, torch.arange(2), torch.arange(2)), 0)


def test_a_colptr_without_ends_of_edges_is_refused(data):
    class WithoutEnds(RandomEdges):
        def _sample(self, *args):
            out = super()._sample(*args)
            out.row = out.col = None
            return out

    message = "^sampler output: expected edge_index, or row and col, beside colptr, found none$"
    with pytest.raises(ValueError, match=message):
        next(iter(loader_of(data, WithoutEnds(data), prefetch=0)))


def test_weights_follow_their_edges_when_these_are_sorted(data):
    def shuffled(out):
        order = torch.randperm(len(out.row), generator=torch.Generator().manual_seed(len(out.row)))
        out.row, out.col, out.edge, out.edge_weight = (
            entry[order] for entry in (out.row, out.col, out.edge, out.edge_weight)
        )
        return out

    degree = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
    for layout in ("coo", "EdgeIndex"):
        for batch in loader_of(data, transform_sampler_output=shuffled, edge_layout=layout):
            src, dst = batch.edge_index.as_subclass(torch.Tensor)
            assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[torch.stack([src, dst])])
            assert torch.equal(batch.edge_weight, 1.0 / degree[batch.n_id[dst]])


def test_a_loop_passes_on_how_negatives_are_drawn(data):
    class Told(RandomEdges):
        def sample_from_edges(self, inputs, neg_sampling=None, key=None):
            return key, neg_sampling

    links = [EdgeSamplerInput(None, *data.edge_index[:, :4])] * 2
    assert Told(data).sample_many(links, [5, 6], "binary") == [(5, "binary"), (6, "binary")]


def test_layers_of_a_foreign_sampler_mean_nothing(data):
    ours = NeighborSampler(data, [2])

    class Foreign(BaseSampler):
        layers = True
        edge_permutation = None

        def sample_from_nodes(self, inputs):
            return ours.sample_from_nodes(inputs, key=1).to_pyg()

        def sample_from_edges(self, inputs, neg_sampling=None):
            raise AssertionError

    assert all("layers" not in batch and "edge_index" in batch for batch in loader_of(data, Foreign()))
    with pytest.raises(ValueError, match=r"^layers=True: expected a neighbor_sampler with layers=True, found one"):
        loader_of(data, Foreign(), layers=True)


@pytest.mark.parametrize(
    ("options", "names"),
    [({"seed": 7}, r"\['seed'\]"), ({"kind": "mine", "epoch": 5, "batch": 1}, r"\['batch', 'epoch'\]"),
     ({"batch_size": 9}, r"\['batch_size'\]"), ({"negatives": None}, r"\['negatives'\]")],
)  # fmt: skip
def test_options_must_leave_a_loader_its_own_names(data, options, names):
    sampler = RandomEdges(data)
    sampler.options = lambda: options
    message = (
        r"^options\(\) of a RandomEdges: expected other names than those of a loader's own entries in its state, found "
    )
    with pytest.raises(ValueError, match=f"{message}{names}$"):
        loader_of(data, sampler)
    sampler.options = lambda: {"kind": "mine"}
    loader = loader_of(data, sampler)
    assert loader.state_dict()["kind"] == "mine"
    sampler.options = lambda: options
    with pytest.raises(ValueError, match=f"{message}{names}$"):
        loader.state_dict()


def test_the_names_of_a_loader_s_own_entries(data):
    links = LinkNeighborLoader(data, [1], data.edge_index[:, :60], neighbor_sampler=RandomEdges(data))
    owned = loader_of(data)
    owned._seed_order.share = Share(Ranks(0, 2), "owned", "pad")
    for loader in (links, owned):
        assert {*loader.state_dict()} - {"sampler"} <= OWN_NAMES


@pytest.mark.parametrize("patched", [False, True])
def test_in_a_loader_of_pyg(data, patched):
    degree = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
    with torch_gnnscale.patch_pyg() if patched else nullcontext():
        torch.manual_seed(0)
        loader = NodeLoader(data, RandomEdges(data), torch.arange(60), batch_size=20)
        first, *others = loader
        for seeds, batch in zip(torch.arange(60).split(20), [first, *others], strict=True):
            assert torch.equal(batch.n_id[: batch.batch_size], seeds)
            assert torch.equal(batch.x, data.x[batch.n_id])
            assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
            assert len(batch.e_id) == int((degree[seeds] > 0).sum())
            assert ("edge_weight" in batch) == patched  # of the fields that PyG's outputs lack
        assert not torch.equal(first.e_id, next(iter(loader)).e_id)


class Naming(RandomEdges):
    """Has a field of this name."""

    def __init__(self, data, name):
        super().__init__(data, weighted=False)
        self.name = name

    def _sample(self, seeds, key, *metadata):
        out = super()._sample(seeds, key, *metadata)
        out.fields = {self.name: key}
        return out


@pytest.mark.parametrize(
    "name", ["x", "y", "n_id", "e_id", "edge_index", "num_sampled_nodes", "input_id", "batch_size"]
)
def test_fields_that_would_replace_others_are_refused(data, name):
    message = (
        f"^{name}: expected a batch without this attribute, because a field of the sampler's output gets this name"
    )
    with pytest.raises(ValueError, match=message):
        next(iter(loader_of(data, Naming(data, name))))
