"""The options of the command ``gnnscale`` that name a data set."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ..tasks import TASKS
from .errors import naming_options

OPTIONS: dict[str, Any] = {"dataset": "planted", "root": os.environ.get("GNNSCALE_DATA", "data"), "split": 0}
"""Their names and defaults; what is not given is not in the arguments."""


def parent() -> argparse.ArgumentParser:
    """A parser that has them."""
    parser = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    helps = {
        "dataset": "planted (generated), a set below --root, a saved directory, ogbn-..., ...",
        "root": "where data sets are, or are downloaded to",
        "split": "number of the data split, from 0, for data sets with several",
    }
    for name, default in OPTIONS.items():
        parser.add_argument(f"--{name}", help=f"{helps[name]} (default: {default})", type=type(default))
    return parser


def dataset(args: argparse.Namespace) -> str:
    """The data set's name."""
    return getattr(args, "dataset", OPTIONS["dataset"])


def load(kind: str, args: argparse.Namespace) -> Any:
    """The data set as what a task of this kind learns from."""
    values = {name: getattr(args, name, default) for name, default in OPTIONS.items()}
    with naming_options({"split": "--split"}):
        return TASKS[kind].load(values["dataset"], values["root"], values["split"])
