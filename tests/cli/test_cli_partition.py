"""The command ``gnnscale partition``."""

import argparse
import re

import numpy as np
import pytest
import torch

from torch_gnnscale import files
from torch_gnnscale.cli import main
from torch_gnnscale.cli.partition import _next_step
from torch_gnnscale.datasets import NodeTask, planted, planted_links, planted_types
from torch_gnnscale.partition import open_parts, read_report


@pytest.fixture(scope="module")
def task():
    return NodeTask.from_data("small", planted(1000, num_classes=4, num_features=8, seed=0))


def test_a_data_set_in_parts(tmp_path, task, capfd):
    task.save(tmp_path / "task")
    out = str(tmp_path / "parts")
    command = ["partition", "--dataset", str(tmp_path / "task"), "--method", "random", "--out", out, "--seed", "3"]
    main([*command, "--parts", "3", "--only", "1"])
    printed = capfd.readouterr().out
    assert "1,000 nodes" in printed
    assert f"still to be written to {out}: --only 0 2\n" in printed
    assert str(read_report(out)[1]) in printed
    main([*command, "--only", "0", "2", "--memory", "0.001"])
    printed = capfd.readouterr().out
    assert re.search(
        r"^parts by random in \d+\.\d s.*; this report as JSON: .*/book/gnnscale.json$", printed, re.MULTILINE
    )
    line = f"torchrun --nproc-per-node=3 -m torch_gnnscale train --parts {out} --batch-size 341"
    assert f"complete: {line}; in a program open_part({out!r})\n" in printed
    parts = open_parts(out)
    assert torch.equal(parts.input_nodes("val"), task.masks["val"].nonzero().view(-1))
    assert parts.about == {
        "task": "nodes", "dataset": "task", "node_type": None, "metric": "accuracy", "num_classes": 4, "num_features": 8
    }  # fmt: skip


@pytest.mark.parametrize(("parts", "seeds"), [(2, 512), (1024, 1), (1025, 1), (5000, 1)])
def test_each_of_many_ranks_is_told_to_take_a_seed(parts, seeds):
    line = _next_step(argparse.Namespace(out="there", task="nodes"), parts)
    assert line == (f"torchrun --nproc-per-node={parts} -m torch_gnnscale train --parts there --batch-size {seeds}")


def test_a_place_that_cannot_be_written_to_is_refused_before_the_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch_gnnscale.datasets.node_task.planted", lambda: pytest.fail("data were loaded"))
    (tmp_path / "full" / "book").mkdir(parents=True)
    (tmp_path / "full" / "book" / "gnnscale.json").touch()
    (tmp_path / "file").touch()
    for out, message in (
        ("full", "expected a new or an empty directory, found a book in it; say which parts: only= (--only)"),
        ("file", "expected a new or an empty directory, found a file"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["partition", "--parts", "2", "--out", str(tmp_path / out)])
        assert (stop.value.code, capsys.readouterr().err) == (2, f"gnnscale: {tmp_path / out}: {message}\n")

    def refuse(**_):
        raise OSError(30, "Read-only file system", "/tmp/abc")

    monkeypatch.setattr(files.tempfile, "TemporaryFile", refuse)
    np.save(tmp_path / "edges.npy", np.array([[0], [1]]))
    out = str(tmp_path / "a" / "b")
    for command in (["partition", "--parts", "2"], ["split"], ["train"], ["convert", str(tmp_path / "edges.npy")]):
        with pytest.raises(SystemExit) as stop:
            main([*command, "--out", out])
        line = f"gnnscale: [Errno 30] Read-only file system: '{out}'\n"
        assert (stop.value.code, capsys.readouterr().err) == (2, line)
    assert not (tmp_path / "a").exists()


def test_tasks_with_types(tmp_path, monkeypatch):
    types, links = planted_types(200), planted_links(100, 60)
    monkeypatch.setattr("torch_gnnscale.datasets.node_task.planted_types", lambda: types)
    monkeypatch.setattr("torch_gnnscale.datasets.link_task.planted_links", lambda: links)
    owners = {t: np.arange(types[t].num_nodes) % 2 for t in types.node_types}
    np.savez(tmp_path / "owners.npz", **owners)
    options = ["--parts", "2", "--topology", "partitioned"]
    main(
        [
            "partition",
            "--task",
            "hetero",
            "--owners",
            str(tmp_path / "owners.npz"),
            "--out",
            str(tmp_path / "1"),
            *options,
        ]
    )
    parts = open_parts(tmp_path / "1")
    assert parts.topology == "partitioned"
    assert parts.about["node_type"] == "author"
    assert parts.assigned == {"method": "owners"}
    for node_type, owner in owners.items():
        assert parts.book.part_of(parts.stored_ids(node_type), node_type).tolist() == owner.tolist()
    main(["partition", "--task", "links", "--method", "ranges", "--out", str(tmp_path / "2"), *options])
    parts, edge_type = open_parts(tmp_path / "2"), ("user", "chooses", "item")
    assert tuple(parts.about["edge_type"]) == edge_type
    assert parts.link_splits == [(edge_type, split) for split in ("train", "val", "test")]
    assert torch.equal(parts.links("test", edge_type), links[1]["test"])


@pytest.mark.slow
def test_owners_of_a_graph_without_types(tmp_path, task, capfd):
    task.save(tmp_path / "task")
    np.save(tmp_path / "owners.npy", np.arange(1000, dtype=np.uint8) % 4)
    command = [
        "partition",
        "--dataset",
        str(tmp_path / "task"),
        "--owners",
        str(tmp_path / "owners.npy"),
        "--parts",
        "4",
    ]
    main([*command, "--out", str(tmp_path / "parts"), "--graph-attrs", "y"])
    parts = open_parts(tmp_path / "parts")
    assert parts.part(3).user_ids[None].tolist() == list(range(3, 1000, 4))
    assert torch.equal(parts.graph_attrs[None, "y"][parts.stored_ids()], task.y)
    assert "parts by owners; this report" in capfd.readouterr().out


def test_options_of_the_method_reach_it(tmp_path, task, monkeypatch):
    class Asked(Exception):
        pass

    def write(*_, balance, seed, **others):
        raise Asked(f"{balance} {seed}")

    monkeypatch.setattr("torch_gnnscale.datasets.node_task.planted", lambda: task.data)
    monkeypatch.setattr("torch_gnnscale.cli.partition.write", write)
    command = ["partition", "--parts", "2", "--out", str(tmp_path / "parts")]
    for given, expected in (
        ([], "['nodes', 'edges', 'train'] 0"),
        (["--balance", "edges", "--seed", "3"], "['edges'] 3"),
    ):
        with pytest.raises(Asked, match=f"^{re.escape(expected)}$"):
            main([*command, *given])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory", "0"], "--memory: expected a finite number of GiB above 0, found 0.0"),
        ([], "--parts: expected their number, found None"),
        (["--parts", "0"], f"--parts: expected 1 <= parts <= {2**62}, found 0"),
        (["--parts", "2", "--only", "5"], "--only: expected a part in [0, 2), found 5"),
        (["--parts", "2", "--graph-attrs", "z"],
         "--graph-attrs: expected names of ['test_mask', 'train_mask', 'val_mask', 'x', 'y'], found ['z']"),
        (["--parts", "2", "--owners", "missing.npy"], "[Errno 2] No such file or directory: 'missing.npy'"),
        (["--parts", "2", "--out", __file__], f"{__file__}: expected a new or an empty directory, found a file"),
    ],
)  # fmt: skip
def test_command_refuses(arguments, message, capsys, monkeypatch, tmp_path, task):
    monkeypatch.setattr("torch_gnnscale.datasets.node_task.planted", lambda: task.data)
    with pytest.raises(SystemExit) as stop:
        main(["partition", "--method", "random", "--out", str(tmp_path / "parts"), *arguments])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"gnnscale: {message}\n"


def damaged(folder):
    """Files that hold no parts of nodes, by what they are."""
    np.savez(folder / "broken.npz", a=np.arange(9))
    (folder / "broken.npz").write_bytes((folder / "broken.npz").read_bytes()[:-30])
    (folder / "empty.npy").touch()
    (folder / "text.csv").write_text("0\n1\n")
    return ["broken.npz", "empty.npy", "text.csv"]


def test_owners_that_are_no_arrays_are_refused_before_data_are_loaded(capsys, tmp_path):
    command = ["partition", "--parts", "2", "--dataset", "none", "--out", str(tmp_path / "parts")]
    for name in damaged(tmp_path):
        file = tmp_path / name
        with pytest.raises(SystemExit) as stop:
            main([*command, "--owners", str(file)])
        assert stop.value.code == 2
        message = f"{file}: expected arrays of numbers (.npy or .npz), found something else or a damaged file"
        assert capsys.readouterr().err == f"gnnscale: {message}\n"


def test_owners_of_too_few_nodes_name_the_option(capsys, monkeypatch, tmp_path, task):
    monkeypatch.setattr("torch_gnnscale.datasets.node_task.planted", lambda: task.data)
    np.save(tmp_path / "owners.npy", np.zeros(9, np.int64))
    with pytest.raises(SystemExit):
        main(["partition", "--parts", "2", "--out", str(tmp_path / "p"), "--owners", str(tmp_path / "owners.npy")])
    message = "--owners: expected the parts of 1000 nodes, found shape (9,)"
    assert capsys.readouterr().err == f"gnnscale: {message}\n"
