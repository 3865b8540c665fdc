"""The rows of a batch by how they travel between ranks: over Gloo, or through memory of one machine; a part of
bench_distributed.py."""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
from timing_of_ranks import in_turn, slowest_of
from torch import Tensor

from torch_gnnscale import NeighborLoader
from torch_gnnscale.distributed import Part
from torch_gnnscale.loader.row_source import Bounds
from torch_gnnscale.sampler.minibatch import NO_EDGES, MiniBatch


def rows_of(part: Part, nodes: Tensor) -> tuple[Any, Any, Tensor]:
    """What reads rows of a part in steps of its own; what it needs for these nodes; how many of each part."""
    source, batch = part.features.row_source(part.graph, None), MiniBatch()
    source.join(part.features.open_steps())
    batch.nodes, batch.edges = [nodes], [NO_EDGES]
    needs = source.needs(batch, Bounds(), None)
    return source, needs, source.counts(needs)


def transports_of(parts: dict[str, Part], loader: NeighborLoader, rounds: int) -> dict[str, Any]:
    """Milliseconds of a batch's rows by transport, in turn: from asking for them, when it is known which, to having
    them in one tensor with this part's. Rows and what is counted must be equal."""
    out, runs = next(iter(loader.samples(0))), {}
    for name, part in parts.items():
        source, needs, counts = rows_of(part, out.node)
        steps = source.steps

        def rows(
            source: Any = source, needs: Any = needs, counts: Tensor = counts, tables: Any = part.features.tables
        ) -> list[Tensor]:
            source.read(needs, source.steps.rows.numbers(counts, "counts"))
            return tables.joined(needs.which, needs.located, needs.remote)

        def counted(steps: Any = steps) -> Any:
            return [
                (purpose, entry.rounds, entry.bytes_sent, entry.bytes_received, entry.headers, entry.header_bytes)
                for purpose, entry in sorted(steps.rows.traffic.items())
            ]

        runs[name] = rows, counted
    found = {name: rows() for name, (rows, _) in runs.items()}
    assert all(torch.equal(*both) for both in zip(*found.values(), strict=True)), "expected equal rows"
    gloo, memory = (counted() for _, counted in runs.values())
    assert gloo == memory, f"expected equal counts, found {gloo} and {memory}"
    return in_turn({name: rows for name, (rows, _) in runs.items()}, rounds)


def memory_over_gloo(of_ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarizes what :func:`transports_of` returned on each rank."""
    slowest, low, cpu = slowest_of(of_ranks)
    medians = {kind: median(times) for kind, times in slowest.items()}
    return {
        **{f"{kind}_ms": value for kind, value in medians.items()},
        "throughput of memory over gloo": medians["gloo"] / medians["memory"],
        "at the lower quartile": low["gloo"] / low["memory"],
        "CPU time of gloo over memory's": cpu["gloo"] / cpu["memory"],
    }
