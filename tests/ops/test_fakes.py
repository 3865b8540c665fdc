"""Fakes of operators that look at values, which opcheck cannot judge, and a graph that is compiled by a fake."""

import pytest
import torch
from helpers.graphs import random_ids
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torch_gnnscale import ops

OPS = torch.ops.gnnscale


def test_fakes_have_the_shapes_and_types_of_the_real_ones():
    calls = [
        lambda: ops.random_bits(5, 1),
        lambda: ops.random_bits(0, 1),
        lambda: ops.permutation(7, 1),
        lambda: ops.rmat_edges(9, 5, 1, (0.25, 0.25, 0.25)),
        lambda: ops.map_file(__file__, 3, 50),
        lambda: ops.empty_bytes(5),
        lambda: OPS.sample_negatives.default(7, None, 3, *[None] * 3, 3, *[None] * 7, 1, 0)[0],
    ]
    for call in calls:
        with FakeTensorMode():
            fake = call()
        real = call()
        assert type(fake) is not type(real)
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
        assert fake.stride() == real.stride()


def test_fakes_of_new_nodes_have_trees_only_with_trees():
    ids = torch.tensor([3, 1, 3])
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        given = mode.from_tensor(ids)
        without, within = OPS.relabel.default(given, given, None, None), OPS.relabel.default(*[given] * 4)
    assert without[2].shape == OPS.relabel.default(ids, ids, None, None)[2].shape == (0,)
    assert within[2].shape == within[1].shape


def test_the_counts_of_a_cut_have_one_size_where_nothing_is_computed():
    tensors = torch.tensor([4, 7, 9]), torch.tensor([0, 2, 2, 2]), torch.tensor([1, 2]), torch.tensor([0, 1, 0])
    *_, expected = OPS.cut_batch(tensors[0], [1, 2, 0], *tensors[1:], 3, 0)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        node, *rest = (mode.from_tensor(tensor) for tensor in tensors)
        *_, found = OPS.cut_batch(node, [1, 2, 0], *rest, 3, 0)
    assert found.shape == expected.shape


@pytest.mark.slow
def test_gather_rows_compiles_to_one_graph():
    def model(x, index):
        return OPS.gather_rows(x, index, 0).relu().sum(1)

    x, index = torch.randn(20, 4, requires_grad=True), random_ids(20, 8)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, index), model(x, index))
    (ours,) = torch.autograd.grad(compiled(x, index).sum(), x)
    (theirs,) = torch.autograd.grad(model(x, index).sum(), x)
    assert torch.equal(ours, theirs)


@pytest.mark.slow
def test_gather_rows_with_its_checks_compiles_to_one_graph():
    def model(x, index):
        return ops.gather_rows(x, index, 1, check=False).relu().sum(1)

    x, index = torch.randn(20, 4), random_ids(20, 8)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, index), model(x, index))
