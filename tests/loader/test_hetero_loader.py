"""NeighborLoader on heterogeneous graphs: batches against PyG's own collation of the same samples."""

import copy

import pytest
import torch
import torch_geometric.loader
from helpers.data import our_stores, plain, processes
from helpers.hetero import (
    AUTHOR,
    CITES,
    PAPER,
    VENUE,
    WRITES,
    check_edges,
    foreign_stores,
    make_hetero,
    with_times,
    with_weights,
)
from torch_geometric import EdgeIndex
from torch_geometric.data import HeteroData
from torch_geometric.nn import SAGEConv, to_hetero
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput

from torch_gnnscale import NeighborLoader, NeighborSampler
from torch_gnnscale.sampler.outputs import output_of

SOURCES = {"HeteroData": lambda data: data, "our stores": our_stores, "foreign stores": foreign_stores}
MODES = {
    "directional": {},
    "bidirectional": {"subgraph_type": "bidirectional"},
    "induced": {"subgraph_type": "induced"},
    "disjoint": {"disjoint": True},
    "temporal": {"time_attr": "time"},
    "last": {"time_attr": "time", "temporal_strategy": "last", "subgraph_type": "induced"},
    "weighted": {"weight_attr": "weight", "replace": True},
}


def loader_of(data, num_neighbors=(3, 2), input_nodes=PAPER, **kwargs):
    return NeighborLoader(data, list(num_neighbors), input_nodes, **{"batch_size": 16, "seed": 1, **kwargs})


def full_data():
    data = with_weights(with_times(make_hetero()))
    data[PAPER].name, data.scale = "papers", 2.5
    data[AUTHOR].n_id = torch.arange(25) + 1000
    data[CITES].e_id = torch.arange(240) + 5000
    return data


def pyg_batches(loader, inputs):
    """What PyG's loader makes of the samples of ours."""
    for at in range(0, inputs, loader.batch_size):
        out = output_of(loader._line.sample(torch.arange(at, min(at + loader.batch_size, inputs))))
        yield torch_geometric.loader.NodeLoader.filter_fn(loader, copy.deepcopy(out))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [make_hetero, full_data])
def test_batches_are_those_of_pyg(mode, make):
    data = full_data() if MODES[mode] and make is make_hetero else make()
    loader = loader_of(data, **MODES[mode])
    for number, expected in enumerate(pyg_batches(loader, 40)):
        found = loader(list(range(16 * number, min(16 * number + 16, 40))))
        assert type(found) is HeteroData
        assert plain(found) == plain(expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_every_source_gives_the_same_batches(mode, source, prefetch):
    data = with_weights(with_times(make_hetero()))
    expected = list(loader_of(data, **MODES[mode]))
    found = list(loader_of(SOURCES[source](data), prefetch=prefetch, **MODES[mode]))
    assert len(found) == len(expected) == 3
    for ours, theirs in zip(found, expected, strict=True):
        check_edges(data, ours)
        for type_name, store in [*theirs.node_items(), *theirs.edge_items()]:
            assert dict(plain_items(ours[type_name])) == dict(plain_items(store))
        if source != "HeteroData" and mode != "bidirectional":
            assert "edge_attr" in ours[CITES]


def plain_items(store):
    return [(key, plain(value)) for key, value in store.items() if key != "num_nodes"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("filter_per_worker", [True, False])
def test_workers_and_transforms(workers, filter_per_worker):
    def double(batch):
        batch[PAPER].x = batch[PAPER].x * 2
        return batch

    data = make_hetero()
    arguments = {**processes(workers), "filter_per_worker": filter_per_worker}
    for found, expected in zip(loader_of(data, transform=double, **arguments), loader_of(data), strict=True):
        assert torch.equal(found[PAPER].x, expected[PAPER].x * 2)
        assert torch.equal(found[CITES].edge_index, expected[CITES].edge_index)


@pytest.mark.parametrize("layout", ["coo", "EdgeIndex", "sparse_csr"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("change", [False, True])
def test_edge_layouts(layout, source, change):
    def every_other_citation(out):
        out.row[CITES], out.col[CITES] = out.row[CITES].flip(0)[::2], out.col[CITES].flip(0)[::2]
        out.edge[CITES] = out.edge[CITES].flip(0)[::2]
        return out

    data, transform = make_hetero(), every_other_citation if change else None
    arguments = {"transform_sampler_output": transform}
    for found, expected in zip(
        loader_of(SOURCES[source](data), edge_layout=layout, **arguments), loader_of(data, **arguments), strict=True
    ):
        for edge_type in data.edge_types:
            store, size = found[edge_type], tuple(expected[end].num_nodes for end in edge_type[::2])
            if layout == "sparse_csr":
                assert store.adj_t.shape == size[::-1]
                edges = torch.stack(
                    [store.adj_t.col_indices(), torch.repeat_interleave(store.adj_t.crow_indices().diff())]
                )
            else:
                edges = store.edge_index
                assert isinstance(edges, EdgeIndex) == (layout == "EdgeIndex")
            if layout == "EdgeIndex":
                edges.validate()
                assert edges.sparse_size() == size
                (colptr, row), _ = edges.get_csc()
                edges = torch.stack([row, torch.repeat_interleave(colptr.diff())])
            wanted = expected[edge_type].edge_index
            order = wanted[1].sort(stable=True).indices if layout != "coo" else slice(None)
            assert torch.equal(edges, wanted[:, order])
            assert torch.equal(store.e_id, expected[edge_type].e_id[order])


def test_the_layout_of_each_relation_is_that_of_the_input():
    data = make_hetero()
    edge_index = data[CITES].edge_index
    order = edge_index.flip(0)[0].mul(40).add(edge_index[0]).argsort(stable=True)
    row, col = edge_index[:, order]
    pointer = torch._convert_indices_from_coo_to_csr(col, 40)
    del data[CITES].edge_index
    values = torch.arange(240.0)
    data[CITES].adj_t = torch.sparse_csr_tensor(pointer, row, values, (40, 40))
    batch = next(iter(loader_of(data)))
    assert "edge_index" not in batch[CITES]
    assert "adj_t" not in batch[WRITES]
    assert torch.equal(batch[CITES].adj_t.values().long(), batch[CITES].e_id)


@pytest.mark.parametrize(
    "input_nodes",
    [PAPER, (PAPER, None), (PAPER, torch.arange(40)), (PAPER, range(40)), (PAPER, torch.ones(40).bool())],
    ids=["type", "type and none", "ids", "range", "mask"],
)
@pytest.mark.parametrize("source", SOURCES)
def test_input_nodes(input_nodes, source):
    loader = loader_of(SOURCES[source](make_hetero()), input_nodes=input_nodes)
    assert loader.input_nodes is input_nodes
    batches = list(loader)
    assert torch.cat([batch[PAPER].input_id for batch in batches]).tolist() == list(range(40))
    assert [batch[PAPER].batch_size for batch in batches] == [16, 16, 8]
    assert all(torch.equal(batch[PAPER].n_id[: batch[PAPER].batch_size], batch[PAPER].input_id) for batch in batches)


def test_input_time():
    data = with_times(make_hetero())
    times = torch.arange(40) % 9 - 4
    for batch in loader_of(data, time_attr="time", input_time=times, shuffle=True):
        assert torch.equal(batch[PAPER].seed_time, times[batch[PAPER].input_id])
        for node_type in (PAPER, AUTHOR):
            first = batch[PAPER].batch_size if node_type == PAPER else 0
            limits = batch[PAPER].seed_time[batch[node_type].batch]
            assert bool((batch[node_type].time <= limits)[first:].all())


def test_epochs_resume_in_heterogeneous_graphs():
    data = make_hetero()
    loader = loader_of(data, shuffle=True)
    iterator = iter(loader)
    next(iterator)
    state, rest = loader.state_dict(), [plain(batch) for batch in iterator]
    again = loader_of(data, shuffle=True, seed=7)
    again.load_state_dict(state)
    assert [plain(batch) for batch in again] == rest
    for other in ({"num_neighbors": [3, 3]}, {"disjoint": True}, {"subgraph_type": "induced"}, {"layers": True}):
        with pytest.raises(ValueError, match=r"^state: expected a loader with"):
            loader_of(data, shuffle=True, **{"num_neighbors": [3, 2], **other}).load_state_dict(state)


class Ids(BaseSampler):
    """A sampler that is not ours and samples papers only; its edge ids are places in a permutation."""

    def __init__(self, order=None):
        self.order = order

    def sample_from_nodes(self, inputs):
        rows = torch.arange(len(inputs.node))
        return HeteroSamplerOutput({PAPER: inputs.node}, {CITES: rows}, {CITES: rows}, {CITES: inputs.node},
                                   metadata=(inputs.input_id, inputs.time))  # fmt: skip

    def sample_from_edges(self, inputs, neg_sampling=None):
        raise NotImplementedError

    @property
    def edge_permutation(self):
        return self.order


@pytest.mark.parametrize("order", [None, {CITES: torch.arange(240).flip(0), WRITES: None}], ids=["none", "some"])
@pytest.mark.parametrize("layout", ["coo", "EdgeIndex"])
def test_any_base_sampler(order, layout):
    data = make_hetero()
    loader = loader_of(data, neighbor_sampler=Ids(order), edge_layout=layout, prefetch=0)
    for batch in loader:
        expected = batch[PAPER].n_id if order is None else order[CITES][batch[PAPER].n_id]
        assert torch.equal(batch[CITES].e_id, expected)
        assert torch.equal(batch[CITES].edge_attr, data[CITES].edge_attr[expected])
        assert batch[AUTHOR].x.shape == (0, 3)
        assert batch[WRITES].edge_index.shape == (2, 0)
    if layout == "coo":
        out = output_of(loader._line.sample(torch.arange(5)))
        assert plain(loader.filter_fn(copy.deepcopy(out))) == plain(
            torch_geometric.loader.NodeLoader.filter_fn(loader, copy.deepcopy(out))
        )


def test_custom_cls():
    class Mine(HeteroData):
        pass

    assert type(next(iter(loader_of(our_stores(make_hetero()), custom_cls=Mine)))) is Mine


@pytest.mark.slow
def test_a_model_on_all_neighbors_is_the_model_on_the_graph():
    torch.manual_seed(0)

    class GNN(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 4)

        def forward(self, x, edge_index):
            return self.second(self.first(x, edge_index).relu(), edge_index)

    data = make_hetero()
    for store in data.node_stores:
        store.x = store.x[:, :2].double()
    data[(AUTHOR, "rev_at", VENUE)].edge_index = torch.stack([torch.arange(5), torch.arange(5)])
    model = to_hetero(GNN(), data.metadata()).double()
    expected = model(data.x_dict, data.edge_index_dict)[PAPER]
    for batch in loader_of(data, [-1, -1]):
        found = model(batch.x_dict, batch.edge_index_dict)[PAPER][: batch[PAPER].batch_size]
        torch.testing.assert_close(found, expected[batch[PAPER].input_id], rtol=0, atol=1e-12)


def test_rows_that_are_not_contiguous_are_named():
    data = make_hetero()
    data[PAPER].x = torch.zeros(4, 40).t()
    with pytest.warns(UserWarning, match=r"^data\['paper'\].x has no contiguous rows"):
        loader_of(data)


@pytest.mark.parametrize(
    ("input_nodes", "message"),
    [
        (None, "input_nodes: expected a node type, or a pair of a node type and nodes, found NoneType"),
        (torch.arange(4), "input_nodes: expected a node type, or a pair of a node type and nodes, found Tensor"),
        ("ghost", r"input_nodes: expected a node type of \['paper', 'author', 'venue'\], found 'ghost'"),
        (("ghost", torch.arange(4)), "input_nodes: expected a node type of"),
    ],
)
@pytest.mark.parametrize("source", SOURCES)
def test_bad_input_nodes(input_nodes, message, source):
    with pytest.raises(ValueError, match=rf"^{message}"):
        loader_of(SOURCES[source](make_hetero()), input_nodes=input_nodes)


def test_bad_arguments():
    data = with_times(make_hetero())
    with pytest.raises(IndexError, match=r"^input_nodes\[1\] = 25 is out of range: expected nodes in \[0, 25\)$"):
        loader_of(data, input_nodes=(AUTHOR, torch.tensor([0, 25])))
    with pytest.raises(ValueError, match=r"^input_time: expected none without time_attr, found some$"):
        loader_of(data, input_time=torch.arange(40))
    with pytest.raises(ValueError, match=r"^input_time: expected 40 times, found shape \(3,\)$"):
        loader_of(data, time_attr="time", input_time=torch.arange(3))
    with pytest.raises(ValueError, match=r"^layers=True: expected a neighbor_sampler with layers=True"):
        loader_of(data, layers=True, neighbor_sampler=NeighborSampler(data, [2]))
    with pytest.raises(TypeError, match=r"^sampler output: expected PyG's SamplerOutput, found tuple$"):
        next(iter(loader_of(data, transform_sampler_output=lambda out: (out,))))
