"""The command ``gnnscale bench``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE
from tqdm import tqdm

from ..bench import FIGURES, Case, generated_cases, machine, measure, table_of
from ..files import check_writable
from . import options as cli_options
from .options import check_at_least

CASES = [case.name for case in generated_cases()]


def add_command(commands: Any, parents: list[argparse.ArgumentParser]) -> None:
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
    task = cli_options.load("nodes", args)
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
    about = machine()
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
