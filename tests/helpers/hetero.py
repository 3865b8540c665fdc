"""Random heterogeneous graphs whose features tell which node or edge they belong to, and oracles of their batches."""

from __future__ import annotations

from typing import Any

import reference
import torch
from helpers.data import ForeignFeatureStore, ForeignGraphStore, edge_rows, node_rows
from torch import Tensor
from torch_geometric.data import HeteroData

from torch_gnnscale import ops

PAPER, AUTHOR, VENUE = "paper", "author", "venue"
CITES, WRITES, REV_WRITES = (PAPER, "cites", PAPER), (AUTHOR, "writes", PAPER), (PAPER, "rev_writes", AUTHOR)
HELD, LIKES = (PAPER, "at", VENUE), (VENUE, "likes", AUTHOR)


def make_hetero(seed: int = 0, papers: int = 40, authors: int = 25, venues: int = 5, degree: int = 6) -> HeteroData:
    """Five relations between three types; nobody leads to venues but papers. Features and times are of ids."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    counts = {PAPER: papers, AUTHOR: authors, VENUE: venues}
    for number, (node_type, count) in enumerate(counts.items()):
        data[node_type].x = node_rows(torch.arange(count), 2 + number)
    data[PAPER].y = torch.arange(papers) % 3
    for edge_type in (CITES, WRITES, HELD, LIKES):
        src, dst = counts[edge_type[0]], counts[edge_type[2]]
        ends = [torch.randint(n, (degree * dst,), generator=generator) for n in (src, dst)]
        data[edge_type].edge_index = torch.stack(ends)
        data[edge_type].edge_attr = edge_rows(torch.arange(degree * dst))
    data[REV_WRITES].edge_index = data[WRITES].edge_index.flip(0)
    return data


def with_times(data: HeteroData, dtype: torch.dtype = torch.int64, edges: bool = False) -> HeteroData:
    """Times of papers and authors, or of all relations but one; venues have none."""
    generator = torch.Generator().manual_seed(3)
    stores = [data[t] for t in ((CITES, WRITES, HELD) if edges else (PAPER, AUTHOR))]
    for store in stores:
        count = store.edge_index.size(1) if edges else store.num_nodes
        store.time = (torch.randint(-8, 8, (count,), generator=generator).to(torch.float64) * 1.5).to(dtype)
    return data


def with_weights(data: HeteroData) -> HeteroData:
    """Weights of two relations, a fifth of them 0."""
    generator = torch.Generator().manual_seed(4)
    for edge_type in (CITES, WRITES):
        weight = torch.rand(data[edge_type].edge_index.size(1), generator=generator)
        data[edge_type].weight = torch.where(weight < 0.2, 0.0, weight)
    return data


def foreign_stores(data: HeteroData) -> tuple[ForeignFeatureStore, ForeignGraphStore]:
    features, graph = ForeignFeatureStore(), ForeignGraphStore()
    for type_name, store in [*data.node_items(), *data.edge_items()]:
        for name, value in store.items():
            if name != "edge_index":
                features.put_tensor(value, group_name=type_name, attr_name=name, index=None)
    for edge_type, store in data.edge_items():
        size = (data[edge_type[0]].num_nodes, data[edge_type[2]].num_nodes)
        graph.put_edge_index(tuple(store.edge_index), edge_type, "coo", size=size)
    return features, graph


def check_edges(data: HeteroData, batch: HeteroData) -> None:
    """Asserts that all rows are those of the batch's nodes and edges, and that edges are the user's."""
    for number, node_type in enumerate(data.node_types):
        assert torch.equal(batch[node_type].x, node_rows(batch[node_type].n_id, 2 + number))
    for edge_type in data.edge_types:
        store = batch[edge_type]
        if "e_id" not in store:
            continue
        src, dst = batch[edge_type[0]].n_id, batch[edge_type[2]].n_id
        ends = torch.stack([src[store.edge_index[0]], dst[store.edge_index[1]]])
        assert torch.equal(ends, data[edge_type].edge_index[:, store.e_id])
        if "edge_attr" in data[edge_type]:
            assert torch.equal(store.edge_attr, edge_rows(store.e_id))


def sample_by_definition(
    data: HeteroData, seeds: dict[str, Tensor], fanouts: list, key: int, *, seed_time: dict[str, Tensor] | None = None,
    seed_start_time: dict[str, Tensor] | None = None, time: str | None = None, weight: bool = False,
    backward: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """The twin's sample of columns that are made here, edge by edge."""
    types = data.node_types
    ranks = _ranks(data, seed_time, seed_start_time) if time else {}
    lists: dict[str, list] = {name: [] for name in ("colptr", "row", "edge_id", "weight", "time", "src", "dst")}
    for edge_type in data.edge_types:
        store = data[edge_type]
        src, dst = (edge_type[2], edge_type[0]) if backward else (edge_type[0], edge_type[2])
        ends = store.edge_index.flip(0) if backward else store.edge_index
        weights = store.weight.tolist() if weight and "weight" in store else None
        if time == "nodes":
            times = [ranks[t] for t in data[src].time[ends[0]].tolist()] if "time" in data[src] else None
        else:
            times = [ranks[t] for t in store.time.tolist()] if time and "time" in store else None
        columns: list[list[int]] = [[] for _ in range(data[dst].num_nodes)]
        for edge, end in enumerate(ends[1].tolist()):
            if weights is None or weights[edge] > 0:
                columns[end].append(edge)
        if times is not None:
            columns = [sorted(column, key=lambda edge: times[edge]) for column in columns]
        order = torch.tensor([edge for column in columns for edge in column], dtype=torch.int64)
        lists["colptr"].append(torch.tensor([0, *map(len, columns)]).cumsum(0))
        lists["row"].append(ends[0][order])
        lists["edge_id"].append(order)
        lists["time"].append(None if times is None else torch.tensor(times, dtype=torch.int64)[order])
        lists["weight"].append(None)
        if weights is not None:
            sums = []
            for column in columns:
                largest, total = max((weights[edge] for edge in column), default=1.0), 0
                for edge in column:
                    total += max(1, round(weights[edge] / largest * (1 << 32)))
                    sums.append(total)
            lists["weight"][-1] = torch.tensor(sums, dtype=torch.int64)
        lists["src"].append(types.index(src))
        lists["dst"].append(types.index(dst))
    empty = torch.empty(0, dtype=torch.int64)

    def ranks_of(given: dict[str, Tensor]) -> list[Tensor | None]:
        return [
            torch.tensor([ranks[v] for v in given[t].tolist()], dtype=torch.int64) if t in given else None
            for t in types
        ]

    times_of_seeds = None
    if time:
        times_of_seeds = ranks_of({t: seed_time[t] if seed_time else data[t].time[ids] for t, ids in seeds.items()})
    graph = ops.relations(
        lists["colptr"], lists["row"], edge_id=lists["edge_id"], weight=lists["weight"],
        time=lists["time"] if time else None, src_type=lists["src"], dst_type=lists["dst"],
        sizes=[data[t].num_nodes for t in types], reverse=options.pop("reverse", None),
    )  # fmt: skip
    return reference.sample_neighbors(
        graph, [seeds.get(t, empty) for t in types], fanouts, key, seed_time=times_of_seeds,
        seed_start_time=None if seed_start_time is None else ranks_of(seed_start_time),
        disjoint=options.pop("disjoint", bool(time)), **options,
    )  # fmt: skip


def _ranks(data: HeteroData, *of_seeds: dict[str, Tensor] | None) -> dict[float, int]:
    """Each time's place among all of them."""
    values = [v for store in data.stores if "time" in store for v in store["time"].tolist()]
    values += [v for given in of_seeds for times in (given or {}).values() for v in times.tolist()]
    return {value: rank for rank, value in enumerate(sorted(set(values)))}


def assert_output(out: Any, expected: Any, data: HeteroData, *, backward: bool = False) -> None:
    """Asserts that a sampler's output is the twin's sample."""
    for t, node_type in enumerate(data.node_types):
        assert torch.equal(out.node[node_type], expected.node[t])
        if expected.tree:
            assert torch.equal(out.batch[node_type], expected.tree[t])
        if out.num_sampled_nodes is not None:
            assert out.num_sampled_nodes[node_type] == expected.num_nodes[t]
    for r, edge_type in enumerate(data.edge_types):
        row, col = expected.edge_index[r].flip(0) if backward else expected.edge_index[r]
        assert torch.equal(out.row[edge_type], row)
        assert torch.equal(out.col[edge_type], col)
        if out.edge[edge_type] is not None:
            drawn = expected.edge_id[r] >= 0  # others are reverse edges: see test_reverse_ids
            assert torch.equal(out.edge[edge_type][drawn], expected.edge_id[r][drawn])
        if out.colptr is not None:
            assert torch.equal(out.colptr[edge_type], expected.colptr[r])
        if out.num_sampled_edges is not None:
            assert out.num_sampled_edges[edge_type] == expected.num_edges[r]
