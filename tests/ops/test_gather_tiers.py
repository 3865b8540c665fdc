"""Rows gathered from tiers: equal to the twin, to one table, and by exact errors."""

import ctypes
import os
import re
import shlex
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
import reference
import torch
from helpers.data import DTYPES
from helpers.gpu_cases import check_random_tables
from helpers.tiers import cut, table_of, tables
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import ops

WIDENED = [(s, d) for s in (torch.float16, torch.bfloat16) for d in (torch.float32, torch.float64)]


@pytest.mark.slow
@given(tables(), st.booleans(), st.integers(0, 3))
def test_equals_the_twin(given_tables, disk, threads):
    table, sizes, spread, place, index = given_tables
    segments = [
        segment.repeat_interleave(step, 0)[::step]  # each at a stride of its own
        for step, segment in enumerate(cut(table, sizes, spread), 1)
    ]
    counts = torch.zeros(len(spread), 2, dtype=torch.int64)
    found = ops.gather_tiers(segments, index, spread=spread, place=place, disk=disk, counts=counts, threads=threads)
    assert torch.equal(found, reference.gather_tiers(segments, index, spread=spread, place=place))
    places = (index if place is None else place[index.long()]).long()
    assert torch.equal(found, table[places])
    if table.numel():
        ends = torch.tensor(sizes).cumsum(0)
        assert torch.equal(counts[:, 0], torch.bincount(torch.bucketize(places, ends, right=True), minlength=len(ends)))
        assert bool((counts[:, 1] >= 0).all())


@pytest.mark.parametrize(("stored", "dtype"), WIDENED)
@pytest.mark.parametrize("columns", [1, 3, 8, 20])
def test_every_stored_number_is_widened(stored, dtype, columns, device):
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(stored)
    table = every[: len(every) // columns * columns].view(-1, columns).to(device)
    index = torch.arange(len(table), device=device)
    found = ops.gather_tiers([table[:1000], table[1000:]], index, dtype=dtype)
    expected = table.to(dtype)
    assert found.dtype == dtype
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert torch.equal(found.signbit() | found.isnan(), expected.signbit() | expected.isnan())
    if columns == 1 and device == "cpu":
        assert torch.equal(reference.gather_tiers([table[-9:]], torch.arange(9), dtype=dtype).isnan(),
                           table[-9:].to(dtype).isnan())  # fmt: skip


def test_subnormal_halves_where_subnormal_floats_are_flushed():
    table = torch.tensor([[6e-8, 1e-5, -6e-8]], dtype=torch.float16)
    expected = table.float()
    torch.set_flush_denormal(True)
    try:
        found = ops.gather_tiers([table], torch.zeros(1, dtype=torch.int64), dtype=torch.float32)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 3, 16, 33, 130, 1000])
def test_row_sizes(dtype, columns, device):
    table = table_of(301, columns, dtype)
    index = torch.randint(301, (2000,), generator=torch.Generator().manual_seed(0))
    place = torch.randperm(301, generator=torch.Generator().manual_seed(1)).to(torch.int32)
    counts = torch.zeros(3, 2, dtype=torch.int64, device=device)
    sizes, spread = [101, 120, 80], [1, 3, 1]
    segments, there = [segment.to(device) for segment in cut(table, sizes, spread)], index.to(device)
    found = ops.gather_tiers(segments, there, spread=spread, place=place.to(device), counts=counts)
    assert torch.equal(found.cpu(), table[place.long()[index]])
    assert int(counts[:, 0].sum()) == 2000
    whole = table.to(device)
    for gathered in (ops.gather_tiers([whole], there), ops.gather_rows(whole, there)):
        assert torch.equal(gathered.cpu(), table[index])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_rows_of_a_file_beside_memory(tmp_path, threads):
    table = table_of(60_000, 24, torch.float32)
    (tmp_path / "rows").write_bytes(table.numpy().tobytes())
    mapped = ops.map_file(tmp_path / "rows").view(torch.float32).view(-1, 24)
    hot = 20_000
    generator = torch.Generator().manual_seed(0)
    place = torch.arange(60_000) + hot  # all rows lie in the file in the order of their ids ...
    chosen = torch.randperm(60_000, generator=generator)[:hot]
    place[chosen] = torch.arange(hot)  # ... and some in memory, too
    index = torch.randint(60_000, (200_000,), generator=generator)
    counts = torch.zeros(2, 2, dtype=torch.int64)
    memory = table[chosen]
    found = ops.gather_tiers(
        [memory, mapped], index, place=place.to(torch.int32), disk=True, counts=counts, threads=threads
    )
    assert torch.equal(found, table[index])
    in_memory = int((place[index] < hot).sum())
    assert counts[:, 0].tolist() == [in_memory, 200_000 - in_memory]
    assert int(counts[:, 1].min()) > 0


def test_strided_segments_and_more_dimensions():
    table = table_of(40, 12, torch.float32)
    wide = torch.stack([table, table], dim=1)[:, 0]
    index = torch.tensor([0, 39, 7, 7])
    assert torch.equal(ops.gather_tiers([wide[:10], wide[10:]], index), table[index])
    segments = [table[:10].view(10, 3, 4), table[10:].view(30, 3, 4)]
    assert torch.equal(ops.gather_tiers(segments, index), table.view(40, 3, 4)[index])


def test_a_broken_map_is_found():
    segments, index = [table_of(5, 3, torch.float32)], torch.arange(3)
    for wrong in (5, -1, 1 << 40):
        with pytest.raises(RuntimeError, match=re.escape("place has an entry that is not in [0, 5)")):
            ops.gather_tiers(segments, index, place=torch.tensor([0, wrong, 1]))


SEGMENTS = [table_of(4, 3, torch.float32), table_of(3, 3, torch.float32)]
INDEX = torch.arange(3)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "segments: expected 1 to 32, found 0", lambda: ops.gather_tiers([], INDEX)),
        (TypeError, "segments[1]: expected a tensor, found int", lambda: ops.gather_tiers([SEGMENTS[0], 3], INDEX)),
        (ValueError, "segments[0]: expected at least one dimension, found a scalar",
         lambda: ops.gather_tiers([torch.tensor(1)], INDEX)),
        (ValueError, "segments[1]: expected torch.float32 rows of shape (3,), found torch.float32 (2,)",
         lambda: ops.gather_tiers([SEGMENTS[0], torch.ones(2, 2)], INDEX)),
        (ValueError, "segments[0]: expected contiguous rows, found strides (1, 3)",
         lambda: ops.gather_tiers([torch.ones(4, 3).T], INDEX)),
        (ValueError, "spread: expected 1 to 4 tiers of 2 segments in all, found [1]",
         lambda: ops.gather_tiers(SEGMENTS, INDEX, spread=[1])),
        (ValueError, "segments: expected a tier of 7 rows interleaved as [4, 3], found [3, 4]",
         lambda: ops.gather_tiers(SEGMENTS[::-1], INDEX, spread=[2])),
        (IndexError, "index[1] = 7 is out of range: expected rows in [0, 7)",
         lambda: ops.gather_tiers(SEGMENTS, torch.tensor([0, 7]))),
        (IndexError, "index[0] = 2 is out of range: expected rows in [0, 2)",
         lambda: ops.gather_tiers(SEGMENTS, torch.tensor([2]), place=torch.arange(2))),
        (TypeError, "place: expected int32 or int64 ids, found torch.float32",
         lambda: ops.gather_tiers(SEGMENTS, INDEX, place=torch.ones(3))),
        (ValueError, "place: expected it on cpu like index, found meta",
         lambda: ops.gather_tiers(SEGMENTS, INDEX, place=torch.arange(3, device="meta"))),
        (ValueError, "index: expected it on the GPU that gathers, for segments are not in host memory; found cpu",
         lambda: ops.gather_tiers([SEGMENTS[0].to("meta")], INDEX)),
        (TypeError, "dtype: expected torch.float32, or float32 or float64 of rows stored in 16 bits, "
         "found torch.float64", lambda: ops.gather_tiers(SEGMENTS, INDEX, dtype=torch.float64)),
        (ValueError, "counts: expected contiguous int64 of shape (2, 2) on cpu, found torch.int64 (2,) on cpu",
         lambda: ops.gather_tiers(SEGMENTS, INDEX, counts=torch.zeros(2, dtype=torch.int64))),
        (ValueError, "counts: expected contiguous int64 of shape (2, 2) on cpu, found torch.int64 (2, 2) on cpu",
         lambda: ops.gather_tiers(SEGMENTS, INDEX, counts=torch.zeros(2, 2, dtype=torch.int64).t())),
    ],
)  # fmt: skip
def test_bad_input(error, message, call):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


@pytest.mark.parametrize("seed", range(20))
def test_tables_are_gathered_as_each_alone(seed):
    check_random_tables(seed, lambda tensor, place: tensor.clone(), most=100)


TABLES = [ops.TieredTable(SEGMENTS), ops.TieredTable(SEGMENTS[:1])]


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "index, counts: expected as many as 2 tables, or no counts, found 1 and 0",
         lambda: ops.gather_tables(TABLES, [INDEX])),
        (ValueError, "index, counts: expected as many as 2 tables, or no counts, found 2 and 1",
         lambda: ops.gather_tables(TABLES, [INDEX] * 2, counts=[torch.zeros(2, 2, dtype=torch.int64)])),
        (ValueError, "index[1]: expected it on cpu like index[0], found meta",
         lambda: ops.gather_tables(TABLES, [INDEX, INDEX.to("meta")])),
        (TypeError, "index[1]: expected a tensor, found int", lambda: ops.gather_tables(TABLES, [INDEX, 1])),
        (IndexError, "index[1][0] = 4 is out of range: expected rows in [0, 4)",
         lambda: ops.gather_tables(TABLES, [INDEX + 4 - INDEX] * 2)),
        (ValueError, "segments[1]: expected 1 to 32, found 0",
         lambda: ops.gather_tables([TABLES[0], ops.TieredTable([])], [INDEX] * 2)),
        (TypeError, "dtype[0]: expected torch.float32, or float32 or float64 of rows stored in 16 bits, found "
         "torch.float64", lambda: ops.gather_tables([ops.TieredTable(SEGMENTS, dtype=torch.float64)], [INDEX])),
        (ValueError, "counts[0]: expected contiguous int64 of shape (2, 2) on cpu, found torch.int64 (1, 2) on cpu",
         lambda: ops.gather_tables(TABLES, [INDEX] * 2, counts=[torch.zeros(1, 2, dtype=torch.int64)] * 2)),
    ],
)  # fmt: skip
def test_bad_tables(error, message, call):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


def test_tables_and_rows_of_a_file():
    index, rows = torch.tensor([6, 0, 4]), torch.cat(SEGMENTS)[[6, 0, 4]]
    on_disk = ops.TieredTable(SEGMENTS, disk=True)
    assert all(torch.equal(found, rows) for found in ops.gather_tables([on_disk, TABLES[0]], [index] * 2))
    assert ops.gather_tables([], []) == []


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.cuda
def test_host_memory_read_by_a_gpu(pinned):
    table = table_of(500, 40, torch.float32)
    host = table[200:].pin_memory() if pinned else table[200:].clone()
    index = torch.randint(500, (3000,), device="cuda")
    if pinned:
        found = ops.gather_tiers([table[:200].cuda(), host], index)
        assert torch.equal(found.cpu(), table[index.cpu()])
    else:
        with pytest.raises(RuntimeError, match="host memory is not registered with CUDA"):
            ops.gather_tiers([table[:200].cuda(), host], index)


TURNS = """
#include <cstdlib>
#include "tier.h"
using namespace gnnscale;
// Copies words as the lanes of a group do on a GPU; the number of words not written exactly once, and of turns that do
// not begin with a cache line.
extern "C" long faults(const char* row, long words, long word_bytes) {
  const int lanes = lanes_of(words);
  const long before = words_before(row, words, word_bytes, lanes), turns = (words + before + lanes - 1) / lanes;
  int* written = static_cast<int*>(calloc(words, sizeof(int)));
  long wrong = 0;
  for (long turn = 0; turn < turns; ++turn) {
    if (turns > 1 && lanes * word_bytes % 128 == 0 &&
        reinterpret_cast<uintptr_t>(row + (turn * lanes - before) * word_bytes) % 128 >= word_bytes) ++wrong;
    for (int lane = 0; lane < lanes; ++lane) {
      const long w = lane - before + turn * lanes;
      if (w >= 0 && w < words) ++written[w];
    }
  }
  for (long w = 0; w < words; ++w) wrong += written[w] != 1;
  free(written);
  return wrong;
}
extern "C" int lanes(int words) { return lanes_of(words); }
"""


@pytest.mark.slow
def test_the_lanes_of_a_gpu_cover_every_row(tmp_path):
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    headers = Path(__file__).parents[2] / "cuda"
    if shutil.which(compiler[0]) is None or not headers.is_dir():
        pytest.skip("needs a C++ compiler and the sources")
    (tmp_path / "turns.cpp").write_text(TURNS)
    command = [*compiler, "-std=c++20", "-shared", "-fPIC", f"-I{headers}", "turns.cpp", "-o", "turns.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "turns.so"))
    library.faults.restype = ctypes.c_long
    for word_bytes in (1, 2, 4, 8, 16):
        for words in [*range(1, 140), 512, 1000]:
            for offset in range(0, 128, word_bytes):
                row = ctypes.c_void_p(4096 + offset)
                assert library.faults(row, ctypes.c_long(words), ctypes.c_long(word_bytes)) == 0
    assert [library.lanes(words) for words in (1, 2, 3, 8, 9, 31, 33)] == [1, 2, 4, 8, 16, 32, 32]


def test_rows_of_a_file_and_of_memory_take_no_more_than_the_call():
    table, counts = torch.ones(20_000, 256), torch.zeros(2, 2, dtype=torch.int64)
    begin = time.perf_counter_ns()
    ops.gather_tiers([table[:-1], table[-1:]], torch.arange(20_000), disk=True, counts=counts, threads=1)
    assert counts[:, 0].tolist() == [19_999, 1]
    assert int(counts[:, 1].sum()) <= time.perf_counter_ns() - begin


def test_counts_that_several_threads_add_to():
    """A race here is rare: ThreadSanitizer sees it in any run (`make races`)."""
    table, index = torch.zeros(2000, 64), torch.arange(1000).repeat(8)
    counts, start = torch.zeros(2, 2, dtype=torch.int64), threading.Barrier(2)

    def gather() -> None:
        for _ in range(20):
            start.wait()
            ops.gather_tiers([table[:500], table[500:]], index, counts=counts, check=False, threads=1)

    threads = [threading.Thread(target=gather) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts[:, 0].tolist() == [40 * 4000] * 2
