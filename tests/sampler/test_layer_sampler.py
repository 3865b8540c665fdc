"""LayerSampler through the loaders: the samples of its twin, in every way in which loaders make batches."""

import re
from itertools import pairwise, product

import numpy as np
import pytest
import reference
import torch
from helpers.data import make_data, plain, processes
from helpers.slow import SLOW
from torch_geometric.data import Data
from torch_geometric.nn import GraphConv
from torch_geometric.utils import trim_to_layer

from torch_gnnscale import (
    FeatureStore,
    GraphStore,
    LayerSampler,
    LinkNeighborLoader,
    NeighborLoader,
    NeighborSampler,
    ops,
)
from torch_gnnscale.ops.layer_drawing import METHODS
from torch_gnnscale.random import Purpose, batch_key
from torch_gnnscale.sampler import WeightedLayer
from torch_gnnscale.sampler.layerwise import GPULayers
from torch_gnnscale.topology import CSC
from torch_gnnscale.topology.reorder import Order
from torch_gnnscale.topology.segmented import SegmentedCSC

HOPS = [12, 9]


@pytest.fixture(scope="module")
def data():
    return make_data()


def loader_of(data, method="ladies", **options):
    return NeighborLoader(data, HOPS, method=method, batch_size=20, seed=3, **{"shuffle": True, **options})


def batches(loader):
    return [plain(batch) for batch in loader]


def twins_of(data, seeds, number, drawing, **options):
    """The sample of a batch of epoch 0 by the twin."""
    csc = CSC.from_data(data)
    graph = ops.relations([csc.colptr], [csc.row], edge_id=[csc.edge_id])
    if drawing.method == "fastgcn":
        options["score"] = reference.node_scores(graph, drawing.scores)
    key = batch_key(batch_key(3, 0, number), purpose=Purpose.LAYER)
    return reference.sample_layers(graph, seeds, HOPS, key, drawing, **options)


DEFAULTS = {
    "ladies": ops.LayerDrawing(),
    "fastgcn": ops.LayerDrawing("fastgcn"),
    "labor": ops.LayerDrawing("labor", "sequential"),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_batches_are_those_of_the_twin(data, method):
    model = GraphConv(3, 2)
    for number, batch in enumerate(loader_of(data, method)):
        twin = twins_of(data, batch.n_id[: batch.batch_size], number, DEFAULTS[method])
        assert torch.equal(batch.n_id, twin.node[0])
        assert torch.equal(batch.edge_index, twin.edge_index[0])
        assert torch.equal(batch.e_id, twin.edge_id[0])
        assert torch.equal(batch.edge_weight, twin.edge_weight[0])
        assert [batch.num_sampled_nodes] == twin.num_nodes
        assert [batch.num_sampled_edges] == twin.num_edges
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        x, edge_index, weight = trim_to_layer(
            1, batch.num_sampled_nodes, batch.num_sampled_edges, batch.x.float(), batch.edge_index, batch.edge_weight
        )
        assert len(weight) == edge_index.size(1) == sum(batch.num_sampled_edges[:1])
        assert model(x, edge_index, weight).shape == (len(x), 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "include_dst", "keep_known"),
    [*product(METHODS, [True, False], [False]), ("ladies", True, True), ("fastgcn", True, True)],
)
def test_layers_are_those_of_the_twin(data, method, include_dst, keep_known):
    drawing = DEFAULTS[method]._replace(keep_known=keep_known)
    sampler = LayerSampler(data, HOPS, method, layers=True, include_dst=include_dst, keep_known=keep_known)
    assert sampler.drawing == drawing
    conv = GraphConv((3, 3), 3)
    for number, batch in enumerate(loader_of(data, "neighbor", neighbor_sampler=sampler, layers=True)):
        twin = twins_of(data, batch.n_id[: batch.batch_size], number, drawing, layers=True, include_dst=include_dst)
        assert torch.equal(batch.n_id, twin.node[0])
        blocks, per_hop = batch.n_id.split(batch.num_sampled_nodes), batch.num_sampled_edges
        edges = zip(*(part.split(per_hop, dim=-1) for part in (twin.edge_index[0], twin.edge_weight[0])), strict=True)
        for hop, (layer, (edge_index, weight)) in enumerate(zip(batch.layers[::-1], edges, strict=True)):
            assert type(layer) is WeightedLayer
            assert torch.equal(layer.edge_index, edge_index)
            assert torch.equal(layer.edge_weight, weight)
            sources = blocks[hop + 1] if not include_dst else torch.cat(blocks[: hop + 2])
            assert layer.size[0] == len(sources)
            assert torch.equal(sources[edge_index[0]], data.edge_index[0, layer.e_id])
        x = batch.x[len(batch.x) - batch.layers[0].size[0] :].float()
        for layer in batch.layers:
            x = conv((x, None), layer.edge_index, layer.edge_weight, size=layer.size)
        assert len(x) == batch.batch_size


@pytest.mark.parametrize(
    "options",
    [{"prefetch": 3}, {"bulk": 3, "prefetch": 0}, processes(2), SLOW({**processes(1), "filter_per_worker": False})],
)
@pytest.mark.parametrize("method", METHODS)
def test_the_same_batches_in_every_way(data, method, options):
    assert batches(loader_of(data, method, **options)) == batches(loader_of(data, method, prefetch=0))


class PlacedSampler(LayerSampler):
    """Draws as one on a GPU does, by the steps of bulks."""

    usual_bulk = 4

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        csc = SegmentedCSC.cut(self.graph.relations[0].csc, torch.device("cpu"), 0, copied=False)
        self.executor = GPULayers(self.graph, csc, self.layer_options)


@pytest.mark.parametrize(
    ("method", "options"),
    [*((method, {"layers": layers}) for method in METHODS for layers in (False, True)),
     ("ladies", {"layers": True, "include_dst": False})],
)  # fmt: skip
def test_the_same_batches_by_the_steps_of_a_gpu(data, method, options):
    placed = PlacedSampler(data, HOPS, method, **options)
    loader = loader_of(data, "neighbor", neighbor_sampler=placed, layers=options["layers"])
    assert loader.bulk == 4
    of_host = {"neighbor_sampler": LayerSampler(data, HOPS, method, **options), "layers": options["layers"]}
    assert batches(loader) == batches(loader_of(data, "neighbor", **of_host))
    index = torch.tensor([4, 7, 4])
    assert plain(loader(index)) == plain(loader_of(data, "neighbor", **of_host)(index))


@pytest.mark.cuda
@pytest.mark.parametrize("share", [None, 0.0, 0.5])
@pytest.mark.parametrize("method", METHODS)
def test_the_same_batches_on_a_gpu(data, method, share):
    there = loader_of(data.clone().to("cuda"), method, device="cuda", graph_on_gpu=share)
    for batch, expected in zip(there, loader_of(data, method), strict=True):
        assert batch.edge_weight.device.type == "cuda"
        assert plain(batch.cpu()) == plain(expected)
    links = {"edge_label_index": data.edge_index, "method": method, "batch_size": 200, "seed": 1}
    there = LinkNeighborLoader(data.clone().to("cuda"), HOPS, **links, device="cuda", graph_on_gpu=share)
    for batch, expected in zip(there, LinkNeighborLoader(data, HOPS, **links), strict=True):
        assert plain(batch.cpu()) == plain(expected)


def test_epochs_differ_runs_resume_and_batches_are_made_ad_hoc(data):
    loader = loader_of(data)
    first, second = batches(loader), batches(loader)
    assert first != second
    again = loader_of(data)
    iterator = iter(again)
    taken = [plain(next(iterator)) for _ in range(3)]
    resumed = loader_of(data)
    resumed.load_state_dict(again.state_dict())
    assert taken + batches(resumed) == first
    with pytest.raises(ValueError, match=r"expected a loader with method='ladies', found method='labor'"):
        loader_of(data, "labor").load_state_dict(again.state_dict())
    nodes = [batch.n_id for batch in loader_of(data)]
    assert all(map(torch.equal, (out.node for out in loader.samples(0)), nodes))
    assert plain(loader([4, 7])) == plain(loader([4, 7]))


@pytest.mark.parametrize("method", METHODS)
def test_stores_layouts_and_files(data, method, tmp_path):
    plain_batches = list(loader_of(data, method))
    stores = FeatureStore.from_data(data), GraphStore.from_data(data)
    stores[1].save(tmp_path / "graph")
    mapped = stores[0], GraphStore.open(tmp_path / "graph")
    for given in (stores, mapped):
        for batch, other in zip(loader_of(given, method), plain_batches, strict=True):
            assert torch.equal(batch.edge_weight, other.edge_weight)
            assert torch.equal(batch.x, other.x)
    for given in (data, stores):
        for batch, other in zip(loader_of(given, method, edge_layout="sparse_csr"), plain_batches, strict=True):
            assert torch.equal(batch.adj_t.values(), other.edge_weight)
            assert "edge_weight" not in batch
    for batch, other in zip(loader_of(data, method, edge_layout="EdgeIndex"), plain_batches, strict=True):
        assert torch.equal(batch.edge_weight, other.edge_weight)


@pytest.mark.parametrize("method", METHODS)
def test_renumbered_graphs_have_the_edges_of_the_user_s(data, method):
    old = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(1))
    order = Order.from_permutation(old, data.num_nodes)
    stores = FeatureStore.from_data(data, order=order), GraphStore.from_data(data, order=order)
    for batch in loader_of(stores, method):
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.x, data.x[batch.n_id])


def test_links_and_their_negatives(data):
    loader = LinkNeighborLoader(
        data, HOPS, data.edge_index[:, :60], method="ladies", batch_size=16, neg_sampling="binary", seed=5,
        strict_negatives=True,
    )  # fmt: skip
    assert batches(loader) != batches(loader)
    for batch in loader:
        assert batch.edge_label_index.size(1) == 2 * len(batch.input_id)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert len(batch.edge_weight) == batch.num_edges


def test_batches_that_depend_on_each_other_draw_alike(data):
    """Of the same seeds, in batches whose random numbers are shared."""
    seeds = torch.arange(10).repeat(6)
    found = {}
    for shared in (1, 3):
        sampler = LayerSampler(data, HOPS, "labor", batch_dependency=shared)
        loader = NeighborLoader(data, HOPS, seeds, neighbor_sampler=sampler, batch_size=10, seed=2)
        found[shared] = [batch.e_id.tolist() for batch in loader]
    assert len(set(map(tuple, found[1]))) == 6
    assert found[3][0] == found[3][1] == found[3][2] != found[3][3] == found[3][4] == found[3][5]
    bulk = NeighborLoader(data, HOPS, seeds, neighbor_sampler=sampler, batch_size=10, seed=2, bulk=4)
    assert [batch.e_id.tolist() for batch in bulk] == found[3]
    sampler = LayerSampler(data, HOPS, "labor", batch_dependency=2)
    with pytest.raises(ValueError, match=r"^state: expected a loader with batch_dependency=3, found batch_dep"):
        NeighborLoader(data, HOPS, seeds, neighbor_sampler=sampler, batch_size=10).load_state_dict(bulk.state_dict())
    links = {"neg_sampling": "binary", "neighbor_sampler": sampler}
    with pytest.raises(ValueError, match=r"^batch_dependency=2: expected 1 with negatives, which are drawn for each"):
        LinkNeighborLoader(data, HOPS, data.edge_index, **links)


def test_batches_that_depend_on_each_other_have_more_rows_in_common():
    """Of other seeds: so fewer rows have to be read that the batch before did not read."""
    data = make_data(1000, 60_000)
    new = {}
    for shared in (1, 4):
        sampler = LayerSampler(data, [5], "labor", batch_dependency=shared)
        loader = NeighborLoader(data, [5], neighbor_sampler=sampler, batch_size=50, seed=2, shuffle=True)
        nodes = [set(batch.n_id[batch.batch_size :].tolist()) for batch in loader]
        new[shared] = sum(len(now - before) for before, now in pairwise(nodes)) / sum(map(len, nodes))
    assert new[4] < 0.75 * new[1]


@pytest.mark.parametrize("later", [False, True])
def test_strict_negatives(data, later):
    links, known = data.edge_index[:, :60], torch.tensor([[1], [2]])
    sampler = LayerSampler(data, HOPS, strict_negatives=False if later else known)
    assert sampler.options()["strict_negatives"] is not later
    sampler.strict_negatives = known
    assert sampler.strict_negatives is known
    assert sampler.options()["strict_negatives"]
    loader = LinkNeighborLoader(data, HOPS, links, neighbor_sampler=sampler, neg_sampling="binary", batch_size=60)
    known_pairs = {(1, 2), *zip(*data.edge_index.tolist(), strict=True)}
    for _ in range(3):
        for batch in loader:
            negatives = batch.n_id[batch.edge_label_index[:, 60:]]
            assert not known_pairs & set(zip(*negatives.tolist(), strict=True))


def test_the_name_of_the_weights(data):
    weighted = data.clone()
    weighted.edge_weight = torch.arange(data.num_edges)
    message = "edge_weight: expected data without this attribute, because the sampler's weights get this name; pass"
    with pytest.raises(ValueError, match=f"^{re.escape(message)} another weight_name= to the sampler"):
        next(iter(loader_of(weighted)))
    sampler = LayerSampler(weighted, HOPS, weight_name="correction")
    for batch, other in zip(loader_of(weighted, "neighbor", neighbor_sampler=sampler), loader_of(data), strict=True):
        assert torch.equal(batch.correction, other.edge_weight)
        assert torch.equal(batch.edge_weight, batch.e_id)


def test_no_name_of_a_loaders_own_fields_is_one_of_the_weights(data):
    timed = data.clone().update({"time": torch.arange(200)})
    times = {"time_attr": "time", "batch_size": 9}
    link_times = {"edge_label_time": torch.full((1500,), 200), **times}
    found = [
        NeighborLoader(timed, HOPS, input_time=torch.full((200,), 200), **times),
        NeighborLoader(data, HOPS, layers=True),
        *(LinkNeighborLoader(timed, HOPS, neg_sampling=mode, **link_times) for mode in ("binary", "triplet")),
    ]
    own = set().union(*(next(iter(loader)).to_dict() for loader in found)) - set(timed.to_dict())
    assert {"n_id", "e_id", "batch", "layers", "seed_time", "edge_label", "dst_neg_index"} < own
    for name in own:
        message = f"weight_name: expected another name than those of a loader's own fields, found {name!r}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            LayerSampler(data, HOPS, weight_name=name)


def test_edges_that_are_sorted_already(data):
    order = data.edge_index[1].sort(stable=True).indices
    given = Data(x=data.x, edge_index=data.edge_index[:, order], edge_attr=data.edge_attr[order])
    loader = loader_of(given, is_sorted=True)
    assert loader._sampler.graph.relations[0].csc.edge_id is None
    assert batches(loader) == batches(loader_of(given))


@pytest.mark.parametrize("kind", [LayerSampler, NeighborSampler])
def test_edge_ids_may_be_beyond_the_number_of_edges(data, kind):
    csc = CSC.from_data(data)
    moved = CSC.from_csc(csc.colptr, csc.row, csc.edge_id + 100)
    sampler = kind((FeatureStore(), GraphStore.from_csc(moved)), [5])
    assert sampler.edge_bound(None) == 1600 == int(moved.edge_id.max()) + 1


@pytest.mark.parametrize("numbers", [np.array(HOPS), np.array(HOPS, np.int32), tuple(HOPS)], ids=["", "int32", "tuple"])
def test_numbers_of_nodes_in_an_array(data, numbers):
    sampler = LayerSampler(data, numbers)
    assert sampler.options() == LayerSampler(data, HOPS).options()
    batches = loader_of(data, "neighbor", neighbor_sampler=sampler), loader_of(data, "ladies")
    assert [plain(batch) for batch in batches[0]] == [plain(batch) for batch in batches[1]]
