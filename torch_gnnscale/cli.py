"""The command ``gnnscale``."""

from __future__ import annotations

import argparse
import importlib.util
import platform
from dataclasses import fields
from importlib import metadata
from pathlib import Path

import torch

from . import _library, datasets, ops
from .topology import EdgeFiles, build_on_disk
from .training import MODELS, Config, Trainer, plot_run


def info() -> None:
    """Prints versions, libraries, devices and threads."""
    print(f"torch_gnnscale {metadata.version('torch_gnnscale')}")
    print(f"python {platform.python_version()}, {platform.platform()}")
    cuda = torch.version.cuda or "none"
    print(f"torch {torch.__version__} (CUDA {cuda})")
    for name in ("torch_geometric", "pyg_lib", "torch_sparse", "cupy", "numpy"):
        try:
            print(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            print(f"{name}: not installed")
    for name, state in _library.status.items():
        print(f"library {name}: {state}")
    print(f"threads: {torch.get_num_threads()}")
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    print(f"CUDA devices: {', '.join(devices) or 'none'}")
    stats = ops.pool_stats()
    print(f"memory pool: at most {stats.limit_bytes / 2**30:.1f} GiB idle")


def train(args: argparse.Namespace) -> None:
    """Trains and evaluates; see ``gnnscale train --help``."""
    config = Config(**{f.name: getattr(args, f.name) for f in fields(Config)})
    task = datasets.load(args.dataset, args.root, args.split)
    print(
        f"{task.name}: {task.num_nodes:,} nodes, {task.num_edges:,} edges, {task.num_features} features, "
        f"{task.num_classes} classes, {int(task.masks['train'].sum()):,} training nodes"
    )
    folder = Path(args.out)
    trainer = Trainer(task, config, folder, checkpoint_every=args.checkpoint_every)
    if args.resume:
        found = trainer.resume()
        done = f"behind epoch {len(trainer.history)}" if found else "at the beginning, for there is no checkpoint"
        print(f"goes on {done} in {folder}")
    parameters = sum(p.numel() for p in trainer.model.parameters())
    print(f"{config.model}, {parameters:,} parameters; fanouts {config.fanouts}, batches of {config.batch_size} seeds")
    summary = trainer.run()
    print(f"checkpoint and summary in {folder}")
    if importlib.util.find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed (pip install matplotlib)")
    else:
        plot_run(summary, folder / "run.png")
        print(f"plot in {folder / 'run.png'}")


def convert(args: argparse.Namespace) -> None:
    """Files of edges to a saved graph; see ``gnnscale convert --help``."""
    edges = EdgeFiles(args.sources)
    nodes = edges.num_nodes() if args.nodes is None else args.nodes
    graph = build_on_disk(
        args.out,
        edges.chunks(),
        nodes,
        edge_ids=not args.no_edge_ids,
        num_edges=edges.count(),
        memory=int(args.memory * 2**30),
        progress=True,
    )
    csc = graph.relation()
    print(f"{csc.num_dst:,} nodes, {csc.num_edges:,} edges in {args.out}: GraphStore.open({args.out!r})")


def main(arguments: list[str] | None = None) -> None:
    """The entry point."""
    parser = argparse.ArgumentParser(prog="gnnscale", description="Mini-batch GNN training for PyTorch Geometric.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, libraries, devices, threads")
    command = commands.add_parser(
        "train",
        help="train an ordinary PyG model",
        description="Trains an ordinary PyG model with neighbor sampling and tests it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    defaults = Config()
    add = command.add_argument
    add("--dataset", default="planted", help="planted, cora, tolokers, fb100/SCHOOL, ogbn-..., a saved directory, ...")
    add("--root", default="data", help="where the files of data sets are, or are downloaded to")
    add("--split", type=int, default=0, help="which of several splits, from 0")
    add("--out", default="runs/last", help="folder for checkpoint, summary and plot")
    add("--resume", action="store_true", help="go on from the checkpoint in --out, if there is one")
    add("--checkpoint-every", type=int, default=100, help="batches between checkpoints within an epoch; 0: none")
    add("--model", choices=sorted(MODELS), default=defaults.model)
    add("--residual", action="store_true", help="layers with normalization and residuals")
    add("--hidden", type=int, default=defaults.hidden)
    add("--fanouts", type=int, nargs="+", default=defaults.fanouts, help="neighbors a hop, one number a layer")
    add("--batch-size", type=int, default=defaults.batch_size)
    add("--epochs", type=int, default=defaults.epochs)
    add("--lr", type=float, default=defaults.lr)
    add("--weight-decay", type=float, default=defaults.weight_decay)
    add("--dropout", type=float, default=defaults.dropout)
    add("--seed", type=int, default=defaults.seed)
    add("--loader", choices=("gnnscale", "pyg"), default=defaults.loader)
    add("--num-workers", type=int, default=defaults.num_workers)
    command = commands.add_parser(
        "convert",
        help="build a graph from files of edges, on disk",
        description="Sorts edges by destination in bounded memory and saves the graph, ready to be opened mapped.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = command.add_argument
    add("sources", nargs="+", help=".npy of shape [2, E], .parquet or text files of edges")
    add("--out", required=True, help="a new directory")
    add("--nodes", type=int, help="number of nodes; by default one more than the largest id, which takes a pass")
    add("--no-edge-ids", action="store_true", help="do not keep the way back to the edges' order in the files")
    add("--memory", type=float, default=1.0, help="GiB that may be used to sort")
    args = parser.parse_args(arguments)
    try:
        {"info": lambda _: info(), "train": train, "convert": convert}[args.command](args)
    except (ValueError, IndexError, TypeError, OSError, ImportError) as error:
        parser.exit(2, f"gnnscale: {error}\n")
