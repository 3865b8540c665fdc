"""How many there may be: as many as native code has room for, and not one more."""

import re
from pathlib import Path

import pytest
import reference
import torch
from helpers.graphs import graph_of_degrees
from reference import draws
from torch import Tensor

from torch_gnnscale import ops
from torch_gnnscale.matrix.algebra import WORD
from torch_gnnscale.ops import graph_arguments, layer_drawing, random_draws, ranks, rows, tiers
from torch_gnnscale.ops.bulk import sample_bulk

SOURCES = Path(__file__).parents[2] / "cuda"
GRAPH = graph_of_degrees([2, 1, 3])
SEEDS = torch.tensor([0, 2])


@pytest.mark.skipif(not SOURCES.is_dir(), reason="needs the sources")
@pytest.mark.parametrize(
    ("file", "constant", "value"),
    [
        ("tier.h", "kMaxTiers", tiers.MAX_TIERS),
        ("tier.h", "kMaxSegments", tiers.MAX_SEGMENTS),
        ("pick.h", "kMaxHops", graph_arguments.MAX_HOPS),
        ("pick.h", "kMaxRelations", graph_arguments.MAX_RELATIONS),
        ("shuffle/shuffle.h", "kMaxShuffleParts", ranks.MAX_TABLES),
        ("gather/gather_cuda.h", "kMaxRowBytes", rows.MAX_ROW_BYTES),
    ],
)
def test_native_code_has_the_same(file, constant, value):
    found = re.search(
        rf"constexpr \w+ (?:\w+ = [^,;]+, )*{constant} = (\d+)(?: << (\d+))?[,;]", (SOURCES / file).read_text()
    )
    assert int(found[1]) << int(found[2] or 0) == value


def test_what_is_documented():
    assert (ops.MAX_COUNT, ops.MAX_BATCHES, ops.MAX_STEPS, ops.MAX_PARTS) == (2**40, 2**24 - 1, 2**12, 2**16)
    assert (ranks.MAX_TREES, layer_drawing.MAX_DRAWN, random_draws.MAX_WEIGHTED) == (2**31, 2**31, 2**30)
    assert graph_arguments.MAX_RELATIONS == 1024
    assert int(WORD) == draws.WORD == 2**32 - 1


def shuffled(count: int) -> Tensor:
    part, row = torch.tensor([count - 1, 0]), torch.tensor([1, 0])
    return ops.shuffle_rows(None, [torch.arange(2.0) + 2 * k for k in range(count)], part, row, None)


def gathered(count: int, spread: list[int] | None = None) -> Tensor:
    return ops.gather_tiers(
        [torch.full((1,), float(k)) for k in range(count)], torch.tensor([count - 1]), spread=spread
    )


def relations(count: int):
    return ops.relations([GRAPH.colptr] * count, [GRAPH.row] * count)


def layers(num_nodes: list[int]):
    return ops.sample_layers(GRAPH.relations(), SEEDS, num_nodes, 1, ops.LayerDrawing("ladies"))


def bulk(parts: int):
    return sample_bulk(GRAPH.colptr, [GRAPH.row, *[GRAPH.row[:0]] * (parts - 1)], SEEDS, [0, 2], [2], [1])


def spread_bulk(segments: int):
    sizes = [7 - k // 31 for k in range(segments)]
    graph = graph_of_degrees([sum(sizes)])
    return sample_bulk(graph.colptr, list(graph.row.split(sizes)), SEEDS[:1], [0, 1], [2], [1], spread=[segments])


def trees(last: int):
    return ops.relabel(SEEDS, SEEDS, known_tree=torch.tensor([0, 0]), tree=torch.tensor([0, last]))


def cut(num_hops: int):
    node = torch.arange(num_hops + 1)
    row, owner = torch.empty(0, dtype=torch.int64), torch.zeros(num_hops + 1, dtype=torch.int32)
    return ops.cut_batch(node, [1] * (num_hops + 1), torch.zeros(num_hops + 1, dtype=torch.int64), row, owner, 2, 0)


def pagerank(iterations: int):
    return ops.reverse_pagerank(GRAPH.colptr, GRAPH.row, torch.ones(3, dtype=torch.int64), iterations)


def labels(**options: int):
    """Of nodes that may not move."""
    side = ops.Side(GRAPH.colptr, GRAPH.row, 0, 0, 3)
    weight = torch.ones(3, 1, dtype=torch.int64)
    return ops.propagate_labels([side], 3, torch.arange(3), weight, [1], key=1, least=0, **options)


def picks(hop: int, fanout: int):
    return ops.pick_neighbors(GRAPH.relations(), SEEDS, [0, 2], [1], hop, fanout)


def parts(count: int):
    none, owner = torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
    return ops.cut_batch(SEEDS[:1], [1, 0], torch.zeros(2, dtype=torch.int64), none, owner, count, 0)


@pytest.mark.parametrize(
    ("call", "most", "message"),
    [
        (pagerank, 2**16, "iterations: expected 0 <= iterations <= 65536, found 65537"),
        (lambda count: labels(rounds=count), 2**16, "rounds: expected 0 <= rounds <= 65536, found 65537"),
        (lambda count: labels(steps=count), 2**12, "steps: expected 1 <= steps <= 4096, found 4097"),
        (lambda hop: picks(hop, 2), 63, "hop: expected 0 <= hop <= 63, found 64"),
        (lambda fanout: picks(0, fanout), 2**17, "fanouts[0]: expected -1 (all) or 0..131072, found 131073"),
        (parts, 2**16, "parts: expected 1 <= parts <= 65536, found 65537"),
        (shuffled, 64, "parts: expected 1 to 64 tables, found 65"),
        (gathered, 4, "spread: expected 1 to 4 tiers of 5 segments in all, found [1, 1, 1, 1, 1]"),
        (lambda count: gathered(count, [count]), 32, "segments: expected 1 to 32, found 33"),
        (relations, 1024, "colptr: expected at most 1024 relations, found 1025"),
        (lambda count: layers([1] * count), 64, "num_nodes: expected at most 64 hops, found 65"),
        (lambda count: layers([count]), 2**31 - 1,
         "num_nodes[0]: expected -1 <= num_nodes[0] <= 2147483647, found 2147483648"),
        (bulk, 4, "row: expected 1 to 4 parts, found 5"),
        (spread_bulk, 32, "row: expected 1 to 32, found 33"),
        (trees, 2**31 - 1, "tree[1] = 2147483648 is out of range: expected trees in [0, 2147483648)"),
        (cut, 64, "num_nodes: expected 2 to 65 numbers, found 66"),
    ],
)  # fmt: skip
def test_one_more_is_refused(call, most, message):
    call(most)
    with pytest.raises((ValueError, IndexError), match=f"^{re.escape(message)}$"):
        call(most + 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shuffled(0), "parts: expected 1 to 64 tables, found 0"),
        (lambda: gathered(0), "segments: expected 1 to 32, found 0"),
        (lambda: sample_bulk(GRAPH.colptr, [], SEEDS, [0, 2], [2], [1]), "row: expected 1 to 4 parts, found 0"),
        (lambda: cut(0), "num_nodes: expected 2 to 65 numbers, found 1"),
    ],
)
def test_none_is_refused(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def test_places_are_of_32_bits_where_those_hold_them():
    assert [ops.place_dtype(count) for count in (0, 1 << 31, (1 << 31) + 1)] == [torch.int32, torch.int32, torch.int64]


@pytest.mark.parametrize(
    ("largest", "dtype"),
    [((1 << 31) - 1, torch.int32), (1 << 31, torch.int64), (1 << 40, torch.int64)],
)
@pytest.mark.parametrize("module", [ops, reference])
def test_edges_of_another_order_are_as_wide_as_their_ids(module, largest, dtype):
    edge_id = torch.arange(largest - 5, largest + 1)
    _, edges = module.renumber(GRAPH.colptr, GRAPH.row, torch.tensor([2, 0, 1]), edge_id=edge_id)
    assert edges.dtype == dtype
    assert edges[:, 1].sort().values.tolist() == edge_id.tolist()
