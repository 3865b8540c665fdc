"""The command ``gnnscale train --parts``, by one process and by several."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import forked
from helpers.command import refused_command
from helpers.data import environment

from torch_gnnscale import partition
from torch_gnnscale.cli import main
from torch_gnnscale.datasets import NodeTask, about_task, planted, planted_links


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Directories of one and of two parts of a graph of nodes to be classified, by their number."""
    task, out = NodeTask.from_data("small", planted(600, num_classes=4, num_features=8)), tmp_path_factory.mktemp("p")
    for count in (1, 2):
        about = about_task("nodes", "small", task)
        partition.write(task.data, out / str(count), parts=count, method="random", about=about)
    return {count: str(out / str(count)) for count in (1, 2)}


COMMAND = "import sys; from torch_gnnscale.cli import main; main(sys.argv[1:])"
SHORT = ["--epochs", "2", "--hidden", "8", "--fanouts", "3", "3", "--batch-size", "64"]


@pytest.mark.slow
def test_one_part_needs_no_other_process(parts, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["train", "--parts", parts[1], *SHORT, "--buffer", "0.5"])
    printed = "".join(capfd.readouterr())
    assert "small: 600 nodes" in printed
    assert "300 training nodes; part 0 of 1\n" in printed
    folder = Path("runs/nodes-small-sage-parts")
    assert {path.name for path in folder.iterdir()} == {"checkpoint.pt", "summary.json", "run.png"}
    main(["train", "--parts", parts[1], *SHORT, "--resume", "--seed-order", "owned"])
    assert f"continues after epoch 2 in {folder}" in capfd.readouterr().out


@pytest.mark.slow
def test_what_partition_wrote_for_links(tmp_path, capfd, monkeypatch):
    links = planted_links(100, 60, 900, 4)
    monkeypatch.setattr("torch_gnnscale.datasets.link_task.planted_links", lambda: links)
    out = str(tmp_path / "parts")
    main(["partition", "--task", "links", "--method", "random", "--parts", "1", "--out", out])
    main(["train", "--parts", out, "--epochs", "1", "--hidden", "8", "--negatives", "2", "--out", str(tmp_path / "r")])
    printed = "".join(capfd.readouterr())
    assert "100 user nodes, 60 item nodes; user chooses item:" in printed
    assert "popularity:" in printed
    assert (tmp_path / "r" / "run.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dataset", "planted"], "--dataset: expected none beside --parts, which hold the data set, found 'planted'"),
        (["--root", "data"], "--root: expected none beside --parts, which hold the data set, found 'data'"),
        (["--split", "0"], "--split: expected none beside --parts, which hold the data set, found 0"),
        (["--task", "temporal"], "--task temporal with --parts is not implemented; use nodes, hetero or links"),
        (["--task", "links"], "--task: expected 'nodes', which {parts} was written for, found 'links'"),
        (["--loader", "pyg"], "--loader: expected gnnscale beside --parts, found pyg"),
        (["--device", "cuda"], "--device cuda with --parts is not implemented; use cpu"),
        (["--negatives", "3"], "--negatives: expected an option of task 'nodes', found another's"),
        (["--policy", "static"], "policy, policy_options: expected none without a buffer"),
        (["--buffer", "much"], "buffer: expected a number and a unit such as '8GiB', '500MB' or '25%', found 'much'"),
        (["--out", __file__], f"--out: expected a folder or a new path, found {__file__}, which is or is below a file"),
    ],
)
def test_what_is_refused_beside_parts(parts, arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--parts", parts[1], *arguments])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"gnnscale: {message.format(parts=parts[1])}\n"


@pytest.mark.slow
def test_ranks_and_parts_that_do_not_go_together(parts, tmp_path, capsys, monkeypatch):
    def refused(*arguments):
        return refused_command(capsys, "train", *arguments)

    text = "expected a multiple of 2 parts, found 1 rank; partition.open_parts(path).stores() has all parts"
    assert refused("--parts", parts[2]) == f"gnnscale: ranks: {text}\n"
    for option, value in (("--buffer", "0.5"), ("--policy", "static")):
        assert refused(option, value) == f"gnnscale: {option}: expected --parts beside it, found none\n"
    for option, value in (("--seed-order", "global"), ("--transport", "memory")):
        text = f"gnnscale: {option}: expected --parts or --split-plan beside it, found none\n"
        assert refused(option, value) == text
    text = "gnnscale: --transport nccl with --parts is not implemented; use auto\n"
    assert refused("--parts", parts[2], "--transport", "nccl") == text
    lost = tmp_path / "lost"
    assert refused("--parts", str(lost)) == f"gnnscale: {lost}: expected a directory of parts, found no book in it\n"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert refused() == "gnnscale: WORLD_SIZE: expected 1 without --parts or --split-plan, found 2\n"


# Several processes ###################################################################################################


@pytest.mark.slow
def test_torchrun(parts, tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    command = ["train", "--parts", parts[2], *SHORT, "--out", str(tmp_path)]
    given = {**environment(), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, "torch_gnnscale", *command, "--buffer", "0.25", "--policy", "static"],
        env=given, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    assert printed.count("GraphSAGE, ") == printed.count("test accuracy ") == printed.count("plot in ") == 1
    assert "2 ranks x 64 = 128 seeds per step (one process: 64)\n" in printed
    assert printed.count("epoch   2  loss ") == 1
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert len(torch.load(tmp_path / "checkpoint.pt", weights_only=True)["ranks"]) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint.pt", "summary.json", "run.png"}
    ranks = forked.run_ranks(2, COMMAND, *command, "--resume")
    assert [rank.returncode for rank in ranks] == [0, 0], ranks
    assert "continues after epoch 2 in " in "".join(rank.stdout for rank in ranks)
    again = json.loads((tmp_path / "summary.json").read_text())
    assert (again["test"], again["history"]) == (summary["test"], summary["history"])


FAILS = """
import os, sys
from pathlib import Path
from helpers.data import wait_for
from torch_gnnscale import cli
from torch_gnnscale.tasks import NodeTrainer
plain, asked, there = NodeTrainer.loss, [], Path(os.environ["THERE"])
def fail(*args):
    asked.append(1)
    if len(asked) == 3:
        if os.environ["RANK"] == "1":
            wait_for(there.exists, 60)
            raise ValueError("a batch that fails")
        there.touch()  # this rank goes on to wait for gradients
    return plain(*args)
NodeTrainer.loss = fail
cli.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_rank_that_fails_ends_all_with_an_error(parts, tmp_path):
    command = ["train", "--parts", parts[2], *SHORT, "--batch-size", "4", "--out", str(tmp_path)]
    ranks = forked.run_ranks(2, FAILS, *command, THERE=str(tmp_path / "there"))
    assert [rank.returncode for rank in ranks] == [2, 2], ranks
    assert "\ngnnscale: a batch that fails\n" in f"\n{ranks[1].stderr}"
    assert set(os.listdir(tmp_path)) <= {"there", "checkpoint.pt"}
