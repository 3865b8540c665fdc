"""Graphs built on disk, chunk by chunk."""

import os
import re

import pytest
import torch
from helpers.edges import assert_same_csc, random_edges
from helpers.slow import SLOW
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import CSC, GraphStore, NeighborLoader, files
from torch_gnnscale.datasets import planted
from torch_gnnscale.feature import FeatureStore
from torch_gnnscale.topology import build_on_disk, rmat, rmat_chunks, sort_on_disk

EDGE = sort_on_disk._SORT_BYTES


@pytest.mark.parametrize("more", [4, 9, 30])
def test_too_few_open_files(tmp_path, more):
    """The reason is said, and nothing is left: what removes the temporary files opens their folder."""
    resource = pytest.importorskip("resource")
    edges, before = random_edges(300, 170, 3000), resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = set(map(int, os.listdir("/proc/self/fd")))
    limit = next(n for n in range(1 << 12) if n - len([number for number in taken if number < n]) == more)
    message = (
        r"expected to open 170 files at a time, found a smaller limit \(ulimit -n, or more memory for the sort\): "
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match=message):
            build_on_disk(tmp_path / "graph", [edges], (300, 170), memory=50 * EDGE, num_edges=3000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert list(tmp_path.iterdir()) == []


def test_another_reason_than_too_few_open_files(tmp_path):
    resource = pytest.importorskip("resource")
    edges, before = random_edges(300, 170, 30_000), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match=r"^\[Errno 27\] File too large"):
            build_on_disk(tmp_path / "graph", [edges], (300, 170), memory=15_000 * EDGE, num_edges=30_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("edge_ids", [False, True])
@pytest.mark.parametrize("memory", [SLOW(EDGE), 50 * EDGE, 1 << 30])
@pytest.mark.parametrize("hub", [0, 9])
def test_the_graph_is_that_of_all_edges_at_once(tmp_path, edge_ids, memory, hub):
    edges = random_edges(300, 170, 3000, hub=hub)
    options = {"edge_ids": edge_ids, "memory": memory}
    for number, num_edges in enumerate((None, 3000)):
        path = tmp_path / str(number)
        store = build_on_disk(path, edges.split(700, dim=1), (300, 170), num_edges=num_edges, **options)
        assert_same_csc(store.relation(), CSC.from_edge_index(edges, (300, 170)), edge_ids)
        assert {file.suffix for file in path.iterdir()} == {".npy", ".json"}
        GraphStore.open(path, verify=True)


@pytest.mark.parametrize("memory", [20 * EDGE, 1 << 30])
def test_edges_are_read_piece_by_piece(tmp_path, memory, monkeypatch):
    monkeypatch.setattr(sort_on_disk, "CHUNK", 1)
    edges = random_edges(30, 3, 60)
    csc = build_on_disk(tmp_path / "x", edges.split(25, dim=1), (30, 3), memory=memory).relation()
    assert_same_csc(csc, CSC.from_edge_index(edges, (30, 3)))


@pytest.mark.slow
@given(st.integers(1, 40), st.integers(0, 200), st.integers(1, 60), st.integers(1, 300), st.booleans())
def test_any_graph(tmp_path_factory, num_nodes, count, chunk, fits, edge_ids):
    edges = random_edges(num_nodes, num_nodes, count, seed=chunk).to(torch.int32 if count % 2 else torch.int64)
    path = tmp_path_factory.mktemp("graph")
    chunks = edges.split(chunk, dim=1) if count else []
    store = build_on_disk(path / "x", chunks, num_nodes, edge_ids=edge_ids, memory=fits * EDGE)
    assert_same_csc(store.relation(), CSC.from_edge_index(edges, num_nodes), edge_ids)


@pytest.mark.slow
def test_few_edges_of_many_nodes_take_the_memory_given(tmp_path, monkeypatch):
    nodes, most = 50_000, 100  # so many destinations fit
    edges = torch.tensor([[0, 5, nodes - 1, 5], [7, nodes // 2, nodes - 1, nodes // 2 + 1]])
    expected = CSC.from_edge_index(edges, nodes)
    widths, sort, written = [], sort_on_disk.ops.coo_to_csc, []
    monkeypatch.setattr(sort_on_disk.ops, "coo_to_csc", lambda *given: widths.append(given[3]) or sort(*given))

    class Writer(files.ArrayWriter):
        def append(self, rows):
            written.append(len(rows))
            super().append(rows)

    monkeypatch.setattr(files, "ArrayWriter", Writer)
    memory = sort_on_disk._NODE_BYTES * most
    for number, num_edges in enumerate((None, 4)):
        csc = build_on_disk(tmp_path / str(number), [edges], nodes, num_edges=num_edges, memory=memory).relation()
        assert_same_csc(csc, expected)
        assert max(widths) <= 256, "nodes, or ranges"
        assert max(written) <= most


def test_ranges_without_edges_have_no_files(tmp_path):
    made = sort_on_disk._Sorter(tmp_path, 100, torch.int32, True, 64 * 10)
    ends = torch.tensor([[1, 3], [2, 99]], dtype=torch.int32)
    ranges = made.divide([(ends, torch.arange(2))], 0, 100, 2)
    assert len(ranges) == 7
    assert len(list(tmp_path.iterdir())) == 2 * 2
    assert sum(len(degrees) for degrees, _, _ in made.sorted(ranges)) == 100
    assert not list(tmp_path.iterdir())


def test_more_nodes_than_the_disk_has_room_for(tmp_path):
    with pytest.raises(
        OSError, match=r"4,611,686,018,427,387,904 nodes take .* of column pointers, and .* are free: '"
    ):
        build_on_disk(tmp_path / "a" / "b", [], 1 << 62)
    assert not list(tmp_path.iterdir())


def test_above_two_to_the_31st_node(tmp_path):
    edges = random_edges(50, 9, 100)
    edges[0] += 1 << 40
    store = build_on_disk(tmp_path / "x", [edges], ((1 << 40) + 50, 9), memory=40 * EDGE)
    assert_same_csc(store.relation(), CSC.from_edge_index(edges, ((1 << 40) + 50, 9)))
    assert store.relation().row.dtype == torch.int64


@pytest.mark.slow
def test_edge_ids_above_two_to_the_31st(tmp_path, monkeypatch):
    monkeypatch.setattr(sort_on_disk, "_INT32_MAX", 200)  # stands for more edges than fit on a test machine
    edges = random_edges(60, 60, 500)
    csc = build_on_disk(tmp_path / "x", [edges], 60).relation()
    expected = CSC.from_edge_index(edges, 60)
    assert torch.equal(csc.row, expected.row)
    assert csc.edge_id.dtype == torch.int64
    assert csc.edge_id.is_contiguous()
    assert torch.equal(csc.edge_id, expected.edge_id.long())


@pytest.mark.slow
def test_ids_are_as_wide_as_both_ends_need_while_they_are_sorted(tmp_path, monkeypatch):
    assert [sort_on_disk.id_dtype(count) for count in (0, 2**31 - 1, 2**31)] == [torch.int32, torch.int32, torch.int64]
    monkeypatch.setattr(sort_on_disk, "_INT32_MAX", 200)  # stands for more nodes than fit on a test machine
    dtypes = []

    class Sorter(sort_on_disk._Sorter):
        def divide(self, *args):
            dtypes.append(self.dtype)
            return super().divide(*args)

    monkeypatch.setattr(sort_on_disk, "_Sorter", Sorter)
    for size in ((50, 300), (300, 50), (50, 50)):
        edges = random_edges(*size, 100)
        csc = build_on_disk(tmp_path / str(size), [edges], size).relation()
        assert csc.row.dtype == csc.edge_id.dtype == (torch.int64 if size[0] > 200 else torch.int32)
        assert torch.equal(csc.row.long(), CSC.from_edge_index(edges, size).row.long())
    assert dtypes == [torch.int64, torch.int64, torch.int32]


@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize(("fits", "pieces"), [(20, 1), (19, 2)])
def test_a_range_of_exactly_the_memory_given_is_sorted_at_once(tmp_path, width, fits, pieces):
    edges = random_edges(30, width, 20)
    sorter = sort_on_disk._Sorter(tmp_path, 30, torch.int64, False, fits * EDGE + EDGE - 1)
    ranges = sorter.divide([(edges.t().contiguous(), None)], 0, width, 1)
    assert [part.num_edges for part in ranges] == [20]
    found = list(sorter.sorted(ranges))
    assert (len(found) == 1) == (pieces == 1)
    assert torch.equal(
        torch.cat([row.long() for _, row, _ in found]), CSC.from_edge_index(edges, (30, width)).row.long()
    )


@pytest.mark.parametrize(
    ("size", "memory", "error", "message"),
    [
        (-1, 1, ValueError, "size: expected 0 <= size <= 4611686018427387904, found -1"),
        (2.5, 1, TypeError, "size: expected an int, found float"),
        ((3, -4), 1, ValueError, "size: expected 0 <= size <= 4611686018427387904, found -4"),
        (3, 0, ValueError, "memory: expected 1 <= memory <= 4611686018427387904, found 0"),
        (3, 1e9, TypeError, "memory: expected an int, found float"),
    ],
)
def test_bad_arguments(tmp_path, size, memory, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        build_on_disk(tmp_path / "x", [], size, memory=memory)
    assert not list(tmp_path.iterdir())


def test_the_least_that_is_taken(tmp_path):
    csc = build_on_disk(tmp_path / "x", [torch.empty(2, 0, dtype=torch.int32)], 0, memory=1).relation()
    assert (csc.num_src, csc.num_dst, csc.num_edges) == (0, 0, 0)


@pytest.mark.parametrize("chunk", [SLOW(1), 999, 5000, 9999])
def test_rmat_in_chunks_is_rmat(chunk):
    edges = torch.cat(list(rmat_chunks(1000, 5000, seed=3, chunk=chunk)), 1)
    assert torch.equal(edges, rmat(1000, 5000, seed=3))
    assert torch.cat(list(rmat_chunks(10, 0, chunk=chunk)), 1).shape == (2, 0)


@pytest.mark.slow
def test_rmat_in_chunks_on_disk(tmp_path):
    expected = rmat(1000, 5000, seed=3)
    store = build_on_disk(tmp_path / "x", rmat_chunks(1000, 5000, seed=3, chunk=600), 1000, memory=800 * EDGE)
    assert_same_csc(store.relation(), CSC.from_edge_index(expected, 1000))


@pytest.mark.slow
def test_it_is_sampled_from(tmp_path):
    data = planted(2000, num_classes=4, num_features=8)
    FeatureStore.from_data(data).save(tmp_path / "features")
    build_on_disk(tmp_path / "graph", data.edge_index.split(999, dim=1), 2000)
    stores = FeatureStore.open(tmp_path / "features"), GraphStore.open(tmp_path / "graph")
    ours, theirs = (
        NeighborLoader(source, [4, 3], torch.arange(500), batch_size=100, seed=1) for source in (stores, data)
    )
    for left, right in zip(ours, theirs, strict=True):
        assert torch.equal(left.edge_index, right.edge_index)
        assert torch.equal(left.e_id, right.e_id)
        assert torch.equal(left.x, right.x)


@pytest.mark.parametrize(
    ("chunks", "error", "message"),
    [
        ([torch.tensor([[0, 5], [1, 9]]), torch.tensor([[10], [0]])], IndexError,
         "edge 2: source 10 is out of range: expected nodes in [0, 10)"),
        ([torch.tensor([[0, 5], [1, -9]])], IndexError,
         "edge 1: destination -9 is out of range: expected nodes in [0, 10)"),
        ([torch.zeros(2, 3)], TypeError, "chunks: expected int32 or int64 tensors, found torch.float32"),
        ([torch.zeros(3, 2, dtype=torch.int64)], ValueError, "chunks: expected shape (2, edges), found (3, 2)"),
        ([[1, 2]], TypeError, "chunks: expected int32 or int64 tensors, found list"),
    ],
)  # fmt: skip
def test_bad_edges(tmp_path, chunks, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        build_on_disk(tmp_path / "x", chunks, 10)
    assert not list(tmp_path.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(FileExistsError, match="expected a new or an empty directory"):
        build_on_disk(tmp_path / "full", [], 10)
