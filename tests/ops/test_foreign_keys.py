"""Disjoint trees in graphs of foreign keys, where a row points to at most one row of another table: relations whose
sources all differ are relabelled in a way of their own, and equal the twin's, bit for bit."""

import random

import pytest
import reference
import torch
from helpers.graphs import assert_same, random_ids
from helpers.sampling_cases import INDEX, pairs_of, starts_of, times_of
from helpers.slow import SLOW

from torch_gnnscale import ops


def pointers(sources: int, destinations: int, generator: torch.Generator) -> torch.Tensor:
    """The edges (source, destination) of a key of a table with ``sources`` rows, some of which is missing, sorted by
    destination."""
    points_to = torch.randint(-1, destinations, (sources,), generator=generator)
    source = torch.randperm(sources, generator=generator)
    source = source[points_to[source] >= 0]
    order = torch.argsort(points_to[source], stable=True)
    return torch.stack([source, points_to[source]])[:, order]


def random_database(number: int, **chosen: bool) -> tuple[tuple, dict]:
    """Arguments of a sample: tables, keys between them and their reverses, and one relation that is no key."""
    rng, generator = random.Random(number), torch.Generator().manual_seed(number)
    sizes = [rng.choice([1, 4, 30, 120]) for _ in range(rng.choice([1, 2, 3]))]
    timed = rng.random() < 0.6
    types = range(len(sizes))
    src_type, dst_type, edges = [], [], []
    for _ in range(rng.choice([1, 2, 4])):
        src, dst = rng.choice(types), rng.choice(types)
        key = pointers(sizes[src], sizes[dst], generator)
        if rng.random() < 0.2:  # no key: the first row has two edges
            key = torch.cat([key, torch.tensor([[0], [sizes[dst] - 1]])], 1)
        src_type += [src, dst]
        dst_type += [dst, src]
        edges += [key, key.flip(0)[:, torch.argsort(key[0], stable=True)]]
    colptrs, rows, times, excluded = [], [], [], []
    for src, dst, (row, col) in zip(src_type, dst_type, edges, strict=True):
        counts = torch.bincount(col, minlength=sizes[dst])
        colptrs.append(torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]))
        rows.append(row.to(rng.choice(INDEX)))
        times.append(times_of(colptrs[-1], generator) if timed and rng.random() < 0.8 else None)
        excluded.append(pairs_of(6, sizes[src], sizes[dst], generator) if rng.random() < 0.3 else None)
    graph = ops.relations(colptrs, rows, time=times, src_type=src_type, dst_type=dst_type, sizes=sizes)
    seeds = [random_ids(size, rng.choice([0, 3, 40]), seed=size) for size in sizes]
    fanouts = [[rng.choice([-1, 1, 3, 8]) for _ in range(3)] for _ in rows]
    options = {
        "exclude": excluded, "disjoint": True, "layers": rng.random() < 0.3, "last": rng.random() < 0.3,
        "replace": rng.random() < 0.2, "with_col": rng.random() < 0.5, "seed_time": None, "seed_start_time": None,
    }  # fmt: skip
    if not options["layers"]:
        options["subgraph"] = rng.choice(["directional", "directional", "bidirectional", "induced"])
    if timed:
        options["seed_time"] = [torch.randint(22, (len(of),), generator=generator) for of in seeds]
        if rng.random() < 0.4:
            options["seed_start_time"] = [starts_of(len(of), generator) for of in seeds]
    return (graph, seeds, fanouts, rng.getrandbits(62)), options | chosen


@pytest.mark.parametrize("block", [*range(4), *map(SLOW, range(4, 12))])
def test_random_databases(block):
    for number in range(15 * block, 15 * block + 15):
        arguments, options = random_database(number)
        expected = reference.sample_neighbors(*arguments, **options)
        for threads in (1, 3):
            assert_same(ops.sample_neighbors(*arguments, **options, threads=threads), expected)


@pytest.mark.parametrize("strided", [False, True])
def test_a_source_that_comes_twice_is_found_once(strided):
    """Nodes 1 and 2 of two columns of one tree: the relation's sources differ but for one."""
    colptr, row = torch.tensor([0, 2, 4, 4, 4]), torch.tensor([1, 2, 2, 3])
    if strided:
        row = torch.stack([row, row.flip(0)], 1)[:, 0]
    key = ops.relations([torch.tensor([0, 1, 2, 2, 2])], [torch.tensor([1, 0])], sizes=[4])
    graph = ops.relations([colptr], [row], sizes=[4])
    for of in (graph, key):
        arguments = (of, [torch.tensor([0, 1])], [-1, -1, -1], 1)
        assert_same(
            ops.sample_neighbors(*arguments, disjoint=True), reference.sample_neighbors(*arguments, disjoint=True)
        )


@pytest.mark.parametrize("bad", [64, 65, 1 << 40, -1])
def test_a_key_to_rows_that_are_not_there(bad):
    """Ids outside the table are found where they are read; no bit is looked up for them."""
    colptr, row = torch.arange(65), torch.arange(64)
    row[1] = bad
    graph = ops.relations([colptr], [row], sizes=[64])
    with pytest.raises(RuntimeError, match=rf"the graph is malformed: row\[1\] = {bad} "):
        ops.sample_neighbors(graph, [torch.tensor([0, 1])], [1, 1], 1, disjoint=True)
