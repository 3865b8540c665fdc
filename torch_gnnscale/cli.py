"""The command ``gnnscale``."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import platform
from dataclasses import asdict, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from . import __version__, _library, cli_partition, machine, ops
from .ops.arguments import resolve_threads
from .tasks import TASKS
from .tasks.nodes import MODELS
from .topology import EdgeFiles, build_on_disk
from .topology.edge_text import HEADERS
from .training import Config, plot_run


def info() -> None:
    """Prints versions, libraries, devices and threads."""
    print(f"torch_gnnscale {__version__}")
    print(f"python {platform.python_version()}, {platform.platform()}")
    cuda = torch.version.cuda or "none"
    print(f"torch {torch.__version__} (CUDA {cuda})")
    for name in ("torch_geometric", "pyg_lib", "torch_sparse", "numpy"):
        try:
            print(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            print(f"{name}: not installed")
    for name, state in _library.status.items():
        print(f"library {name}: {state}")
    print(f"threads: {resolve_threads(0) or torch.get_num_threads()} of {machine.cores()} cores of this process")
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    print(f"CUDA devices: {', '.join(devices) or 'none'}")
    stats = ops.pool_stats()
    print(f"memory pool: at most {stats.limit_bytes / 2**30:.1f} GiB idle")


_OPTIONS: dict[str, dict[str, Any]] = {
    "model": {"choices": sorted(MODELS)},
    "residual": {"action": "store_true", "help": "layers with normalization and residuals"},
    "hidden": {"type": int, "help": "width of the model"},
    "fanouts": {"type": int, "nargs": "+", "help": "neighbors per hop, one number per layer"},
    "batch_size": {"type": int, "help": "nodes, links or events per batch"},
    "epochs": {"type": int},
    "lr": {"type": float},
    "weight_decay": {"type": float},
    "dropout": {"type": float},
    "negatives": {"type": int, "help": "negatives per link"},
    "seed": {"type": int},
    "device": {"help": "where batches are made and the model is trained: cpu, cuda, cuda:1, ..."},
    "loader": {"choices": ("gnnscale", "pyg")},
    "num_workers": {"type": int},
}
"""The options for the fields of the tasks' configurations, as arguments of ``add_argument``."""


def _add_options(command: argparse.ArgumentParser) -> None:
    """Adds an option for each field; its help shows the default of each task."""
    configs = {name: asdict(trainer.config_type()) for name, trainer in TASKS.items()}
    for field, how in _OPTIONS.items():
        defaults = [(task, config[field]) for task, config in configs.items() if field in config]
        if len({str(value) for _, value in defaults}) == 1 and len(defaults) == len(TASKS):
            shown = f"default: {defaults[0][1]}"
        else:
            shown = "; ".join(f"{task}: {value}" for task, value in defaults)
        text = f"{how.get('help', '')} ({shown})".strip()
        command.add_argument(f"--{field.replace('_', '-')}", default=argparse.SUPPRESS, **{**how, "help": text})


def _default_folder(args: argparse.Namespace, config: Config) -> Path:
    """``runs/TASK-DATASET``, then the model where the task has several, then ``pyg`` with PyG's loader."""
    names = [args.task, Path(args.dataset).name, getattr(config, "model", ""), getattr(config, "loader", "")]
    return Path("runs") / "-".join(name for name in names if name not in ("", "gnnscale"))


def train(args: argparse.Namespace) -> None:
    """Trains and evaluates; see ``gnnscale train --help``."""
    kind = TASKS[args.task]
    known = {f.name for f in fields(kind.config_type)}
    given = {name: value for name, value in vars(args).items() if name in _OPTIONS}
    if foreign := sorted(given.keys() - known):
        raise ValueError(f"--{foreign[0].replace('_', '-')}: expected an option of task {args.task!r}, found another's")
    for name in ("hidden", "batch_size", "epochs"):
        if given.get(name, 1) < 1:
            raise ValueError(f"--{name.replace('_', '-')}: expected at least 1, found {given[name]}")
    if args.checkpoint_every < 0:
        raise ValueError(f"--checkpoint-every: expected at least 0, found {args.checkpoint_every}")
    config = kind.config_type(**given)
    folder = Path(args.out) if "out" in args else _default_folder(args, config)
    if any(path.exists() and not path.is_dir() for path in (folder, *folder.parents)):
        raise ValueError(f"--out: expected a folder or a new path, found {folder}, which is or is below a file")
    task = kind.load(args.dataset, args.root, args.split)
    print(task)
    trainer = kind(task, config, folder, checkpoint_every=args.checkpoint_every)
    if args.resume:
        try:
            found = trainer.resume()
        except ValueError as error:
            raise ValueError(f"--resume: {error}; give --out another folder, or the options of the run in it") from None
        done = f"after epoch {len(trainer.history)}" if found else "from the beginning (no checkpoint found)"
        print(f"continues {done} in {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    model = trainer.model
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{type(model).__name__}, {parameters:,} parameters; fanouts {config.fanouts}, batches of {config.batch_size}"
    )
    summary = trainer.run()
    print(f"checkpoint and summary in {folder}")
    if importlib.util.find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed (pip install matplotlib)")
    else:
        plot_run(summary, folder / "run.png")
        print(f"plot in {folder / 'run.png'}")


def convert(args: argparse.Namespace) -> None:
    """Files of edges to a saved graph; see ``gnnscale convert --help``."""
    if not 0 < args.memory < math.inf:
        raise ValueError(f"--memory: expected a finite number of GiB above 0, found {args.memory}")
    edges = EdgeFiles(args.sources, None if args.columns is None else tuple(args.columns), args.header)
    nodes = edges.num_nodes() if args.nodes is None else args.nodes
    graph = build_on_disk(
        args.out,
        edges.chunks(),
        nodes,
        edge_ids=not args.no_edge_ids,
        num_edges=edges.count(),
        memory=math.ceil(args.memory * 2**30),
        progress=True,
    )
    csc = graph.relation()
    print(f"{csc.num_dst:,} nodes, {csc.num_edges:,} edges in {args.out}: GraphStore.open({args.out!r})")


def main(arguments: list[str] | None = None) -> None:
    """The entry point."""
    parser = argparse.ArgumentParser(prog="gnnscale", description="Mini-batch GNN training for PyTorch Geometric.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--debug", action="store_true", help="after an error, print Python's traceback")
    commands = parser.add_subparsers(dest="command", required=True)
    dataset = argparse.ArgumentParser(add_help=False)
    add = dataset.add_argument
    add(
        "--dataset", default="planted", help="planted (generated), a set below --root, a saved directory, ogbn-..., ..."
    )
    add("--root", default=os.environ.get("GNNSCALE_DATA", "data"), help="where data sets are, or are downloaded to")
    add("--split", type=int, default=0, help="number of the data split, from 0, for data sets with several")
    commands.add_parser("info", parents=[common], help="versions, libraries, devices, threads")
    command = commands.add_parser(
        "train",
        parents=[common, dataset],
        help="train an ordinary PyG model",
        description="Trains an ordinary PyG model with neighbor sampling and tests it, beside a baseline.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = command.add_argument
    add("--task", choices=list(TASKS), default="nodes", help="classes of nodes, of one type of several, links, events")
    add(
        "--out",
        default=argparse.SUPPRESS,
        help="folder for checkpoint, summary and plot; by default runs/TASK-DATASET, followed by the model of a task "
        "that has several and by the loader if it is pyg",
    )
    add("--resume", action="store_true", help="continue from the checkpoint in --out, if there is one")
    add("--checkpoint-every", type=int, default=100, help="batches between checkpoints within an epoch; 0: none")
    _add_options(command)
    command = commands.add_parser(
        "convert",
        parents=[common],
        help="build a graph from files of edges, on disk",
        description="Sorts edges by destination in bounded memory and saves the graph, ready to be opened mapped.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = command.add_argument
    add("sources", nargs="+", help=".npy of shape [2, E], .parquet or text files of edges")
    add("--out", required=True, help="a new directory")
    add("--columns", nargs=2, metavar=("SRC", "DST"), help="of files with names: those of sources and destinations")
    add(
        "--header",
        choices=HEADERS,
        default="auto",
        help="of text files: a first line that names the columns, or asked for",
    )
    add("--nodes", type=int, help="number of nodes; by default one more than the largest id, which takes a pass")
    add("--no-edge-ids", action="store_true", help="do not keep the way back to the edges' order in the files")
    add("--memory", type=float, default=1.0, help="GiB that may be used to sort")
    cli_partition.add_command(commands, [common, dataset])
    args = parser.parse_args(arguments)
    try:
        run = {"info": lambda _: info(), "train": train, "convert": convert, "partition": cli_partition.partition}
        run[args.command](args)
    except KeyboardInterrupt:
        if args.debug:
            raise
        parser.exit(130, "\ngnnscale: interrupted\n")
    except (ValueError, IndexError, TypeError, NotImplementedError, OSError, ImportError) as error:
        if args.debug:
            raise
        parser.exit(2, f"gnnscale: {error}\n")
