"""The options of the command ``gnnscale`` that name a data set."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ..tasks import TASKS
from .errors import naming_options

OPTIONS: dict[str, Any] = {
    "dataset": "planted", "root": os.environ.get("GNNSCALE_DATA", "data"), "split": 0, "target": None
}  # fmt: skip
"""Their names and defaults; what is not given is not in the arguments."""


def parent() -> argparse.ArgumentParser:
    """A parser that has them."""
    parser = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    helps = {
        "dataset": "planted (generated), a set below --root, a saved directory, ogbn-..., ...",
        "root": "where data sets are, or are downloaded to",
        "split": "number of the data split, from 0, for data sets with several",
        "target": "TYPE.label or SRC.REL.DST: what is learned of a directory of gnnscale tables that has several",
    }
    for name, default in OPTIONS.items():
        shown = "" if default is None else f" (default: {default})"
        parser.add_argument(f"--{name}", help=f"{helps[name]}{shown}", type=str if default is None else type(default))
    return parser


def dataset(args: argparse.Namespace) -> str:
    """The data set's name."""
    return getattr(args, "dataset", OPTIONS["dataset"])


def kind_of(args: argparse.Namespace) -> str:
    """The task that is asked for: by --task, or by what --target names."""
    if "task" in args:
        return args.task
    target = getattr(args, "target", None)
    return "nodes" if target is None else "hetero" if target.endswith(".label") else "links"


def load(kind: str, args: argparse.Namespace) -> Any:
    """The data set as what a task of this kind learns from."""
    values = {name: getattr(args, name, default) for name, default in OPTIONS.items()}
    with naming_options({"split": "--split", "target": "--target"}):
        return TASKS[kind].load(values["dataset"], values["root"], values["split"], target=values["target"])
