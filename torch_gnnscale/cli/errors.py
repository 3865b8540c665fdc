"""Errors about arguments, as errors about the options that set them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


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
