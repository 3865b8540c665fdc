"""Operators that aggregate neighbors' rows over a CSC, and those that their gradients need.

Column i has the *entries* ``ptr[i]`` to ``ptr[i + 1] - 1``. Entry k reads the row of ``node[k]`` and the weights of
edge ``edge[k]``; without ``edge``, of edge k. So the same entries, sorted by source, are the transposed graph, whose
edges keep their numbers.

A sum takes a column's entries in stored order, 128 at a time: each such piece is summed by itself, and then the sums of
pieces are added. So results do not depend on threads. On x86-64 they do not depend on the device either: those of a GPU
are the CPU's, bit for bit. Rows of 16 bits are summed in float32; a result of 16 bits is rounded once.

All tensors of a call are in host memory or on one GPU. On a GPU the host waits for nothing, so it cannot report ids out
of range and a malformed ``ptr``: they are a device-side assertion, which ends the process's work on that GPU, as in
torch's own kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _library
from .arguments import OPS, check_choice, check_ids, check_int, check_same, check_tensor, resolve_threads

REDUCTIONS = ("sum", "mean", "max", "min")
"""How :func:`aggregate` combines the rows of a column."""

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Of rows."""
_ALL_EDGES = (1 << 63) - 1


def can_aggregate(x: Tensor) -> bool:
    """Whether there is an operator for rows of this dtype on this device."""
    device = x.device.type
    loaded = device == "cpu" or (device == "cuda" and _library.status.get("_CUDA") == "loaded")
    return loaded and x.dtype in DTYPES


def sum_dtype(of: torch.dtype) -> torch.dtype:
    """The dtype in which rows of a dtype are summed; what they are multiplied by has it, too, or their own."""
    return torch.float32 if of.itemsize == 2 else of


def _either(dtype: torch.dtype, other: torch.dtype | None) -> str:
    return f"{dtype}" if other in (dtype, None) else f"{dtype} or {other}"


def _check_entries(ptr: Tensor, node: Tensor, edge: Tensor | None) -> None:
    check_tensor("ptr", ptr)
    if ptr.dtype != torch.int64 or ptr.dim() != 1 or ptr.numel() == 0 or not ptr.is_contiguous():
        raise TypeError(f"ptr: expected a contiguous int64 vector, found {ptr.dtype} {tuple(ptr.shape)}")
    check_ids("node", node)
    if edge is not None:
        check_ids("edge", edge)
        if edge.dtype != node.dtype or len(edge) != len(node):
            raise ValueError(f"edge: expected {node.dtype} [{len(node)}] like node, found {edge.dtype} [{len(edge)}]")


def _check_rows(
    name: str,
    rows: Tensor,
    like: Tensor | None = None,
    count: int | None = None,
    factor: torch.dtype | None = None,
) -> Tensor:
    check_tensor(name, rows)
    if rows.dtype not in DTYPES:
        raise TypeError(f"{name}: expected float32, float64, float16 or bfloat16, found {rows.dtype}")
    if rows.dim() != 2:
        raise ValueError(f"{name}: expected a matrix, found shape {tuple(rows.shape)}")
    if like is not None and (rows.dtype not in (like.dtype, factor) or rows.size(1) != like.size(1)):
        dtypes = _either(like.dtype, factor)
        raise ValueError(
            f"{name}: expected {dtypes} of width {like.size(1)}, found {rows.dtype} of width {rows.size(1)}"
        )
    if count is not None and rows.size(0) != count:
        raise ValueError(f"{name}: expected {count} rows, found {rows.size(0)}")
    return rows.contiguous()


def aggregate(
    ptr: Tensor,
    node: Tensor,
    x: Tensor,
    reduce: str = "sum",
    *,
    weight: Tensor | None = None,
    edge: Tensor | None = None,
    num_edges: int | None = None,
    more: Tensor | None = None,
    threads: int = 0,
) -> Tensor:
    """Row i is the ``reduce`` of ``weight[edge[k]] * x[node[k]]`` over the entries k of column i, in stored order.

    Args:
        ptr: int64, shape [n + 1].
        node: int32 or int64, shape [K], any stride.
        x: float32, float64, float16 or bfloat16, shape [N, F].
        reduce: "sum", "mean", "max" or "min"; with weights "sum" or "mean". A column without entries gives zeros.
        weight: the dtype of x, or float32 beside rows of 16 bits, shape [E, H]: head h applies to columns h * F / H ..
            (h + 1) * F / H of x.
        edge: the edge of each entry, the dtype of ``node``, shape [K]; rising within a column for ``num_edges``.
        num_edges: entries with ``edge[k] >= num_edges`` are left out.
        more: further rows, of the dtype of x, shape [M, F]: node N + i is ``more[i]``.
        threads: 0 for torch's number of threads; of no account on a GPU.

    Returns:
        The dtype of ``weight``, if there are weights, else that of x, shape [n, F].

    Raises:
        TypeError, ValueError: wrong dtypes, shapes or devices.
        RuntimeError: in host memory, a malformed ``ptr``, nodes or edges out of range.
    """
    _check_entries(ptr, node, edge)
    x = _check_rows("x", x)
    more = None if more is None else _check_rows("more", more, x)
    check_choice("reduce", reduce, REDUCTIONS)
    limit = _ALL_EDGES if num_edges is None else check_int("num_edges", num_edges, most=node.numel())
    if weight is not None:
        least = min(limit, node.numel())
        if reduce in ("max", "min"):
            raise ValueError(f"weight: expected none with reduce={reduce!r}")
        check_tensor("weight", weight)
        if weight.dim() != 2 or weight.dtype not in (x.dtype, sum_dtype(x.dtype)) or weight.size(0) < least:
            raise ValueError(
                f"weight: expected {_either(x.dtype, sum_dtype(x.dtype))} [at least {least}, heads], found "
                f"{weight.dtype} {tuple(weight.shape)}"
            )
        if weight.size(1) == 0 or x.size(1) % weight.size(1):
            raise ValueError(f"weight: expected heads that divide x's width {x.size(1)}, found {weight.size(1)}")
        weight = weight.contiguous()
    check_same({"ptr": ptr, "node": node, "edge": edge, "more": more, "weight": weight}, x.device, "x is")
    return OPS.aggregate(ptr, node, edge, limit, x, more, weight, reduce, resolve_threads(threads))


def edge_dot(
    ptr: Tensor, node: Tensor, x: Tensor, y: Tensor, heads: int = 1, *, edge: Tensor | None = None, threads: int = 0
) -> Tensor:
    """``<x[node[k], h], y[i, h]>`` for each entry k of column i, head h: the gradient of :func:`aggregate`'s weights.

    Args:
        ptr: int64, shape [n + 1], with ``ptr[0] == 0`` and ``ptr[n] == K``.
        node: int32 or int64, shape [K], any stride.
        x: float32, float64, float16 or bfloat16, shape [N, F].
        y: the dtype of x, or float32 beside rows of 16 bits, shape [n, F].
        heads: how many parts of a row have a product of their own; divides F.
        edge: the edge of each entry, the dtype of ``node``, shape [K]: a permutation of [0, K).
        threads: 0 for torch's number of threads; of no account on a GPU.

    Returns:
        The dtype of y, shape [K, heads], in the order of the edges.

    Raises:
        TypeError, ValueError: wrong dtypes, shapes or devices.
        RuntimeError: in host memory, a malformed ``ptr``, nodes or edges out of range.
    """
    _check_entries(ptr, node, edge)
    x = _check_rows("x", x)
    y = _check_rows("y", y, x, ptr.numel() - 1, sum_dtype(x.dtype))
    if x.size(1) % check_int("heads", heads, 1):
        raise ValueError(f"heads: expected a divisor of x's width {x.size(1)}, found {heads}")
    check_same({"ptr": ptr, "node": node, "edge": edge, "y": y}, x.device, "x is")
    return OPS.edge_dot(ptr, node, edge, x, y, heads, resolve_threads(threads))


def _check_scores(
    ptr: Tensor, node: Tensor, of_sources: Tensor, of_columns: Tensor | None, of_entries: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Those of sources, columns and entries, contiguous."""
    _check_entries(ptr, node, None)
    of_sources = _check_rows("of_sources", of_sources)
    if of_sources.dtype.itemsize == 2 or of_sources.size(1) == 0:
        raise ValueError(
            f"of_sources: expected float32 or float64 of at least one head, found {of_sources.dtype} of width "
            f"{of_sources.size(1)}"
        )
    if of_columns is not None:
        of_columns = _check_rows("of_columns", of_columns, of_sources, ptr.numel() - 1)
    if of_entries is not None:
        of_entries = _check_rows("of_entries", of_entries, of_sources, node.numel())
    others = {"ptr": ptr, "node": node, "of_columns": of_columns, "of_entries": of_entries}
    check_same(others, of_sources.device, "of_sources is")
    return of_sources, of_columns, of_entries


def edge_attention(
    ptr: Tensor,
    node: Tensor,
    of_sources: Tensor,
    of_columns: Tensor | None = None,
    of_entries: Tensor | None = None,
    *,
    slope: float = 0.2,
    threads: int = 0,
) -> Tensor:
    """The softmax over each column's entries of ``leaky_relu(of_sources[node[k]] + of_columns[i] + of_entries[k])``, of
    each head: GAT's attention (Velickovic et al., equation 3).

    The largest score of a column is taken off before. Exponentials are the library's own, equal on all devices, and
    within a few units in the last place; those below 2 ** -126 (2 ** -1022 in float64) are 0.

    Args:
        ptr: int64, shape [n + 1], with ``ptr[0] == 0`` and ``ptr[n] == K``.
        node: int32 or int64, shape [K], any stride.
        of_sources: float32 or float64, shape [N, H].
        of_columns: the dtype of ``of_sources``, shape [n, H]; None for zeros.
        of_entries: the dtype of ``of_sources``, shape [K, H]; None for zeros.
        slope: of negative scores.
        threads: 0 for torch's number of threads; of no account on a GPU.

    Returns:
        The dtype of ``of_sources``, shape [K, H].

    Raises:
        TypeError, ValueError: wrong dtypes, shapes or devices.
        RuntimeError: in host memory, a malformed ``ptr``, nodes out of range.
    """
    scores = _check_scores(ptr, node, of_sources, of_columns, of_entries)
    return OPS.edge_attention(ptr, node, *scores, float(slope), resolve_threads(threads))


def edge_attention_backward(
    ptr: Tensor,
    node: Tensor,
    of_sources: Tensor,
    of_columns: Tensor | None,
    of_entries: Tensor | None,
    weight: Tensor,
    grad: Tensor,
    *,
    slope: float = 0.2,
    threads: int = 0,
) -> tuple[Tensor, Tensor]:
    """The gradients of :func:`edge_attention`'s scores; those of sources are the first one's sums over the transposed
    graph.

    Args:
        ptr, node, of_sources, of_columns, of_entries, slope, threads: as given to it.
        weight: what it returned, shape [K, H].
        grad: the gradient of that, shape [K, H].

    Returns:
        The gradients of ``of_entries``, shape [K, H], and of ``of_columns``, shape [n, H].

    Raises:
        TypeError, ValueError: wrong dtypes, shapes or devices.
        RuntimeError: in host memory, a malformed ``ptr``, nodes out of range.
    """
    scores = _check_scores(ptr, node, of_sources, of_columns, of_entries)
    weight = _check_rows("weight", weight, scores[0], node.numel())
    grad = _check_rows("grad", grad, scores[0], node.numel())
    check_same({"weight": weight, "grad": grad}, of_sources.device, "of_sources is")
    return OPS.edge_attention_backward(ptr, node, *scores, float(slope), weight, grad, resolve_threads(threads))


def share_of_extremes(
    ptr: Tensor, node: Tensor, x: Tensor, extreme: Tensor, grad: Tensor, *, threads: int = 0
) -> Tensor:
    """``grad`` divided by how many of a column's entries reach ``extreme`` (zero where none does).

    Args:
        ptr: int64, shape [n + 1].
        node: int32 or int64, shape [K], any stride.
        x: float32, float64, float16 or bfloat16, shape [N, F].
        extreme: what :func:`aggregate` gave for "max" or "min", shape [n, F].
        grad: the gradient of ``extreme``, shape [n, F].
        threads: 0 for torch's number of threads; of no account on a GPU.

    Returns:
        The dtype of x, shape [n, F].

    Raises:
        TypeError, ValueError: wrong dtypes, shapes or devices.
        RuntimeError: in host memory, a malformed ``ptr``, nodes out of range.
    """
    _check_entries(ptr, node, None)
    x = _check_rows("x", x)
    extreme = _check_rows("extreme", extreme, x, ptr.numel() - 1)
    grad = _check_rows("grad", grad, x, ptr.numel() - 1)
    check_same({"ptr": ptr, "node": node, "extreme": extreme, "grad": grad}, x.device, "x is")
    return OPS.share_of_extremes(ptr, node, x, extreme, grad, resolve_threads(threads))


def extreme_backward(
    ptr: Tensor,
    node: Tensor,
    x: Tensor,
    extreme: Tensor,
    share: Tensor,
    *,
    edge: Tensor | None = None,
    num_edges: int | None = None,
    threads: int = 0,
) -> Tensor:
    """The gradient of x under "max" or "min": rows that tie share it equally, as in torch's ``scatter_reduce``.

    Args:
        ptr: of the transposed graph, int64, shape [N + 1].
        node: destination of each of its entries, int32 or int64, shape [K], any stride.
        x: float32, float64, float16 or bfloat16, shape [N, F].
        extreme: what :func:`aggregate` gave, shape [n, F].
        share: from :func:`share_of_extremes`, shape [n, F].
        edge: the edge of each entry, the dtype of ``node``, shape [K]; rising within a column.
        num_edges: entries with ``edge[k] >= num_edges`` are left out.
        threads: 0 for torch's number of threads; of no account on a GPU.

    Returns:
        The dtype of x, shape [N, F].

    Raises:
        TypeError, ValueError: wrong dtypes, shapes or devices.
        RuntimeError: in host memory, a malformed ``ptr``, nodes or edges out of range.
    """
    _check_entries(ptr, node, edge)
    x = _check_rows("x", x, count=ptr.numel() - 1)
    extreme = _check_rows("extreme", extreme, x)
    share = _check_rows("share", share, x, extreme.size(0))
    limit = _ALL_EDGES if num_edges is None else check_int("num_edges", num_edges, most=node.numel())
    check_same({"ptr": ptr, "node": node, "edge": edge, "extreme": extreme, "share": share}, x.device, "x is")
    return OPS.extreme_backward(ptr, node, edge, limit, x, extreme, share, resolve_threads(threads))
