"""A thread that gets no memory ends the call, and nothing waits for it."""

import os
import shutil
import subprocess
import sys

import pytest
from helpers.data import environment

# malloc that gives threads other than the first no large blocks, while it is told so.
MALLOC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

int scarce = 0;

void *malloc(size_t bytes) {
  static void *(*original)(size_t) = NULL;
  if (original == NULL) original = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
  if (scarce && bytes > (1 << 20) && syscall(SYS_gettid) != getpid()) return NULL;
  return original(bytes);
}
"""
CALLS = """
import ctypes, signal, sys
import torch
from torch_gnnscale import ops

signal.alarm(100)
torch.set_num_threads(2)
scarce = ctypes.c_int.in_dll(ctypes.CDLL(None), "scarce")
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
refused = 0
while refused < 3:  # the second thread may come too late to need memory
    scarce.value = 1
    try:
        assert torch.equal(call(), expected)
    except MemoryError:
        refused += 1
    scarce.value = 0
    assert torch.equal(call(), expected)
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sample_neighbors", "coo_to_csc"])
def test_a_thread_without_memory_ends_the_call(tmp_path, name):
    if (compiler := shutil.which("cc")) is None or "LD_PRELOAD" in os.environ:
        pytest.skip("needs a C compiler, and to preload its malloc alone")
    (tmp_path / "malloc.c").write_text(MALLOC)
    library = tmp_path / "malloc.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "malloc.c", "-ldl"], check=True)
    run = subprocess.run([sys.executable, "-c", CALLS, name], env={**environment(), "LD_PRELOAD": str(library)},
                         capture_output=True, text=True, timeout=120)  # fmt: skip
    assert (run.returncode, run.stdout.strip()) == (0, "done"), run.stderr
