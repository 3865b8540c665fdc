"""Outputs on the CPU lie in recycled memory, and nobody can tell."""

import concurrent.futures
import gc
import itertools
import os
from pathlib import Path

import pytest
import reference
import torch
from helpers.data import status_of_fork
from helpers.graphs import assert_same, random_graph, random_ids, with_tensors
from helpers.slow import NIGHTLY

from torch_gnnscale import ops
from torch_gnnscale.memory import HostArray, HostMemory
from torch_gnnscale.ops.arguments import resolve_threads

ROW = 1 << 20  # bytes


@pytest.fixture
def empty_pool():
    """A pool without idle buffers; afterwards it is as it was found."""
    limit = ops.pool_stats().limit_bytes
    gc.collect()  # tensors of other tests that only a cycle keeps
    ops.pool_trim()
    yield
    ops.pool_limit(limit)
    ops.pool_trim()


def output(rows: int, fill: int = 0) -> torch.Tensor:
    return ops.gather_rows(torch.full((1, ROW), fill, dtype=torch.uint8), torch.zeros(rows, dtype=torch.int64))


@pytest.mark.slow
@pytest.mark.usefixtures("empty_pool")
def test_memory_comes_back_and_is_used_again():
    before = ops.pool_stats()
    assert before.idle_bytes == 0
    tensor = output(4)
    held = ops.pool_stats()
    assert held.live_bytes - before.live_bytes == 4 * ROW
    assert (held.idle_bytes, held.misses) == (0, before.misses + 1)
    address = tensor.data_ptr()
    assert address % 64 == 0
    view = tensor[2:, 5:]
    del tensor
    assert ops.pool_stats() == held  # the view holds the memory
    del view
    idle = ops.pool_stats()
    assert (idle.idle_bytes, idle.live_bytes) == (4 * ROW, before.live_bytes)
    again = output(4)
    assert again.data_ptr() == address
    assert ops.pool_stats().hits == idle.hits + 1
    assert ops.pool_stats().idle_bytes == 0


@pytest.mark.slow
@pytest.mark.usefixtures("empty_pool")
def test_trimming_also_frees_the_tables_of_samplers():
    graph = random_graph(3000, 10, seed=1)
    graph.sample(ops, random_ids(3000, 500, seed=1), [10, 5], 1, disjoint=True)
    ops.pool_trim()
    assert ops.pool_stats().idle_bytes == 0


@pytest.mark.slow
@pytest.mark.usefixtures("empty_pool")
def test_a_much_larger_buffer_is_not_spent_on_a_small_output():
    large = output(16)
    del large
    small = output(3)
    assert ops.pool_stats().idle_bytes == 16 * ROW
    del small


@pytest.mark.slow
@pytest.mark.usefixtures("empty_pool")
def test_idle_bytes_are_bounded():
    before = ops.pool_stats().live_bytes
    ops.pool_limit(5 * ROW)
    assert ops.pool_stats().limit_bytes == 5 * ROW
    tensors = [output(2) for _ in range(6)]
    assert ops.pool_stats().live_bytes - before == 12 * ROW
    while tensors:
        tensors.pop()
        assert ops.pool_stats().idle_bytes <= 5 * ROW
    assert ops.pool_stats()[:2] == (4 * ROW, before)
    large = output(8)
    del large  # larger than the limit: not kept
    assert ops.pool_stats().idle_bytes <= 5 * ROW
    ops.pool_limit(0)
    assert ops.pool_stats().idle_bytes == 0
    assert (output(2, fill=7) == 7).all()
    assert ops.pool_stats().idle_bytes == 0


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a preloaded malloc may keep what is freed")
def test_what_exceeds_the_limit_goes_back_to_the_system():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    limit = ops.pool_stats().limit_bytes
    ops.pool_limit(0)
    try:
        before = resident()
        for _ in range(10):
            output(8)
        assert resident() - before < 40 * ROW
    finally:
        ops.pool_limit(limit)


@pytest.mark.slow
@pytest.mark.usefixtures("empty_pool")
def test_trim():
    kept = output(2, fill=3)
    dropped = output(2)
    del dropped
    assert ops.pool_stats().idle_bytes == 2 * ROW
    ops.pool_trim()
    assert ops.pool_stats().idle_bytes == 0
    assert (kept == 3).all()


def test_kept_batches_are_never_overwritten():
    graph = random_graph(3000, 10, seed=1)
    features = torch.randn(3000, 32, generator=torch.Generator().manual_seed(0))

    def batch(key: int):
        sample = graph.sample(ops, random_ids(3000, 50 + key, seed=key), [10, 5], key, threads=1 + key % 2)
        return sample, ops.gather_rows(features, sample.node[0])

    kept = [batch(key) for key in range(50)]
    copies = [(with_tensors(sample, torch.clone), rows.clone()) for sample, rows in kept]
    for key in range(50, 150):
        batch(key)
    for (sample, rows), (sample_copy, rows_copy) in zip(kept, copies, strict=True):
        assert_same(sample, sample_copy)
        assert torch.equal(rows, rows_copy)
    storages = [t.untyped_storage() for sample, rows in kept for x in (*sample[:4], [rows]) for t in x]
    spans = sorted((s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


@pytest.mark.slow
@pytest.mark.usefixtures("empty_pool")
@pytest.mark.parametrize("layers", [False, True])
@pytest.mark.parametrize("with_col", [False, True])
def test_a_kept_batch_keeps_no_room_of_a_larger_one(layers, with_col):
    graph, all_nodes = random_graph(20_000, 20, seed=1), torch.arange(20_000)
    options = {"layers": layers, "with_col": with_col}
    for threads, seeds, fanouts in ((1, 3, [2]), (2, 3, [2]), (1, 400, [5, 5]), (1, 20_000, [1])):
        large = graph.sample(ops, all_nodes, [-1, -1], 1, **options)
        assert sum(t.nbytes for t in large.edge_index) > 1 << 20
        del large
        before = ops.pool_stats().live_bytes
        kept = graph.sample(ops, random_ids(20_000, seeds, seed=2), fanouts, 3, threads=threads, **options)
        tensors = [*kept.node, *kept.colptr, *kept.edge_index, *kept.edge_id]
        assert len(tensors) == 4
        pinned = ops.pool_stats().live_bytes - before
        assert pinned <= sum(max(2.5 * tensor.nbytes, 8192) for tensor in tensors)
        assert_same(kept, graph.sample(reference, random_ids(20_000, seeds, seed=2), fanouts, 3, **options))


@pytest.mark.slow
@pytest.mark.usefixtures("empty_pool")
def test_the_buffer_that_came_back_last_is_reused_first():
    rows, ids = torch.ones(1000, 64), torch.arange(1000)
    first, second, third = (ops.gather_rows(rows, ids) for _ in range(3))
    latest = second.data_ptr()
    del first, third, second
    assert ops.gather_rows(rows, ids).data_ptr() == latest


@pytest.mark.slow
@pytest.mark.usefixtures("empty_pool")
def test_batches_alike_reuse_each_others_buffers():
    graph = random_graph(20_000, 20, seed=1)
    for key in range(10):
        before = ops.pool_stats()
        sample = graph.sample(ops, random_ids(20_000, 1000, seed=key), [10, 10], key)
        after = ops.pool_stats()
        del sample
    assert after.misses == before.misses


@pytest.mark.slow
@pytest.mark.usefixtures("empty_pool")
def test_everything_comes_back_after_errors_and_from_other_threads():
    graph = random_graph(500, 8, seed=1)
    broken = graph._replace(row=graph.row + 400)
    before = ops.pool_stats().live_bytes

    def work(key: int) -> None:
        graph.sample(ops, random_ids(500, 80, seed=key), [5, 5], key)
        with pytest.raises(RuntimeError, match="malformed"):
            broken.sample(ops, random_ids(500, 80, seed=key), [5, 5], key)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(40)))
    assert ops.pool_stats().live_bytes == before
    assert ops.pool_stats().idle_bytes > 0


def test_outputs_can_be_written_and_shared_but_not_grow():
    tensor = output(2, fill=1)
    with pytest.raises(RuntimeError, match="storage that is not resizable"):
        tensor.resize_(3, ROW)
    tensor = output(2, fill=1)  # torch has changed the shape before it fails
    assert (tensor.clone().resize_(3, ROW)[:2] == 1).all()
    tensor = tensor.resize_(1, ROW)[0]
    tensor += 1
    assert (tensor == 2).all()
    tensor.share_memory_()
    assert tensor.is_shared()
    assert (tensor == 2).all()
    assert (output(1, fill=5) == 5).all()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_samples_the_same():
    graph, seeds = random_graph(3000, 10, seed=2), random_ids(3000, 200)
    expected = graph.sample(ops, seeds, [10, 10], 5, threads=1)

    def sample():
        torch.set_num_threads(1)  # as torch's data loader does in its workers
        for _ in range(5):
            assert_same(graph.sample(ops, seeds, [10, 10], 5), expected)
            ops.pool_trim()

    assert status_of_fork(sample) == 0
    assert_same(graph.sample(ops, seeds, [10, 10], 5), expected)


def test_limit_threads_belongs_to_its_python_thread():
    def limited(threads: int) -> int:
        ops.limit_threads(threads)
        return resolve_threads(0)

    with concurrent.futures.ThreadPoolExecutor(1) as other:
        try:
            ops.limit_threads(1)
            assert (resolve_threads(0), resolve_threads(3)) == (1, 3)
            assert other.submit(resolve_threads, 0).result() == 0
            assert other.submit(limited, 2).result() == 2
            assert resolve_threads(0) == 1
            graph, seeds = random_graph(3000, 10, seed=2), random_ids(3000, 500)
            alone = graph.sample(ops, seeds, [10, 10], 5)
            rows = ops.gather_rows(graph.row, seeds)
        finally:
            ops.limit_threads(0)
    assert resolve_threads(0) == 0
    assert_same(graph.sample(ops, seeds, [10, 10], 5), alone)
    assert torch.equal(ops.gather_rows(graph.row, seeds), rows)


@pytest.mark.slow
@pytest.mark.sanitized
@pytest.mark.parametrize("threads", [NIGHTLY(0), NIGHTLY(1), 2, NIGHTLY(7)])
def test_huge_pages_change_nothing(threads, tmp_path):
    """Neither of what a thread moves nor of what the system refuses, such as pages of a file or of a memfd."""
    whole = random_ids(256, 140 << 20, seed=3).to(torch.uint8)  # three pieces of 64 MiB, which threads take in turn
    (tmp_path / "file").write_bytes(whole[: 5 << 20].numpy().tobytes())
    file, memory = ops.map_file(tmp_path / "file"), HostMemory(5 << 20)
    shared = memory.tensor(HostArray(0, (5 << 20,), torch.uint8)).copy_(file)
    memory.close()  # which leaves the tensor
    for tensor in (whole, whole[12345:-777], whole[:0], whole[:100], whole[5], output(9, fill=4), file, shared):
        kept, address = tensor.clone(), tensor.data_ptr()
        ops.huge_pages(tensor, threads)
        assert tensor.data_ptr() == address
        assert torch.equal(tensor, kept)
