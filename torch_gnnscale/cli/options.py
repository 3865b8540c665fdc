"""Options of the command ``gnnscale`` that name a data set, and errors about arguments as errors about options."""

from __future__ import annotations

import argparse
import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..tasks import TASKS


def as_option(name: str) -> str:
    """``batch_size`` as ``--batch-size``."""
    return f"--{name.replace('_', '-')}"


def check_at_least(least: int, values: Mapping[str, int]) -> None:
    """Raises ValueError for a value, by the name of its argument, that is less."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{as_option(name)}: expected at least {least}, found {value}")


def one_line(error: Exception) -> str:
    """An error's first line, which says if there are more; of an error in a worker process the last one, after its
    traceback."""
    first, *rest = str(error).strip().splitlines() or [type(error).__name__]
    if rest and first.startswith("Caught ") and "worker process" in first:
        first = f"{rest[-1].strip()} (in a worker process)"
    text = f"out of memory: {first}" if isinstance(error, MemoryError) and str(error) else first
    return f"{text} (--debug shows more)" if rest else text


@contextmanager
def naming_options(options: Mapping[str, str]) -> Iterator[None]:
    """TypeErrors, ValueErrors and IndexErrors that begin with an argument's name begin with that of its option instead.

    Args:
        options: of arguments by name: ``{"num_neighbors": "--fanouts"}``.
    """
    try:
        yield
    except (TypeError, ValueError, IndexError) as error:
        name, colon, what = str(error).partition(":")
        if not colon or name not in options:
            raise
        raise type(error)(f"{options[name]}:{what}") from error


@contextmanager
def naming_folder(folder: str | os.PathLike) -> Iterator[None]:
    """OSErrors of a full disk that name no file name this folder, into which files are written."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(folder)) from error


OPTIONS: dict[str, Any] = {
    "dataset": "planted", "root": os.environ.get("GNNSCALE_DATA", "data"), "split": 0, "target": None
}  # fmt: skip
"""The options that name a data set, with their defaults; one that is not given is not in the arguments."""


def parent() -> argparse.ArgumentParser:
    """A parser of :data:`OPTIONS`."""
    parser = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    helps = {
        "dataset": "planted (generated), a set below --root, a saved directory, a .npz file, ogbn-..., ...",
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
