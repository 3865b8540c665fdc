"""``gnnscale convert``: graphs of one kind of nodes and of two, with and without rows, and what trains on them."""

import re

import numpy as np
import pytest
import torch
from helpers.edges import assert_same_csc, random_edges

from torch_gnnscale import CSC, FeatureStore, GraphStore, datasets
from torch_gnnscale.cli import main
from torch_gnnscale.datasets import NodeTask

BUYS = ("user", "buys", "item")
SPLIT = {"train": np.arange(0, 20), "val": np.arange(25, 20, -1), "test": np.arange(40) >= 26}


@pytest.fixture
def edges(tmp_path):
    """400 edges from 40 nodes to 25, in the file edges.npy of the current folder."""
    made = torch.cat([random_edges(40, 25, 400), torch.tensor([[39], [24]])], dim=1)
    np.save(tmp_path / "edges.npy", made.numpy())
    return made


@pytest.fixture
def convert(tmp_path, monkeypatch, capsys):
    """Runs the command in ``tmp_path``, which has the files of rows; returns what it prints."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(120, dtype=np.float32).reshape(40, 3))
    np.save("y.npy", np.arange(40) % 4 - 1)
    np.savez("split.npz", **SPLIT)

    def run(*options: str, out: str = "graph") -> str:
        main(["convert", "edges.npy", "--out", out, *options])
        return capsys.readouterr().out

    return run


ROWS = ("--x", "x.npy", "--y", "y.npy", "--split", "split.npz")
TYPED = ("--types", *BUYS)
TYPED_ROWS = ("--x", "user=x.npy", "--y", "user=y.npy", "--split", "user=split.npz")


def refused(capsys, *arguments: str) -> str:
    """The line that the command ends with."""
    with pytest.raises(SystemExit) as stop:
        main([*arguments])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("gnnscale: ")
    assert error.count("\n") == 1
    return error.removeprefix("gnnscale: ").rstrip()


def test_what_the_columns_are_is_said(edges, convert):
    low, high = edges.amin(dim=1).tolist()
    of_sources, of_destinations = (f"ids {int(ids.min())} to {int(ids.max())}" for ids in edges)
    shared = max(low, high)
    ranges = f"sources: {of_sources}; destinations: {of_destinations}\n"
    both = f"both columns are ids of the same nodes: source {shared} and destination {shared} are one node"
    assert convert() == (
        f"{ranges}{both} (for ids of two kinds of nodes: --types SRC REL DST)\n"
        f"40 nodes, 401 edges in graph\nGraphStore.open('graph')\n"
    )
    assert convert(*TYPED, out="typed") == (
        f"{ranges}sources are ids of user nodes, destinations of item nodes\n"
        "40 user nodes, 25 item nodes, 401 edges user buys item in typed\n"
        "gnnscale train --task links --dataset typed; GraphStore.open('typed')\n"
    )
    assert convert("--types", "user", "knows", "user", out="known").startswith(
        f"{ranges}{both}\n40 nodes, 401 edges user"
    )
    assert_same_csc(GraphStore.open("graph").relation(), CSC.from_edge_index(edges, 40))
    assert_same_csc(GraphStore.open("typed").relation(BUYS), CSC.from_edge_index(edges, (40, 25)))


def test_columns_that_share_no_id_and_no_edges(convert):
    np.save("edges.npy", np.array([[0, 1], [2, 3]]))
    assert "are one node" not in convert()
    np.save("edges.npy", np.empty((2, 0), dtype=int))
    assert convert("--nodes", "3", out="none").startswith(
        "sources: no ids; destinations: no ids\nboth columns are ids of the same nodes ("
    )
    assert GraphStore.open("none").relation().colptr.tolist() == [0] * 4


def test_files_without_edges(convert, capsys, tmp_path):
    pytest.importorskip("pyarrow")
    np.save("none.npy", np.empty((2, 0), dtype=int))
    (tmp_path / "empty.csv").touch()
    (tmp_path / "header.csv").write_text("src,dst\n")
    for files in (["none.npy"], ["empty.csv"], ["header.csv"], ["empty.csv", "none.npy"]):
        for options in ((), TYPED):
            assert refused(capsys, "convert", *files, "--out", "graph", *options) == (
                f"{', '.join(files)}: expected edges, found none; --nodes makes a graph of nodes without edges"
            )
    (tmp_path / "empty.npy").touch()
    assert refused(capsys, "convert", "empty.npy", "--out", "graph").startswith("empty.npy: expected a .npy file")
    assert not (tmp_path / "graph").exists()


def check_labels(task: NodeTask, x: torch.Tensor) -> None:
    assert torch.equal(x, torch.arange(120.0).view(40, 3))
    assert torch.equal(task.y, torch.arange(40) % 4 - 1)
    assert task.masks["train"].nonzero().view(-1).tolist() == list(range(20))
    assert task.masks["val"].nonzero().view(-1).tolist() == list(range(21, 26))
    assert task.masks["test"].nonzero().view(-1).tolist() == list(range(26, 40))
    assert (task.num_features, task.num_classes, task.num_nodes, task.metric) == (3, 3, 40, "accuracy")


def test_a_graph_with_rows_is_a_data_set(edges, convert):
    assert "gnnscale train --task nodes --dataset graph; GraphStore.open('graph/graph')" in convert(*ROWS)
    task = datasets.load("graph")
    check_labels(task, task.data[0].get_tensor(group_name=None, attr_name="x", index=None))
    assert_same_csc(task.data[1].relation(), CSC.from_edge_index(edges, 40))


@pytest.mark.slow
def test_a_graph_with_types_and_rows_is_a_data_set(edges, convert):
    assert "gnnscale train --task hetero --dataset graph; " in convert(*TYPED, *TYPED_ROWS)
    task = datasets.load_types("graph")
    assert task.node_type == "user"
    check_labels(task, task.data["user"].x)
    assert torch.equal(task.data[BUYS].edge_index, edges)
    assert torch.equal(task.data["item", "rev_buys", "user"].edge_index, edges.flip(0))
    assert task.data["item"].num_nodes == 25
    task.save("again")
    again = datasets.load_types("again")
    check_labels(again, again.data["user"].x)
    assert again.data.edge_types == task.data.edge_types


@pytest.mark.parametrize("rows", [(), ("--x", "user=x.npy"), TYPED_ROWS])
def test_links_of_a_graph_with_types_are_held_out(rows, edges, convert):
    convert(*TYPED, *rows)
    task = datasets.load_links("graph")
    pairs = edges.unique(dim=1)
    found = [pairs[:, torch.arange(pairs.size(1)) % 10 == number] for number in range(10)]
    assert torch.equal(task.links["val"], found[8])
    assert torch.equal(task.links["test"], found[9])
    assert torch.equal(task.links["train"].unique(dim=1), torch.cat(found[:8], dim=1).unique(dim=1))
    assert torch.equal(task.data[BUYS].edge_index, task.links["train"])
    assert task.edge_type == BUYS
    assert ("x" in task.data["user"]) == bool(rows)
    assert task.data["item"].num_nodes == 25


def test_rows_alone_are_kept(convert, edges):
    assert convert("--x", "x.npy").endswith("GraphStore.open('graph/graph'), FeatureStore.open('graph/features')\n")
    assert FeatureStore.open("graph/features").get_tensor_size(group_name=None, attr_name="x", index=None) == (40, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--types", "a.b", "r", "c"), "--types: expected names without '.' and '__', of which modules are made"),
        (("--types", "a", "", "c"), "--types: expected names without '.' and '__', of which modules are made"),
        (("--types", "a", "r", "b", "--x", "x.npy"), "--x: expected TYPE=FILE with a type of ['a', 'b'], found 'x"),
        ((*TYPED, "--x", "user=x.npy", "user=y.npy"), "--x: expected one file of user, found x.npy and y.npy"),
        (("--x", "x.npy", "y.npy"), "--x: expected one file, found x.npy and y.npy"),
        (("--x", "x.npy", "--y", "y.npy"), "--y: expected --split of the same nodes beside it, found none"),
        (("--split", "split.npz"), "--split: expected --x and --y of the same nodes beside it, found none"),
        ((*ROWS, "--nodes", "41"), "--nodes: expected 40, the rows of --x, found 41"),
        (("--nodes", "40", "25"), "--nodes: expected 1, found 2"),
        ((*TYPED, "--nodes", "40"), "--nodes: expected 2, found 1"),
        (("--nodes", "39"), "--nodes: expected more than 39 nodes, an id in edges.npy, found 39"),
        ((*TYPED, "--nodes", "40", "24"), "--nodes: expected more than 24 nodes, an id in edges.npy, found 24"),
        (("--x", "few.npy"), "--x: expected more than 39 nodes, an id in edges.npy, found 39"),
        (("--x", "y.npy"), "y.npy: expected features of shape (nodes, features) and a type of bool, "),
        (("--x", "words.npy"), "words.npy: expected features of shape (nodes, features) and a type of bool, "),
        (("--x", "split.npz"), "split.npz: expected an array of a row for each node (.npy), found another"),
        (("--x", "edges.txt"), "edges.txt: expected arrays of numbers (.npy or .npz), found something else or"),
        (("--x", "lost.npy"), "[Errno 2] No such file or directory: 'lost.npy'"),
        (("--x", "x.npy", "--y", "few.npy", "--split", "split.npz"), "few.npy: expected one class for each node, int"),
        (("--x", "x.npy", "--y", "short.npy", "--split", "split.npz"),
         "short.npy: expected classes of 40 nodes, as x.npy has, found 2"),
        (("--x", "x.npy", "--y", "low.npy", "--split", "split.npz"),
         "low.npy: expected classes of at least 0, or -1 where they are unknown, found -2"),
    ],
)  # fmt: skip
def test_rows_that_are_refused(options, message, convert, edges, tmp_path, capsys):
    np.save("few.npy", np.zeros((39, 2)))
    np.save("words.npy", np.array([["a"], ["b"]]))
    np.save("short.npy", np.zeros(2, dtype=int))
    np.save("low.npy", np.arange(40) - 2)
    (tmp_path / "edges.txt").write_text("1 2\n")
    assert refused(capsys, "convert", "edges.npy", "--out", "graph", *options).startswith(message)
    assert not (tmp_path / "graph").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val": np.array([3])}, "split.npz: expected each node in one split, found 3 in train and val"),
        ({"val": np.array([40])}, "split.npz, val: expected nodes in [0, 40), found 40"),
        ({"val": np.array([-1])}, "split.npz, val: expected nodes in [0, 40), found -1"),
        (
            {"val": np.array([0.5])},
            "split.npz, val: expected ids of nodes, shape (m,), or a mask, found shape (1,) and",
        ),
        ({"val": np.array([[30]])}, "split.npz, val: expected ids of nodes, shape (m,), or a mask, found shape (1, 1)"),
        ({"test": np.ones(39, dtype=bool)}, "split.npz, test: expected a mask of 40 nodes, found shape (39,)"),
        ({"train": np.array([])}, "split.npz, train: expected at least one node, found none"),
        ({"valid": np.array([1])}, "split.npz: expected an archive (.npz) of the arrays train, val, test, found ["),
    ],
)
def test_splits_that_are_refused(change, message, convert, edges, capsys):
    np.savez("split.npz", **(SPLIT | change))
    assert refused(capsys, "convert", "edges.npy", "--out", "graph", *ROWS).startswith(message)


@pytest.mark.slow
def test_tasks_that_a_directory_does_not_have(convert, edges, capsys, tmp_path):
    convert(out="plain")
    convert(*TYPED, out="typed")
    convert("--types", "user", "knows", "user", "--x", "user=x.npy", out="known")
    (tmp_path / "parts" / "book").mkdir(parents=True)
    (tmp_path / "parts" / "graph").mkdir()
    (tmp_path / "parts" / "graph" / "gnnscale.json").touch()
    lacks = "x and three masks beside the graph"
    for task, name, message in (
        ("nodes", "plain", "plain: expected x, y and three masks beside the graph, found no x, y, train_mask, "
         "val_mask, test_mask; gnnscale convert takes them as --x, --y and --split"),
        ("nodes", "parts", "parts: expected a saved graph, found the parts of one, which --parts takes"),
        ("nodes", "typed", f"typed: expected a graph without types, found one with {BUYS}; --task hetero and links"),
        ("hetero", "plain", "plain: expected a graph with types, found one without; --task nodes is for these"),
        ("hetero", "known", f"known: expected {lacks.replace('x', 'x, y', 1)}, found no x, y, train_mask"),
        ("links", "plain", "plain: expected relations between types, as gnnscale tables or convert --types makes"),
    ):  # fmt: skip
        for command in (["train"], ["partition", "--parts", "2"]):
            found = refused(capsys, *command, "--task", task, "--dataset", name, "--out", "new")
            assert found.startswith(message), found


def test_ids_with_large_gaps_are_named(convert, capsys, tmp_path):
    for largest in (1 << 33, (1 << 62) + 5, (1 << 63) - 1):
        np.save("edges.npy", np.array([[0, 1], [1, largest]]))
        for options in ((), TYPED):
            assert refused(capsys, "convert", "edges.npy", "--out", "graph", *options) == (
                f"edges.npy: expected ids that are numbered from 0 without large gaps, found id {largest} among 2 "
                f"edges; number the nodes anew, or say how many there are by --nodes"
            )
    assert not (tmp_path / "graph").exists()


@pytest.mark.parametrize("dense", [200, 10])
def test_gaps_are_large_beyond_a_number_of_nodes_and_one_per_edge(dense, convert, capsys, monkeypatch):
    monkeypatch.setattr("torch_gnnscale.cli.convert._DENSE", dense)
    most = max(dense, 2 * 64)
    np.save("edges.npy", np.array([[0, 1], [1, most - 1]]))
    assert f"\n{most} nodes, 2 edges in graph\n" in convert()
    np.save("edges.npy", np.array([[0, most], [1, 1]]))
    assert f"without large gaps, found id {most} among 2 edges" in refused(
        capsys, "convert", "edges.npy", "--out", "other"
    )


def test_more_nodes_than_a_disk_or_ids_have_room_for(convert, edges, capsys):
    command = ["convert", "edges.npy", "--out", "graph", "--nodes"]
    assert re.fullmatch(r"\[Errno 28\] .* nodes take .* of column pointers, and .* are free: '/.*/graph'",
                        refused(capsys, *command, str(1 << 62)))  # fmt: skip
    assert refused(capsys, *command, str(1 << 63)) == (f"--nodes: expected 0 <= size <= {1 << 62}, found {1 << 63}")


@pytest.mark.slow
def test_negative_ids_are_named_by_file_and_edge(convert, capsys, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    np.save("edges.npy", np.array([[0, 1], [1, -3]]))
    np.save("rows.npy", np.array([[0, 1], [1, 2], [-4, 5]], dtype=np.int8))
    pq.write_table(pa.table({"src": [0, -2], "dst": [1, 1]}), "edges.parquet")
    for file, edge, found in (("edges.npy", 1, -3), ("rows.npy", 2, -4), ("edges.parquet", 1, -2)):
        for options in ((), ("--nodes", "9")):
            message = f"{file}, edge {edge}: expected ids of at least 0, found {found}"
            assert re.fullmatch(re.escape(message), refused(capsys, "convert", file, "--out", "graph", *options))


@pytest.mark.slow
def test_what_was_converted_is_trained_on_at_once(convert, edges, capsys):
    convert(*ROWS, out="plain")
    convert(*TYPED, *TYPED_ROWS, out="typed")
    for task, name in (("nodes", "plain"), ("hetero", "typed"), ("links", "typed")):
        train = ["--task", task, "--epochs", "1", "--hidden", "8"]
        main(["train", *train, "--dataset", name, "--out", f"run-{task}"])
        main(
            ["partition", "--task", task, "--dataset", name, "--parts", "1", "--method", "random", "--out", f"p-{task}"]
        )
        main(["train", *train, "--parts", f"p-{task}", "--out", f"run-{task}-parts"])
        assert capsys.readouterr().out.count("checkpoint and summary in") == 2
