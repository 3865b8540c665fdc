import pickle
import zlib

import numpy as np
import pytest
import torch
from helpers.data import DTYPES, edges_of, make_data, node_rows
from helpers.forked import FORKED

from torch_gnnscale import CSC, FeatureStore, GraphStore, NeighborLoader, NeighborSampler, files

CITES = ("paper", "cites", "paper")


def same_relation(found, expected):
    assert (found.num_src, found.num_dst) == (expected.num_src, expected.num_dst)
    for name in ("colptr", "row", "edge_id"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one is other is None or (one.dtype == other.dtype and torch.equal(one, other))


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_features_of_every_dtype(tmp_path, dtype, verify):
    generator = torch.Generator().manual_seed(0)
    store = FeatureStore()
    for i, shape in enumerate([(17, 3), (17,), (17, 2, 2), (0, 4), (4, 0), (0,)]):
        tensor = torch.randint(0, 2, shape, generator=generator).to(dtype)
        store.put_tensor(tensor, group_name=None if i % 2 else "paper", attr_name=f"x{i}", index=None)
    store.save(tmp_path / "features")
    opened = FeatureStore.open(str(tmp_path / "features"), verify)
    assert opened.get_all_tensor_attrs() == store.get_all_tensor_attrs()
    for attr in store.get_all_tensor_attrs():
        attr.index = None
        found, expected = opened.get_tensor(attr), store.get_tensor(attr)
        assert found.dtype == dtype
        assert torch.equal(found, expected)


@pytest.mark.parametrize("rows", [[7], [3, 4], [1, 1, 1, 1, 1, 1, 1], [2, 0, 5], [4, 3], [], [6]])
def test_checksums_of_blocks_do_not_depend_on_how_rows_were_written(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(files, "_BLOCK", 32)  # 64 MiB, of rows of 12 bytes
    given = torch.arange(3 * sum(rows), dtype=torch.int32).view(-1, 3)
    with files.ArrayWriter(tmp_path / "x.npy", torch.int32, tuple(given.shape)) as writer:
        for part in given.split(rows):
            writer.append(part)
    data = given.numpy().tobytes()
    assert writer.entry["crc32"] == [zlib.crc32(data[at : at + 32]) for at in range(0, max(len(data), 1), 32)]
    assert np.array_equal(np.load(tmp_path / "x.npy"), given.numpy())


def test_strided_features(tmp_path):
    x = node_rows(torch.arange(20), 6)
    store = FeatureStore()
    for name, tensor in (("t", x.t()), ("rows", x[::3]), ("columns", x[:, ::2]), ("grad", x.clone().requires_grad_())):
        store.put_tensor(tensor, group_name=None, attr_name=name, index=None)
    store.save(tmp_path / "features")
    opened = FeatureStore.open(tmp_path / "features")
    for name, tensor in (("t", x.t()), ("rows", x[::3]), ("columns", x[:, ::2]), ("grad", x)):
        assert torch.equal(opened[None, name, None], tensor)


def relations():
    edges = edges_of(60, 400)
    by_destination = edges[:, edges[1].sort(stable=True).indices]
    wide = CSC.from_csc(torch.tensor([0, 1, 3]), torch.tensor([2**40, 5, 2**31]), num_src=2**40 + 1)
    mixed = CSC.from_csc(torch.tensor([0, 2]), torch.tensor([0, 0]), torch.tensor([1, 0]))
    return {
        "with edge ids": CSC.from_edge_index(edges, 60),
        "without": CSC.from_edge_index(by_destination, 60, is_sorted=True),
        "64-bit ids": wide,
        "64-bit edge ids": mixed,
        "64-bit both": CSC.from_edge_index(torch.tensor([[2**31, 5], [1, 0]]), (2**31 + 1, 2)),
        "no edges": CSC.from_edge_index(torch.empty(2, 0, dtype=torch.int64), 5),
        "no nodes": CSC.from_edge_index(torch.empty(2, 0, dtype=torch.int64), 0),
        "two sizes": CSC.from_edge_index(edges, (60, 77)),
    }


@pytest.mark.parametrize("name", relations())
@pytest.mark.parametrize("verify", [True, False])
def test_graphs(tmp_path, name, verify):
    csc = relations()[name]
    GraphStore.from_csc(csc).save(tmp_path / "graph")
    same_relation(GraphStore.open(tmp_path / "graph", verify).relation(), csc)


def test_saving_refuses_what_could_not_be_opened(tmp_path):
    pointer, ids = torch.tensor([0, 2]), torch.tensor([0, 0])
    for csc, message in (
        (CSC(pointer, ids, torch.tensor([0, 2]), 1), r"edge_id\[1\] = 2, which is not in \[0, 2\)"),
        (CSC(pointer, ids + 1, None, 1), r"row\[0\] = 1, which is not in \[0, 1\)"),
        (CSC(pointer + 1, ids, None, 1), r"colptr\[0\]: expected 0, found 1"),
    ):
        with pytest.raises(ValueError, match=message):
            GraphStore.from_csc(csc).save(tmp_path / "graph")
        assert not (tmp_path / "graph").exists()


@pytest.mark.slow
def test_a_graph_of_many_relations(tmp_path):
    store = GraphStore()
    for i, csc in enumerate(relations().values()):
        store._relations["paper", f"r{i}", "paper"] = csc
    store.save(tmp_path / "graph")
    opened = GraphStore.open(tmp_path / "graph")
    assert opened.get_all_edge_attrs() == store.get_all_edge_attrs()
    for edge_type, csc in store._relations.items():
        same_relation(opened.relation(edge_type), csc)
    opened.save(tmp_path / "again")
    for edge_type, csc in store._relations.items():
        same_relation(GraphStore.open(tmp_path / "again").relation(edge_type), csc)


def test_empty_stores(tmp_path):
    FeatureStore().save(tmp_path / "features")
    GraphStore().save(tmp_path / "graph")
    assert FeatureStore.open(tmp_path / "features").get_all_tensor_attrs() == []
    assert GraphStore.open(tmp_path / "graph").get_all_edge_attrs() == []


def test_a_loader_reads_the_same(tmp_path):
    data = make_data()
    memory = FeatureStore.from_data(data), GraphStore.from_data(data)
    memory[0].save(tmp_path / "features")
    memory[1].save(tmp_path / "graph")
    opened = FeatureStore.open(tmp_path / "features"), GraphStore.open(tmp_path / "graph")
    loaders = [NeighborLoader(s, [3, 3], torch.arange(200), batch_size=64, seed=1) for s in (memory, opened)]
    for expected, found in zip(*loaders, strict=True):
        assert torch.equal(found.x, expected.x)
        assert torch.equal(found.e_id, expected.e_id)


# Mapping and processes ###############################################################################################


def mapped_bytes(file, pid="self"):
    with open(f"/proc/{pid}/maps") as lines:
        return any(line.rstrip().endswith(str(file)) for line in lines)


def test_writing_to_an_opened_tensor_leaves_the_file(features):
    before = {file.name: file.read_bytes() for file in features.iterdir()}
    opened, other = FeatureStore.open(features), FeatureStore.open(features)
    assert mapped_bytes(features / "0.npy")
    x = opened["paper", "x", None]
    x.zero_()
    opened.put_tensor(torch.zeros(2, dtype=torch.int64), group_name=None, attr_name="y", index=torch.tensor([3, 4]))
    assert x.abs().sum() == 0
    assert opened[None, "y", None][:6].tolist() == [0, 1, 2, 0, 0, 5]
    assert torch.equal(other["paper", "x", None], node_rows(torch.arange(100)))
    assert torch.equal(other[None, "y", None], torch.arange(100))
    assert {file.name: file.read_bytes() for file in features.iterdir()} == before


def test_a_read_only_directory(graph, features):
    for folder in (graph, features):
        for file in folder.iterdir():
            file.chmod(0o444)
    assert GraphStore.open(graph).relation().num_edges == 900
    assert FeatureStore.open(features)[None, "y", 3] == 3


def describe(features, graph, queue):
    """Runs in a process of its own: what it received, and which files it has mapped."""
    with open("/proc/self/maps") as lines:
        mapped = {"/" + line.split("/", 1)[1].rstrip() for line in lines if ".npy" in line}
    queue.put((features["paper", "x", None].sum().item(), graph.relation().row.sum().item(), mapped))


@pytest.mark.slow
def test_opened_stores_travel_as_their_paths(features, graph):
    stores = FeatureStore.open(features), GraphStore.open(graph)
    assert all(len(pickle.dumps(store)) < 1000 for store in stores)
    queue = FORKED.Queue()
    process = FORKED.Process(target=describe, args=(*stores, queue))
    process.start()
    x, row, mapped = queue.get(timeout=120)
    process.join(60)
    assert x == node_rows(torch.arange(100)).sum().item()
    assert row == stores[1].relation().row.sum().item()
    assert {str(features / "0.npy"), str(graph / "0_edges.npy")} <= mapped


def test_the_sampler_of_an_opened_store_travels_as_its_path(graph):
    sampler = NeighborSampler((FeatureStore(), GraphStore.open(graph)), [3, 2])
    expected = sampler.sample(torch.arange(5), None, 1)
    state = pickle.dumps(sampler)
    assert len(state) < sampler.graph.relations[0].csc.row.numel() * 8
    assert torch.equal(pickle.loads(state).sample(torch.arange(5), None, 1).edge, expected.edge)


def test_a_changed_store_travels_with_its_changes(features, graph):
    opened = FeatureStore.open(features)
    opened.put_tensor(torch.tensor([-1]), group_name=None, attr_name="y", index=torch.tensor([0]))
    assert pickle.loads(pickle.dumps(opened))[None, "y", 0] == -1
    opened = GraphStore.open(graph)
    opened.put_edge_index(tuple(torch.tensor([[0], [1]])), CITES, "coo", size=(2, 2))
    assert pickle.loads(pickle.dumps(opened)).relation(CITES).num_edges == 1


def test_a_relative_path_survives_a_change_of_directory(features, monkeypatch):
    monkeypatch.chdir(features.parent)
    opened = FeatureStore.open("features")
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(opened))[None, "y", 3] == 3


def test_a_directory_that_was_not_saved(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        for cls in (FeatureStore, GraphStore):
            with pytest.raises(FileNotFoundError) as caught:
                cls.open(path)
            assert str(caught.value) == (
                f"{path / files.MANIFEST}: not found; is {path} a directory saved by torch_gnnscale, saved to its end?"
            )
