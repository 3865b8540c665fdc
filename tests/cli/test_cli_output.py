"""What the command line writes: errors, progress bars and tracebacks."""

import fcntl
import io
import os
import pty
import random
import signal
import struct
import sys
import termios
import time

import numpy as np
import pytest
from helpers import forked

from torch_gnnscale.cli import main
from torch_gnnscale.datasets import NodeTask, planted
from torch_gnnscale.tasks import NodeConfig, NodeTrainer

FAILS = """
import sys
from torch_gnnscale import cli, datasets
from torch_gnnscale.tasks import NodeTrainer
datasets.node_task.planted = lambda: datasets.planted(600, num_classes=4, num_features=8)
plain, asked = getattr(NodeTrainer, sys.argv[1]), []
def fail(*args, **options):
    asked.append(1)
    if len(asked) == 3:
        raise ValueError("a batch that fails")
    return plain(*args, **options)
setattr(NodeTrainer, sys.argv[1], fail)
cli.main(["train", "--batch-size", "30", "--hidden", "8", "--epochs", "1", "--out", *sys.argv[2:]])
"""


def on_a_terminal(*command: str) -> str:
    """What a command shows where its stdout and stderr are a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))  # rows and columns: else no bar fits
    process = forked.start(*command, out=theirs, err=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            if not (part := os.read(ours, 1 << 16)):
                break
        except OSError:  # Linux reports the end of a terminal so
            break
        shown += part
    process.join()
    os.close(ours)
    return shown.decode()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["loss", "scores"])
def test_an_error_stands_below_a_bar_that_is_gone(where, tmp_path):
    shown = on_a_terminal(FAILS, where, str(tmp_path))
    assert "epoch 1:   0%" in shown
    before, error, after = shown.rpartition("gnnscale: a batch that fails")
    assert error
    assert after == "\r\n"
    assert before.endswith("\r")
    assert before.rstrip("\r").rpartition("\r")[2].strip() == ""  # the bar was overwritten with blanks


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_bars_are_for_terminals(kind, tmp_path, monkeypatch):
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2]]))
    monkeypatch.setattr(sys, "stderr", kind())
    task = NodeTask.from_data("small", planted(300, num_classes=4, num_features=8))
    with NodeTrainer(task, NodeConfig(epochs=1)).progress(range(3), "epoch 1", 5, 2) as batches:
        assert list(batches) == [0, 1, 2]
    of_training = sys.stderr.getvalue()
    assert ("2/5 [" in of_training) == (kind is Terminal)
    assert of_training.rstrip("\r").rpartition("\r")[2].strip() == "", "the bar is removed at its end"
    main(["convert", str(tmp_path / "edges.npy"), "--out", str(tmp_path / "graph")])
    of_convert = sys.stderr.getvalue()[len(of_training) :]
    assert ("epoch 1: " in of_training, "edges sorted: 100%" in of_convert) == (kind is Terminal,) * 2
    if kind is not Terminal:
        assert sys.stderr.getvalue() == ""


@pytest.mark.slow
def test_no_bars_go_into_a_pipe(tmp_path):
    done = forked.run(FAILS, "loss", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "gnnscale: a batch that fails\n"


@pytest.mark.slow
def test_bars_of_convert_are_for_terminals(tmp_path):
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2]]))
    code = "import sys; from torch_gnnscale.cli import main; main(['convert', *sys.argv[1:]])"
    arguments = str(tmp_path / "edges.npy"), "--out"
    done = forked.run(code, *arguments, str(tmp_path / "piped"))
    assert done.stderr == ""
    assert "2 edges" in done.stdout
    assert "edges sorted: 100%" in on_a_terminal(code, *arguments, str(tmp_path / "shown"))
    failed = on_a_terminal(code, *arguments, str(tmp_path / "failed"), "--nodes", "1")
    assert "\n" in failed.rpartition("gnnscale:")[0].rpartition("edges read")[2]


@pytest.mark.slow
def test_debug_shows_the_traceback(tmp_path):
    done = forked.run(FAILS, "loss", str(tmp_path), "--debug")
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert "in train_epoch" in done.stderr
    assert done.stderr.endswith("ValueError: a batch that fails\n")


def test_debug_stands_before_or_after_the_command(tmp_path):
    wrong = ["convert", "none.npy", "--out", str(tmp_path / "graph"), "--memory", "0"]
    for arguments in (["--debug", *wrong], [*wrong, "--debug"]):
        with pytest.raises(ValueError, match="--memory: expected a finite number of GiB above 0"):
            main(arguments)
    with pytest.raises(SystemExit):
        main(wrong)


ENDLESS = """
import sys
sys.stdout.reconfigure(line_buffering=True)
from torch_gnnscale import cli, datasets
datasets.node_task.planted = lambda: datasets.planted(600, num_classes=4, num_features=8)
command = ["train", "--batch-size", "30", "--hidden", "8", "--fanouts", "3", "--checkpoint-every", "1"]
cli.main([*command, "--epochs", "1000000", "--out", sys.argv[1]])
"""


def endless(folder):
    """(A run that ends only when it is interrupted, what it prints, and its errors)."""
    (own_out, out), (own_err, err) = os.pipe(), os.pipe()
    process = forked.start(ENDLESS, str(folder), out=out, err=err)
    os.close(out)
    os.close(err)
    return process, os.fdopen(own_out), os.fdopen(own_err)


@pytest.mark.slow
def test_an_interrupted_run_ends_with_130_and_leaves_a_checkpoint(tmp_path):
    process, out, err = endless(tmp_path)
    assert any(line.startswith("epoch   2") for line in out)
    os.kill(process.pid, signal.SIGINT)
    error = err.read()
    process.join(120)
    said = "\ngnnscale: ends after this batch (a second Ctrl-C: at once)\n\ngnnscale: interrupted\n"
    assert (process.exitcode, error) == (130, said)
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.slow
def test_a_run_that_is_interrupted_at_any_moment_ends_with_130(tmp_path):
    """Later ones come while batches are made and trained on, files are written, and the run ends."""
    generator = random.Random(0)
    for number in range(6):
        process, out, err = endless(tmp_path / str(number))
        assert out.readline().startswith("planted")
        time.sleep(generator.uniform(0, 1))  # the moment: whatever runs then
        os.kill(process.pid, signal.SIGINT)
        error = err.read()
        process.join(120)
        assert (process.exitcode, error[-23:]) == (130, "\ngnnscale: interrupted\n")
