"""What holds for every tensor that an operator takes: it may be strided, and one of another length is refused."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers.graphs import graph_of_degrees, random_ids
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from torch_gnnscale import ops

GRAPH = graph_of_degrees([*range(9)] * 4 + [2] * 4, seed=1)
EDGES = len(GRAPH.row)
BY_EDGE = torch.arange(EDGES)
TIMES = torch.cat([entry.sort().values for entry in random_ids(9, EDGES, 3).split(GRAPH.colptr.diff().tolist())])
WEIGHTS = ops.weight_sums(GRAPH.colptr, torch.arange(1.0, EDGES + 1))
NODES = random_ids(40, 12, 5)
X, Y = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(240.0).view(40, 6)
PAIRS = torch.tensor([[1, 2, 9], [3, 3, 4]])
SIDE = ops.Side(GRAPH.colptr, GRAPH.row, 0, 0, 40)
BATCH = ops.sample_neighbors(GRAPH.relations(), [torch.arange(9)], [3, 2], 1)
FASTGCN = ops.LayerDrawing("fastgcn")


def sampled(colptr, row, edge_id, weight, time, seeds, seed_time, seed_start_time, exclude):
    graph = ops.relations([colptr], [row], edge_id=[edge_id], weight=[weight], time=[time])
    options = {"seed_time": [seed_time], "seed_start_time": [seed_start_time], "exclude": [exclude], "disjoint": True}
    return ops.sample_neighbors(graph, [seeds], [3, 2], 7, **options)


def sampled_many(seeds, seed_time, seed_start_time, exclude):
    graph = ops.relations([GRAPH.colptr], [GRAPH.row], time=[TIMES])
    prepared = ops.PreparedNeighbors(graph, [3, 2], disjoint=True)
    return prepared.sample_many([[seeds]] * 2, [7, 8], [[seed_time]] * 2, [[seed_start_time], None], [[exclude], None])


def picked(colptr, row, edge_id, weight, time, node, tree, times, starts):
    graph = ops.relations([colptr], [row], edge_id=[edge_id], weight=[weight], time=[time])
    return ops.pick_neighbors(graph, node, [0, 4, 12], [1, 2], 1, 3, tree=tree, time=times, start_time=starts)


def of_layers(score, seeds):
    return ops.sample_layers(GRAPH.relations(), seeds, [9, 9], 7, FASTGCN, score=score)


def of_layer_bulk(colptr, row, edge_id, seeds, score):
    return ops.sample_layers_bulk(colptr, row, seeds, [0, 5, 12], [9, 9], [1, 2], FASTGCN, edge_id=edge_id, score=score)


def negatives(weight, time, src, seed_time, known_src, known_dst):
    ends, edges = ops.candidates(40, weight, time), ops.edge_set(known_src, known_dst, 40, 40)
    return *ends, *edges, ops.sample_negatives(12, src, ends, 3, seed_time=seed_time, edges=edges)


IDS = NODES.clone()
SCORE = torch.arange(1, 41)
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Tensor]]] = {
    "first_outside": (lambda ids: ops.first_outside(ids, 20), {"ids": IDS}),
    "check_colptr": (lambda colptr: ops.check_colptr(colptr, EDGES), {"colptr": GRAPH.colptr}),
    "colptr_of_sorted": (lambda dst: ops.colptr_of_sorted(dst, 40), {"dst": IDS.sort().values}),
    "coo_to_csc": (lambda src, dst: ops.coo_to_csc(src, dst, 40, 40), {"src": IDS, "dst": IDS.flip(0)}),
    "renumber": (
        lambda colptr, row, order, edge_id: ops.renumber(colptr, row, order, edge_id=edge_id),
        {"colptr": GRAPH.colptr, "row": GRAPH.row, "order": torch.arange(40).roll(3), "edge_id": BY_EDGE},
    ),
    "count_ids": (lambda ids: ops.count_ids(ids, 40), {"ids": IDS}),
    "reverse_pagerank": (
        ops.reverse_pagerank,
        {"colptr": GRAPH.colptr, "row": GRAPH.row, "initial": SCORE * ops.score_unit(40) // 40},
    ),
    "weight_sums": (lambda weight: ops.weight_sums(GRAPH.colptr, weight), {"weight": WEIGHTS}),
    "gather_rows": (lambda index: ops.gather_rows(X, index), {"index": IDS}),
    "select_rows": (lambda index: ops.select_rows(X, index), {"index": IDS}),
    "gather_tiers": (
        lambda place, index: ops.gather_tiers([X, Y], index, place=place),
        {"place": torch.arange(80), "index": IDS},
    ),
    "gather_tables": (
        lambda place, index: ops.gather_tables([ops.TieredTable([X, Y], place=place), ops.TieredTable([X])],
                                               [index, IDS]),
        {"place": torch.arange(80), "index": IDS},
    ),
    "gather_nested": (
        lambda offset, index: ops.gather_nested(torch.arange(80), offset, 2, index),
        {"offset": torch.arange(81), "index": IDS},
    ),
    "aggregate": (
        lambda ptr, node, x, weight, edge, more: ops.aggregate(ptr, node, x, weight=weight, edge=edge, more=more),
        {"ptr": GRAPH.colptr, "node": GRAPH.row, "x": X[:9], "weight": torch.randn(EDGES, 2), "edge": BY_EDGE,
         "more": X[9:]},
    ),
    "edge_dot": (
        lambda ptr, node, x, y, edge: ops.edge_dot(ptr, node, x, y, 2, edge=edge),
        {"ptr": GRAPH.colptr, "node": GRAPH.row, "x": X, "y": Y, "edge": BY_EDGE},
    ),
    "edge_attention": (
        ops.edge_attention,
        {"ptr": GRAPH.colptr, "node": GRAPH.row, "of_sources": X, "of_columns": Y,
         "of_entries": torch.randn(EDGES, X.size(1))},
    ),
    "edge_attention_backward": (
        lambda ptr, node, of_sources, of_columns, weight, grad: ops.edge_attention_backward(
            ptr, node, of_sources, of_columns, None, weight, grad
        ),
        {"ptr": GRAPH.colptr, "node": GRAPH.row, "of_sources": X, "of_columns": Y,
         "weight": torch.randn(EDGES, X.size(1)), "grad": torch.randn(EDGES, X.size(1))},
    ),
    "share_of_extremes": (
        ops.share_of_extremes,
        {"ptr": GRAPH.colptr, "node": GRAPH.row, "x": X, "extreme": X.abs(), "grad": Y},
    ),
    "extreme_backward": (
        lambda ptr, node, x, extreme, share, edge: ops.extreme_backward(ptr, node, x, extreme, share, edge=edge),
        {"ptr": GRAPH.colptr, "node": GRAPH.row, "x": X, "extreme": X, "share": Y, "edge": BY_EDGE},
    ),
    "shuffle_rows": (
        lambda part, row, ptr: ops.shuffle_rows(None, [X, Y], part, row, ptr),
        {"part": IDS % 2, "row": IDS, "ptr": torch.tensor([0, 3, 3, 12])},
    ),
    "dropout_rows": (lambda x, id: ops.dropout_rows(x, id, 3, 0.5), {"x": X, "id": torch.arange(40)}),
    "pack_rows": (lambda index: ops.pack_rows([X], [index], [4], ops.empty_bytes(400)), {"index": IDS}),
    "join_rows": (
        lambda at, place: ops.join_rows(X, torch.arange(250, dtype=torch.uint8) % 60, at, place),
        {"at": torch.tensor([24, 0, 48]), "place": torch.tensor([-3, 2, -1, 0])},
    ),
    "cut_batch": (
        lambda node, colptr, row, owner: ops.cut_batch(node, BATCH.num_nodes[0], colptr, row, owner, 3, 1),
        {"node": BATCH.node[0], "colptr": BATCH.colptr[0], "row": BATCH.edge_index[0][0], "owner": BATCH.node[0] % 3},
    ),
    "transpose": (lambda colptr, row: ops.transpose(colptr, row, 40), {"colptr": GRAPH.colptr, "row": GRAPH.row}),
    "contract": (
        lambda colptr, row, group: ops.contract([ops.Side(colptr, row, 0, 0, 40)], 40, group, 5),
        {"colptr": GRAPH.colptr, "row": GRAPH.row, "group": random_ids(5, 40, 2)},
    ),
    "propagate_labels": (
        lambda label, weight, group: ops.propagate_labels([SIDE], 40, label, weight, [9, 9], key=1, group=group),
        {"label": torch.arange(20) % 4, "weight": torch.ones(20, 2, dtype=torch.int64), "group": torch.arange(40) % 20},
    ),
    "sample_neighbors": (
        sampled,
        {"colptr": GRAPH.colptr, "row": GRAPH.row, "edge_id": BY_EDGE.flip(0), "weight": WEIGHTS, "time": TIMES,
         "seeds": IDS, "seed_time": IDS % 9, "seed_start_time": IDS % 4, "exclude": PAIRS},
    ),
    "sample_many": (
        sampled_many, {"seeds": IDS, "seed_time": IDS % 9, "seed_start_time": IDS % 4, "exclude": PAIRS},
    ),
    "sample_bulk": (
        lambda colptr, row, edge_id, seeds: ops.sample_bulk(
            colptr, row, seeds, [0, 5, 12], [3, 2], [1, 2], edge_id=edge_id
        ),
        {"colptr": GRAPH.colptr, "row": GRAPH.row, "edge_id": BY_EDGE, "seeds": IDS},
    ),
    "pick_neighbors": (
        picked,
        {"colptr": GRAPH.colptr, "row": GRAPH.row, "edge_id": BY_EDGE, "weight": WEIGHTS, "time": TIMES, "node": IDS,
         "tree": torch.arange(12), "times": IDS % 9, "starts": IDS % 4},
    ),
    "relabel": (
        lambda known, ids, known_tree, tree: ops.relabel(known, ids, known_tree=known_tree, tree=tree),
        {"known": IDS, "ids": IDS.roll(1), "known_tree": torch.arange(12) % 3, "tree": torch.arange(12) % 4},
    ),
    "sample_layers": (of_layers, {"score": SCORE, "seeds": IDS}),
    "sample_layers_bulk": (
        of_layer_bulk,
        {"colptr": GRAPH.colptr, "row": GRAPH.row, "edge_id": BY_EDGE, "seeds": IDS, "score": SCORE},
    ),
    "choose_nodes": (
        lambda node, score: ops.choose_nodes(node, score, 5, "priority", 1, 0),
        {"node": torch.arange(40), "score": SCORE},
    ),
    "weigh_edges": (
        partial(ops.weigh_edges, ops.LayerDrawing(aggregation="gcn")),
        {"degree": torch.tensor([2, 1, 3]), "row": torch.tensor([0, 1, 1, 2]), "correction": torch.ones(4).double(),
         "source_degree": torch.tensor([1, 2, 3, 4]), "stored_source_degree": torch.arange(1, 7)},
    ),
    "choose_edges": (
        lambda source, degree: ops.choose_edges(source, degree, [0, 1, 3], [1, 2], 0, 2),
        {"source": IDS, "degree": torch.tensor([4, 0, 8])},
    ),
    "sample_negatives": (
        negatives,
        {"weight": torch.rand(40) + 0.1, "time": random_ids(9, 40, 7), "src": IDS, "seed_time": IDS % 3 + 6,
         "known_src": IDS, "known_dst": IDS.flip(0)},
    ),
}  # fmt: skip
EVERY = [(name, argument) for name, (_, given) in CALLS.items() for argument in given]


def tensors(found: Any) -> list[Any]:
    return [entry.tolist() if isinstance(entry, Tensor) else entry for entry in tree_flatten(found)[0]]


def strided(tensor: Tensor) -> Tensor:
    """The same numbers, between others, with the last dimension first in memory."""
    order = tuple(reversed(range(tensor.dim())))
    columns = tensor.permute(order)
    return torch.stack([columns, torch.full_like(columns, 77)], -1)[..., 0].permute(order)


def test_every_operator_with_tensors_is_here():
    """Except for those whose tensors must be contiguous, or have contiguous rows alone."""
    of_graphs = {"node_scores", "relations", "candidates", "edge_set", "in_halves"}  # called by others
    of_shapes = {"empty_rows"}  # which read no number
    whole = {"huge_pages", "release_pages", "can_aggregate", "can_gather_rows", "board_leave",
             "board_take"}  # fmt: skip
    given = {name: {**vars(ops)[name].__annotations__, "return": ""} for name in ops.__all__ if name.islower()}
    taking = {name for name, types in given.items() if "Tensor" in str(types)}
    assert taking - of_graphs - of_shapes - whole <= {*CALLS}


@pytest.mark.parametrize(("name", "argument"), [one for one in EVERY if one[1] != "ptr" or one[0] == "shuffle_rows"])
def test_a_strided_tensor_is_read_as_a_contiguous_one(name, argument):
    call, given = CALLS[name]
    other = strided(given[argument])
    assert torch.equal(other, given[argument])
    assert not other.is_contiguous()
    assert tensors(call(**{**given, argument: other})) == tensors(call(**given))


class Faked(TorchDispatchMode):
    """Compares what each operator returns with what its fake returns of fake tensors of the same shapes."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if func.namespace == "gnnscale":
            with FakeTensorMode(shape_env=ShapeEnv()) as mode:
                fakes = func(*tree_map_only(Tensor, mode.from_tensor, args), **(kwargs or {}))
            for fake, real in zip(tree_leaves(fakes), tree_leaves(found), strict=True):
                if isinstance(real, Tensor):
                    assert (fake.dtype, fake.device, fake.dim()) == (real.dtype, real.device, real.dim()), func
                    for size, expected in zip(fake.shape, real.shape, strict=True):
                        assert isinstance(size, torch.SymInt) or size == expected, func
        return found


@pytest.mark.parametrize("name", CALLS)
def test_fakes_have_the_shapes_and_types_of_what_is_returned(name):
    call, given = CALLS[name]
    with Faked():
        call(**given)


# There may be any number of these.
OF_ANY_LENGTH = {("first_outside", "ids"), ("colptr_of_sorted", "dst"), ("count_ids", "ids"), ("gather_rows", "index"),
                 ("select_rows", "index"),
                 ("gather_tiers", "index"), ("gather_tiers", "place"), ("gather_tables", "index"),
                 ("gather_tables", "place"), ("gather_nested", "index"), ("join_rows", "place"), ("pack_rows", "index"),
                 ("aggregate", "ptr"), ("sample_layers", "seeds")}  # fmt: skip


CHANGES = {
    "one entry less": lambda tensor: tensor[:-1],
    "no entry": lambda tensor: tensor[:0],
    "one entry more": lambda tensor: torch.cat([tensor, tensor[-1:]]),
    "a dimension more": lambda tensor: tensor.unsqueeze(0),
    "a scalar": lambda tensor: tensor.flatten()[0],
}


MAY_BE_LONGER = {("aggregate", "x"), ("aggregate", "weight"), ("aggregate", "more"), ("edge_dot", "x"),
                 ("edge_attention", "of_sources"),                 ("edge_attention_backward", "of_sources"),
                 ("share_of_extremes", "node"), ("share_of_extremes", "x"), ("shuffle_rows", "ptr"),
                 ("join_rows", "at"), ("cut_batch", "row")}  # fmt: skip
"""Further rows or entries that no index leads to; in a pointer, one more column without entries."""


MAY_BE_LONGER |= {(name, argument) for name, argument in EVERY if argument == "colptr"}


@pytest.mark.parametrize(
    ("name", "argument", "change"),
    [
        (*one, change)
        for one in EVERY
        if one not in OF_ANY_LENGTH
        for change in CHANGES
        if change != "one entry more" or one not in MAY_BE_LONGER
    ],
)
def test_a_tensor_of_another_shape_is_refused(name, argument, change):
    call, given = CALLS[name]
    ours = r"expected .*, found |is out of range: expected |is malformed: "
    with pytest.raises((ValueError, IndexError, TypeError, RuntimeError), match=ours):
        call(**{**given, argument: CHANGES[change](given[argument])})


@pytest.mark.parametrize(("name", "argument"), EVERY)
def test_a_tensor_of_another_type_is_refused(name, argument):
    call, given = CALLS[name]
    for wrong in (given[argument].to(torch.complex64), given[argument].tolist()):
        with pytest.raises((TypeError, ValueError), match="expected"):
            call(**{**given, argument: wrong})
