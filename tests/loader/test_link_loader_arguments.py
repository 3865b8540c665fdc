"""LinkNeighborLoader: every argument."""

import inspect
import pickle
import re
import warnings

import pytest
import torch
import torch_geometric.loader
from helpers.data import ForeignFeatureStore, ForeignGraphStore, node_rows
from helpers.links import (
    NEGATIVES,
    RATED,
    RATES,
    TYPES,
    edges,
    graph_of,
    heterogeneous,
    homogeneous,
    ids,
    loader_of,
    pairs_of,
    parts,
    times_of,
)
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from torch_gnnscale import FeatureStore, GraphStore, LinkNeighborLoader, NeighborSampler


def positives(loader, edge_type=None):
    """The links that a loader without negatives goes through."""
    found = []
    for batch in loader:
        link, src, dst = parts(batch, edge_type)
        found.append(torch.stack([src.n_id[link.edge_label_index[0]], dst.n_id[link.edge_label_index[1]]]))
    return torch.cat(found, dim=1)


def test_forms_of_links():
    data, hetero = homogeneous(), heterogeneous()
    links = torch.tensor([[1, 2, 3, 3], [4, 5, 6, 6]])
    forms = [links, links.int(), EdgeIndex(links, sparse_size=(60, 60)), (None, links)]
    for form in forms:
        assert torch.equal(positives(loader_of(data, None, edge_label_index=form)), links)
    for form in (None, (None, None)):
        assert torch.equal(positives(loader_of(data, None, edge_label_index=form)), data.edge_index)
    for form in (RATES, (RATES, None), "rates", ("user", "item"), ("rates", None)):
        found = positives(loader_of(hetero, RATES, edge_label_index=form), RATES)
        assert torch.equal(found, hetero[RATES].edge_index)
    for form in ((RATES, links), [RATES, links], ("rates", links), (("user", "item"), links)):
        assert torch.equal(positives(loader_of(hetero, RATES, edge_label_index=form), RATES), links)


def test_links_of_an_adjacency():
    data = homogeneous()
    links = data.edge_index[:, torch.argsort(data.edge_index[1] * 60 + data.edge_index[0])].unique(dim=1)
    links = links[:, torch.argsort(links[1], stable=True)]
    del data.edge_index, data.edge_attr
    data.adj_t = torch.sparse_coo_tensor(links.flip(0), torch.ones(links.size(1)), (60, 60)).to_sparse_csr()
    batch = next(iter(loader_of(data, None, batch_size=400)))
    assert "adj_t" in batch
    assert torch.equal(batch.n_id[batch.edge_label_index], links)


@pytest.mark.parametrize("ours", [False, True])
def test_stores(ours):
    data = heterogeneous()
    features, graph = (FeatureStore(), GraphStore()) if ours else (ForeignFeatureStore(), ForeignGraphStore())
    for node_type, store in data.node_items():
        features[node_type, "x", None] = store.x
    for edge_type, store in data.edge_items():
        size = tuple(data[end].num_nodes for end in (edge_type[0], edge_type[-1]))
        graph[edge_type, "coo", False, size] = tuple(store.edge_index)
    for form in (RATES, (RATES, None)):
        loader = loader_of(
            (features, graph), RATES, edge_label_index=form, neg_sampling="binary", strict_negatives=True
        )
        expected = loader_of(data, RATES, neg_sampling="binary", strict_negatives=True)
        for found, wanted in zip(loader, expected, strict=True):
            assert torch.equal(found["user"].x, node_rows(found["user"].n_id))
            assert torch.equal(found[RATES].edge_label, wanted[RATES].edge_label)
            if ours:
                assert ids(found, RATES) == ids(wanted, RATES)
    plain_features, plain_graph = FeatureStore.from_data(homogeneous()), GraphStore.from_data(homogeneous())
    for form in (None, homogeneous().edge_index, (None, homogeneous().edge_index)):
        loader = loader_of((plain_features, plain_graph), None, edge_label_index=form)
        assert torch.equal(positives(loader), homogeneous().edge_index)


@pytest.mark.parametrize("edge_type", [None, RATES], ids=str)
def test_labels(edge_type):
    data = graph_of(edge_type)
    count = edges(data, edge_type).size(1)
    for label, shift in ((torch.arange(count) % 3, 1), (torch.arange(count) % 3 + 1, 0)):
        for batch in loader_of(data, edge_type, edge_label=label, neg_sampling_ratio=1):
            link = parts(batch, edge_type)[0]
            half = len(link.input_id)
            assert torch.equal(link.edge_label[:half], label[link.input_id] + shift)
            assert not link.edge_label[half:].any()
            assert link.edge_label.dtype == torch.int64
    for batch in loader_of(data, edge_type, edge_label=label):
        link = parts(batch, edge_type)[0]
        assert torch.equal(link.edge_label, label[link.input_id])


def test_labels_that_look_like_negatives_are_warned_of():
    data = homogeneous()
    links, binary = data.edge_index[:, :3], {"neg_sampling": "binary"}
    message = (
        "edge_label: links of label 0 look like negatives, which have label 0: 1 is not added to the labels, as in "
        "PyG, because the smallest is -1; pass labels of at least 0"
    )
    for negatives in (binary, {"neg_sampling_ratio": 1.0}):
        with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
            loader_of(data, None, edge_label_index=links, edge_label=torch.tensor([-1, 0, 1]), **negatives)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for label, negatives in (([-1, 1, 2], binary), ([0, 1, 2], binary), ([-1, 0, 1], {})):
            loader_of(data, None, edge_label_index=links, edge_label=torch.tensor(label), **negatives)


@pytest.mark.parametrize("negatives", [None, "binary"])
@pytest.mark.parametrize("label", [torch.empty(0), torch.empty(0, 3, dtype=torch.int64)], ids=["floats", "rows"])
def test_no_links_and_their_labels(negatives, label):
    links = torch.empty(2, 0, dtype=torch.int64)
    loader = loader_of(homogeneous(), None, edge_label_index=links, edge_label=label, neg_sampling=negatives)
    assert list(loader) == []
    assert torch.equal(loader([]).edge_label, label)
    assert loader([]).edge_label.dtype == label.dtype


@pytest.mark.parametrize("edge_type", TYPES, ids=str)
@pytest.mark.parametrize("negatives", NEGATIVES, ids=str)
def test_times(edge_type, negatives):
    data = graph_of(edge_type)
    time = times_of(edges(data, edge_type).size(1), 1)
    loader = loader_of(data, edge_type, edge_label_time=time, time_attr="time", neg_sampling=negatives)
    for batch in loader:
        link, src, dst = parts(batch, edge_type)
        own = time[link.input_id]
        if negatives is not None and negatives.is_triplet():
            assert torch.equal(src.seed_time, own)
            assert torch.equal(dst.seed_time, own)
            assert bool((dst.time[dst.dst_neg_index] <= own[:, None]).all())
        else:
            times = own[torch.arange(len(link.edge_label_time)) % len(own)]
            assert torch.equal(link.edge_label_time, times)
            for store, index in zip((src, dst), link.edge_label_index[:, len(own) :], strict=True):
                assert bool((store.time[index] <= times[len(own) :]).all())
        for store in (src, dst):
            seeds = store.num_sampled_nodes[0]
            assert bool((store.time[seeds:] <= own[store.batch[seeds:]]).all())


def test_exclusions_and_strictness():
    data = heterogeneous()
    loader = loader_of(data, RATES, neg_sampling_ratio=9, exclude_seed_edges="reverse", strict_negatives=True)
    for batch in loader:
        user, item, link = batch["user"].n_id, batch["item"].n_id, batch[RATES]
        labelled = torch.stack([user[link.edge_label_index[0]], item[link.edge_label_index[1]]])
        seeds, negatives = labelled[:, link.edge_label == 1], labelled[:, link.edge_label == 0]
        assert not pairs_of(negatives) & pairs_of(data[RATES].edge_index)
        assert not pairs_of(seeds) & pairs_of(torch.stack([user[link.edge_index[0]], item[link.edge_index[1]]]))
        back = batch[RATED].edge_index
        assert not pairs_of(seeds) & pairs_of(torch.stack([user[back[1]], item[back[0]]]))


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("edge_type", TYPES, ids=str)
def test_links_that_are_no_edges_are_no_strict_negatives(edge_type, given):
    data = graph_of(edge_type)
    links = torch.stack([torch.arange(40).repeat_interleave(2), torch.arange(80) % 40])
    more = torch.stack([torch.arange(40), (torch.arange(40) + 7) % 40])
    options = {"strict_negatives": more if given else True, "neg_sampling": NegativeSampling("triplet", 50)}
    form = links if edge_type is None else (edge_type, links)
    found = set()
    for batch in loader_of(data, edge_type, edge_label_index=form, **options):
        _, src, dst = parts(batch, edge_type)
        found |= pairs_of(
            torch.stack([src.n_id[src.src_index].repeat_interleave(50), dst.n_id[dst.dst_neg_index].view(-1)])
        )
    assert not found & (pairs_of(links) | pairs_of(edges(data, edge_type)))
    assert bool(found & pairs_of(more)) != given


def test_the_inputs_own_labels_are_replaced():
    data = heterogeneous()
    data[RATES].edge_label_index = data[RATES].edge_index[:, :7]
    data[RATES].edge_label_time = torch.arange(7)
    batch = next(iter(loader_of(data, (RATES, data[RATES].edge_label_index), neg_sampling="triplet")))
    assert "edge_label_index" not in batch[RATES]
    assert "edge_label_time" not in batch[RATES]


def test_a_sampler_of_the_users():
    data = homogeneous()
    sampler = NeighborSampler(data, [3, 2], exclude_seed_edges=True, strict_negatives=True)
    found = loader_of(data, None, neighbor_sampler=sampler, neg_sampling="binary")
    expected = loader_of(data, None, exclude_seed_edges=True, strict_negatives=True, neg_sampling="binary")
    assert [ids(batch, None) for batch in found] == [ids(batch, None) for batch in expected]

    with pytest.warns(UserWarning, match=r"^disjoint has no effect beside neighbor_sampler"):
        loader_of(data, None, neighbor_sampler=sampler, disjoint=True)

    class Foreign(torch_geometric.sampler.BaseSampler):
        edge_permutation = None

        def sample_from_nodes(self, inputs):
            raise AssertionError

        def sample_from_edges(self, inputs, neg_sampling=None):
            out = sampler.sample_from_edges(inputs, neg_sampling, key=1)
            return torch_geometric.sampler.SamplerOutput(out.node, out.row, out.col, out.edge, metadata=out.metadata)

    with pytest.warns(UserWarning, match="prefetch=4 has no effect: Foreign may keep state"):
        foreign = loader_of(data, None, neighbor_sampler=Foreign(), neg_sampling="binary", prefetch=4)
    batches = list(foreign)
    assert len(batches) == 10
    assert all(torch.equal(batch.x, node_rows(batch.n_id)) for batch in batches)


def test_a_sampler_of_others_is_told_how_negatives_are_drawn():
    data, asked = homogeneous(), []

    class Foreign(torch_geometric.sampler.BaseSampler):
        edge_permutation = None

        def sample_from_nodes(self, inputs):
            raise AssertionError("there are only links")

        def sample_from_edges(self, inputs, neg_sampling=None):
            asked.append(neg_sampling)
            return NeighborSampler(data, [2]).sample_from_edges(inputs, neg_sampling)

    links, negatives = data.edge_index[:, :8], NegativeSampling("triplet", 3)
    loader = LinkNeighborLoader(data, [2], links, neg_sampling=negatives, neighbor_sampler=Foreign(), batch_size=4)
    assert [batch.dst_neg_index.shape for batch in loader] == [(4, 3)] * 2
    assert [entry.amount for entry in asked] == [3, 3]


@pytest.mark.parametrize("layout", ["EdgeIndex", "sparse_csr"])
def test_edge_layouts(layout):
    data = homogeneous()
    for batch, expected in zip(loader_of(data, None, edge_layout=layout), loader_of(data, None), strict=True):
        if layout == "EdgeIndex":
            assert isinstance(batch.edge_index, EdgeIndex)
            assert torch.equal(batch.edge_index.as_tensor(), expected.edge_index)
        else:
            assert torch.equal(batch.adj_t.col_indices(), expected.edge_index[0])


def test_transforms_see_links():
    data, seen = homogeneous(), []

    def of_output(out):
        seen.append(out.metadata[1].shape)
        return out

    def of_batch(batch):
        batch.links = batch.edge_label_index.size(1)
        return batch

    loader = loader_of(data, None, transform=of_batch, transform_sampler_output=of_output, neg_sampling_ratio=2)
    assert [batch.links for batch in loader] == [96] * 9 + [36]
    assert sorted(shape[1] for shape in seen) == [36] + [96] * 9


@pytest.mark.parametrize("edge_type", [None, RATES], ids=str)
def test_made_again_from_its_own_attributes(edge_type):
    # As Lightning does: every attribute that is an argument is passed again, dataset and collate_fn too.
    data = graph_of(edge_type)
    loader = loader_of(data, edge_type, neg_sampling="binary", shuffle=True)
    classes = (LinkNeighborLoader, torch.utils.data.DataLoader)
    names = {"input_id", "custom_cls"}.union(*(inspect.signature(cls).parameters for cls in classes))
    kwargs = {name: getattr(loader, name) for name in names if hasattr(loader, name)}
    assert {"dataset", "collate_fn", "data", "seed", "prefetch", "edge_label_index"} <= set(kwargs)
    kwargs = {**kwargs, "num_neighbors": [3, 2], "neighbor_sampler": loader.link_sampler}
    kwargs.pop("batch_sampler")
    again = LinkNeighborLoader(**kwargs)
    expected = loader_of(data, edge_type, neg_sampling="binary", shuffle=True)
    assert [ids(batch, edge_type) for batch in again] == [ids(batch, edge_type) for batch in expected]


def test_bulk():
    data = homogeneous()
    loader = loader_of(data, None, neg_sampling="binary", bulk=3)
    assert (loader.bulk, loader_of(data, None).bulk) == (3, 1)
    expected = loader_of(data, None, neg_sampling="binary")
    assert [ids(batch, None) for batch in loader] == [ids(batch, None) for batch in expected]
    with pytest.raises(ValueError, match=r"^bulk: expected at least 1, found 0$"):
        loader_of(data, None, bulk=0)
    assert inspect.signature(LinkNeighborLoader).parameters["bulk"].kind is inspect.Parameter.KEYWORD_ONLY


def test_pickled():
    loader = loader_of(homogeneous(), None, neg_sampling="binary", strict_negatives=True)
    again = pickle.loads(pickle.dumps(loader))
    assert [ids(batch, None) for batch in again] == [ids(batch, None) for batch in loader]


def test_links_of_a_loader_are_no_edges_to_a_sampler_of_the_users():
    # Of the pairs (0, v), all but the link (0, 2) are edges.
    data = Data(x=torch.ones(4, 1), edge_index=torch.tensor([[0, 0, 0], [0, 1, 3]]))
    link, options = torch.tensor([[0], [2]]), {"neg_sampling": "triplet", "seed": 1}
    sampler = NeighborSampler(data, [2], strict_negatives=True)
    batch = next(iter(LinkNeighborLoader(data, [2], link, neighbor_sampler=sampler, **options)))
    assert batch.n_id[batch.dst_neg_index].tolist() == [2]
    with pytest.raises(ValueError, match="negative"):
        next(iter(LinkNeighborLoader(data, [2], link, strict_negatives=True, **options)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"layers": True},
            "layers=True is not an argument of LinkNeighborLoader; pass neighbor_sampler=NeighborSampler(data, "
            "num_neighbors, layers=True)",
        ),
    ],
)
def test_arguments_that_only_loaders_of_seeds_have(options, message):
    data = homogeneous()
    with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
        LinkNeighborLoader(data, [2], **options)
    nothing = {"device": "cpu", "layers": False, "graph_on_gpu": None, "graph_on_peers": ()}
    expected, found = (LinkNeighborLoader(data, [2], batch_size=50, seed=1, **given) for given in ({}, nothing))
    assert all(map(torch.equal, (batch.n_id for batch in expected), (batch.n_id for batch in found)))


def test_layers_of_links_come_from_the_sampler():
    data = homogeneous()
    sampler = NeighborSampler(data, [2, 2], layers=True)
    batch = next(iter(LinkNeighborLoader(data, [2, 2], batch_size=50, seed=1, neighbor_sampler=sampler)))
    assert [layer.size[1] for layer in batch.layers] == [sum(batch.num_sampled_nodes[:2]), batch.num_sampled_nodes[0]]


def test_an_unknown_kind_of_negatives(data):
    with pytest.raises(ValueError, match=r"^neg_sampling: expected one of \['binary', 'triplet'\], .*'binery'"):
        LinkNeighborLoader(data, [2], edge_label_index=data.edge_index[:, :9], neg_sampling="binery")
