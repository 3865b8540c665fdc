"""Each option of the command line arrives where it is used."""

import argparse
import errno
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from torch_gnnscale.cli import command as cli
from torch_gnnscale.cli import convert as cli_convert
from torch_gnnscale.cli import main
from torch_gnnscale.cli import options as cli_options
from torch_gnnscale.cli import partition as cli_partition
from torch_gnnscale.cli import train as cli_train
from torch_gnnscale.datasets import NodeTask, planted
from torch_gnnscale.tasks import TASKS, RelationalTrainer
from torch_gnnscale.topology.edge_sources import Ends
from torch_gnnscale.training import CHECKPOINT


class Asked(Exception):
    """What a function was called with."""


def asking(*positional, **named):
    raise Asked(positional, named)


def asked(*arguments: str):
    """What the function that raises ``Asked`` was called with."""
    with pytest.raises(Asked) as raised:
        main(list(arguments))
    return raised.value.args


@pytest.fixture(scope="module")
def task():
    return NodeTask.from_data("small", planted(200, num_classes=3, num_features=4, seed=0))


# Training ############################################################################################################

VALUES = {
    "model": ("gat", "gat"), "residual": (None, True), "hidden": ("6", 6), "fanouts": ("4 3 2", [4, 3, 2]),
    "method": ("labor", "labor"), "batch_size": ("33", 33), "epochs": ("7", 7), "lr": ("0.5", 0.5),
    "weight_decay": ("0.25", 0.25), "dropout": ("0.75", 0.75), "negatives": ("3", 3), "blocks": ("5", 5),
    "seed": ("9", 9), "device": ("cpu", "cpu"), "loader": ("gnnscale", "gnnscale"), "num_workers": ("2", 2),
}  # fmt: skip


TRAINERS = {**TASKS, "relbench": RelationalTrainer}


def test_every_setting_of_a_task_has_an_option():
    settings = {field.name for trainer in TRAINERS.values() for field in fields(trainer.config_type)}
    assert settings == set(cli_train._settings()) == set(VALUES)


@pytest.mark.parametrize("kind", TRAINERS)
@pytest.mark.parametrize("name", [None, *VALUES])
def test_settings_are_those_given_or_of_the_task(kind, name, monkeypatch, tmp_path):
    monkeypatch.setattr(cli_options, "load", lambda kind, args: (kind, vars(args)))
    monkeypatch.setattr(RelationalTrainer, "load", lambda database, task, cache: (database, task, cache))
    monkeypatch.setattr(cli_train, "_run", asking)
    default = asdict(TRAINERS[kind].config_type())
    chosen = ["--relbench", kind, "--task", "churn"] if kind == "relbench" else ["--task", kind]
    command = ["train", *chosen, "--out", str(tmp_path / "run")]
    if name is not None and name not in default:
        return
    given = {} if name is None else {name: VALUES[name]}
    for option, (text, _) in given.items():
        command += [f"--{option.replace('_', '-')}", *([] if text is None else text.split())]
    (args, trainer, loaded, config, folder, ranks, _), _ = asked(*command)
    assert trainer is TRAINERS[kind]
    assert loaded[0] == kind
    assert asdict(config) == {**default, **{option: value for option, (_, value) in given.items()}}
    assert folder == tmp_path / "run"
    assert (args.resume, args.checkpoint_every, args.debug) == (False, 100, False)
    assert (ranks.rank, ranks.world) == (0, 1)


@pytest.mark.parametrize("command", ["train", "partition", "split"])
def test_the_data_set_is_the_one_that_is_named(command, monkeypatch, tmp_path):
    monkeypatch.setattr(TASKS["nodes"], "load", asking)
    needed = [] if command == "train" else ["--out", str(tmp_path / "new")]
    *default, target = cli_options.OPTIONS.values()
    assert (default[0], default[2], target) == ("planted", 0, None)
    assert asked(command, *needed) == (tuple(default), {"target": None})
    given = ["--dataset", "mine", "--root", "there", "--split", "3"]
    target = "user.label" if command == "partition" else None  # the others would be of another task
    given += [] if target is None else ["--target", target]
    assert asked(command, *needed, *given) == (("mine", "there", 3), {"target": target})


def test_what_a_run_is_told(task, monkeypatch, tmp_path):
    args = argparse.Namespace(checkpoint_every=7, resume=False)
    ranks = cli_train.RankGroup()
    with pytest.raises(Asked) as raised:
        cli_train._run(args, asking, task, "config", tmp_path, ranks, cli_train.Interrupts())
    assert raised.value.args == ((task, "config", tmp_path), {"checkpoint_every": 7, "ranks": ranks})


def test_options_of_parts_arrive(monkeypatch):
    monkeypatch.setattr(cli_train, "open_part", asking)
    assert asked("train", "--parts", "p") == (("p",), {})
    given = ["--stage", "disk", "--buffer", "0.25", "--policy", "static"]
    expected = {"stage": "disk", "buffer": 0.25, "policy": "static"}
    assert asked("train", "--parts", "p", *given) == (("p",), expected)
    assert asked("train", "--parts", "p", "--buffer", "2GiB") == (("p",), {"buffer": "2GiB"})


def test_a_plan_is_opened_and_reaches_the_trainer(task, monkeypatch, tmp_path):
    monkeypatch.setattr(cli_train.Plan, "open", lambda path: ("plan of", path))
    monkeypatch.setattr(cli_options, "load", lambda *_: task)
    monkeypatch.setattr(cli_train, "_run", asking)
    command = ["train", "--split-plan", "here", "--out", str(tmp_path)]
    for given, order, transport in (
        ([], "global", "auto"), (["--seed-order", "owned", "--transport", "gloo"], "owned", "gloo")
    ):  # fmt: skip
        (_, trainer, loaded, _, folder, ranks, _), _ = asked(*command, *given)
        assert trainer.func is cli_train.SplitNodeTrainer
        assert trainer.keywords == {"plan": ("plan of", "here"), "order": order, "transport": transport}
        assert (loaded, folder) == (task, tmp_path)
        assert (type(ranks), ranks.rank, ranks.world) == (cli_train.SplitRanks, 0, 1)


class Short:
    """A trainer that trains nothing."""

    ranks_per_batch = 1

    def __init__(self, task, config, folder, checkpoint_every, ranks):
        self.model, self.history, self.resumed = torch.nn.Linear(2, 3), [1, 2], bool(config.epochs > 1)

    def run(self):
        return {"summary": 1}

    def resume(self):
        return self.resumed


@pytest.mark.parametrize(
    ("epochs", "said"), [(2, "continues after epoch 2"), (1, "continues from the beginning (no checkpoint found)")]
)
@pytest.mark.parametrize("matplotlib", [True, False])
def test_what_a_run_says(epochs, said, matplotlib, monkeypatch, tmp_path, capsys):
    plotted, folder = [], tmp_path / "new" / "run"
    monkeypatch.setattr(cli_train, "plot_run", lambda *given: plotted.append(given))
    monkeypatch.setattr(cli_train.importlib.util, "find_spec", lambda name: matplotlib or None)
    config = SimpleNamespace(epochs=epochs, fanouts=[3, 2], batch_size=64)
    args = argparse.Namespace(checkpoint_every=7, resume=True)
    cli_train._run(args, Short, "the task", config, folder, cli_train.RankGroup(), cli_train.Interrupts())
    missing = "no plot: matplotlib is not installed (pip install matplotlib)"
    assert capsys.readouterr().out.splitlines() == [
        "the task",
        f"{said} in {folder}",
        "Linear, 9 parameters; fanouts [3, 2], batches of 64",
        f"checkpoint and summary in {folder}",
        f"plot in {folder}/run.png" if matplotlib else missing,
    ]
    assert plotted == ([({"summary": 1}, folder / "run.png")] if matplotlib else [])
    assert folder.is_dir()


@pytest.mark.parametrize("where", ["run", "plot_run"])
@pytest.mark.parametrize(("number", "named"), [(errno.ENOSPC, True), (errno.ECONNRESET, False)])
def test_a_full_disk_is_named(where, number, named, monkeypatch, tmp_path):
    def fail(*_):
        raise OSError(number, "what happened")

    monkeypatch.setattr(cli_train, "plot_run", fail)
    monkeypatch.setattr(cli_train.importlib.util, "find_spec", lambda name: True)
    if where == "run":
        monkeypatch.setattr(Short, "run", fail)
    config = SimpleNamespace(epochs=2, fanouts=[3, 2], batch_size=64)
    args = argparse.Namespace(checkpoint_every=7, resume=True)
    with pytest.raises(OSError, match="what happened") as raised:
        cli_train._run(args, Short, "the task", config, tmp_path, cli_train.RankGroup(), cli_train.Interrupts())
    assert raised.value.filename == (str(tmp_path) if named else None)


def test_ranks_other_than_the_first_are_silent(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cli_train, "plot_run", asking)
    ranks = SimpleNamespace(is_first=False, world=2, first=lambda make: None)
    config = SimpleNamespace(epochs=2, fanouts=[3, 2], batch_size=64)
    args = argparse.Namespace(checkpoint_every=7, resume=True)
    cli_train._run(args, Short, "the task", config, tmp_path, ranks, cli_train.Interrupts())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ((1, 1), "batches of 256"), ((4, 1), "4 ranks x 256 = 1024 seeds per step (one process: 256)"),
        ((4, 4), "256 seeds per step, shared by 4 ranks"),
        ((8, 4), "2 x 256 = 512 seeds per step, each batch shared by 4 of 8 ranks (one process: 256)"),
    ],
)  # fmt: skip
def test_the_seeds_of_a_step_are_those_of_all_ranks(ranks, said):
    assert cli_train._per_step(256, *ranks) == said


def test_a_file_that_is_no_checkpoint_is_not_gone_on_from(task, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cli_options, "load", lambda *_: task)
    torch.save([1], tmp_path / CHECKPOINT)
    command = ["train", "--hidden", "4", "--out", str(tmp_path), "--resume"]
    with pytest.raises(SystemExit) as stop:
        main(command)
    text = f"--resume: {tmp_path}/{CHECKPOINT}: expected a checkpoint, found another file; give --out another folder, "
    assert (stop.value.code, capsys.readouterr().err) == (2, f"gnnscale: {text}or the options of the run in it\n")
    for debugged in (["--debug", *command], [*command, "--debug"]):
        with pytest.raises(ValueError, match=r"^--resume: "):
            main(debugged)


def test_an_interrupt_is_shown_if_asked(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "info", interrupted)
    with pytest.raises(KeyboardInterrupt):
        main(["info", "--debug"])


# Other commands ######################################################################################################


@pytest.mark.slow
def test_options_of_convert_arrive(monkeypatch, tmp_path):
    made = []

    class Files:
        def __init__(self, *given):
            made.append(given)

        def ends(self):
            return Ends(0, 7, "a"), Ends(3, 10, "b"), 22

        def chunks_of_files(self):
            return iter([("a", torch.tensor([[1], [2]]))])

        def count(self):
            return 22

    monkeypatch.setattr(cli_convert, "EdgeFiles", Files)
    monkeypatch.setattr(cli_convert, "build_on_disk", asking)
    monkeypatch.chdir(tmp_path)
    expected = {"edge_type": None, "edge_ids": True, "num_edges": 22, "memory": 1 << 30, "progress": True}
    (out, chunks, sizes), named = asked("convert", "a", "b", "--out", "new")
    assert (out, [chunk.tolist() for chunk in chunks], sizes, named) == ("new", [[[1], [2]]], (11, 11), expected)
    given = ["--columns", "src", "dst", "--header", "no", "--nodes", "5", "--no-edge-ids", "--memory", "0.3"]
    expected |= {"edge_ids": False, "memory": 322122548}
    (out, _, sizes), named = asked("convert", "a", "--out", "new", *given)
    assert (out, sizes, named) == ("new", (5, 5), expected)
    types = ["--types", "user", "buys", "item"]
    for given, sizes in ((types, (8, 11)), ([*types, "--nodes", "9", "12"], (9, 12))):
        (_, _, found), named = asked("convert", "a", "--out", "new", *given)
        assert (found, named["edge_type"]) == (sizes, ("user", "buys", "item"))
    assert made[:2] == [(["a", "b"], None, "auto"), (["a"], ("src", "dst"), "no")]


def test_options_of_partition_arrive(task, monkeypatch, tmp_path):
    monkeypatch.setattr(cli_options, "load", lambda *_: task)
    monkeypatch.setattr(cli_partition, "write", asking)
    np.save(tmp_path / "owners.npy", np.arange(4))
    positional, named = asked("partition", "--out", "new")
    about = named.pop("about")
    assert positional == (task.data, "new", None)
    assert named == {
        "method": "auto", "owners": None, "topology": "replicated", "links": None, "graph_attrs": [], "seed": 0,
        "balance": ["nodes", "edges", "train"], "memory": None, "only": None, "progress": True,
    }  # fmt: skip
    assert (about["task"], about["dataset"]) == ("nodes", "planted")
    given = {
        "parts": "3", "method": "coarse", "owners": str(tmp_path / "owners.npy"), "topology": "partitioned",
        "balance": "train nodes", "seed": "8", "memory": "0.3", "only": "1 2", "graph-attrs": "a b",
    }  # fmt: skip
    words = [word for name, value in given.items() for word in (f"--{name}", *value.split())]
    positional, named = asked("partition", "--out", "new", *words)
    assert positional == (task.data, "new", 3)
    assert named.pop("owners").tolist() == [0, 1, 2, 3]
    assert named.pop("about") == about
    assert named == {
        "method": "coarse", "topology": "partitioned", "links": None, "graph_attrs": ["a", "b"], "seed": 8,
        "balance": ["train", "nodes"], "memory": 322122548, "only": [1, 2], "progress": True,
    }  # fmt: skip


@pytest.mark.parametrize("given", ["0", "-1", "inf", "nan"])
@pytest.mark.parametrize("command", ["partition", "convert"])
def test_memory_that_no_machine_has(command, given, capsys):
    with pytest.raises(SystemExit):
        main([command, *(["edges.npy"] if command == "convert" else []), "--out", "new", "--memory", given])
    text = f"--memory: expected a finite number of GiB above 0, found {float(given)}"
    assert capsys.readouterr().err == f"gnnscale: {text}\n"


# What is offered #####################################################################################################

OFFERED = Path(__file__).parent / "cli_options.txt"


def offered() -> Iterator[str]:
    """A line for each option of each command: what it takes, not how it is described."""
    parsers = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", lambda parser, arguments: parsers.append(parser) or 1 // 0)
        with pytest.raises(ZeroDivisionError):
            main([])
    (commands,) = (action for action in parsers[0]._actions if isinstance(action, argparse._SubParsersAction))
    for name, parser in {"gnnscale": parsers[0], **commands.choices}.items():
        yield name
        for action in parser._actions:
            if action is commands or isinstance(action, argparse._HelpAction):
                continue
            assert action.help, (name, action.dest)
            said = {"needed": action.required or None, "nargs": action.nargs}
            said |= {"type": getattr(action.type, "__name__", None), "choices": action.choices and [*action.choices]}
            said |= {"default": None if action.default is argparse.SUPPRESS else action.default}
            given = ", ".join(f"{key}={value!r}" for key, value in said.items() if value is not None)
            yield f"  {' '.join(action.option_strings) or action.dest} ({given})"


def test_what_is_offered():
    """A change of a line is a change of what users type. This writes the list anew, without GNNSCALE_DATA: ::

    PYTHONPATH=tests python tests/cli/test_cli_options.py > tests/cli/cli_options.txt
    """
    expected = OFFERED.read_text().replace("default='data'", f"default={cli_options.OPTIONS['root']!r}")
    assert [*offered()] == expected.splitlines()


if __name__ == "__main__":
    print("\n".join(offered()))
