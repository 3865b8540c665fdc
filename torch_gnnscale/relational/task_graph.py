"""Tasks on databases: the graph of what a task may see, and the loaders of its splits."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.transforms import Compose

from .._warn import warn
from ..loader import NeighborLoader
from ..sampler.fanouts import NumNeighborsLike
from .graph import TextEmbedder, database_graph
from .tables import check_keys, check_tables
from .text import HashedWords
from .times import NEVER, check_same_unit, seconds

SPLITS = ("train", "val", "test")


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

    def loaders(self, num_neighbors: NumNeighborsLike, **kwargs: Any) -> dict[str, Any]:
        """The loaders of the splits; see :func:`task_loaders`."""
        from relbench.base import RecommendationTask

        if isinstance(self.task, RecommendationTask):
            raise NotImplementedError("loaders of recommendation tasks are not implemented; use AnchorLoader")
        return {split: self._of_entities(split, num_neighbors, **kwargs) for split in SPLITS}

    def seed_times(self, table: Any, name: str, nodes: Tensor, of: str) -> Tensor | None:
        """The times of the rows of a task's table, in seconds, rounded down; None without times.

        Args:
            table: RelBench's.
            name: what errors call it.
            nodes: the seed of each row, a row of the table ``of``.

        Raises:
            ValueError: a missing time, or times in another unit than those of the database's rows.
        """
        if table.time_col is None:
            return None
        name = f"{name}.{table.time_col}"
        time = seconds(table.df[table.time_col], name, "down")
        if len(missing := (time == NEVER).nonzero()):
            raise ValueError(f"{name}: expected a time in each row, found none in row {int(missing[0])}")
        rows = {of: store.time for of, store in self.data.node_items() if "time" in store}
        check_same_unit(rows, time, name)
        if of in rows and (late := int((rows[of][nodes] > time).sum())):
            warn(f"{name}: {late} of {len(time)} times are earlier than those of their own rows of {of}")
        return time

    def _of_entities(
        self, split: str, num_neighbors: NumNeighborsLike, transform: Callable | None = None, **kwargs: Any
    ) -> NeighborLoader:
        from relbench.modeling.graph import get_node_train_table_input

        task, name = self.task, f"{self.task.name}, {split}"
        table, of = task.get_table(split), task.entity_table
        column = f"{name}: {task.entity_col}"
        check_keys(table.df[task.entity_col], column, of, self.data[of].num_nodes, missing=False)
        given = get_node_train_table_input(table, task)
        time = self.seed_times(table, name, given.nodes[1], of)
        steps = [step for step in (given.transform, transform) if step is not None]
        return NeighborLoader(
            self.data, num_neighbors, given.nodes, input_time=time, time_attr=None if time is None else "time",
            transform=Compose(steps) if steps else None, **{"shuffle": split == "train", **kwargs},
        )  # fmt: skip


def open_task(source: str | os.PathLike, task: str, *, text_embedder: TextEmbedder | None = None) -> TaskGraph:
    """Reads a database and a task of it.

    Columns that the task must not see (its ``remove_columns``, and the target of an autocomplete task) are in no row.
    Rows later than RelBench's ``test_timestamp`` are left out, but for autocomplete tasks, which ask about them.

    Args:
        source: a folder with RelBench's manifest and parquet tables, or what RelBench downloads: a name of its own, or
            ``org/repo[/folder]``.
        task: the name of a task.
        text_embedder: makes a row of numbers of each text; by default :class:`HashedWords`.

    Raises:
        ImportError: relbench or pytorch-frame is not installed.
        FileNotFoundError: ``source`` is a path without a manifest.
        TypeError, ValueError: a task that is not there; keys or times that are wrong, with table, column and row.
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
    database = dataset.make_db()
    check_tables(database)
    check_tables(database.upto(dataset.test_timestamp), f" where rows later than {dataset.test_timestamp} are left out")
    del database
    of = dataset.load_task(task)
    whole = isinstance(of, AutoCompleteTask)
    data, statistics = database_graph(
        of.get_db(upto_test_timestamp=not whole), of.hidden_columns(), text_embedder or HashedWords()
    )
    return TaskGraph(of, data, statistics)


def task_loaders(
    source: str | os.PathLike,
    task: str,
    num_neighbors: NumNeighborsLike,
    *,
    text_embedder: TextEmbedder | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """The loaders of a task's splits: ``train``, ``val`` and ``test``.

    Of an entity task they are NeighborLoaders over the rows of the split's table: a seed is an entity at a time, and
    its sample has no row that is later. A batch has ``tf`` of each type and, for the seeds, ``y``, but for the
    split ``test``, whose labels RelBench keeps to itself; ``input_id`` is the row of the table.

    Args:
        source, task, text_embedder: as of :func:`open_task`.
        num_neighbors: fanout of each hop, or a list per edge type.
        **kwargs: of the loaders. ``shuffle`` is True for ``train`` only, if it is not given.

    Raises:
        The errors of :func:`open_task` and of the loaders.
    """
    return open_task(source, task, text_embedder=text_embedder).loaders(num_neighbors, **kwargs)
