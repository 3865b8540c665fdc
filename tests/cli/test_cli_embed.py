"""The command ``gnnscale embed``."""

import re
import sys

import numpy as np
import pytest
import torch
from helpers.command import refused_command

from torch_gnnscale import NeighborLoader
from torch_gnnscale.cli import main
from torch_gnnscale.cli.embed import _write_parquet
from torch_gnnscale.datasets import NodeTask, planted
from torch_gnnscale.infer import infer
from torch_gnnscale.tasks import TASKS
from torch_gnnscale.tasks.node_trainer import NodeConfig, NodeTrainer, call_model
from torch_gnnscale.training import CHECKPOINT


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(folder of a run, path of its data set, the trainer)."""
    folder = tmp_path_factory.mktemp("run")
    NodeTask.from_data("small", planted(400, num_classes=4, num_features=8, seed=0)).save(folder / "small")
    task, config = NodeTrainer.load(str(folder / "small")), NodeConfig(epochs=2, hidden=8, fanouts=[3, 3], model="gcn")
    trainer = NodeTrainer(task, config, folder / "run", quiet=True)
    trainer.run(report=lambda line: None)
    return folder / "run", folder / "small", trainer


def test_rows_of_the_best_model(run, tmp_path, capsys):
    folder, _, trainer = run
    main(["embed", "--run", str(folder), "--out", str(tmp_path / "rows"), "--batch-size", "100"])
    said = capsys.readouterr().out
    assert said == f"400 rows of 4 numbers in {tmp_path / 'rows' / 'nodes.npy'}\n"
    expected = infer(trainer.model.eval(), trainer.task.data, call_model, batch_size=100)
    assert np.array_equal(np.load(tmp_path / "rows" / "nodes.npy"), expected.numpy())
    features, graph = trainer.task.data
    x = features.get_tensor(group_name=None, attr_name="x", index=None)
    whole = trainer.model(x, torch.stack(graph.get_edge_index(edge_type=None, layout="coo")))
    torch.testing.assert_close(expected, whole.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("memory", ["1KiB", "1.5GiB"])
def test_the_memory_is_what_inference_is_given(run, tmp_path, monkeypatch, memory):
    given = []
    monkeypatch.setattr("torch_gnnscale.cli.embed.infer", lambda *args, **kwargs: given.append(kwargs) or torch.ones(2))
    main(["embed", "--run", str(run[0]), "--out", str(tmp_path / "rows"), "--memory", memory])
    assert [kwargs["memory"] for kwargs in given] == [memory]


def test_parquet_has_the_ids(run, tmp_path, capsys, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("torch_gnnscale.cli.embed._ROWS", 150)
    main(["embed", "--run", str(run[0]), "--out", str(tmp_path / "rows"), "--format", "parquet"])
    assert capsys.readouterr().out == f"400 rows of 4 numbers in {tmp_path / 'rows' / 'nodes.parquet'}\n"
    main(["embed", "--run", str(run[0]), "--out", str(tmp_path / "rows.parquet")])
    assert parquet.read_table(tmp_path / "rows.parquet" / "nodes.parquet").equals(
        parquet.read_table(tmp_path / "rows" / "nodes.parquet")
    )
    table = parquet.read_table(tmp_path / "rows" / "nodes.parquet")
    assert table["id"].to_pylist() == list(range(400))
    assert np.array_equal(np.array(table["row"].to_pylist(), np.float32), np.load(tmp_path / "rows" / "nodes.npy"))


@pytest.mark.parametrize("out", [["rows.parquet"], ["rows", "--format", "parquet"]])
def test_parquet_needs_pyarrow_before_all_else(tmp_path, capsys, monkeypatch, out):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    text = "gnnscale: --format parquet needs pyarrow: pip install 'torch_gnnscale[files]'\n"
    assert refused_command(capsys, "embed", "--run", tmp_path, "--out", *out) == text


@pytest.mark.slow
def test_refused(run, tmp_path, capsys):
    folder, data, _ = run
    text = f"gnnscale: --run: expected the folder of a run of gnnscale train, found no {CHECKPOINT} in {tmp_path}\n"
    assert refused_command(capsys, "embed", "--run", tmp_path, "--out", tmp_path / "rows") == text
    text = f"gnnscale: --dataset: expected {str(data)!r}, which the run learned from, found 'planted'\n"
    assert refused_command(capsys, "embed", "--run", folder, "--out", tmp_path / "rows", "--dataset", "planted") == text
    assert refused_command(capsys, "embed", "--run", folder, "--out", tmp_path / "rows", "--batch-size", 0).startswith(
        "gnnscale: --batch-size: expected "
    )
    text = "gnnscale: --memory: expected bytes or a string such as '1GiB', found 'much'\n"
    assert refused_command(capsys, "embed", "--run", folder, "--out", tmp_path / "rows", "--memory", "much") == text
    assert not (tmp_path / "rows").exists()


def test_a_run_of_another_trainer(run, tmp_path, capsys):
    state = torch.load(run[0] / CHECKPOINT, weights_only=True)
    state["run"]["trainer"] = "SplitNodeTrainer"
    torch.save(state, tmp_path / CHECKPOINT)
    said = refused_command(capsys, "embed", "--run", tmp_path, "--out", tmp_path / "rows")
    text = r"gnnscale: --run .*: a run of a SplitNodeTrainer is not implemented; use one of a task\n"
    assert re.fullmatch(text, said)


def test_a_run_of_a_model_without_layers(run, tmp_path, capsys):
    config = NodeConfig(epochs=1, hidden=8, fanouts=[3, 3], model="mlp")
    NodeTrainer(run[2].task, config, tmp_path / "run", quiet=True).run(report=lambda line: None)
    text = "gnnscale: --run: expected one with MessagePassing layers, found none in MLP\n"
    assert refused_command(capsys, "embed", "--run", tmp_path / "run", "--out", tmp_path / "rows") == text


def test_an_interrupted_table_leaves_no_file(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(parquet.ParquetWriter, "write_table", stop)
    with pytest.raises(KeyboardInterrupt):
        _write_parquet(tmp_path / "rows.parquet", torch.ones(3, 4), torch.arange(3))
    assert not list(tmp_path.iterdir())


def test_a_table_of_a_type_without_nodes(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    _write_parquet(tmp_path / "none.parquet", torch.empty(0, 4), torch.empty(0, dtype=torch.int64))
    assert parquet.read_table(tmp_path / "none.parquet").num_rows == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hetero", "links"])
def test_tasks_of_typed_graphs(kind, tmp_path, capsys):
    """The rows are those that batches of all neighbors have."""
    trainer = TASKS[kind](TASKS[kind].load(), TASKS[kind].config_type(epochs=1), tmp_path / "run", quiet=True)
    trainer.run(report=lambda line: None)
    main(["embed", "--run", str(tmp_path / "run"), "--out", str(tmp_path / "rows")])
    types = ["author"] if kind == "hetero" else ["user", "item"]
    assert sorted(path.stem for path in (tmp_path / "rows").glob("*.npy")) == sorted(types)
    trainer.model.eval()
    for node_type in types:
        rows = torch.from_numpy(np.load(tmp_path / "rows" / f"{node_type}.npy"))
        with torch.no_grad():
            if kind == "links":
                expected = trainer.embeddings(node_type)[1]
            else:
                batches = NeighborLoader(trainer.data, [-1, -1], (node_type, None), batch_size=1000)
                expected = torch.cat([trainer.scores(batch) for batch in batches])
        torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_run_of_events_has_no_rows_of_nodes(tmp_path, capsys):
    config = TASKS["temporal"].config_type(epochs=1, batch_size=4096)
    TASKS["temporal"](TASKS["temporal"].load(), config, tmp_path / "run", quiet=True).run(report=lambda line: None)
    text = "gnnscale: EventTrainer: expected a task with rows of nodes, found one that scores pairs at their times\n"
    assert refused_command(capsys, "embed", "--run", tmp_path / "run", "--out", tmp_path / "rows") == text
