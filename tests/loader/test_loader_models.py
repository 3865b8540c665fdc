import pytest
import torch
import torch_geometric.loader
from helpers.data import check_batch, edge_rows, make_data, our_stores
from torch_geometric.nn import GCN, GraphSAGE
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.utils import trim_to_layer

from torch_gnnscale import NeighborLoader, NeighborSampler


def model_of(cls=GraphSAGE, layers=2):
    torch.manual_seed(0)
    return cls(3, 8, num_layers=layers, out_channels=4).double().eval()


@pytest.mark.parametrize("source", [lambda data: data, our_stores], ids=["Data", "stores"])
@pytest.mark.parametrize("layout", ["coo", "EdgeIndex", "sparse_csr"])
def test_evaluation_with_all_neighbors_is_the_full_forward(source, layout):
    data, model = make_data(), model_of()
    expected = model(data.x, data.edge_index)
    for batch in NeighborLoader(source(data), [-1, -1], torch.arange(0, 200, 2), batch_size=32,
                                edge_layout=layout):  # fmt: skip
        edges = batch.adj_t.to(torch.float64) if layout == "sparse_csr" else batch.edge_index
        found = model(batch.x, edges)[: batch.batch_size]
        torch.testing.assert_close(found, expected[batch.n_id[: batch.batch_size]], rtol=0, atol=1e-12)


def test_trim_to_layer():
    data, model = make_data(), model_of(layers=3)
    for batch in NeighborLoader(data, [3, 2, 4], torch.arange(100), batch_size=32, seed=1):
        expected = model(batch.x, batch.edge_index)[: batch.batch_size]
        found = model(batch.x, batch.edge_index, num_sampled_nodes_per_hop=batch.num_sampled_nodes,
                      num_sampled_edges_per_hop=batch.num_sampled_edges)  # fmt: skip
        torch.testing.assert_close(found[: batch.batch_size], expected, rtol=0, atol=1e-12)
        x, edge_index, edge_attr = batch.x, batch.edge_index, batch.edge_attr
        for layer in range(3):
            x, edge_index, edge_attr = trim_to_layer(
                layer, batch.num_sampled_nodes, batch.num_sampled_edges, x, edge_index, edge_attr
            )
            assert x.size(0) == sum(batch.num_sampled_nodes[: 4 - layer])
            assert edge_index.size(1) == sum(batch.num_sampled_edges[: 3 - layer]) == edge_attr.size(0)
            assert int(edge_index.max()) < x.size(0)


@pytest.mark.parametrize("cls", [GraphSAGE, GCN])
def test_layer_wise_inference(cls):
    data = make_data()
    model = model_of(cls)
    if cls is GCN:  # whose normalization needs the degrees of the whole graph
        model.convs.apply(lambda module: setattr(module, "normalize", False))
    loader = NeighborLoader(data, [-1], input_nodes=None, batch_size=64)
    torch.testing.assert_close(model.inference(loader), model(data.x, data.edge_index), rtol=0, atol=1e-12)


def test_pygs_node_loader_with_our_sampler():
    data = make_data()
    loader = torch_geometric.loader.NodeLoader(
        data, NeighborSampler(data, [3, 2]), input_nodes=torch.arange(60), batch_size=32, num_workers=0
    )
    for batch, seeds in zip(loader, torch.arange(60).split(32), strict=True):
        check_batch(data, batch, seeds, [3, 2])
    for batch in torch_geometric.loader.NodeLoader(our_stores(data), NeighborSampler(our_stores(data), [3, 2]),
                                                   input_nodes=torch.arange(60), batch_size=60):  # fmt: skip
        check_batch(data, batch, torch.arange(60), [3, 2])


def test_the_sampler_on_its_own():
    data = make_data()
    out = NeighborSampler(data, [3]).sample_from_nodes(NodeSamplerInput(torch.tensor([7]), torch.tensor([9])), key=1)
    assert out.metadata[0].tolist() == [7]
    assert torch.equal(torch.stack([out.row, out.col]), out.edge_index)
    assert torch.equal(out.node[out.edge_index], data.edge_index[:, out.edge])
    assert torch.equal(edge_rows(out.edge), data.edge_attr[out.edge])
