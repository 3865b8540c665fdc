import copy
import importlib.util
import re
import warnings

import numpy as np
import pytest
import torch
import torch_geometric.loader
from helpers.boundary import ENDS, boundary_graph
from helpers.data import (
    ForeignFeatureStore,
    ForeignGraphStore,
    check_batch,
    edge_rows,
    edges_of,
    fields,
    make_data,
    node_rows,
    our_stores,
    plain,
    processes,
)
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import k_hop_subgraph

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, NeighborSampler

I64, F64 = torch.int64, torch.float64
TAIL = [
    ("n_id", (I64, 1)),
    ("e_id", (I64, 1)),
    ("num_sampled_nodes", "list"),
    ("num_sampled_edges", "list"),
    ("input_id", (I64, 1)),
    ("batch_size", "int"),
]
"""The fields that PyG's NeighborLoader adds, in its order; it drops those that are None."""


def importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


PYG_COUNTS = importable("pyg_lib")
"""PyG's loader counts what it samples in each hop with pyg-lib only."""
PYG_LOADER = PYG_COUNTS or importable("torch_sparse")


def as_pyg_gives(listed):
    """A listing of a batch's fields, less those that the installed peer cannot give."""
    return [field for field in listed if PYG_COUNTS or field[0] not in ("num_sampled_nodes", "num_sampled_edges")]


def foreign_stores(data, layout="coo"):
    features, graph = ForeignFeatureStore(), ForeignGraphStore()
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    features.put_tensor(data.y, group_name=None, attr_name="y", index=None)
    size = (data.num_nodes, data.num_nodes)
    in_order = bool((data.edge_index[1].diff() >= 0).all())
    graph.put_edge_index(tuple(data.edge_index), None, layout, is_sorted=in_order, size=size)
    return features, graph


def mixed_stores(data):
    return FeatureStore.from_data(data), foreign_stores(data)[1]


def mixed_stores_too(data):
    return foreign_stores(data)[0], GraphStore.from_data(data)


SOURCES = {
    "Data": lambda data: data,
    "our stores": our_stores,
    "foreign stores": foreign_stores,
    "our features": mixed_stores,
    "our graph": mixed_stores_too,
    "Data and our graph": lambda data: (data, GraphStore.from_data(data)),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("fanouts", [[3, 2], [-1], [2, -1, 3], [0, 2], []], ids=str)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_are_neighborhoods(source, fanouts, prefetch):
    data = boundary_graph()
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    seeds = torch.cat([ENDS, order[~torch.isin(order, ENDS)]])[:65]  # a last batch of one
    loader = NeighborLoader(
        SOURCES[source](data), fanouts, seeds, batch_size=32, prefetch=prefetch, seed=5, shuffle=False
    )
    batches = list(loader)
    assert len(batches) == len(loader) == 3
    for batch, part in zip(batches, seeds.split(32), strict=True):
        check_batch(data, batch, part, fanouts)
        assert torch.equal(batch.y, data.y[batch.n_id])
        assert ("edge_attr" in batch) == (source in ("Data", "our stores", "our features"))


def sorted_data():
    """Edges by destination, because PyG's conversion of a foreign graph does not keep the order of others."""
    data = make_data()
    data.edge_index = data.edge_index[:, data.edge_index[1].sort(stable=True).indices]
    return data


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_sample(source):
    data = sorted_data()
    seeds = torch.arange(0, 200, 3)
    loaders = [NeighborLoader(s(data), [4, 4], seeds, batch_size=16, seed=2) for s in (SOURCES[source], our_stores)]
    for found, expected in zip(*loaders, strict=True):
        assert torch.equal(found.n_id, expected.n_id)
        assert torch.equal(found.edge_index, expected.edge_index)
        assert torch.equal(found.e_id, expected.e_id)


def rich_data():
    data = make_data()
    data.name, data.scale, data.classes, data.tags = "graph", 2.5, 5, ["a", "b"]
    data.train_mask = torch.arange(200) % 2 == 0
    data.numbers = np.arange(200)
    data.constants = torch.zeros(7)
    data.edge_time = torch.arange(1500)
    data.time = torch.arange(200)
    return data


RICH = [
    ("x", (F64, 2)),
    ("edge_index", (I64, 2)),
    ("edge_attr", (F64, 2)),
    ("y", (I64, 1)),
    ("name", "str"),
    ("scale", "float"),
    ("classes", "int"),
    ("tags", "list"),
    ("train_mask", (torch.bool, 1)),
    ("numbers", (I64, 1)),
    ("constants", (torch.float32, 1)),
    ("edge_time", (I64, 1)),
    ("time", (I64, 1)),
    *TAIL,
]


def no_features():
    return Data(edge_index=edges_of(200, 1500), num_nodes=200)


def own_ids():
    data = no_features()
    data.e_id, data.n_id = torch.arange(1500) + 5000, torch.arange(200) + 7000
    return data


FIELDS = {
    "Data": (rich_data, RICH),
    "no features": (no_features, [("edge_index", (I64, 2)), ("num_nodes", "int"), *TAIL]),
    "ids of the user's": (
        own_ids,
        [("edge_index", (I64, 2)), ("num_nodes", "int"), ("e_id", (I64, 1)), ("n_id", (I64, 1)), *TAIL[2:]],
    ),
    "our stores": (
        lambda: (FeatureStore.from_data(Data(x=make_data().x, y=make_data().y)), GraphStore.from_data(make_data())),
        [("edge_index", (I64, 2)), ("num_nodes", "int"), ("x", (F64, 2)), ("y", (I64, 1)), *TAIL],
    ),
    "foreign stores": (
        lambda: foreign_stores(make_data()),
        [("edge_index", (I64, 2)), ("num_nodes", "int"), ("x", (F64, 2)), ("y", (I64, 1)), *TAIL],
    ),
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields_types_and_order_are_those_of_pyg(name):
    make, expected = FIELDS[name]
    arguments = {"num_neighbors": [2, 2], "input_nodes": torch.tensor([9, 4, 7]), "batch_size": 2}
    found = next(iter(NeighborLoader(make(), **arguments)))
    assert fields(found) == expected
    assert [type(value) for value in found.num_sampled_nodes + found.num_sampled_edges] == [int] * 5
    if PYG_LOADER:
        theirs = next(iter(torch_geometric.loader.NeighborLoader(make(), **arguments)))
        assert fields(theirs) == as_pyg_gives(expected)
        assert type(found) is type(theirs)
        if PYG_COUNTS:
            assert [type(v) for v in theirs.num_sampled_nodes + theirs.num_sampled_edges] == [int] * 5


def test_values_of_other_attributes():
    data = rich_data()
    batch = next(iter(NeighborLoader(data, [2, 2], torch.tensor([9, 4, 7]), batch_size=3)))
    assert (batch.name, batch.scale, batch.classes, batch.tags) == ("graph", 2.5, 5, ["a", "b"])
    assert torch.equal(batch.numbers, batch.n_id)
    assert torch.equal(batch.time, batch.n_id)
    assert torch.equal(batch.edge_time, batch.e_id)
    assert torch.equal(batch.train_mask, batch.n_id % 2 == 0)
    assert torch.equal(batch.constants, data.constants)
    assert batch.batch is None
    assert "seed_time" not in batch
    own = next(iter(NeighborLoader(own_ids(), [2], torch.tensor([9]))))
    assert own.n_id[0] == 7009


def test_attributes_of_edges_along_another_dimension():
    data = make_data()
    data.edge_pair_index = torch.stack([torch.arange(data.num_edges), 2 * torch.arange(data.num_edges)])  # PyG: dim -1
    for batch in NeighborLoader(data, [3, 2], batch_size=20):
        assert torch.equal(batch.edge_pair_index, torch.stack([batch.e_id, 2 * batch.e_id]))


class Labelled(torch.Tensor):
    pass


@pytest.mark.parametrize("num_workers", [0, 1])
def test_subclasses_of_tensors_stay_what_they_are(num_workers):
    data = make_data()
    data.index = Index(torch.arange(200), dim_size=200)
    data.labelled = torch.arange(200).as_subclass(Labelled)
    data.weight = torch.nn.Parameter(data.x.clone())
    loader = NeighborLoader(data, [2, 2], torch.arange(9), batch_size=3, **processes(num_workers),
                            filter_per_worker=False)  # fmt: skip
    batch = next(iter(loader))
    assert type(batch.index) is Index
    assert batch.index.dim_size == 200
    assert torch.equal(batch.index.as_tensor(), batch.n_id)
    assert type(batch.labelled) is Labelled
    assert torch.equal(batch.labelled.as_subclass(torch.Tensor), batch.n_id)
    assert torch.equal(batch.weight, batch.x)
    assert batch.weight.requires_grad


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_all_neighbors_are_the_k_hop_subgraph(hops):
    data = make_data(400, 700)
    seeds = torch.tensor([5, 17, 350])
    batch = next(iter(NeighborLoader(data, [-1] * hops, seeds, batch_size=3)))
    nodes, _, _, _ = k_hop_subgraph(seeds, hops, data.edge_index, num_nodes=400)
    assert torch.equal(batch.n_id.sort().values, nodes)
    inner, _, _, _ = k_hop_subgraph(seeds, hops - 1, data.edge_index, num_nodes=400)
    expected = torch.isin(data.edge_index[1], inner).nonzero().view(-1)
    assert torch.equal(batch.e_id.sort().values, expected)
    if PYG_LOADER:
        given = sorted_data()
        ours, theirs = (
            next(iter(cls(given, [-1] * hops, seeds.clamp(max=199), batch_size=3, is_sorted=True)))
            for cls in (NeighborLoader, torch_geometric.loader.NeighborLoader)
        )
        assert as_pyg_gives(plain(ours)) == plain(theirs)


def test_repeated_seeds():
    data = make_data()
    seeds = torch.tensor([9, 4, 9, 9, 7])
    batch = next(iter(NeighborLoader(data, [3, 3], seeds, batch_size=5, seed=0)))
    assert torch.equal(batch.n_id[:5], seeds)
    assert torch.equal(batch.x, node_rows(batch.n_id))
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert batch.batch_size == 5
    of = [batch.e_id[batch.edge_index[1] == position].tolist() for position in (0, 2, 3)]
    assert of[0] == of[1] == of[2]
    assert batch.n_id[5:].unique().numel() == batch.n_id[5:].numel()


# Layouts of the edges ################################################################################################


@pytest.mark.parametrize("layout", ["coo", "EdgeIndex", "sparse_csr", "SparseTensor"])
@pytest.mark.parametrize("source", SOURCES)
def test_edge_layouts_hold_the_same_edges(layout, source):
    if layout == "SparseTensor":
        pytest.importorskip("torch_sparse")
    data = sorted_data()
    arguments = {"num_neighbors": [3, 3], "input_nodes": torch.arange(40), "batch_size": 16, "seed": 3}
    plain_batches = NeighborLoader(data, **arguments)
    for batch, expected in zip(
        NeighborLoader(SOURCES[source](data), **arguments, edge_layout=layout), plain_batches, strict=True
    ):
        n = expected.num_nodes
        assert ("adj_t" in batch, "edge_index" in batch) == (
            layout not in ("coo", "EdgeIndex"),
            layout in ("coo", "EdgeIndex"),
        )
        if layout == "coo":
            assert type(batch.edge_index) is torch.Tensor
            found = batch.edge_index
        elif layout == "EdgeIndex":
            assert isinstance(batch.edge_index, EdgeIndex)
            batch.edge_index.validate()
            assert batch.edge_index.sparse_size() == (n, n)
            assert batch.edge_index.is_sorted_by_col
            (colptr, row), _ = batch.edge_index.get_csc()
            found = torch.stack([row, torch.repeat_interleave(colptr.diff())])
            assert colptr.numel() == n + 1
        elif layout == "sparse_csr":
            assert batch.adj_t.shape == (n, n)
            found = torch.stack([batch.adj_t.col_indices(), torch.repeat_interleave(batch.adj_t.crow_indices().diff())])
        else:
            assert batch.adj_t.sparse_sizes() == (n, n)
            row, col, _ = batch.adj_t.coo()
            found = torch.stack([col, row])
        if layout == "SparseTensor":  # sorted by source within a destination
            found, wanted = (edges[:, np.lexsort(edges.numpy())] for edges in (found, expected.edge_index))
            assert torch.equal(found, wanted)
        else:
            assert torch.equal(found, expected.edge_index)
        assert torch.equal(batch.n_id, expected.n_id)


@pytest.mark.parametrize("hetero", [False, True])
def test_data_with_edge_index_and_adj_t_gives_both(hetero):
    plain = sorted_data()
    data = HeteroData() if hetero else plain.clone()
    store = data["a", "to", "a"] if hetero else data
    if hetero:
        data["a"].x, store.edge_index, store.edge_attr = plain.x, plain.edge_index, plain.edge_attr
    values = torch.arange(1.0, plain.num_edges + 1)
    colptr = torch._convert_indices_from_coo_to_csr(plain.edge_index[1], 200)
    store.adj_t = torch.sparse_csr_tensor(colptr, plain.edge_index[0], values, (200, 200))
    options = {"num_neighbors": [3, 2], "input_nodes": "a" if hetero else None, "batch_size": 50, "seed": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        loader = NeighborLoader(data, **options)
    for batch, expected in zip(loader, NeighborLoader(data, **options, edge_layout="coo"), strict=True):
        found, wanted = (b["a", "to", "a"] if hetero else b for b in (batch, expected))
        assert [key for key in found.to_dict() if key != "adj_t"] == [*wanted.to_dict()]
        assert torch.equal(found.edge_index, wanted.edge_index)
        dst = torch.repeat_interleave(found.adj_t.crow_indices().diff())
        assert torch.equal(torch.stack([found.adj_t.col_indices(), dst]), wanted.edge_index)
        assert torch.equal(found.adj_t.values(), values[found.e_id])
        assert torch.equal(found.edge_attr, edge_rows(found.e_id))
    store.edge_index = store.edge_index.flip(1)
    name = "adj_t of ('a', 'to', 'a')" if hetero else "adj_t"
    with pytest.warns(UserWarning, match=f"^{re.escape(name)} and edge_index are not the same edges in the same order"):
        NeighborLoader(data, **options)


def test_weights_of_data_with_edge_index_and_adj_t():
    data = sorted_data()
    colptr = torch._convert_indices_from_coo_to_csr(data.edge_index[1], 200)
    both = data.clone()
    both.adj_t = torch.sparse_csr_tensor(colptr, data.edge_index[0], torch.ones(data.num_edges), (200, 200))
    options = {"num_neighbors": [12, 9], "method": "ladies", "batch_size": 50, "seed": 1}
    for found, expected in zip(NeighborLoader(both, **options), NeighborLoader(data, **options), strict=True):
        assert torch.equal(found.edge_index, expected.edge_index)
        assert torch.equal(found.edge_weight, expected.edge_weight)
        assert torch.equal(found.adj_t.values(), expected.edge_weight)


def test_data_with_a_sparse_tensor():
    sparse = pytest.importorskip("torch_sparse")
    data = make_data()
    adj_t = sparse.SparseTensor(
        row=data.edge_index[1], col=data.edge_index[0], value=torch.arange(1500), sparse_sizes=(200, 200)
    )
    given = Data(x=data.x, adj_t=adj_t)
    batch = next(iter(NeighborLoader(given, [-1, -1], torch.arange(20), batch_size=20)))
    theirs = next(iter(torch_geometric.loader.NeighborLoader(given, [-1, -1], torch.arange(20), batch_size=20)))
    assert as_pyg_gives(plain(batch)) == plain(theirs)
    row, col, value = batch.adj_t.coo()
    assert torch.equal(data.edge_index[:, value], batch.n_id[torch.stack([col, row])])


def test_copies_of_a_batch_have_attributes_of_their_own():
    batch = next(iter(NeighborLoader(make_data(), [3], batch_size=20)))
    copied = copy.deepcopy(batch)
    batch.added, copied.added = torch.zeros(batch.num_edges), torch.zeros(batch.num_nodes)
    assert copied.is_node_attr("added")
    assert not batch.is_node_attr("added")


def test_original_edges_of_bidirectional_samples_are_kept():
    data = make_data()
    sampler = NeighborSampler(data, [2, 2], "bidirectional")
    sampler.keep_orig_edges = True
    options = {"batch_size": 20, "seed": 1}
    both = next(iter(NeighborLoader(data, [2, 2], neighbor_sampler=sampler, **options)))
    drawn = next(iter(NeighborLoader(data, [2, 2], **options)))
    assert torch.equal(both._orig_edge_index, drawn.edge_index)
