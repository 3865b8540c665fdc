"""The commands from tables to embeddings with the users' ids; and what a killed one leaves."""

import json
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
import yaml
from helpers.command import refused_command
from helpers.data import environment
from helpers.tables import SHOP, arrays, built, put, same, shop, write

from torch_gnnscale import tables
from torch_gnnscale.cli import main
from torch_gnnscale.datasets import load_events, load_links, load_types


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with tables, a schema of them, and their graph."""
    folder = tmp_path_factory.mktemp("shop")
    write(folder, shop(users=60, items=20, orders=400))
    (folder / "shop.yaml").write_text(yaml.safe_dump(SHOP, sort_keys=False))
    main(["tables", str(folder / "shop.yaml"), "--out", str(folder / "graph")])
    return folder


def test_what_is_printed_and_stored(folder, capsys):
    main(["tables", str(folder / "shop.yaml"), "--out", str(folder / "again"), "--memory", "200MB"])
    said = capsys.readouterr().out
    assert "nodes.user: 60 rows of 1 file; string keys; " in said
    assert "rows dropped: unknown source" in said
    assert f"written: {folder / 'again'}; in a program: tables.open({str(folder / 'again')!r})" in said
    assert f"gnnscale train --dataset {folder / 'again'} --target user.label" in said
    same(arrays(folder / "again"), arrays(folder / "graph"))
    assert json.loads((folder / "again" / "report.json").read_text())["nodes"]["user"]["rows"] == 60


def test_from_tables_to_embeddings(folder, tmp_path, capsys):
    graph, run = str(folder / "graph"), str(tmp_path / "run")
    small = ["--hidden", "8", "--epochs", "1", "--fanouts", "3", "3"]
    main(["train", "--dataset", graph, "--target", "user.buys.item", "--out", run, *small])
    main(["embed", "--run", run, "--out", str(tmp_path / "rows"), "--format", "parquet", "--batch-size", "7"])
    users = pyarrow.parquet.read_table(tmp_path / "rows" / "user.parquet")
    assert users["id"].to_pylist() == tables.ids(graph, "user").names(range(60)).to_pylist()
    assert len(users["row"][0]) == 8
    items = pyarrow.parquet.read_table(tmp_path / "rows" / "item.parquet")
    assert items["id"].to_pylist() == sorted(range(-20, 120, 7))


def test_classes_of_a_target(folder, tmp_path, capsys):
    graph, run = str(folder / "graph"), str(tmp_path / "run")
    small = ["--hidden", "8", "--epochs", "1", "--fanouts", "3", "3"]
    main(["train", "--dataset", graph, "--target", "user.label", "--out", run, *small])
    assert "accuracy" in capsys.readouterr().out
    main(["embed", "--run", run, "--out", str(tmp_path / "rows"), "--format", "parquet"])
    rows = pyarrow.parquet.read_table(tmp_path / "rows" / "user.parquet")
    assert rows["id"].to_pylist() == tables.ids(graph, "user").names(range(60)).to_pylist()
    assert len(rows["row"][0]) == 3


def test_a_label_without_a_split_is_not_what_comes_next(tmp_path, capsys):
    put(tmp_path / "users.csv", pa.table({"id": ["a", "b"], "y": ["p", "q"]}))
    user = {"files": "users.csv", "key": "id", "label": "y"}
    for split, told in (({}, False), ({"split": {"val": 0.1}}, True)):
        (tmp_path / "s.yaml").write_text(yaml.safe_dump({"nodes": {"user": user | split}}))
        main(["tables", str(tmp_path / "s.yaml"), "--out", str(tmp_path / f"graph{told}")])
        assert ("--target user.label" in capsys.readouterr().out) == told


def test_targets_that_are_none(folder, capsys):
    graph = folder / "graph"
    found = refused_command(capsys, "train", "--dataset", graph, "--target", "item.label")
    assert f"--target: expected one of user.label in {graph}, found 'item.label'" in found
    found = refused_command(capsys, "train", "--dataset", graph, "--target", "user.item")
    assert f"--target: expected one of user.buys.item, item.made_by.user in {graph}, found 'user.item'" in found
    found = refused_command(capsys, "train", "--dataset", graph, "--task", "links")
    assert f"--target: expected one of user.buys.item, item.made_by.user in {graph}, found None" in found
    found = refused_command(capsys, "train", "--target", "user.label")
    assert "--target: expected none of planted, which is no directory of a graph with types" in found
    found = refused_command(capsys, "train", "--task", "nodes", "--target", "user.label")
    assert "--target: expected none of task nodes, whose nodes are of one type, found 'user.label'" in found


def test_the_links_of_a_task(folder):
    task = load_links(str(folder / "graph"), target="user.buys.item")
    found = arrays(folder / "graph")
    colptr, row = found[1]["user", "buys", "item"]
    pairs = list(zip(row.tolist(), torch.repeat_interleave(colptr.diff()).tolist(), strict=True))
    before = set()
    for subset, links in task.links.items():
        mask = found[0][("user", "buys", "item"), f"{subset}_mask"].tolist()
        asked = {pair for pair, of in zip(pairs, mask, strict=True) if of} - before
        assert {tuple(pair) for pair in links.t().tolist()} == asked
        assert links.size(1) == len(asked) > 0
        before |= asked
    assert torch.equal(task.data["user", "buys", "item"].edge_index, task.links["train"])
    assert torch.equal(task.data["item", "rev_buys", "user"].edge_index.flip(0), task.links["train"])
    assert task.data["item", "made_by", "user"].num_edges == len(found[1]["item", "made_by", "user"][1])


def test_the_events_of_a_task(folder):
    task = load_events(str(folder / "graph"), target="user.buys.item")
    store = task.data["user", "buys", "item"]
    assert bool((store.time.diff() >= 0).all())
    assert sum(len(events) for events in task.events.values()) == store.num_edges
    assert "category" in task.data["user"]
    with pytest.raises(
        ValueError, match=r"expected item.made_by.user to have times and a split by them, found no time"
    ):
        load_events(str(folder / "graph"), target="item.made_by.user")


def test_the_labels_of_a_task(folder):
    task = load_types(str(folder / "graph"))
    assert task.node_type == "user"
    assert task.num_classes == 3
    assert not bool((task.y[task.masks["train"] | task.masks["val"] | task.masks["test"]] < 0).any())
    x, _ = task.labelled("train")
    assert x.shape == (int(task.masks["train"].sum()), 6)


def test_categories_in_parts_are_refused(folder, tmp_path, capsys):
    graph = str(folder / "graph")
    main(["partition", "--dataset", graph, "--task", "links", "--target", "user.buys.item", "--parts", "1",
          "--out", str(tmp_path / "parts")])  # fmt: skip
    assert "training on categories of user in parts is not implemented" in refused_command(
        capsys, "train", "--parts", tmp_path / "parts", "--epochs", "1", "--out", tmp_path / "run"
    )


@pytest.mark.slow
def test_a_run_that_was_killed_is_started_again(tmp_path, recwarn):
    schema = {"nodes": {"user": {"files": "users*", "key": "id"}}}
    put(tmp_path / "users.parquet", pa.table({"id": list(range(200_000))}))
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(schema))
    command = [
        sys.executable,
        "-m",
        "torch_gnnscale",
        "tables",
        str(tmp_path / "s.yaml"),
        "--out",
        str(tmp_path / "graph"),
    ]
    stopped = (
        "import os, signal\nfrom torch_gnnscale.tables import nodes\nfrom torch_gnnscale.cli import main\n"
        "nodes.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"main({command[3:]!r})"
    )
    done = subprocess.run([sys.executable, "-c", stopped], env=environment(), timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "graph").exists()
    assert [file for file in tmp_path.iterdir() if file.name.startswith(".partial-")]
    with pytest.raises(FileNotFoundError):
        tables.open(tmp_path / "graph")
    with pytest.warns(UserWarning, match="removed, because the process that was writing it has ended"):
        built(tmp_path, schema)
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".partial-")]
    assert len(tables.ids(tmp_path / "graph", "user")) == 200_000
