"""Graphs of databases that are kept on disk: the encoded rows, the edges, the times, the columns' statistics."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from .. import files
from ..feature.composite import Composite

KIND = "graph of a database"
FORMAT = 2
_CHUNK = 16 << 20


def digest(folder: Path, tables: list[str], *said: Any) -> str:
    """A hash of a database's manifest, of its files and of what else decides its graph.

    Args:
        folder: with ``manifest.yaml`` and ``db/TABLE.parquet``.
        tables: their names.
        said: values whose repr tells all of them.
    """
    import pandas as pd
    import relbench
    import torch_frame

    versions = FORMAT, pd.__version__, relbench.__version__, torch_frame.__version__
    found = hashlib.blake2b(repr((versions, tables, said)).encode(), digest_size=16)
    for file in (folder / "manifest.yaml", *(folder / "db" / f"{table}.parquet" for table in tables)):
        of_file = hashlib.blake2b()
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                of_file.update(chunk)
        found.update(of_file.digest())
    return found.hexdigest()


def check_repr(text_embedder: Any) -> None:
    """Raises ValueError if the repr of an embedder does not tell it from others, which would find each other's rows."""
    if " at 0x" in (said := repr(text_embedder)):
        raise ValueError(
            f"cache: expected a text_embedder whose repr says what it makes of texts, such as a dataclass, found {said}"
        )


def kept(
    path: str | os.PathLike, make: Callable[[], tuple[HeteroData, dict[str, Any]]]
) -> tuple[HeteroData, dict[str, Any]]:
    """The graph and the statistics that are saved in the directory ``path``; if it is not there, those of ``make()``,
    which are saved there first. Arrays are mapped, but for nested ones, which are copied: processes share their pages.

    Raises:
        ValueError: a directory that is damaged, or another one.
        OSError: files that cannot be written.
    """
    folder = Path(path)
    if not (folder / files.MANIFEST).is_file():
        arrays, meta = _arrays(*make())
        try:
            files.save(folder, KIND, arrays, meta)
        except FileExistsError:  # another process was faster
            if not (folder / files.MANIFEST).is_file():
                raise
    return _graph(*files.load(folder, KIND))


def _arrays(data: HeteroData, statistics: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    arrays: dict[str, Tensor] = {}
    meta: dict[str, Any] = {"nodes": [], "edges": [], "statistics": []}
    for number, (of, store) in enumerate(data.node_items()):
        rows, tensors = Composite.of("tf", store.tf)
        arrays |= {f"{number}-{part}": tensor.contiguous() for part, tensor in tensors.items()}
        if "time" in store:
            arrays[f"time-{number}"] = store.time
        meta["nodes"].append([of, store.num_nodes, rows.form])
        columns = [
            [column, [[entry.value, _plain(value)] for entry, value in of_column.items()]]
            for column, of_column in statistics[of].items()
        ]
        meta["statistics"].append([of, columns])
    for number, (edge_type, store) in enumerate(data.edge_items()):
        arrays[f"edges-{number}"] = store.edge_index.contiguous()
        meta["edges"].append(list(edge_type))
    return arrays, meta


def _graph(arrays: dict[str, Tensor], meta: dict[str, Any]) -> tuple[HeteroData, dict[str, Any]]:
    from torch_frame.data.stats import StatType

    data = HeteroData()
    for number, (of, count, form) in enumerate(meta["nodes"]):
        rows = Composite("tf", form)
        data[of].tf = rows.joined({part: arrays[f"{number}-{part}"] for part in rows.parts})
        if f"time-{number}" in arrays:
            data[of].time = arrays[f"time-{number}"]
        data[of].num_nodes = count
    for number, edge_type in enumerate(meta["edges"]):
        data[tuple(edge_type)].edge_index = arrays[f"edges-{number}"]
    statistics = {
        of: {column: {StatType(name): _value(value) for name, value in entries} for column, entries in columns}
        for of, columns in meta["statistics"]
    }
    return data, statistics


def _plain(value: Any) -> Any:
    """A statistic as JSON gives it back: [how to make it, of what], or a number or a string."""
    if isinstance(value, Tensor):
        return ["tensor", [str(value.dtype).removeprefix("torch."), value.tolist()]]
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, [_plain(entry) for entry in value]]
    value = value.item() if hasattr(value, "item") else value
    if not isinstance(value, (str, int, float, bool)):
        raise TypeError(f"cache: expected numbers and strings as statistics of columns, found a {type(value).__name__}")
    return value


def _value(said: Any) -> Any:
    if not isinstance(said, list):
        return said
    how, of = said
    if how == "tensor":
        return torch.tensor(of[1], dtype=getattr(torch, of[0]))
    return (tuple if how == "tuple" else list)(map(_value, of))
