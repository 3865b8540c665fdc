"""The command ``gnnscale train``."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Callable
from dataclasses import Field, fields
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch

from ..comm.mesh import TRANSPORTS, Ranks
from ..datasets import task_of_part
from ..datasets.part_tasks import kind_of_parts
from ..distributed import open_part
from ..distributed.buffer import POLICIES
from ..files import check_writable
from ..loader.epochs import SharedOrder
from ..sampler.methods import NEIGHBOR
from ..split import Plan
from ..tasks import TASKS, RelationalTrainer
from ..tasks.node_trainer import SplitNodeTrainer, SplitRanks
from ..training import Config, Interrupts, RankGroup, Trainer, plot_run
from ..training.checkpoint import keep_backup
from ..training.rank_group import launched, launched_ranks
from . import options as cli_options
from .options import as_option, check_at_least, naming_folder, naming_options

_OF_PARTS = ("stage", "buffer", "policy")
"""Options that only --parts understands."""

_RELBENCH = "relbench"
_TRAINERS: dict[str, type[Trainer]] = {**TASKS, _RELBENCH: RelationalTrainer}


def _settings() -> dict[str, Field]:
    """The fields of the tasks' configurations by name, each where it is described."""
    configs = [trainer.config_type for trainer in _TRAINERS.values()]
    return {entry.name: entry for config in [*configs, Config] for entry in fields(config)}


def _add_settings(command: argparse.ArgumentParser) -> None:
    """Adds an option for each field; its help shows the default of each task."""
    configs = {name: trainer.config_type() for name, trainer in _TRAINERS.items()}
    types = {name: hint for config in configs.values() for name, hint in get_type_hints(type(config)).items()}
    for name, entry in _settings().items():
        defaults = {task: getattr(config, name) for task, config in configs.items() if hasattr(config, name)}
        if len({str(value) for value in defaults.values()}) == 1 and len(defaults) == len(configs):
            shown = f"default: {next(iter(defaults.values()))}"
        else:
            shown = "; ".join(f"{task}: {value}" for task, value in defaults.items())
        how: dict[str, Any] = {"help": f"{entry.metadata.get('help', '')} ({shown})".strip()}
        if types[name] is bool:
            how["action"] = "store_true"
        elif types[name] == list[int]:
            how |= {"nargs": "+", "type": int}
        else:
            how |= {"type": types[name], "choices": entry.metadata.get("choices") or None}
        command.add_argument(as_option(name), default=argparse.SUPPRESS, **how)


def add_command(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    """Adds the command and its options; ``parents`` have --debug and those of :mod:`.options`."""
    command = commands.add_parser(
        "train",
        parents=parents,
        help="train an ordinary PyG model",
        description="Trains an ordinary PyG model with neighbor sampling and tests it, beside a baseline. Started by "
        "torchrun with --parts or --split-plan, all ranks train one model.",
    )
    add = command.add_argument
    unless_given: dict[str, Any] = {"default": argparse.SUPPRESS}
    add(
        "--task",
        help=f"one of {', '.join(TASKS)}: classes of nodes, of one type of several, links, events (default: nodes, or "
        "what --parts were written for); with --relbench, the name of one of the database's tasks",
        **unless_given,
    )
    add(
        "--relbench",
        metavar="DATABASE",
        help="a folder with RelBench's manifest and parquet tables, or a name that RelBench downloads, instead of a "
        "data set; needs relbench and pytorch-frame",
        **unless_given,
    )
    add("--cache", metavar="DIR", help="where the graph and the encoded rows of --relbench are kept", **unless_given)
    add("--parts", metavar="DIR", help="what gnnscale partition wrote, instead of a data set", **unless_given)
    add(
        "--split-plan",
        metavar="PLAN",
        help="what gnnscale split wrote: the ranks compute every batch together",
        **unless_given,
    )
    add("--stage", metavar="DIR", help="copy what a machine needs of --parts here, and open that", **unless_given)
    add(
        "--buffer",
        metavar="SHARE",
        help="rows of other parts that a rank keeps: a share of its halo (0.25), or bytes (2GiB) (default: none)",
        **unless_given,
    )
    add(
        "--transport",
        choices=TRANSPORTS,
        help="how rows travel between ranks: through memory of one machine, over Gloo or NCCL (default: auto, memory "
        "where it can be had)",
        **unless_given,
    )
    add("--policy", choices=list(POLICIES), help="which rows are kept (default: massivegnn)", **unless_given)
    add(
        "--seed-order",
        choices=get_args(SharedOrder),
        help="owned (each part's seeds by themselves) or global (all seeds together) (default: owned with --parts, "
        "global with --split-plan)",
        **unless_given,
    )
    add(
        "--out",
        help="folder for checkpoint, summary and plot; by default runs/TASK-DATASET, followed by --target, the model "
        "of a task that has several, by --method, by the loader if it is pyg, by parts with --parts and split with "
        "--split-plan",
        **unless_given,
    )
    add("--resume", action="store_true", help="continue from the checkpoint in --out, if there is one")
    add("--checkpoint-every", type=int, default=100, help="batches between checkpoints within an epoch; 0: none")
    _add_settings(command)


def train(args: argparse.Namespace) -> None:
    """Trains and evaluates; see ``gnnscale train --help``. Ctrl-C ends it after the current batch."""
    with Interrupts() as interrupts:
        _train(args, interrupts)


def _train(args: argparse.Namespace, interrupts: Interrupts) -> None:
    if "relbench" in args:
        with launched():
            _train_database(args, interrupts)
        return
    if "cache" in args:
        raise ValueError("--cache: expected --relbench beside it, found none")
    if getattr(args, "task", "nodes") not in TASKS:
        raise ValueError(f"--task: expected one of {list(TASKS)}, found {args.task!r}")
    if "parts" in args:
        _check_beside_parts(args)
        with launched():
            _train_part(args, interrupts)
        return
    if found := [name for name in _OF_PARTS if name in args]:
        raise ValueError(f"{as_option(found[0])}: expected --parts beside it, found none")
    if "split_plan" in args:
        with launched():
            _train_split(args, interrupts)
        return
    if found := [name for name in ("seed_order", "transport") if name in args]:
        raise ValueError(f"{as_option(found[0])}: expected --parts or --split-plan beside it, found none")
    if (world := launched_ranks()) > 1:
        raise ValueError(f"WORLD_SIZE: expected 1 without --parts or --split-plan, found {world}")
    kind = cli_options.kind_of(args)
    config = _config(kind, args)
    folder = _checked(_folder(args, kind, cli_options.dataset(args), config))
    _run(args, TASKS[kind], cli_options.load(kind, args), config, folder, RankGroup(), interrupts)


def _train_database(args: argparse.Namespace, interrupts: Interrupts) -> None:
    """Trains on a task of a relational database, with the other ranks, if there are any."""
    others = (*cli_options.OPTIONS, "parts", "split_plan", *_OF_PARTS, "seed_order", "transport")
    if found := [name for name in others if name in args]:
        raise ValueError(f"{as_option(found[0])}: expected none beside --relbench, found {vars(args)[found[0]]!r}")
    if "task" not in args:
        raise ValueError("--task: expected the name of a task of --relbench, found none")
    config = _config(_RELBENCH, args)
    ranks = RankGroup(Ranks(int(os.environ.get("RANK", "0")), launched_ranks()))
    name = f"{Path(args.relbench).resolve().name}-{args.task}"
    folder = ranks.first(lambda: _checked(_folder(args, _RELBENCH, name, config)))
    with naming_options({"source": "--relbench"}):
        task = RelationalTrainer.load(args.relbench, args.task, cache=getattr(args, "cache", None))
    _run(args, RelationalTrainer, task, config, folder, ranks, interrupts)


def _train_part(args: argparse.Namespace, interrupts: Interrupts) -> None:
    """Trains with the other ranks, on a part of the graph."""
    kept = {name: getattr(args, name) for name in (*_OF_PARTS, "transport") if name in args}
    if "buffer" in kept:
        kept["buffer"] = _as_budget(kept["buffer"])
    with open_part(args.parts, **kept) as part:
        ranks, kind = RankGroup(part.ranks), kind_of_parts(part.parts)
        if getattr(args, "task", kind) != kind:
            raise ValueError(f"--task: expected {kind!r}, which {args.parts} was written for, found {args.task!r}")
        config = _config(kind, args)
        task = task_of_part(part, getattr(args, "seed_order", "owned"), ranks.everyone)
        path = _folder(args, kind, Path(task.name).name, config)
        _run(args, TASKS[kind], task, config, ranks.first(lambda: _checked(path)), ranks, interrupts)


def _train_split(args: argparse.Namespace, interrupts: Interrupts) -> None:
    """Trains with the other ranks, which compute every batch together."""
    kind = cli_options.kind_of(args)
    if kind != "nodes":
        raise NotImplementedError(f"--task {kind} with --split-plan is not implemented; use nodes")
    plan, config = Plan.open(args.split_plan), _config(kind, args)
    if getattr(args, "device", "cpu") == "cuda":  # ranks share GPUs only where there are too few
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    order: Any = getattr(args, "seed_order", "global")
    transport: Any = getattr(args, "transport", "auto")
    trainer = partial(SplitNodeTrainer, plan=plan, order=order, transport=transport)
    ranks = SplitRanks(Ranks(int(os.environ.get("RANK", "0")), launched_ranks()))
    path = _folder(args, kind, cli_options.dataset(args), config)
    _run(args, trainer, cli_options.load(kind, args), config, ranks.first(lambda: _checked(path)), ranks, interrupts)


def _run(
    args: argparse.Namespace, trainer_type: Callable[..., Trainer], task: Any, config: Config, folder: Path,
    ranks: RankGroup, interrupts: Interrupts,
) -> None:  # fmt: skip
    """Trains, prints and leaves files in ``folder``: on rank 0, in the name of all."""
    say: Callable[[str], None] = print if ranks.is_first else lambda _: None
    say(str(task))
    with naming_options({"num_neighbors": "--fanouts", "hidden": "--hidden"}):
        trainer = trainer_type(task, config, folder, checkpoint_every=args.checkpoint_every, ranks=ranks)
    if args.resume:
        _resume(trainer, folder, say)
    elif (backup := ranks.first(lambda: keep_backup(folder))) is not None:
        say(f"the checkpoint of the run before is kept as {backup} (to go on with it: --resume)")
    ranks.first(lambda: folder.mkdir(parents=True, exist_ok=True))
    model = trainer.model
    parameters = sum(p.numel() for p in model.parameters())
    say(
        f"{type(model).__name__}, {parameters:,} parameters; fanouts {config.fanouts}, "
        f"{_per_step(config.batch_size, ranks.world, trainer.ranks_per_batch)}"
    )
    trainer.between_batches = interrupts.check
    with naming_folder(folder), interrupts.deferred():
        summary = trainer.run()
    say(f"checkpoint and summary in {folder}")
    if not ranks.is_first:
        return
    if importlib.util.find_spec("matplotlib") is None:
        say("no plot: matplotlib is not installed (pip install matplotlib)")
    else:
        with naming_folder(folder):
            plot_run(summary, folder / "run.png")
        say(f"plot in {folder / 'run.png'}")


def _per_step(size: int, world: int, shared: int) -> str:
    """The seeds of a step of all ranks, beside those of one process: batches of ``size``, each shared by ``shared``
    ranks."""
    if world == 1:
        return f"batches of {size}"
    if shared == world:
        return f"{size} seeds per step, shared by {world} ranks"
    count, of = world // shared, f", each batch shared by {shared} of {world} ranks" if shared > 1 else ""
    return (
        f"{count}{' ranks' if shared == 1 else ''} x {size} = {count * size} seeds per step{of} (one process: {size})"
    )


def _resume(trainer: Trainer, folder: Path, say: Callable[[str], None]) -> None:
    try:
        found = trainer.resume()
    except ValueError as error:
        raise ValueError(f"--resume: {error}; give --out another folder, or the options of the run in it") from None
    done = f"after epoch {len(trainer.history)}" if found else "from the beginning (no checkpoint found)"
    say(f"continues {done} in {folder}")


# Options ##############################################################################################################


def _check_beside_parts(args: argparse.Namespace) -> None:
    """Raises for options that contradict --parts."""
    if "split_plan" in args:
        raise ValueError(f"--split-plan: expected none beside --parts, found {args.split_plan!r}")
    if found := [name for name in cli_options.OPTIONS if name in args]:
        raise ValueError(
            f"--{found[0]}: expected none beside --parts, which hold the data set, found {vars(args)[found[0]]!r}"
        )
    if getattr(args, "task", None) == "temporal":
        raise NotImplementedError("--task temporal with --parts is not implemented; use nodes, hetero or links")
    if getattr(args, "loader", "gnnscale") != "gnnscale":
        raise ValueError(f"--loader: expected gnnscale beside --parts, found {args.loader}")
    if getattr(args, "device", "cpu") != "cpu":
        raise NotImplementedError(f"--device {args.device} with --parts is not implemented; use cpu")
    if getattr(args, "transport", "auto") == "nccl":
        raise NotImplementedError("--transport nccl with --parts is not implemented; use auto")


def _config(kind: str, args: argparse.Namespace) -> Config:
    """The settings of a task; ValueError for options of other tasks, and for values out of range."""
    config_type = _TRAINERS[kind].config_type
    known, settings = {f.name for f in fields(config_type)}, _settings()
    given = {name: value for name, value in vars(args).items() if name in settings}
    if foreign := sorted(given.keys() - known):
        raise ValueError(f"{as_option(foreign[0])}: expected an option of task {kind!r}, found another's")
    check_at_least(1, {name: given.get(name, 1) for name in ("hidden", "batch_size", "epochs")})
    check_at_least(0, {"checkpoint_every": args.checkpoint_every})
    with naming_options({name: as_option(name) for name in given}):
        return config_type(**given)


def _folder(args: argparse.Namespace, kind: str, name: str, config: Config) -> Path:
    """--out, or ``runs/TASK-DATASET``, then --target, the model where the task has several, the method unless it is
    ``neighbor``, ``pyg`` with PyG's loader, and ``parts`` with --parts, ``split`` with --split-plan."""
    if "out" in args:
        return Path(args.out)
    names = [
        kind,
        Path(name).name,
        getattr(args, "target", ""),
        *(getattr(config, field, "") for field in ("model", "method", "loader")),
    ]
    names += [wing for option, wing in (("parts", "parts"), ("split_plan", "split")) if option in args]
    return Path("runs") / "-".join(name for name in names if name not in ("", NEIGHBOR, "gnnscale"))


def _checked(folder: Path) -> Path:
    """A folder that is there or can be made, and written to."""
    if any(path.exists() and not path.is_dir() for path in (folder, *folder.parents)):
        raise ValueError(f"--out: expected a folder or a new path, found {folder}, which is or is below a file")
    check_writable(folder)
    return folder


def _as_budget(text: str) -> float | str:
    """A share if it is a number, else what says its unit."""
    try:
        return float(text)
    except ValueError:
        return text
