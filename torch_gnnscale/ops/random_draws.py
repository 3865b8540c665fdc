"""Operators that draw at random, but no neighbors: bits, permutations, dropout of rows, R-MAT edges and negative
links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .arguments import (
    MAX_COUNT,
    OPS,
    check_ids,
    check_int,
    check_key,
    check_on_host,
    check_tensor,
    check_vector,
    resolve_threads,
)
from .neighbor_drawing import weight_sums
from .ranks import FLOATS
from .topology import coo_to_csc


def random_bits(count: int, key: int, offset: int = 0, threads: int = 0) -> Tensor:
    """Draws ``offset .. offset + count`` of a key, 64 random bits each: int64, shape [count]."""
    check_int("count", count, most=MAX_COUNT)
    check_int("offset", offset)
    return OPS.random_bits(count, check_key(key), offset, resolve_threads(threads))


def dropout_rows(x: Tensor, id: Tensor, key: int, p: float, threads: int = 0) -> Tensor:
    """Each number of x is 0 with probability p, else itself times ``1 / (1 - p)``; differentiable in x.

    What is kept is a function of (key, the row's id, the column): the backward pass draws it again, and a row has the
    same mask wherever it is computed.

    Args:
        x: floats, shape [n, columns].
        id: int64, shape [n], on the device of x.
        key: 64 bits.
        p: in [0, 1], rounded to a multiple of 2^-32.
        threads: see the package.

    Raises:
        TypeError, ValueError: wrong dtype, shape or device, p out of range.
    """
    check_tensor("x", x)
    check_ids("id", id)
    if x.dtype not in FLOATS or x.dim() != 2:
        raise ValueError(f"x: expected a matrix of floats, found {x.dtype} {tuple(x.shape)}")
    if id.dtype != torch.int64 or id.shape != x.shape[:1] or id.device != x.device:
        raise ValueError(
            f"id: expected int64 of shape ({len(x)},) on {x.device}, found {id.dtype} {tuple(id.shape)} on {id.device}"
        )
    if not 0 <= p <= 1:
        raise ValueError(f"p: expected 0 <= p <= 1, found {p}")
    threshold, scale = round(p * (1 << 32)), 1 / (1 - p) if p < 1 else 0.0
    return OPS.dropout_rows(x.contiguous(), id.contiguous(), check_key(key), threshold, scale, resolve_threads(threads))


def permutation(count: int, key: int) -> Tensor:
    """A random permutation of [0, count) by the shuffle of Fisher and Yates: int64, shape [count]."""
    return OPS.permutation(check_int("count", count, most=MAX_COUNT), check_key(key))


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
        threads: see the package.

    Returns:
        int64, shape [2, num_edges]: sources and destinations.
    """
    check_int("num_nodes", num_nodes, 1, MAX_COUNT)
    check_int("num_edges", num_edges, most=MAX_COUNT)
    check_int("first", first)
    # Each level keeps an edge within range with probability a: it must not be so small that drawing again never ends.
    if len(quadrants) != 3 or not (quadrants[0] >= 0.01 and min(quadrants) >= 0 and sum(quadrants) <= 1):
        raise ValueError(f"quadrants: expected a >= 0.01, b, c >= 0 with a sum of at most 1, found {tuple(quadrants)}")
    a, b, c = quadrants
    thresholds = [round(65536 * p) for p in (a, a + b, a + b + c)]
    return OPS.rmat_edges(first, num_edges, num_nodes, thresholds, check_key(key), resolve_threads(threads))


MAX_WEIGHTED = 1 << 30
"""Candidates with weights, whose sums then have 62 bits."""


class Candidates(NamedTuple):
    """The nodes that may be one end of a negative link, from :func:`candidates`."""

    num_nodes: int
    """Nodes of their type."""
    size: int
    """How many of them are candidates."""
    node: Tensor | None
    """Their ids, in order of time: int64, shape [size]. None where they are 0 .. size."""
    position: Tensor | None
    """Where each node is in ``node``, or -1: int64, shape [num_nodes]."""
    weight: Tensor | None
    """Sums of integer weights up to and with each candidate: int64, shape [size]. None where all weigh the same."""
    time: Tensor | None
    """Their times, not decreasing: int64, shape [size]."""


def candidates(num_nodes: int, weight: Tensor | None = None, time: Tensor | None = None) -> Candidates:
    """Prepares the nodes of a type to be drawn as ends of negative links.

    Args:
        num_nodes: nodes of the type.
        weight: each node is drawn in proportion to it: real, finite and not negative, shape [num_nodes]. Weights above
            0 become integers as in :func:`weight_sums`, all nodes being one column; a node of weight 0 is no candidate.
        time: int64, shape [num_nodes]. A node is drawn for seeds that are not earlier.

    Raises:
        TypeError, ValueError: not such vectors; no weight above 0.
        NotImplementedError: they are on a device.
    """
    check_int("num_nodes", num_nodes, 0, MAX_COUNT)
    node = None
    if weight is not None:
        _check_vector("weight", weight, num_nodes)
        if weight.dtype == torch.bool or weight.is_complex():
            raise TypeError(f"weight: expected real numbers, found {weight.dtype}")
        wrong = ~((weight >= 0) & torch.isfinite(weight))
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            raise ValueError(f"weight[{at}] = {float(weight[at])}: expected a finite number that is not negative")
        node = weight.nonzero().squeeze(1)
        if num_nodes > 0 and len(node) == 0:
            raise ValueError("weight: expected a number above 0, found none")
        if len(node) > MAX_WEIGHTED:
            raise ValueError(f"weight: expected at most {MAX_WEIGHTED} numbers above 0, found {len(node)}")
        node = None if len(node) == num_nodes else node
    if time is not None:
        _check_vector("time", time, num_nodes)
        if time.dtype != torch.int64:
            raise TypeError(f"time: expected int64, found {time.dtype}")
        time = time if node is None else time[node]
        if bool((time[1:] < time[:-1]).any()):
            order = torch.argsort(time, stable=True)
            time, node = time[order], order if node is None else node[order]
        time = time.contiguous()
    size, position = num_nodes, None
    if node is not None:
        size = len(node)
        position = torch.full((num_nodes,), -1)
        position[node] = torch.arange(size)
    if weight is not None:
        weight = weight_sums(torch.tensor([0, size]), weight if node is None else weight[node])
    return Candidates(num_nodes, size, node, position, weight, time)


class EdgeSet(NamedTuple):
    """The edges that no negative may be, from :func:`edge_set`."""

    ptr: Tensor
    """Where each source's edges begin: int64, shape [num_src + 1]."""
    dst: Tensor
    """Their destinations, not decreasing for a source: int32 or int64, shape [E]."""


def edge_set(src: Tensor, dst: Tensor, num_src: int, num_dst: int, threads: int = 0) -> EdgeSet:
    """Prepares edges to be looked up; the arguments are those of :func:`coo_to_csc`."""
    check_ids("dst", dst)
    if bool((dst[1:] < dst[:-1]).any()):
        _, edges = coo_to_csc(src, dst, num_src, num_dst, threads)
        src, dst = edges[:, 0].to(src.dtype), dst.sort().values
    ptr, edges = coo_to_csc(dst, src, num_dst, num_src, threads)
    return EdgeSet(ptr, edges[:, 0].contiguous())


def sample_negatives(
    count: int,
    src: Tensor | Candidates,
    dst: Candidates,
    key: int,
    *,
    seed_time: Tensor | None = None,
    edges: EdgeSet | None = None,
    threads: int = 0,
) -> Tensor:
    """Draws negative links, each as a function of (key, its number) and independently of the others.

    Both ends, or the destination of a given source, are drawn from the candidates in proportion to their weights, given
    that the link is valid: neither end later than the seed's time, and the link no edge. Attempt a of link i takes its
    draws from the block of the counter i 64 | a 32 | 0 32. If none of 64 attempts is valid, the next block draws
    from all valid links, so that a link is found wherever there is one.

    Args:
        count: how many.
        src: the sources, int32 or int64, shape [count], or the candidates that they are drawn from.
        dst: the candidates for destinations.
        key: 64 bits, from :func:`torch_gnnscale.random.batch_key`.
        seed_time: int64, shape [count]; needed if candidates have times.
        edges: no negative is one of these.
        threads: see the package.

    Returns:
        Sources and destinations: int64, shape [2, count].

    Raises:
        TypeError, ValueError, IndexError: wrong dtypes, shapes or ids; a link that nothing is valid for, by its number.
        NotImplementedError: tensors on a device.
    """
    check_int("count", count, 0, MAX_COUNT)
    if not _counted(dst):
        _check_candidates("dst", dst)
    timed = dst.time is not None
    if isinstance(src, Candidates):
        if not _counted(src):
            _check_candidates("src", src)
        timed = timed or src.time is not None
        given, num_src = None, src.num_nodes
    else:
        check_ids("src", src)
        check_on_host("src", src)
        if src.numel() != count:
            raise ValueError(f"src: expected {count} sources, found {len(src)}")
        given, num_src = src.to(torch.int64).contiguous(), None
    if timed:
        if seed_time is None:
            raise ValueError("seed_time: required if candidates have times, found None")
        _check_vector("seed_time", seed_time, count)
        if seed_time.dtype != torch.int64:
            raise TypeError(f"seed_time: expected int64, found {seed_time.dtype}")
    if edges is not None and not (isinstance(edges, EdgeSet) and isinstance(edges.ptr, Tensor)):
        _check_edges(edges)
    if edges is not None and num_src not in (None, edges.ptr.numel() - 1):
        raise ValueError(f"edges: expected those of {num_src} sources, found {edges.ptr.numel() - 1}")
    if given is not None and edges is not None:
        check_ids("src", given, edges.ptr.numel() - 1, "nodes", threads)
    drawn = src if isinstance(src, Candidates) else Candidates(0, 0, None, None, None, None)
    try:
        found, failed = OPS.sample_negatives.default(
            count, given, drawn.size, drawn.node, drawn.weight, drawn.time,
            dst.size, dst.node, dst.position, dst.weight, dst.time,
            seed_time.contiguous() if timed and seed_time is not None else None,
            None if edges is None else edges.ptr, None if edges is None else edges.dst, check_key(key),
            resolve_threads(threads),
        )  # fmt: skip
    except RuntimeError:  # candidates or edges that no function of this module made, which these name
        for name, ends in (("dst", dst), ("src", drawn)):
            _check_candidates(name, ends)
        if edges is not None:
            _check_edges(edges)
        raise
    if failed >= 0:
        wanted = "a link" if given is None else f"a destination for source {int(given[failed])}"
        time = f" of nodes not later than {int(seed_time[failed])}" if timed and seed_time is not None else ""
        edge = "" if edges is None else " that is not an edge"
        raise ValueError(f"negative {failed}: expected {wanted}{time}{edge}, found none")
    return found


def _counted(given: Any) -> bool:
    """Whether there are as many candidates as there can be; the operator checks their tensors."""
    if not isinstance(given, Candidates) or type(given.size) is not int or type(given.num_nodes) is not int:
        return False
    if given.node is None or given.position is None:
        return given.node is given.position and given.size == given.num_nodes
    return isinstance(given.position, Tensor) and given.size <= given.num_nodes == given.position.numel()


def _check_candidates(name: str, given: Candidates) -> None:
    """Raises for what :func:`candidates` would not return; numbers in tensors are not looked at."""
    if not isinstance(given, Candidates):
        raise TypeError(f"{name}: expected what candidates() returns, found {type(given).__name__}")
    num_nodes = check_int(f"{name}.num_nodes", given.num_nodes, 0, MAX_COUNT)
    size = check_int(f"{name}.size", given.size, 0, num_nodes)
    if (given.node is None) != (given.position is None) or (given.node is None and size != num_nodes):
        raise ValueError(f"{name}: expected node and position, or neither and all {num_nodes} nodes, found {size}")
    for field, value in given._asdict().items():
        if isinstance(value, Tensor):
            check_vector(f"{name}.{field}", value, num_nodes if field == "position" else size)


def _check_edges(edges: EdgeSet) -> None:
    """Raises for what :func:`edge_set` would not return."""
    if not isinstance(edges, EdgeSet):
        raise TypeError(f"edges: expected what edge_set() returns, found {type(edges).__name__}")
    check_ids("edges.dst", edges.dst)
    check_tensor("edges.ptr", edges.ptr)
    check_vector("edges.ptr", edges.ptr, edges.ptr.numel())
    if edges.ptr.numel() == 0:
        raise ValueError("edges.ptr: expected at least one entry, found none")


def _check_vector(name: str, value: Tensor, size: int) -> None:
    check_tensor(name, value)
    check_on_host(name, value)
    if value.shape != (size,):
        raise ValueError(f"{name}: expected shape ({size},), found {tuple(value.shape)}")
