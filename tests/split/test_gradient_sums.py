"""Gradients summed over ranks, by every way in which they travel."""

import pytest
import torch
from helpers.cluster import cluster
from helpers.cpu_as_gpu import OnTheCPU
from helpers.slow import SLOW, quick
from helpers.transports import ended, made
from torch import distributed as dist

from torch_gnnscale.split.connection import GradientSum

WAYS = ["staged", "all_to_all", "from gpu to gpu", "peers", "peers, one kernel"]
DTYPES = [torch.float32, torch.float64, torch.float16]


def gradients(rank, step):
    """Of nine parameters; those that a rank lacks are None, and one that all lack."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    lacks = [(number + rank + step) % 4 == 0 or number == 8 for number in range(9)]
    shapes = [(7, 3), (), (5,), (0, 2), (4, 1, 2), (300,), (1,), (2, 2), (3,)]
    made_of = [torch.randn(shape, generator=generator).to(DTYPES[n % 3]) for n, shape in enumerate(shapes)]
    return made_of, [None if lack else grad for lack, grad in zip(lacks, made_of, strict=True)]


def totals(kind, steps):
    """The sums over ranks of some steps, and the rounds of each. The first step does not know who has gradients."""
    transport, rank, found = made(kind), dist.get_rank(), []
    sums = GradientSum(transport)
    for step in range(steps):
        parameters, own = gradients(rank, step)
        before = transport.exchange.traffic["gradients"].rounds
        with OnTheCPU():  # where no memory can be pinned
            total = sums._totals([torch.nn.Parameter(entry) for entry in parameters], own)
        found.append((total, transport.exchange.traffic["gradients"].rounds - before))
    ended(transport)
    return found


def in_order(world, step):
    """((g_0 + g_1) + g_2) + ..., where a rank without a gradient adds zeros."""
    of_ranks = [gradients(rank, step) for rank in range(world)]
    expected = []
    for number, like in enumerate(of_ranks[0][0]):
        grads = [own[number] for _, own in of_ranks]
        total = None
        if any(grad is not None for grad in grads):
            first, *others = [torch.zeros_like(like) if grad is None else grad for grad in grads]
            total = first.clone()
            for other in others:
                total += other
        expected.append(total)
    return expected


@pytest.mark.parametrize("kind", quick(WAYS, "from gpu to gpu"))
@pytest.mark.parametrize("world", [3, SLOW(2)])
def test_sums_are_those_in_the_order_of_ranks(kind, world):
    """Bit for bit, on all ranks; the same function sums on GPUs."""
    for found in cluster(world).run(totals, kind, 4):
        for step, (ours, rounds) in enumerate(found):
            for mine, expected in zip(ours, in_order(world, step), strict=True):
                assert (mine is None) == (expected is None)
                assert mine is None or (mine.dtype == expected.dtype and torch.equal(mine, expected))
            of_kind = 1 if world == 2 else 2
            assert rounds == (1 + 3 if step == 0 else 3) * of_kind


def mask_alone(kind):
    """The devices and sizes of what is summed where gradients have a way of their own on another device."""
    transport, seen = made(kind), []
    sums = GradientSum(transport)
    summed = sums._sum
    sums._sum = lambda flat: (
        seen.append((flat.device.type, len(flat))) or (summed(flat) if flat.device.type == "cpu" else flat)
    )
    parameters = [torch.nn.Parameter(torch.ones(3, device="meta")), torch.nn.Parameter(torch.ones(2, device="meta"))]
    for _ in range(2):
        total = sums._totals(parameters, [parameters[0].detach(), None])
        assert total[1] is None
        assert total[0].shape == (3,)
    ended(transport)
    return seen


def test_what_the_host_asks_never_travels_with_gradients_of_a_device():
    """Which gradients there are travels in host memory, so that the host does not wait for the device."""
    assert cluster(2).run(mask_alone, "peers") == [[("cpu", 2), ("meta", 3), ("cpu", 2), ("meta", 3)]] * 2
