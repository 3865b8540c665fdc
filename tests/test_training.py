"""The training job and the command line."""

import json

import pytest
import torch
from scipy.stats import mannwhitneyu

from torch_gnnscale.cli import main
from torch_gnnscale.datasets import NodeTask, planted
from torch_gnnscale.tasks import NodeConfig, NodeTrainer
from torch_gnnscale.tasks.metrics import roc_auc
from torch_gnnscale.training import plot_run


@pytest.fixture(scope="module")
def task():
    return NodeTask.from_data("small", planted(3000, num_classes=8, num_features=32, seed=0))


def run(task, **changes):
    config = NodeConfig(**{"hidden": 64, "fanouts": [8, 8], "batch_size": 256, "epochs": 4, "lr": 0.01, **changes})
    return NodeTrainer(task, config, quiet=True).run(lambda _: None)


def test_a_gnn_clearly_beats_an_mlp(task):
    assert run(task)["test"] > run(task, model="mlp")["test"] + 0.2


@pytest.mark.parametrize(
    "changes", [{"model": "gcn"}, {"model": "gat"}, {"residual": True}, {"model": "gcn", "residual": True}]
)
def test_other_models_learn(task, changes):
    assert run(task, **changes)["test"] > 0.5


def test_a_seed_decides_the_run(task):
    torch.set_num_threads(1)  # sums of several threads may round differently
    try:
        first, second = run(task, epochs=2), run(task, epochs=2)
    finally:
        torch.set_num_threads(2)
    assert [entry["loss"] for entry in first["history"]] == [entry["loss"] for entry in second["history"]]
    assert first["test"] == second["test"]


def test_unlabelled_nodes_are_left_out_of_the_loss(task):
    data = task.data.clone()
    data.y = torch.where(torch.arange(3000) % 3 == 0, -1, data.y)
    assert run(NodeTask.from_data("some labels", data), epochs=1)["history"][0]["loss"] < 3


def test_roc_auc_is_the_mann_whitney_statistic():
    generator = torch.Generator().manual_seed(0)
    score = torch.randint(20, (500,), generator=generator).float()  # with ties
    positive = torch.rand(500, generator=generator) < 0.3
    expected = mannwhitneyu(score[positive].double().numpy(), score[~positive].double().numpy()).statistic / (
        int(positive.sum()) * int((~positive).sum())
    )
    assert roc_auc(score, positive) == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"model": "x"}, "model: expected one of"), ({"loader": "x"}, "loader: expected 'gnnscale' or 'pyg', found 'x'")],
)
def test_config_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        NodeConfig(**changes)


def test_command_leaves_checkpoint_summary_and_plot(tmp_path, task, capfd):
    task.save(tmp_path / "task")
    main(
        [
            "train",
            "--dataset",
            str(tmp_path / "task"),
            "--epochs",
            "2",
            "--hidden",
            "16",
            "--out",
            str(tmp_path / "run"),
        ]
    )
    printed = capfd.readouterr()
    assert "3,000 nodes" in printed.out
    assert "M edges/s" in printed.out + printed.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    checkpoint = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert checkpoint["history"] == summary["history"]
    assert len(summary["history"]) == 2
    assert set(summary["seconds"]) == {"sample", "gather", "train", "wait"}
    assert not list((tmp_path / "run").glob("*.partial"))
    assert (tmp_path / "run" / "run.png").read_bytes().startswith(b"\x89PNG")
    plot_run(summary, tmp_path / "again.png")


def test_command_says_what_is_wrong(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--dataset", "no-such-set", "--root", str(tmp_path)])
    assert stop.value.code == 2
    assert "dataset 'no-such-set'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "1"], "planted: expected 0, for there is one split, found split 1"),
        (["--residual", "--model", "mlp"], "residual: expected a model with convolutions"),
    ],
)
def test_command_refuses(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr("torch_gnnscale.datasets.readers.planted", lambda: planted(100, num_classes=2))
    with pytest.raises(SystemExit) as stop:
        main(["train", *arguments])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(f"gnnscale: {message}")


def test_info_names_versions_and_libraries(capsys):
    main(["info"])
    printed = capsys.readouterr().out
    for expected in ("torch_gnnscale", "library _C: loaded", "library _CUDA:", "threads:", "CUDA devices:", "pyg_lib"):
        assert expected in printed
