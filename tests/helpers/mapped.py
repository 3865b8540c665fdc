"""Mapped files."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

from .data import wait_for


def memories() -> int:
    """How many shared memories without a file this process has mapped."""
    return len({line.split()[4] for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:" in line})


def memories_left() -> int:
    """:func:`memories` once what earlier tests dropped in this process is freed, also by threads of loaders."""
    gc.collect()
    wait_for(lambda: all(thread.name != "gnnscale-steps" for thread in threading.enumerate()))
    gc.collect()
    return memories()


def resident_bytes(file: str | os.PathLike) -> int:
    """Bytes of resident memory of this process's mappings of a file."""
    found, mapped = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        mapped = line.rstrip().endswith(str(file)) if "-" in name else mapped
        found += int(rest.split()[0]) << 10 if mapped and name == "Rss" else 0
    return found
