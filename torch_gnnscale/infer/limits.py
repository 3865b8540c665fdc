"""What the stages of an inference hold at a time."""

from __future__ import annotations

from collections.abc import Mapping

from .. import machine
from ..memory.budget import format_bytes
from ..sampler.sources import of_type
from .graph import StagedGraph
from .nodes import Sets, first_hub
from .plan import Plan, Table


def peak_of(plan: Plan, sets: Mapping[int, Sets], first: int) -> int:
    """The most bytes that all tables together take in one of the stages that are left, from ``first`` on."""
    results = set(plan.results.values())

    def size(table: Table) -> int:
        return table.row_bytes * sets[table.written][table.node_type].count

    def size_in(stage: int) -> int:
        return sum(size(t) for t in plan.tables if t.written <= stage and (t.last >= stage or t in results))

    return max((size_in(stage) for stage in plan.stages if stage >= first), default=0)


def check_memory(size: int, whose: str) -> None:
    """Raises MemoryError if this machine lacks ``size`` bytes of memory for rows of nodes ``whose``."""
    if size > (available := machine.available_memory()):
        raise MemoryError(
            f"out: expected {format_bytes(size)} of memory for rows of nodes{whose}, found {format_bytes(available)}; "
            f"name a folder for them"
        )


def refuse_hubs(plan: Plan, graph: StagedGraph, sets: Mapping[int, Sets], memory: int) -> None:
    """Raises ValueError if a node has more edges than are held at a time, and a layer needs all of them at once."""
    for call in plan.calls:
        if call.refusal is None:
            continue
        if (hub := first_hub(graph, sets[call.level], most_edges_of(plan, call.level, memory))) is not None:
            node_type, seed = hub
            node = f"node {int(graph.user_ids(seed, node_type))}{of_type(node_type)}"
            raise ValueError(
                f"{call.title}: expected a layer that takes the sum, mean, max or min of messages, found "
                f"{call.refusal}; {node} has more neighbors than memory= holds, which must be larger for this layer"
            )


def most_edges_of(plan: Plan, stage: int, memory: int) -> int:
    """How many edges a batch has at most. An edge takes about its ids, its source's row and its message."""
    inputs = {table for call in plan.calls if call.level == stage for table in call.inputs.values()}
    return max(1, memory // (48 + 2 * sum(table.row_bytes for table in inputs)))
