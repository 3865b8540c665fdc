"""One hop in two halves: drawing the neighbors of given nodes, and giving the drawn nodes local ids.

:func:`sample_neighbors` draws all hops of a batch where one process has the whole topology. If the topology is
partitioned, the halves of a hop run on different ranks: the rank that owns a node's column draws
(:func:`pick_neighbors`), and the rank that makes the batch assigns local ids (:func:`relabel`). Repeated for each hop,
they give the result of :func:`sample_neighbors`, bit for bit.

Both run on the CPU. A GPU draws whole batches (:class:`torch_gnnscale.ops.PreparedBulks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import (
    OPS,
    check_ids,
    check_int,
    check_key,
    check_on_host,
    check_readable,
    check_same,
    check_vector,
    resolve_threads,
)
from .graph_arguments import LAST, MAX_FANOUT, MAX_HOPS, REPLACE, WITH_EDGE_ID, Relations, check_fanouts

MAX_TREES = 1 << 31
"""Tree numbers are below this."""


class Picks(NamedTuple):
    """The result of :func:`pick_neighbors`: the drawn edges of all requests, in the order of the requests."""

    num_edges: Tensor
    """num_edges[i]: edges drawn for request i. int64, shape [n]; e is their sum."""
    source: Tensor
    """The global id of each drawn neighbor: int64, shape [e]."""
    edge_id: Tensor | None
    """The id of each drawn edge: int64, shape [e]; None without ``with_edge_id``."""


class Relabelled(NamedTuple):
    """The result of :func:`relabel`."""

    local: Tensor
    """The local id of each id: int64, shape [m]."""
    node: Tensor
    """The global ids of the new nodes, in order of first occurrence: int64, shape [k]. Their local ids are n, n + 1,
    ..., after those of the n known nodes."""
    tree: Tensor | None
    """The tree of each new node: int64, shape [k]; None without trees."""


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
    start_time: Tensor | None = None,
    relation: int = 0,
    replace: bool = False,
    last: bool = False,
    with_edge_id: bool = True,
    threads: int = 0,
) -> Picks:
    """Draws the neighbors of nodes in one hop (FastSample, section 3.1), as :func:`sample_neighbors` draws them.

    Request i is the node ``node[i]`` with its tree, times and key; the hop and the fanout are shared by all requests.
    The drawn edges are a function of these and of the node's stored column alone: other requests and other stored
    columns do not change them.

    Args:
        graph: from :func:`relations`. For a part of a graph of N nodes that stores the columns of the
            nodes ``first``, ``first + 1``, ...: ``relations([colptr], [row], src_type=[0], dst_type=[1], sizes=[N,
            columns])``; ``row`` holds ids in [0, N). Without edge ids, the id of an edge is its position in ``row``.
        node: global ids, int32 or int64, shape [n], in [first, first + columns); in any order, repeats allowed.
        node_ptr: requests ``node_ptr[j]`` to ``node_ptr[j + 1] - 1`` have the key ``keys[j]``: k + 1 numbers.
        keys: one 64-bit key per batch, from :func:`torch_gnnscale.random.batch_key`: k numbers.
        hop: the number of the hop, from 0.
        fanout: how many neighbors to draw; -1 takes all candidates.
        first: the id of the node of the first column.
        tree: the tree of each request if trees are disjoint, else None: int32 or int64, shape [n].
        time: the time of each request, int64, shape [n]: later edges are no candidates. Required if edges have times.
        start_time: the same; earlier edges are no candidates.
        relation: the number of the relation to draw from, on which draws depend.
        replace: draw with replacement.
        last: only the latest ``fanout`` candidates remain candidates.
        with_edge_id: return edge ids.
        threads: see the package.

    Raises:
        TypeError, ValueError, IndexError: wrong dtypes, shapes, devices, numbers of entries or fanouts; no such
            relation; times of requests without times of edges, or the reverse; nodes or trees out of range.
        NotImplementedError: nodes that are not in host memory.
        RuntimeError: values of the graph, which :func:`relations` does not look at, are malformed.
    """
    if not isinstance(graph, Relations):
        raise TypeError(f"graph: expected what relations() returns, found {type(graph).__name__}")
    relation = check_int("relation", relation, 0, len(graph.colptr) - 1)
    colptr, row = graph.colptr[relation], graph.row[relation]
    for name, value in (("node", node), ("tree", tree)):
        if value is not None:
            check_ids(name, value)
    check_on_host("node", node)
    check_same({"tree": tree, "time": time, "start_time": start_time}, node.device, "node is")
    stored = {"colptr": colptr, "row": row, "edge_id": graph.edge_id[relation],
              "weight": graph.weight[relation], "time": graph.time[relation]}  # fmt: skip
    for name, entry in stored.items():
        if entry is not None:
            check_readable(f"graph.{name}", entry, node.device, "node is")
    count = len(node)
    ends, keys = list(map(check_int, repeat("node_ptr"), node_ptr)), list(map(check_key, keys))
    if len(ends) != len(keys) + 1:
        raise ValueError(f"node_ptr: expected {len(keys) + 1} entries for {len(keys)} keys, found {len(ends)}")
    if ends != sorted(ends) or ends[0] != 0 or ends[-1] != count:
        raise ValueError(f"node_ptr: expected numbers that do not fall, from 0 to {count} nodes, found {ends}")
    check_int("hop", hop, 0, MAX_HOPS - 1)
    if type(fanout) is not int or not -1 <= fanout <= MAX_FANOUT:
        check_fanouts([fanout], 1)
    if tree is not None:
        tree = _checked_trees("tree", tree, count, threads)
    timed = stored["time"] is not None
    if timed != (time is not None):
        raise ValueError(f"time: expected it {'' if timed else 'only '}where edges have times")
    if start_time is not None and not timed:
        raise ValueError("start_time: expected it only where edges have times")
    if time is not None:
        check_vector("time", time, count)
        time = time.contiguous()
    if start_time is not None:
        check_vector("start_time", start_time, count)
        start_time = start_time.contiguous()
    if last and not timed:
        raise ValueError("last: expected a graph whose edges have times")
    first, threads = check_int("first", first), resolve_threads(threads)
    options = REPLACE * bool(replace) | LAST * bool(last) | WITH_EDGE_ID * bool(with_edge_id)
    node = node.to(torch.int64).contiguous()
    try:
        picks = Picks(*OPS.pick_neighbors(
            *stored.values(), first, graph.sizes[graph.src_type[relation]], node, ends, keys, tree, time, start_time,
            relation, hop, fanout, options, threads,
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
        TypeError, ValueError, IndexError: wrong dtypes, shapes or devices, one of the trees without the other, trees
            out of range, 2^31 nodes and ids or more.
        NotImplementedError: ids that are not in host memory.
    """
    check_ids("known", known)
    check_ids("ids", ids)
    check_on_host("ids", ids)
    check_same({"known": known, "known_tree": known_tree, "tree": tree}, ids.device, "ids are")
    if (known_tree is None) != (tree is None):
        raise ValueError("tree and known_tree: expected both or none")
    if len(known) + len(ids) >= 1 << 31:
        raise ValueError(f"known and ids: expected less than 2^31 together, found {len(known) + len(ids)}")
    if known_tree is not None and tree is not None:
        known_tree = _checked_trees("known_tree", known_tree, len(known))
        tree = _checked_trees("tree", tree, len(ids))
    known, ids = known.to(torch.int64).contiguous(), ids.to(torch.int64).contiguous()
    local, node, of_node = OPS.relabel(known, ids, known_tree, tree)
    return Relabelled(local, node, None if tree is None else of_node)


def _checked_trees(name: str, tree: Tensor, count: int, threads: int = 0) -> Tensor:
    check_ids(name, tree, MAX_TREES, "trees", threads)
    if len(tree) != count:
        raise ValueError(f"{name}: expected {count} trees, found {len(tree)}")
    return tree.to(torch.int64).contiguous()
