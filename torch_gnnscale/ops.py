"""The one door to native code: typed wrappers of ``torch.ops.gnnscale.*`` that check what a user can get wrong.

``threads`` means the same everywhere: how many of torch's threads an operator may use, 0 for all of
``torch.get_num_threads()`` unless :func:`limit_threads` says less. No result depends on it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from . import _library

_library.load()
_ops = torch.ops.gnnscale

MAX_HOPS = 64
"""Hops a draw's counter can tell apart."""
MAX_FANOUT = 1 << 17
"""Neighbors of one node that can be drawn at random in one hop."""
MAX_COUNT = 1 << 40
"""Nodes of a graph, and random numbers of one call."""
_IDS = (torch.int32, torch.int64)
_limit = threading.local()


def limit_threads(threads: int) -> None:
    """What ``threads=0`` means to operators called from this Python thread; 0 for all of torch's threads again."""
    _limit.threads = _check_int("threads", threads)


def _threads(threads: int) -> int:
    return _check_int("threads", threads) or getattr(_limit, "threads", 0)


def _check_int(name: str, value: int, least: int = 0, most: int = 1 << 62) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{name}: expected an int, found {type(value).__name__}")
    if not least <= value <= most:
        raise ValueError(f"{name}: expected {least} <= {name} <= {most}, found {value}")
    return value


def _check_key(key: int) -> int:
    return _check_int("key", key, -(1 << 63), (1 << 63) - 1)


def _check_tensor(name: str, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected a tensor, found {type(value).__name__}")


def _check_ids(name: str, ids: Tensor, limit: int | None = None, what: str = "ids", threads: int = 0) -> None:
    _check_tensor(name, ids)
    if ids.dtype not in _IDS:
        raise TypeError(f"{name}: expected int32 or int64 ids, found {ids.dtype}")
    if ids.dim() != 1:
        raise ValueError(f"{name}: expected a vector, found shape {tuple(ids.shape)}")
    if limit is not None and (at := first_outside(ids, limit, threads)) >= 0:
        raise IndexError(f"{name}[{at}] = {int(ids[at])} is out of range: expected {what} in [0, {limit})")


def first_outside(ids: Tensor, limit: int, threads: int = 0) -> int:
    """The position of the first id outside [0, limit), or -1.

    Args:
        ids: int32 or int64, shape [n].
        limit: the number of valid ids.
        threads: see the module.

    Raises:
        TypeError, ValueError: not a vector of int32 or int64, a negative limit.
    """
    _check_ids("ids", ids)
    _check_int("limit", limit)
    if ids.device.type != "cpu":
        outside = ((ids < 0) | (ids >= limit)).nonzero()
        return int(outside[0]) if len(outside) else -1
    return int(_ops.first_outside(ids.contiguous(), limit, _threads(threads)))


def check_colptr(colptr: Tensor, num_edges: int, threads: int = 0) -> None:
    """Checks a CSC column pointer.

    Args:
        colptr: int64, shape [num_columns + 1]: starts at 0, never falls, ends at ``num_edges``.
        num_edges: the number of edges it points into.
        threads: see the module.

    Raises:
        TypeError: not an int64 tensor.
        ValueError: malformed; names the first entry that is wrong.
    """
    if not isinstance(colptr, Tensor) or colptr.dtype != torch.int64:
        found = colptr.dtype if isinstance(colptr, Tensor) else type(colptr).__name__
        raise TypeError(f"colptr: expected an int64 tensor, found {found}")
    if colptr.dim() != 1 or colptr.numel() == 0:
        raise ValueError(f"colptr: expected a vector of at least one entry, found shape {tuple(colptr.shape)}")
    at = int(_ops.first_malformed(colptr.contiguous(), _check_int("num_edges", num_edges), _threads(threads)))
    if at < 0:
        return
    value = int(colptr[at])
    if at == 0 and value != 0:
        raise ValueError(f"colptr[0]: expected 0, found {value}")
    if at > 0 and value < int(colptr[at - 1]):
        raise ValueError(f"colptr[{at}] = {value} is less than colptr[{at - 1}] = {int(colptr[at - 1])}")
    raise ValueError(f"colptr[{at}] (the last): expected the number of edges {num_edges}, found {value}")


def coo_to_csc(src: Tensor, dst: Tensor, num_src: int, num_dst: int, threads: int = 0) -> tuple[Tensor, Tensor]:
    """Sorts edges by destination, stably, in parallel; the input is not changed.

    Args:
        src: source of each edge, int32 or int64, shape [E], in [0, num_src).
        dst: destination of each edge, the dtype and shape of ``src``, in [0, num_dst).
        num_src: number of source nodes.
        num_dst: number of destination nodes.
        threads: see the module.

    Returns:
        ``colptr``, int64, shape [num_dst + 1]; and ``edges``, shape [E, 2]: an edge's source and its position in the
        input, side by side because they are read together; int32 where both numbers fit, else int64.

    Raises:
        TypeError, ValueError, IndexError: wrong dtype, unequal lengths, an id out of range.
    """
    _check_int("num_src", num_src)
    _check_int("num_dst", num_dst, most=MAX_COUNT)
    _check_ids("src", src, num_src, threads=threads)
    _check_ids("dst", dst, num_dst, threads=threads)
    if src.dtype != dst.dtype or len(src) != len(dst):
        raise ValueError(
            f"src and dst: expected one dtype and length, found {src.dtype} [{len(src)}] and {dst.dtype} [{len(dst)}]"
        )
    int32 = max(num_src, len(src)) <= torch.iinfo(torch.int32).max
    return _ops.coo_to_csc(src.contiguous(), dst.contiguous(), num_dst, int32, _threads(threads))


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
    _check_tensor("colptr", colptr[0])
    if colptr[0].dtype != torch.int64 or colptr[0].dim() != 1 or colptr[0].numel() == 0:
        raise TypeError(f"colptr: expected an int64 vector, found {colptr[0].dtype} {tuple(colptr[0].shape)}")
    _check_ids("row", row[0])
    if edge_id[0] is not None:
        _check_ids("edge_id", edge_id[0])
        if len(edge_id[0]) != len(row[0]):
            raise ValueError(f"edge_id: expected one for each of {len(row[0])} edges, found {len(edge_id[0])}")
    if len(fanouts) > MAX_HOPS:
        raise ValueError(f"fanouts: expected at most {MAX_HOPS} hops, found {len(fanouts)}")
    for hop, fanout in enumerate(fanouts):
        if not isinstance(fanout, int) or not -1 <= fanout <= MAX_FANOUT:
            raise ValueError(f"fanouts[{hop}]: expected -1 (all) or 0..{MAX_FANOUT}, found {fanout}")
    _check_ids("seeds", seeds[0], colptr[0].numel() - 1, "nodes", threads)
    return Sample(
        *_ops.sample_neighbors(
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
            _check_key(key),
            replace,
            disjoint,
            last,
            layers,
            with_edge_id,
            with_col,
            _threads(threads),
        )
    )


def gather_rows(src: Tensor, index: Tensor, threads: int = 0) -> Tensor:
    """``src[index]`` for rows of any dtype and size, into recycled memory on the CPU; differentiable in ``src``.

    Args:
        src: shape [N, ...]; rows may be strided, each row must be contiguous.
        index: int32 or int64, shape [n], in [0, N), on the device of ``src``.
        threads: see the module.

    Returns:
        Shape [n, ...], the dtype of ``src``.

    Raises:
        TypeError, ValueError, IndexError: wrong dtype, shape, device or strides, an index out of range.
    """
    _check_tensor("src", src)
    _check_tensor("index", index)
    if src.dim() == 0:
        raise ValueError("src: expected at least one dimension, found a scalar")
    if index.device != src.device:
        raise ValueError(f"index: expected it on {src.device} like src, found {index.device}")
    if src.numel() and not src[0].is_contiguous():
        raise ValueError(f"src: expected contiguous rows, found strides {src.stride()} for shape {tuple(src.shape)}")
    _check_ids("index", index, src.size(0), "rows", threads)
    return _ops.gather_rows(src, index.contiguous(), _threads(threads))


def random_bits(count: int, key: int, offset: int = 0, threads: int = 0) -> Tensor:
    """Draws ``offset .. offset + count`` of a key, 64 random bits each: int64, shape [count]."""
    _check_int("count", count, most=MAX_COUNT)
    _check_int("offset", offset)
    return _ops.random_bits(count, _check_key(key), offset, _threads(threads))


def permutation(count: int, key: int) -> Tensor:
    """A random permutation of [0, count) by the shuffle of Fisher and Yates: int64, shape [count]."""
    return _ops.permutation(_check_int("count", count, most=MAX_COUNT), _check_key(key))


def rmat_edges(
    num_nodes: int, num_edges: int, key: int, quadrants: Sequence[float], first: int = 0, threads: int = 0
) -> Tensor:
    """Edges ``first .. first + num_edges`` of an R-MAT graph (Chakrabarti et al., SDM 2004).

    Args:
        num_nodes: nodes; edges that leave [0, num_nodes) of the next power of two are drawn again.
        num_edges: how many edges to return.
        key: 64 bits; an edge is a function of (key, its number).
        quadrants: probabilities a, b, c of the quadrants (d is the rest), rounded to multiples of 2^-16.
        first: the number of the first edge.
        threads: see the module.

    Returns:
        int64, shape [2, num_edges]: sources and destinations.
    """
    _check_int("num_nodes", num_nodes, 1, MAX_COUNT)
    _check_int("num_edges", num_edges, most=MAX_COUNT)
    _check_int("first", first)
    # Each level keeps an edge within range with probability a: it must not be so small that drawing again never ends.
    if len(quadrants) != 3 or not (quadrants[0] >= 0.01 and min(quadrants) >= 0 and sum(quadrants) <= 1):
        raise ValueError(f"quadrants: expected a >= 0.01, b, c >= 0 with a sum of at most 1, found {tuple(quadrants)}")
    a, b, c = quadrants
    thresholds = [round(65536 * p) for p in (a, a + b, a + b + c)]
    return _ops.rmat_edges(first, num_edges, num_nodes, thresholds, _check_key(key), _threads(threads))


class PoolStats(NamedTuple):
    """The state of the memory pool, in bytes, and how often a buffer was at hand."""

    idle_bytes: int
    live_bytes: int
    limit_bytes: int
    hits: int
    misses: int


def pool_stats() -> PoolStats:
    """The state of the pool that outputs on the CPU come from."""
    return PoolStats(*_ops.pool_stats())


def pool_limit(num_bytes: int) -> None:
    """Bounds the bytes that the pool keeps for later use (a quarter of the machine's memory at first)."""
    _ops.pool_limit(_check_int("num_bytes", num_bytes))


def pool_trim() -> None:
    """Frees every buffer and relabel map that is not in use."""
    _ops.pool_trim()


def huge_pages(tensor: Tensor) -> None:
    """Moves a contiguous CPU tensor's memory into huge pages where the system can (Linux 6.1 and later).

    Contents and addresses stay. Rows that are read at random then cost fewer walks through the page table; moving takes
    about a second for each GB, once. Where the system cannot, nothing happens.
    """
    _check_tensor("tensor", tensor)
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"tensor: expected a contiguous CPU tensor, found {tensor.device}, strides {tensor.stride()}")
    _ops.huge_pages(tensor)


def _register() -> None:
    """Shapes for tracing, and the one derivative."""

    @torch.library.register_fake("gnnscale::coo_to_csc")
    def _(src, dst, num_dst, int32, threads):
        edges = src.new_empty((src.numel(), 2), dtype=torch.int32 if int32 else torch.int64)
        return src.new_empty(num_dst + 1, dtype=torch.int64), edges

    @torch.library.register_fake("gnnscale::first_outside")
    def _(ids, limit, threads):
        return ids.new_empty((), dtype=torch.int64)

    @torch.library.register_fake("gnnscale::first_malformed")
    def _(colptr, num_edges, threads):
        return colptr.new_empty(())

    @torch.library.register_fake("gnnscale::sample_neighbors")
    def _(colptr, row, edge_id, weight, node_time, edge_time, src_type, dst_type, seeds, seed_time, fanouts, key,
          replace, disjoint, last, layers, with_edge_id, with_col, threads):  # fmt: skip
        context = torch.library.get_ctx()
        nodes, columns, edges = (context.new_dynamic_size() for _ in range(3))
        empty = seeds[0].new_empty
        return (
            [empty(nodes, dtype=torch.int64)],
            [empty(columns, dtype=torch.int64)],
            [empty((2 if with_col else 1, edges), dtype=torch.int64)],
            [empty(edges, dtype=torch.int64)] if with_edge_id else [],
            [],
            empty((1, len(fanouts) + 1), dtype=torch.int64),
            empty((1, len(fanouts)), dtype=torch.int64),
        )

    @torch.library.register_fake("gnnscale::gather_rows")
    def _(src, index, threads):
        return src.new_empty((index.numel(), *src.shape[1:]))

    @torch.library.register_fake("gnnscale::huge_pages")
    def _(tensor):
        return None

    @torch.library.register_fake("gnnscale::random_bits")
    def _(count, key, offset, threads):
        return torch.empty(count, dtype=torch.int64)

    @torch.library.register_fake("gnnscale::permutation")
    def _(count, key):
        return torch.empty(count, dtype=torch.int64)

    @torch.library.register_fake("gnnscale::rmat_edges")
    def _(first, count, num_nodes, thresholds, key, threads):
        return torch.empty((2, count), dtype=torch.int64)

    def setup_context(ctx, inputs, output):
        src, index, _ = inputs
        ctx.save_for_backward(index)
        ctx.shape = src.shape

    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        return grad.new_zeros(ctx.shape).index_add_(0, index, grad), None, None

    torch.library.register_autograd("gnnscale::gather_rows", backward, setup_context=setup_context)


_register()
