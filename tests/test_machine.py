"""A process takes its share of the machine: what its affinity and control groups allow, over LOCAL_WORLD_SIZE."""

import os
from pathlib import Path

import pytest
from helpers import forked

from torch_gnnscale import machine

CORES = os.cpu_count()
PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"


def root_with(folder: Path, groups: str | None, files: dict[str, str]) -> Path:
    """A machine's /proc/self/cgroup and files below /sys/fs/cgroup."""
    if groups is not None:
        (folder / "proc/self").mkdir(parents=True)
        (folder / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = folder / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


MEMORY = {
    "none": ("", {}, PHYSICAL),
    "no file": (None, {}, PHYSICAL),
    "version 2": ("0::/a/b\n", {"a/b/memory.max": "5000"}, 5000),
    "a group above": ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "4000", "memory.max": "9000"}, 4000),
    "version 2 without a limit": ("0::/a\n", {"a/memory.max": "max"}, PHYSICAL),
    "a container's own root": ("0::/\n", {"memory.max": "7000"}, 7000),
    "a group of the host's": ("0::/docker/x\n", {"memory.max": "7000"}, 7000),
    "version 1": ("5:cpu:/c\n4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "3000"}, 3000),
    "version 1 without a limit": (
        "4:cpuset,memory:/a\n", {"memory/a/memory.limit_in_bytes": "9223372036854771712"}, PHYSICAL,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MEMORY)
def test_control_groups_limit_the_memory(tmp_path, name):
    groups, files, expected = MEMORY[name]
    assert machine.memory_limit(root_with(tmp_path, groups, files)) == expected


@pytest.mark.parametrize(
    ("group", "usage", "stat"),
    [
        ("0::/a\n", "memory.current", "inactive_file"),
        ("4:memory:/a\n", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_what_control_groups_leave(tmp_path, group, usage, stat):
    second = group.startswith("0")
    root_with(tmp_path, group, {})
    folder = tmp_path / "sys/fs/cgroup" / ("a" if second else "memory/a")
    folder.mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:  9 kB\nMemAvailable:  5 kB\n")
    assert machine.available_memory(tmp_path) == 5 << 10
    (folder / ("memory.max" if second else "memory.limit_in_bytes")).write_text("4000\n")
    assert machine.available_memory(tmp_path) == 4000  # of groups whose use nobody tells
    (folder / usage).write_text("3000\n")
    (folder / "memory.stat").write_text(f"anon 7\n{stat} 500\n")
    assert machine.available_memory(tmp_path) == 1500
    (folder / usage).write_text("9000\n")
    assert machine.available_memory(tmp_path) == 0


ALLOWED = {
    "none": ("", {}, 99),
    "no file": (None, {}, 99),
    "a cpuset": ("0::/a/b\n", {"a/b/cpuset.cpus.effective": "0-3,8,10-11", "cpuset.cpus.effective": "0-63"}, 7),
    "a cpuset above": ("0::/a/b\n", {"a/b/cpuset.cpus.effective": "", "a/cpuset.cpus.effective": "5"}, 1),
    "a cpuset of version 1": ("3:cpuset:/c\n1:cpu:/\n", {"cpuset/c/cpuset.effective_cpus": "2-3"}, 2),
    "a quota": ("0::/a\n", {"a/cpu.max": "300000 100000"}, 3),
    "a quota that is rounded up": ("0::/a\n", {"a/cpu.max": "10000 100000", "cpu.max": "150000 100000"}, 1),
    "no quota": ("0::/a\n", {"a/cpu.max": "max 100000"}, 99),
    "a quota of version 1": ("1:cpu,cpuacct:/c\n", {f"cpu/c/{QUOTA}": "250000", f"cpu/c/{PERIOD}": "100000"}, 3),
    "no quota of version 1": ("1:cpu,cpuacct:/c\n", {f"cpu/c/{QUOTA}": "-1", f"cpu/c/{PERIOD}": "100000"}, 99),
    "both": ("0::/a\n", {"a/cpu.max": "500000 100000", "a/cpuset.cpus.effective": "0-3"}, 4),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_control_groups_limit_the_cores(tmp_path, name, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 99)
    groups, files, expected = ALLOWED[name]
    assert machine.allowed_cores(root_with(tmp_path, groups, files)) == expected


@pytest.mark.parametrize(
    ("bound_to", "allowed", "ranks", "expected"),
    [
        (16, 16, 1, 16), (16, 16, 4, 4), (16, 16, 5, 3), (2, 2, 8, 1),
        (4, 16, 4, 4),  # the launcher has bound each process to cores of its own
        (1, 16, 4, 1), (16, 4, 1, 4), (16, 4, 2, 2),
    ],
)  # fmt: skip
def test_a_share_of_the_cores(bound_to, allowed, ranks, expected, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(bound_to), raising=False)
    monkeypatch.setattr(machine, "allowed_cores", lambda: allowed)
    monkeypatch.setattr(machine, "local_world_size", lambda: ranks)
    assert machine.cores.__wrapped__() == expected


SHARE = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from torch_gnnscale import machine, memory, ops
import torch
from torch_gnnscale.loader.pipeline import Pipeline, Stage
from torch_gnnscale.ops.arguments import resolve_threads
print(*[str(warning.message) for warning in caught if "LOCAL_WORLD_SIZE" in str(warning.message)] or ["silent"])
torch.set_num_threads(1000)
print(machine.cores(), resolve_threads(0), resolve_threads(40))
torch.set_num_threads(1)
print(machine.cores(), resolve_threads(0), resolve_threads(40))
print(*{*Pipeline(iter(range(64)), [Stage(lambda item: resolve_threads(0))], lambda item: item, 64)})
print(ops.pool_stats().limit_bytes)
memory.available_memory = lambda: 10
try:
    memory.HostMemory(4096)
except MemoryError as error:
    print(error)
"""
WHOLE = "this process takes the cores and the memory of the whole machine for its own"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "ranks", "warning"),
    [
        (None, 1, "silent"),
        ("2", 2, "silent"),
        ("0", 1, f"LOCAL_WORLD_SIZE: expected an integer of at least 1, found '0': {WHOLE}"),
    ],
)
def test_processes_share_their_machine(value, ranks, warning, monkeypatch):
    if value is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", value)
    done = forked.run(SHARE)
    assert done.returncode == 0, done.stderr
    cores = max(1, min(len(os.sched_getaffinity(0)), machine.allowed_cores() // ranks))
    share = f" to each of LOCAL_WORLD_SIZE={ranks} processes" if ranks > 1 else ""
    assert done.stdout.splitlines() == [
        warning,
        f"{cores} {cores} 40",
        f"{cores} 0 40",  # 0: as many as torch has
        "1",  # each of the loader's threads
        str(machine.memory_limit() // ranks // 4),
        f"host: expected 4096 bytes of memory, found 10 available{share}; less as host= leaves rows to disk=",
    ]


@pytest.mark.parametrize("value", ["0", "-4", "four", "2.5", ""])
def test_a_number_of_processes_that_is_none(value, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", value)
    with pytest.warns(UserWarning, match=f"^LOCAL_WORLD_SIZE: expected an integer of at least 1, found '{value}': "):
        assert machine.local_world_size.__wrapped__() == 1


@pytest.mark.slow
def test_identity():
    """Equal in another process of this machine, another one in another network namespace."""
    print_it = "from torch_gnnscale import machine; print(machine.identity())"
    assert forked.run(print_it).stdout.strip() == machine.identity()
    elsewhere = forked.run(forked.ELSEWHERE + print_it)
    if elsewhere.returncode:
        pytest.skip("network namespaces cannot be made here")
    assert elsewhere.stdout.strip() not in ("", machine.identity())


def test_identity_without_namespaces(monkeypatch):
    expected = machine.identity.__wrapped__().rsplit(" ", 1)[0] + " "

    def refuse(path):
        raise OSError

    monkeypatch.setattr(os, "readlink", refuse)
    assert machine.identity.__wrapped__() == expected
    assert len(expected.split()) == 2


def test_files_that_the_system_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_ROOT", tmp_path)
    assert machine.open_files() == 0


def test_memory_that_the_process_has():
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    found = machine.resident_memory(), machine.resident_memory(peak=True)
    assert 0.8 < found[0] / (int(lines["VmRSS"].split()[0]) * 1024) < 1.25
    assert found[1] >= int(lines["VmHWM"].split()[0]) * 1024


def test_open_files():
    before = machine.open_files()
    with open(os.devnull), open(os.devnull):
        assert machine.open_files() == before + 2


def test_a_system_without_proc_is_asked_otherwise(tmp_path, monkeypatch):
    whole = machine.available_memory()
    monkeypatch.setattr(machine, "_ROOT", tmp_path)
    assert whole / 2 < machine.available_memory(tmp_path) < 2 * whole
    assert 0 < machine.resident_memory() < PHYSICAL
    assert machine.resident_memory(peak=True) > 0
    assert machine.open_files() == 0
    assert machine.allowed_cores(tmp_path) == CORES


def test_available_memory_is_shared_out(tmp_path, monkeypatch):
    root_with(tmp_path, "0::/\n", {"memory.max": "7000"})
    (tmp_path / "proc/meminfo").write_text("MemAvailable:  5 kB\n")
    monkeypatch.setattr(machine, "local_world_size", lambda: 3)
    assert machine.available_memory(tmp_path) == (5 << 10) // 3
    assert machine.memory_limit(tmp_path) == 7000 // 3
