"""LinkNeighborLoader: every argument, the same batches by any number of workers, resume."""

import copy
import inspect
import json
import pickle

import pytest
import torch
import torch_geometric.loader
from datasets_for_tests import ForeignFeatureStore, ForeignGraphStore, edge_rows, node_rows, plain
from links_for_tests import FRIENDS, RATED, RATES, heterogeneous, homogeneous, pairs_of, times_of
from torch_geometric import EdgeIndex
from torch_geometric.data import HeteroData
from torch_geometric.sampler import NegativeSampling

from torch_gnnscale import FeatureStore, GraphStore, LinkNeighborLoader, NeighborSampler

TYPES = [None, RATES, FRIENDS]
NEGATIVES = [None, NegativeSampling("binary", 1.5), NegativeSampling("triplet", 2)]


def graph_of(edge_type):
    return homogeneous() if edge_type is None else heterogeneous()


def edges(data, edge_type):
    return data.edge_index if edge_type is None else data[edge_type].edge_index


def parts(batch, edge_type):
    """What holds the fields of links, sources and destinations."""
    if edge_type is None:
        return batch, batch, batch
    return batch[edge_type], batch[edge_type[0]], batch[edge_type[-1]]


def ids(batch, edge_type):
    """All that was drawn for a batch, in plain numbers."""
    link, src, dst = parts(batch, edge_type)
    names = ("edge_label_index", "edge_label", "edge_label_time", "src_index", "dst_pos_index", "dst_neg_index")
    labels = [plain(store[name]) for store in (link, src, dst) for name in names if name in store]
    return src.n_id.tolist(), dst.n_id.tolist(), link.e_id.tolist(), link.input_id.tolist(), labels


def loader_of(data, edge_type, **options):
    options = {"edge_label_index": edge_type, "batch_size": 32, "seed": 5, **options}
    return LinkNeighborLoader(data, [3, 2], **options)


@pytest.mark.parametrize("edge_type", TYPES, ids=str)
@pytest.mark.parametrize("negatives", NEGATIVES, ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches(edge_type, negatives, workers):
    data = graph_of(edge_type)
    loader = loader_of(data, edge_type, neg_sampling=negatives, num_workers=workers, exclude_seed_edges=True)
    links, seen = edges(data, edge_type), 0
    assert len(loader) == -(-links.size(1) // 32)
    for batch in loader:
        link, src, dst = parts(batch, edge_type)
        assert torch.equal(src.x, node_rows(src.n_id))
        assert torch.equal(dst.x, node_rows(dst.n_id))
        sampled = torch.stack([src.n_id[link.edge_index[0]], dst.n_id[link.edge_index[1]]])
        assert torch.equal(sampled, links[:, link.e_id])
        if edge_type is None:
            assert torch.equal(batch.edge_attr, edge_rows(batch.e_id))
        count = len(link.input_id)
        if negatives is None or negatives.is_binary():
            found = torch.stack([src.n_id[link.edge_label_index[0]], dst.n_id[link.edge_label_index[1]]])[:, :count]
            assert "edge_label_time" not in link
            if negatives is not None:
                assert link.edge_label.tolist() == [1.0] * count + [0.0] * -(-3 * count // 2)
        else:
            found = torch.stack([src.n_id[src.src_index], dst.n_id[dst.dst_pos_index]])
            assert dst.dst_neg_index.shape == (count, 2)
        assert torch.equal(found, links[:, link.input_id])
        assert not pairs_of(found) & pairs_of(sampled)
        seen += count
    assert seen == links.size(1)


@pytest.mark.parametrize("edge_type", TYPES, ids=str)
@pytest.mark.parametrize("negatives", NEGATIVES[1:], ids=str)
@pytest.mark.parametrize("temporal", [False, True])
def test_fields_and_their_order_are_those_of_pyg(edge_type, negatives, temporal):
    data = graph_of(edge_type)
    options = {"edge_label_index": edge_type, "batch_size": 32, "neg_sampling": negatives}
    if temporal:
        options |= {"edge_label_time": times_of(edges(data, edge_type).size(1), 1), "time_attr": "time"}
    ours = next(iter(LinkNeighborLoader(data, [3, 2], **options)))
    link_loader = torch_geometric.loader.LinkLoader
    sampler = NeighborSampler(data, [3, 2], time_attr="time" if temporal else None)
    theirs = next(iter(link_loader(data, sampler, **{k: v for k, v in options.items() if k != "time_attr"})))
    stores = [(batch.stores if edge_type is not None else [batch._store]) for batch in (ours, theirs)]
    for found, expected in zip(*stores, strict=True):
        assert found._key == expected._key
        for store in (found, expected):
            store.pop("num_sampled_edges", None)
        assert {key: getattr(found[key], "dtype", None) for key in found} == {
            key: getattr(expected[key], "dtype", None) for key in expected
        }
        assert sorted(found.keys()) == sorted(expected.keys())


@pytest.mark.parametrize("edge_type", TYPES, ids=str)
@pytest.mark.parametrize("negatives", NEGATIVES[1:], ids=str)
@pytest.mark.parametrize("temporal", [False, True])
def test_workers_and_prefetch_do_not_matter(edge_type, negatives, temporal):
    data = graph_of(edge_type)
    links = edges(data, edge_type)
    weights = [torch.rand(len(parts(data, edge_type)[end].x)) + 0.1 for end in (1, 2)]
    options = {"neg_sampling": copy.copy(negatives), "shuffle": True, "exclude_seed_edges": True}
    options["neg_sampling"].src_weight, options["neg_sampling"].dst_weight = weights
    if temporal:
        options |= {"edge_label_time": times_of(links.size(1), 1) + 3, "time_attr": "time"}
    else:
        options |= {"strict_negatives": True}
    expected = [[ids(batch, edge_type) for batch in epoch] for epoch in [loader_of(data, edge_type, **options)] * 2]
    assert expected[0] != expected[1]
    for other in ({"prefetch": 0}, {"prefetch": 2}, {"num_workers": 2}, {"num_workers": 1, "filter_per_worker": False}):
        loader = loader_of(data, edge_type, **options, **other)
        assert [[ids(batch, edge_type) for batch in epoch] for epoch in [loader] * 2] == expected


def test_workers_that_are_spawned():
    data = homogeneous()
    options = {
        "neg_sampling": NegativeSampling("binary", 1, torch.rand(60)),
        "strict_negatives": True,
        "batch_size": 100,
    }
    expected = [ids(batch, None) for batch in loader_of(data, None, **options)]
    loader = loader_of(data, None, num_workers=1, multiprocessing_context="spawn", **options)
    assert [ids(batch, None) for batch in loader] == expected


@pytest.mark.parametrize("edge_type", [None, RATES], ids=str)
@pytest.mark.parametrize(("workers", "then"), [(0, 0), (0, 2), (2, 0)])
def test_resume(edge_type, workers, then):
    data = graph_of(edge_type)
    options = {"neg_sampling": "binary", "shuffle": True, "strict_negatives": True}
    whole = loader_of(data, edge_type, **options)
    expected = [[ids(batch, edge_type) for batch in whole] for _ in range(3)]
    first = loader_of(data, edge_type, num_workers=workers, **options)
    list(first)
    iterator = iter(first)
    found = [ids(next(iterator), edge_type) for _ in range(3)]
    state = json.loads(json.dumps(first.state_dict()))
    assert (state["epoch"], state["batch"], state["negatives"]) == (1, 3, ["binary", 1])
    second = loader_of(data, edge_type, num_workers=then, **{**options, "seed": 99})
    second.load_state_dict(state)
    assert found + [ids(batch, edge_type) for batch in second] == expected[1]
    assert [ids(batch, edge_type) for batch in second] == expected[2]
    for other in ({"neg_sampling": "triplet"}, {"strict_negatives": False}, {"exclude_seed_edges": True}):
        with pytest.raises(ValueError, match=r"^state: expected a loader with (negatives|strict|exclude)"):
            loader_of(data, edge_type, **{**options, **other}).load_state_dict(state)


@pytest.mark.parametrize("edge_type", [None, RATES], ids=str)
def test_called_with_positions(edge_type):
    data = graph_of(edge_type)
    loader = loader_of(data, edge_type, neg_sampling="binary")
    once, again, other = loader([3, 5, 8]), loader(torch.tensor([3, 5, 8])), loader([3, 5, 9])
    assert ids(once, edge_type) == ids(again, edge_type) != ids(other, edge_type)
    assert parts(once, edge_type)[0].input_id.tolist() == [3, 5, 8]


# Arguments ###########################################################################################################


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

    class Foreign(torch_geometric.sampler.BaseSampler):
        edge_permutation = None

        def sample_from_nodes(self, inputs):
            raise AssertionError

        def sample_from_edges(self, inputs, neg_sampling=None):
            out = sampler.sample_from_edges(inputs, neg_sampling, key=1)
            return torch_geometric.sampler.SamplerOutput(out.node, out.row, out.col, out.edge, metadata=out.metadata)

    with pytest.warns(UserWarning, match="prefetch=4 has no effect: Foreign may keep state"):
        foreign = loader_of(data, None, neighbor_sampler=Foreign(), neg_sampling="binary")
    batches = list(foreign)
    assert len(batches) == 10
    assert all(torch.equal(batch.x, node_rows(batch.n_id)) for batch in batches)


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


def test_pickled():
    loader = loader_of(homogeneous(), None, neg_sampling="binary", strict_negatives=True)
    again = pickle.loads(pickle.dumps(loader))
    assert [ids(batch, None) for batch in again] == [ids(batch, None) for batch in loader]


# What is refused #####################################################################################################


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"edge_label_index": torch.tensor([[0, 1], [2, 60]])},
            IndexError, "edge_label_index[1, 1] = 60 is out of range: expected nodes in [0, 60)",
        ),
        (
            {"data": heterogeneous(), "edge_label_index": (RATES, torch.tensor([[0, 40], [2, 6]]))},
            IndexError, "edge_label_index[0, 1] = 40 is out of range: expected nodes of 'user' in [0, 40)",
        ),
        (
            {"edge_label_index": torch.zeros(3, 4).long()},
            ValueError, "edge_label_index: expected shape (2, num_links), found (3, 4)",
        ),
        (
            {"edge_label_index": torch.zeros(2, 4)},
            TypeError, "edge_label_index: expected integers, found torch.float32",
        ),
        (
            {"edge_label_index": [[0, 1], [2, 3]]},
            TypeError, "edge_label_index: expected links, an edge type, or a pair of one and of links, found list",
        ),
        (
            {"edge_label_index": RATES},
            ValueError, f"edge_label_index: expected links of a graph without edge types, found type {RATES}",
        ),
        (
            {"data": heterogeneous()},
            ValueError, "edge_label_index: expected an edge type, or a pair of one and of links, found neither",
        ),
        (
            {"data": heterogeneous(), "edge_label_index": ("user", "buys", "item")},
            ValueError, "edge_label_index: expected an edge type of [",
        ),
        ({"edge_label": torch.ones(4)}, ValueError, "edge_label: expected one for each of 300 links, found 4"),
        (
            {"edge_label_time": torch.ones(4).long(), "time_attr": "time"},
            ValueError, "edge_label_time: expected one for each of 300 links, found 4",
        ),
        (
            {"time_attr": "time"},
            ValueError, "'edge_label_time' is not set while 'time_attr' is set: expected both for temporal sampling",
        ),
        (
            {"edge_label_time": torch.ones(300).long()},
            ValueError, "'edge_label_time' is set while 'time_attr' is not set",
        ),
        (
            {"neighbor_sampler": NeighborSampler(homogeneous(), [2]), "strict_negatives": True},
            ValueError, "exclude_seed_edges, strict_negatives: expected none beside a neighbor_sampler",
        ),
        (
            {"neg_sampling": NegativeSampling("binary", 1, torch.ones(7))},
            ValueError, "neg_sampling: src_weight: weight: expected shape (60,), found (7,)",
        ),
        (
            {"neg_sampling": NegativeSampling("triplet"), "edge_label": torch.ones(300)},
            ValueError, "'edge_label' needs to be undefined",
        ),
        ({"exclude_seed_edges": 1}, ValueError, "exclude_seed_edges: expected False, True or 'reverse', found 1"),
        ({"prefetch": -1}, ValueError, "prefetch: expected at least 0, found -1"),
        ({"batch_size": None}, ValueError, "batch_size: expected a number of seeds, found None"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error) as caught:
        LinkNeighborLoader(**{"data": homogeneous(), "num_neighbors": [2], "batch_size": 8, **arguments})
    assert message in str(caught.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_link_without_a_negative_is_named(workers):
    data = homogeneous()
    time = times_of(300, 1).index_fill(0, torch.tensor([7]), -1)
    loader = loader_of(data, None, edge_label_time=time, time_attr="time", neg_sampling="binary", num_workers=workers)
    with pytest.raises(ValueError, match="negative 7: expected a link of nodes not later than -1, found none"):
        list(loader)


def test_reverses_that_are_not_there():
    data = HeteroData({"a": {"num_nodes": 3}, "b": {"num_nodes": 3}})
    data["a", "to", "b"].edge_index = torch.arange(3).expand(2, 3)
    with pytest.raises(
        ValueError, match=r"^exclude_seed_edges='reverse': expected an edge type of the reverse edges of"
    ):
        LinkNeighborLoader(data, [2], ("a", "to", "b"), exclude_seed_edges="reverse")
