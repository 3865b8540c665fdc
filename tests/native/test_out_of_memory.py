"""Memory that the system refuses: what is idle is freed, and a call that still gets none ends with an error."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.data import environment, run_python

# malloc that refuses, while `refuse` is not 0, the refuse-th large block and all later ones that the first thread asks
# for, if `first` is 1, or that the others ask for, if it is 0.
MALLOC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

int refuse = 0, first = 0;

void *malloc(size_t bytes) {
  static void *(*original)(size_t) = NULL;
  if (original == NULL) original = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
  if (refuse && bytes > (1 << 20) && (syscall(SYS_gettid) == getpid()) == first) {
    if (refuse == 1) return NULL;
    --refuse;
  }
  return original(bytes);
}
"""
CALLS = """
import ctypes, signal, sys
import torch
from torch_gnnscale import ops

signal.alarm(100)
torch.set_num_threads(2)
refuse, first = (ctypes.c_int.in_dll(ctypes.CDLL(None), name) for name in ("refuse", "first"))
hubs, degree = 16, 1 << 18  # the positions of a hub's neighbors are 2 MiB; each hub is in a block of its own
seeds = torch.arange(hubs * 64)
colptr = torch.cat([torch.zeros(1), (seeds % 64 == 0).cumsum(0) * degree]).long()
row = (torch.arange(hubs * degree) % len(seeds)).int()
graph = ops.relations([colptr], [row])
calls = {
    "sample_neighbors": lambda: ops.sample_neighbors(graph, [seeds], [-1], 1, threads=2).edge_index[0],
    "coo_to_csc": lambda: ops.coo_to_csc(row, torch.zeros_like(row), 1 << 20, 1 << 20, threads=2)[1],
}
call = calls[sys.argv[1]]
expected = call()
first.value = int(sys.argv[2])
refused = False
while not refused:  # a thread may come too late to need so much memory
    refuse.value = int(sys.argv[3])
    try:
        assert torch.equal(call(), expected)
    except MemoryError:
        refused = True
    refuse.value = 0
    assert torch.equal(call(), expected)
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "first", "refused"),
    [
        ("sample_neighbors", 0, 1),
        ("sample_neighbors", 0, 2),  # when the thread has picked a block that it has not read yet
        ("sample_neighbors", 1, 1),
        ("sample_neighbors", 1, 2),
        ("coo_to_csc", 0, 1),
    ],
)
def test_a_thread_without_memory_ends_the_call(tmp_path, name, first, refused):
    if (compiler := shutil.which("cc")) is None or "LD_PRELOAD" in os.environ:
        pytest.skip("needs a C compiler, and to preload its malloc alone")
    (tmp_path / "malloc.c").write_text(MALLOC)
    library = tmp_path / "malloc.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "malloc.c", "-ldl"], check=True)
    run = subprocess.run([sys.executable, "-c", CALLS, name, str(first), str(refused)],
                         env={**environment(), "LD_PRELOAD": str(library)},
                         capture_output=True, text=True, timeout=120)  # fmt: skip
    assert (run.returncode, run.stdout.strip()) == (0, "done"), run.stderr


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from torch_gnnscale import ops

MIB = 1 << 20
torch.set_num_threads(1)
ops.pool_limit(1 << 40)
ids = torch.zeros(1024, dtype=torch.int64)
output = lambda mib: ops.gather_rows(torch.zeros(1, MIB, dtype=torch.uint8), ids[:mib])
nodes = 12 * MIB  # of which the relabel map takes 48 MiB
row = torch.zeros(2, dtype=torch.int32)
graph = ops.relations([torch.full((nodes + 1,), 2).index_fill_(0, torch.tensor([0]), 0)], [row])
asked = {
    "a larger output": lambda: output(192),
    "a relabel map": lambda: ops.sample_neighbors(graph, [ids[:1]], [-1], 1).node[0],
}[sys.argv[1]]
small = output(1)
live = ops.pool_stats().live_bytes
output(160)
assert ops.pool_stats().idle_bytes == 160 * MIB
def limit(spare):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + spare * MIB, resource.RLIM_INFINITY))
limit(40)
found = asked()
assert ops.pool_stats().idle_bytes < 10 * MIB, "freed"
del found, graph
ops.pool_trim()
output(32)
limit(40)
try:
    output(512)
except MemoryError as error:
    print(error)
assert ops.pool_stats()[:2] == (0, live)
limit(40)
output(24)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("asked", ["a larger output", "a relabel map"])
def test_what_is_idle_is_freed_before_memory_is_missed(asked):
    if "LD_PRELOAD" in os.environ:
        pytest.skip("a sanitizer reserves more addresses than a limit leaves")
    done = run_python(LIMITED, asked)
    assert done.returncode == 0, done.stderr
    message = r"expected (\d+) bytes of memory, found (\d+) available beside (\d+) in use by outputs\n"
    match = re.fullmatch(message, done.stdout)
    assert match is not None, done.stdout
    expected, available, in_use = map(int, match.groups())
    assert expected == 512 << 20
    assert 60 << 20 < available < 100 << 20  # 40 MiB and the idle 32
    assert in_use == 1 << 20
