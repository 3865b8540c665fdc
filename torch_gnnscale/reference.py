"""A slow, plain PyTorch twin of every operator: the oracle of the tests.

Everything is computed from its definition, in Python's integers, one number at a time. The signatures are those of
:mod:`torch_gnnscale.ops` without ``threads``, and without what is not implemented there; arguments are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .ops import Sample

_WORD = (1 << 32) - 1


def philox(key: int, c0: int, c1: int, c2: int, c3: int) -> tuple[int, int, int, int]:
    """The block of Philox4x32-10 (Salmon et al., SC 2011) of a 64-bit key and four counter words, the lowest first."""
    left, right = key & _WORD, key >> 32 & _WORD
    for _ in range(10):
        even, odd = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (odd >> 32) ^ c1 ^ left, odd & _WORD, (even >> 32) ^ c3 ^ right, even & _WORD
        left, right = (left + 0x9E3779B9) & _WORD, (right + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3


def counter_draw(key: int, counter: int, number: int) -> int:
    """The first (``number`` 0) or second (1) 64 bits of the block of a 128-bit counter."""
    words = philox(key, *(counter >> shift & _WORD for shift in (0, 32, 64, 96)))
    return words[2 * number] | words[2 * number + 1] << 32


def draw(key: int, node: int, hop: int, number: int, *, tree: int = 0, relation: int = 0) -> int:
    """Draw ``number`` of a node: 64 bits of the counter node 64 | tree 32 | hop 6 | relation 10 | block of draws 16."""
    block, half = divmod(number, 2)
    if not (0 <= node < 1 << 64 and 0 <= tree < 1 << 32 and 0 <= hop < 64 and relation < 1024 and block < 1 << 16):
        raise ValueError("a part of the counter is out of range")
    return counter_draw(key, node | tree << 64 | block << 96 | relation << 112 | hop << 122, half)


def bounded(random: int, limit: int) -> int:
    """``floor(random * limit / 2^64)``: a number in [0, limit) from 64 random bits."""
    return random * limit >> 64


def choose(key: int, node: int, hop: int, degree: int, fanout: int, replace: bool) -> list[int]:
    """The positions that a node of ``degree`` neighbors draws in a hop.

    All of them, in order, if ``fanout`` is -1 or (without replacement) not below the degree. Otherwise independent
    numbers in [0, degree), or Floyd's method: the i-th number comes from [0, degree - fanout + i], and where it was
    chosen before, the largest of that range takes its place.
    """
    if degree == 0:
        return []
    if fanout < 0 or (fanout >= degree and not replace):
        return list(range(degree))
    draws = [draw(key, node, hop, number) for number in range(fanout)]
    if replace:
        return [bounded(random, degree) for random in draws]
    chosen: dict[int, None] = {}
    for random, largest in zip(draws, range(degree - fanout, degree), strict=True):
        position = bounded(random, largest + 1)
        chosen[largest if position in chosen else position] = None
    return list(chosen)


def sample_neighbors(
    colptr: Sequence[Tensor],
    row: Sequence[Tensor],
    seeds: Sequence[Tensor],
    fanouts: Sequence[int],
    key: int,
    *,
    edge_id: Sequence[Tensor | None] = (None,),
    replace: bool = False,
    layers: bool = False,
    with_edge_id: bool = True,
    with_col: bool = True,
) -> Sample:
    """All hops of a batch (FastSample, section 3.2), as :func:`torch_gnnscale.ops.sample_neighbors` returns them."""
    pointer, neighbors = colptr[0].tolist(), row[0].tolist()
    names = range(len(neighbors)) if edge_id[0] is None else edge_id[0].tolist()
    nodes = seeds[0].tolist()
    local: dict[int, int] = {}
    for i, node in enumerate(nodes):
        local.setdefault(node, i)
    columns, rows, cols, edges = [0], list[int](), list[int](), list[int]()
    num_nodes, num_edges = [len(nodes)], []
    begin = 0
    for hop, fanout in enumerate(fanouts):
        end, edges_before = len(nodes), len(rows)
        for destination in range(begin, end):
            node = nodes[destination]
            first, degree = pointer[node], pointer[node + 1] - pointer[node]
            for position in choose(key, node, hop, degree, fanout, replace):
                source = neighbors[first + position]
                if source not in local:
                    local[source] = len(nodes)
                    nodes.append(source)
                rows.append(local[source])
                cols.append(destination)
                edges.append(names[first + position])
            columns.append(len(rows))
        num_nodes.append(len(nodes) - end)
        num_edges.append(len(rows) - edges_before)
        begin = 0 if layers else end

    def ids(values: list) -> Tensor:
        return torch.tensor(values, dtype=torch.int64)

    return Sample(
        node=[ids(nodes)],
        colptr=[ids(columns)],
        edge_index=[ids([rows, cols] if with_col else [rows])],
        edge_id=[ids(edges)] if with_edge_id else [],
        tree=[],
        num_nodes=ids([num_nodes]),
        num_edges=ids([num_edges]),
    )


def gather_rows(src: Tensor, index: Tensor) -> Tensor:
    """The rows of ``src`` at ``index``, copied one by one."""
    out = torch.empty((len(index), *src.shape[1:]), dtype=src.dtype, device=src.device)
    for i, row in enumerate(index.tolist()):
        out[i] = src[row]
    return out


def coo_to_csc(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> tuple[Tensor, Tensor]:
    """Edges sorted by destination, equal ones in the order of the input: ``colptr`` and (source, position) pairs."""
    position = torch.argsort(dst, stable=True)
    colptr = torch.zeros(num_dst + 1, dtype=torch.int64)
    colptr[1:] = torch.bincount(dst, minlength=num_dst).cumsum(0)
    int32 = max(num_src, len(src)) < 1 << 31
    return colptr, torch.stack([src[position], position], dim=1).to(torch.int32 if int32 else torch.int64)


def first_outside(ids: Tensor, limit: int) -> int:
    """The position of the first id outside [0, limit), or -1."""
    return next((at for at, value in enumerate(ids.tolist()) if not 0 <= value < limit), -1)


def first_malformed(colptr: Tensor, num_edges: int) -> int:
    """The first wrong entry of a column pointer: not 0 at first, falling, or not ``num_edges`` at last; or -1."""
    values = colptr.tolist()
    if values[0] != 0:
        return 0
    for at in range(1, len(values)):
        if values[at] < values[at - 1]:
            return at
    return -1 if values[-1] == num_edges else len(values) - 1


def random_bits(count: int, key: int, offset: int = 0) -> Tensor:
    """Draws ``offset .. offset + count`` of a key: two a block, blocks counted from 0, as signed 64-bit integers."""
    draws = (counter_draw(key, number >> 1, number & 1) for number in range(offset, offset + count))
    return torch.tensor([value - (value >> 63 << 64) for value in draws], dtype=torch.int64)


def permutation(count: int, key: int) -> Tensor:
    """The shuffle of Fisher and Yates: entry i changes places with a random one of [i, count), by draw i of the key."""
    order = list(range(count))
    for i in range(count - 1):
        other = i + bounded(counter_draw(key, i >> 1, i & 1), count - i)
        order[i], order[other] = order[other], order[i]
    return torch.tensor(order, dtype=torch.int64)


def rmat_edges(num_nodes: int, num_edges: int, key: int, quadrants: Sequence[float], first: int = 0) -> Tensor:
    """R-MAT edges (Chakrabarti et al., SDM 2004): see :func:`torch_gnnscale.ops.rmat_edges`.

    Each level of an edge takes 16 bits, eight levels a block, from the counter edge 64 | attempt 32 | block 32.
    """
    a, b, c = quadrants
    bounds = [round(65536 * p) for p in (a, a + b, a + b + c)]
    levels = (num_nodes - 1).bit_length()

    def edge(number: int, attempt: int) -> tuple[int, int]:
        src = dst = 0
        for level in range(levels):
            block, place = divmod(level, 8)
            words = philox(key, number & _WORD, number >> 32, attempt, block)
            bits = sum(word << 32 * i for i, word in enumerate(words)) >> 16 * place & 0xFFFF
            quadrant = sum(bits >= bound for bound in bounds)  # 0..3: a, b, c, d
            src, dst = 2 * src + quadrant // 2, 2 * dst + quadrant % 2
        return src, dst

    edges = []
    for number in range(first, first + num_edges):
        attempt = 0
        while max(ends := edge(number, attempt)) >= num_nodes:
            attempt += 1
        edges.append(ends)
    return torch.tensor(edges, dtype=torch.int64).reshape(num_edges, 2).t().contiguous()


def aggregate(
    ptr: Tensor,
    node: Tensor,
    x: Tensor,
    reduce: str = "sum",
    *,
    weight: Tensor | None = None,
    edge: Tensor | None = None,
    num_edges: int | None = None,
) -> Tensor:
    """Each column's rows, weighted, summed one after the other, or their mean or extreme; NaN if one is."""
    out = x.new_zeros(len(ptr) - 1, x.size(1))
    for column in range(len(ptr) - 1):
        rows = []
        for entry in range(int(ptr[column]), int(ptr[column + 1])):
            number = entry if edge is None else int(edge[entry])
            if num_edges is not None and number >= num_edges:
                continue
            row = x[node[entry]]
            if weight is not None:
                row = (row.view(weight.size(1), -1) * weight[number].unsqueeze(1)).view(-1)
            rows.append(row)
        if rows and reduce in ("max", "min"):
            out[column] = torch.stack(rows).amax(0) if reduce == "max" else torch.stack(rows).amin(0)
        elif rows:
            out[column] = sum(rows) / (len(rows) if reduce == "mean" else 1)
    return out


def edge_dot(ptr: Tensor, node: Tensor, x: Tensor, y: Tensor, heads: int = 1, *, edge: Tensor | None = None) -> Tensor:
    """The product of each entry's row of x and its column's row of y, head by head."""
    out = x.new_zeros(len(node), heads)
    for column in range(len(ptr) - 1):
        for entry in range(int(ptr[column]), int(ptr[column + 1])):
            product = (x[node[entry]] * y[column]).view(heads, -1).sum(1)
            out[entry if edge is None else int(edge[entry])] = product
    return out


def share_of_extremes(ptr: Tensor, node: Tensor, x: Tensor, extreme: Tensor, grad: Tensor) -> Tensor:
    """The gradient of an extreme, divided among the entries that reach it."""
    out = torch.zeros_like(extreme)
    for column in range(len(ptr) - 1):
        ties = (x[node[ptr[column] : ptr[column + 1]]] == extreme[column]).sum(0)
        out[column] = torch.where(ties > 0, grad[column] / ties, 0)
    return out


def extreme_backward(
    ptr: Tensor,
    node: Tensor,
    x: Tensor,
    extreme: Tensor,
    share: Tensor,
    *,
    edge: Tensor | None = None,
    num_edges: int | None = None,
) -> Tensor:
    """Each row's shares of the extremes that it reaches, over the transposed graph."""
    out = torch.zeros_like(x)
    for source in range(len(ptr) - 1):
        for entry in range(int(ptr[source]), int(ptr[source + 1])):
            number = entry if edge is None else int(edge[entry])
            if num_edges is None or number < num_edges:
                column = node[entry]
                out[source] += torch.where(x[source] == extreme[column], share[column], 0)
    return out
