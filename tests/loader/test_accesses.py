"""Counts of what batches read, hop by hop."""

import pytest
import torch
from helpers.data import loader_of

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, NeighborSampler
from torch_gnnscale.loader import accesses, accesses_by_hop
from torch_gnnscale.topology.reorder import by_score


@pytest.mark.parametrize("replace", [False, True])
def test_counts_by_hop_are_those_of_the_samples(data, replace):
    loader = loader_of(data, replace=replace)
    nodes, edges = torch.zeros(3, data.num_nodes).long(), torch.zeros(2, data.num_edges).long()
    for epoch in (0, 2):
        for out in loader.samples(epoch):
            for hop, ids in enumerate(out.node.split(out.num_sampled_nodes)):
                nodes[hop] += torch.bincount(ids, minlength=data.num_nodes)
            for hop, ids in enumerate(out.edge.split(out.num_sampled_edges)):
                edges[hop] += torch.bincount(ids, minlength=data.num_edges)
    found = accesses_by_hop(loader, [0, 2])
    assert torch.equal(found.nodes, nodes)
    assert torch.equal(found.edges, edges)
    assert torch.equal(found.nodes.sum(0), accesses(loader, [0, 2]))
    assert int(found.nodes[0].sum()) == 2 * data.num_nodes  # hop 0: each node is a seed once per epoch


def test_no_epochs_have_no_hops(data):
    found = accesses_by_hop(loader_of(data), [])
    assert (found.nodes.shape, found.edges.shape) == ((0, data.num_nodes), (0, data.num_edges))


@pytest.mark.parametrize("subgraph_type", ["induced", "bidirectional"])
def test_edges_without_hops_are_refused(data, subgraph_type):
    loader = loader_of(data, subgraph_type=subgraph_type)
    with pytest.raises(ValueError, match=r"^loader: expected samples with edge ids and sizes of hops"):
        accesses_by_hop(loader, [0])


def test_counts_are_by_the_users_ids(data):
    order = by_score(torch.arange(data.num_nodes) * 7 % 31)
    stores = FeatureStore.from_data(data, order=order), GraphStore.from_data(data, order=order)
    loader = NeighborLoader(stores, [3, 2], batch_size=40, seed=1)
    expected = sum(torch.bincount(batch.n_id, minlength=data.num_nodes) for batch in loader)
    assert torch.equal(accesses(loader, [0]), expected)
    assert torch.equal(accesses_by_hop(loader, [0]).nodes.sum(0), expected)


def test_a_sampler_that_does_not_know_the_number_of_nodes_is_named(data):
    class Unbounded(NeighborSampler):
        def node_bounds(self):
            return None

    loader = loader_of(data, neighbor_sampler=Unbounded(data, [3, 2]))
    for count in (accesses, accesses_by_hop):
        message = r"^loader: expected a sampler whose node_bounds\(\) tells the number of nodes, found a Unbounded"
        with pytest.raises(ValueError, match=message):
            count(loader, [0])
