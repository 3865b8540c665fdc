"""The commands ``gnnscale partition`` and ``gnnscale split``, which give each node to a part, or to the rank that
computes it."""

from __future__ import annotations

import argparse
import importlib.util
import math
from pathlib import Path
from typing import Any

from ..datasets import LinkTask, about_task, archives
from ..datasets.part_tasks import KINDS
from ..files import MANIFEST, check_unused
from ..loader import NeighborLoader
from ..memory import format_bytes
from ..partition import METHODS, TOPOLOGIES, PartitionReport, read_report, write
from ..partition.whole import BALANCED
from ..partition.writing import check_out
from ..sampler import methods
from ..split import WEIGHTS, measure, plan, plot
from ..split.planning import LOADS
from ..tables import write_parts
from ..tasks import TASKS
from . import options as cli_options
from .options import as_option, check_at_least, naming_folder, naming_options

_ARGUMENTS = ("parts", "method", "owners", "topology", "balance", "seed", "memory", "only", "graph_attrs")


def add_command(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    """Adds the command and its options; ``parents`` have --debug and those of :mod:`.options`."""
    command = commands.add_parser(
        "partition",
        parents=parents,
        help="write a graph, its features and its data splits in parts",
        description="Chooses parts of a graph and writes each with its rows, for training over many processes.",
    )
    add = command.add_argument
    add("--task", choices=KINDS, default="nodes", help="as for train: what the data set is loaded for")
    add("--out", required=True, help="a new directory; with --only one that an earlier call has begun")
    add("--from-tables", metavar="DIR", help="what gnnscale tables --parts wrote, whose parts these are")
    add("--parts", type=int, help="number of parts; needed unless --out has a book")
    add("--method", choices=METHODS, default="auto", help="how parts are chosen")
    add("--owners", metavar="FILE", help="parts chosen elsewhere: .npy, shape [n]; of types .npz, an array for each")
    add("--topology", choices=TOPOLOGIES, default="replicated", help="the graph stored once, whole, or in parts")
    add("--balance", nargs="+", choices=BALANCED, default=list(BALANCED), help="what parts have equal numbers of")
    add("--seed", type=int, default=0, help="of the method")
    add(
        "--memory",
        type=float,
        metavar="GIB",
        help="GiB that may be used; by default 1, and to choose parts what is free",
    )
    add("--only", type=int, nargs="+", metavar="PART", help="write only these parts, as one of several machines")
    add("--graph-attrs", nargs="+", default=[], metavar="NAME", help="times and weights that samplers need")
    command.set_defaults(defaults={name: command.get_default(name) for name in ("task", *_ARGUMENTS) if name != "only"})


def partition(args: argparse.Namespace) -> None:
    """A data set to a directory of parts; see ``gnnscale partition --help``."""
    if args.from_tables is not None:
        _from_tables(args)
        return
    if args.memory is not None and not 0 < args.memory < math.inf:
        raise ValueError(f"--memory: expected a finite number of GiB above 0, found {args.memory}")
    check_out(args.out, args.only)
    owners = None if args.owners is None else archives.loaded(Path(args.owners))
    task = cli_options.load(args.task, args)
    print(task)
    links = None
    if isinstance(task, LinkTask):
        links = {split: (task.edge_type, ends) for split, ends in task.links.items()}
    with naming_options({name: as_option(name) for name in _ARGUMENTS}):
        missing = write(
            task.data,
            args.out,
            args.parts,
            method=args.method,
            owners=owners,
            topology=args.topology,
            links=links,
            graph_attrs=args.graph_attrs,
            balance=args.balance,
            seed=args.seed,
            memory=None if args.memory is None else math.ceil(args.memory * 2**30),
            only=args.only,
            about=about_task(args.task, Path(cli_options.dataset(args)).name, task),
            progress=True,
        )
    report = _print_report(args, missing)
    if not missing:
        print(f"complete: {_next_step(args, len(report.edges))}; in a program open_part({args.out!r})")


def _from_tables(args: argparse.Namespace) -> None:
    """Parts of tables of parts, which say all that the other options say of a data set."""
    given = [name for name in args.defaults if name != "graph_attrs" and getattr(args, name) != args.defaults[name]]
    if given := [*given, *(name for name in cli_options.OPTIONS if name in args)]:
        raise ValueError(f"{as_option(given[0])}: expected none beside --from-tables, found {getattr(args, given[0])}")
    with naming_options({"only": "--only", "graph_attrs": "--graph-attrs"}):
        missing = write_parts(args.from_tables, args.out, args.only, progress=True, graph_attrs=args.graph_attrs)
    _print_report(args, missing)
    if not missing:
        print(f"complete: in a program open_part({args.out!r})")


def _print_report(args: argparse.Namespace, missing: list[int]) -> PartitionReport:
    """Prints what the book says of the parts, and which are missing."""
    assigned, report = read_report(args.out)
    print(report)
    took = f" in {assigned['seconds']:.1f} s" if "seconds" in assigned else ""
    peak = f", {format_bytes(assigned['peak_bytes'])} at most" if "peak_bytes" in assigned else ""
    print(f"parts by {assigned['method']}{took}{peak}; this report as JSON: {Path(args.out) / 'book' / MANIFEST}")
    if missing:
        print(f"still to be written to {args.out}: --only {' '.join(map(str, missing))}")
    return report


def _next_step(args: argparse.Namespace, parts: int) -> str:
    """The command that trains on all parts, with as many seeds per step as one process takes."""
    if parts == 1:
        return f"gnnscale train --parts {args.out}"
    share = max(TASKS[args.task].config_type().batch_size // parts, 1)
    return f"torchrun --nproc-per-node={parts} -m torch_gnnscale train --parts {args.out} --batch-size {share}"


def add_split(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
    """Adds the command and its options; ``parents`` have --debug and those of :mod:`.options`."""
    command = commands.add_parser(
        "split",
        parents=parents,
        help="plan which rank computes which node in split parallelism",
        description="Draws batches like those of training, gives each node to a part by what they compute, saves that "
        "plan, and shows how it shares out the batches of training's first epoch.",
    )
    add = command.add_argument
    add("--out", required=True, help="a new directory: the plan, for split.Plan.open, and plan.png")
    add("--parts", type=int, default=4, help="number of parts")
    add("--fanouts", type=int, nargs="+", default=[15, 10, 5], help="of training: neighbors per hop")
    add("--batch-size", type=int, default=1024, help="of training: seeds of a whole batch")
    add("--method", choices=methods.METHODS, default=methods.NEIGHBOR, help="of training: how neighborhoods are drawn")
    add("--epochs", type=int, default=10, help="how many are presampled")
    add("--weights", choices=WEIGHTS, default=WEIGHTS[0], help="how parts are chosen")
    add("--load", choices=LOADS, default=LOADS[0], help="what parts have equal sums of")
    add("--seed", type=int, default=0, help="of the draws and of the choice of parts")


def split(args: argparse.Namespace) -> None:
    """A data set to a split plan; see ``gnnscale split --help``."""
    check_at_least(1, {"batch_size": args.batch_size})
    check_unused(Path(args.out))
    task = cli_options.load("nodes", args)
    print(task)
    seeds, options = task.seeds("train"), {"batch_size": args.batch_size, "seed": args.seed, "method": args.method}
    with naming_options({name: as_option(name) for name in ("parts", "epochs")} | {"num_neighbors": "--fanouts"}):
        made = plan(
            task.data, seeds, args.fanouts, args.parts, epochs=args.epochs, weights=args.weights, load=args.load,
            progress=True, **options,
        )  # fmt: skip
    print(made)
    made.save(args.out)
    loader = NeighborLoader(task.data, args.fanouts, seeds, shuffle=True, shard=False, **options)
    found = measure(made, loader, [0])
    print(f"\nover the {len(found.edges):,} batches of training's first epoch:\n{found.table()}")
    if importlib.util.find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed (pip install matplotlib)")
    else:
        with naming_folder(args.out):
            plot(made, found, str(Path(args.out) / "plan.png"))
        print(f"plot in {Path(args.out) / 'plan.png'}")
    print(f"the plan: split.Plan.open({args.out!r})")
