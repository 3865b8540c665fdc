"""The sampler in every mode against PyG's own sampler with pyg-lib; a part of bench_sample.py.

Both samplers get the same data, seeds and fanouts and return PyG's outputs with the user's edge ids: ours writes them,
and PyG's positions are looked up in its permutation, as its loader does. Every case is checked first: the edges are the
data's, and what the mode promises holds.

With 237 relations, much of the time goes into the tensors and dictionaries of an output. ``no neighbors`` is our
sampler with fanouts of 0: its outputs have as many tensors and dictionaries, but no edges.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch_geometric.sampler
from common import compare, has, report
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput
from typed_graphs import TIMES, academic, knowledge_graph

from torch_gnnscale import NeighborSampler, ops
from torch_gnnscale.memory import MOVING
from torch_gnnscale.topology import rmat

NODES, EDGES, BATCH = 1_000_000, 16_000_000, 1024


class Case(NamedTuple):
    """One mode: what both samplers get, and what must hold for their outputs."""

    data: Data | HeteroData
    options: dict
    inputs: Callable[[int], NodeSamplerInput | EdgeSamplerInput]
    negatives: NegativeSampling | None = None
    check: Callable | None = None
    tensors_alone: bool = False
    """Whether the same output without edges is timed as well."""
    threads: int = 1
    calls: int = 1
    """How often each sampler is called in a round: often where a call is short."""


def ids(limit: int, number: int, count: int = BATCH) -> Tensor:
    """Distinct ids, another set for each batch."""
    return torch.randperm(limit, generator=torch.Generator().manual_seed(number))[:count]


def homogeneous() -> Data:
    """An R-MAT graph with times and weights."""
    generator = torch.Generator().manual_seed(1)
    return Data(
        edge_index=rmat(NODES, EDGES, seed=1), num_nodes=NODES,
        time=torch.randint(TIMES, (NODES,), generator=generator),
        weight=torch.rand(EDGES, generator=generator) + 0.01,
    )  # fmt: skip


def with_users_ids(sampler, out):
    """The output with the user's edge ids, as PyG's loader puts them into a batch."""
    permutation = sampler.edge_permutation
    if isinstance(permutation, dict):
        out.edge = {
            edge_type: edge if (order := permutation.get(edge_type)) is None else order[edge]
            for edge_type, edge in out.edge.items()
        }
    elif permutation is not None:
        out.edge = permutation[out.edge]
    return out


def check_edges(data: Data | HeteroData, out) -> None:
    """Checks by their ids that sampled edges are the data's."""
    if isinstance(data, Data):
        assert torch.equal(torch.stack([out.node[out.row], out.node[out.col]]), data.edge_index[:, out.edge])
        return
    for edge_type, edge in out.edge.items():
        src, _, dst = edge_type
        ends = torch.stack([out.node[src][out.row[edge_type]], out.node[dst][out.col[edge_type]]])
        assert torch.equal(ends, data[edge_type].edge_index[:, edge])


def check_times(data: Data | HeteroData, out) -> None:
    """Checks that no neighbor is later than its tree's seed."""
    typed = isinstance(data, HeteroData)
    nodes, trees = (out.node, out.batch) if typed else ({None: out.node}, {None: out.batch})
    times = data.time_dict if typed else {None: data.time}
    seeds = next(iter(times))
    seed_time = times[seeds][nodes[seeds][:BATCH]]
    for node_type, node in nodes.items():
        late = times[node_type][node] > seed_time[trees[node_type]]
        assert not late[BATCH if node_type == seeds else 0 :].any()


def cases() -> dict[str, Callable[[], Case]]:
    """Every mode, made when its turn comes."""
    graph = cache(homogeneous)

    def nodes(number: int) -> NodeSamplerInput:
        return NodeSamplerInput(None, ids(NODES, number))

    def papers(number: int) -> NodeSamplerInput:
        return NodeSamplerInput(None, ids(700_000, number), input_type="paper")

    def entities(number: int) -> NodeSamplerInput:
        return NodeSamplerInput(None, ids(14_541, number, 64), input_type="entity")

    def links(number: int) -> EdgeSamplerInput:
        row, col = graph().edge_index[:, ids(EDGES, number)]
        return EdgeSamplerInput(None, row, col)

    def timed_links(number: int) -> EdgeSamplerInput:
        given = links(number)
        times = graph().time
        return EdgeSamplerInput(None, given.row, given.col, None, torch.maximum(times[given.row], times[given.col]))

    def timed_small() -> Case:
        case = small()
        case.data.time = torch.arange(2708)
        return case._replace(options=case.options | {"time_attr": "time"})

    def small() -> Case:
        data = Data(edge_index=rmat(2708, 10_556, seed=1), num_nodes=2708)

        def one_node(number: int) -> NodeSamplerInput:  # one with neighbors
            return NodeSamplerInput(None, data.edge_index[1, ids(10_556, number, 1)])

        return Case(data, {"num_neighbors": [10, 5]}, one_node, calls=200)

    def of(
        check: Callable | None = None,
        negatives: NegativeSampling | None = None,
        inputs: Callable | None = None,
        **options,
    ) -> Callable[[], Case]:
        fanouts = {"num_neighbors": [15, 10, 5]}
        inputs = inputs or (nodes if negatives is None else links)
        return lambda: Case(graph(), {**fanouts, **options}, inputs, negatives, check)

    return {
        "uniform": of(),
        "one seed, a graph of Cora's size": small,
        "heterogeneous, 6 relations": lambda: Case(academic(), {"num_neighbors": [15, 10, 5]}, papers),
        "heterogeneous, 237 relations": lambda: Case(
            knowledge_graph(), {"num_neighbors": [5, 2]}, entities, tensors_alone=True
        ),
        "heterogeneous, temporal, 2 threads": lambda: Case(
            academic(), {"num_neighbors": [10, 5], "time_attr": "time"}, papers, check=check_times, threads=2
        ),
        "heterogeneous, temporal, last": lambda: Case(
            academic(),
            {"num_neighbors": [10, 5], "time_attr": "time", "temporal_strategy": "last"},
            papers,
            check=check_times,
        ),
        "heterogeneous, disjoint": lambda: Case(academic(), {"num_neighbors": [10, 5], "disjoint": True}, papers),
        "disjoint": of(disjoint=True),
        "disjoint, with replacement": of(disjoint=True, replace=True),
        "disjoint, weighted": of(disjoint=True, weight_attr="weight"),
        "temporal, uniform": of(check_times, time_attr="time"),
        "temporal, last": of(check_times, time_attr="time", temporal_strategy="last"),
        "temporal, with replacement": of(check_times, time_attr="time", replace=True),
        "temporal, one seed, a graph of Cora's size": timed_small,
        "weighted": of(weight_attr="weight"),
        "weighted, with replacement": of(weight_attr="weight", replace=True),
        "links, binary negatives": of(negatives=NegativeSampling("binary", 1.0)),
        "links, triplets": of(negatives=NegativeSampling("triplet", 1.0)),
        "links, disjoint, triplets": of(negatives=NegativeSampling("triplet", 1.0), disjoint=True),
        "links, temporal, binary negatives": of(
            negatives=NegativeSampling("binary", 1.0), inputs=timed_links, time_attr="time"
        ),
    }


def measure(name: str, case: Case, rounds: int, clock: Callable[[], float]) -> dict:
    """Both samplers on one case, by ``clock``."""
    torch.set_num_threads(case.threads)
    ours = NeighborSampler(case.data, **case.options)
    candidates = {"gnnscale": ours}
    if has("pyg_lib"):
        candidates["PyG with pyg-lib"] = torch_geometric.sampler.NeighborSampler(case.data, **case.options)
    if case.tensors_alone:
        candidates["no neighbors"] = NeighborSampler(case.data, **case.options | {"num_neighbors": [0, 0]})
    inputs = [case.inputs(number) for number in range(rounds)]

    def once(sampler):
        if case.negatives is not None or isinstance(inputs[0], EdgeSamplerInput):
            return lambda number: with_users_ids(sampler, sampler.sample_from_edges(inputs[number], case.negatives))
        return lambda number: with_users_ids(sampler, sampler.sample_from_nodes(inputs[number]))

    def run(sampler):
        sample = once(sampler)
        return lambda number: [sample(number) for _ in range(case.calls)][-1]

    for thread in threading.enumerate():
        if thread.name == MOVING:  # it may still move the graph
            thread.join()
    for sampler in candidates.values():
        out = run(sampler)(0)
        check_edges(case.data, out)
        if case.check is not None:
            case.check(case.data, out)
    times = compare(
        {title: run(sampler) for title, sampler in candidates.items()}, rounds, case.calls, again=True, clock=clock
    )
    drawn = run(ours)(0).edge
    edges = sum(map(len, drawn.values())) if isinstance(drawn, dict) else len(drawn)
    report(f"{name}, {edges:,} edges per batch", times, "PyG with pyg-lib")
    return {"edges_per_batch": edges, **times}


def measure_modes(rounds: int, chosen: Sequence[str] | None, clock: Callable[[], float]) -> dict:
    """All modes, or those that are chosen by name, by ``clock``; other names end the program."""
    known, results = cases(), {}
    if unknown := [name for name in chosen or () if name not in known]:
        raise SystemExit(f"--modes: expected names among {list(known)}, found {unknown}")
    for name in known if chosen is None else chosen:
        results[name] = measure(name, known[name](), rounds, clock)
        ops.pool_trim()
    return results
