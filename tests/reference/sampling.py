"""Neighbors and negatives."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, compress, product

import torch
from torch import Tensor

from torch_gnnscale.ops import Candidates, EdgeSet, Relations, Sample

from .draws import bounded, choose, counter_draw


class _Relation:
    """One relation of a graph as sequences of int, and, in each column, its drawn edges: (column, source, edge id)."""

    def __init__(self, colptr, row, edge_id, weight, time, exclude) -> None:
        self.colptr, self.row = memoryview(colptr.cpu().numpy()), memoryview(row.cpu().numpy())
        self.names = range(len(self.row)) if edge_id is None else edge_id.tolist()
        self.sums = None if weight is None else weight.tolist()
        self.time = None if time is None else time.tolist()
        self.excluded = set() if exclude is None else set(zip(*exclude.tolist(), strict=True))
        self.columns: list[list[tuple[int, int, int]]] = []

    def candidates(self, node: int, seed_time: int | None, start_time: int | None) -> list[int]:
        """Stored positions of a node's edges that are neither earlier than ``start_time`` nor later than ``seed_time``,
        and not excluded."""
        return [
            position
            for position in range(self.colptr[node], self.colptr[node + 1])
            if (self.row[position], node) not in self.excluded
            and (self.time is None or seed_time is None or self.time[position] <= seed_time)
            and (self.time is None or start_time is None or self.time[position] >= start_time)
        ]

    def weight(self, node: int, position: int) -> int:
        """A stored edge's integer weight."""
        assert self.sums is not None
        return self.sums[position] - (self.sums[position - 1] if position > self.colptr[node] else 0)


def _of_trees(seeds: Sequence[Tensor], times: Sequence[Tensor | None] | None) -> list[int | None]:
    """The time of each seed, over all types; None where it has none."""
    of_types = times or [None] * len(seeds)
    found: list[int | None] = []
    for ids, of_type in zip(seeds, of_types, strict=True):
        found += [None] * len(ids) if of_type is None else of_type.tolist()
    return found or [None]


def sample_neighbors(
    graph: Relations,
    seeds: Sequence[Tensor],
    fanouts: Sequence,
    key: int,
    *,
    seed_time: Sequence[Tensor | None] | None = None,
    seed_start_time: Sequence[Tensor | None] | None = None,
    exclude: Sequence[Tensor | None] | None = None,
    replace: bool = False,
    disjoint: bool = False,
    last: bool = False,
    layers: bool = False,
    subgraph: str = "directional",
    with_edge_id: bool = True,
    with_col: bool = True,
) -> Sample:
    """All hops of a batch (FastSample, section 3.2), as :func:`torch_gnnscale.ops.sample_neighbors` returns them."""
    count, types = len(graph.colptr), len(seeds)
    lists = (graph.colptr, graph.row, graph.edge_id, graph.weight, graph.time, exclude or [None] * count)
    relations = [_Relation(*parts) for parts in zip(*lists, strict=True)]
    src_type, dst_type, reverse = graph.src_type, graph.dst_type, graph.reverse
    hop_lists = fanouts if fanouts and isinstance(fanouts[0], (list, tuple)) else [fanouts] * count
    ends, starts = _of_trees(seeds, seed_time), _of_trees(seeds, seed_start_time)

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
                found = relation.candidates(node, ends[tree], starts[tree])
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
                    for p in relation.candidates(node, ends[tree], starts[tree])
                    if (tree, relation.row[p]) in local[src_type[r]]
                ]
                for column, (tree, node) in enumerate(nodes[dst_type[r]])
            ]
    elif subgraph == "bidirectional":
        drawn_edges = [[edge for column in relation.columns for edge in column] for relation in relations]
        for r, relation in enumerate(relations):
            columns: list[dict[int, tuple[int, int, int]]] = [{} for _ in nodes[dst_type[r]]]
            for column, source, name in drawn_edges[r]:
                columns[column].setdefault(source, (column, source, name))
            for source, column, name in drawn_edges[reverse[r]] if reverse[r] >= 0 else []:
                columns[column].setdefault(source, (column, source, -1 - name))
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
        num_nodes=num_nodes,
        num_edges=num_edges,
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
    """Links as :func:`torch_gnnscale.ops.sample_negatives` draws them; the destination is -1 where no link is valid."""
    known = set()
    if edges is not None:
        for source in range(len(edges.ptr) - 1):
            known |= {(source, int(node)) for node in edges.dst[edges.ptr[source] : edges.ptr[source + 1]]}

    def allowed(ends: Candidates, i: int) -> tuple[list[int], list[int]]:
        """The nodes that the time of negative ``i`` allows, and their weights."""
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
