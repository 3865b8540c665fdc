"""Loaders over a Data with an adjacency matrix."""

import pytest
import torch
from helpers.data import make_data, node_rows
from helpers.warn import recorded
from torch_geometric.data import Data

from torch_gnnscale import NeighborLoader


def test_an_adj_t_without_edge_ids_has_ones():
    data = make_data()
    given = Data(x=data.x, adj_t=torch.sparse_coo_tensor(data.edge_index.flip(0), torch.full((data.num_edges,), 7.0),
                                                         (200, 200)).coalesce().to_sparse_csr())  # fmt: skip

    def without_ids(out):
        out.edge = None
        return out

    for batch in NeighborLoader(given, [2], batch_size=40, transform_sampler_output=without_ids):
        assert batch.adj_t.values().numel() > 0
        assert (batch.adj_t.values() == 1).all()


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo, torch.sparse_csc])
def test_data_with_a_torch_adj_t(layout):
    data = make_data()
    unique = torch.unique(data.edge_index, dim=1)
    dense = torch.zeros(200, 200, dtype=torch.float64)
    dense[unique[1], unique[0]] = (unique[1] * 1000 + unique[0]).double() + 1
    given = Data(x=data.x, adj_t=dense.to_sparse(layout=layout))
    for batch in NeighborLoader(given, [3, 3], torch.arange(50), batch_size=20, seed=0):
        assert batch.adj_t.layout == torch.sparse_csr
        assert torch.equal(batch.x, node_rows(batch.n_id))
        dst = torch.repeat_interleave(batch.adj_t.crow_indices().diff())
        src = batch.adj_t.col_indices()
        assert dst.numel() == batch.e_id.numel() > 20
        assert torch.equal(batch.adj_t.values(), dense[batch.n_id[dst], batch.n_id[src]])
        assert "edge_index" not in batch
    plain_edges = next(iter(NeighborLoader(given, [3], torch.arange(50), batch_size=20, edge_layout="coo")))
    assert "adj_t" not in plain_edges
    assert torch.equal(dense[plain_edges.n_id[plain_edges.edge_index[1]], plain_edges.n_id[plain_edges.edge_index[0]]]
                       > 0, torch.ones(plain_edges.edge_index.size(1), dtype=torch.bool))  # fmt: skip


@pytest.mark.parametrize("moved", [False, True])
def test_unsorted_entries_of_adj_t_beside_edge_index(moved):
    """Entries of a COO tensor have the order in which they are stored, edges that of ``edge_index``."""
    data = make_data()
    order = torch.arange(data.num_edges)
    if moved:  # two edges change places that have one destination
        twice = (data.edge_index[1] == data.edge_index[1, 0]).nonzero().view(-1)[[0, -1]]
        assert data.edge_index[0, twice[0]] != data.edge_index[0, twice[1]]
        order[twice] = twice.flip(0)
    data.adj_t = torch.sparse_coo_tensor(data.edge_index.flip(0)[:, order], torch.ones(data.num_edges), (200, 200))
    with recorded() as told:
        NeighborLoader(data, [3])
    assert ["not the same edges in the same order" in str(entry.message) for entry in told] == [True] * moved
