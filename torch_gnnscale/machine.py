"""The cores and the memory of this machine that this process may use.

Launchers such as torchrun start LOCAL_WORLD_SIZE processes per machine, which do the same work at the same time: each
may use the LOCAL_WORLD_SIZE-th part of what they may use together.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import psutil

from ._user import warn

_ROOT = Path("/")


@cache
def local_world_size() -> int:
    """The processes that share this machine: LOCAL_WORLD_SIZE, 1 if it is not set; read once.

    Warns and returns 1 if it is not an integer of at least 1.
    """
    value = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if value.isdecimal() and int(value) > 0:
        return int(value)
    warn(
        f"LOCAL_WORLD_SIZE: expected an integer of at least 1, found {value!r}: this process takes the cores and the "
        f"memory of the whole machine for its own"
    )
    return 1


@cache
def identity() -> str:
    """Equal for the processes of one machine, and of one network namespace on it."""
    boot = _read(_ROOT / "proc/sys/kernel/random/boot_id")
    try:
        network = os.readlink(_ROOT / "proc/self/ns/net")
    except OSError:
        network = ""
    return f"{socket.gethostname()} {boot} {network}"


def open_files() -> int:
    """How many files and sockets this process has open; 0 if the system does not tell."""
    try:
        return len(os.listdir(_ROOT / "proc/self/fd")) - 1  # that of the listing
    except OSError:
        return 0


# Cores ################################################################################################################


@cache
def cores() -> int:
    """How many threads this process should run at a time, at least 1; found out once.

    allowed_cores() // local_world_size(), and never more than the cores that it is bound to.
    """
    bound_to = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(bound_to, allowed_cores() // local_world_size()))


def allowed_cores(root: Path = _ROOT) -> int:
    """The cores that the process's control groups allow to all processes in them: the machine's, the least cpuset's or
    the least quota's, rounded up."""
    found = [os.cpu_count() or 1]
    for folder, _ in _groups("cpuset", root):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus"):
            if text := _read(folder / name):
                ranges = [part.split("-") for part in text.split(",")]
                found.append(sum(int(ends[-1]) - int(ends[0]) + 1 for ends in ranges))
    for folder, second in _groups("cpu", root):
        names = ("cpu.max",) if second else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota, period = (*" ".join(_read(folder / name) for name in names).split(), "", "")[:2]
        if quota.isdecimal() and period.isdecimal():  # not "max" and not -1
            found.append(max(1, -(-int(quota) // int(period))))
    return min(found)


# Memory ###############################################################################################################


def memory_limit(root: Path = _ROOT) -> int:
    """Bytes that this process may use at most: those of the machine, or what its control groups allow if that is less,
    divided by local_world_size()."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([whole, *(limit for limit, _, _ in _limited_memory(root))]) // local_world_size()


def available_memory(root: Path = _ROOT) -> int:
    """Bytes that this process may still take: those that the machine has available, or what its control groups leave if
    that is less, divided by local_world_size().

    A control group leaves its limit without what it uses; pages of files that nobody used lately count as not used.
    """
    if text := _read(root / "proc/meminfo"):
        lines = dict(line.split(":") for line in text.splitlines())
        found = [int(lines["MemAvailable"].split()[0]) << 10]
    else:  # no Linux
        found = [psutil.virtual_memory().available]
    for limit, folder, second in _limited_memory(root):
        usage, inactive = ("memory.current", "inactive_file") if second else (
            "memory.usage_in_bytes", "total_inactive_file")  # fmt: skip
        try:
            used = int((folder / usage).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            found.append(max(limit - used + int(stat[inactive]), 0))
        except (OSError, ValueError, KeyError):  # the group does not tell what it uses
            found.append(limit)
    return min(found) // local_world_size()


def resident_memory(peak: bool = False) -> int:
    """Bytes of memory that this process has now, or the most that it ever had. Pages of mapped files count."""
    if text := _read(_ROOT / "proc/self/status"):
        lines = dict(line.split(":") for line in text.splitlines())
        return int(lines["VmHWM" if peak else "VmRSS"].split()[0]) << 10
    if peak:  # macOS counts it in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return psutil.Process().memory_info().rss


def _limited_memory(root: Path) -> Iterator[tuple[int, Path, bool]]:
    """Of each control group that limits the memory: the limit in bytes, the folder, whether it is of version 2."""
    for folder, second in _groups("memory", root):
        limit = _read(folder / ("memory.max" if second else "memory.limit_in_bytes"))
        if limit.isdecimal():  # not "max"
            yield int(limit), folder, second


# Control groups #######################################################################################################


def _groups(controller: str, root: Path) -> Iterator[tuple[Path, bool]]:
    """The folders of the process's control groups for a controller and of those above them, which may not exist, and
    whether they are of version 2."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        below = Path(group.strip("/"))
        for part in (below, *below.parents):  # in a container only the last, its root, may be there
            yield root / "sys/fs/cgroup" / (controller if controllers else "") / part, not controllers


def _read(path: Path) -> str:
    """The text of a file without white space at its ends; an empty one if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
