"""Tasks from .npz archives, and what is wrong with some."""

import re
import zipfile

import numpy as np
import pytest
import torch
from helpers.refused import refuses

from torch_gnnscale import datasets
from torch_gnnscale.datasets import archives
from torch_gnnscale.tasks import TASKS


def archive(folder, **arrays):
    """An archive of these arrays, opened."""
    np.savez(folder / "archive.npz", **arrays)
    return archives.Arrays(folder / "archive.npz", "expected some")


@pytest.mark.parametrize(
    ("values", "dtype"), [([0, 255], torch.uint8), ([1, 256], torch.float32), ([-1, 2], torch.float32)]
)
def test_sparse_features_take_a_byte_where_that_holds_them(tmp_path, values, dtype):
    x = archive(tmp_path, x_indptr=[0, 1, 2], x_indices=[1, 0], x_dim=2, x_data=values).features()
    assert (x.dtype, x.tolist()) == (dtype, [[0, values[0]], [values[1], 0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_stored_by_column_have_contiguous_rows(tmp_path, dtype):
    x = archive(tmp_path, x=np.asfortranarray(np.arange(6, dtype=dtype).reshape(3, 2))).features()
    assert x.is_contiguous()
    assert x.tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_sparse_features_that_are_all_zero(tmp_path, dtype):
    nothing, none = np.empty(0, int), np.empty(0, dtype)
    x = archive(tmp_path, x_indptr=np.zeros(3, int), x_indices=nothing, x_dim=2, x_data=none).features()
    assert x.tolist() == [[0, 0], [0, 0]]


_SPARSE = {"x_indptr": [0, 1, 2], "x_indices": [1, 0], "x_dim": 2, "x_data": [3, 4]}


# The array that is changed, its value, and what the error says after the file's name.
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("x_indices", [1, -1], "x_indices: expected numbers in [0, 2), found -1"),
        ("x_indices", [1, 2], "x_indices: expected numbers in [0, 2), found 2"),
        ("x_indices", [1], "x_indices: expected 2 columns, found shape (1,)"),
        ("x_indptr", [0, 2, 1], "x_indptr: expected numbers that rise from 0, found others"),
        ("x_indptr", 0, "x_indptr: expected numbers that rise from 0, found others"),
        ("x_indptr", [], "x_indptr: expected numbers that rise from 0, found others"),
        ("x_dim", 1 << 45, "x_dim: expected features that "),
        ("x_dim", -1, "x_dim: expected one integer of at least 0, found -1"),
        ("x_dim", [2, 2], "x_dim: expected one integer of at least 0, found shape (2,)"),
        ("x_data", [3], "x_data: expected 2 values, found int64 of shape (1,)"),
        ("x_data", ["3", "4"], "x_data: expected 2 values, found <U1 of shape (2,)"),
    ],
)
def test_sparse_features_that_are_none(tmp_path, name, value, message):
    with pytest.raises(ValueError, match="^" + re.escape(f"{tmp_path}/archive.npz, {message}")):
        archive(tmp_path, **{**_SPARSE, name: value}).features()


def test_members_that_nobody_asks_for_are_not_read(tmp_path):
    """An archive with a damaged member beside those of a task."""
    np.savez(tmp_path / "some.npz", **_NODES, zz=np.full(99, 7))
    with zipfile.ZipFile(tmp_path / "some.npz") as whole:
        begin = whole.getinfo("zz.npy").header_offset + 200
    content = bytearray((tmp_path / "some.npz").read_bytes())
    content[begin] ^= 1
    (tmp_path / "some.npz").write_bytes(content)
    assert datasets.load("some", tmp_path).num_nodes == 1
    file = tmp_path / "some.npz"
    expected = f"{file}: expected arrays of numbers (.npy or .npz), found something else or a damaged file"
    with refuses(ValueError, expected):
        archives.Arrays(file, "expected some")["zz"]


_LINKS = {"num_users": 2, "num_items": 2, "train_edge_index": [[0], [1]], "test_edge_index": [[1], [0]]}
_SPLITS = {"num_nodes__u": 2, "num_nodes__i": 2, "edge_split__u__likes__i": [0], "edge_index__u__likes__i": [[0], [1]]}
_EVENTS = {"num_users": 1, "num_items": 1, "edge_index": [[0], [1]], "edge_time": [5], "edge_split": [0]}
_MASKS = {f"{subset}_mask": np.ones(1, bool) for subset in ("train", "val", "test")}
_NODES = {"x": np.ones((1, 2)), "y": [0], "edge_index": [[0], [0]], **_MASKS}
_TYPES = {"num_nodes__a": 1, "target": "a", "x__a": np.ones((1, 2)), "y__a": [0]}
_TYPES |= {f"{name}__a": mask for name, mask in _MASKS.items()}


@pytest.mark.parametrize(
    ("load", "arrays", "expected", "lacking"),
    [
        (datasets.load, _NODES, "archive.npz: expected edge_index, y and three masks", ["edge_index", "y", *_MASKS]),
        (datasets.load_links, _LINKS, "dataset 'archive': expected links to be predicted",
         ["num_items", "test_edge_index"]),
        (datasets.load_links, _SPLITS, "dataset 'archive': expected links to be predicted",
         ["edge_index__u__likes__i"]),
        (datasets.load_events, _EVENTS, "dataset 'archive': expected events in time", list(_EVENTS)),
        (datasets.load_types, _TYPES, "dataset 'archive': expected a heterogeneous graph with labels (target, y__T)",
         [name for name in _TYPES if name not in ("num_nodes__a", "x__a")]),
    ],
    ids=["nodes", "links", "splits", "events", "types"],
)  # fmt: skip
def test_arrays_that_an_archive_lacks_are_named(load, arrays, expected, lacking, tmp_path):
    np.savez(tmp_path / "archive.npz", **arrays)
    load("archive", tmp_path)
    for name in lacking:
        np.savez(tmp_path / "archive.npz", **{key: array for key, array in arrays.items() if key != name})
        with pytest.raises(ValueError, match=f"{re.escape(expected)}, found no {name}$"):
            load("archive", tmp_path)


@pytest.mark.parametrize(
    ("load", "arrays", "name", "value", "message"),
    [
        (datasets.load, _NODES, "edge_index", [[0], [1]], "expected numbers in [0, 1), found 1"),
        (datasets.load, _NODES, "edge_index", [[0], [-1]], "expected numbers in [0, 1), found -1"),
        (datasets.load, _NODES, "edge_index", [0, 0], "expected sources and destinations, shape (2, edges), found sha"),
        (datasets.load, _NODES, "y", ["a"], "expected integers, found <U1 of shape (1,)"),
        (datasets.load, _NODES, "y", [0.5], "expected integers, found float64 of shape (1,)"),
        (datasets.load, _NODES, "y", [0, 1], "expected a class of each of 1 nodes, found shape (2,)"),
        (datasets.load, _NODES, "val_mask", [1], "expected a mask of 1 nodes, found int64 of shape (1,)"),
        (datasets.load, _NODES, "x", [["a"]], "expected features, shape (nodes, features), found <U1 of shape (1, 1)"),
        (datasets.load_links, _LINKS, "test_edge_index", [[2], [0]], "expected numbers in [0, 2), found 2"),
        (datasets.load_links, _LINKS, "num_items", -1, "expected one integer of at least 0, found -1"),
        (datasets.load_links, _SPLITS, "edge_split__u__likes__i", [3], "expected numbers in [0, 3), found 3"),
        (datasets.load_links, _SPLITS, "edge_split__u__likes__i", [0, 0], "expected the splits of 1 edges, found sha"),
        (datasets.load_links, _SPLITS, "num_nodes__i", 1, "expected nodes in [0, 1), found 1"),
        (datasets.load_events, _EVENTS, "edge_index", [[0], [0]], "expected destinations of at least 1, after all u"),
        (datasets.load_events, _EVENTS, "edge_time", [5, 6], "expected times of 1 edges, found shape (2,)"),
        (datasets.load_types, _TYPES, "target", "b", "expected one of ['a'], found 'b'"),
        (datasets.load_types, _TYPES, "num_nodes__a", 2, "expected 1, the number of rows of features, found 2"),
        (datasets.load_types, _TYPES, "y__a", [0, 0], "expected a class of each of 1 nodes, found shape (2,)"),
    ],
)
def test_arrays_of_an_archive_that_are_none(load, arrays, name, value, message, tmp_path):
    """The file and the array are named, and no id is taken for the last but so many."""
    np.savez(tmp_path / "archive.npz", **{**arrays, name: value})
    wrong = "edge_index__u__likes__i" if name == "num_nodes__i" else name
    with pytest.raises(ValueError, match="^" + re.escape(f"{tmp_path}/archive.npz, {wrong}: {message}")):
        load("archive", tmp_path)


@pytest.mark.parametrize("kind", ["nodes", "links"])
def test_an_archive_beside_a_folder_of_its_name_comes_first(kind, tmp_path):
    (tmp_path / "two").mkdir()
    arrays = {"nodes": _NODES, "links": {**_LINKS, "num_items": 5}}[kind]
    np.savez(tmp_path / "two.npz", **arrays)
    np.savez(tmp_path / "two" / "two.npz", a=0)
    TASKS[kind].load("two", tmp_path)
    (tmp_path / "two.npz").rename(tmp_path / "two" / "two.npz")
    TASKS[kind].load("two", tmp_path)


@pytest.mark.parametrize("given", [None, False, True])
def test_edges_of_an_archive_have_the_directions_that_it_says(given, tmp_path):
    more = {} if given is None else {"undirected": given}
    np.savez(tmp_path / "some.npz", **{**_NODES, "edge_index": [[0, 0], [0, 0]], **more})
    assert datasets.load("some", tmp_path).num_edges == (4 if given else 2)


@pytest.mark.parametrize("kind", ["hetero", "links", "temporal"])
def test_archives_of_another_kind_are_refused(kind, tmp_path):
    np.savez(tmp_path / "other.npz", edge_index=np.zeros((2, 1)))
    with pytest.raises(ValueError, match="dataset 'other': expected"):
        TASKS[kind].load("other", tmp_path)


@pytest.mark.parametrize("load", [datasets.load, datasets.load_types, datasets.load_links, datasets.load_events])
def test_a_damaged_archive_is_named(load, tmp_path):
    file = tmp_path / "made.npz"
    np.savez(file, x=np.arange(9))
    file.write_bytes(file.read_bytes()[:-30])
    with refuses(
        ValueError, f"{file}: expected arrays of numbers (.npy or .npz), found something else or a damaged file"
    ):
        load("made", tmp_path)
    with file.open("wb") as stream:
        np.save(stream, np.arange(9))
    with refuses(ValueError, f"{file}: expected an archive of arrays (.npz), found a single array"):
        load("made", tmp_path)


def test_links_of_two_relations_are_refused(tmp_path):
    of_relations = {f"edge_split__u__{name}__i": [0, 1] for name in ("likes", "buys")}
    edges = {name.replace("split", "index"): [[0, 1], [0, 1]] for name in of_relations}
    np.savez(tmp_path / "two.npz", num_nodes__u=2, num_nodes__i=2, **edges, **of_relations)
    with pytest.raises(ValueError, match=r"^dataset 'two': expected .* edge_split__S__R__T of one relation, found \["):
        datasets.load_links("two", tmp_path)


def test_the_reverse_of_links_has_no_links_of_other_splits(tmp_path):
    """Also where the archive has a reverse, of the links of all splits."""
    np.savez(
        tmp_path / "both.npz", num_nodes__u=2, num_nodes__i=2, edge_index__u__likes__i=[[0, 1, 1], [0, 0, 1]],
        edge_index__i__rev_likes__u=[[0, 0, 1], [0, 1, 1]], edge_split__u__likes__i=[2, 0, 1],
    )  # fmt: skip
    data = datasets.load_links("both", tmp_path).data
    assert {edge_type: edges.tolist() for edge_type, edges in data.edge_index_dict.items()} == {
        ("u", "likes", "i"): [[1], [0]], ("i", "rev_likes", "u"): [[0], [1]],
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["links", "temporal"])
def test_there_is_one_split(kind):
    with pytest.raises(ValueError, match="split: expected 0, because planted has one split, found 1"):
        TASKS[kind].load("planted", split=1)


def test_archives_of_each_kind(tmp_path):
    np.savez(
        tmp_path / "types.npz", num_nodes__a=3, num_nodes__b=2, target="a", x__a=np.eye(3), x_dim__b=2,
        x_indptr__b=[0, 1, 2], x_indices__b=[1, 0], x_data__b=[7, 300], edge_index__a__to__b=[[0, 2], [1, 0]],
        y__a=[1, 0, -1], **{f"{part}_mask__a": np.eye(3, 2, dtype=bool) for part in ("train", "val", "test")},
    )  # fmt: skip
    task = datasets.load_types("types", tmp_path, split=1)
    assert task.masks["val"].tolist() == [False, True, False]
    assert task.data["b"].x.tolist() == [[0, 7], [300, 0]]
    assert task.data["b", "rev_to", "a"].edge_index.tolist() == [[1, 0], [0, 2]]
    assert (task.num_nodes, task.num_edges, task.num_features, task.num_classes) == (3, 4, 3, 2)
    task.save(tmp_path / "saved")
    again = datasets.load_types(str(tmp_path / "saved"))
    assert (again.node_type, again.y.tolist(), again.masks["val"].tolist()) == ("a", [1, 0, -1], [False, True, False])
    assert again.data["b"].x.tolist() == [[0, 7], [300, 0]]
    assert again.data["b", "rev_to", "a"].edge_index.tolist() == [[1, 0], [0, 2]]

    train, test = np.stack([np.arange(20), np.arange(20) % 3]), [[0, 1], [2, 2]]
    np.savez(tmp_path / "links.npz", num_users=20, num_items=3, train_edge_index=train, test_edge_index=test)
    links = datasets.load_links("links", tmp_path)
    assert [part.size(1) for part in links.links.values()] == [18, 2, 2]
    assert links.links["val"].tolist() == [[9, 19], [0, 1]]
    assert links.data["user", "chooses", "item"].num_edges == 18

    np.savez(
        tmp_path / "split.npz", num_nodes__u=2, num_nodes__i=2, edge_index__u__likes__i=[[0, 1, 1], [0, 0, 1]],
        edge_split__u__likes__i=[2, 0, 1], edge_index__u__knows__u=[[0], [1]],
    )  # fmt: skip
    links = datasets.load_links("split", tmp_path)
    assert {part: edges.tolist() for part, edges in links.links.items()} == {
        "train": [[1], [0]], "val": [[1], [1]], "test": [[0], [0]],
    }  # fmt: skip
    assert links.data["u", "likes", "i"].edge_index.tolist() == [[1], [0]]
    assert set(links.data.edge_types) == {("u", "likes", "i"), ("u", "knows", "u"), ("i", "rev_likes", "u")}

    np.savez(
        tmp_path / "events.npz", num_users=2, num_items=2, edge_index=[[0, 1, 0], [3, 2, 2]], edge_time=[5, 6, 9],
        edge_split=[0, 1, 2],
    )  # fmt: skip
    events = datasets.load_events("events", tmp_path)
    assert events.data["user", "event", "item"].edge_index.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert events.data["item", "rev_event", "user"].time.tolist() == [5, 6, 9]
    assert [ids.tolist() for ids in events.events.values()] == [[0], [1], [2]]
