"""The command ``gnnscale``, which ends all of its subcommands alike; and two of them, ``info`` and ``bench``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE
from tqdm import tqdm

from .. import __version__, _library, machine, ops
from ..bench import FIGURES, Case, generated_cases, measure, table_of
from ..bench import machine as about_machine
from ..files import check_writable
from ..ops.arguments import resolve_threads
from ..training import checkpoint
from . import convert, embed, options, partition, tables, train
from .options import check_at_least, one_line

CASES = [case.name for case in generated_cases()]


def add_bench(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    """Adds the command and its options; ``parents`` have --debug and those of :mod:`.options`."""
    command = commands.add_parser(
        "bench",
        parents=parents,
        help="measure this package beside PyG on this machine",
        description="Measures batches, training steps, training loops and gathered rows, ours beside PyG's, in turn: a "
        "table for each graph, and a file of JSON. Without --dataset: R-MAT graphs, in about a minute.",
    )
    add = command.add_argument
    add("--graphs", nargs="+", choices=CASES, default=None, help="generated graphs, instead of --dataset")
    add("--seconds", type=float, default=1.0, help="for each figure, once it has three rounds")
    add("--out", metavar="FILE", default="bench.json", help="where the figures are written")


def _cases(args: argparse.Namespace) -> list[Case]:
    if "dataset" not in args:
        return [case for case in generated_cases() if args.graphs is None or case.name in args.graphs]
    if args.graphs is not None:
        raise ValueError("--graphs: expected no --dataset beside it, found one")
    task = options.load("nodes", args)
    if not isinstance(task.data, Data):
        raise ValueError(
            f"--dataset: expected one with nodes of one type, in memory, to measure, found {args.dataset} as a "
            f"{type(task.data).__name__}"
        )
    return [Case(task.name, lambda: task.data, lambda _: task.seeds("train"), 1024, (15, 10, 5))]


def bench(args: argparse.Namespace) -> None:
    """Measures, prints tables and writes the JSON file."""
    check_at_least(0, {"seconds": args.seconds})
    out = Path(args.out)
    check_writable(out.absolute().parent)
    if out.is_dir():
        raise IsADirectoryError(f"--out: expected a file, found the folder {out}")
    cases, results = _cases(args), {}
    about = about_machine()
    print(", ".join(f"{name} {value}" for name, value in {**about, "threads": torch.get_num_threads()}.items()))
    if not (WITH_PYG_LIB or WITH_TORCH_SPARSE):
        print("PyG's own NeighborLoader cannot run here: it needs pyg-lib or torch-sparse. Its models are measured.")
    with tqdm(total=len(FIGURES) * len(cases), desc="measuring", unit="figure", leave=False) as bar:
        for case in cases:
            data = case.make()
            title, found = case.title(data), {}
            for figure, times in measure(case, data, args.seconds):
                found[figure] = times
                bar.update()
            results[case.name] = {"title": title, "figures": found}
            bar.write("\n" + "\n".join([title, *table_of(found)]))
            out.write_text(json.dumps({"machine": about, "results": results}, indent=1) + "\n")  # after each graph
            del data
    print(f"\nwritten: {args.out}")


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


class _Command(argparse.ArgumentParser):
    """The parser of a command, whose help shows the defaults of options."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.ArgumentDefaultsHelpFormatter, **options)


def main(arguments: list[str] | None = None) -> None:
    """The entry point."""
    parser = argparse.ArgumentParser(prog="gnnscale", description="Mini-batch GNN training for PyTorch Geometric.")
    common = argparse.ArgumentParser(add_help=False)
    for taker, usual in ((parser, False), (common, argparse.SUPPRESS)):  # before the command, and after it
        taker.add_argument(
            "--debug", action="store_true", default=usual, help="after an error, print Python's traceback"
        )
    commands: Any = parser.add_subparsers(dest="command", required=True, parser_class=_Command)
    commands.add_parser("info", parents=[common], help="versions, libraries, devices, threads")
    train.add_command(commands, [common, options.parent()])
    embed.add_command(commands, [common, options.parent()])
    tables.add_command(commands, [common])
    convert.add_command(commands, [common])
    partition.add_command(commands, [common, options.parent()])
    partition.add_split(commands, [common, options.parent()])
    add_bench(commands, [common, options.parent()])
    args = parser.parse_args(arguments)
    try:
        run = {
            "info": lambda _: info(),
            "train": train.train,
            "embed": embed.embed,
            "tables": tables.tables,
            "convert": convert.convert,
            "partition": partition.partition,
            "split": partition.split,
            "bench": bench,
        }
        run[args.command](args)
    except KeyboardInterrupt:
        if args.debug:
            raise
        parser.exit(checkpoint.INTERRUPTED, "\ngnnscale: interrupted\n")
    except BrokenPipeError:  # who reads the output, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        parser.exit(141)
    except (ValueError, IndexError, TypeError, OSError, ImportError, RuntimeError, MemoryError) as error:
        if args.debug:
            raise
        parser.exit(2, f"gnnscale: {one_line(error)}\n")
    finally:
        if arguments is None:  # a program, whose end an interrupt would turn into that of a signal
            signal.signal(signal.SIGINT, signal.SIG_IGN)
