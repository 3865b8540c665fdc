"""Tensors that are not in host memory, as far as that can be told without a device: on meta, and by fake tensors."""

import pytest
import torch
from helpers.data import make_data, node_rows
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch_geometric import EdgeIndex
from torch_geometric.data import Data

from torch_gnnscale import FeatureStore, NeighborLoader, NeighborSampler, _library, ops
from torch_gnnscale.loader.data_rows import rows_at as rows_of_batch
from torch_gnnscale.loader.row_source import Ids
from torch_gnnscale.ops import rows


def with_adj_t(data):
    dense = torch.zeros(200, 200)
    dense[data.edge_index[1], data.edge_index[0]] = 1
    return Data(x=data.x, y=data.y, adj_t=dense.to_sparse_csr())


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("layout", ["coo", "EdgeIndex", "sparse_csr"])
@pytest.mark.parametrize("with_edges", ["edge_index", "adj_t"])
def test_a_batch_is_where_the_data_is(device, layout, with_edges, prefetch):
    data = make_data() if with_edges == "edge_index" else with_adj_t(make_data())
    sampler = NeighborSampler(data, [3, 2])
    for target in ("meta", device):
        given = data.clone().to(target)
        loader = NeighborLoader(given, [3, 2], torch.arange(40), neighbor_sampler=sampler, batch_size=16, seed=1,
                                edge_layout=layout, prefetch=prefetch)  # fmt: skip
        here = NeighborLoader(data, [3, 2], torch.arange(40), batch_size=16, seed=1, edge_layout=layout)
        for batch, expected in zip(loader, here, strict=True):
            edges = batch.adj_t if layout == "sparse_csr" else batch.edge_index
            assert {value.device.type for value in (batch.x, batch.y, edges)} == {target}
            assert batch.n_id.device.type == batch.e_id.device.type == batch.input_id.device.type == "cpu"
            assert edges.shape == (expected.adj_t if layout == "sparse_csr" else expected.edge_index).shape
            if layout == "EdgeIndex":
                assert isinstance(edges, EdgeIndex)
                assert edges._indptr.device.type == target
            if target != "meta" and layout == "coo":
                assert torch.equal(edges.cpu(), expected.edge_index)
                assert torch.equal(batch.x.cpu(), expected.x)


def test_edges_in_host_memory_stay_there_beside_features_elsewhere():
    data = make_data()
    sampler = NeighborSampler(data, [3])
    data.x = data.x.to("meta")
    batch = next(iter(NeighborLoader(data, [3], neighbor_sampler=sampler, batch_size=16)))
    assert batch.x.device.type == "meta"
    assert batch.edge_index.device.type == batch.y.device.type == "cpu"


def test_the_native_gather_is_used_where_it_is_loaded(monkeypatch):
    monkeypatch.setattr(rows, "_ORDINARY", (FakeTensor, torch.Tensor))
    with FakeTensorMode():
        here, there, other = (torch.empty(0, 3, device=name) for name in ("cpu", "cuda", "xpu"))
        assert ops.can_gather_rows(here)
        assert not ops.can_gather_rows(other)
        for state, expected in (("loaded", True), ("not loaded: torch sees no CUDA device", False)):
            monkeypatch.setitem(_library.status, "_CUDA", state)
            assert ops.can_gather_rows(there) is expected
        found = rows_of_batch(there, Ids(torch.empty(0, dtype=torch.int64)), 0)
        assert (found.device.type, found.shape) == ("cuda", (0, 3))
    assert not ops.can_gather_rows(torch.ones(3, 4).T)
    assert not ops.can_gather_rows(torch.tensor(1.0))
    assert not ops.can_gather_rows(torch.eye(3).to_sparse())


def test_the_native_aggregation_is_used_where_it_is_loaded(monkeypatch):
    with FakeTensorMode():
        here, there, other = (torch.empty(2, 3, device=name) for name in ("cpu", "cuda", "xpu"))
        assert ops.can_aggregate(here)
        assert ops.can_aggregate(here.double())
        assert ops.can_aggregate(here.bfloat16())
        assert not ops.can_aggregate(here.int())
        assert not ops.can_aggregate(other)
        for state, expected in (("loaded", True), ("not loaded: torch sees no CUDA device", False)):
            monkeypatch.setitem(_library.status, "_CUDA", state)
            assert ops.can_aggregate(there) is expected


def test_a_feature_store_on_a_device(device):
    x = node_rows(torch.arange(50))
    index = torch.tensor([4, 0, 4], dtype=torch.int32)
    for target in ("meta", device):
        store = FeatureStore()
        store.put_tensor(x.to(target), group_name=None, attr_name="x", index=None)
        found = store[None, "x", index]
        assert (found.device.type, found.shape) == (target, (3, 3))
        if target != "meta":
            assert torch.equal(found.cpu(), x[index])
        with pytest.raises(IndexError, match=r"index\[1\] = 50 is out of range"):
            store[None, "x", torch.tensor([0, 50])]
