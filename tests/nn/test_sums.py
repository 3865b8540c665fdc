"""Sums over relations as one function, beside their definition."""

import pytest
import torch
from helpers.graphs import random_ids

from torch_gnnscale.nn.aggregate import sort_edges
from torch_gnnscale.nn.sums import Share, sums

ROWS = {"a": 12, "b": 9}
NUM_DST = {"a": 7, "b": 5}
EDGES, WIDTH, CHANNELS = 20, 4, 3


def made(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def share(rows, src, dst, reduce, seed, weighed=False, bias=True, root=True, edges=True):
    index = torch.stack([random_ids(ROWS[src], EDGES, seed=seed), random_ids(NUM_DST[dst], EDGES, seed=seed + 1)])
    adjacency = sort_edges(index, ROWS[src], NUM_DST[dst])[0] if edges else None
    weight = made(EDGES, 1, seed=seed + 2).detach() if weighed else None
    of_bias = made(CHANNELS, seed=seed + 3) if bias else None
    of_root = made(CHANNELS, WIDTH, seed=seed + 4) if root else None
    of_neighbors = made(CHANNELS, WIDTH, seed=seed + 5)
    return Share(rows[src], weight, adjacency, reduce, of_neighbors, of_bias, rows[dst] if root else None, of_root)


def layer(into_b=True):
    """Relations a to a, b to a (three, one of them without edges), and a to b, b to b."""
    rows = {t: made(count, WIDTH, seed=number) for number, (t, count) in enumerate(ROWS.items())}
    of_a = [
        share(rows, "a", "a", "mean", 10),
        share(rows, "b", "a", "sum", 20, weighed=True, bias=False),
        share(rows, "b", "a", "max", 30, root=False),
        share(rows, "b", "a", "mean", 40, edges=False),
    ]
    of_b = [share(rows, "a", "b", "sum", 50), share(rows, "b", "b", "min", 60, root=False, bias=False)]
    return ([of_a, of_b], ["a", "b"], [1.0, 0.5]) if into_b else ([of_a], ["a"], [1.0])


def defined(shares, num_dst, scale):
    total = 0
    for of in shares:
        out = torch.zeros(num_dst, CHANNELS, dtype=torch.float64)
        if of.edges is not None:
            src, dst = of.edges.index
            messages = of.x[src] if of.weight is None else of.x[src] * of.weight
            how = {"max": "amax", "min": "amin"}.get(of.reduce, of.reduce)
            to = dst.unsqueeze(1).expand_as(messages)
            aggregate = messages.new_zeros(num_dst, WIDTH).scatter_reduce(0, to, messages, how, include_self=False)
            out = out + aggregate @ of.of_neighbors.t()
        out = out if of.root is None else out + of.root[:num_dst] @ of.of_root.t()
        total = total + (out if of.bias is None else out + of.bias)
    return total * scale


def leaves(shares):
    found = {}
    for several in shares:
        for number, of in enumerate(several):
            for name in ("x", "root", "of_neighbors", "bias", "of_root"):
                if (tensor := getattr(of, name)) is not None:
                    found.setdefault(id(tensor), (f"{number} {name}", tensor))
    return [*found.values()]


@pytest.mark.parametrize("wanted", ["all", "x", "of_neighbors", "of_root", "bias", "nothing"])
@pytest.mark.parametrize("into_b", [True, False])
def test_the_definition(into_b, wanted):
    shares, types, scales = layer(into_b)
    for name, tensor in leaves(shares):
        tensor.requires_grad_(wanted == "all" or name.endswith(f" {wanted}"))
    needed = [tensor for _, tensor in leaves(shares) if tensor.requires_grad]
    nums_dst = [NUM_DST[t] for t in types]
    found = sums(shares, nums_dst, scales)
    expected = [defined(*given) for given in zip(shares, nums_dst, scales, strict=True)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        assert ours.requires_grad == bool(needed)
    if not needed:
        return
    total = lambda outs: sum((out * torch.arange(1.0, out.numel() + 1).view(out.shape)).sum() for out in outs)  # noqa: E731
    ours = torch.autograd.grad(total(found), needed)
    theirs = torch.autograd.grad(total(expected), needed, allow_unused=True)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other, rtol=1e-12, atol=1e-12)


def test_a_sum_that_nobody_reads_gives_no_gradient():
    shares, types, scales = layer()
    of_a, _ = sums(shares, [NUM_DST[t] for t in types], scales)
    of_relation = shares[1][0]
    assert torch.autograd.grad(of_a.sum(), [of_relation.of_neighbors, of_relation.bias], allow_unused=True) == (
        None,
        None,
    )


def test_gradients_are_tensors_of_their_own():
    """Although all factors of one type's rows have the same gradient: it would be scaled once for each of them."""
    shares, types, scales = layer()
    sum(out.sum() for out in sums(shares, [NUM_DST[t] for t in types], scales)).backward()
    factors = [of.of_root for of in shares[0] if of.of_root is not None]
    assert torch.equal(factors[0].grad, factors[1].grad)
    assert len({factor.grad.data_ptr() for factor in factors}) == len(factors)


def test_a_backward_pass_within_autocast():
    shares, types, scales = layer()
    nums_dst = [NUM_DST[t] for t in types]
    weights = [of.of_neighbors for several in shares for of in several]
    expected = torch.autograd.grad(sum(o.sum() for o in sums(shares, nums_dst, scales)), weights)
    out = sum(o.sum() for o in sums(shares, nums_dst, scales))
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(out, weights)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
