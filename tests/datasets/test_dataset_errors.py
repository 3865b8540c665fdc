"""Data sets that lack something, and packages that read them where they are not installed."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import FeatureStore, GraphStore, datasets
from torch_gnnscale.datasets import NodeTask, archives
from torch_gnnscale.datasets.node_task import check_data_split

MASKS = ("train_mask", "val_mask", "test_mask")
NO_MASK = "made: expected train_mask of shape [4] or [4, splits] and type bool or uint8"


def node_data(**changes) -> Data:
    data = Data(x=torch.ones(4, 2), y=torch.tensor([0, 2, 1, 0]), edge_index=torch.tensor([[0, 1], [1, 2]]))
    for number, name in enumerate(MASKS):
        data[name] = torch.arange(4) % 3 == number
    data.update({name: value for name, value in changes.items() if value is not None})
    for name, value in changes.items():
        if value is None:
            del data[name]
    return data


def arrays_without(*names: str) -> dict[str, np.ndarray]:
    data = node_data()
    arrays = {name: data[name].numpy() for name in ("edge_index", "y", "x", *MASKS)}
    return {name: array for name, array in arrays.items() if name not in names}


@pytest.mark.parametrize(
    ("changes", "split", "message"),
    [
        ({"x": None}, 0, "made: expected x, y and three masks, found no x"),
        ({"y": None, "val_mask": None}, 0, "made: expected x, y and three masks, found no y, val_mask"),
        ({"y": torch.ones(3).long()}, 0,
         "made: expected one class for each of 4 nodes, found y of shape (3,) and type int64"),
        ({"y": torch.ones(4)}, 0,
         "made: expected one class for each of 4 nodes, found y of shape (4,) and type float32"),
        ({"y": torch.ones(4, 2).long()}, 0,
         "made: expected one class for each of 4 nodes, found y of shape (4, 2) and type int64"),
        ({}, 1, "split: expected 0, because made has one split, found 1"),
        ({}, -1, "split: expected 0, because made has one split, found -1"),
        ({"val_mask": torch.ones(4, 3).bool()}, 3, "split: expected 0 <= split < 3 of made, found 3"),
        ({"val_mask": torch.ones(4, 3).bool()}, -1, "split: expected 0 <= split < 3 of made, found -1"),
        ({"val_mask": torch.ones(4, 3).bool(), "test_mask": torch.ones(4, 5).bool()}, 3,
         "split: expected 0 <= split < 3 of made, found 3"),
        ({"train_mask": torch.tensor([0, 2, 3])}, 0, f"{NO_MASK}, found shape (3,) and type int64"),
        ({"train_mask": torch.tensor([0, 1, 1, 0])}, 0, f"{NO_MASK}, found shape (4,) and type int64"),
        ({"train_mask": torch.ones(3).bool()}, 0, f"{NO_MASK}, found shape (3,) and type bool"),
        ({"train_mask": torch.ones(3, 4).bool()}, 0, f"{NO_MASK}, found shape (3, 4) and type bool"),
        ({"train_mask": torch.ones(4, 1, 1).bool()}, 0, f"{NO_MASK}, found shape (4, 1, 1) and type bool"),
    ],
)  # fmt: skip
def test_data_that_are_no_task(changes, split, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        NodeTask.from_data("made", node_data(**changes), split)


def test_the_split_that_is_asked_for():
    masks = torch.tensor([[0, 1, 0], [0, 0, 1], [1, 1, 1], [0, 0, 0]]).bool()
    task = NodeTask.from_data("made", node_data(val_mask=masks, y=torch.tensor([[0], [2], [1], [0]]).byte()), 2)
    assert {name: mask.tolist() for name, mask in task.masks.items()} == {
        "train": [True, False, False, True], "val": [False, True, True, False], "test": [False, False, True, False],
    }  # fmt: skip
    assert (task.y.dtype, task.y.tolist()) == (torch.int64, [0, 2, 1, 0])
    assert (task.num_features, task.num_nodes, task.num_edges) == (2, 4, 2)
    check_data_split("made", 2, 3)


def test_numpy_arrays_and_masks_of_uint8_are_taken():
    masks = {name: node_data()[name].numpy() for name in MASKS}
    masks["val_mask"] = torch.from_numpy(masks["val_mask"]).byte()
    task = NodeTask.from_data("made", node_data(y=np.array([0, 2, 1, 0], np.int16), **masks))
    assert (task.y.dtype, task.y.tolist()) == (torch.int64, [0, 2, 1, 0])
    assert {name: (mask.dtype, mask.nonzero().view(-1).tolist()) for name, mask in task.masks.items()} == {
        "train": (torch.bool, [0, 3]), "val": (torch.bool, [1]), "test": (torch.bool, [2]),
    }  # fmt: skip


def typed(data: Data) -> HeteroData:
    """The graph as one with the node type paper."""
    found = HeteroData()
    found["paper"].update({name: value for name, value in data.to_dict().items() if name != "edge_index"})
    found["paper", "cites", "paper"].edge_index = data.edge_index
    return found


@pytest.mark.parametrize("types", [False, True])
def test_a_task_leaves_the_data_as_they_were(types):
    """A second task of the same data has another split."""
    masks, y = torch.tensor([[0, 1], [0, 0], [1, 1], [0, 0]]).bool(), torch.tensor([[0], [2], [1], [0]]).byte()
    data = node_data(val_mask=masks, y=y)
    data = typed(data) if types else data
    for split in (1, 0):
        task = NodeTask.from_types("made", data, "paper", split) if types else NodeTask.from_data("made", data, split)
        assert torch.equal(task.masks["val"], masks[:, split])
        store, of_task = (data["paper"], task.data["paper"]) if types else (data, task.data)
        assert (store.val_mask is masks, store.y is y) == (True, True)
        assert (of_task.val_mask is task.masks["val"], of_task.y is task.y) == (True, True)
        assert of_task.x is store.x


@pytest.mark.parametrize("missing", ["x", "y", *MASKS])
def test_saved_nodes_without_something(missing, tmp_path):
    data = node_data(**{missing: None}, num_nodes=4)
    FeatureStore.from_data(data).save(tmp_path / "features")
    GraphStore.from_data(data).save(tmp_path / "graph")
    message = f"{tmp_path}: expected x, y and three masks beside the graph, found no {missing}; gnnscale convert takes"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        datasets.load(str(tmp_path))


def test_archives_without_something(tmp_path):
    path = tmp_path / "made.npz"
    for missing in ("edge_index", "y", *MASKS):
        np.savez(path, **arrays_without(missing))
        message = f"{path}: expected edge_index, y and three masks, found no {missing}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            datasets.load("made", tmp_path)
    np.savez(path, **arrays_without("x"))
    found = sorted(arrays_without("x"))
    message = f"{path}: expected features (x, or x_indptr and x_indices), found {found}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        datasets.load("made", tmp_path)
    for undirected, edges in ((True, 4), (False, 2)):
        np.savez(path, **arrays_without(), undirected=undirected)
        assert datasets.load("made", tmp_path).num_edges == edges


def test_ogb_is_named_where_it_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ogb", None)
    with pytest.raises(ImportError, match=r"^dataset 'ogbn-arxiv' needs the package ogb: pip install ogb$"):
        datasets.load("ogbn-arxiv", tmp_path)


def test_what_ogb_gives_is_a_task(monkeypatch, tmp_path):
    class Dataset(list):
        def __init__(self, name, root):
            assert (name, root) == ("ogbn-made", str(tmp_path))
            super().__init__(
                [Data(x=torch.ones(4, 2), y=torch.arange(4)[:, None] % 3, edge_index=torch.ones(2, 5).long())]
            )

        def get_idx_split(self):
            return {"train": torch.tensor([3]), "valid": torch.tensor([0, 2]), "test": torch.tensor([1])}

    module = SimpleNamespace(PygNodePropPredDataset=Dataset)
    monkeypatch.setitem(sys.modules, "ogb", SimpleNamespace(nodeproppred=module))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)
    task = datasets.load("ogbn-made", tmp_path)
    found = {name: mask.nonzero().view(-1).tolist() for name, mask in task.masks.items()}
    assert found == {"train": [3], "val": [0, 2], "test": [1]}
    assert (task.name, task.num_edges) == ("ogbn-made", 5)


def reads(root: Path, *files: str) -> None:
    """Fails to read, after it made folders and files."""
    with archives._downloading("made", root):
        (root / "made" / "raw").mkdir(parents=True)
        for name in files:
            (root / "made" / name).touch()
        raise KeyError("no such file")


def test_a_failed_download_leaves_no_empty_folders(tmp_path):
    root = tmp_path / "data" / "new"
    message = (
        f"dataset 'made': expected its files in {root} (--root) or a connection to download them, found KeyError: "
        f"'no such file'"
    )
    with pytest.raises(OSError, match=f"^{re.escape(message)}$"):
        reads(root)
    assert [*tmp_path.iterdir()] == []
    (root / "kept").mkdir(parents=True)
    with pytest.raises(OSError, match=f"^{re.escape(message)}$"):
        reads(root, "note")
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == ["kept", "made", "made/note"]


@pytest.mark.parametrize("split", [(0.0, 0.5), (0.5, 0.0), (0.5, 0.5), (-0.1, 0.5), (0.7, 0.4)])
@pytest.mark.parametrize("make", [datasets.planted, datasets.planted_links, datasets.planted_types])
def test_fractions_of_a_split(make, split):
    message = f"split: expected two positive fractions with a sum below 1, found {split}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(split=split)


def test_exponents_and_members():
    with pytest.raises(ValueError, match=r"^exponent: expected more than 2, found 2$"):
        datasets.planted(100, exponent=2)
    datasets.planted(100, exponent=2.0001)
    for make, name, count in (
        (datasets.planted_events, "num_pages", 10),
        (datasets.planted_links, "num_items", 20),
        (datasets.planted_types, "num_venues", 8),
    ):
        message = rf"^{name}: expected at least one per community \({count}\), found {count - 1}$"
        with pytest.raises(ValueError, match=message):
            make(**{name: count - 1})
