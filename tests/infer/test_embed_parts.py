"""The command ``gnnscale embed --parts``, by one process and by several."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers.command import refused_command
from helpers.data import environment

from torch_gnnscale import partition
from torch_gnnscale.cli import main
from torch_gnnscale.datasets import NodeTask, about_task, planted
from torch_gnnscale.infer import open_results
from torch_gnnscale.tasks.node_trainer import NodeConfig, NodeTrainer


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(folder of a run, directories of one and of two parts of its graph, by their number, the graph's)."""
    out, data = tmp_path_factory.mktemp("run"), planted(400, num_classes=4, num_features=8, seed=0)
    task = NodeTask.from_data("small", data)
    for count in (1, 2):
        about = about_task("nodes", "small", task)
        partition.write(task.data, out / f"parts{count}", parts=count, method="random", about=about)
    trainer = NodeTrainer(task, NodeConfig(epochs=1, hidden=8, fanouts=[3, 3], model="gcn"), out / "run", quiet=True)
    trainer.run(report=lambda line: None)
    with torch.no_grad():
        expected = trainer.model.eval()(data.x.float(), data.edge_index)
    return out / "run", {count: out / f"parts{count}" for count in (1, 2)}, expected


def test_one_part_needs_no_other_process(run, tmp_path, capsys):
    folder, parts, expected = run
    for _ in range(2):  # the second finds all rows there
        main(["embed", "--run", str(folder), "--parts", str(parts[1]), "--out", str(tmp_path / "rows")])
        assert capsys.readouterr().out == f"400 rows of 4 numbers in {tmp_path / 'rows' / 'nodes.npy'}\n"
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "rows" / "nodes.npy")), expected)


def test_refused(run, tmp_path, capsys, monkeypatch):
    folder, parts, _ = run
    given = ["--run", folder, "--out", tmp_path / "rows"]
    text = "gnnscale: --dataset: expected none beside --parts, which hold the data set, found 'planted'\n"
    assert refused_command(capsys, "embed", *given, "--parts", parts[1], "--dataset", "planted") == text
    other = NodeTask.from_data("other", planted(50, num_classes=4, num_features=8))
    partition.write(other.data, tmp_path / "p", parts=1, about=about_task("nodes", "other", other))
    text = "gnnscale: --parts: expected 'small', which the run learned from, found 'other'\n"
    assert refused_command(capsys, "embed", *given, "--parts", tmp_path / "p") == text
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert refused_command(capsys, "embed", *given) == "gnnscale: WORLD_SIZE: expected 1 without --parts, found 2\n"
    assert not (tmp_path / "rows").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("count", [1, 2])
def test_torchrun(run, tmp_path, count):
    """Two ranks of one part, which share its nodes, or of two."""
    parquet = pytest.importorskip("pyarrow.parquet")
    folder, parts, expected = run
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "--"]
    command = ["embed", "--run", folder, "--parts", parts[count], "--out", tmp_path / "rows", "--format", "parquet"]
    given = {**environment(), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, "torch_gnnscale", *map(str, command)],
        env=given, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    each = [tmp_path / "rows" / f"part-{number}" / "nodes.parquet" for number in range(2)]
    assert done.stdout == "".join(f"200 rows of 4 numbers in {file}\n" for file in each)
    torch.testing.assert_close(open_results(tmp_path / "rows")[torch.arange(400)], expected, rtol=1e-4, atol=1e-5)
    for file in each:
        table = parquet.read_table(file)
        rows = torch.tensor(table["row"].to_pylist())
        torch.testing.assert_close(rows, expected[table["id"].to_pylist()], rtol=1e-4, atol=1e-5)
