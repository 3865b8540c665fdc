"""Disjoint trees that several threads sample in blocks are laid out as the twin lays them out, bit for bit."""

import pytest
import reference
import torch
from helpers.graphs import assert_same, graph_of_degrees, random_ids
from helpers.sampling_cases import random_case, starts_of
from helpers.slow import SLOW

from torch_gnnscale import ops


def many_trees(number: int) -> tuple[tuple, dict]:
    """A random case of disjoint trees with so many seeds, of all its types, that threads share them out."""
    arguments, options = random_case(number)
    graph, _, fanouts, key = arguments
    generator = torch.Generator().manual_seed(number)
    seeds = [random_ids(size, 17 + 30 * ((number + t) % 5), seed=t) for t, size in enumerate(graph.sizes)]
    if options["seed_time"] is not None:
        options["seed_time"] = [torch.randint(22, (len(of),), generator=generator) for of in seeds]
    if options["seed_start_time"] is not None:
        options["seed_start_time"] = [starts_of(len(of), generator) for of in seeds]
    options |= {"disjoint": True, "subgraph": "directional"}
    # The twin takes long for trees of many nodes.
    fanouts = [[min(fanout, 5) if fanout >= 0 else 5 for fanout in of] for of in fanouts]
    return (graph, seeds, fanouts, key), options


@pytest.mark.parametrize("block", [*range(3), *map(SLOW, range(3, 12))])
def test_any_relations(block):
    for number in range(8 * block, 8 * block + 8):
        arguments, options = many_trees(number)
        expected = reference.sample_neighbors(*arguments, **options)
        for threads in (1, 2, 3):
            assert_same(ops.sample_neighbors(*arguments, **options, threads=threads), expected)


def test_an_error_in_a_block_is_raised():
    graph = graph_of_degrees([4] * 200, seed=1)
    broken = ops.PreparedNeighbors(ops.relations([graph.colptr], [graph.row + 150]), [3, 2], disjoint=True)
    with pytest.raises(RuntimeError, match="the graph is malformed"):
        broken.sample([torch.arange(200)], 1, threads=2)
