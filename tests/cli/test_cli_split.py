"""The command ``gnnscale split``, and parts written by the plan's file."""

import pytest
import torch

from torch_gnnscale import NeighborLoader, split
from torch_gnnscale.cli import main
from torch_gnnscale.datasets import NodeTask, planted
from torch_gnnscale.ops import MAX_FANOUT
from torch_gnnscale.partition import open_parts

pytest.importorskip("pymetis")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    task = NodeTask.from_data("small", planted(600, num_classes=4, num_features=8, seed=0))
    path = tmp_path_factory.mktemp("task") / "task"
    task.save(path)
    return str(path), task


@pytest.mark.slow
def test_a_plan_of_a_data_set(saved, tmp_path, capfd):
    path, task = saved
    out = str(tmp_path / "plan")
    options = ["--parts", "3", "--fanouts", "4", "3", "--batch-size", "64", "--epochs", "2", "--seed", "9"]
    main(["split", "--dataset", path, "--out", out, *options])
    plan, said = split.Plan.open(out), capfd.readouterr()
    assert said.out.startswith(f"{path}: 600 nodes, ")
    expected = split.plan(task.data, task.seeds("train"), [4, 3], 3, batch_size=64, epochs=2, seed=9)
    assert plan.fingerprint == expected.fingerprint
    assert (plan.about, plan.cut, plan.loads) == (expected.about, expected.cut, expected.loads)
    loader = NeighborLoader(task.data, [4, 3], task.seeds("train"), batch_size=64, shuffle=True, seed=9)
    found = split.measure(plan, loader, [0])
    assert str(plan) in said.out
    assert f"over the {len(found.edges)} batches of training's first epoch:\n{found.table()}" in said.out
    assert f"the plan: split.Plan.open({out!r})\n" in said.out
    assert (tmp_path / "plan" / "plan.png").stat().st_size > 10_000


def test_the_batches_of_training_are_measured(saved, tmp_path, monkeypatch):
    class Asked(Exception):
        pass

    def measure(plan, loader, epochs):
        raise Asked([out.node for epoch in epochs for out in loader.samples(epoch)])

    monkeypatch.setattr("torch_gnnscale.cli.partition.measure", measure)
    options = ["--weights", "random", "--epochs", "0", "--fanouts", "2", "--batch-size", "100", "--seed", "9"]
    with pytest.raises(Asked) as asked:
        main(["split", "--dataset", saved[0], "--out", str(tmp_path / "plan"), *options])
    task = saved[1]
    loader = NeighborLoader(task.data, [2], task.seeds("train"), batch_size=100, shuffle=True, seed=9)
    (found,) = asked.value.args
    assert len(found) == len(loader)
    assert all(torch.equal(nodes, batch.n_id) for nodes, batch in zip(found, loader, strict=True))


@pytest.mark.slow
def test_parts_are_written_by_a_plans_file(saved, tmp_path):
    path, _ = saved
    main(["split", "--dataset", path, "--out", str(tmp_path / "plan"), "--weights", "random", "--epochs", "1"])
    owners = str(tmp_path / "plan" / "owners.npy")
    main(["partition", "--dataset", path, "--owners", owners, "--parts", "4", "--out", str(tmp_path / "parts")])
    parts, plan = open_parts(tmp_path / "parts"), split.Plan.open(tmp_path / "plan")
    assert torch.equal(parts.book.part_of(parts.stored_ids(), None).to(torch.int32), plan.owners)
    assert parts.part(2).user_ids[None].tolist() == (plan.owners == 2).nonzero().view(-1).tolist()


def test_options_reach_the_plan(saved, tmp_path, monkeypatch):
    class Asked(Exception):
        pass

    def plan(data, seeds, fanouts, parts, **options):
        raise Asked(fanouts, parts, options)

    monkeypatch.setattr("torch_gnnscale.cli.partition.plan", plan)
    given = {"epochs": 2, "weights": "node", "load": "layers", "batch_size": 7, "seed": 3, "method": "labor"}
    options = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = ["split", "--dataset", saved[0], "--out", str(tmp_path / "plan"), "--parts", "5"]
    with pytest.raises(Asked) as asked:
        main([*command, "--fanouts", "3", "2", *options])
    assert asked.value.args == ([3, 2], 5, {**given, "progress": True})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts", "0"], "--parts: expected 1 <= parts <= 2147483647, found 0"),
        (["--epochs", "0"], "--epochs: expected at least 1 for weights='presampled', found 0"),
        (["--batch-size", "0"], "--batch-size: expected at least 1, found 0"),
        (["--fanouts", "5", "-3"], f"--fanouts: expected -1 (all) or 0..{MAX_FANOUT} each, found [5, -3]"),
        (["--split", "3"], "--split: expected 0, because {data} has one split, found 3"),
        (["--out", __file__], f"{__file__}: expected a new or an empty directory, found a file"),
    ],
)
def test_command_refuses(arguments, message, saved, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["split", "--dataset", saved[0], "--out", str(tmp_path / "plan"), *arguments])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"gnnscale: {message.replace('{data}', saved[0])}\n"
    assert not (tmp_path / "plan").exists()
