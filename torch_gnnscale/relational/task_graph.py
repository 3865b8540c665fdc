"""Tasks on databases: the graph of what a task may see, the loaders of its splits, and graphs that are kept on disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from .. import files
from ..feature.composite import Composite
from ..sampler.fanouts import NumNeighborsLike
from .database_graph import HashedWords, TextEmbedder, check_tables, database_graph
from .loaders import entity_loaders, recommendation_loaders

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


@dataclass
class TaskGraph:
    """A task, and the graph of the database that it may see."""

    task: Any
    """RelBench's: its ``task_type``, tables of labels and ``evaluate``."""
    data: HeteroData
    """A node type per table: ``tf``, a TensorFrame of the rows, and, where the table has times, ``time``: int64,
    seconds since 1970. For each foreign key ``(table, "f2p_COLUMN", other)`` and ``(other, "rev_f2p_COLUMN", table)``.
    """
    col_stats: dict[str, dict[str, dict]]
    """Statistics of each table's columns, which torch_frame's encoders take."""

    name: str
    """Of the database and the task."""

    def __str__(self) -> str:
        sizes = ", ".join(f"{len(store.tf):,} {of}" for of, store in self.data.node_items())
        return f"{self.name}: {self.task.task_type.value}; {sizes}; {self.data.num_edges // 2:,} foreign keys"

    def loaders(self, num_neighbors: NumNeighborsLike, **kwargs: Any) -> dict[str, Any]:
        """The loaders of the splits; see :func:`task_loaders`."""
        from relbench.base import RecommendationTask

        make = recommendation_loaders if isinstance(self.task, RecommendationTask) else entity_loaders
        return make(self.task, self.data, num_neighbors, **kwargs)


def open_task(
    source: str | os.PathLike,
    task: str,
    *,
    text_embedder: TextEmbedder | None = None,
    cache: str | os.PathLike | None = None,
) -> TaskGraph:
    """Reads a database and a task of it.

    Columns that the task must not see (its ``remove_columns``, and the target of an autocomplete task) are in no row.
    Rows later than RelBench's ``test_timestamp`` are left out, but for autocomplete tasks, which ask about them.

    Args:
        source: a folder with RelBench's manifest and parquet tables, or what RelBench downloads: a name of its own, or
            ``org/repo[/folder]``.
        task: the name of a task.
        text_embedder: makes a row of numbers of each text; by default :class:`HashedWords`.
        cache: a folder in which graph and encoded rows are kept, in a directory whose name is a digest of the manifest,
            the tables' files, the columns that are left out, the repr of ``text_embedder`` and the packages' versions.
            What is there is mapped into memory and neither read from parquet nor encoded again. None: nothing is kept.

    Raises:
        ImportError: relbench or pytorch-frame is not installed.
        FileNotFoundError: ``source`` is a path without a manifest.
        TypeError, ValueError: a task that is not there; keys or times that are wrong, with table, column and row; with
            ``cache``, an embedder whose repr is the default one.
    """
    try:
        from relbench import load_dataset
        from relbench.base import AutoCompleteTask
        from relbench.modeling import graph as _  # noqa: F401  torch_frame may be missing
    except ImportError as error:
        raise ImportError(
            f"relational databases are read by relbench and pytorch-frame, and {error.name} is missing: "
            f"pip install 'torch_gnnscale[relational]'"
        ) from error
    dataset = load_dataset(os.fspath(source))
    embedder = HashedWords() if text_embedder is None else text_embedder
    try:
        of = dataset.load_task(task)
    except RuntimeError:  # of RelBench's own checks of keys, which name no row
        _check_database(dataset)
        raise
    hidden, whole = of.hidden_columns(), isinstance(of, AutoCompleteTask)

    def make() -> tuple[HeteroData, dict[str, Any]]:
        _check_database(dataset)
        return database_graph(of.get_db(upto_test_timestamp=not whole), hidden, embedder)

    called = f"{Path(source).name} {task}"
    if cache is None:
        return TaskGraph(of, *make(), called)
    check_repr(embedder)
    name = digest(dataset.dataset_dir, [*dataset.manifest.tables], sorted(hidden), whole, embedder)
    return TaskGraph(of, *kept(Path(cache) / name, make), called)


def _check_database(dataset: Any) -> None:
    database, end = dataset.make_db(), dataset.test_timestamp
    check_tables(database)
    check_tables(database.upto(end), f" where rows later than {end} are left out")


def task_loaders(
    source: str | os.PathLike,
    task: str,
    num_neighbors: NumNeighborsLike,
    *,
    text_embedder: TextEmbedder | None = None,
    cache: str | os.PathLike | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """The loaders of a task's splits.

    Of an entity task: a NeighborLoader each of ``train``, ``val`` and ``test``. A seed is a row of the split's table,
    an entity at a time, and its sample has no row that is later. A batch has ``tf`` of each type and, for the seeds,
    ``y``, but for ``test``, whose labels RelBench keeps to itself; ``input_id`` is the row of the table.

    Of a recommendation task: for ``train`` an AnchorLoader, whose anchors are the rows of the table, sources at a time,
    and whose positives are their destinations; for ``val`` and ``test`` a NeighborLoader of the rows, and one of all
    destinations, ``val_targets`` and ``test_targets``: all at the split's time, also where rows have several. What is
    later than an anchor is neither its positive nor its negative; an anchor without a positive is left out.

    Args:
        source, task, text_embedder, cache: as of :func:`open_task`.
        num_neighbors: fanout of each hop, or a list per edge type.
        **kwargs: ``splits``, of which loaders are made, by default all; all others are of the loaders. ``shuffle`` is
            True for ``train`` only, if it is not given. ``num_positives``, ``neg_sampling`` (by default one negative
            for each anchor), ``exclude_seed_edges`` and ``strict_negatives`` are those of the AnchorLoader.

    Raises:
        TypeError, ValueError: those of :func:`open_task` and of the loaders.
    """
    return open_task(source, task, text_embedder=text_embedder, cache=cache).loaders(num_neighbors, **kwargs)
