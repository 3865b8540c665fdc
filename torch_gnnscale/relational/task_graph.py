"""Tasks on databases: the graph of what a task may see, and the loaders of its splits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_geometric.data import HeteroData

from ..sampler.fanouts import NumNeighborsLike
from .cache import check_repr, digest, kept
from .columns import check_tables
from .graph import HashedWords, TextEmbedder, database_graph
from .splits import entity_loaders, recommendation_loaders


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
