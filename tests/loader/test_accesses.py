"""Counts of what batches read, hop by hop."""

import pytest
import torch
from helpers.data import loader_of
from helpers.hetero import PAPER, make_hetero

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


@pytest.mark.parametrize("batches", [None, 2])
@pytest.mark.parametrize("typed", [False, True])
def test_reads_of_edges_are_those_of_the_batches(data, typed, batches):
    given = make_hetero() if typed else data
    loader = NeighborLoader(given, [4, 3], (PAPER, None) if typed else None, batch_size=8, shuffle=True, seed=1)
    found = accesses(loader, [1], batches=batches, edges=True)
    next(iter(loader))
    made = list(loader)[:batches]  # of epoch 1
    assert {*found} == ({*given.node_types, *given.edge_types} if typed else {None, (None, None)})
    for of, counts in found.items():
        stores = [batch[of] if typed else batch for batch in made]
        ids = torch.cat([store.e_id if isinstance(of, tuple) else store.n_id for store in stores])
        whole = given[of] if typed else given
        size = whole.num_edges if isinstance(of, tuple) else whole.num_nodes
        assert torch.equal(counts, torch.bincount(ids, minlength=size))
    nodes = accesses(loader, [1], batches=batches)
    for of, counts in (nodes if typed else {None: nodes}).items():
        assert torch.equal(counts, found[of])


def test_bad_numbers_of_batches_and_samples_without_ids_of_edges(data):
    loader = loader_of(data)
    with pytest.raises(ValueError, match=r"^batches: expected 1 <= batches <= \d+, found 0$"):
        accesses(loader, [0], batches=0)
    with pytest.warns(UserWarning, match="have no ids"):
        loader = loader_of(data, subgraph_type="bidirectional")
    with pytest.raises(ValueError, match=r"^loader: expected samples with edge ids, found others$"):
        accesses(loader, [0], edges=True)

    class Unbounded(NeighborSampler):
        def edge_bound(self, edge_type):
            return None

    loader = loader_of(data, neighbor_sampler=Unbounded(data, [3, 2]))
    message = r"^loader: expected a sampler whose edge_bound\(\) tells the number of edges, found a Unbounded"
    with pytest.raises(ValueError, match=message):
        accesses(loader, [0], edges=True)


def test_no_epochs_have_no_hops(data):
    found = accesses_by_hop(loader_of(data), [])
    assert (found.nodes.shape, found.edges.shape) == ((0, data.num_nodes), (0, data.num_edges))
    assert (found.nodes.dtype, found.edges.dtype) == (torch.int64, torch.int64)

    class Unbounded(NeighborSampler):
        def edge_bound(self, edge_type):
            return None

    found = accesses_by_hop(loader_of(data, neighbor_sampler=Unbounded(data, [3, 2])), [])
    assert (found.nodes.shape, found.edges.shape) == ((0, data.num_nodes), (0, 0))


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
