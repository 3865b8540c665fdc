"""The command ``gnnscale split``."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

from ..files import check_unused
from ..loader import NeighborLoader
from ..sampler.methods import METHODS, NEIGHBOR
from ..split import WEIGHTS, measure, plan, plot
from ..split.planning import LOADS
from . import options as cli_options
from .options import as_option, check_at_least, naming_folder, naming_options


def add_command(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
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
    add("--method", choices=METHODS, default=NEIGHBOR, help="of training: how neighborhoods are drawn")
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
