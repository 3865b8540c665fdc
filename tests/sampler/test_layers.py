"""The papers' list of bipartite layers."""

from itertools import accumulate

import pytest
import torch
from helpers.data import edge_rows, make_data, node_rows, our_stores, processes
from helpers.hetero import CITES, PAPER, make_hetero
from reference import sample_neighbors
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, HeteroConv, SAGEConv

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, NeighborSampler
from torch_gnnscale.random import batch_key
from torch_gnnscale.topology import CSC

SOURCES = {"Data": lambda data: data, "stores": lambda data: (FeatureStore.from_data(data), GraphStore.from_data(data))}


def batches(data, fanouts, **kwargs):
    return NeighborLoader(data, fanouts, **{"batch_size": 30, "seed": 1, "layers": True, **kwargs})


@pytest.mark.parametrize("source", SOURCES)
def test_layers_are_the_hops_of_the_twin(source):
    data, fanouts = make_data(), [3, 2, 4]
    csc = CSC.from_data(data)
    for number, batch in enumerate(batches(SOURCES[source](data), fanouts, input_nodes=torch.arange(60))):
        seeds = torch.arange(30 * number, 30 * number + 30)
        expected = sample_neighbors(csc.relations(), [seeds], fanouts, batch_key(1, 0, number), layers=True)
        assert torch.equal(batch.n_id, expected.node[0])
        assert torch.equal(batch.x, node_rows(batch.n_id))
        assert "edge_index" not in batch
        counts = list(accumulate(expected.num_nodes[0]))
        edges = expected.edge_index[0].split(expected.num_edges[0], dim=1)
        ids = expected.edge_id[0].split(expected.num_edges[0])
        assert len(batch.layers) == 3
        for hop, (edge_index, e_id, size) in enumerate(reversed(batch.layers)):
            assert torch.equal(edge_index, edges[hop])
            assert torch.equal(e_id, ids[hop])
            assert size == (counts[hop + 1], counts[hop])
        assert batch.layers[0].size[0] == batch.num_nodes
        assert batch.layers[-1].size[1] == batch.batch_size
        # Attributes of edges are in the order of hops.
        assert torch.equal(torch.cat([layer.e_id for layer in reversed(batch.layers)]), batch.e_id)
        assert torch.equal(batch.edge_attr, edge_rows(batch.e_id))


@pytest.mark.parametrize("layout", ["coo", "EdgeIndex", "sparse_csr"])
@pytest.mark.parametrize("conv", [SAGEConv, GATConv])
def test_a_model_layer_by_layer_is_the_model_on_the_graph(layout, conv):
    if (layout, conv) == ("sparse_csr", GATConv):
        pytest.skip("PyG's GATConv does not take torch's sparse tensors in pairs")
    torch.manual_seed(0)
    data = make_data()
    dtype = torch.float32 if layout == "sparse_csr" else torch.float64  # whose values torch multiplies are float32
    x = data.x.to(dtype)
    options = {"add_self_loops": False} if conv is GATConv else {}
    convs = torch.nn.ModuleList([conv((3, 3), 8, **options), conv((8, 8), 4, **options)]).to(dtype)
    expected = convs[0]((x, x), data.edge_index).relu()
    expected = convs[1]((expected, expected), data.edge_index)
    for batch in batches(Data(x=x, edge_index=data.edge_index), [-1, -1], edge_layout=layout):
        h = batch.x
        for number, (layer, (edge_index, _, size)) in enumerate(zip(convs, batch.layers, strict=True)):
            h = layer((h, h[: size[1]]), edge_index)
            h = h.relu() if number == 0 else h
            if layout == "EdgeIndex":
                assert isinstance(edge_index, EdgeIndex)
                assert edge_index.sparse_size() == size
                edge_index.validate()
        torch.testing.assert_close(h, expected[batch.input_id], rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("source", [lambda data: data, our_stores], ids=["HeteroData", "stores"])
def test_heterogeneous_layers(source):
    torch.manual_seed(0)
    data = make_hetero()
    for store in data.node_stores:
        store.x = store.x[:, :2].double()
    make = {t: SAGEConv((-1, -1), 6) for t in data.edge_types}
    convs = [HeteroConv(make), HeteroConv({t: SAGEConv((-1, -1), 3) for t in data.edge_types})]
    convs = [conv.double() for conv in convs]
    x = data.x_dict
    for conv in convs:
        x = conv(x, data.edge_index_dict)
    for batch in batches(source(data), [-1, -1], input_nodes=PAPER, batch_size=9):
        h = batch.x_dict
        for conv, layer in zip(convs, batch.layers, strict=True):
            out = {}
            for (src, rel, dst), edge_index in layer.edge_index.items():
                num_src, num_dst = layer.size[src][0], layer.size[dst][1]
                assert h[src].size(0) == num_src
                message = conv.convs[src, rel, dst]((h[src], h[dst][:num_dst]), edge_index)
                out[dst] = out[dst] + message if dst in out else message
            h = out
        torch.testing.assert_close(h[PAPER], x[PAPER][batch[PAPER].input_id], rtol=0, atol=1e-12)
        assert torch.equal(torch.cat([layer.e_id[CITES] for layer in reversed(batch.layers)]), batch[CITES].e_id)
        assert torch.equal(batch[CITES].edge_attr, data[CITES].edge_attr[batch[CITES].e_id])


@pytest.mark.slow
def test_layers_move_and_travel_with_their_batch():
    data = make_data()
    (here, *_), (there, *_) = list(batches(data, [2, 2])), list(batches(data, [2, 2], **processes(1)))
    moved = here.to(torch.device("cpu"), non_blocking=True)
    for batch in (there, moved):
        for one, other in zip(batch.layers, here.layers, strict=True):
            assert type(one) is type(other)
            assert torch.equal(one.edge_index, other.edge_index)
            assert tuple(one.size) == tuple(other.size)


def test_layers_of_disjoint_and_temporal_batches():
    data = make_data()
    data.time = torch.arange(200) % 7
    for batch in batches(data, [3, 3], time_attr="time"):
        for edge_index, _, size in batch.layers:
            assert bool((batch.batch[edge_index[0]] == batch.batch[edge_index[1]]).all())
            assert int(edge_index[1].max()) < size[1]
        limit = batch.time[: batch.batch_size][batch.batch]
        assert bool((batch.time <= limit).all())


def test_changed_edges_are_refused():
    def drop(out):
        out.row, out.col, out.edge = out.row[::2], out.col[::2], out.edge[::2]
        return out

    with pytest.raises(
        ValueError, match=r"^layers=True: expected the sampler's own edges, found edges that were changed"
    ):
        next(iter(batches(make_data(), [2], transform_sampler_output=drop)))


def test_samples_without_sizes_of_hops_are_refused():
    class WithoutSizes(NeighborSampler):
        def sample_from_nodes(self, inputs, key=None):
            out = super().sample_from_nodes(inputs, key)
            out.num_sampled_nodes = out.num_sampled_edges = None
            return out

    data = make_data()
    loader = NeighborLoader(data, [2], neighbor_sampler=WithoutSizes(data, [2], layers=True))
    with pytest.raises(ValueError, match=r"^layers=True: expected a sample with sizes of hops, found one without$"):
        next(iter(loader))


def test_layers_take_the_place_of_an_adj_t():
    data = make_data()
    edge_index = torch.unique(data.edge_index, dim=1)
    ones = torch.ones(edge_index.size(1))
    adj_t = torch.sparse_coo_tensor(edge_index.flip(0), ones, (200, 200)).to_sparse_csr()
    for batch in batches(Data(x=data.x, adj_t=adj_t), [3, 2]):
        assert "adj_t" not in batch
        for layer in batch.layers:
            assert layer.edge_index.layout == torch.sparse_csr
            assert tuple(layer.edge_index.shape) == layer.size[::-1]
