"""The command ``gnnscale train --split-plan``, by one process and by several."""

import functools
import json
import subprocess
import sys

import pytest
from helpers import forked
from helpers.data import environment
from helpers.slow import NIGHTLY, SLOW

from torch_gnnscale import split
from torch_gnnscale.cli import main
from torch_gnnscale.datasets import NodeTask, planted

COMMAND = "import sys; from torch_gnnscale.cli import main; main(sys.argv[1:])"
SHORT = ["--epochs", "2", "--hidden", "8", "--fanouts", "3", "3", "--batch-size", "512"]


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A folder of a graph whose nodes are to be classified."""
    folder = tmp_path_factory.mktemp("split")
    NodeTask.from_data("small", planted(10_000)).save(folder / "task")
    return folder / "task"


@pytest.fixture(scope="module")
def plan(task):
    """A plan of two parts of the graph."""
    data, out = planted(10_000), str(task.parent / "plan")
    split.plan(data, data.train_mask, [3, 3], 2, weights="random", batch_size=512, epochs=1, seed=0).save(out)
    return out


@pytest.fixture(scope="module")
def alone(task, plan):
    """alone(*order): what one process writes after :data:`SHORT`, made once."""

    @functools.cache
    def summary(*order):
        out = task.parent / f"one{len(order)}"
        main(["train", "--dataset", str(task), "--split-plan", plan, *SHORT, *order, "--out", str(out)])
        return json.loads((out / "summary.json").read_text())

    return summary


def check_alike(both, alone):
    """Fails unless the summaries of ranks and of one process have the same accuracy and losses, as far as float32
    goes."""
    assert both["test"] == pytest.approx(alone["test"], abs=2e-3)
    for epoch, expected in zip(both["history"], alone["history"], strict=True):
        assert epoch["loss"] == pytest.approx(expected["loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "links"], "--task links with --split-plan is not implemented; use nodes"),
        (["--task", "temporal"], "--task temporal with --split-plan is not implemented; use nodes"),
        SLOW(["--model", "mlp"], "model: expected one with messages to be split, found 'mlp'"),
        (["--buffer", "0.5"], "--buffer: expected --parts beside it, found none"),
        (["--parts", "p"], "--split-plan: expected none beside --parts, found {plan!r}"),
    ],
)
def test_what_is_refused_beside_a_plan(plan, arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--split-plan", plan, *arguments])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"gnnscale: {message.format(plan=plan)}\n"


def test_the_loader_gets_the_order_of_seeds(task, plan, tmp_path, capsys):
    order = ["--seed-order", "owned", "--batch-size", "2047", "--out", str(tmp_path / "o")]
    with pytest.raises(SystemExit) as stop:
        main(["train", "--dataset", str(task), "--split-plan", plan, *order])
    assert stop.value.code == 2
    message = "batch_size: expected a multiple of 2 parts with seed_order='owned', found 2047"
    assert capsys.readouterr().err == f"gnnscale: {message}\n"


@pytest.mark.slow
@pytest.mark.parametrize("order", [pytest.param([], id="global"), NIGHTLY(["--seed-order", "owned"], id="owned")])
def test_two_ranks_train_what_one_process_does(task, plan, alone, tmp_path, order):
    command = ["train", "--dataset", str(task), "--split-plan", plan, *SHORT, *order]

    def summary(folder):
        return json.loads((tmp_path / folder / "summary.json").read_text())

    def run(folder, *more):
        ranks = forked.run_ranks(2, COMMAND, *command, "--out", str(tmp_path / folder), *more)
        assert [rank.returncode for rank in ranks] == [0, 0], ranks
        return "".join(rank.stdout for rank in ranks), summary(folder)

    printed, both = run("two")
    assert "512 seeds per step, shared by 2 ranks\n" in printed
    assert printed.count("test accuracy ") == 1
    check_alike(both, alone(*order))
    run("stopped", "--epochs", "1")
    printed, resumed = run("stopped", "--resume")
    assert "continues after epoch 1 in " in printed
    assert [entry["loss"] for entry in resumed["history"]] == [entry["loss"] for entry in both["history"]]
    assert resumed["test"] == both["test"]


@pytest.mark.nightly
def test_torchrun(task, plan, alone, tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command = ["train", "--dataset", str(task), "--split-plan", plan, *SHORT]
    given = {**environment(), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    for number, more in enumerate((["--epochs", "1"], ["--resume"])):
        done = subprocess.run(
            [*launcher, "--nproc-per-node=2", "-m", "torch_gnnscale", *command, "--out", str(tmp_path / "two"), *more],
            env=given, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("test accuracy ") == 1
        assert ("continues after epoch 1 in " in done.stdout) == (number == 1)
    check_alike(json.loads((tmp_path / "two" / "summary.json").read_text()), alone())


@pytest.mark.cuda
def test_ranks_on_gpus_train_what_a_cpu_does(task, plan, tmp_path):
    command = ["train", "--dataset", str(task), "--split-plan", plan, *SHORT]
    ranks = forked.run_ranks(2, COMMAND, *command, "--device", "cuda", "--out", str(tmp_path / "two"))
    assert [rank.returncode for rank in ranks] == [0, 0], ranks
    main([*command, "--out", str(tmp_path / "one")])
    both, alone = (json.loads((tmp_path / folder / "summary.json").read_text()) for folder in ("two", "one"))
    for epoch, expected in zip(both["history"], alone["history"], strict=True):
        assert epoch["loss"] == pytest.approx(expected["loss"], rel=1e-3)
