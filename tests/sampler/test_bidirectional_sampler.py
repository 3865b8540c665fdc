"""Sampling in both directions at once."""

import pytest
import torch
from helpers.data import edges_of, make_data
from helpers.hetero import make_hetero
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from torch_gnnscale import BidirectionalNeighborSampler, FeatureStore, GraphStore, NeighborLoader
from torch_gnnscale.random import batch_key

KEY = batch_key(5)


def by_definition(data, seeds, hops, disjoint):
    """Breadth-first over all edges both ways: nodes, edges and how many were new in each step."""
    edges = list(zip(*data.edge_index.tolist(), strict=True))
    nodes = [(tree if disjoint else 0, node) for tree, node in enumerate(seeds)]
    seen, found, num_nodes, num_edges, frontier = set(nodes), [], [], [], nodes[:]
    for hop in range(hops):
        fresh = []
        for way in (0, 1):
            nodes_before, edges_before = len(nodes), len(found)
            for tree, node in frontier:
                for number, ends in enumerate(edges):
                    if ends[1 - way] == node:
                        other = (tree, ends[way])
                        if other not in seen:
                            seen.add(other)
                            nodes.append(other)
                            fresh.append(other)
                        if (tree, number) not in found:
                            found.append((tree, number))
            num_nodes += [len(seeds) if (hop, way) == (0, 0) else 0, len(nodes) - nodes_before]
            num_edges.append(len(found) - edges_before)
        frontier = fresh
    return nodes, found, num_nodes, num_edges


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_all_neighbors_both_ways(disjoint, seed):
    data = Data(edge_index=edges_of(40, 50, seed), num_nodes=40)
    seeds = torch.randperm(40, generator=torch.Generator().manual_seed(seed))[:4]
    out = BidirectionalNeighborSampler(data, [-1, -1, -1], disjoint=disjoint).sample(seeds, None, KEY)
    nodes, edges, num_nodes, num_edges = by_definition(data, seeds.tolist(), 3, disjoint)
    tree = out.batch if disjoint else torch.zeros_like(out.node)
    assert list(zip(tree.tolist(), out.node.tolist(), strict=True)) == nodes
    assert list(zip(tree[out.row].tolist(), out.edge.tolist(), strict=True)) == edges
    assert torch.equal(torch.stack([out.node[out.row], out.node[out.col]]), data.edge_index[:, out.edge])
    assert (out.num_sampled_nodes, out.num_sampled_edges) == (num_nodes, num_edges)


@pytest.mark.parametrize("replace", [False, True])
def test_fanouts_hold_in_each_direction(replace):
    data = make_data()
    out = BidirectionalNeighborSampler(data, [2, 2], replace=replace).sample(torch.arange(9), None, KEY)
    assert torch.equal(torch.stack([out.node[out.row], out.node[out.col]]), data.edge_index[:, out.edge])
    assert len({*zip(out.row.tolist(), out.col.tolist(), out.edge.tolist(), strict=True)}) == out.edge.numel()
    assert max(torch.bincount(out.col[: out.num_sampled_edges[0]])) <= 2
    assert sum(out.num_sampled_edges) == out.edge.numel()
    assert sum(out.num_sampled_nodes) == out.node.numel()


def test_weights_and_exclusions():
    data = make_data()
    data.weight = (torch.arange(1500) % 3).double()
    sampler = BidirectionalNeighborSampler(data, [-1], weight_attr="weight")
    left_out = data.edge_index[:, :500]
    out = sampler.sample(torch.arange(200), None, KEY, exclude=left_out)
    gone = set(zip(*left_out.tolist(), strict=True))
    kept = [e for e, ends in enumerate(zip(*data.edge_index.tolist(), strict=True)) if ends not in gone and e % 3]
    assert sorted(out.edge.tolist()) == kept


@pytest.mark.parametrize("stores", [False, True])
def test_in_the_loader(stores):
    data = make_data()
    source = (FeatureStore.from_data(data), GraphStore.from_data(data)) if stores else data
    sampler = BidirectionalNeighborSampler(source, [3, 2])
    loaders = [
        NeighborLoader(source, [3, 2], torch.arange(60), neighbor_sampler=sampler, batch_size=20, seed=1, prefetch=p)
        for p in (0, 3)
    ]
    for batch, same in zip(*loaders, strict=True):
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.n_id, same.n_id)


def test_no_seeds_and_no_hops():
    sampler = BidirectionalNeighborSampler(make_data(), [])
    out = sampler.sample_from_nodes(NodeSamplerInput(torch.arange(2), torch.tensor([4, 5])))
    assert (out.node.tolist(), out.edge.numel(), out.num_sampled_edges) == ([4, 5], 0, [])
    sampler.num_neighbors = [2]
    out = sampler.sample(torch.empty(0, dtype=torch.int64), None, KEY)
    assert (out.node.numel(), out.num_sampled_nodes, out.num_sampled_edges) == (0, [0, 0, 0, 0], [0, 0])


def test_what_is_not_implemented():
    data = make_data()
    data.time = torch.arange(200)
    for source, options, name in (
        (make_hetero(), {}, "a heterogeneous graph"),
        (data, {"time_attr": "time"}, "time_attr='time'"),
        (data, {"subgraph_type": "induced"}, "subgraph_type='induced'"),
    ):
        with pytest.raises(NotImplementedError, match=rf"^{name}: not implemented in both directions at once"):
            BidirectionalNeighborSampler(source, [2], **options)
    with pytest.raises(ValueError, match=r"^seed_time: expected none"):
        BidirectionalNeighborSampler(data, [2]).sample(torch.arange(2), torch.arange(2), KEY)


def test_seeds_without_edges_are_counted():
    data = Data(edge_index=torch.tensor([[0, 5], [5, 6]]), num_nodes=9)
    for seeds, edges in (([1, 2], [0] * 4), ([0, 8, 4], [0, 1, 0, 1])):
        out = BidirectionalNeighborSampler(data, [2, 2]).sample(torch.tensor(seeds), None, KEY)
        assert out.num_sampled_edges == edges
        assert sum(out.num_sampled_nodes) == len(out.node)
        assert min(out.num_sampled_nodes) >= 0
        assert out.num_sampled_nodes[0] == len(seeds)
