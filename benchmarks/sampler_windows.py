"""Time windows: what they cost, and what looking at all edges before sampling costs; a part of bench_sample.py.

Seeds of an R-MAT graph whose nodes have times end at times of their own. With a window of all times, samples are those
without windows, so that the difference is what windows cost.

What is done before sampling in plain torch needs one window for a whole batch. Filtering makes a mask over all edges,
the edges that are left and their column pointers, and this package's operator samples these; edges are sorted and have
their times already. It returns the same edges. PyG's pull request 10652 gives edges outside of the window a time that
no seed reaches, and pyg-lib samples; here these times are made, and nothing is sampled: the least that it can take if
edges have times.

Times are those of the process, on one thread: other work may run beside it.
"""

from __future__ import annotations

import threading
import time

import torch
from common import compare, judged, report, say_aims
from sampler_modes import BATCH, NODES, homogeneous, ids
from torch import Tensor
from typed_graphs import TIMES

from torch_gnnscale import NeighborSampler, ops
from torch_gnnscale.memory.huge_pages import MOVING

FANOUTS = [15, 10, 5]
WITHOUT, ALL = "no windows", "windows of all times"
SHARED, FILTERED = "one window for the batch", "edges filtered to it, then sampled"
MASKED = "times of edges outside of it masked, nothing sampled"
SHARE = 10  # the shared window is a tenth of all times


def filtered(graph: ops.Relations, seeds: Tensor, start: int, end: int, key: int) -> Tensor:
    """The ids of the edges that are sampled from the edges of a window."""
    (colptr,), (row,), (edge_id,), _, (times,) = graph[:5]
    assert times is not None
    kept = (times >= start) & (times <= end)
    places = torch.cat([colptr.new_zeros(1), kept.cumsum(0)])[colptr]
    edges = ops.relations([places], [row[kept]], edge_id=[None if edge_id is None else edge_id[kept]])
    return ops.sample_neighbors(edges, [seeds], FANOUTS, key, disjoint=True, threads=1).edge_id[0]


def measure_windows(rounds: int) -> dict:
    """All candidates."""
    torch.set_num_threads(1)
    sampler = NeighborSampler(homogeneous(), FANOUTS, time_attr="time")
    for thread in threading.enumerate():
        if thread.name == MOVING:  # it may still move the graph
            thread.join()
    seeds = [ids(NODES, number) for number in range(rounds)]
    generator = torch.Generator().manual_seed(2)
    ends = [torch.randint(TIMES // 2, TIMES, (BATCH,), generator=generator) for _ in range(rounds)]
    latest = [int(end.max()) for end in ends]

    def own(length: int | None):
        def run(number: int) -> Tensor:
            start = None if length is None else ends[number] - length
            return sampler.sample(seeds[number], ends[number], number, seed_start_time=start).edge

        return run

    def shared(number: int) -> Tensor:
        end = torch.full((BATCH,), latest[number])
        return sampler.sample(seeds[number], end, number, seed_start_time=end - TIMES // SHARE).edge

    def by_filter(number: int) -> Tensor:
        return filtered(sampler.graph.stored, seeds[number], latest[number] - TIMES // SHARE, latest[number], number)

    def masked(number: int) -> Tensor:
        (times,) = sampler.graph.stored.time
        assert times is not None
        start, end = latest[number] - TIMES // SHARE, latest[number]
        return torch.where((times >= start) & (times <= end), times, 2 * TIMES)

    candidates = {
        WITHOUT: own(None), ALL: own(TIMES), "windows of half of the times": own(TIMES // 2),
        "windows of a tenth of the times": own(TIMES // SHARE), SHARED: shared, FILTERED: by_filter,
        MASKED: masked,
    }  # fmt: skip
    assert torch.equal(candidates[ALL](0), candidates[WITHOUT](0))
    assert torch.equal(candidates[SHARED](0), candidates[FILTERED](0))
    edges = {name: 0 if name == MASKED else len(run(0)) for name, run in candidates.items()}
    times = compare(candidates, rounds, again=True, clock=time.process_time)
    for name, count in edges.items():
        times[name]["edges"] = count
    report("time windows", times, WITHOUT)
    aims = {
        "windows of all times, by the time without": judged(
            times[ALL]["median_ms"] / times[WITHOUT]["median_ms"], most=1.15
        ),
        "filtering before sampling, by a window's time": judged(
            times[FILTERED]["median_ms"] / times[SHARED]["median_ms"], least=8
        ),
        "masking times of edges, by a window's time": judged(
            times[MASKED]["median_ms"] / times[SHARED]["median_ms"], least=8
        ),
    }
    say_aims(aims)
    return {**times, "aims": aims}
