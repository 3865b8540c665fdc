"""The command ``gnnscale``."""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Iterator
from importlib import metadata

import torch
from torch import Tensor

from . import __version__, _library, cli_data, cli_partition, cli_split, cli_train, machine, ops
from .cli_errors import check_at_least
from .ops.arguments import resolve_threads
from .topology import EdgeFiles, build_on_disk
from .topology.edge_text import HEADERS


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


def convert(args: argparse.Namespace) -> None:
    """Files of edges to a saved graph; see ``gnnscale convert --help``."""
    if not 0 < args.memory < math.inf:
        raise ValueError(f"--memory: expected a finite number of GiB above 0, found {args.memory}")
    edges = EdgeFiles(args.sources, None if args.columns is None else tuple(args.columns), args.header)
    nodes = edges.num_nodes() if args.nodes is None else args.nodes
    check_at_least(0, {"nodes": nodes})
    graph = build_on_disk(
        args.out,
        edges.chunks() if args.nodes is None else _below(nodes, edges),
        nodes,
        edge_ids=not args.no_edge_ids,
        num_edges=edges.count(),
        memory=math.ceil(args.memory * 2**30),
        progress=True,
    )
    csc = graph.relation()
    print(f"{csc.num_dst:,} nodes, {csc.num_edges:,} edges in {args.out}: GraphStore.open({args.out!r})")


def _below(nodes: int, edges: EdgeFiles) -> Iterator[Tensor]:
    """The chunks of edges; ValueError, which names the file, for an id that is not below ``nodes``."""
    for source in edges.sources:
        for chunk in EdgeFiles([source], edges.columns, edges.header).chunks():
            if (largest := int(chunk.max()) if chunk.numel() else -1) >= nodes:
                raise ValueError(f"--nodes: expected more than {largest}, an id in {source}, found {nodes}")
            yield chunk


def main(arguments: list[str] | None = None) -> None:
    """The entry point."""
    parser = argparse.ArgumentParser(prog="gnnscale", description="Mini-batch GNN training for PyTorch Geometric.")
    common = argparse.ArgumentParser(add_help=False)
    for taker, usual in ((parser, False), (common, argparse.SUPPRESS)):  # before the command, and after it
        taker.add_argument(
            "--debug", action="store_true", default=usual, help="after an error, print Python's traceback"
        )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", parents=[common], help="versions, libraries, devices, threads")
    cli_train.add_command(commands, [common, cli_data.parent()])
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
    cli_partition.add_command(commands, [common, cli_data.parent()])
    cli_split.add_command(commands, [common, cli_data.parent()])
    args = parser.parse_args(arguments)
    try:
        run = {
            "info": lambda _: info(),
            "train": cli_train.train,
            "convert": convert,
            "partition": cli_partition.partition,
            "split": cli_split.split,
        }
        run[args.command](args)
    except KeyboardInterrupt:
        if args.debug:
            raise
        parser.exit(130, "\ngnnscale: interrupted\n")
    except (ValueError, IndexError, TypeError, NotImplementedError, OSError, ImportError) as error:
        if args.debug:
            raise
        parser.exit(2, f"gnnscale: {error}\n")
