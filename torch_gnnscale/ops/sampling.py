"""Operators that sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import OPS, check_ids, check_key, check_tensor, resolve_threads

MAX_HOPS = 64
"""Hops a draw's counter can tell apart."""
MAX_FANOUT = 1 << 17
"""Neighbors of one node that can be drawn at random in one hop."""


class Sample(NamedTuple):
    """The answer of :func:`sample_neighbors`; every list has one entry a node type or a relation."""

    node: list[Tensor]
    """Ids of the sampled nodes in order of first occurrence, seeds first: int64, shape [n]."""
    colptr: list[Tensor]
    """Where each expanded node's edges begin: int64, shape [expanded + 1]."""
    edge_index: list[Tensor]
    """Local ids of sources and, if asked for, destinations: int64, shape [1 or 2, e]."""
    edge_id: list[Tensor]
    """Original edge ids, if asked for: int64, shape [e]."""
    tree: list[Tensor]
    """Each node's tree, if trees are disjoint."""
    num_nodes: Tensor
    """Nodes found in each hop, the seeds first: int64, shape [types, hops + 1]."""
    num_edges: Tensor
    """Edges drawn in each hop: int64, shape [relations, hops]."""


def sample_neighbors(
    colptr: Sequence[Tensor],
    row: Sequence[Tensor],
    seeds: Sequence[Tensor],
    fanouts: Sequence[int],
    key: int,
    *,
    edge_id: Sequence[Tensor | None] = (None,),
    weight: Sequence[Tensor | None] = (None,),
    node_time: Sequence[Tensor | None] = (None,),
    edge_time: Sequence[Tensor | None] = (None,),
    seed_time: Sequence[Tensor | None] = (None,),
    src_type: Sequence[int] = (0,),
    dst_type: Sequence[int] = (0,),
    replace: bool = False,
    disjoint: bool = False,
    last: bool = False,
    layers: bool = False,
    with_edge_id: bool = True,
    with_col: bool = True,
    threads: int = 0,
) -> Sample:
    """Draws all hops of a batch and writes them as CSC with local ids (FastSample, section 3.2, algorithm 1).

    Draw k of a node is a function of (key, node, hop, relation, k). Without replacement, k of d neighbors are chosen by
    Floyd's method from draws ``floor(r * range / 2^64)``; a node of at most k neighbors keeps all, in stored order. The
    graph must have been checked (:func:`check_colptr`, :func:`first_outside`).

    Args:
        colptr: per relation, int64, shape [num_dst + 1].
        row: per relation, sources, int32 or int64, shape [E]; any stride.
        seeds: per node type, int32 or int64, shape [s]; repeats keep rows of their own.
        fanouts: per relation and hop; -1 takes all neighbors.
        key: 64 bits, from :func:`torch_gnnscale.random.batch_key`.
        edge_id: per relation, the original id of each stored edge, or None where it is the position.
        weight: not implemented yet.
        node_time: not implemented yet.
        edge_time: not implemented yet.
        seed_time: not implemented yet.
        src_type: per relation, the node type of its sources.
        dst_type: per relation, the node type of its destinations.
        replace: draw with replacement.
        disjoint: not implemented yet.
        last: not implemented yet.
        layers: expand every node found so far in each hop (the papers' rule), not only the new ones (PyG's rule). Hop
            h then has columns of its own, one for each node known before it.
        with_edge_id: return original edge ids.
        with_col: return destinations beside the sources.
        threads: see the module.

    Raises:
        NotImplementedError: more than one relation, weights, times, disjoint trees.
        TypeError, ValueError, IndexError: wrong dtypes, shapes or fanouts, seeds out of range.
        RuntimeError: the graph is malformed after all.
    """
    for name, given in (("colptr", colptr), ("row", row), ("seeds", seeds), ("edge_id", edge_id)):
        if len(given) == 0:
            raise ValueError(f"{name}: expected one entry a relation (or node type), found none")
    for name, asked in (
        ("more than one relation", len(colptr) != 1 or len(row) != 1 or len(seeds) != 1),
        ("weight", any(entry is not None for entry in weight)),
        ("node_time", any(entry is not None for entry in node_time)),
        ("edge_time", any(entry is not None for entry in edge_time)),
        ("seed_time", any(entry is not None for entry in seed_time)),
        ("disjoint", disjoint),
        ("last", last),
        ("a relation between two node types", tuple(src_type) != (0,) or tuple(dst_type) != (0,)),
    ):
        if asked:
            raise NotImplementedError(f"sample_neighbors: {name} is not implemented yet")
    check_tensor("colptr", colptr[0])
    if colptr[0].dtype != torch.int64 or colptr[0].dim() != 1 or colptr[0].numel() == 0:
        raise TypeError(f"colptr: expected an int64 vector, found {colptr[0].dtype} {tuple(colptr[0].shape)}")
    check_ids("row", row[0])
    if edge_id[0] is not None:
        check_ids("edge_id", edge_id[0])
        if len(edge_id[0]) != len(row[0]):
            raise ValueError(f"edge_id: expected one for each of {len(row[0])} edges, found {len(edge_id[0])}")
    if len(fanouts) > MAX_HOPS:
        raise ValueError(f"fanouts: expected at most {MAX_HOPS} hops, found {len(fanouts)}")
    for hop, fanout in enumerate(fanouts):
        if not isinstance(fanout, int) or isinstance(fanout, bool) or not -1 <= fanout <= MAX_FANOUT:
            raise ValueError(f"fanouts[{hop}]: expected -1 (all) or 0..{MAX_FANOUT}, found {fanout}")
    check_ids("seeds", seeds[0], colptr[0].numel() - 1, "nodes", threads)
    return Sample(
        *OPS.sample_neighbors(
            [colptr[0].contiguous()],
            list(row),
            list(edge_id),
            list(weight),
            list(node_time),
            list(edge_time),
            list(src_type),
            list(dst_type),
            [seeds[0].contiguous()],
            list(seed_time),
            list(fanouts),
            check_key(key),
            replace,
            disjoint,
            last,
            layers,
            with_edge_id,
            with_col,
            resolve_threads(threads),
        )
    )
