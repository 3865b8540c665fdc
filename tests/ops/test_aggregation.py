"""Sums, means and extremes over a CSC, and their gradients."""

import gc
import weakref

import pytest
import reference
import torch
from helpers.graphs import graph_of_degrees, random_graph, random_ids
from helpers.slow import SLOW
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import ops
from torch_gnnscale.nn.aggregate import Apart, Bipartite, aggregate, aggregate_and_root, by_destination
from torch_gnnscale.ops.aggregation import DTYPES

FLOATS = list(DTYPES)
SHORT = [torch.float16, torch.bfloat16]


def entries(num_src: int, num_dst: int, count: int, seed: int = 0):
    """A random bipartite graph, its columns sorted by destination; entries' edges are in another order."""
    src, dst = random_ids(num_src, count, seed), random_ids(num_dst, count, seed + 1)
    ptr, pairs = ops.coo_to_csc(src, dst, num_src, num_dst)
    return torch.stack([src, dst]), ptr, pairs[:, 0], pairs[:, 1]


def rows(count: int, width: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    """Small integers: every sum of them is exact, and there are ties."""
    return random_ids(9, count * width, seed).view(count, width).to(dtype) - 4


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduce", ops.REDUCTIONS)
@pytest.mark.parametrize("width", [0, 1, 3, 16, 100])
def test_aggregate(dtype, reduce, width):
    _, ptr, node, edge = entries(40, 30, 200)
    x = rows(40, width, dtype)
    for options in ({}, {"edge": edge}, {"edge": edge, "num_edges": 120}):
        expected = reference.aggregate(ptr, node, x, reduce, **options)
        for threads in (1, 2):
            assert torch.equal(ops.aggregate(ptr, node, x, reduce, threads=threads, **options), expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduce", ops.REDUCTIONS)
@pytest.mark.parametrize("first", [0, 1, 25, 40])
def test_rows_of_two_tables(dtype, reduce, first):
    _, ptr, node, edge = entries(40, 30, 200)
    x = rows(40, 12, dtype)
    for options in ({}, {"weight": rows(200, 2, dtype, seed=1), "edge": edge, "num_edges": 77}):
        if options and reduce in ("max", "min"):
            continue
        expected = ops.aggregate(ptr, node, x, reduce, **options)
        for threads in (1, 2):
            found = ops.aggregate(ptr, node, x[:first], reduce, more=x[first:], threads=threads, **options)
            assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("heads", [1, 2, 6])
def test_weights(dtype, heads):
    _, ptr, node, edge = entries(40, 30, 200)
    x, weight = rows(40, 12, dtype), rows(200, heads, dtype, seed=1)
    for options in ({}, {"edge": edge}, {"edge": edge, "num_edges": 77}):
        for reduce in ("sum", "mean"):
            expected = reference.aggregate(ptr, node, x, reduce, weight=weight, **options)
            assert torch.equal(ops.aggregate(ptr, node, x, reduce, weight=weight, **options), expected)
    y = rows(30, 12, dtype, seed=2)
    for given_edge in (None, edge):
        expected = reference.edge_dot(ptr, node, x, y, heads, edge=given_edge)
        assert torch.equal(ops.edge_dot(ptr, node, x, y, heads, edge=given_edge), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("heads", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("slope", [0.2, 0.0, -1.5])
def test_attention(dtype, heads, slope):
    _, ptr, node, _ = entries(40, 30, 400)
    ptr = torch.cat([ptr[:1], ptr[:1], ptr[1:-1].clamp(max=390), ptr[-1:], ptr[-1:]])  # two columns without entries
    of = rows(40, heads, dtype), rows(len(ptr) - 1, heads, dtype, seed=1), rows(400, heads, dtype, seed=2)
    grad, exact = rows(400, heads, dtype, seed=3), {"rtol": 3e-6 if dtype == torch.float32 else 1e-14, "atol": 0}
    for scores in (of, (of[0], None, None), (of[0], None, of[2])):
        weight = ops.edge_attention(ptr, node, *scores, slope=slope, threads=1)
        torch.testing.assert_close(weight, reference.edge_attention(ptr, node, *scores, slope=slope), **exact)
        given = ptr, node, *scores, weight, grad
        found = ops.edge_attention_backward(*given, slope=slope, threads=1)
        loose = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-13}
        torch.testing.assert_close(found, reference.edge_attention_backward(*given, slope=slope), **loose)
        for threads in (2, 5):
            assert torch.equal(ops.edge_attention(ptr, node.int(), *scores, slope=slope, threads=threads), weight)
            again = ops.edge_attention_backward(*given, slope=slope, threads=threads)
            assert all(map(torch.equal, again, found))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponentials_of_attention(dtype):
    """Two entries with scores 0 and -s have the weights 1 / (1 + exp(-s)) and exp(-s) / (1 + exp(-s)); scores of all
    sizes, and those that are not finite."""
    least = 87.0 if dtype == torch.float32 else 708.0
    s = torch.cat([torch.linspace(0, least, 200_001, dtype=torch.float64), torch.tensor([1e3, 1e30, float("inf")])])
    s = s.to(dtype)
    of = torch.stack([torch.zeros_like(s), -s], 1).view(-1, 1)
    found = ops.edge_attention(2 * torch.arange(len(s) + 1), torch.arange(len(of)), of, slope=1.0).view(-1, 2)
    expected = (-s).exp() / (1 + (-s).exp())
    torch.testing.assert_close(found[:-3, 1], expected[:-3], rtol=4 * torch.finfo(dtype).eps, atol=0)
    assert found[-3:].tolist() == [[1, 0]] * 3
    for broken in (float("nan"), float("inf")):
        of = torch.tensor([[1.0], [broken], [2.0], [3.0]], dtype=dtype)
        found = ops.edge_attention(torch.tensor([0, 3, 4]), torch.arange(4), of)
        assert found[:3].isnan().all()
        assert found[3] == 1


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("heads", [1, 3])
def test_float32_weights_of_rows_of_16_bits(dtype, heads):
    _, ptr, node, edge = entries(40, 30, 200)
    x, weight, y = rows(40, 24, dtype), rows(200, heads, torch.float32, seed=1) / 3, rows(30, 24, torch.float32, 2) / 7
    for reduce in ("sum", "mean"):
        found = ops.aggregate(ptr, node, x, reduce, weight=weight, edge=edge)
        assert found.dtype == torch.float32
        assert torch.equal(found, reference.aggregate(ptr, node, x, reduce, weight=weight, edge=edge))
    found = ops.edge_dot(ptr, node, x, y, heads, edge=edge)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, reference.edge_dot(ptr, node, x, y, heads, edge=edge))


@pytest.mark.parametrize("dtype", SHORT)
def test_sums_of_16_bits_are_rounded_once(dtype):
    """A sum of 300 ones, each too small beside the sum so far if that were rounded to 16 bits."""
    x = torch.ones(300, 9, dtype=dtype)
    x[0] = 2048 if dtype == torch.float16 else 256
    ptr = torch.tensor([0, 300])
    expected = x.float().sum(0, keepdim=True)
    assert torch.equal(ops.aggregate(ptr, torch.arange(300), x), expected.to(dtype))
    extreme, many = torch.ones(1, 9, dtype=dtype), torch.ones(300, 9, dtype=dtype)
    share = ops.share_of_extremes(ptr, torch.arange(300), many, extreme, extreme)
    assert torch.equal(share, (1 / torch.full((1, 9), 300.0)).to(dtype))
    back = ops.extreme_backward(ptr, torch.arange(300), extreme, many, x)
    assert torch.equal(back, expected.to(dtype))


def test_every_number_of_16_bits_is_read():
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    for dtype in SHORT:
        x = numbers.view(dtype).view(-1, 64)
        ptr = torch.arange(len(x) + 1)
        found = ops.aggregate(ptr, ptr[:-1], x, weight=torch.ones(len(x), 1))
        torch.testing.assert_close(found, x.float(), rtol=0, atol=0, equal_nan=True)
        same = ops.aggregate(ptr, ptr[:-1], x)
        torch.testing.assert_close(same, x, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_gradients_of_extremes(dtype, reduce):
    index, ptr, node, _ = entries(40, 30, 200)
    x, grad = rows(40, 8, dtype), rows(30, 8, dtype, seed=1)
    extreme = ops.aggregate(ptr, node, x, reduce)
    share = reference.share_of_extremes(ptr, node, x, extreme, grad)
    assert torch.equal(ops.share_of_extremes(ptr, node, x, extreme, grad), share)
    back, pairs = ops.coo_to_csc(index[1], index[0], 30, 40)
    for num_edges in (None, 90):
        options = {"edge": pairs[:, 1], "num_edges": num_edges}
        found = ops.extreme_backward(back, pairs[:, 0], x, extreme, share, **options)
        expected = reference.extreme_backward(back, pairs[:, 0], x, extreme, share, **options)
        torch.testing.assert_close(found, expected)


def test_not_a_number_is_not_lost():
    graph = graph_of_degrees([3, 3])
    x = torch.ones(2, 2)
    x[graph.row[1], 1] = float("nan")
    for reduce in ("max", "min", "sum", "mean"):
        found = ops.aggregate(graph.colptr, graph.row, x, reduce)
        assert bool(found[0, 1].isnan())
        assert not bool(found[:, 0].isnan().any())


@pytest.mark.slow
@given(st.integers(1, 30), st.integers(0, 6), st.integers(1, 70), st.sampled_from(ops.REDUCTIONS))
def test_any_graph_by_any_number_of_threads(num_nodes, mean_degree, width, reduce):
    graph = random_graph(num_nodes, mean_degree, seed=width)
    x = torch.randn(num_nodes, width, generator=torch.Generator().manual_seed(width))
    one = ops.aggregate(graph.colptr, graph.row, x, reduce, threads=1)
    assert torch.equal(ops.aggregate(graph.colptr, graph.row, x, reduce, threads=2), one)
    torch.testing.assert_close(one, reference.aggregate(graph.colptr, graph.row, x, reduce))


def test_hubs_are_shared_out():
    graph = graph_of_degrees([5000, 0, 0, 3, 70_000, 1] + [1] * 100)
    x = rows(graph.num_nodes, 32)
    expected = torch.zeros(graph.num_nodes, 32, dtype=torch.float64)
    expected.index_add_(0, torch.repeat_interleave(graph.colptr.diff()), x[graph.row])
    for threads in (1, 2, 5):
        assert torch.equal(ops.aggregate(graph.colptr, graph.row, x, threads=threads), expected)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
def test_hubs_are_summed_piece_by_piece(dtype):
    """To the last bit, whatever the numbers: also of a prefix that ends within a hub's entries."""
    graph = graph_of_degrees([127, 128, 129, 0, 256, 700, 1], seed=3)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(graph.num_nodes, 3, generator=generator, dtype=dtype)
    weight = torch.randn(len(graph.row), 3, generator=generator, dtype=dtype)
    share, extreme = (rows(graph.num_nodes, 3, dtype, seed) * x.amax() for seed in (1, 2))
    for num_edges in (None, 380, 641, 1000):
        for options in ({}, {"weight": weight}):
            found = ops.aggregate(graph.colptr, graph.row, x, "mean", num_edges=num_edges, **options)
            expected = reference.aggregate(graph.colptr, graph.row, x, "mean", num_edges=num_edges, **options)
            assert torch.equal(found, expected)
        given = graph.colptr, graph.row, extreme, extreme, share
        found = ops.extreme_backward(*given, num_edges=num_edges)
        assert torch.equal(found, reference.extreme_backward(*given, num_edges=num_edges))


@pytest.mark.cuda
@pytest.mark.parametrize("count", [0, 300, 70_000])
def test_a_gpu_sorts_edges_as_the_cpu_does(count):
    src, dst = random_ids(12, count), random_ids(7, count, seed=1)
    here, there = (by_destination(src.to(where), dst.to(where), 12, 7) for where in ("cpu", "cuda"))
    assert all(torch.equal(ours.cpu(), theirs.long()) for ours, theirs in zip(there, here, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("reduce", ops.REDUCTIONS)
@pytest.mark.parametrize("sorted_edges", [SLOW(False), True])
def test_gradients(reduce, sorted_edges):
    index, *_ = entries(12, 7, 40)
    if sorted_edges:
        index = index[:, index[1].argsort(stable=True)]
        ptr = torch._convert_indices_from_coo_to_csr(index[1].contiguous(), 7)
        edges = Bipartite.sorted(index, ptr, 12)
    else:
        edges = Bipartite.from_coo(index, 12, 7)
    x = torch.randn(12, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: aggregate(x, edges, reduce), x)
    assert torch.autograd.gradcheck(lambda x: aggregate_and_root(x, edges, reduce), x)
    assert torch.autograd.gradcheck(lambda x: aggregate_and_root(x, edges, reduce)[1], x)
    if reduce in ("sum", "mean"):
        weight = torch.randn(40, 2, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, weight: aggregate(x, edges, reduce, weight), (x, weight))
        assert torch.autograd.gradcheck(lambda weight: aggregate(x, edges, reduce, weight[:, 0]), weight)
    if sorted_edges:
        fewer = edges.prefix(12, 4, int(ptr[4]))
        assert fewer.num_dst == 4
        assert torch.equal(aggregate(x, fewer, reduce), aggregate(x, edges, reduce)[:4])
        assert torch.autograd.gradcheck(lambda x: aggregate(x, fewer, reduce), x)


@pytest.mark.parametrize("num_src", [0, 3])
@pytest.mark.parametrize("shape", [(), (2,), (2, 0), (2, 3)])
def test_without_edges(num_src, shape):
    edges = Bipartite.from_coo(torch.empty(2, 0, dtype=torch.int64), num_src, num_src)
    x = torch.randn(num_src, *shape, dtype=torch.float64, requires_grad=True)
    for weight in (None, torch.empty(0, dtype=x.dtype), torch.empty(0, *shape[:1], dtype=x.dtype)):
        out, root = aggregate_and_root(x, edges, "sum", weight)
        assert torch.equal(out, torch.zeros_like(x))
        (of_x,) = torch.autograd.grad(out.sum() + root.sum(), x)
        assert torch.equal(of_x, torch.ones_like(x))


def test_no_edges_are_left_to_the_garbage_collector():
    index, *_ = entries(12, 7, 40)
    gc.disable()
    try:
        edges = Bipartite.from_coo(index, 12, 7)
        x = rows(12, 3).requires_grad_()
        aggregate(x, edges).sum().backward()
        left = weakref.ref(edges)
        del edges
        assert left() is None
    finally:
        gc.enable()


def test_gradients_of_all_prefixes_at_once():
    """As in a model: every prefix is aggregated over before any gradient is asked for."""
    index = torch.tensor([[1, 2, 2, 3, 4, 5, 3, 6], [0, 0, 1, 1, 2, 2, 3, 3]])
    whole = Bipartite.sorted(index, torch._convert_indices_from_coo_to_csr(index[1], 7), 7)
    for sizes in ([(3, 1, 2), (5, 2, 4), (7, 4, 8)], [(7, 4, 8), (5, 2, 4), (3, 1, 2)]):
        xs = [rows(num_src, 2, seed=num_src).requires_grad_() for num_src, *_ in sizes]
        outs = [aggregate(x, whole.prefix(*size), "mean") for x, size in zip(xs, sizes, strict=True)]
        sum(out.square().sum() for out in outs).backward()
        for x, out, (num_src, num_dst, _) in zip(xs, outs, sizes, strict=True):
            dense = torch.zeros(num_dst, num_src, dtype=x.dtype)
            of = index[:, index[1] < num_dst]
            dense.index_put_((of[1], of[0]), torch.ones((), dtype=x.dtype), accumulate=True)
            dense /= dense.sum(1, keepdim=True)
            torch.testing.assert_close(x.grad, 2 * dense.t() @ out.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("wanted_first", [0, 1, 2])
def test_prefixes_share_transposed_entries(wanted_first):
    index, *_ = entries(12, 7, 40)
    index = index[:, index[1].argsort(stable=True)]
    ptr = torch._convert_indices_from_coo_to_csr(index[1].contiguous(), 7)
    whole = Bipartite.sorted(index, ptr, 12)
    some = [whole.prefix(12, 2, int(ptr[2])), whole.prefix(12, 5, int(ptr[5])), whole]
    for edges in some[wanted_first:] + some[:wanted_first]:
        x = rows(12, 3).requires_grad_()
        aggregate(x, edges).square().sum().backward()
        dense = torch.zeros(edges.num_dst, 12, dtype=x.dtype)
        dense.index_put_((edges.index[1], edges.index[0]), torch.ones((), dtype=x.dtype), accumulate=True)
        assert torch.equal(x.grad, 2 * dense.t() @ (dense @ x.detach()))


def test_ties_share_a_gradient_as_torch_does():
    index, *_ = entries(6, 3, 30)
    x = rows(6, 4).requires_grad_()
    (ours,) = torch.autograd.grad(aggregate(x, Bipartite.from_coo(index, 6, 3), "max").sum(), x)
    out = x.new_zeros(3, 4).scatter_reduce(0, index[1].view(-1, 1).expand(-1, 4), x[index[0]], "amax",
                                           include_self=False)  # fmt: skip
    (theirs,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.cuda
@pytest.mark.parametrize("reduce", [*ops.REDUCTIONS, "weighted"])
def test_a_gpu_gives_what_the_cpu_does(reduce):
    """Outputs and gradients, to the last bit, and twice the same; a hub among sources and among destinations."""
    index, *_ = entries(300, 200, 4000)
    index[0, :900], index[1, 700:1200] = 5, 3
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(300, 2, 12, generator=generator), torch.randn(4000, 2, generator=generator)
    found = []
    for device in ("cpu", "cuda", "cuda"):
        own_x, own_weight = (tensor.to(device).detach().requires_grad_() for tensor in (x, weight))
        edges = Bipartite.from_coo(index.to(device), 300, 200)
        given = ("sum", own_weight) if reduce == "weighted" else (reduce, None)
        out, root = aggregate_and_root(own_x, edges, *given)
        ((out**2).sum() + root.sum()).backward()
        grads = [tensor.grad for tensor in (own_x, own_weight) if tensor.grad is not None]
        found.append([tensor.detach().cpu() for tensor in (out, root, *grads)])
    for here, *there in zip(*found, strict=True):
        assert all(torch.equal(tensor, here) for tensor in there)


@pytest.mark.parametrize("used", ["both", "aggregate", "root"])
def test_gradients_where_one_of_two_results_is_used_and_some_rows_are_apart(used):
    index, *_ = entries(40, 30, 200)
    edges, whole, given = Bipartite.from_coo(index, 40, 30), rows(40, 6), []

    def give_back(of_rows, of_x):
        of_rows, of_x = of_rows(), of_x()
        given.append((of_x.clone(), of_rows.clone()))
        return of_x

    apart = Apart(lambda meanwhile: meanwhile() or whole[33:], give_back)
    x, expected = whole[:33].clone().requires_grad_(), whole.clone().requires_grad_()
    for leaf, others in ((x, apart), (expected, None)):
        found, root = aggregate_and_root(leaf, edges, "sum", None, others)
        total = {"both": found.sum() + (root * 3).sum(), "aggregate": found.sum(), "root": (root * 3).sum()}
        total[used].backward()
    assert torch.equal(x.grad, expected.grad[:33])
    ((of_x, of_rows),) = given
    assert torch.equal(torch.cat([of_x, of_rows]), expected.grad)


def test_no_more_edges_are_asked_for_than_there_are():
    _, ptr, node, edge = entries(40, 40, 200)
    x = rows(40, 6)
    for call in (
        lambda count: ops.aggregate(ptr, node, x, edge=edge, num_edges=count),
        lambda count: ops.extreme_backward(ptr, node, x, x, x, edge=edge, num_edges=count),
    ):
        call(200)
        for wrong in (201, -1):
            with pytest.raises(ValueError, match=rf"^num_edges: expected 0 <= num_edges <= 200, found {wrong}$"):
                call(wrong)
