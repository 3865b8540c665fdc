"""Memory that the system refuses: what is idle is freed, and a call that still gets none ends with an error."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import forked
from helpers.data import environment
from helpers.slow import NIGHTLY

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
    ops.pool_trim()  # also of the scratch memory that the first thread used before
    refuse.value = int(sys.argv[3])
    try:
        assert torch.equal(call(), expected)
    except MemoryError:
        refused = True
    refuse.value = 0
    assert torch.equal(call(), expected)
print("done")
"""


MESSAGE = r"expected (\d+) bytes of memory, found (\d+) available beside (\d+) in use by outputs"
SCRATCH = f"""
import ctypes, re, signal
import torch
from torch_gnnscale import ops

signal.alarm(100)
refuse, first = (ctypes.c_int.in_dll(ctypes.CDLL(None), name) for name in ("refuse", "first"))
first.value = 1
degree = 1 << 18
row = torch.zeros(degree, dtype=torch.int32)  # a hub, node 0, of which all edges are loops
ends = torch.tensor([0, degree])
hub = ops.relations([ends], [row], reverse=[0])
timed = ops.relations([ends], [row], time=[torch.zeros(degree, dtype=torch.int64)])
seeds = torch.zeros(1, dtype=torch.int64)
loop = torch.zeros(2, 1, dtype=torch.int64)
many = torch.arange(1 << 18)
empty = ops.relations([torch.zeros(len(many) + 1, dtype=torch.int64)], [row[:0]])
sources, targets = ops.candidates(len(many)), ops.candidates(2, torch.tensor([1.0, 1e-9]))
edges = ops.edge_set(many, torch.zeros_like(many), len(many), 2)
def sample(graph=hub, seeds=seeds, fanout=-1, **options):
    return ops.sample_neighbors(graph, [seeds], [fanout], 1, threads=1, **options).edge_index[0]
calls = {{
    "all neighbors": sample,
    "induced": lambda: sample(fanout=1, subgraph="induced"),
    "bidirectional": lambda: sample(subgraph="bidirectional"),
    "excluded neighbors": lambda: sample(exclude=[loop]),
    "times": lambda: sample(timed, many.new_zeros(1 << 18), 0, disjoint=True, seed_time=[many]),
    "a frontier": lambda: sample(empty, many, 1),
    "draws": lambda: sample(fanout=1 << 17, replace=True),
    "picks": lambda: sample(fanout=(1 << 17) - 1),
    "negatives": lambda: ops.sample_negatives(1, sources, targets, 3, edges=edges),
    "coo_to_csc": lambda: ops.coo_to_csc(row, row, 1, 1, threads=1)[1],
}}
for name, call in calls.items():
    expected, found = call(), 0
    for number in range(1, 100):
        ops.pool_trim()
        refuse.value = number
        try:
            call()
        except MemoryError as error:
            message = str(error)
            found += 1
        reached, refuse.value = refuse.value == 1, 0
        assert torch.equal(call(), expected)
        if not reached:
            break
        asked = re.fullmatch({MESSAGE!r}, message)
        assert asked and int(asked[1]) > 1 << 20, (name, message)
    print(name, found, sep=": ")
"""


def preloaded(tmp_path, program, *arguments):
    """Runs a program under MALLOC; returns what it printed."""
    if (compiler := shutil.which("cc")) is None or "LD_PRELOAD" in os.environ:
        pytest.skip("needs a C compiler, and to preload its malloc alone")
    (tmp_path / "malloc.c").write_text(MALLOC)
    library = tmp_path / "malloc.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "malloc.c", "-ldl"], check=True)
    run = subprocess.run([sys.executable, "-c", program, *map(str, arguments)],
                         env={**environment(), "LD_PRELOAD": str(library)},
                         capture_output=True, text=True, timeout=120)  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.slow
def test_every_scratch_vector_says_how_much_it_asked_for(tmp_path):
    printed = preloaded(tmp_path, SCRATCH).splitlines()
    found = {name: int(count) for name, count in (line.split(": ") for line in printed)}
    expected = {
        "all neighbors": 1, "induced": 3, "bidirectional": 2, "excluded neighbors": 2, "times": 1, "a frontier": 1,
        "draws": 2, "picks": 3, "negatives": 1, "coo_to_csc": 1,
    }  # fmt: skip
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "first", "refused"),
    [
        NIGHTLY("sample_neighbors", 0, 1),
        ("sample_neighbors", 0, 2),  # when the thread has picked a block that it has not read yet
        NIGHTLY("sample_neighbors", 1, 1),
        NIGHTLY("sample_neighbors", 1, 2),
        NIGHTLY("coo_to_csc", 0, 1),
    ],
)
def test_a_thread_without_memory_ends_the_call(tmp_path, name, first, refused):
    assert preloaded(tmp_path, CALLS, name, first, refused) == "done"


LIMITED = """
import ctypes, resource, sys
from pathlib import Path
import torch
from torch_gnnscale import ops

MIB = 1 << 20
M_ARENA_MAX = -8
ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)  # else a refused malloc may reserve 64 MiB of addresses for another arena
torch.set_num_threads(1)
ops.pool_limit(1 << 40)
ids = torch.zeros(1024, dtype=torch.int64)
output = lambda mib: ops.gather_rows(torch.zeros(1, MIB, dtype=torch.uint8), ids[:mib])
nodes = 12 * MIB  # of which the relabel map takes 48 MiB
row = torch.zeros(2, dtype=torch.int32)
graph = ops.relations([torch.full((nodes + 1,), 2).index_fill_(0, torch.tensor([0]), 0)], [row])
many = torch.arange(5 * MIB)  # the sums of as many sources' weights take 80 MiB
sources, targets = ops.candidates(len(many)), ops.candidates(2, torch.tensor([1.0, 1e-9]))
edges = ops.edge_set(many, torch.zeros_like(many), len(many), 2)
edges = type(edges)(*(part.clone() for part in edges))  # not in the pool
ops.pool_trim()
asked = {
    "a larger output": lambda: output(192),
    "a relabel map": lambda: ops.sample_neighbors(graph, [ids[:1]], [-1], 1).node[0],
    "a scratch vector": lambda: ops.sample_negatives(1, sources, targets, 3, edges=edges),
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
@pytest.mark.parametrize("asked", ["a larger output", "a relabel map", "a scratch vector"])
def test_what_is_idle_is_freed_before_memory_is_missed(asked):
    if "LD_PRELOAD" in os.environ:
        pytest.skip("a sanitizer reserves more addresses than a limit leaves")
    done = forked.run(LIMITED, asked)
    assert done.returncode == 0, done.stderr
    match = re.fullmatch(MESSAGE, done.stdout.rstrip())
    assert match is not None, done.stdout
    expected, available, in_use = map(int, match.groups())
    assert expected == 512 << 20
    assert 60 << 20 < available < 100 << 20  # 40 MiB and the idle 32
    assert in_use == 1 << 20


OF_TORCH = """
import resource
from pathlib import Path
import torch
from torch_gnnscale import ops

torch.set_num_threads(1)
nodes = 1 << 22
graph = torch.arange(nodes + 1), [torch.arange(nodes).flip(0)]
seeds = torch.arange(1024)
def draw(seeds, fanouts):
    return ops.sample_bulk(*graph, seeds, [0, len(seeds)], fanouts, [1], threads=1)[0]
def limit(spare):
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, resource.RLIM_INFINITY))
draw(seeds[:1], [1])
limit(200 << 20)  # room for the worst case takes 1.2 GB
found = draw(seeds, [32, 32, 32])
limit(40 << 20)  # so many seeds take 128 MB of a table
for call in (lambda: draw(torch.arange(nodes), []),
             lambda: ops.sample_layers_bulk(*graph, torch.arange(nodes), [0, nodes], [], [1], ops.LayerDrawing())):
    try:
        call()
    except torch.OutOfMemoryError as error:
        print(error)
limit(1 << 40)
expected = ops.sample_neighbors(ops.relations([graph[0]], graph[1]), [seeds], [[32, 32, 32]], 1)
assert all(map(torch.equal, (*found.node, *found.edge_index), (*expected.node, *expected.edge_index)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_memory_that_torch_does_not_give():
    """What the executor of a CPU asks torch for: less is asked for, as long as the worst case asked for more than is
    needed; then the error has torch's type and, from 2.13 on, its words."""
    if "LD_PRELOAD" in os.environ:
        pytest.skip("a sanitizer reserves more addresses than a limit leaves")
    done = forked.run(OF_TORCH)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["sample_bulk", "sample_layers_bulk"], done.stdout
    for line in lines:
        match = re.match(r"\w+: out of memory: expected (\d+) bytes(; torch: .*can't allocate memory)?", line)
        assert match is not None
        assert int(match[1]) >= 128 << 20
        assert (match[2] is not None) == (tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13))
