"""torch.ops.gnnscale without its Python wrappers: what would read or write memory elsewhere is a RuntimeError."""

import gc
from contextlib import suppress

import pytest
import torch
from helpers.graphs import random_graph

from torch_gnnscale import ops

OPS = torch.ops.gnnscale
GRAPH = random_graph(20, 3, seed=1)
COLPTR, ROW = GRAPH.colptr, GRAPH.row
EDGES, NODES = len(ROW), torch.arange(20)
X = torch.arange(60.0).view(20, 3)
BYTES = torch.zeros(60, dtype=torch.uint8)
FAR = 1 << 40
SIDES = ([COLPTR], [ROW], [0, 0, 20])
NONE = [None]


def ids(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


def broken(tensor, at, value):
    tensor = tensor.clone()
    tensor[at] = value
    return tensor


def held(colptr=COLPTR, row=ROW, sizes=(20,), reverse=(0,), edge_id=None, weight=None):
    return OPS.hold_relations([colptr], [row], [edge_id], [weight], NONE, [0], [0], list(reverse), list(sizes))


def sampled(seeds=NODES, fanouts=((2,),), **options):
    limits = [of for name in ("seed_time", "seed_start_time", "exclude") for of in options.get(name, [None])]
    return OPS.sample_neighbors(held(), torch.tensor(fanouts), [seeds], limits if options else [], [1], 0, 1)


def of_two_types(seed_time):
    """Trees of seeds of two types; edges have no times, and some are left out."""
    graph = OPS.hold_relations([COLPTR], [ROW], NONE, NONE, NONE, [0], [0], [0], [20, 5])
    exclude, disjoint = [torch.zeros(2, 3, dtype=torch.int64)], 1 << 1
    limits = [*seed_time, None, None, *exclude]
    return OPS.sample_neighbors(graph, torch.tensor([[2]]), [NODES, ids(0, 1)], limits, [1], disjoint, 1)


def picked(colptr=COLPTR, row=ROW, node=NODES, hop=0, fanout=2, edge_id=None):
    return OPS.pick_neighbors(colptr, row, edge_id, None, None, 0, 20, node, [0, len(node)], [1], None, None, None,
                              0, hop, fanout, 0, 1)  # fmt: skip


def negatives(count=4, size=20, node=None, weight=None, edges=(None, None), src=None):
    return OPS.sample_negatives(count, src, 20, None, None, None, size, node, None, weight, None, None, *edges, 1, 1)


def labels(label=NODES, weight=None, group=None, sides=SIDES, steps=2, rounds=1):
    weight = torch.ones(20, 1, dtype=torch.int64) if weight is None else weight
    return OPS.propagate_labels(*sides, 20, group, label, weight, [5], [0], rounds, steps, 1, 1, 1)


def cut(owner=None, parts=2, row=None, colptr=None):
    owner = torch.zeros(3, dtype=torch.int64) if owner is None else owner
    row, colptr = ids(1, 2) if row is None else row, ids(0, 2) if colptr is None else colptr
    return OPS.cut_batch(ids(4, 7, 9), [1, 2], colptr, row, owner, parts, 0)


def reversed_edges(colptr=COLPTR, row=ROW, other=ROW, edge_id=None, times=NONE * 2, size=EDGES):
    return OPS.reverse_edges(colptr, row, None, times[0], COLPTR, other, edge_id, times[1], size, True, 1)


def tables(spread=(1,), layout=(1, 0, 0), place=None, index=NODES, counts=()):
    return OPS.gather_tables([X], list(spread), list(layout), [place], [index], list(counts), 1)


def weighed(row):
    return OPS.weigh_edges(ids(1, 1), row, torch.ones(2).double(), None, None, 0, 0)


FAR_SIDES = ([COLPTR], [broken(ROW, 0, 20)], [0, 0, 20])  # by one

# Calls that are right, and the same calls with something wrong.
RIGHT = {
    "hold_relations": held, "times of two types": lambda: of_two_types([NODES, ids(1, 2)]),
    "sample_neighbors": sampled, "pick_neighbors": picked, "sample_negatives": negatives,
    "propagate_labels": labels, "cut_batch": cut, "reverse_edges": reversed_edges,
    "gather_rows": lambda: OPS.gather_rows(X, NODES, 1), "aggregate": lambda: aggregate(), "gather_tables": tables,
}  # fmt: skip


def aggregate(ptr=COLPTR, node=ROW, x=X, weight=None, edge=None, num_edges=EDGES):
    return OPS.aggregate(ptr, node, edge, num_edges, x, None, weight, "sum", 1)


WRONG = {
    "a row outside": lambda: OPS.gather_rows(X, ids(3, 20), 1),
    "a row far outside": lambda: OPS.gather_rows(X, ids(3, FAR), 1),
    "a negative row": lambda: OPS.gather_rows(X, ids(-1, dtype=torch.int32), 1),
    "rows of none": lambda: OPS.gather_rows(X[:0], ids(0), 1),
    "rows that are not contiguous": lambda: OPS.gather_rows(X.t(), ids(0), 1),
    "ids that are not contiguous": lambda: OPS.gather_rows(X, NODES[::2], 1),
    "a row outside of one of several": lambda: OPS.gather_each([X, X[:3]], [ids(2, 3)], [2], 1),
    "several that are not contiguous": lambda: OPS.gather_each([X, X.t()], [ids(0)], [2], 1),
    "fewer indices than counts of tables": lambda: OPS.gather_each([X], [ids(0)], [1, 0], 1),
    "fewer tables than are counted": lambda: OPS.gather_each([X], [ids(0), ids(0)], [1, 1], 1),
    "a negative count of tables": lambda: OPS.gather_each([X], [ids(0), ids(0)], [-1, 2], 1),
    "more tables than are counted": lambda: OPS.gather_each([X, X], [ids(0)], [1], 1),
    "a nested row outside": lambda: OPS.gather_nested(NODES, ids(0, 2, 3), 1, ids(2)),
    "a nested row far outside": lambda: OPS.gather_nested(NODES, ids(0, 2, 3), 2, ids(FAR)),
    "nested values outside": lambda: OPS.gather_nested(NODES, ids(0, 2, FAR), 1, ids(1)),
    "nested values that descend": lambda: OPS.gather_nested(NODES, ids(0, 2, 1), 1, ids(1)),
    "nested cells of other columns": lambda: OPS.gather_nested(NODES, ids(0, 2), 2, ids(0)),
    "nested rows of no columns": lambda: OPS.gather_nested(NODES, ids(0), 0, ids()),
    "nested int32 rows": lambda: OPS.gather_nested(NODES, ids(0, 2, 3), 1, ids(0, dtype=torch.int32)),
    "packed rows outside": lambda: OPS.pack_rows([X], [ids(FAR)], [0], BYTES[:12], 1),
    "packed rows that do not fit": lambda: OPS.pack_rows([X], [ids(1, 2)], [0], BYTES[:12], 1),
    "packed rows before others": lambda: OPS.pack_rows([X, X], [ids(1), ids(2)], [12, 0], BYTES[:40], 1),
    "fewer places than tables": lambda: OPS.pack_rows([X], [ids(1)], [], BYTES[:12], 1),
    "packed int32": lambda: OPS.pack_rows([X], [ids(1, dtype=torch.int32)], [0], BYTES[:12], 1),
    "joined own rows": lambda: OPS.join_rows(X, torch.zeros(9, dtype=torch.uint8), ids(), ids(20), 1),
    "joined other rows": lambda: OPS.join_rows(X, torch.zeros(24, dtype=torch.uint8), ids(0), ids(-2), 1),
    "joined bytes": lambda: OPS.join_rows(X, torch.zeros(24, dtype=torch.uint8), ids(13), ids(-1), 1),
    "joined bytes far away": lambda: OPS.join_rows(X, torch.zeros(24, dtype=torch.uint8), ids(FAR), ids(-1), 1),
    "joined floats": lambda: OPS.join_rows(X, torch.zeros(24), ids(0), ids(-1), 1),
    "a place outside": lambda: OPS.gather_tiers([X], [1], NODES, ids(20), False, X.dtype, None, 1),
    "a tier's row outside": lambda: OPS.gather_tiers([X], [1], None, ids(20), False, X.dtype, None, 1),
    "segments of two widths": lambda: OPS.gather_tiers([X, X[:, :2]], [1, 1], None, ids(30), False, X.dtype, None, 1),
    "segments of two types": lambda: OPS.gather_tiers([X, X.half()], [1, 1], None, ids(30), False, X.dtype, None, 1),
    "segments not dealt": lambda: OPS.gather_tiers([X, X[:3]], [2], None, ids(9), False, X.dtype, None, 1),
    "no segments": lambda: OPS.gather_tiers([X], [0], None, ids(), False, X.dtype, None, 1),
    "a narrower type": lambda: OPS.gather_tiers([X], [1], None, ids(0), False, torch.half, None, 1),
    "counts of other tiers": lambda: OPS.gather_tiers([X], [1], None, ids(0), False, X.dtype, ids(0), 1),
    "a table's place outside": lambda: tables(place=ids(20, 20), index=ids(1)),
    "a table's row outside": lambda: tables(index=ids(20)),
    "tables without segments": lambda: tables(spread=[]),
    "tables of too many tiers": lambda: tables(layout=[2, 0, 0]),
    "tables of too many segments": lambda: tables(spread=[1, 1]),
    "a table of another width": lambda: tables(layout=[1, 0, 2]),
    "a table that is not widened": lambda: tables(layout=[1, 0, 8]),
    "a layout of more tables": lambda: tables(layout=[1, 0, 0] * 2),
    "counts of other tables": lambda: tables(counts=[ids(0, 0).view(1, 2)] * 2),
    "shuffled rows": lambda: OPS.shuffle_rows(None, [X], None, ids(20), None, 1),
    "shuffled rows of a shorter table": lambda: OPS.shuffle_rows(None, [X, X[:2]], ids(1), ids(2), None, 1),
    "shuffled tables": lambda: OPS.shuffle_rows(None, [X], ids(1), ids(0), None, 1),
    "shuffled pointers": lambda: OPS.shuffle_rows(None, [X], None, ids(0), ids(0, 3), 1),
    "shuffled widths": lambda: OPS.shuffle_rows(None, [X, X[:, :2]], ids(1), ids(0), None, 1),
    "a base of fewer rows": lambda: OPS.shuffle_rows(X[:1], [X], None, ids(0, 1), None, 1),
    "too few ids of rows": lambda: OPS.dropout_rows(X, ids(0), 1, 5, 2.0, 1),
    "a held pointer of other nodes": lambda: held(sizes=[21]),
    "held int32 pointers": lambda: held(colptr=COLPTR.int()),
    "a reverse that is none": lambda: held(reverse=[7]),
    "ids of fewer edges": lambda: held(edge_id=ROW[1:]),
    "float weights": lambda: held(weight=torch.ones(EDGES)),
    "seeds far outside": lambda: sampled(ids(FAR)),
    "float seeds": lambda: sampled(torch.ones(2)),
    "a large fanout": lambda: sampled(fanouts=((1 << 40,),)),
    "many hops": lambda: sampled(fanouts=((1,) * 65,)),
    "a vector of exclusions": lambda: sampled(exclude=[ids(1, 2)]),
    "fewer times than seeds": lambda: sampled(seed_time=[ids(1)]),
    "fewer starts than seeds": lambda: sampled(seed_time=[NODES], seed_start_time=[ids(1)]),
    "starts without ends": lambda: sampled(seed_start_time=[NODES]),
    "starts of two types": lambda: sampled(seed_time=[NODES], seed_start_time=[NODES, NODES]),
    "times without trees": lambda: sampled(seed_time=[NODES], exclude=[torch.zeros(2, 3, dtype=torch.int64)]),
    "times of one of two types": lambda: of_two_types([None, ids(1, 2)]),
    "picks of no column": lambda: picked(node=ids(20)),
    "picks of a malformed column": lambda: picked(colptr=broken(COLPTR, 3, FAR)),
    "picks in a hop too many": lambda: picked(hop=64),
    "a fanout below -1": lambda: picked(fanout=-2),
    "ids of fewer picks": lambda: picked(edge_id=ROW[1:]),
    "trees of fewer ids": lambda: OPS.relabel(NODES, NODES, NODES[:3], NODES),
    "int32 trees": lambda: OPS.relabel(NODES, NODES, NODES.int(), NODES.int()),
    "int32 known nodes": lambda: OPS.relabel(NODES.int(), NODES, None, None),
    "candidates that are not there": lambda: negatives(size=FAR, weight=NODES),
    "as many candidates as nodes": lambda: negatives(size=21, node=NODES),
    "a negative number of links": lambda: negatives(count=-5),
    "more links than memory": lambda: negatives(count=1 << 62),
    "edges without ends": lambda: negatives(edges=(COLPTR, None)),
    "sources of other links": lambda: negatives(src=NODES),
    "neighbors that are no nodes": lambda: labels(sides=FAR_SIDES),
    "contracted neighbors that are no nodes": lambda: OPS.contract(*FAR_SIDES, None, 20, 99, 1),
    "labels outside": lambda: labels(label=broken(NODES, 0, FAR)),
    "weights of fewer groups": lambda: labels(weight=torch.ones(3, 1, dtype=torch.int64)),
    "groups outside": lambda: labels(group=broken(NODES, 2, FAR)),
    "sides of other nodes": lambda: labels(sides=([COLPTR], [ROW], [5, 0, 20])),
    "sides that a range lacks": lambda: labels(sides=([COLPTR], [ROW], [0, 0])),
    "neighbors of other nodes": lambda: labels(sides=([COLPTR], [ROW], [0, 15, 20])),
    "no steps": lambda: labels(steps=0),
    "labels of endless rounds": lambda: labels(rounds=FAR),
    "contracted groups outside": lambda: OPS.contract(*SIDES, broken(NODES, 0, -1), 20, 99, 1),
    "transposed pointers": lambda: OPS.transpose(broken(COLPTR, -1, FAR), ROW, 20, 1),
    "renumbered twice": lambda: OPS.renumber(COLPTR, ROW, None, broken(NODES, 0, 19), NODES, True, 1),
    "renumbered outside": lambda: OPS.renumber(COLPTR, ROW, None, broken(NODES, 0, FAR), NODES, True, 1),
    "ranks of fewer nodes": lambda: OPS.renumber(COLPTR, ROW, None, NODES, NODES[:3], True, 1),
    "scores of fewer nodes": lambda: OPS.reverse_pagerank(COLPTR, ROW, NODES[:5], 1, 5, 9, 1),
    "scores of endless iterations": lambda: OPS.reverse_pagerank(COLPTR, ROW, NODES, FAR, 5, 9, 1),
    "scores over wrong pointers": lambda: OPS.reverse_pagerank(broken(COLPTR, 3, FAR), ROW, NODES, 1, 5, 9, 1),
    "a negative number of counts": lambda: OPS.count_ids(ROW, -1, 1),
    "ends of two types": lambda: OPS.coo_to_csc(ROW.long(), ROW.int(), 20, 20, True, 1),
    "fewer destinations": lambda: OPS.coo_to_csc(NODES, NODES[:5], 20, 20, True, 1),
    "reverses over a wrong pointer": lambda: reversed_edges(broken(COLPTR, 3, FAR)),
    "reverses of a source outside": lambda: reversed_edges(row=broken(ROW, 0, -1)),
    "reverses of other edges": lambda: reversed_edges(other=ROW[1:]),
    "reverses of another type": lambda: reversed_edges(other=ROW.int()),
    "times of one direction": lambda: reversed_edges(times=[ROW, None]),
    "more ids than int32 has": lambda: reversed_edges(size=FAR),
    "ids of fewer reverses": lambda: reversed_edges(edge_id=ROW[1:]),
    "pointers of nothing": lambda: OPS.first_malformed(ids(), 0, 1),
    "every second id": lambda: OPS.first_outside(NODES[::2], 20, 1),
    "entries outside": lambda: aggregate(node=broken(ROW, 0, 20)),
    "entries of a wrong pointer": lambda: aggregate(ptr=broken(COLPTR, -1, FAR)),
    "no pointer": lambda: aggregate(ptr=ids()),
    "no heads": lambda: aggregate(weight=torch.ones(EDGES, 0)),
    "weights of fewer edges": lambda: aggregate(weight=torch.ones(1, 1)),
    "rows in columns": lambda: aggregate(x=X.t()),
    "edges of another type": lambda: aggregate(edge=torch.arange(EDGES, dtype=torch.int16)),
    "products of fewer rows": lambda: OPS.edge_dot(COLPTR, ROW, None, X, X[:3], 1, 1),
    "products of no heads": lambda: OPS.edge_dot(COLPTR, ROW, None, X, X, 0, 1),
    "attention of 16 bits": lambda: OPS.edge_attention(COLPTR, ROW, X.half(), None, None, 0.2, 1),
    "attention of no heads": lambda: OPS.edge_attention(COLPTR, ROW, X[:, :0], None, None, 0.2, 1),
    "attention to a node outside": lambda: OPS.edge_attention(COLPTR, broken(ROW, 0, 20), X, None, None, 0.2, 1),
    "attention of fewer columns": lambda: OPS.edge_attention(COLPTR, ROW, X, X[:3], None, 0.2, 1),
    "attention of fewer entries": lambda: OPS.edge_attention(COLPTR, ROW, X, None, X[:3], 0.2, 1),
    "attention's gradient of fewer entries": lambda: OPS.edge_attention_backward(
        COLPTR, ROW, X, None, None, 0.2, X[:3], X[:3], 1
    ),
    "shares of fewer rows": lambda: OPS.share_of_extremes(COLPTR, ROW, X, X[:3], X, 1),
    "gradients of fewer rows": lambda: OPS.extreme_backward(COLPTR, ROW, None, EDGES, X, X, X[:3], 1),
    "scores of fewer candidates": lambda: OPS.choose_nodes(NODES, NODES[:3], 2, 0, 1, 0),
    "sources of int32": lambda: OPS.choose_edges(NODES.int(), ids(20), [0, 1], [1], 0, 3, 4),
    "more edges than sources": lambda: OPS.choose_edges(NODES, ids(21), [0, 1], [1], 0, 3, 4),
    "a column of less than no edges": lambda: OPS.choose_edges(NODES, ids(-1), [0, 1], [1], 0, 3, 4),
    "more columns than there are": lambda: OPS.choose_edges(NODES, ids(20), [0, 2], [1], 0, 3, 4),
    "corrections of float32": lambda: OPS.weigh_edges(ids(1), ids(0), torch.ones(1), None, None, 0, 0),
    "weights of rows that fall": lambda: weighed(ids(1, 0)),
    "weights of a row outside": lambda: weighed(ids(0, 2)),
    "an unknown method": lambda: OPS.sample_layers(held(), [NODES], None, [3], [1], [9, 0, 0, 0, 0], 0, 1),
    "int32 seeds of layers": lambda: OPS.sample_layers(held(), [NODES.int()], None, [3], [1], [0] * 5, 0, 1),
    "owners of no part": lambda: cut(owner=ids(0, FAR, 0)),
    "a batch's row outside": lambda: cut(row=ids(1, FAR)),
    "a batch's wrong pointer": lambda: cut(colptr=ids(0, 99)),
    "no parts": lambda: cut(parts=0),
    "a pool of fewer bytes than none": lambda: OPS.pool_limit(-1),
    "R-MAT of too many nodes": lambda: OPS.rmat_edges(0, 1, 1 << 62, [1, 2, 3], 1, 1),
    "R-MAT of more than memory": lambda: OPS.rmat_edges(0, 1 << 62, 4, [1, 2, 3], 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_calls(name):
    RIGHT[name]()


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(name):
    with pytest.raises(RuntimeError):
        WRONG[name]()


@pytest.mark.slow
def test_a_graph_is_released_by_its_own_number():
    """Whatever somebody has written over the number that a handle holds."""
    first, second = held(), held(reverse=[-1])
    second.copy_(first)
    del second
    gc.collect()
    expected = OPS.sample_neighbors(held(), torch.tensor([[2]]), [NODES], [], [1], 0, 1)
    found = OPS.sample_neighbors(first, torch.tensor([[2]]), [NODES], [], [1], 0, 1)
    assert all(map(torch.equal, found, expected))
    other = held()
    first.fill_(FAR)
    with pytest.raises(RuntimeError, match="expected what hold_relations returned and is still held"):
        OPS.sample_neighbors(first, torch.tensor([[2]]), [NODES], [], [1], 0, 1)
    del first
    gc.collect()
    found = OPS.sample_neighbors(other, torch.tensor([[2]]), [NODES], [], [1], 0, 1)
    assert all(map(torch.equal, found, expected))


# What NamedTuples say that nobody made ###############################################################################

CANDIDATES = ops.candidates(12)
WEIGHTED = ops.candidates(12, torch.arange(12.0))
LINKS = ops.edge_set(ids(1, 2), ids(3, 4), 12, 12)


@pytest.mark.parametrize(
    ("given", "edges", "message"),
    [
        (CANDIDATES._replace(size=100), None, "dst.size: expected 0 <= dst.size <= 12, found 100"),
        (CANDIDATES._replace(size=5), None, "dst: expected node and position, or neither and all 12 nodes, found 5"),
        (CANDIDATES._replace(num_nodes=-1), None, "dst.num_nodes: expected 0 <= dst.num_nodes <= 1099511627776, foun"),
        (CANDIDATES._replace(num_nodes=1 << 62), None, "dst.num_nodes: expected 0 <= dst.num_nodes <= 1099511627776"),
        (CANDIDATES._replace(time=ids(1)), None, "dst.time: expected shape (12,), found (1,)"),
        (WEIGHTED._replace(weight=ids(1)), None, "dst.weight: expected shape (11,), found (1,)"),
        (WEIGHTED._replace(position=None), None, "dst: expected node and position, or neither and all 12 nodes, foun"),
        (WEIGHTED._replace(position=ids(1)), None, "dst.position: expected shape (12,), found (1,)"),
        (CANDIDATES, LINKS._replace(ptr=ids()), "edges: expected those of 12 sources, found -1"),
        (CANDIDATES, LINKS._replace(ptr=torch.ones(13)), "edges.ptr: expected an int64 vector, found torch.float32"),
        (CANDIDATES, LINKS._replace(dst=torch.ones(2)), "edges.dst: expected int32 or int64 ids, found torch.float32"),
    ],
)
def test_forged_candidates(given, edges, message):
    with pytest.raises((TypeError, ValueError)) as caught:
        ops.sample_negatives(3, CANDIDATES, given, 1, edges=edges, seed_time=ids(1, 2, 3))
    assert str(caught.value).startswith(message)


def test_forged_numbers_in_candidates_are_not_followed():
    """Nor in edges: draws are wrong, and stay in memory."""
    far = torch.full((12,), FAR)
    for given in (
        WEIGHTED._replace(position=far),
        WEIGHTED._replace(weight=far[:11]),
        WEIGHTED._replace(node=far[:11]),
    ):
        for edges in (LINKS, LINKS._replace(ptr=torch.full((13,), FAR)), LINKS._replace(dst=ids(FAR, -FAR))):
            with suppress(ValueError):  # no link is valid
                ops.sample_negatives(50, CANDIDATES, given, 1, edges=edges)


@pytest.mark.parametrize("change", [{"sizes": [100]}, {"sizes": [-1]}, {"src_type": [3]}, {"row": [ROW.float()]}])
def test_forged_relations(change):
    graph = GRAPH.relations()._replace(**change)
    with pytest.raises(RuntimeError):
        ops.sample_neighbors(graph, [NODES], [2], 1)


def test_counts_that_would_not_end():
    scores = torch.zeros(20, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"^iterations: expected 0 <= iterations <= 65536, found 4611686018427387904$"):
        ops.reverse_pagerank(COLPTR, ROW, scores, 1 << 62)
    with pytest.raises(ValueError, match=r"^rounds: expected 0 <= rounds <= 65536, found 4294967295$"):
        ops.propagate_labels(
            [ops.Side(COLPTR, ROW, 0, 0, 20)], 20, NODES, NODES[:, None], [5], key=1, rounds=(1 << 32) - 1
        )
