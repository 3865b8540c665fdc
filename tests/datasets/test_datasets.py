"""Generated and read node-classification tasks."""

import inspect
import shutil
import socket

import numpy as np
import pytest
import torch
import torch_geometric.datasets
from helpers.data import REAL
from torch_geometric.data import Data

from torch_gnnscale import CSC, FeatureStore, GraphStore, NeighborLoader, datasets
from torch_gnnscale.datasets import NodeTask, archives, planted

SMALL = {"num_nodes": 2000, "num_classes": 5, "num_features": 8}


def test_planted_is_a_function_of_its_seed():
    first, second, other = planted(seed=3, **SMALL), planted(seed=3, **SMALL), planted(seed=4, **SMALL)
    for key, value in first.items():
        assert torch.equal(value, second[key])
    assert not torch.equal(first.edge_index, other.edge_index)
    assert not torch.equal(first.x, other.x)


@pytest.mark.slow
def test_planted_has_what_it_promises():
    data = planted(20_000, 20, 8, 16, homophily=0.6, signal=2.0, split=(0.5, 0.2), seed=1)
    src, dst = data.edge_index
    assert (src != dst).all()
    half = data.num_edges // 2
    assert torch.equal(data.edge_index[:, :half], data.edge_index[:, half:].flip(0))
    within = (data.y[src] == data.y[dst]).float().mean()
    assert abs(within - (0.6 + 0.4 / 8)) < 0.02
    degree = torch.bincount(dst, minlength=data.num_nodes)
    assert degree.max() > 15 * degree.float().mean()  # a power law has hubs
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    assert torch.equal(masks.sum(0), torch.ones(data.num_nodes, dtype=torch.int64))
    assert masks.sum(1).tolist() == [10_000, 4_000, 6_000]
    means = torch.stack([data.x[data.y == c].mean(0) for c in range(8)])
    assert torch.allclose(means.norm(dim=1), torch.full((8,), 2.0), atol=0.2)
    assert abs(float((data.x - means[data.y]).std()) - 1) < 0.02
    by_id = torch.stack([degree.double().log1p(), torch.arange(data.num_nodes)])
    assert abs(float(torch.corrcoef(by_id)[0, 1])) < 0.05  # ids say nothing about degrees


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"exponent": 2.0}, "exponent: expected more than 2, found 2.0"),
        ({"split": (0.5, 0.5)}, "split: expected two positive fractions"),
        ({"split": (0.5, 0.0)}, "split: expected two positive fractions"),
    ],
)
def test_planted_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        planted(100, **arguments)


@pytest.mark.slow
def test_saved_task_gives_the_same_batches(tmp_path):
    task = NodeTask.from_data("small", planted(seed=0, **SMALL))
    task.save(tmp_path / "task")
    again = datasets.load(str(tmp_path / "task"))
    assert (again.num_nodes, again.num_edges, again.num_features) == (task.num_nodes, task.num_edges, 8)
    assert again.num_classes == 5
    assert torch.equal(again.y, task.y)
    for key, mask in task.masks.items():
        assert torch.equal(again.masks[key], mask)
    options = {"num_neighbors": [4, 4], "input_nodes": task.masks["train"], "batch_size": 128, "seed": 1}
    for a, b in zip(NeighborLoader(task.data, **options), NeighborLoader(again.data, **options), strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
        assert torch.equal(a.edge_index, b.edge_index)
        assert torch.equal(a.e_id, b.e_id)


@pytest.mark.parametrize(("name", "metric"), [("tolokers", "roc_auc"), ("small", "accuracy")])
def test_a_saved_task_keeps_its_metric(name, metric, tmp_path):
    NodeTask.from_data(name, planted(100, 4, 2, 3)).save(tmp_path / "task")
    again = datasets.load(str(tmp_path / "task"))
    assert (again.metric, again.name) == (metric, str(tmp_path / "task"))


def test_features_without_columns_are_saved_and_opened(tmp_path):
    data = planted(100, 4, 2, 3)
    data.x = data.x[:, 0]
    task = NodeTask.from_data("thin", data)
    task.save(tmp_path / "task")
    again = datasets.load(str(tmp_path / "task"))
    assert again.num_features == task.num_features == 1
    assert torch.equal(again.data[0][None, "x", None], data.x)


def test_a_task_without_nodes():
    none = torch.empty(0, dtype=torch.bool)
    data = Data(
        x=torch.empty(0, 3), y=torch.empty(0, dtype=torch.int64), edge_index=torch.empty(2, 0, dtype=torch.int64),
        train_mask=none, val_mask=none, test_mask=none,
    )  # fmt: skip
    task = NodeTask.from_data("none", data)
    assert task.num_classes == 0
    assert str(task) == "none: 0 nodes, 0 edges, 3 features, 0 classes, 0 training nodes"


def test_a_task_that_was_saved_without_its_metric_has_accuracy(tmp_path):
    NodeTask.from_data("tolokers", planted(100, 4, 2, 3)).save(tmp_path)
    shutil.rmtree(tmp_path / "task")
    assert datasets.load(str(tmp_path)).metric == "accuracy"


@pytest.mark.slow
@pytest.mark.parametrize("splits", [1, 3])
def test_splits_that_are_not_there(tmp_path, splits):
    def data():
        given = planted(seed=0, **SMALL)
        if splits > 1:
            for key in ("train_mask", "val_mask", "test_mask"):
                given[key] = torch.stack([given[key].roll(i) for i in range(splits)], dim=1)
        return given

    for split in range(splits):
        masks = NodeTask.from_data("small", data(), split).masks
        assert torch.equal(masks["val"], planted(seed=0, **SMALL).val_mask.roll(split))
    expected = "0, because small has one split" if splits == 1 else "0 <= split < 3 of small"
    for split in (-1, splits, 99):
        with pytest.raises(ValueError, match=rf"^split: expected {expected}, found {split}$"):
            NodeTask.from_data("small", data(), split)
    NodeTask.from_data("small", data()).save(tmp_path / "task")
    with pytest.raises(ValueError, match=r"expected 0, because .* has one split, found 1"):
        datasets.load(str(tmp_path / "task"), split=1)


def test_archive_with_sparse_features_and_undirected_edges(tmp_path):
    x = np.array([[0, 1, 0], [2, 0, 0], [0, 0, 0], [0, 3, 4]], np.float32)
    rows, columns = x.nonzero()
    masks = {f"{key}_mask": np.eye(3, 4, k, dtype=bool).any(0) for k, key in enumerate(("train", "val", "test"))}
    np.savez(
        tmp_path / "tiny.npz",
        num_nodes=4,
        undirected=True,
        edge_index=np.array([[0, 1], [2, 3]], np.int32),
        x_indptr=np.concatenate([[0], np.bincount(rows, minlength=4).cumsum()]),
        x_indices=columns.astype(np.int16),
        x_data=x[rows, columns],
        x_dim=3,
        y=np.array([0, 1, -1, 1], np.int16),
        **masks,
    )
    task = datasets.load("tiny", tmp_path)
    assert torch.equal(task.data.x, torch.from_numpy(x))
    assert task.data.edge_index.tolist() == [[0, 1, 2, 3], [2, 3, 0, 1]]
    assert task.y.tolist() == [0, 1, -1, 1]
    assert task.num_classes == 2


def test_facebook_codes_become_one_hot(tmp_path):
    (tmp_path / "fb100").mkdir()
    for name, shift in (("A", 0), ("B", 1)):
        np.savez(
            tmp_path / "fb100" / f"{name}.npz",
            num_nodes=2,
            edge_index=np.array([[0], [1]], np.int32),
            x_codes=np.array([[1 + shift, 0, 5, 0], [0, 0, 0, 499]], np.int32),
            y=np.array([3, -1], np.int16),
            **{f"{key}_mask": np.array([True, False]) for key in ("train", "val", "test")},
        )
    both = datasets.load("fb100", tmp_path).data
    assert both.edge_index.tolist() == [[0, 2, 1, 3], [1, 3, 0, 2]]
    assert [row.nonzero().view(-1).tolist() for row in both.x] == [[1, 532], [1542], [2, 532], [1542]]
    assert torch.equal(datasets.load("fb100/B", tmp_path).data.x, both.x[2:])


def test_unknown_names_and_broken_archives(tmp_path):
    with pytest.raises(ValueError, match="dataset 'no-such-set': expected 'planted'"):
        datasets.load("no-such-set", tmp_path)
    np.savez(tmp_path / "foreign.npz", a=1)
    message = r"foreign.npz: expected edge_index, y and three masks, found no edge_index$"
    with pytest.raises(ValueError, match=message):
        datasets.load("foreign", tmp_path)
    (tmp_path / "fb100").mkdir()
    np.savez(tmp_path / "fb100" / "A.npz", x_codes=np.zeros((1, 4), np.int32))
    with pytest.raises(ValueError, match=r"A.npz: expected a school of Facebook100, found no y$"):
        datasets.load("fb100/A", tmp_path)


def test_archives_by_path(tmp_path, monkeypatch):
    data = planted(num_nodes=200)
    names = ("edge_index", "x", "y", "train_mask", "val_mask", "test_mask")
    (tmp_path / "here").mkdir()
    np.savez(tmp_path / "here" / "mine.npz", **{name: data[name].numpy() for name in names})
    monkeypatch.chdir(tmp_path)
    expected = datasets.load("mine", tmp_path / "here")
    for name, root in ((f"{tmp_path}/here/mine.npz", "."), ("here/mine.npz", "other"), ("mine.npz", "here")):
        task = datasets.load(name, root)
        assert torch.equal(task.y, expected.y), name
        assert task.num_edges == expected.num_edges == data.num_edges
    with pytest.raises(ValueError, match=r"'no.npz': expected an archive of arrays, found neither no.npz nor "):
        datasets.load("no.npz", "o")


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "features", "classes"),
    [
        ("cora", 2708, 10_556, 1433, 7),
        ("tolokers", 11_758, 1_038_000, 10, 2),
        ("fb100/Caltech36", 769, 33_312, 1543, 6),
    ],
)
def test_real_sets(name, nodes, edges, features, classes):
    if not REAL.is_dir():
        pytest.skip(f"no real graphs in {REAL}: set GNNSCALE_DATA")
    task = datasets.load(name, REAL)
    assert (task.num_nodes, task.num_edges, task.num_features) == (nodes, edges, features)
    assert task.num_classes == classes
    assert task.metric == ("roc_auc" if name == "tolokers" else "accuracy")


@pytest.mark.slow
def test_raw_files_are_read_by_torch_geometric(tmp_path):
    if not (REAL / "cora" / "raw").is_dir():
        pytest.skip(f"no raw files in {REAL}: set GNNSCALE_DATA")
    (tmp_path / "Cora").mkdir()
    (tmp_path / "Cora" / "raw").symlink_to(REAL / "cora" / "raw")
    raw, archive = datasets.load("Cora", tmp_path), datasets.load("cora", REAL)
    assert torch.equal(raw.y, archive.y)
    assert torch.equal(raw.masks["train"], archive.masks["train"])
    assert torch.equal(raw.data.edge_index.unique(dim=1), archive.data.edge_index.unique(dim=1))


@pytest.mark.slow
def test_a_task_that_cannot_be_saved_leaves_nothing(tmp_path):
    task = datasets.load()
    csc = CSC.from_data(task.data)
    task.data = FeatureStore.from_data(task.data), GraphStore.from_csc(CSC(csc.colptr, csc.row - 1, None, csc.num_src))
    with pytest.raises(ValueError, match=r"^relation None: row\["):
        task.save(tmp_path / "task")
    assert list(tmp_path.iterdir()) == []


# torch_geometric.datasets ############################################################################################


@pytest.mark.parametrize("name", ["KarateClub", "FakeDataset", "QM9", "dblp", "Planetoid", "PPI", "ExplainerDataset"])
def test_classes_that_no_task_can_be_made_of_are_refused_by_name(name, tmp_path):
    with pytest.raises(ValueError, match=rf"^dataset '{name}': expected a class of torch_geometric.datasets that needs "
                       r"only a root and is one graph with x, y and three masks of nodes \(Actor, "):  # fmt: skip
        datasets.load(name, tmp_path / "root")
    assert list(tmp_path.iterdir()) == []


def test_each_class_of_torch_geometric_takes_a_root_and_reads_from_its_own_folder(tmp_path, monkeypatch):
    data, roots = planted(seed=0, **SMALL), []
    for name in archives.CLASSES:
        (root, *others) = inspect.signature(getattr(torch_geometric.datasets, name)).parameters.values()
        assert root.name == "root"
        assert all(other.default is not other.empty for other in others)
        monkeypatch.setattr(torch_geometric.datasets, name, lambda root: roots.append(root) or [data.clone()])
        assert torch.equal(datasets.load(name.lower(), tmp_path).y, data.y)
    assert roots == [str(tmp_path / name) for name in archives.CLASSES]


@pytest.mark.parametrize(
    ("kind", "names"), [("Planetoid", archives.PLANETOID), ("HeterophilousGraphDataset", archives.HETEROPHILOUS)]
)
def test_each_class_of_several_data_sets_is_given_the_root_and_the_name(kind, names, tmp_path, monkeypatch):
    data, asked = planted(seed=0, **SMALL), []
    monkeypatch.setattr(torch_geometric.datasets, kind, lambda *given: asked.append(given) or [data.clone()])
    for name in names:
        assert torch.equal(datasets.load(name, tmp_path).y, data.y)
    assert asked == [(str(tmp_path), name) for name in names]


@pytest.mark.parametrize("name", ["Flickr", "cora", "minesweeper", "WikiCS"])
@pytest.mark.parametrize("there", [False, True])
def test_without_a_network_the_error_names_the_data_set_and_its_root(name, there, tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    root = tmp_path / "some" / "root"
    if there:
        root.mkdir(parents=True)
        (root / "empty").mkdir()
    with pytest.raises(OSError, match=rf"^dataset '{name}': expected its files in {root} \(--root\) or a connection to "
                       r"download them, found \w+: \S"):  # fmt: skip
        datasets.load(name, root)
    assert list(tmp_path.rglob("*")) == ([tmp_path / "some", root, root / "empty"] if there else [])


@pytest.mark.parametrize(
    ("y", "found"),
    [(torch.rand(2000), r"\(2000,\) and type float32"), (torch.ones(2000, 3).long(), r"\(2000, 3\) and")],
)
def test_labels_that_are_no_classes_are_refused(y, found):
    data = planted(seed=0, **SMALL)
    data.y = y
    with pytest.raises(ValueError, match=f"^mine: expected one class for each of 2000 nodes, found y of shape {found}"):
        NodeTask.from_data("mine", data)


@pytest.mark.parametrize("node_type", [None, "author"])
def test_seeds_are_those_of_their_data_split(node_type):
    if node_type is None:
        task = NodeTask.from_data("small", planted(seed=0, **SMALL))
    else:
        task = NodeTask.from_types("small", datasets.planted_types(60, 80, 12, 4, seed=0), node_type)
    for subset in ("train", "val", "test"):
        seeds = task.seeds(subset)
        if node_type is not None:
            assert seeds[0] == node_type
            x, y = task.labelled(subset)
            assert torch.equal(x, task.data[node_type].x[task.masks[subset]])
            assert torch.equal(y, task.y[task.masks[subset]])
            seeds = seeds[1]
        assert torch.equal(seeds, task.masks[subset].nonzero().view(-1))


def test_a_mask_without_columns_is_that_of_all_splits():
    plain = planted(seed=0, **SMALL)
    data = plain.clone()
    data.train_mask = torch.stack([plain.train_mask, plain.val_mask], dim=1)
    task = NodeTask.from_data("two splits, one test", data.clone(), split=1)
    assert torch.equal(task.masks["train"], plain.val_mask)
    assert torch.equal(task.masks["test"], plain.test_mask)
    with pytest.raises(ValueError, match=r"expected 0 <= split < 2 of .*, found 2"):
        NodeTask.from_data("two splits, one test", data, split=2)
