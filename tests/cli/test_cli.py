"""The command line."""

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import torch_gnnscale
from torch_gnnscale import machine
from torch_gnnscale.cli import main
from torch_gnnscale.cli import train as cli_train
from torch_gnnscale.datasets import NodeTask, planted, planted_links
from torch_gnnscale.tasks import LinkConfig, NodeConfig, NodeTrainer
from torch_gnnscale.training import Trainer, plot_run


@pytest.fixture(scope="module")
def task():
    return NodeTask.from_data("small", planted(3000, num_classes=8, num_features=32, seed=0))


@pytest.mark.slow
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
        (["--split", "1"], "--split: expected 0, because planted has one split, found 1"),
        (["--residual", "--model", "mlp"], "--residual: expected a model with convolutions"),
        (["--task", "temporal", "--hidden", "7"], "--hidden: expected an even number, because layers have two"),
        (["--out", __file__], f"--out: expected a folder or a new path, found {__file__}, which is or is below a file"),
        (["--out", f"{__file__}/run"], f"--out: expected a folder or a new path, found {__file__}/run, which is or"),
    ],
)
def test_command_refuses(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("torch_gnnscale.datasets.node_task.planted", lambda: planted(100, num_classes=2))
    with pytest.raises(SystemExit) as stop:
        main(["train", "--out", str(tmp_path), *arguments])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(f"gnnscale: {message}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "--epochs: expected at least 1, found 0"),
        (["--hidden", "0"], "--hidden: expected at least 1, found 0"),
        (["--checkpoint-every", "-1"], "--checkpoint-every: expected at least 0, found -1"),
        (["--seed", str(2**64)], f"--seed: expected -2^63 <= seed < 2^64, found {2**64}"),
        (["--lr", "nan"], "--lr: expected a finite number of at least 0, found nan"),
        (["--lr", "-0.1"], "--lr: expected a finite number of at least 0, found -0.1"),
        (["--weight-decay", "inf"], "--weight-decay: expected a finite number of at least 0, found inf"),
        (["--dropout", "2"], "--dropout: expected a probability from 0 to 1, found 2.0"),
        (["--dropout", "nan"], "--dropout: expected a probability from 0 to 1, found nan"),
        (["--fanouts", "5", "-3"], "--fanouts: expected -1 (all) or at least 0, one per layer, found [5, -3]"),
        (["--num-workers", "-1"], "--num-workers: expected at least 0, found -1"),
    ],
)
def test_settings_out_of_range_are_refused_before_data_are_loaded(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr("torch_gnnscale.datasets.node_task.planted", lambda: pytest.fail("data were loaded"))
    with pytest.raises(SystemExit) as stop:
        main(["train", *arguments])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"gnnscale: {message}\n"


def test_an_interrupt_is_one_line(capsys, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("torch_gnnscale.cli.command.info", lambda: interrupted(None))
    with pytest.raises(SystemExit) as stop:
        main(["info"])
    assert stop.value.code == 130
    assert capsys.readouterr().err == "\ngnnscale: interrupted\n"


def test_an_interrupt_after_the_work_does_not_end_a_program(monkeypatch):
    """The interpreter's end takes a while, and gives interrupts that are handled back to the system."""
    monkeypatch.setattr("torch_gnnscale.cli.command.info", lambda: None)
    monkeypatch.setattr(sys, "argv", ["gnnscale", "info"])
    before = signal.getsignal(signal.SIGINT)
    try:
        main(["info"])
        assert signal.getsignal(signal.SIGINT) is before
        main()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] can't allocate memory\nframe 1"),
         "[enforce fail at alloc_cpu.cpp:124] can't allocate memory (--debug shows more)"),
        (RuntimeError("rank 1 is gone"), "rank 1 is gone"), (RuntimeError(), "RuntimeError"),
        (MemoryError("Unable to allocate 8.00 EiB"), "out of memory: Unable to allocate 8.00 EiB"),
        (ValueError("Caught ValueError in DataLoader worker process 0.\nTraceback:\n  file\nValueError: no luck\n"),
         "ValueError: no luck (in a worker process) (--debug shows more)"),
        (MemoryError(), "MemoryError"), (ValueError("one\ntwo\n"), "one (--debug shows more)"),
        (FileNotFoundError(2, "No such file", "x"), "[Errno 2] No such file: 'x'"),
    ],
)  # fmt: skip
def test_an_error_is_one_line(error, line, capsys, monkeypatch):
    def fail():
        raise error

    monkeypatch.setattr("torch_gnnscale.cli.command.info", fail)
    with pytest.raises(SystemExit) as stop:
        main(["info"])
    assert (stop.value.code, capsys.readouterr().err) == (2, f"gnnscale: {line}\n")
    with pytest.raises(type(error)):
        main(["--debug", "info"])


@pytest.mark.slow
def test_output_that_nobody_reads_to_its_end():
    command = f"{sys.executable} -m torch_gnnscale info | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 141)
    assert done.stderr == ""


def test_a_device_that_is_not_there_is_named(tmp_path, task, capsys):
    if torch.cuda.is_available():
        pytest.skip("torch sees a CUDA device")
    task.save(tmp_path / "task")
    for device, message in (
        ("cuda", "--device: expected one that torch sees (it sees 0 CUDA devices), found 'cuda'"),
        ("tpu", "--device: expected 'cpu' or 'cuda', found 'tpu'"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["train", "--dataset", str(tmp_path / "task"), "--device", device])
        assert stop.value.code == 2
        assert capsys.readouterr().err == f"gnnscale: {message}\n"
    with pytest.raises(SystemExit):
        main(["train", "--task", "links", "--device", "cuda"])
    assert "--device: expected an option of task 'links', found another's" in capsys.readouterr().err


def test_help_says_the_default_of_every_task(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"--negatives NEGATIVES negatives per link (links: {LinkConfig().negatives})" in text
    assert "--seed SEED (default: 0)" in text
    assert f"(nodes: {NodeConfig().lr}; " in text


def test_info_names_versions_and_libraries(capsys):
    main(["info"])
    printed = capsys.readouterr().out
    threads = f"threads: {min(torch.get_num_threads(), machine.cores())} of {machine.cores()} cores of this process"
    for expected in ("torch_gnnscale", "library _C: loaded", "library _CUDA:", threads, "CUDA devices:", "pyg_lib"):
        assert expected in printed


@pytest.mark.parametrize(("cuda", "expected"), [(None, "(CUDA none)"), ("13.0", "(CUDA 13.0)")])
def test_info_names_the_cuda_of_torch(cuda, expected, capsys, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    main(["info"])
    assert f"torch {torch.__version__} {expected}\n" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["hetero", "links", "temporal"])
def test_missing_data_is_one_clear_error(kind, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--task", kind, "--dataset", "lost", "--root", str(tmp_path)])
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("gnnscale: dataset 'lost': expected ")
    assert f"found neither {tmp_path}/lost.npz nor {tmp_path}/lost/lost.npz" in printed


@pytest.mark.parametrize("option", ["--method", "--policy", "--seed-order"])
def test_names_that_are_not_known_are_refused_with_those_that_are(option, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--parts", "parts", option, "unheard"])
    assert stop.value.code == 2
    assert f"argument {option}: invalid choice: 'unheard' (choose from " in capsys.readouterr().err


def test_tasks_that_are_not_known_are_refused(capsys):
    for options, error in [
        (["--task", "unheard"], "--task: expected one of ['nodes', 'hetero', 'links', 'temporal'], found 'unheard'"),
        (["--cache", "here"], "--cache: expected --relbench beside it, found none"),
        (["--relbench", "shop"], "--task: expected the name of a task of --relbench, found none"),
        (["--relbench", "shop", "--task", "x", "--dataset", "y"], "--dataset: expected none beside --relbench, found "
         "'y'"),
        (["--relbench", "shop", "--task", "x", "--model", "gat"], "--model: expected an option of task 'relbench', "
         "found another's"),
    ]:  # fmt: skip
        with pytest.raises(SystemExit) as stop:
            main(["train", *options])
        assert stop.value.code == 2
        assert capsys.readouterr().err == f"gnnscale: {error}\n"


def test_options_of_other_tasks_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--task", "links", "--loader", "pyg"])
    assert "--loader: expected an option of task 'links', found another's" in capsys.readouterr().err
    with pytest.raises(ValueError, match="negatives: expected at least 1 per link, found 0"):
        LinkConfig(negatives=0)


def test_the_command_runs_a_task(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("torch_gnnscale.datasets.link_task.planted_links", lambda: planted_links(200, 100, 3000, 5))
    main(["train", "--task", "links", "--epochs", "1", "--negatives", "2", "--out", str(tmp_path)])
    printed = "".join(capfd.readouterr())
    assert "200 user nodes, 100 item nodes; user chooses item:" in printed
    assert "recall@20" in printed
    assert "popularity:" in printed
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["config"]["negatives"] == 2
    assert summary["baseline"]["name"] == "popularity"
    assert (tmp_path / "run.png").exists()


# Folders #############################################################################################################


@pytest.fixture
def short(monkeypatch, tmp_path):
    """Runs ``gnnscale train`` with a small graph and model in an empty folder."""
    monkeypatch.chdir(tmp_path)
    small = planted(600, num_classes=4, num_features=8)
    monkeypatch.setattr("torch_gnnscale.datasets.node_task.planted", small.clone)
    links = planted_links(200, 100, 3000, 5)
    monkeypatch.setattr("torch_gnnscale.datasets.link_task.planted_links", lambda: links)
    return lambda *arguments: main(["train", "--epochs", "1", "--hidden", "8", *arguments])


@pytest.mark.slow
def test_runs_of_other_tasks_models_and_data_have_folders_of_their_own(short, task):
    task.save("saved/mine")
    short()
    short("--dataset", "saved/mine")
    short("--model", "gat", "--fanouts", "5", "5")
    short("--resume")
    short("--model", "gat", "--fanouts", "5", "5", "--resume")
    short("--method", "ladies", "--fanouts", "64", "64")
    short("--task", "links", "--negatives", "2")
    found = {path.name for path in Path("runs").iterdir()}
    of_nodes = {f"nodes-{name}" for name in ("planted-sage", "mine-sage", "planted-gat", "planted-sage-ladies")}
    assert found == {*of_nodes, "links-planted"}
    configs = {name: json.loads((Path("runs") / name / "summary.json").read_text())["config"] for name in found}
    methods = {name: configs[name]["method"] for name in of_nodes}
    assert methods == {name: "ladies" if name.endswith("ladies") else "neighbor" for name in of_nodes}


def test_runs_with_pygs_loader_have_folders_of_their_own(short, monkeypatch):
    monkeypatch.setattr("torch_gnnscale.tasks.node_trainer.WITH_PYG_LIB", True)
    monkeypatch.setattr(Trainer, "run", lambda trainer: {"history": [], "seconds": {}})
    monkeypatch.setattr("torch_gnnscale.cli.train.plot_run", lambda *_: None)
    monkeypatch.setattr("torch_gnnscale.tasks.node_trainer.ClassTrainer.training_batches", lambda trainer: [])
    short("--loader", "pyg")
    assert [path.name for path in Path("runs").iterdir()] == ["nodes-planted-sage-pyg"]


@pytest.mark.slow
def test_a_refused_resume_names_out(short, capsys):
    short("--lr", "0.01")
    with pytest.raises(SystemExit) as stop:
        short("--lr", "0.5", "--resume")
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        "gnnscale: --resume: runs/nodes-planted-sage/checkpoint.pt: expected lr=0.5, found 0.01; give --out another "
        "folder, or the options of the run in it\n"
    )


def test_a_model_that_is_refused_leaves_no_folder(short, capsys):
    with pytest.raises(SystemExit):
        short("--task", "temporal", "--hidden", "7", "--out", "here")
    assert "hidden: expected an even number" in capsys.readouterr().err
    assert not Path("here").exists()


# Options that must arrive ############################################################################################


@pytest.mark.slow
@pytest.mark.parametrize(("every", "expected"), [("2", 3), ("5", 2), ("0", 1)])
def test_checkpoints_are_as_many_as_asked_for(short, every, expected, monkeypatch):
    written, save = [], Trainer.save_checkpoint
    monkeypatch.setattr(Trainer, "save_checkpoint", lambda trainer: written.append(1) or save(trainer))
    short("--batch-size", "60", "--checkpoint-every", every)  # 300 training nodes: 5 batches
    assert len(written) == expected


def test_batches_between_checkpoints_reach_the_trainer(short, monkeypatch):
    class Asked(Exception):
        pass

    def build_model(trainer):
        raise Asked(trainer.checkpoint_every)

    monkeypatch.setattr(NodeTrainer, "build_model", build_model)
    for given, expected in (([], 100), (["--checkpoint-every", "7"], 7), (["--checkpoint-every", "0"], 0)):
        with pytest.raises(Asked, match=f"^{expected}$"):
            short(*given)


@pytest.mark.parametrize(("given", "expected"), [("0.5", 2**29), ("3", 3 * 2**30), (None, 2**30)])
def test_memory_is_given_in_gib(given, expected, tmp_path, monkeypatch):
    np.save(tmp_path / "edges.npy", np.array([[0, 1], [1, 2]]))
    found, build = [], torch_gnnscale.topology.build_on_disk
    monkeypatch.setattr(
        "torch_gnnscale.cli.convert.build_on_disk", lambda *args, **kw: found.append(kw["memory"]) or build(*args, **kw)
    )
    option = [] if given is None else ["--memory", given]
    main(["convert", str(tmp_path / "edges.npy"), "--out", str(tmp_path / "graph"), *option])
    assert found == [expected]


@pytest.mark.parametrize("given", ["inf", "nan", "0"])
def test_memory_without_end_is_refused(given, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["convert", "edges.npy", "--out", str(tmp_path / "graph"), "--memory", given])
    message = f"--memory: expected a finite number of GiB above 0, found {float(given)}"
    assert capsys.readouterr().err == f"gnnscale: {message}\n"


@pytest.mark.parametrize("given", [[], ["--no-edge-ids"]])
def test_edge_ids_are_kept_unless_it_is_said(given, tmp_path):
    np.save(tmp_path / "edges.npy", np.array([[0, 1, 2], [2, 1, 0]]))
    main(["convert", str(tmp_path / "edges.npy"), "--out", str(tmp_path / "graph"), *given])
    edge_id = torch_gnnscale.GraphStore.open(tmp_path / "graph").relation().edge_id
    assert (None if edge_id is None else edge_id.tolist()) == (None if given else [2, 1, 0])


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({}, "runs/nodes-small-sage"),
        ({"parts": "p"}, "runs/nodes-small-sage-parts"),
        ({"split_plan": "p"}, "runs/nodes-small-sage-split"),
        ({"parts": "p", "out": "mine"}, "mine"),
    ],
)
def test_runs_of_parts_and_plans_have_folders_of_their_own(given, folder):
    assert cli_train._folder(argparse.Namespace(**given), "nodes", "below/small", NodeConfig()) == Path(folder)


# What is missing #####################################################################################################


def test_pygs_loader_says_what_it_needs_before_data_is_loaded(capsys, monkeypatch, tmp_path):
    for name in ("WITH_PYG_LIB", "WITH_TORCH_SPARSE"):
        monkeypatch.setattr(f"torch_gnnscale.tasks.node_trainer.{name}", False)
    for kind in ("nodes", "hetero"):
        with pytest.raises(SystemExit) as stop:
            main(["train", "--task", kind, "--loader", "pyg", "--dataset", "lost", "--root", str(tmp_path)])
        assert stop.value.code == 2
        printed = capsys.readouterr().err
        assert printed.startswith("gnnscale: loader='pyg': expected the package pyg-lib or torch-sparse")
