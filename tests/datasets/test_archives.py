"""Tasks from .npz archives, and what is wrong with some."""

import re

import numpy as np
import pytest
import torch
from helpers.refused import refuses

from torch_gnnscale import datasets
from torch_gnnscale.datasets import archives
from torch_gnnscale.tasks import TASKS


@pytest.mark.parametrize(
    ("values", "dtype"), [([0, 255], torch.uint8), ([1, 256], torch.float32), ([-1, 2], torch.float32)]
)
def test_sparse_features_take_a_byte_where_that_holds_them(values, dtype):
    arrays = {"x_indptr": np.array([0, 1, 2]), "x_indices": np.array([1, 0]), "x_dim": 2, "x_data": np.array(values)}
    x = archives.features(arrays)
    assert (x.dtype, x.tolist()) == (dtype, [[0, values[0]], [values[1], 0]])


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_sparse_features_that_are_all_zero(dtype):
    nothing = np.empty(0, dtype)
    x = archives.features({"x_indptr": np.zeros(3, int), "x_indices": np.empty(0, int), "x_dim": 2, "x_data": nothing})
    assert x.tolist() == [[0, 0], [0, 0]]


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
    with pytest.raises(ValueError, match="types: expected a homogeneous graph to save, found a heterogeneous one"):
        task.save(tmp_path / "saved")

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
    assert events.data["user", "edits", "page"].edge_index.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert events.data["page", "rev_edits", "user"].time.tolist() == [5, 6, 9]
    assert [ids.tolist() for ids in events.events.values()] == [[0], [1], [2]]
