"""Seeds, their times and excluded edges as executors take them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ops.arguments import as_ids, check_ids
from .graph import SampledGraph, check_times, check_windows, ordered_limit, outside_integers
from .inputs import SeedRequest
from .links import sorted_pairs
from .output import NO_IDS, Seeds


class PreparedSeeds(NamedTuple):
    """A batch, with one entry per node type or relation."""

    nodes: list[Tensor]
    times: list[Tensor | None] | None
    start_times: list[Tensor | None] | None
    """Of the seeds' time windows."""
    pairs: list[Tensor | None] | None
    """The excluded edges."""
    numbers: list[int]
    """The node types that seeds were given for, in that order."""


def prepared_seeds(graph: SampledGraph, request: SeedRequest, device: torch.device) -> PreparedSeeds:
    """What is asked for, checked against the graph; seeds on ``device``."""
    if not graph.is_hetero:
        numbers, nodes = [0], [_seeds_on(device, request.seeds)]
    else:
        given = typed(graph, "seeds", request.seeds)
        numbers = [graph.node_index(node_type) for node_type in given]
        nodes = [NO_IDS] * len(graph.sizes)
        for number, ids in zip(numbers, given.values(), strict=True):
            nodes[number] = _seeds_on(device, ids)
    timed = request.seed_time is not None or graph.is_temporal
    times = _seed_times(graph, numbers, nodes, request.seed_time) if timed else None
    starts = request.seed_start_time
    start_times = None
    if starts is not None:
        assert times is not None
        start_times = _start_times(
            graph, numbers, starts, {} if request.seed_time is None else request.seed_time, times
        )
    pairs = None if request.exclude is None else exclusions(graph, request.exclude)
    return PreparedSeeds(nodes, times, start_times, pairs, numbers)


def _seeds_on(device: torch.device, seeds: Any) -> Tensor:
    """Ids of any integer type as int32 or int64 on the device; raises TypeError for anything else, also for a dict."""
    ids = as_ids("seeds", seeds)
    return ids if ids.device == device else ids.to(device)  # `to` takes longer, also where there is nothing to do


def typed(graph: SampledGraph, name: str, value: Any) -> dict:
    """``value`` by type. In a homogeneous graph the only type is None."""
    hetero = graph.is_hetero
    if isinstance(value, dict) != hetero:
        expected = "a dictionary by type, because the graph is heterogeneous" if hetero else "a tensor"
        raise TypeError(f"{name}: expected {expected}, found {type(value).__name__}")
    return value if hetero else {None: value}


def exclusions(graph: SampledGraph, exclude: Any) -> list[Tensor | None]:
    """Per relation, the excluded pairs in the direction of sampling, sorted."""
    pairs = typed(graph, "exclude", exclude)
    if unknown := [edge_type for edge_type in pairs if edge_type not in graph.edge_types]:
        raise ValueError(f"exclude: expected edge types of {graph.edge_types}, found {unknown}")
    return [sorted_pairs(pairs.get(edge_type), graph.backward) for edge_type in graph.edge_types]


def _seed_times(
    graph: SampledGraph, numbers: list[int], nodes: list[Tensor], seed_time: Seeds | None
) -> list[Tensor | None]:
    if not graph.is_temporal:
        raise ValueError("seed_time: expected none from a sampler without time_attr, found some")
    times = {} if seed_time is None else typed(graph, "seed_time", seed_time)
    result: list[Tensor | None] = [None] * len(nodes)
    for number in numbers:
        node_type = graph.node_types[number]
        if (time := times.get(node_type)) is not None:
            name = "seed_time" if node_type is None else f"seed_time of {node_type!r}"
            check_times(name, time, len(nodes[number]))
            result[number] = ordered_limit(name, time, graph.floating_time)
        elif (own := graph.own_limits(node_type)) is None:
            seeds = "the seeds" if node_type is None else f"the seeds of {node_type!r}"
            raise ValueError(f"seed_time: expected times for {seeds}, whose nodes have no times, found none")
        else:
            try:
                result[number] = own.index_select(0, nodes[number])
            except (IndexError, RuntimeError):
                check_ids("seeds", nodes[number], len(own), "nodes")
                raise
    return result


def _start_times(
    graph: SampledGraph, numbers: list[int], starts: Seeds, ends: Seeds, times: list[Tensor | None]
) -> list[Tensor | None]:
    """The starts of windows, in the form of their ends, ``times``, which change where no time is in a window."""
    result: list[Tensor | None] = [None] * len(times)
    by_type = typed(graph, "seed_start_time", starts)
    end_of = ends if isinstance(ends, dict) else {None: ends}
    for number in numbers:
        node_type = graph.node_types[number]
        if (start := by_type.get(node_type)) is None:
            continue
        limit, last = ordered_limit("seed_start_time", start, graph.floating_time, start=True), times[number]
        if not graph.floating_time:
            none = outside_integers(start, end_of.get(node_type, start.new_zeros(0, dtype=torch.int64)))
            if bool(none.any()):
                assert last is not None
                limit = torch.where(none, torch.iinfo(torch.int64).max, limit)
                times[number] = torch.where(none, torch.iinfo(torch.int64).min, last)
        result[number] = limit
    return result


def check_starts(graph: SampledGraph, request: SeedRequest) -> None:
    """Raises TypeError, ValueError or IndexError unless the time windows that are asked for have starts that are no
    later than their ends. Loaders check all of theirs when they are made."""
    if request.seed_start_time is None:
        return
    if not graph.is_temporal:
        raise ValueError("seed_start_time: expected none from a sampler without time_attr, found some")
    ends = {} if request.seed_time is None else typed(graph, "seed_time", request.seed_time)
    seeds = typed(graph, "seeds", request.seeds)
    for node_type, start in typed(graph, "seed_start_time", request.seed_start_time).items():
        if node_type not in seeds:
            raise ValueError(f"seed_start_time: expected node types of {list(seeds)}, found {node_type!r}")
        of, ids = "" if node_type is None else f" of {node_type!r}", as_ids("seeds", seeds[node_type])
        if (end := ends.get(node_type)) is not None:
            check_times(f"seed_time{of}", end, ids.numel())
        elif (own := (graph.node_time or {}).get(node_type)) is not None:
            check_ids("seeds", ids, len(own), "nodes")
            end = own[ids.to(torch.int64)]
        else:
            continue  # sampling says that the ends are missing
        check_windows(f"seed_start_time{of}", start, f"seed_time{of}", end)
