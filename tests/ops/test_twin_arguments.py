"""Twins take the arguments that operators take: several batches at once, and defaults."""

import pytest
import reference
import torch
from helpers.graphs import random_graph, random_ids

from torch_gnnscale import ops


@pytest.mark.parametrize("ends", [[0, 20, 20, 23, 40], [0, 40], [0, 1, 40]])
def test_requests_of_several_keys(ends):
    graph, node = random_graph(100, 8, seed=8).relations(), random_ids(100, 40, seed=9)
    arguments = (graph, node, ends, [5, -6, 7, 1 << 40][: len(ends) - 1], 1, 3)
    for found, expected in zip(ops.pick_neighbors(*arguments), reference.pick_neighbors(*arguments), strict=True):
        assert torch.equal(found, expected)


def test_edges_begin_with_the_first_unless_it_is_said():
    arguments = (100, 20, 3, (0.57, 0.19, 0.19))
    assert torch.equal(reference.rmat_edges(*arguments), ops.rmat_edges(*arguments))
