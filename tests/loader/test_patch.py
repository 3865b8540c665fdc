"""PyG's own classes on our operators."""

import pickle
import warnings

import pytest
import torch
import torch_geometric.loader
import torch_geometric.sampler.neighbor_sampler as pyg
from helpers.data import check_batch, make_data, our_stores, plain
from helpers.hetero import (
    AUTHOR,
    CITES,
    PAPER,
    WRITES,
    check_edges,
    foreign_stores,
    make_hetero,
    with_times,
)
from helpers.slow import SLOW
from helpers.tiers import node_data
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader, NodeLoader  # before the patch
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput, SamplerOutput

import torch_gnnscale
from torch_gnnscale import GraphStore, TieredFeatureStore

PATCHED = [(NeighborSampler, "__init__"), (NodeLoader, "filter_fn"), (torch_geometric.loader.LinkLoader, "filter_fn")]


@pytest.fixture
def patched():
    with torch_gnnscale.patch_pyg():
        yield
    torch_gnnscale.unpatch_pyg()


def replaced():
    return [vars(owner)[name] for owner, name in PATCHED]


def test_everything_is_restored():
    before = replaced()
    with torch_gnnscale.patch_pyg():
        assert all(now is not then for now, then in zip(replaced(), before, strict=True))
        torch_gnnscale.patch_pyg()
    assert replaced() == before
    torch_gnnscale.unpatch_pyg()
    assert replaced() == before
    torch_gnnscale.patch_pyg()
    torch_gnnscale.unpatch_pyg()
    assert replaced() == before
    with pytest.raises(ZeroDivisionError), torch_gnnscale.patch_pyg():
        1 / 0  # noqa: B018
    assert replaced() == before


def test_batches_are_ours(patched):
    data = make_data()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        loader = NeighborLoader(data, [3, 2], torch.arange(60), batch_size=20)
        torch.manual_seed(5)
        first = list(loader)
    for batch, seeds in zip(first, torch.arange(60).split(20), strict=True):
        check_batch(data, batch, seeds, [3, 2])
    torch.manual_seed(5)
    assert [plain(batch) for batch in loader] == [plain(batch) for batch in first]
    assert loader.node_sampler.edge_permutation is None
    assert type(loader.node_sampler) is NeighborSampler


def test_a_sampler_outlives_the_patch():
    with torch_gnnscale.patch_pyg():
        loader = NeighborLoader(make_data(), [3, 2], torch.arange(20), batch_size=20)
    for sampler in (loader.node_sampler, pickle.loads(pickle.dumps(loader.node_sampler))):
        out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(4)))
        assert type(out) is SamplerOutput
        assert out.num_sampled_nodes[0] == 4
    check_batch(make_data(), next(iter(loader)), torch.arange(20), [3, 2])


@pytest.mark.parametrize("source", [lambda data: data, our_stores, foreign_stores], ids=["data", "ours", "foreign"])
@pytest.mark.parametrize("subgraph", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("options", [{}, {"disjoint": True}, SLOW({"time_attr": "time", "num_workers": 1})], ids=str)
def test_heterogeneous_batches(patched, source, subgraph, options):
    data = with_times(make_hetero())
    loader = NeighborLoader(source(data), [2, 2], PAPER, batch_size=20, subgraph_type=subgraph, **options)
    for batch in loader:
        check_edges(data, batch)
        assert ("batch" in batch[PAPER]) == bool(options)
        if subgraph != "bidirectional":
            assert torch.equal(batch[CITES].edge_attr, data[CITES].edge_attr[batch[CITES].e_id])


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_links(patched, mode):
    data = make_data()
    loader = LinkNeighborLoader(data, [2, 2], data.edge_index, neg_sampling=mode, batch_size=32, shuffle=True)
    for batch in loader:
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        links = data.edge_index[:, batch.input_id]
        if mode == "binary":
            count = len(batch.input_id)
            assert torch.equal(batch.n_id[batch.edge_label_index[:, :count]], links)
        else:
            assert torch.equal(batch.n_id[batch.src_index], links[0])
            assert torch.equal(batch.n_id[batch.dst_pos_index], links[1])


def test_links_of_a_heterogeneous_graph(patched):
    data = make_hetero()
    loader = LinkNeighborLoader(our_stores(data), [2, 2], WRITES, neg_sampling="binary", batch_size=32, disjoint=True)
    for batch in loader:
        check_edges(data, batch)
        count = len(batch[WRITES].input_id)
        src, dst = batch[WRITES].edge_label_index[:, :count]
        ends = torch.stack([batch[AUTHOR].n_id[src], batch[PAPER].n_id[dst]])
        assert torch.equal(ends, data[WRITES].edge_index[:, batch[WRITES].input_id])


@pytest.mark.skipif(not hasattr(pyg, "BidirectionalNeighborSampler"), reason="PyG 2.6 has none")
def test_pygs_bidirectional_sampler(patched):
    data = Data(edge_index=torch.tensor([[0, 0, 2], [1, 2, 3]]), num_nodes=4)
    sampler = pyg.BidirectionalNeighborSampler(data, [1])
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([2])))
    assert out.node.tolist() == [2, 0, 3]
    assert out.edge.tolist() == [1, 2]


def test_renumbered_stores_are_refused(patched):
    data = node_data()
    with TieredFeatureStore.from_data(data, renumbered=True) as store:
        graph = GraphStore.from_data(data, order=store.order)
        with pytest.raises(NotImplementedError, match=r"^renumbered stores are not implemented in PyG's loaders"):
            NeighborLoader((store, graph), [2], torch.arange(3))


def test_options_can_be_set_again(patched):
    data, inputs = make_data(), NodeSamplerInput(None, torch.tensor([0, 0]))
    sampler = NeighborSampler(data, [1])
    sampler.num_neighbors, sampler.disjoint = [-1, 2], True
    out = sampler.sample_from_nodes(inputs)
    assert out.batch[:2].tolist() == [0, 1]
    assert len(out.num_sampled_edges) == 2
    assert NeighborSampler(make_hetero(), {t: [1] for t in make_hetero().edge_types},
                           sample_direction="backward").num_neighbors.num_hops == 1  # fmt: skip


def test_the_temporal_strategy_can_be_set_again(patched):
    data = Data(edge_index=torch.stack([torch.arange(50), torch.full((50,), 50)]), time=torch.arange(51) % 50)
    data.num_nodes = 51
    inputs = NodeSamplerInput(None, torch.tensor([50]), torch.tensor([49]))
    sampler = NeighborSampler(data, [2], time_attr="time")
    torch.manual_seed(0)
    assert sorted(sampler.sample_from_nodes(inputs).edge.tolist()) != [48, 49]
    sampler.temporal_strategy = "last"
    assert sorted(sampler.sample_from_nodes(inputs).edge.tolist()) == [48, 49]


def test_subclasses_keep_their_own_sampling(patched):
    class Mine(NeighborSampler):
        def _sample(self, seed, seed_time=None, **kwargs):
            return SamplerOutput(seed, seed[:0], seed[:0], seed[:0])

    out = Mine(make_data(), [2]).sample_from_nodes(NodeSamplerInput(None, torch.tensor([4])))
    assert out.node.tolist() == [4]


def test_collation_is_that_of_pyg():
    data = with_times(make_hetero())
    with torch_gnnscale.patch_pyg():
        loader = NeighborLoader(data, [2, 2], PAPER, batch_size=20, time_attr="time", subgraph_type="bidirectional")
        torch.manual_seed(2)
        ours = [plain(batch) for batch in loader]
    torch.manual_seed(2)
    assert [plain(batch) for batch in loader] == ours
