import itertools
import re

import pytest
import reference
import torch
from helpers.data import DTYPES
from helpers.graphs import random_ids, random_rows
from helpers.slow import SLOW
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import ops

INDEX = [torch.int32, torch.int64]


# gather_rows


SHAPES = [(), (1,), (3,), (7,), (16,), (100,), (4, 5), (2, 3, 2), (0,), (3, 0), (1000,)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_rows(device, dtype):
    for shape, index_dtype in itertools.product(SHAPES, INDEX):
        src = random_rows((50, *shape), dtype)
        index = random_ids(50, 90, seed=len(shape), dtype=index_dtype)
        found = ops.gather_rows(src.to(device), index.to(device))
        assert found.dtype == dtype
        assert found.shape == (90, *shape)
        assert found.stride() == torch.empty(found.shape).stride()
        assert torch.equal(found.cpu(), reference.gather_rows(src, index))


@given(st.integers(1, 6), st.integers(0, 70), st.integers(0, 40), st.integers(0, 2))
def test_gather_rows_of_any_width(num_rows, width, count, threads):
    src = random_ids(255, num_rows * width, seed=width).to(torch.uint8).reshape(num_rows, width)
    index = random_ids(num_rows, count, seed=count)
    assert torch.equal(ops.gather_rows(src, index, threads), reference.gather_rows(src, index))


def test_gather_rows_from_strided_rows(device):
    wide = random_rows((40, 30), torch.float32, device)
    index = random_ids(40, 100).to(device)
    views = [wide[:, 3:17], wide[::2], wide[5:], wide[::3, :1], wide[:1].expand(40, 30), wide.T[:1].T, wide[:, 7]]
    views += [wide.reshape(40, 5, 6)[:, 1:3], wide.reshape(40, 5, 6)[:, 2]]
    for view in views:
        inside = index % len(view)
        assert torch.equal(ops.gather_rows(view, inside), view[inside])
    strided = torch.stack([index, index], dim=1)[:, 0]
    assert torch.equal(ops.gather_rows(wide, strided), wide[index])


def test_gather_rows_of_lazy_views():
    complex_rows = torch.randn(5, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    index = torch.tensor([4, 0, 4])
    assert torch.equal(ops.gather_rows(complex_rows.conj(), index), complex_rows.conj()[index])
    negative = complex_rows.conj().imag
    assert negative.is_neg()
    assert torch.equal(ops.gather_rows(negative.clone(), index), negative[index])


class Labelled(torch.Tensor):
    pass


def test_rows_of_subclasses_are_not_gathered():
    rows = torch.ones(3, 2)
    assert ops.can_gather_rows(rows)
    assert ops.can_gather_rows(torch.nn.Parameter(rows))
    assert not ops.can_gather_rows(rows.as_subclass(Labelled))  # they would be plain tensors
    assert not ops.can_gather_rows(rows[0, 0])


@pytest.mark.parametrize("num_rows", [0, 5])
def test_gather_rows_of_nothing(device, num_rows):
    src = torch.ones(num_rows, 3, device=device)
    for dtype in INDEX:
        assert ops.gather_rows(src, torch.empty(0, dtype=dtype, device=device)).shape == (0, 3)


@pytest.mark.parametrize("threads", [0, 1, 2, 7])
def test_gather_rows_by_several_threads(threads):
    src = random_rows((5000, 100), torch.float32)
    index = random_ids(5000, 20_001)
    assert index.numel() * 400 > 16 << 18  # many tasks
    assert torch.equal(ops.gather_rows(src, index, threads), src[index])


@pytest.mark.slow
def test_gather_rows_gradient(device):
    src = torch.randn(6, 3, 2, dtype=torch.float64, device=device, requires_grad=True)
    for dtype in INDEX:
        index = torch.tensor([5, 0, 0, 3, 5, 5], dtype=dtype, device=device)
        assert torch.autograd.gradcheck(lambda x, at=index: ops.gather_rows(x, at), src)
        assert torch.autograd.gradgradcheck(lambda x, at=index: ops.gather_rows(x, at) ** 2, src)
    (ours,) = torch.autograd.grad((ops.gather_rows(src, index) ** 3).sum(), src)
    (theirs,) = torch.autograd.grad((src[index.long()] ** 3).sum(), src)
    assert torch.equal(ours, theirs)
    assert (ours[[1, 2, 4]] == 0).all()
    assert not ops.gather_rows(src.detach(), index).requires_grad
    scalar_rows = torch.randn(4, dtype=torch.complex128, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: ops.gather_rows(x, index % 4), scalar_rows)


# coo_to_csc


@pytest.mark.parametrize("dtype", INDEX)
@pytest.mark.parametrize(
    ("num_dst", "num_edges"),
    [
        (1, 0),
        (1, 40),
        (2, 1),
        (7, 100),
        (1023, 3000),
        (1025, 4000),
        (5000, 0),
        (5000, 20_000),
        (1, (1 << 15) - 1),
        (1, 1 << 15),
        (1023, 40_000),
        (1024, 40_000),
        (1025, 40_000),
        (32_767, 1),
        (32_768, 0),
        (40_000, 2),
    ],
)
def test_coo_to_csc(num_dst, num_edges, dtype):
    src, dst = (random_ids(limit, num_edges, seed=limit, dtype=dtype) for limit in (900, num_dst))
    kept = src.clone(), dst.clone()
    colptr, edges = ops.coo_to_csc(src, dst, 900, num_dst)
    expected = reference.coo_to_csc(src, dst, 900, num_dst)
    assert edges.dtype == expected[1].dtype == torch.int32
    assert torch.equal(colptr, expected[0])
    assert torch.equal(edges, expected[1])
    assert torch.equal(src, kept[0])
    assert torch.equal(dst, kept[1])


@pytest.mark.parametrize("num_dst", [3, 1024, 5000, 300_000])
def test_coo_to_csc_by_several_threads(num_dst):
    # Half of the edges end in one hub, and most of the nodes have multi-edges.
    src, dst = random_ids(50, 300_000, seed=1), random_ids(num_dst, 300_000, seed=2)
    dst[::2] = num_dst // 2
    expected = reference.coo_to_csc(src, dst, 50, num_dst)
    for threads in (1, 2, 0, 5):
        colptr, edges = ops.coo_to_csc(src, dst, 50, num_dst, threads)
        assert torch.equal(colptr, expected[0])
        assert torch.equal(edges, expected[1])


@pytest.mark.parametrize("num_edges", [3, 1 << 15, 200_000])
@pytest.mark.parametrize("threads", [1, 3])
def test_coo_to_csc_of_an_id_out_of_range(num_edges, threads):
    for name, at in (("src", 0), ("src", num_edges - 1), ("dst", num_edges // 2), ("dst", num_edges - 1)):
        for wrong in (-1, 7, 1 << 62):
            ends = {"src": random_ids(7, num_edges, seed=1), "dst": random_ids(7, num_edges, seed=2)}
            ends[name][at] = wrong
            message = f"{name}[{at}] = {wrong} is out of range: expected ids in [0, 7)"
            with pytest.raises(IndexError, match=re.escape(message)):
                ops.coo_to_csc(*ends.values(), 7, 7, threads)


@pytest.mark.parametrize("dtype", INDEX)
@pytest.mark.parametrize(("num_dst", "num_edges"), [(0, 0), (1, 0), (1, 9), (7, 3), (7, 100), (900, 50), (5, 200_000)])
def test_colptr_of_sorted(num_dst, num_edges, dtype):
    dst = random_ids(max(num_dst, 1), num_edges, seed=3, dtype=dtype).sort().values
    for some in (dst, dst[dst > num_dst // 2], dst[dst < num_dst // 2]):  # columns without edges at the ends
        expected = reference.colptr_of_sorted(some, num_dst)
        for threads in (0, 1, 3):
            colptr = ops.colptr_of_sorted(some, num_dst, threads)
            assert colptr.dtype == torch.int64
            assert torch.equal(colptr, expected)
    assert torch.equal(ops.colptr_of_sorted(dst, num_dst), reference.coo_to_csc(dst, dst, num_dst, num_dst)[0])


# Edges 65,536, 131,072 and so on are the first of a thread.
@pytest.mark.parametrize("num_edges", [1, 2, 9, 1 << 16, (1 << 16) + 1, SLOW(200_000)])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_colptr_of_destinations_that_are_not_sorted(num_edges, threads):
    share = num_edges // threads
    places = {0, 1, num_edges // 2, num_edges - 1, share - 1, share, share + 1}
    for at in sorted(place for place in places if 0 <= place < num_edges):
        for wrong in (-1, -(1 << 40), 7, 1 << 62):
            dst = random_ids(7, num_edges, seed=1).sort().values
            dst[at] = wrong
            with pytest.raises(IndexError, match=rf"^dst\[{at}\] = {wrong} is out of range: expected ids in \[0, 7\)$"):
                ops.colptr_of_sorted(dst, 7, threads)
        if at > 0:
            dst = torch.full((num_edges,), 5)
            dst[:at] = 6
            message = f"dst: expected edges sorted by destination, found dst[{at}] = 5 after 6"
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                ops.colptr_of_sorted(dst, 7, threads)


@pytest.mark.slow
def test_coo_to_csc_in_buckets_of_more_than_65536_nodes():
    num_dst = 70_000_000
    src, dst = random_ids(9, 2000, seed=1), random_ids(num_dst, 2000, seed=2)
    dst[:3] = torch.tensor([0, num_dst - 1, 0])
    colptr, edges = ops.coo_to_csc(src, dst, 9, num_dst)
    order = dst.argsort(stable=True)
    assert torch.equal(edges[:, 1].long(), order)
    assert torch.equal(edges[:, 0].long(), src[order])
    in_order = dst[order]
    assert torch.equal(colptr[in_order], torch.searchsorted(in_order, in_order))
    assert torch.equal(colptr[in_order + 1], torch.searchsorted(in_order, in_order, right=True))
    ops.check_colptr(colptr, 2000)  # so nothing lies between the destinations


def test_coo_to_csc_takes_strided_input_and_64_bit_ids():
    both = torch.stack([random_ids(30, 100, seed=3), random_ids(20, 100, seed=4)], dim=1)
    found = ops.coo_to_csc(both[:, 0], both[:, 1], 30, 20)
    assert all(torch.equal(a, b) for a, b in zip(found, reference.coo_to_csc(*both.T, 30, 20), strict=True))
    large = torch.tensor([1 << 40, 3, (1 << 40) - 1])
    colptr, edges = ops.coo_to_csc(large, torch.tensor([1, 0, 1]), (1 << 40) + 1, 2)
    assert edges.dtype == torch.int64
    assert colptr.tolist() == [0, 1, 3]
    assert edges.tolist() == [[3, 1], [1 << 40, 0], [(1 << 40) - 1, 2]]


@given(st.data())
def test_coo_to_csc_of_small_graphs(data):
    num_src, num_dst = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    ends = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1))
    src, dst = torch.tensor(data.draw(st.lists(ends, max_size=30)), dtype=torch.int64).reshape(-1, 2).unbind(1)
    found, expected = (module.coo_to_csc(src, dst, num_src, num_dst) for module in (ops, reference))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


# first_outside and check_colptr


@pytest.mark.parametrize("dtype", INDEX)
@pytest.mark.parametrize("threads", [0, 1, 2])
def test_first_outside(device, dtype, threads):
    size = 300_000
    ids = random_ids(1000, size, dtype=dtype).to(device)
    assert ops.first_outside(ids, 1000, threads) == -1
    info = torch.iinfo(dtype)
    for at, value in ((size - 1, 1000), (200_000, -1), (70_000, info.max), (65_536, info.min), (4096, 1000), (0, -5)):
        ids[at] = value
        assert ops.first_outside(ids, 1000, threads) == at == reference.first_outside(ids[: at + 1], 1000)
    assert ops.first_outside(ids[:0], 0, threads) == -1
    assert ops.first_outside(ids[5:6], 0, threads) == 0
    assert ops.first_outside(torch.stack([ids, ids], dim=1)[1:5, 0], 1000, threads) == -1


@given(st.lists(st.integers(-2, 6), max_size=12), st.integers(0, 6))
def test_first_outside_equals_reference(values, limit):
    ids = torch.tensor(values, dtype=torch.int64)
    assert ops.first_outside(ids, limit) == reference.first_outside(ids, limit)


@given(st.lists(st.integers(-1, 5), min_size=1, max_size=8), st.integers(0, 5))
def test_check_colptr_equals_reference(values, num_edges):
    colptr = torch.tensor(values, dtype=torch.int64)
    at = reference.first_malformed(colptr, num_edges)
    if at < 0:
        ops.check_colptr(colptr, num_edges)
    else:
        with pytest.raises(ValueError, match=rf"colptr\[{at}\]"):
            ops.check_colptr(colptr, num_edges)


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_check_colptr_of_many_columns(threads):
    colptr = random_ids(5, 300_000).cumsum(0)
    colptr[0] = 0
    ops.check_colptr(colptr, int(colptr[-1]), threads)
    for at in (299_998, 131_072, 65_536, 4097, 1):
        wrong = colptr.clone()
        wrong[at:] -= wrong[at] - wrong[at - 1] + 1
        with pytest.raises(ValueError, match=rf"colptr\[{at}\] = .* is less than colptr\[{at - 1}\]"):
            ops.check_colptr(wrong, int(wrong[-1]), threads)
    ops.check_colptr(torch.stack([colptr, colptr], dim=1)[:, 0], int(colptr[-1]), threads)


@pytest.mark.parametrize("threads", [2, 4])
def test_the_first_of_several_wrong_entries(threads):
    """Also if another thread comes to a later one after it, as in most of these tries."""
    ids, colptr = torch.zeros(600_000, dtype=torch.int32), torch.zeros(600_000, dtype=torch.int64)
    ids[[0, -1]] = -1
    colptr[0], colptr[-1] = 0, -1
    colptr[1] = colptr[-1] = -1
    for _ in range(20):
        assert ops.first_outside(ids, 1, threads) == 0
        with pytest.raises(ValueError, match=r"^colptr\[1\] = -1 is less than colptr\[0\]"):
            ops.check_colptr(colptr, 0, threads)


# weight_sums


def test_weight_sums():
    colptr = torch.tensor([0, 3, 3, 5])
    sums = ops.weight_sums(colptr, torch.tensor([1.0, 2.0, 4.0, 1e-30, 1e30], dtype=torch.float64))
    unit = 1 << 30
    assert sums.tolist() == [unit, 3 * unit, 7 * unit, 1, (1 << 32) + 1]
    assert ops.weight_sums(torch.tensor([0]), torch.empty(0)).tolist() == []
    assert ops.weight_sums(torch.tensor([0, 2]), torch.tensor([7, 7], dtype=torch.uint8)).tolist() == [1 << 32, 1 << 33]
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=re.escape(f"weight[1] = {wrong}: expected a positive and finite number")):
            ops.weight_sums(torch.tensor([0, 2]), torch.tensor([1.0, wrong]))
    for wrong in (torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.complex64)):
        with pytest.raises(TypeError, match=f"weight: expected real numbers, found {wrong.dtype}"):
            ops.weight_sums(torch.tensor([0, 2]), wrong)
    with pytest.raises(ValueError, match=re.escape("weight: expected a vector, found shape (2, 1)")):
        ops.weight_sums(torch.tensor([0, 2]), torch.ones(2, 1))
    with pytest.raises(ValueError, match="weight: expected one for each of 3 edges, found 2"):
        ops.weight_sums(torch.tensor([0, 3]), torch.ones(2))


# Random numbers


def test_random_bits_offsets_and_threads():
    whole = ops.random_bits(50_000, key=7, threads=1)
    for threads in (0, 2, 5):
        assert torch.equal(ops.random_bits(50_000, 7, threads=threads), whole)
    cuts = [0, 1, 5, 5, 20_005, 50_000]
    parts = [ops.random_bits(b - a, 7, a) for a, b in itertools.pairwise(cuts)]
    assert torch.equal(torch.cat(parts), whole)
    assert not torch.equal(ops.random_bits(50, 8), whole[:50])


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 1000])
def test_permutation(count):
    for key in (0, 1, -1, 1 << 62):
        order = ops.permutation(count, key)
        assert torch.equal(order, reference.permutation(count, key))
        assert torch.equal(order.sort().values, torch.arange(count))


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 100, 256, 257, 1 << 33])
@pytest.mark.parametrize("quadrants", [(0.57, 0.19, 0.19), (0.25, 0.25, 0.25), (1.0, 0.0, 0.0), (0.4, 0.0, 0.6)])
def test_rmat_edges(num_nodes, quadrants):
    for key, first in ((0, 0), (-9, 1 << 40)):
        edges = ops.rmat_edges(num_nodes, 60, key, quadrants, first)
        assert edges.shape == (2, 60)
        assert torch.equal(edges, reference.rmat_edges(num_nodes, 60, key, quadrants, first))
        assert int(edges.min()) >= 0
        assert int(edges.max()) < num_nodes


def test_rmat_parts_make_the_whole():
    quadrants = (0.57, 0.19, 0.19)
    whole = ops.rmat_edges(5000, 40_000, 3, quadrants, threads=1)
    for threads in (0, 2, 3):
        assert torch.equal(ops.rmat_edges(5000, 40_000, 3, quadrants, threads=threads), whole)
    cuts = [0, 1, 2, 15_000, 15_000, 40_000]
    parts = [ops.rmat_edges(5000, b - a, 3, quadrants, a) for a, b in itertools.pairwise(cuts)]
    assert torch.equal(torch.cat(parts, dim=1), whole)


def test_rmat_quadrants_have_their_shares():
    quadrants = (0.5, 0.3, 0.15)
    src, dst = ops.rmat_edges(2, 100_000, 3, quadrants)
    shares = torch.bincount(2 * src + dst, minlength=4) / 100_000
    assert torch.allclose(shares, torch.tensor([*quadrants, 0.05]), atol=0.006)
