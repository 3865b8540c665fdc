"""Attributes of a Data that are no plain rows of nodes or edges: batches have their entries, or a warning says so."""

import os
import re
import warnings

import numpy as np
import pytest
import torch
from helpers.data import make_data, plain
from helpers.warn import recorded
from torch_geometric.data import Batch, Data, HeteroData

from torch_gnnscale import FeatureStore, LinkNeighborLoader, NeighborLoader, TieredFeatureStore


def small() -> Data:
    """60 nodes and 200 edges."""
    return make_data(num_nodes=60, num_edges=200)


def typed(data: Data) -> HeteroData:
    """The same graph with one type of nodes and one of edges."""
    hetero = HeteroData()
    for name, value in data.to_dict().items():
        of_edges = data.is_edge_attr(name) or name.startswith("edge")
        (hetero["a", "to", "a"] if of_edges else hetero["a"])[name] = value
    hetero["a"].num_nodes = data.num_nodes
    return hetero


def batch_of(data, **options):
    nodes = ("a", torch.arange(9, 14)) if isinstance(data, HeteroData) else torch.arange(9, 14)
    return next(iter(NeighborLoader(data, [3, 2], nodes, batch_size=5, seed=1, **options)))


WRONG = {
    "x": torch.zeros(50, 2),
    "y": torch.zeros(59),
    "pos": np.zeros((61, 3)),
    "feat": [0.0] * 50,
    "train_mask": torch.zeros(50, dtype=torch.bool),
    "edge_attr": torch.zeros(199, 4),
    "edge_weight": np.zeros(201),
    "edge_type": torch.zeros(7),
}


@pytest.mark.parametrize("hetero", [False, True])
@pytest.mark.parametrize("name", list(WRONG))
def test_attributes_of_a_wrong_length_are_named_once(name, hetero):
    data = small()
    data.num_nodes, value = 60, WRONG[name]
    data[name] = value
    of_edges = name.startswith("edge")
    beside, label = "60 nodes and 200 edges", f"data.{name}"
    if hetero:
        data = typed(data)
        beside = "200 edges" if of_edges else "60 nodes"
        label = f"data[{('a', 'to', 'a') if of_edges else 'a'!r}].{name}"
    message = f"{label} has {len(value)} rows beside {beside}"
    with recorded() as caught:
        loader = NeighborLoader(data, [3, 2], "a" if hetero else None, batch_size=20)
        for batch in loader:
            assert len((batch[("a", "to", "a") if of_edges else "a"] if hetero else batch)[name]) == len(value)
    assert [str(found.message) for found in caught] == [f"{message}: each batch has all of it"]
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}: it is not in the store$"):
        FeatureStore.from_data(data)


def test_attributes_of_the_graph_are_not_warned_of():
    data = small()
    data.y, data.name, data.classes, data.scalar = torch.tensor([3]), "a graph", ["a", "b"], torch.tensor(1.0)
    data.table, data.none, data.num_classes = torch.zeros(7, 3), None, 4
    graphs = Batch.from_data_list([Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, y=torch.tensor([1]))] * 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        batch = batch_of(data)
        NeighborLoader(graphs, [2])
        FeatureStore.from_data(data)
    assert (batch.name, batch.classes, batch.num_classes) == ("a graph", ["a", "b"], 4)


@pytest.mark.parametrize("hetero", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_lists_and_arrays_have_the_entries_of_nodes_and_edges(hetero, workers):
    data = small()
    words, days = [f"node {i}" for i in range(60)], np.arange(60).astype("datetime64[D]")
    data.text, data.pair, data.title, data.day = words, tuple(range(60)), np.array(words), days
    data.edge_text = [f"edge {i}" for i in range(200)]
    data = typed(data) if hetero else data
    options = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        batch = batch_of(data, **options)
    nodes, edges = (batch["a"], batch["a", "to", "a"]) if hetero else (batch, batch)
    ids = nodes.n_id.tolist()
    assert nodes.text == [words[i] for i in ids]
    assert nodes.pair == ids
    assert nodes.title.tolist() == [words[i] for i in ids]
    assert (nodes.day == days[ids]).all()
    assert edges.edge_text == [f"edge {i}" for i in edges.e_id.tolist()]


def test_stores_name_the_lists_that_they_leave_out():
    data = small()
    data.text, data.title, data.of_index = ["?"] * 60, np.array(["?"] * 60), torch.zeros(2, 60)
    with recorded() as caught:
        FeatureStore.from_data(data)
    assert [str(found.message) for found in caught] == [
        "data.text has an entry of a list for each node or edge: it is not in the store",
        "data.title has an entry of a ndarray for each node or edge: it is not in the store",
        "data.of_index has a column for each node or edge: it is not in the store",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        TieredFeatureStore.from_data(data, names=["x"], labelled=torch.arange(5)).close()


def test_tables_that_are_no_tensors_are_named():
    class Table:
        shape = (60, 2)

    data = small()
    data.year, data.x = Table(), Table()
    data.num_nodes = 60
    with recorded() as caught:
        NeighborLoader(data, [2])
    found = "60 rows of a Table, which is no tensor, beside 60 nodes and 200 edges: each batch has all of it"
    assert {str(w.message) for w in caught} == {f"data.{name} has {found}" for name in ("year", "x")}


# Edges and layouts ####################################################################################################


@pytest.mark.parametrize("hetero", [False, True])
@pytest.mark.parametrize("options", [{}, {"edge_layout": "EdgeIndex"}, {"layers": True}], ids=str)
def test_edges_in_an_array(hetero, options):
    expected = small()
    data = expected.clone()
    data.edge_index = data.edge_index.numpy()
    wanted, found = (batch_of(typed(of) if hetero else of, **options) for of in (expected, data))
    assert plain(found) == plain(wanted)


@pytest.mark.parametrize("form", [lambda edges: edges.numpy(), lambda edges: edges])
def test_links_of_edges_in_an_array(form):
    data = small()
    expected = next(iter(LinkNeighborLoader(data, [2], batch_size=9, seed=1)))
    data.edge_index = form(data.edge_index)
    assert plain(next(iter(LinkNeighborLoader(data, [2], batch_size=9, seed=1)))) == plain(expected)


def test_edges_in_a_list_are_refused():
    data = small()
    data.edge_index = data.edge_index.tolist()
    message = "data.edge_index: expected a tensor or an array, found a list; use torch.tensor(...)"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        NeighborLoader(data, [2])


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr])
@pytest.mark.parametrize("name", ["x", "edge_attr"])
def test_sparse_attributes_without_rows_are_refused(name, layout):
    data = small()
    blocks = {"blocksize": (2, 2)} if layout == torch.sparse_bsr else {}
    value = torch.eye(60 if name == "x" else 200).to_sparse(layout=layout, **blocks)
    data[name], data.num_nodes = value, 60
    rest = f"expected torch.strided or torch.sparse_coo, of which rows are taken, found {layout}"
    with pytest.raises(TypeError, match=f"^{re.escape(f'data.{name}: {rest}')}$"):
        NeighborLoader(data, [2])
    store = FeatureStore()
    with pytest.raises(TypeError, match=re.escape(rest)):
        store.put_tensor(value, group_name=None, attr_name=name, index=None)


def test_sparse_attributes_have_rows():
    data = small()
    dense = torch.eye(60)
    data.x = dense.to_sparse()
    batch = batch_of(data)
    assert torch.equal(batch.x.to_dense(), dense[batch.n_id])


@pytest.mark.parametrize("hetero", [False, True])
def test_an_adjacency_matrix_beside_the_edges_is_warned_of(hetero):
    data = typed(small()) if hetero else small()
    (data["a", "to", "a"] if hetero else data).adj = torch.eye(60).to_sparse()
    with pytest.warns(UserWarning, match=r"adj has 60 rows beside .*: each batch has all of it$"):
        batch_of(data)


@pytest.mark.parametrize("hetero", [False, True])
def test_a_number_of_edges_is_that_of_the_batch(hetero):
    data = typed(small()) if hetero else small()
    (data["a", "to", "a"] if hetero else data).num_edges = 200
    batch = batch_of(data)
    found = batch["a", "to", "a"] if hetero else batch
    assert found.num_edges == found.edge_index.size(1) < 200


def test_a_type_without_attributes_is_not_warned_of():
    data = typed(small())
    data["b"].x = torch.zeros(3, 1)
    del data["b"].x
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        batch_of(data)


def test_links_in_two_tensors_are_refused():
    data = small()
    rest = "expected links in a tensor of shape (2, num_links), found a tuple of tensors; use torch.stack"
    message = f"edge_label_index: {rest}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        LinkNeighborLoader(data, [2], edge_label_index=(data.edge_index[0], data.edge_index[1]))


# PyG's contexts of worker processes ###################################################################################


@pytest.mark.parametrize(
    ("name", "arguments"), [("enable_cpu_affinity", [[0]]), ("enable_multithreading", [1]), ("enable_memory_log", [])]
)
@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}], ids=str)
def test_contexts_of_worker_processes_warn_where_there_are_none(name, arguments, workers):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that num_workers are threads
        loader = NeighborLoader(small(), [2], batch_size=30, **workers)
    message = (
        f"{name} has no effect: threads prepare the batches, on the cores of this process; for worker processes "
        f"pass num_workers and multiprocessing_context='fork'"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$") as caught, getattr(loader, name)(*arguments):
        assert len(list(loader)) == 2
    assert caught[0].filename == __file__


@pytest.mark.slow
def test_cores_of_worker_processes():
    core = max(os.sched_getaffinity(0))

    def with_cores(out):
        out.metadata = (torch.tensor([*os.sched_getaffinity(0)]), None)
        return out

    loader = NeighborLoader(
        small(), [2], batch_size=30, num_workers=1, multiprocessing_context="fork", transform_sampler_output=with_cores
    )
    with loader.enable_cpu_affinity(loader_cores=[core]):
        assert [batch.input_id.tolist() for batch in loader] == [[core]] * 2
