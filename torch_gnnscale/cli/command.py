"""The command ``gnnscale``."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
from importlib import metadata
from typing import Any

import torch

from .. import __version__, _library, machine, ops
from ..ops.arguments import resolve_threads
from ..training import checkpoint
from . import bench, convert, embed, options, partition, tables, train
from .options import one_line


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
    bench.add_command(commands, [common, options.parent()])
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
            "bench": bench.bench,
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
