"""Loaders of the splits of a task: seeds are the rows of its tables of labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.sampler import NegativeSampling
from torch_geometric.transforms import Compose

from .._warn import warn
from ..loader import AnchorLoader, NeighborLoader
from ..sampler.fanouts import NumNeighborsLike
from .columns import NEVER, check_keys, check_same_unit, seconds

SPLITS = ("train", "val", "test")
OF_ANCHORS = ("num_positives", "neg_sampling", "exclude_seed_edges", "strict_negatives")
"""The arguments of AnchorLoader that only the split ``train`` of a recommendation task takes."""


def seed_times(data: HeteroData, table: Any, name: str, nodes: Tensor, of: str) -> Tensor | None:
    """The times of the rows of a task's table, in seconds, rounded down; None without times.

    Args:
        data: the database's graph.
        table: RelBench's.
        name: what errors call it.
        nodes: the seed of each row, a row of the table ``of``.
        of: a table of the database.

    Raises:
        ValueError: a missing time, or times in another unit than those of the database's rows.
    """
    if table.time_col is None:
        return None
    name = f"{name}.{table.time_col}"
    time = seconds(table.df[table.time_col], name, "down")
    if len(missing := (time == NEVER).nonzero()):
        raise ValueError(f"{name}: expected a time in each row, found none in row {int(missing[0])}")
    rows = {of: store.time for of, store in data.node_items() if "time" in store}
    check_same_unit(rows, time, name)
    if of in rows and (late := int((rows[of][nodes] > time).sum())):
        warn(f"{name}: {late} of {len(time)} times are earlier than those of their own rows of {of}")
    return time


def entity_loaders(
    task: Any, data: HeteroData, num_neighbors: NumNeighborsLike, transform: Callable | None = None,
    splits: Sequence[str] = SPLITS, **kwargs: Any,
) -> dict[str, Any]:  # fmt: skip
    """A NeighborLoader of each split of an entity task: ``y`` are the labels of the seeds."""
    from relbench.modeling.graph import get_node_train_table_input

    loaders = {}
    for split in splits:
        table, name = task.get_table(split), f"{task.name}, {split}"
        _check_entities(data, table.df[task.entity_col], f"{name}: {task.entity_col}", task.entity_table)
        given = get_node_train_table_input(table, task)
        time = seed_times(data, table, name, given.nodes[1], task.entity_table)
        steps = [step for step in (given.transform, transform) if step is not None]
        loaders[split] = _seeds(
            data, num_neighbors, given.nodes, time, split, transform=Compose(steps) if steps else None, **kwargs
        )
    return loaders


def recommendation_loaders(
    task: Any, data: HeteroData, num_neighbors: NumNeighborsLike, splits: Sequence[str] = SPLITS, **kwargs: Any
) -> dict[str, Any]:
    """The loaders of a recommendation task: an AnchorLoader of ``train``, whose anchors are sources at a time and
    positives their destinations then; of ``val`` and ``test`` a NeighborLoader of the sources, in the order of the
    table, and one of all destinations, ``val_targets`` and ``test_targets``; all at the split's time, as RelBench."""
    of, of_dst, column = task.src_entity_table, task.dst_entity_table, task.dst_entity_col
    only = {name: kwargs.pop(name) for name in OF_ANCHORS if name in kwargs}
    loaders: dict[str, Any] = {}
    for split in splits:
        table, name = task.get_table(split), f"{task.name}, {split}"
        _check_entities(data, table.df[task.src_entity_col], f"{name}: {task.src_entity_col}", of)
        nodes = torch.from_numpy(table.df[task.src_entity_col].to_numpy(np.int64, copy=True))
        time = seed_times(data, table, name, nodes, of)
        if split == "train":
            rowptr, col = _lists(data, table.df[column], f"{name}: {column}", of_dst)
            _warn_of_late(data, rowptr, col, time, f"{name}: {column}", of_dst)
            loaders[split] = loader = AnchorLoader(
                data, num_neighbors, (of, nodes), ((of, task.name, of_dst), rowptr, col),
                anchor_time=time, time_attr=None if time is None else "time", lists_of="anchors", empty="skip",
                **{"neg_sampling": NegativeSampling("triplet"), "shuffle": True, **only, **kwargs},
            )  # fmt: skip
            if left := len(nodes) - len(loader.input_data.node):
                warn(
                    f"{name}: {column}: {left} of {len(nodes)} rows have no destination that is not later than they "
                    f"are: they are left out"
                )
            continue
        moment = None if time is None else _moment(task, split, time, name)
        for key, seeds in ((split, (of, nodes)), (f"{split}_targets", (of_dst, torch.arange(data[of_dst].num_nodes)))):
            at = None if moment is None else torch.full((len(seeds[1]),), moment)
            loaders[key] = _seeds(data, num_neighbors, seeds, at, split, **kwargs)
    return loaders


def _moment(task: Any, split: str, time: Tensor, name: str) -> int:
    """The split's time in seconds, at which RelBench reads sources and destinations of ``val`` and ``test``. Raises
    ValueError for rows of earlier times, which would see what came later."""
    of_split = task.dataset.val_timestamp if split == "val" else task.dataset.test_timestamp
    moment = int(of_split.timestamp())
    if len(early := (time < moment).nonzero()):
        row = int(early[0])
        raise ValueError(
            f"{name}: expected times from {of_split} on, the time of the split, at which all rows are read, found "
            f"{int(time[row])} seconds since 1970 in row {row}"
        )
    return moment


def _seeds(data: HeteroData, num_neighbors: Any, seeds: tuple, time: Tensor | None, split: str, **kwargs: Any) -> Any:
    return NeighborLoader(
        data, num_neighbors, seeds, input_time=time, time_attr=None if time is None else "time",
        **{"shuffle": split == "train", **kwargs},
    )  # fmt: skip


def _check_entities(data: HeteroData, column: Any, name: str, of: str) -> None:
    check_keys(column, name, of, data[of].num_nodes, missing=False)


def _lists(data: HeteroData, column: Any, name: str, of: str) -> tuple[Tensor, Tensor]:
    """(rowptr, col) of a column of lists of rows of ``of``."""
    lengths = torch.tensor([0, *map(len, column)])
    entries = column.explode()
    entries = entries[entries.notna()]
    if len(entries) != int(lengths.sum()):
        row = next(row for row, some in enumerate(column) if any(value is None or value != value for value in some))
        raise ValueError(f"{name}: expected keys of {of}, found a missing one in row {row}")
    values = entries.to_numpy(np.int64)
    wrong = np.flatnonzero((values < 0) | (values >= data[of].num_nodes))
    rowptr = lengths.cumsum(0)
    if len(wrong):
        row = int(torch.searchsorted(rowptr, int(wrong[0]), right=True)) - 1
        raise ValueError(
            f"{name}: expected keys of {of}, from 0 to {data[of].num_nodes - 1}, found {values[wrong[0]]} in row {row}"
        )
    return rowptr, torch.from_numpy(values.copy())


def _warn_of_late(data: HeteroData, rowptr: Tensor, col: Tensor, time: Tensor | None, name: str, of: str) -> None:
    """Warns of destinations that are never drawn because they are later than their anchors."""
    if time is None or "time" not in data[of]:
        return
    if late := int((data[of].time[col] > time.repeat_interleave(rowptr.diff())).sum()):
        warn(f"{name}: {late} of {len(col)} destinations are later than the times of their rows: they are not drawn")
