"""Tables to stores: the whole way, and opening what it made."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import files, machine
from ..feature import FeatureStore
from ..memory import Budget, budget_bytes
from ..ops.arguments import check_choice, check_int
from ..remote import hiding_secrets
from ..splits import SUBSETS
from ..topology import GraphStore
from ..topology.graph_store import KIND as GRAPH
from ..topology.graph_store import relation_entry
from ..topology.sort_on_disk import id_dtype, write_relation
from . import edges as edge_tables
from . import nodes as node_tables
from .clusters import Ray, Spark
from .engine import Database, DuckDB, Engine
from .id_map import IdWriter
from .layout import FeatureWriter
from .part_rows import TablesByPart
from .schema import Schema

REPORT = "report.json"
"""The file with what was counted."""
ENGINES: dict[str, Callable[[], Engine]] = {"duckdb": DuckDB, "spark": Spark, "ray": Ray}
"""By the names that users give them."""
_LEAST = 64 << 20
"""Bytes of memory that DuckDB needs."""


def build(
    schema: Schema, out: str | os.PathLike, memory: Budget = "2GiB", threads: int | None = None,
    parts: int | None = None, say: Callable[[str], object] = lambda _: None, engine: Engine | str = "duckdb",
) -> dict[str, Any]:  # fmt: skip
    """Writes the stores of a graph of tables into a new directory; nothing where an error is raised.

    Nodes are numbered by their sorted keys, edges by (destination, time, source, their other columns): what is written
    depends neither on the order of files and rows nor on ``memory`` or ``threads``.

    Args:
        schema: which columns are what.
        out: the directory, which :func:`open` opens.
        memory: bytes that joins and sorts may use; what is larger is on the disk of ``out`` meanwhile.
        threads: that they may use; by default as many as there are cores.
        parts: write tables of so many parts in place of the stores, of which :func:`write_parts` makes a directory of
            parts. Edges are with their destination's part; ``owner`` of the schema says which part a node is in.
        say: called with a line for each table.
        engine: what joins tables and splits them by part: "duckdb", in this process; with ``parts`` also a
            :class:`Spark` or a :class:`Ray`, or "spark" or "ray", one with its defaults. All write the same bytes.
            ``memory`` is for each process.

    Returns:
        What was counted, by table, as it is in ``out/report.json``.

    Raises:
        FileExistsError: ``out`` exists and is not an empty directory.
        FileNotFoundError, ValueError: names table, file, column and row of what is wrong first; more parts than nodes,
            unless a table has an ``owner``.
        MemoryError: ``memory`` does not suffice.
        ImportError: DuckDB, pyarrow or the engine's package is missing.
        OSError: a file that cannot be written, or an engine that does not start.
    """
    limit = budget_bytes("memory", memory, machine.available_memory())
    if limit < _LEAST:
        raise ValueError(f"memory: expected at least 64MiB, found {memory!r}")
    parts = None if parts is None else check_int("parts", parts, 1, 1 << 16)
    if isinstance(engine, str):
        check_choice("engine", engine, [*ENGINES])
    elif not isinstance(engine, Engine):
        raise TypeError(f"engine: expected an Engine or one of {', '.join(ENGINES)}, found {type(engine).__name__}")
    if parts is None and engine != "duckdb":
        found = engine if isinstance(engine, str) else type(engine).__name__
        raise ValueError(f"engine: expected duckdb where there are no parts, found {found}")
    if isinstance(engine, str):
        engine = ENGINES[engine]()
    with hiding_secrets(schema.files), files.creating(out) as folder:
        (work := folder / "work").mkdir()
        database = Database(work, limit, threads or machine.cores())
        of_torch = torch.get_num_threads()
        torch.set_num_threads(1)  # others would spin between operators, on the cores of DuckDB's threads
        try:
            engine.open(database, work)
            into = _Stores(folder, engine) if parts is None else TablesByPart(folder, engine, parts)
            report = _build(engine, schema, folder, into, say, parts)
        finally:
            torch.set_num_threads(of_torch)
            database.close()
            engine.close()
        shutil.rmtree(work)
        (folder / REPORT).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return report


def _build(
    engine: Engine, schema: Schema, folder: Path, into: _Stores | TablesByPart, say: Callable[[str], object],
    parts: int | None,
) -> dict[str, Any]:  # fmt: skip
    report: dict[str, Any] = {"nodes": {}, "edges": {}}
    ids, staged = IdWriter(folder / "tables"), {}
    about: dict[str, Any] = {"nodes": {}, "edges": {}, "time_unit": schema.time_unit}
    for number, (name, table) in enumerate(schema.nodes.items()):
        staged[name] = nodes = node_tables.stage(engine, schema, table, f"nodes_{number}", parts)
        node_tables.write_ids(engine.database, nodes, ids)
        sizes = into.nodes(nodes)
        engine.drop(nodes.staged)
        report["nodes"][name] = nodes.report() | ({"split": sizes} if sizes else {})
        about["nodes"][name] = nodes.about()
        say(_line(table.path, report["nodes"][name]))
    count = sum(nodes.count for nodes in staged.values())
    if parts is not None and parts > count and not any(table.owner for table in schema.nodes.values()):
        raise ValueError(f"parts: expected at most {count}, the number of nodes, found {parts}")
    for number, (edge_type, of_edges) in enumerate(schema.edges.items()):
        edges = edge_tables.stage(engine, schema, staged, of_edges, f"edges_{number}", parts is not None)
        sizes = {}
        for order in edge_tables.orders_of(engine, edges):
            found = into.relation(edges, staged, order)
            sizes = sizes or found
        engine.drop(edges.staged)
        name = ".".join(edge_type)
        report["edges"][name] = edges.report() | ({"split": sizes} if of_edges.split is not None else {})
        about["edges"][name] = edges.about()
        say(_line(of_edges.path, report["edges"][name]))
    into.close()
    ids.close(about)
    return report


class _Stores:
    """The saved stores of a graph of tables, while they are written."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self._rows, self._database, self._engine = FeatureWriter(folder / "features"), engine.database, engine
        (graph := folder / "graph").mkdir()
        self._graph = graph
        self._entries: dict[str, dict[str, Any]] = {}
        self._relations: list[dict[str, Any]] = []

    def nodes(self, nodes: node_tables.Nodes) -> dict[str, int]:
        """Writes the rows of a type of nodes; returns the sizes of its splits."""
        node_tables.add(nodes, self._rows)
        split = node_tables.split_of(self._engine, nodes)
        return node_tables.write(self._database, nodes.staged, nodes, split, self._rows)

    def relation(self, edges: edge_tables.Edges, nodes: Any, order: edge_tables.Order) -> dict[str, int]:
        """Writes a relation; returns the sizes of its splits."""
        edge_type, sizes = order.edge_type, dict.fromkeys(SUBSETS, 0)
        src, dst = nodes[edge_type[0]].count, nodes[edge_type[-1]].count
        edge_tables.add(edges, edge_type, self._rows)
        read = edge_tables.read(self._database, edges.staged, edges, order, self._rows, sizes)
        made = write_relation(
            self._graph, len(self._relations), edge_tables.pieces_of(read, dst), dst, edges.count, id_dtype(src), False,
            lambda _: None,
        )  # fmt: skip
        self._entries |= made
        self._relations.append(relation_entry(edge_type, src, dst, edges.count))
        return sizes

    def close(self) -> None:
        """Writes the manifests."""
        files.finish(self._graph, GRAPH, self._entries, {"relations": self._relations})
        self._rows.close()


def _line(path: str, found: dict[str, Any]) -> str:
    """What was counted of a table."""
    parts = [f"{found['rows']:,} rows of {found['files']} file{'s' if found['files'] > 1 else ''}"]
    if "key" in found:
        parts.append(f"{found['key']} keys")
    else:
        parts.append(f"{found['edges']:,} edges")
        parts += [f"{count:,} rows dropped: {cause}" for cause, count in found["dropped"].items()]
    parts += [f"{count:,} of {column} missing" for column, count in found["missing"].items()]
    parts += [f"{count:,} categories of {column}" for column, count in found["categories"].items()]
    parts += [f"{found['classes']:,} classes"] if "classes" in found else []
    parts += [f"{found['unlabelled']:,} rows without a label"] if "unlabelled" in found else []
    parts += [", ".join(f"{size:,} {subset}" for subset, size in found["split"].items())] if "split" in found else []
    return f"{path}: {'; '.join(parts)}"


def is_saved(path: str | os.PathLike) -> bool:
    """Whether a directory is one that :func:`build` wrote."""
    return (Path(path) / "tables" / files.MANIFEST).is_file()


def open(path: str | os.PathLike, verify: bool = True) -> tuple[FeatureStore, GraphStore]:
    """Opens a graph of tables, memory-mapped: a pair of stores, as loaders take it.

    Args:
        path: the directory that :func:`build` wrote.
        verify: read everything once and compare checksums.

    Raises:
        FileNotFoundError, ValueError: names the file that is missing, truncated, corrupt or foreign.
    """
    folder = Path(path)
    return FeatureStore.open(folder / "features", verify), GraphStore.open(folder / "graph", verify)
