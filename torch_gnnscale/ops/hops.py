"""One hop at a time: neighbors of nodes that others ask for, and local ids for what comes back.

:func:`sample_neighbors` draws all hops of a batch where the whole topology is at hand. Where it is partitioned, the two
halves of a hop take place on different ranks: the owner of a node's column draws (:func:`pick_neighbors`), and the rank
whose batch it is numbers what was drawn (:func:`relabel`). Hop by hop, the result is the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import OPS, check_ids, check_int, check_key, resolve_threads
from .inputs import Relations, check_vector
from .samples import LAST, MAX_HOPS, REPLACE, WITH_EDGE_ID, check_fanouts

MAX_TREES = 1 << 31
"""Trees of a batch."""


class Picks(NamedTuple):
    """The answer of :func:`pick_neighbors`: the edges of all requests, one request after the other."""

    num_edges: Tensor
    """How many edges each request drew: int64, shape [n]."""
    source: Tensor
    """The neighbors that were drawn, as global ids: int64, shape [e]."""
    edge_id: Tensor | None
    """Their edges' ids, if asked for: int64, shape [e]."""


class Relabelled(NamedTuple):
    """The answer of :func:`relabel`."""

    local: Tensor
    """The local id of each id: int64, shape [m]."""
    node: Tensor
    """The global ids of the nodes that were not known, in order of first occurrence: int64, shape [k]. Their local ids
    follow those of the known ones."""
    tree: Tensor | None
    """Their trees, where trees are given: int64, shape [k]."""


def pick_neighbors(
    graph: Relations,
    node: Tensor,
    node_ptr: Sequence[int],
    keys: Sequence[int],
    hop: int,
    fanout: int,
    *,
    first: int = 0,
    tree: Tensor | None = None,
    time: Tensor | None = None,
    replace: bool = False,
    last: bool = False,
    with_edge_id: bool = True,
    threads: int = 0,
) -> Picks:
    """Draws the neighbors of nodes in one hop (FastSample, section 3.1), as :func:`sample_neighbors` draws them.

    A request is a node with its tree, time and key; the hop and the fanout are those of all requests. The edges that it
    gets are a function of these and of the node's stored column, and of nothing else: neither of the other requests nor
    of the columns that are stored beside it.

    Args:
        graph: one relation, from :func:`relations`. Of a part, whose columns are those of the nodes ``first``,
            ``first + 1``, ...: ``relations([colptr], [row], src_type=[0], dst_type=[1], sizes=[N, columns])``, where N
            is the number of nodes of the whole graph, which ``row`` holds ids of. Without edge ids, the id of an edge
            is its position among those stored here.
        node: global ids, int32 or int64, shape [n], in [first, first + columns); in any order, repeats allowed.
        node_ptr: where each key's requests begin, and where the last one's end: k + 1 numbers.
        keys: 64 bits for each batch that asks, from :func:`torch_gnnscale.random.batch_key`.
        hop: the number of the hop, from 0.
        fanout: how many neighbors to draw; -1 takes all candidates.
        first: the id of the node of the first column.
        tree: of each request, where trees are disjoint, else None: int32 or int64, shape [n].
        time: of each request, int64, shape [n]: no edge is later. Needed where edges have times.
        replace: draw with replacement.
        last: of candidates with times, only the last ``fanout`` are candidates.
        with_edge_id: return edge ids.
        threads: see the package.

    Raises:
        TypeError, ValueError, IndexError: wrong dtypes, shapes, numbers of entries or fanouts; a graph of several
            relations; times of requests without times of edges, or the reverse; nodes or trees out of range.
        NotImplementedError: tensors that are not in host memory.
        RuntimeError: values of the graph, which :func:`relations` does not look at, are malformed.
    """
    if not isinstance(graph, Relations):
        raise TypeError(f"graph: expected what relations() returns, found {type(graph).__name__}")
    if len(graph.colptr) != 1:
        raise ValueError(f"graph: expected one relation, found {len(graph.colptr)}")
    colptr, row = graph.colptr[0], graph.row[0]
    for name, value in (("node", node), ("tree", tree)):
        if value is not None:
            check_ids(name, value)
    _check_host({"colptr": colptr, "row": row, "node": node, "tree": tree, "time": time})
    count = len(node)
    ends, keys = [check_int("node_ptr", end) for end in node_ptr], [check_key(key) for key in keys]
    if len(ends) != len(keys) + 1:
        raise ValueError(f"node_ptr: expected {len(keys) + 1} entries for {len(keys)} keys, found {len(ends)}")
    if ends != sorted(ends) or ends[0] != 0 or ends[-1] != count:
        raise ValueError(f"node_ptr: expected numbers that do not fall, from 0 to {count} nodes, found {ends}")
    check_int("hop", hop, 0, MAX_HOPS - 1)
    check_fanouts([fanout], 1)
    if tree is not None:
        tree = _checked_trees("tree", tree, count, threads)
    if graph.timed != (time is not None):
        raise ValueError(f"time: expected it {'' if graph.timed else 'only '}where edges have times")
    if time is not None:
        check_vector("time", time, count)
        time = time.contiguous()
    if last and not graph.timed:
        raise ValueError("last: expected a graph whose edges have times")
    first, threads = check_int("first", first), resolve_threads(threads)
    options = REPLACE * bool(replace) | LAST * bool(last) | WITH_EDGE_ID * bool(with_edge_id)
    node = node.to(torch.int64).contiguous()
    try:
        picks = Picks(*OPS.pick_neighbors(
            colptr, row, graph.edge_id[0], graph.weight[0], graph.time[0], first, graph.sizes[graph.src_type[0]], node,
            ends, keys, tree, time, hop, fanout, options, threads,
        ))  # fmt: skip
        return picks if with_edge_id else picks._replace(edge_id=None)
    except RuntimeError as failed:
        error = failed
    columns = colptr.numel() - 1
    outside = ((node < first) | (node >= first + columns)).nonzero()
    if len(outside):
        at = int(outside[0])
        raise IndexError(
            f"node[{at}] = {int(node[at])} is out of range: expected nodes in [{first}, {first + columns})"
        )
    raise error


def relabel(known: Tensor, ids: Tensor, *, known_tree: Tensor | None = None, tree: Tensor | None = None) -> Relabelled:
    """Gives global ids their local ones: by order of first occurrence, after the nodes that are known.

    Args:
        known: the global ids of the nodes known so far, whose local ids are their positions: int32 or int64, shape
            [n]. Of one that is repeated, the first position counts.
        ids: global ids that were found, int32 or int64, shape [m].
        known_tree: the tree of each known node, where trees are disjoint: int32 or int64, shape [n]. Nodes of different
            trees are different nodes.
        tree: the tree of each of ``ids``, given with ``known_tree``: int32 or int64, shape [m].

    Raises:
        TypeError, ValueError, IndexError: wrong dtypes or shapes, one of the trees without the other, trees out of
            range, 2^31 nodes and ids or more.
        NotImplementedError: tensors that are not in host memory.
    """
    check_ids("known", known)
    check_ids("ids", ids)
    _check_host({"known": known, "ids": ids, "known_tree": known_tree, "tree": tree})
    if (known_tree is None) != (tree is None):
        raise ValueError("tree and known_tree: expected both or none")
    if len(known) + len(ids) >= 1 << 31:
        raise ValueError(f"known and ids: expected less than 2^31 together, found {len(known) + len(ids)}")
    if known_tree is not None and tree is not None:
        known_tree = _checked_trees("known_tree", known_tree, len(known))
        tree = _checked_trees("tree", tree, len(ids))
    known, ids = (entry.to(torch.int64).contiguous() for entry in (known, ids))
    local, node, of_node = OPS.relabel(known, ids, known_tree, tree)
    return Relabelled(local, node, None if tree is None else of_node)


def _checked_trees(name: str, tree: Tensor, count: int, threads: int = 0) -> Tensor:
    check_ids(name, tree, MAX_TREES, "trees", threads)
    if len(tree) != count:
        raise ValueError(f"{name}: expected {count} trees, found {len(tree)}")
    return tree.to(torch.int64).contiguous()


def _check_host(given: dict[str, Tensor | None]) -> None:
    for name, value in given.items():
        if isinstance(value, Tensor) and value.device.type != "cpu":
            raise NotImplementedError(f"{name}: expected a tensor in host memory, found one on {value.device}; move it")
