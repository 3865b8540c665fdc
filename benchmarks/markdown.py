"""Tables in Markdown of the results of benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Rows = Iterable[Iterable[object]]
SCHOOLS = "schools"
"""The name of a graph in results: the 24 largest schools of fb100."""


def taken_on(machine: dict[str, Any]) -> str:
    return "({cpu}, {cores} cores, {memory_gib} GiB, torch {torch})".format(**machine)


def table(head: Iterable[str], rows: Rows) -> str:
    lines = [list(head), *([_cell(value) for value in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def title(graph: str) -> str:
    if graph == SCHOOLS:
        return "**The 24 largest schools of fb100**"
    nodes, edges = graph.split("-")
    return f"**{nodes} nodes / {edges} edges**"


def by_graph(results: Any, make: Callable[[dict], str], intro: Callable[[dict], str] = lambda _: "") -> str:
    """A table for each graph of a result."""
    return "\n\n".join(
        f"{title(graph)}{intro(entry)}\n\n{make(entry)}"
        for graph, entry in results.items()
        if graph == SCHOOLS or "-" in graph
    )
