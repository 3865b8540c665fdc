"""A slow, plain PyTorch twin of every operator: the oracle of the tests.

Everything is computed from its definition, in Python's integers, one number at a time. The signatures are those of
:mod:`torch_gnnscale.ops` without ``threads``, and without what is not implemented there; arguments are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, compress, product

import torch
from torch import Tensor

from .ops import Candidates, EdgeSet, Sample

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


def choose(
    key: int,
    node: int,
    hop: int,
    degree: int,
    fanout: int,
    replace: bool,
    *,
    tree: int = 0,
    relation: int = 0,
    weights: Sequence[int] | None = None,
) -> list[int]:
    """Which of ``degree`` candidates a node draws in a hop.

    All of them, in order, if ``fanout`` is -1 or (without replacement) not below the degree. Otherwise independent
    numbers in [0, degree), or Floyd's method: the i-th number comes from [0, degree - fanout + i], and where it was
    chosen before, the largest of that range takes its place. With weights, every candidate is as many consecutive units
    as it weighs, and a number chooses among the units of those that are left.
    """
    if degree == 0:
        return []
    if fanout < 0 or (fanout >= degree and not replace):
        return list(range(degree))
    draws = [draw(key, node, hop, number, tree=tree, relation=relation) for number in range(fanout)]
    if weights is not None:
        left = dict(enumerate(weights))
        picks = []
        for random in draws:
            unit = bounded(random, sum(left.values()))
            candidate = next(c for c, end in zip(left, accumulate(left.values()), strict=True) if unit < end)
            picks.append(candidate)
            if not replace:
                del left[candidate]
        return picks
    if replace:
        return [bounded(random, degree) for random in draws]
    chosen: dict[int, None] = {}
    for random, largest in zip(draws, range(degree - fanout, degree), strict=True):
        position = bounded(random, largest + 1)
        chosen[largest if position in chosen else position] = None
    return list(chosen)


class _Relation:
    """One relation of a graph as lists, and the edges that were drawn of it: (column, source, edge id)."""

    def __init__(self, colptr, row, edge_id, weight, time, exclude) -> None:
        self.colptr, self.row = colptr.tolist(), row.tolist()
        self.names = range(len(self.row)) if edge_id is None else edge_id.tolist()
        self.sums = None if weight is None else weight.tolist()
        self.time = None if time is None else time.tolist()
        self.excluded = set() if exclude is None else set(zip(*exclude.tolist(), strict=True))
        self.columns: list[list[tuple[int, int, int]]] = []

    def candidates(self, node: int, seed_time: int | None) -> list[int]:
        """Stored positions of a node's neighbors that neither time nor an exclusion rules out."""
        return [
            position
            for position in range(self.colptr[node], self.colptr[node + 1])
            if (self.row[position], node) not in self.excluded
            and (self.time is None or seed_time is None or self.time[position] <= seed_time)
        ]

    def weight(self, node: int, position: int) -> int:
        """A stored edge's integer weight."""
        assert self.sums is not None
        return self.sums[position] - (self.sums[position - 1] if position > self.colptr[node] else 0)


def sample_neighbors(
    colptr: Sequence[Tensor],
    row: Sequence[Tensor],
    seeds: Sequence[Tensor],
    fanouts: Sequence,
    key: int,
    *,
    edge_id: Sequence[Tensor | None] | None = None,
    weight: Sequence[Tensor | None] | None = None,
    time: Sequence[Tensor | None] | None = None,
    seed_time: Sequence[Tensor | None] | None = None,
    exclude: Sequence[Tensor | None] | None = None,
    src_type: Sequence[int] | None = None,
    dst_type: Sequence[int] | None = None,
    sizes: Sequence[int] | None = None,
    replace: bool = False,
    disjoint: bool = False,
    last: bool = False,
    layers: bool = False,
    subgraph: str = "directional",
    reverse: Sequence[int] | None = None,
    with_edge_id: bool = True,
    with_col: bool = True,
) -> Sample:
    """All hops of a batch (FastSample, section 3.2), as :func:`torch_gnnscale.ops.sample_neighbors` returns them."""
    count, types = len(colptr), len(seeds)
    none: list = [None] * count
    relations = [
        _Relation(*parts)
        for parts in zip(colptr, row, edge_id or none, weight or none, time or none, exclude or none, strict=True)
    ]
    src_type, dst_type = src_type or [0] * count, dst_type or [0] * count
    hop_lists = fanouts if fanouts and isinstance(fanouts[0], (list, tuple)) else [fanouts] * count
    times = [t for entry in seed_time or [] if entry is not None for t in entry.tolist()] if seed_time else None

    # Nodes are (tree, id); a repeated seed keeps its row, and its neighbors refer to the first one.
    nodes: list[list[tuple[int, int]]] = [[] for _ in range(types)]
    local: list[dict[tuple[int, int], int]] = [{} for _ in range(types)]
    tree = 0
    for t in range(types):
        for node in seeds[t].tolist():
            local[t].setdefault((tree, node), len(nodes[t]))
            nodes[t].append((tree, node))
            tree += disjoint
    num_nodes = [[len(entry)] for entry in nodes]
    num_edges: list[list[int]] = [[] for _ in relations]
    begin = [0] * types
    for hop in range(len(hop_lists[0]) if count else 0):
        end = [len(entry) for entry in nodes]
        for r, relation in enumerate(relations):
            src, dst, fanout = src_type[r], dst_type[r], hop_lists[r][hop]
            edges_before = sum(map(len, relation.columns))
            for column in range(begin[dst], end[dst]):
                tree, node = nodes[dst][column]
                found = relation.candidates(node, times[tree] if times else None)
                if last and relation.time is not None and fanout >= 0:
                    found = found[max(len(found) - fanout, 0) :]
                weights = None if relation.sums is None else [relation.weight(node, p) for p in found]
                picks = choose(key, node, hop, len(found), fanout, replace, tree=tree, relation=r, weights=weights)
                drawn = []
                for position in (found[pick] for pick in picks):
                    neighbor = (tree, relation.row[position])
                    if neighbor not in local[src]:
                        local[src][neighbor] = len(nodes[src])
                        nodes[src].append(neighbor)
                    drawn.append((column, local[src][neighbor], relation.names[position]))
                relation.columns.append(drawn)
            num_edges[r].append(sum(map(len, relation.columns)) - edges_before)
        for t in range(types):
            num_nodes[t].append(len(nodes[t]) - end[t])
        begin = [0] * types if layers else end

    if subgraph == "induced":
        for r, relation in enumerate(relations):
            relation.columns = [
                [
                    (column, local[src_type[r]][tree, relation.row[p]], relation.names[p])
                    for p in relation.candidates(node, times[tree] if times else None)
                    if (tree, relation.row[p]) in local[src_type[r]]
                ]
                for column, (tree, node) in enumerate(nodes[dst_type[r]])
            ]
    elif subgraph == "bidirectional":
        if reverse is None:
            reverse = [r if src_type[r] == dst_type[r] else -1 for r in range(count)]
        drawn_edges = [[edge for column in relation.columns for edge in column] for relation in relations]
        for r, relation in enumerate(relations):
            columns: list[dict[int, tuple[int, int, int]]] = [{} for _ in nodes[dst_type[r]]]
            for column, source, name in drawn_edges[r]:
                columns[column].setdefault(source, (column, source, name))
            for source, column, name in drawn_edges[reverse[r]] if reverse[r] >= 0 else []:
                columns[column].setdefault(source, (column, source, name if reverse[r] == r else -1))
            if reverse[r] >= 0:
                relation.columns = [[column[source] for source in sorted(column)] for column in columns]
            else:
                relation.columns += [[]] * (len(columns) - len(relation.columns))

    def ids(values: list) -> Tensor:
        return torch.tensor(values, dtype=torch.int64)

    edges = [[edge for column in relation.columns for edge in column] for relation in relations]
    return Sample(
        node=[ids([node for _, node in entry]) for entry in nodes],
        colptr=[ids([0] + [len(column) for column in relation.columns]).cumsum(0) for relation in relations],
        edge_index=[
            ids([[source for _, source, _ in entry], [column for column, _, _ in entry]][: 1 + with_col])
            for entry in edges
        ],
        edge_id=[ids([name for _, _, name in entry]) for entry in edges] if with_edge_id else [],
        tree=[ids([tree for tree, _ in entry]) for entry in nodes] if disjoint else [],
        num_nodes=ids(num_nodes),
        num_edges=ids(num_edges).reshape(count, len(hop_lists[0]) if count else 0),
    )


def sample_negatives(
    count: int,
    src: Tensor | Candidates,
    dst: Candidates,
    key: int,
    *,
    seed_time: Tensor | None = None,
    edges: EdgeSet | None = None,
) -> Tensor:
    """Links as :func:`torch_gnnscale.ops.sample_negatives` draws them; -1 as destination where none is valid."""
    known = set()
    if edges is not None:
        for source in range(len(edges.ptr) - 1):
            known |= {(source, int(node)) for node in edges.dst[edges.ptr[source] : edges.ptr[source + 1]]}

    def allowed(ends: Candidates, i: int) -> tuple[list[int], list[int]]:
        """The nodes that negative i's time allows, and what they weigh."""
        nodes = list(range(ends.size)) if ends.node is None else ends.node.tolist()
        sums = list(range(1, ends.size + 1)) if ends.weight is None else ends.weight.tolist()
        weights = [after - before for after, before in zip(sums, [0, *sums], strict=False)]
        keep = [
            ends.time is None or seed_time is None or int(ends.time[at]) <= int(seed_time[i])
            for at in range(len(nodes))
        ]
        return list(compress(nodes, keep)), list(compress(weights, keep))

    def at_unit(unit: int, weights: Sequence[int]) -> int:
        return next(at for at, end in enumerate(accumulate(weights)) if unit < end)

    links = []
    for i in range(count):
        sources, src_weights = ([int(src[i])], [1]) if isinstance(src, Tensor) else allowed(src, i)
        destinations, dst_weights = allowed(dst, i)
        pairs = list(product(sources, destinations))
        weights = [
            a * b * (pair not in known) for pair, (a, b) in zip(pairs, product(src_weights, dst_weights), strict=True)
        ]
        link = None
        for attempt in range(64 if pairs else 0):
            first, second = (counter_draw(key, i | attempt << 64, half) for half in (0, 1))
            source = sources[at_unit(bounded(first, sum(src_weights)), src_weights)]
            link = source, destinations[at_unit(bounded(second, sum(dst_weights)), dst_weights)]
            if link not in known:
                break
        else:
            first, second = (counter_draw(key, i | 64 << 64, half) for half in (0, 1))
            if isinstance(src, Tensor):
                unit = bounded(second, sum(weights))
            else:
                unit = (second << 64 | first) * sum(weights) >> 128
            link = (
                pairs[at_unit(unit, weights)] if sum(weights) else (int(src[i]) if isinstance(src, Tensor) else -1, -1)
            )
        links.append(link)
    return torch.tensor(links, dtype=torch.int64).reshape(count, 2).t().contiguous()


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


def renumber(colptr: Tensor, row: Tensor, order: Tensor, *, edge_id: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Every node's list moved to its new place, its sources renamed."""
    rank = {old: new for new, old in enumerate(order.tolist())}
    names = range(len(row)) if edge_id is None else edge_id.tolist()
    lists = [range(int(colptr[old]), int(colptr[old + 1])) for old in order.tolist()]
    pairs = [(rank[int(row[e])], names[e]) for positions in lists for e in positions]
    begin = torch.tensor([0] + [len(positions) for positions in lists]).cumsum(0)
    int32 = max([len(lists), len(row), *(name + 1 for name in names)]) <= (1 << 31) - 1
    return begin, torch.tensor(pairs, dtype=torch.int32 if int32 else torch.int64).reshape(-1, 2)


def reverse_pagerank(
    colptr: Tensor, row: Tensor, initial: Tensor, iterations: int = 5, damping: float = 0.85
) -> Tensor:
    """Each node's teleport and what the nodes that it points to pass on, in Python's integers."""
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
