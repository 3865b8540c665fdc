import inspect
import json
import re
import warnings

import numpy as np
import pytest
import torch
import torch_geometric.loader
from helpers.data import check_batch, double, edges_of, loader_of, node_rows, our_stores, plain, processes
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, NeighborSampler, ops

# Input nodes #########################################################################################################

PICKED = torch.tensor([19, 4, 7, 150])


@pytest.mark.parametrize(
    ("given", "seeds", "input_id"),
    [
        (None, torch.arange(200), torch.arange(200)),
        (PICKED, PICKED, torch.arange(4)),
        (PICKED.int(), PICKED, torch.arange(4)),
        (PICKED.to(torch.uint8), PICKED, torch.arange(4)),
        (torch.zeros(199, dtype=torch.uint8), torch.zeros(199).long(), torch.arange(199)),
        (torch.arange(200, dtype=torch.uint8), torch.arange(200), torch.arange(200)),
        (PICKED.to(torch.int16), PICKED, torch.arange(4)),
        (PICKED.numpy(), PICKED, torch.arange(4)),
        (PICKED.tolist(), PICKED, torch.arange(4)),
        (range(3), torch.arange(3), torch.arange(3)),
        ((torch.arange(200) % 3 == 0).numpy(), torch.arange(200)[::3], torch.arange(200)[::3]),
        ((torch.arange(200) % 3 == 0).tolist(), torch.arange(200)[::3], torch.arange(200)[::3]),
        (torch.arange(400)[::2] % 3 == 0, torch.arange(200)[::3], torch.arange(200)[::3]),
        (torch.arange(200)[::5], torch.arange(200)[::5], torch.arange(40)),
        (torch.tensor([7, 7, 3]), torch.tensor([7, 7, 3]), torch.arange(3)),
        (torch.empty(0, dtype=torch.int64), torch.empty(0), torch.empty(0)),
        (torch.zeros(200, dtype=torch.bool), torch.empty(0), torch.empty(0)),
    ],
    ids=[
        "None",
        "index",
        "int32",
        "uint8",
        "uint8 zeros",
        "uint8 of each node",
        "int16",
        "array",
        "list",
        "range",
        "mask array",
        "mask list",
        "mask",
        "strided",
        "repeated",
        "empty",
        "empty mask",
    ],
)
@pytest.mark.parametrize("cls", [NeighborLoader, torch_geometric.loader.NeighborLoader], ids=["ours", "pyg"])
def test_input_nodes(data, cls, given, seeds, input_id):
    if cls is not NeighborLoader:
        pytest.importorskip("pyg_lib")
    batches = list(cls(data, [3], given, batch_size=32))
    assert sum(batch.batch_size for batch in batches) == len(seeds)
    for batch, part, ids in zip(batches, seeds.split(32), input_id.split(32), strict=False):
        assert torch.equal(batch.input_id, ids)
        if cls is NeighborLoader:
            assert torch.equal(batch.n_id[: len(part)], part)
            assert torch.equal(batch.x, node_rows(batch.n_id))
            assert batch.n_id.dtype == torch.int64


def test_input_id(data):
    batch = next(iter(loader_of(data, input_nodes=PICKED, input_id=torch.tensor([70, 71, 72, 73]))))
    assert batch.input_id.tolist() == [70, 71, 72, 73]
    mask = torch.zeros(200, dtype=torch.bool)
    mask[PICKED] = True
    batch = next(iter(loader_of(data, input_nodes=mask, input_id=torch.tensor([70, 71, 72, 73]))))
    assert batch.input_id.tolist() == [70, 71, 72, 73]
    assert batch.n_id[:4].tolist() == sorted(PICKED.tolist())


@pytest.mark.parametrize("source", [lambda data: data, our_stores], ids=["data", "stores"])
def test_input_id_of_all_nodes(data, source):
    batches = list(NeighborLoader(source(data), [3], input_id=torch.arange(200) + 1000, batch_size=150))
    assert torch.equal(torch.cat([batch.input_id for batch in batches]), torch.arange(200) + 1000)


def test_input_id_follows_a_shuffle(data):
    nodes = torch.arange(100, 200)
    for batch in loader_of(data, input_nodes=nodes, shuffle=True):
        assert torch.equal(nodes[batch.input_id], batch.n_id[: batch.batch_size])


@pytest.mark.parametrize("nodes", [[200], [-1], [0, 5, 1 << 40]], ids=str)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_input_nodes_out_of_range(data, nodes, prefetch):
    at = len(nodes) - 1
    message = rf"^input_nodes\[{at}\] = {nodes[at]} is out of range: expected nodes in \[0, 200\)$"
    with pytest.raises(IndexError, match=message):
        list(loader_of(data, input_nodes=torch.tensor(nodes), prefetch=prefetch))


# DataLoader's arguments ##############################################################################################


@pytest.mark.parametrize("batch_size", [1, 7, 200, 1000])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_batch_sizes(data, batch_size, drop_last, shuffle, prefetch):
    nodes = torch.arange(150)
    loader = loader_of(data, [1], nodes, batch_size=batch_size, drop_last=drop_last, shuffle=shuffle,
                       prefetch=prefetch)  # fmt: skip
    batches = list(loader)
    sizes = [batch_size] * (150 // batch_size) + ([150 % batch_size] if 150 % batch_size and not drop_last else [])
    assert [batch.batch_size for batch in batches] == sizes
    assert len(loader) == len(sizes)
    seeds = torch.cat([nodes[:0], *(batch.n_id[: batch.batch_size] for batch in batches)])
    assert len(seeds.unique()) == len(seeds) == sum(sizes)
    assert seeds.tolist() == seeds.sort().values.tolist() or shuffle
    assert not (shuffle and len(seeds) > 1 and torch.equal(seeds, nodes[: len(seeds)]))


@pytest.mark.parametrize("prefetch", [0, 3])
def test_sampler(data, prefetch):
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))[:50].tolist()
    loader = loader_of(data, sampler=order, prefetch=prefetch)
    assert torch.cat([batch.n_id[: batch.batch_size] for batch in loader]).tolist() == order
    weighted = torch.utils.data.WeightedRandomSampler([0.0] * 199 + [1.0], 5)
    assert [batch.n_id[0] for batch in loader_of(data, sampler=weighted, batch_size=1)] == [199] * 5
    subset = torch.utils.data.SubsetRandomSampler([8, 3])
    batch = next(iter(loader_of(data, sampler=subset)))
    assert sorted(batch.n_id[:2].tolist()) == [3, 8]


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_batch_sampler(data, prefetch, num_workers):
    lists = [[3, 1], [7], [100, 5, 9]]
    loader = NeighborLoader(data, [2], batch_sampler=lists, prefetch=prefetch, seed=0, **processes(num_workers))
    assert len(loader) == 3
    assert [batch.n_id[: batch.batch_size].tolist() for batch in loader] == lists


def test_shuffle_beside_a_sampler(data):
    for name, value in (("sampler", [1]), ("batch_sampler", [[1]])):
        with pytest.raises(ValueError, match=r"^shuffle=True: expected neither sampler nor batch_sampler beside it$"):
            NeighborLoader(data, [2], shuffle=True, **{name: value})


def test_generator_decides_the_seed(data):
    def batches(state):
        loader = NeighborLoader(data, [2], batch_size=64, shuffle=True,
                                generator=torch.Generator().manual_seed(state))  # fmt: skip
        return [plain(batch) for batch in loader]

    assert batches(1) == batches(1) != batches(2)


# Other arguments ######################################################################################################


class MyData(Data):
    pass


def test_custom_class(data):
    stores = FeatureStore.from_data(data), GraphStore.from_data(data)
    assert type(next(iter(loader_of(stores, input_nodes=PICKED, custom_cls=MyData)))) is MyData
    own = MyData(x=data.x, edge_index=data.edge_index)
    assert type(next(iter(loader_of(own)))) is MyData


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("filter_per_worker", [True, False])
def test_replace(data, prefetch, filter_per_worker):
    seeds = torch.arange(200)[torch.bincount(data.edge_index[1], minlength=200) > 0]
    loader = loader_of(data, [6], seeds, replace=True, prefetch=prefetch, filter_per_worker=filter_per_worker)
    for batch in loader:
        assert torch.equal(torch.bincount(batch.edge_index[1]), torch.full((batch.batch_size,), 6))
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


def test_rows_that_are_not_contiguous(data):
    given = Data(x=data.x.t().contiguous().t(), edge_index=data.edge_index, edge_attr=data.edge_attr)
    message = (
        "data.x has no contiguous rows (strides (1, 200)), as what DataFrame.to_numpy() returns, so they are gathered "
        "by the slower torch.index_select; use data.x = data.x.contiguous()"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        loader = loader_of(given, input_nodes=PICKED)
    given.z, message = np.asfortranarray(data.x.numpy()), "data.z has no contiguous rows (strides (8, 1600)), as what "
    with pytest.warns(
        UserWarning, match=re.escape(message) + r".*; use data\.z = numpy\.ascontiguousarray\(data\.z\)$"
    ):
        loader_of(given, input_nodes=PICKED)
    check_batch(given, next(iter(loader)), PICKED, [3, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        loader_of(data, input_nodes=PICKED)


def test_sparse_features(data):
    dense = node_rows(torch.arange(200)) * (torch.arange(3) != torch.arange(200)[:, None] % 3)
    given = Data(x=data.x, edge_index=data.edge_index, z=dense.to_sparse())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        loader = loader_of(given, input_nodes=PICKED)
    batch = next(iter(loader))
    assert torch.equal(batch.z.to_dense(), dense[batch.n_id])


@pytest.mark.parametrize("fanouts", [[np.int64(3), np.int32(2)], np.array([3, 2]), (3, 2)], ids=str)
def test_fanouts_of_other_types(data, fanouts):
    found = next(iter(NeighborLoader(data, fanouts, batch_size=32, seed=np.int64(1), prefetch=np.int64(2))))
    assert plain(found) == plain(next(iter(loader_of(data))))


def test_a_fanout_of_more_than_can_be_drawn(data):
    large = 10**6
    found = next(iter(loader_of(data, [large, 2, large])))
    assert plain(found) == plain(next(iter(loader_of(data, [-1, 2, -1]))))
    message = rf"^num_neighbors: expected -1 \(all\) or 0\.\.{ops.MAX_FANOUT} each, found \[1000000\] with "
    with pytest.raises(ValueError, match=message + "replacement$"):
        loader_of(data, [large], replace=True)
    degree = ops.MAX_FANOUT + 2
    hub = Data(edge_index=torch.stack([torch.arange(degree), torch.zeros(degree).long()]), num_nodes=degree)
    with pytest.raises(ValueError, match=message.replace("1000000", str(degree - 1)) + f"nodes of {degree} neighbors$"):
        loader_of(hub, [degree - 1])
    with pytest.raises(ValueError, match=rf"^num_neighbors: .*found \[{large}, {degree - 1}\] with nodes of"):
        loader_of(hub, [large, degree - 1])
    assert next(iter(loader_of(hub, [large, degree], batch_size=1))).num_sampled_edges == [degree, 0]
    for fanout in (large, degree):
        assert next(iter(loader_of(hub, [fanout], batch_size=1))).num_sampled_edges == [degree]
    assert next(iter(loader_of(hub, [ops.MAX_FANOUT], batch_size=1))).num_sampled_edges == [ops.MAX_FANOUT]
    nothing = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=0)
    assert list(loader_of(nothing, [large])) == []


@pytest.mark.parametrize("num_workers", [0, 1])
def test_made_again_from_its_own_attributes(data, num_workers):
    # As Lightning does: every attribute that is an argument is passed again, dataset and collate_fn too.
    loader = loader_of(data, input_nodes=PICKED, transform=double, **processes(num_workers), edge_layout="sparse_csr")
    names = {*inspect.signature(NeighborLoader).parameters, *inspect.signature(torch.utils.data.DataLoader).parameters,
             "input_id", "custom_cls"}  # fmt: skip
    kwargs = {name: getattr(loader, name) for name in names if hasattr(loader, name)}
    assert {"dataset", "collate_fn", "data", "seed", "prefetch"} <= set(kwargs)
    kwargs = {**kwargs, "num_neighbors": [3, 2], "neighbor_sampler": loader.node_sampler}
    kwargs.pop("batch_sampler")
    again = NeighborLoader(**kwargs)
    assert [plain(batch) for batch in again] == [plain(batch) for batch in loader_of(
        data, input_nodes=PICKED, transform=double, edge_layout="sparse_csr")]  # fmt: skip


def test_options_beside_a_sampler_of_the_users(data):
    sampler = NeighborSampler(data, [3, 2], replace=True)
    with pytest.warns(
        UserWarning, match=r"^replace has no effect beside neighbor_sampler, which has options of its own$"
    ):
        loader_of(data, neighbor_sampler=sampler, replace=True)
    with pytest.warns(UserWarning, match=r"^subgraph_type, disjoint, time_attr have no effect beside neighbor_sampler"):
        loader_of(data, neighbor_sampler=sampler, disjoint=True, subgraph_type="induced", time_attr="time")
    timed = data.clone().update({"time": torch.arange(200)})
    sampler = NeighborSampler(timed, [3, 2], time_attr="time")
    times = {"input_nodes": PICKED, "input_time": torch.full((4,), 150)}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        loader_of(data, neighbor_sampler=sampler, subgraph_type="directional")
        found = loader_of(timed, neighbor_sampler=sampler, time_attr="time", **times)
    expected = loader_of(timed, time_attr="time", **times)
    assert [plain(batch) for batch in found] == [plain(batch) for batch in expected]


# What is refused #####################################################################################################


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prefetch": "a"}, TypeError, "prefetch: expected an int, found str"),
        ({"prefetch": 1.5}, TypeError, "prefetch: expected an int, found float"),
        ({"seed": 1.5}, TypeError, "seed: expected an int, found float"),
        ({"seed": "1"}, TypeError, "seed: expected an int, found str"),
        ({"num_neighbors": [True]}, TypeError, "num_neighbors: expected a list of ints, found [True]"),
        ({"num_neighbors": np.array([2.0])}, TypeError, "num_neighbors: expected a list of ints, found [2.0]"),
        ({"num_neighbors": np.array([[2]])}, TypeError, "num_neighbors: expected a list of ints, found ndarray"),
        ({"input_nodes": torch.tensor([0.5])}, TypeError, "input_nodes: expected integers, found torch.float32"),
        ({"input_nodes": [1.9, 2.2]}, TypeError, "input_nodes: expected integers, found torch.float32"),
        (
            {"input_nodes": ("a", torch.arange(3))}, ValueError,
            "input_nodes: expected nodes of a graph without node types, found type 'a'",
        ),
        (
            {"input_nodes": [None, torch.arange(3)]}, ValueError,
            "input_nodes: expected nodes of a graph without node types, found type None",
        ),
        ({"input_nodes": "train_mask"}, TypeError, "input_nodes: expected numbers in a tensor, array or list,"),
        ({"input_nodes": torch.ones(200, 2).bool()}, ValueError, "input_nodes: expected a vector or a mask, found "),
        ({"input_nodes": np.zeros(0, dtype=bool)}, IndexError, "expected a mask of 200 nodes, found one of 0"),
        ({"input_nodes": torch.ones(9).bool()}, IndexError, "input_nodes: expected a mask of 200 nodes, found"),
        (
            {"input_nodes": (torch.arange(200) % 2).to(torch.uint8)}, ValueError,
            "input_nodes: expected a mask of torch.bool, or ids, found uint8 values of 0 and 1 for each of 200 nodes, "
            "which could be either; pass input_nodes.bool() for a mask, input_nodes.long() for ids",
        ),
        ({"input_id": [1, 2]}, TypeError, "input_id: expected a tensor, found list"),
        (
            {"input_nodes": torch.arange(3), "input_id": torch.arange(4)}, ValueError,
            "input_id: expected 3 ids, one per input, found shape (4,)",
        ),
        ({"input_id": torch.ones(200, 1)}, ValueError, "input_id: expected 200 ids, one per input, found shape (200,"),
        ({"input_time": [1, 2]}, TypeError, "input_time: expected a tensor, found list"),
        ({"in_order": False}, ValueError, "in_order: expected True, because batches are numbered in their order"),
        ({"input_nodes": [[1, 2]]}, ValueError, "input_nodes: expected a vector or a mask, found shape (1, 2)"),
        (
            {"input_nodes": torch.arange(300) % 250 == 3},
            IndexError, "input_nodes[253] is set: expected a mask of 200 nodes, found one of 300",
        ),
        ({"prefetch": -1}, ValueError, "prefetch: expected at least 0, found -1"),
        ({"batch_size": None}, ValueError, "batch_size: expected a number of seeds, found None"),
        ({"num_neighbors": 5}, TypeError, "num_neighbors: expected a list of ints, found int"),
        ({"num_neighbors": "22"}, TypeError, "num_neighbors: expected a list of ints, found str"),
        ({"num_neighbors": [2.5]}, TypeError, "num_neighbors: expected a list of ints"),
        ({"num_neighbors": [2, -2]}, ValueError, "-2"),
        ({"edge_layout": "csr"}, ValueError, "edge_layout: expected one of"),
        ({"temporal_strategy": "first"}, ValueError, "temporal_strategy: expected 'uniform' or 'last', found 'first'"),
        ({"subgraph_type": "all"}, ValueError, 
         "subgraph_type: expected one of ['directional', 'bidirectional', 'induced'], found 'all'"),
        ({"transform": 3}, TypeError, "transform: expected a function, found 3"),
        ({"transform_sampler_output": "f"}, TypeError, "transform_sampler_output: expected a function, found 'f'"),
        *(
            ({name: value}, TypeError, f"{name}: expected True or False, found {value!r}")
            for name, value in [("replace", "no"), ("disjoint", 2), ("layers", "yes"), ("is_sorted", None),
                                ("directed", 0.5), ("shuffle", "yes"), ("filter_per_worker", "x")]
        ),
        ({"data": [Data(num_nodes=2), Data(num_nodes=2)]}, TypeError, "data: expected one graph, or a (FeatureStore, "
         "GraphStore) pair, found a list of two graphs; make one graph of them "
         "(torch_geometric.data.Batch.from_data_list), or a loader for each"),
        ({"data": (HeteroData(),) * 2}, TypeError, "data: expected one graph, or a (FeatureStore, GraphStore) pair, "
         "found a tuple of two graphs"),
        ({"data": 3}, TypeError, "data: expected a Data, a HeteroData or a (FeatureStore, GraphStore) pair, found int"),
        ({"data": Data(x=torch.zeros(3, 1), edge_index=edges_of(9, 9) + 3)}, IndexError, "out of range"),
        ({"nonsense": 3}, TypeError, "nonsense"),
        ({"persistent_workers": True}, ValueError, "persistent_workers option needs num_workers > 0"),
        ({"prefetch_factor": 2}, ValueError, "prefetch_factor option could only be specified in multiprocessing"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_arguments(data, arguments, error, message):
    with pytest.raises(error) as caught:
        NeighborLoader(**{"data": data, "num_neighbors": [2], "batch_size": 8, **arguments})
    assert message in str(caught.value)


def test_sparse_tensor_layout_without_torch_sparse(data):
    try:
        import torch_sparse  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"^edge_layout='SparseTensor' needs torch-sparse: pip install"):
            loader_of(data, edge_layout="SparseTensor")
    else:
        assert "adj_t" in next(iter(loader_of(data, edge_layout="SparseTensor")))


@pytest.mark.parametrize("way", ["set_epoch", "samples"])
@pytest.mark.parametrize(
    ("epoch", "error", "message"),
    [
        (-1, ValueError, f"epoch: expected 0 <= epoch <= {1 << 62}, found -1"),
        (1.5, TypeError, "epoch: expected an int, found float"),
        (True, TypeError, "epoch: expected an int, found bool"),
    ],
)
def test_epochs_that_are_none(data, way, epoch, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        getattr(loader_of(data), way)(epoch)


def test_epochs_of_numpy(data):
    loader, expected = loader_of(data, shuffle=True), loader_of(data, shuffle=True)
    loader.set_epoch(np.int64(2))
    expected.set_epoch(2)
    assert plain(next(iter(loader))) == plain(next(iter(expected)))
    loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    for found, other in zip(loader.samples(np.uint8(200)), expected.samples(200), strict=True):
        assert torch.equal(found.node, other.node)
