"""Operators on batches of several ranks: one hop in two halves, drawing the neighbors of given nodes and giving the
drawn nodes local ids; what a cut of a batch gives one rank; and the rows that ranks exchange.

:func:`sample_neighbors` draws all hops of a batch where one process has the whole topology. If the topology is
partitioned, the halves of a hop run on different ranks: the rank that owns a node's column draws
(:func:`pick_neighbors`), and the rank that makes the batch assigns local ids (:func:`relabel`). Repeated for each hop,
they give the result of :func:`sample_neighbors`, bit for bit. Both run on the CPU. A GPU draws whole batches
(:class:`torch_gnnscale.ops.PreparedBulks`)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from .._private import below_autograd
from .arguments import (
    OPS,
    check_device,
    check_ids,
    check_int,
    check_key,
    check_on_host,
    check_readable,
    check_same,
    check_tensor,
    check_vector,
    first_outside,
    resolve_threads,
)
from .graph_arguments import LAST, MAX_FANOUT, MAX_HOPS, REPLACE, WITH_EDGE_ID, Relations, check_fanouts
from .rows import check_row_bytes, has_contiguous_rows

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


MAX_PARTS = 1 << 16
"""Over so many ranks a batch can be cut."""


class Cut(NamedTuple):
    """One rank's share of a batch: the nodes that it owns, and the edges into them (GSplit, section 5).

    A node's group is the hop that found it, 0 for seeds. The halo are the nodes of other ranks from which an edge leads
    to an own node; the level of a halo node is 1 + the least group of such an edge's destination. A layer that computes
    the nodes of groups 0..g-1 reads the halo's nodes of levels 1..g.
    """

    local: Tensor
    """The own nodes, as numbers in the batch, by group; seeds in the batch's order, later groups by rising id: int64,
    shape [m]."""
    num_nodes: list[int]
    """Own nodes in each group: L + 1 numbers."""
    num_edges: list[int]
    """Edges into own nodes of groups 0..L-1: L numbers."""
    colptr: Tensor
    """Edges colptr[i]..colptr[i+1]-1 lead to own node i: int64, shape [m - num_nodes[-1] + 1]."""
    row: Tensor
    """Sources: i for own node i, m + j for node j of the halo: int64, shape [e]."""
    edge: Tensor
    """The edges, as numbers in the batch: int64, shape [e]."""
    halo: Tensor
    """The halo, as numbers in the batch, by (owner, level, id): int64, shape [h]."""
    num_received: list[list[int]]
    """num_received[p][g]: how many nodes of the halo are rank p's and have level g + 1."""
    sent: Tensor
    """The own nodes in the halo of rank 0, then 1, ..., each in that halo's order; values in [0, m): int64, shape
    [s]."""
    num_sent: list[list[int]]
    """num_sent[p][g]: how many of them are in the halo of rank p with level g + 1."""


def cut_batch(
    node: Tensor, num_nodes: Sequence[int], colptr: Tensor, row: Tensor, owner: Tensor, parts: int, part: int
) -> Cut:
    """One rank's share of a batch (GSplit, section 5).

    Its time is linear in the nodes and edges of the batch: all edges are read once, for what this rank sends follows
    from the edges into the nodes of others; nodes are sorted by their digits. On a GPU, where the result is the same,
    4 n ``parts`` bytes and more are needed, and the host waits three times.

    Args:
        node: the batch's nodes, seeds first, each group (the nodes that one hop found) in any order: int64, shape [n].
        num_nodes: how many of them each group has: L + 1 numbers, L at least 1.
        colptr: edges colptr[i]..colptr[i+1]-1 lead to node i: int64, shape [nodes of groups 0..L-1, + 1].
        row: sources, as numbers in the batch: int64, shape [e].
        owner: owner[i]: the rank of node i of the batch; int32 or int64, shape [n].
        parts: the number of ranks.
        part: the number of the rank whose share is returned.

    Raises:
        TypeError, ValueError, IndexError: wrong dtypes, shapes or numbers; an owner that is no rank; 2^31 nodes or
            more.
        NotImplementedError: nodes that are neither in host memory nor on a GPU.
        RuntimeError: ``colptr`` falls or goes beyond the edges, or a source is no node.
    """
    counts = [check_int("num_nodes", count) for count in num_nodes]
    hops = len(counts) - 1
    if not 1 <= hops <= MAX_HOPS:
        raise ValueError(f"num_nodes: expected 2 to {MAX_HOPS + 1} numbers, found {len(counts)}")
    parts = check_int("parts", parts, 1, MAX_PARTS)
    part = check_int("part", part, 0, parts - 1)
    check_vector("node", node, total := sum(counts))
    check_vector("colptr", colptr, total - counts[-1] + 1)
    check_ids("owner", owner)
    if len(owner) != total:
        raise ValueError(f"owner: expected one for each of {total} nodes, found {len(owner)}")
    check_tensor("row", row)
    check_vector("row", row, row.numel())
    if total >= 1 << 31:
        raise ValueError(f"node: expected less than 2^31, found {total}")
    check_device("node", node)
    check_same({"colptr": colptr, "row": row, "owner": owner}, node.device, "node is")
    given = (node.contiguous(), counts, colptr.contiguous(), row.contiguous(), owner.contiguous(), parts, part)
    try:
        *found, numbers = OPS.cut_batch(*given)
    except RuntimeError as error:
        if (at := first_outside(owner, parts)) >= 0:
            raise IndexError(
                f"owner[{at}] = {int(owner[at])} is out of range: expected ranks in [0, {parts})"
            ) from error
        raise
    local, own_colptr, own_row, edge, halo, sent = found
    of = numbers.tolist()
    tables = [[of[at : at + hops] for at in range(begin, begin + parts * hops, hops)] for begin in (
        2 * hops + 1, 2 * hops + 1 + parts * hops,
    )]  # fmt: skip
    return Cut(
        local, of[: hops + 1], of[hops + 1 : 2 * hops + 1], own_colptr, own_row, edge, halo, tables[0], sent, tables[1]
    )


MAX_TABLES = 64
"""Tables of one call of :func:`shuffle_rows`."""
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Types of numbers that are added, or dropped."""


def shuffle_rows(
    base: Tensor | None,
    parts: Sequence[Tensor],
    part: Tensor | None,
    row: Tensor,
    ptr: Tensor | None = None,
    threads: int = 0,
    *,
    check: bool = True,
) -> Tensor:
    """``out[i] = base[i] + sum over j in [ptr[i], ptr[i + 1]) of parts[part[j]][row[j]]``, added in that order.

    It packs the rows that others read, adds the gradients that they send back, and reads their memory directly where
    ``parts`` are tables of theirs (GSplit, section 5). Numbers of 16 bits are added as float32 and rounded once.

    Args:
        base: shape [n, ...], as many rows as the result; None: zeros.
        parts: 1 to 64 tables of the same dtype and shape [N_k, ...]; each row must be contiguous. On a GPU they may
            lie in memory of peers.
        part: the tables of entries: int64, shape [m], in [0, len(parts)); None: the first.
        row: their rows there: int64, shape [m].
        ptr: int64, shape [n + 1], rising from 0 to m. None: entry i is output i's alone; without ``base`` rows are then
            copied as they are, of any dtype.
        threads: see the package.
        check: look for tables, rows and pointers out of range, for which the host waits if they are on a GPU. Without,
            one that is out of range reads foreign memory.

    Returns:
        Shape [n, ...], the dtype of ``parts``; on the CPU in recycled memory. Not differentiable.

    Raises:
        TypeError, ValueError, IndexError: wrong dtype, shape, device or strides, an entry out of range.
    """
    parts = list(parts)
    if not 1 <= len(parts) <= MAX_TABLES:
        raise ValueError(f"parts: expected 1 to {MAX_TABLES} tables, found {len(parts)}")
    check_ids("row", row)
    tables = [(f"parts[{k}]", table) for k, table in enumerate(parts)]
    like = parts[0]
    for name, table in tables if base is None else [*tables, ("base", base)]:
        check_tensor(name, table)
        if table.dim() == 0 or not has_contiguous_rows(table):
            raise ValueError(
                f"{name}: expected contiguous rows, found shape {tuple(table.shape)}, strides {table.stride()}"
            )
        if table.dtype != like.dtype or table.shape[1:] != like.shape[1:]:
            raise ValueError(
                f"{name}: expected {like.dtype} rows of shape {tuple(like.shape[1:])} as in parts[0], found "
                f"{table.dtype} {tuple(table.shape[1:])}"
            )
        check_row_bytes(name, table, row.device)
    if not (base is None and ptr is None) and like.dtype not in FLOATS:
        raise TypeError(f"parts: expected floats to add, found {like.dtype}")
    ids = [("row", row)]
    ids += [("part", part)] if part is not None else []
    ids += [("ptr", ptr)] if ptr is not None else []
    for name, values in ids:
        check_ids(name, values)
        if values.dtype != torch.int64 or values.device != row.device:
            raise ValueError(f"{name}: expected int64 on {row.device}, found {values.dtype} on {values.device}")
    if part is not None and part.shape != row.shape:
        raise ValueError(f"part: expected an entry for each of {len(row)} rows, found {len(part)}")
    if ptr is not None and len(ptr) == 0:
        raise ValueError("ptr: expected at least one entry, found none")
    count = len(row) if ptr is None else len(ptr) - 1
    if base is not None and len(base) != count:
        raise ValueError(f"base: expected {count} rows as the result has, found {len(base)}")
    if check:
        _check_entries(parts, part, row, ptr, threads)
    row, part, ptr = (
        row.contiguous(),
        None if part is None else part.contiguous(),
        None if ptr is None else ptr.contiguous(),
    )
    with below_autograd():
        return OPS.shuffle_rows(base, parts, part, row, ptr, resolve_threads(threads))


def _check_entries(parts: list[Tensor], part: Tensor | None, row: Tensor, ptr: Tensor | None, threads: int) -> None:
    if part is None:
        check_ids("row", row, len(parts[0]), "rows", threads)
    else:
        check_ids("part", part, len(parts), "tables", threads)
        sizes = torch.tensor([len(table) for table in parts], device=row.device)[part]
        outside = ((row < 0) | (row >= sizes)).nonzero()
        if len(outside):
            at = int(outside[0])
            raise IndexError(
                f"row[{at}] = {int(row[at])} is out of range: expected rows of parts[{int(part[at])}] in "
                f"[0, {int(sizes[at])})"
            )
    if ptr is not None and (int(ptr[0]) != 0 or int(ptr[-1]) != len(row) or bool((ptr.diff() < 0).any())):
        raise ValueError(f"ptr: expected it to rise from 0 to {len(row)}, found {int(ptr[0])} to {int(ptr[-1])}")
