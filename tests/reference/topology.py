"""Construction and checks of a CSC, scores of its nodes, and rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from torch_gnnscale.ops import Relations


def gather_rows(src: Tensor, index: Tensor) -> Tensor:
    """The rows of ``src`` at ``index``, copied one by one."""
    out = torch.empty((len(index), *src.shape[1:]), dtype=src.dtype, device=src.device)
    for i, row in enumerate(index.tolist()):
        out[i] = src[row]
    return out


def pack_rows(rows: Sequence[Tensor], index: Sequence[Tensor], at: Sequence[int], total: int) -> Tensor:
    """``total`` bytes: from ``at[i]`` on, the rows ``index[i]`` of ``rows[i]``; 0 elsewhere."""
    out = torch.zeros(total, dtype=torch.uint8)
    for table, ids, begin in zip(rows, index, at, strict=True):
        for row in ids.tolist():
            bytes_ = table[row].contiguous().view(-1).view(torch.uint8)
            out[begin : begin + len(bytes_)] = bytes_
            begin += len(bytes_)
    return out


def gather_nested(values: Tensor, offset: Tensor, columns: int, index: Tensor) -> tuple[Tensor, Tensor]:
    """Cell by cell; that of row i and column j has the values from ``offset[i * columns + j]`` on."""
    found, ends = [], [0]
    for i in index.tolist():
        for at in range(i * columns, (i + 1) * columns):
            found += values[int(offset[at]) : int(offset[at + 1])].tolist()
            ends.append(len(found))
    return torch.tensor(found, dtype=values.dtype), torch.tensor(ends)


def join_rows(own: Tensor, other: Tensor, at: Tensor, place: Tensor) -> Tensor:
    """Row i is ``own[place[i]]`` if ``place[i] >= 0``, else the bytes of ``other`` from ``at[-1 - place[i]]`` on."""
    out = torch.empty((len(place), *own.shape[1:]), dtype=own.dtype)
    for i, p in enumerate(place.tolist()):
        if p >= 0:
            out[i] = own[p]
        else:
            begin = int(at[-1 - p])
            out[i].view(-1).view(torch.uint8).copy_(other[begin : begin + out[i].nbytes])
    return out


def gather_tiers(
    segments: Sequence[Tensor],
    index: Tensor,
    *,
    spread: Sequence[int] | None = None,
    place: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The rows at ``place[index]`` of a list of all rows: tier after tier; row r of a tier of n segments is row r // n
    of its segment r % n."""
    dtype = segments[0].dtype if dtype is None else dtype
    rows, left = [], list(segments)
    for count in [1] * len(segments) if spread is None else spread:
        tier, left = left[:count], left[count:]
        total = sum(len(segment) for segment in tier)
        rows += [tier[r % count][r // count].to(dtype) for r in range(total)]
    out = torch.empty((len(index), *segments[0].shape[1:]), dtype=dtype)
    for i, node in enumerate(index.tolist()):
        out[i] = rows[node if place is None else int(place[node])]
    return out


def coo_to_csc(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> tuple[Tensor, Tensor]:
    """``colptr``, and (source, position in the input) of each edge, sorted by destination, ties by position."""
    position = torch.argsort(dst, stable=True)
    colptr = torch.zeros(num_dst + 1, dtype=torch.int64)
    colptr[1:] = torch.bincount(dst, minlength=num_dst).cumsum(0)
    int32 = max(num_src, len(src)) < 1 << 31
    return colptr, torch.stack([src[position], position], dim=1).to(torch.int32 if int32 else torch.int64)


def colptr_of_sorted(dst: Tensor, num_dst: int) -> Tensor:
    """The column pointer of edges that are sorted by destination."""
    return torch.searchsorted(dst, torch.arange(num_dst + 1, dtype=dst.dtype))


def first_outside(ids: Tensor, limit: int) -> int:
    """The position of the first id outside [0, limit), or -1."""
    return next((at for at, value in enumerate(ids.tolist()) if not 0 <= value < limit), -1)


def first_malformed(colptr: Tensor, num_edges: int) -> int:
    """The first wrong entry of a column pointer, or -1. Wrong are: a first entry other than 0, an entry less than the
    one before it, a last entry other than ``num_edges``."""
    values = colptr.tolist()
    if values[0] != 0:
        return 0
    for at in range(1, len(values)):
        if values[at] < values[at - 1]:
            return at
    return -1 if values[-1] == num_edges else len(values) - 1


def renumber(colptr: Tensor, row: Tensor, order: Tensor, *, edge_id: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The CSC of the graph whose node i is ``order[i]`` of the given one: ``colptr`` and (source, edge id) pairs."""
    rank = {old: new for new, old in enumerate(order.tolist())}
    names = range(len(row)) if edge_id is None else edge_id.tolist()
    lists = [range(int(colptr[old]), int(colptr[old + 1])) for old in order.tolist()]
    pairs = [(rank[int(row[e])], names[e]) for positions in lists for e in positions]
    begin = torch.tensor([0] + [len(positions) for positions in lists]).cumsum(0)
    int32 = max([len(lists), len(row), *names]) < 1 << 31
    return begin, torch.tensor(pairs, dtype=torch.int32 if int32 else torch.int64).reshape(-1, 2)


def reverse_edges(graph: Relations, number: int, num_ids: int, *, same_time: bool = False) -> Tensor | None:
    """``result[id of an edge v to u]`` is the id of the edge u to v that is stored as the first, second, ... of its
    kind as that one is; None unless each edge of both relations has such a reverse, of the same time if that is
    asked for."""

    def stored(r: int) -> dict[tuple[int, int], list[tuple[int, int | None]]]:
        """(id, time) of the edges from each source to each destination."""
        found: dict[tuple[int, int], list[tuple[int, int | None]]] = {}
        edge_id, time = graph.edge_id[r], graph.time[r] if same_time else None
        for dst, (begin, end) in enumerate(pairwise(graph.colptr[r].tolist())):
            for e in range(begin, end):
                value = e if edge_id is None else int(edge_id[e]), None if time is None else int(time[e])
                found.setdefault((int(graph.row[r][e]), dst), []).append(value)
        return found

    edges, reverse = stored(number), stored(graph.reverse[number])
    table = [-1] * num_ids
    for dst, src in edges.keys() | {ends[::-1] for ends in reverse}:
        here, there = edges.get((dst, src), []), reverse.get((src, dst), [])
        if [time for _, time in here] != [time for _, time in there]:
            return None
        for (one, _), (other, _) in zip(here, there, strict=True):
            table[other] = one
    return torch.tensor(table, dtype=torch.int64)


def reverse_pagerank(
    colptr: Tensor, row: Tensor, initial: Tensor, iterations: int = 5, damping: float = 0.85
) -> Tensor:
    """Scores in integers: each node's teleport plus what the nodes that it points to pass on to it."""
    num_nodes = len(colptr) - 1
    unit, share = 1 << (60 - max(num_nodes, 1).bit_length()), round(damping * (1 << 32))
    scores = initial.tolist()
    for _ in range(iterations):
        gained = [unit - (unit * share >> 32)] * num_nodes
        for node, score in enumerate(scores):
            sources = row[colptr[node] : colptr[node + 1]].tolist()
            for source in sources:
                gained[source] += (score * share >> 32) // len(sources)
        scores = gained
    return torch.tensor(scores, dtype=torch.int64)


def count_ids(ids: Tensor, size: int) -> Tensor:
    """How often each id in [0, size) occurs."""
    counts = [0] * size
    for node in ids.tolist():
        counts[node] += 1
    return torch.tensor(counts, dtype=torch.int64)
