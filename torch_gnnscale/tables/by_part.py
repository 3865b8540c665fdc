"""A graph of tables by part: the rows of each part's nodes and edges as parquet, and what is known of all parts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import files
from ..partition.directory import RowsMeta, rows_entry
from ..partition.whole import PartitionReport, nodes_of
from ..splits import SUBSETS
from ..topology.csc import CHUNK
from ..topology.graph_store import relation_entry
from . import edges as edge_tables
from . import nodes as node_tables
from .edges import Edges, Order
from .engine import Engine
from .layout import KnownRows
from .nodes import Nodes
from .part_rows import write_edges, write_nodes

KIND = "tables-by-part"
"""The kind of the folder ``counts``."""


class TablesByPart:
    """Tables of parts, while they are written: ``nodes/TYPE/part=K``, ``edges/RELATION/part=K`` and ``counts``, with 16
    bytes for each node. The rows of a part are written where the engine has them.

    Args:
        folder: a new one.
        engine: that has the tables.
        parts: number of parts.
    """

    def __init__(self, folder: Path, engine: Engine, parts: int) -> None:
        self._folder, self._engine, self._parts = folder.absolute(), engine, parts
        self._known = KnownRows()
        self._owner: dict[str, Tensor] = {}
        """The part of each node by type: int32, shape [n]."""
        self._seeds: dict[tuple[str, str], Tensor] = {}
        self._relations: list[dict[str, Any]] = []
        self._arrays: dict[str, Tensor] = {}
        self._checksums: list[int] = []
        self._halo: dict[tuple[str, int], list[Path]] = {}
        """By type and part: files with the ids of nodes in other parts from which edges lead into it."""
        self._cut = 0

    def nodes(self, nodes: Nodes) -> dict[str, int]:
        """Writes the rows of a type of nodes; returns the sizes of its splits."""
        node_type, number = nodes.table.name, len(self._owner)
        node_tables.add(nodes, self._known)
        owner = torch.empty(nodes.count, dtype=torch.int32)
        at = 0
        for batch in self._engine.database.batches(f"SELECT part FROM {nodes.staged}_keys ORDER BY id", CHUNK):
            owner[at : at + len(batch)] = torch.from_numpy(batch.column(0).to_numpy().astype(np.int32))
            at += len(batch)
        self._owner[node_type] = owner
        self._arrays |= {f"owner_{number}": owner, f"degree_{number}": torch.zeros(nodes.count, dtype=torch.int64)}
        split = node_tables.split_of(self._engine, nodes)
        written = self._engine.group(
            f"{nodes.staged}_owned", "true", "part", partial(write_nodes, self._folder, nodes, split)
        )
        if nodes.table.split is None:
            return {}
        for subset in SUBSETS:
            mask = torch.zeros(nodes.count, dtype=torch.bool)
            for found in written:
                mask[(owner == found.part).nonzero().view(-1)[torch.from_numpy(found.places[subset])]] = True
            self._seeds[node_type, subset] = mask.nonzero().view(-1)
        return {subset: sum(found.sizes[subset] for found in written) for subset in SUBSETS}

    def relation(self, edges: Edges, nodes: Any, order: Order) -> dict[str, int]:
        """Writes a relation; returns the sizes of its splits."""
        src, dst = order.edge_type[0], order.edge_type[-1]
        edge_tables.add(edges, order.edge_type, self._known)
        function = partial(write_edges, self._folder, edges, order)
        written = self._engine.group(edges.staged, "bad = 0", f"{order.by}_part", function)
        degree = torch.zeros(nodes[dst].count, dtype=torch.int64)
        out_degree = self._arrays[f"degree_{[*self._owner].index(src)}"]
        for found in written:
            with np.load(file := self._folder / found.ends) as ends:
                degree[torch.from_numpy(ends["dst"])] = torch.from_numpy(ends["dst_count"])
                out_degree[torch.from_numpy(ends["src"])] += torch.from_numpy(ends["src_count"])
            self._halo.setdefault((src, found.part), []).append(file)
        self._cut += sum(found.cut for found in written)
        self._checksums.append(sum(found.checksum for found in written) % (1 << 63))
        colptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
        self._arrays[f"colptr_{len(self._relations)}"] = colptr
        self._relations.append(
            relation_entry(order.edge_type, len(self._owner[src]), len(self._owner[dst]), edges.count)
        )
        return {subset: sum(found.sizes[subset] for found in written) for subset in SUBSETS}

    def close(self) -> None:
        """Writes what is known of all parts."""
        owner, parts = self._owner, self._parts
        halo = [0] * parts
        for (_, part), found in self._halo.items():
            halo[part] += len(np.unique(np.concatenate([_halo_of(file) for file in found])))
        edges = torch.zeros(parts, dtype=torch.int64)
        for number, relation in enumerate(self._relations):
            dst = owner[relation["edge_type"][-1]].long()
            edges.index_add_(0, dst, self._arrays[f"colptr_{number}"].diff())
        train = [owner[node_type][ids] for (node_type, subset), ids in self._seeds.items() if subset == "train"]
        counts = {nodes_of(node_type): torch.bincount(of, minlength=parts).tolist() for node_type, of in owner.items()}
        report = PartitionReport(
            sum(relation["num_edges"] for relation in self._relations), self._cut, counts, edges.tolist(),
            torch.bincount(torch.cat([torch.empty(0, dtype=torch.int32), *train]), minlength=parts).tolist(), halo,
        )  # fmt: skip
        rows = [
            RowsMeta(group, attr, dtype, tuple(shape[1:]), shape[0])
            for (group, attr), (dtype, shape) in self._known.attrs.items()
        ]
        meta = {
            "parts": parts, "num_nodes": [[node_type, len(of)] for node_type, of in owner.items()],
            "relations": self._relations, "rows": [rows_entry(of) for of in rows],
            "splits": [list(key) for key in self._seeds], "edge_checksums": self._checksums,
            "report": report.to_dict(),
        }  # fmt: skip
        files.save(
            self._folder / "counts", KIND,
            {**self._arrays, **{f"seeds_{i}": ids for i, ids in enumerate(self._seeds.values())}}, meta,
        )  # fmt: skip


def _halo_of(file: Path) -> np.ndarray:
    with np.load(file) as ends:
        return ends["halo"]
