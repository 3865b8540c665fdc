"""Rows of nodes between the stages of an inference, and its results: in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .. import ops
from .graph import StagedGraph
from .plan import Plan, Table


class Places:
    """Where the results of nodes are put: in the order of the ids that a user gave.

    Args:
        ids: stored ids of the wanted nodes, in the order of the results; repeats allowed.
    """

    def __init__(self, ids: Tensor) -> None:
        self._order = torch.argsort(ids, stable=True)
        self._sorted = ids[self._order]
        self.count = len(ids)

    def of(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """For rows of the nodes ``ids``: which of them are put where."""
        first = torch.searchsorted(self._sorted, ids)
        counts = torch.searchsorted(self._sorted, ids, right=True) - first
        which = torch.repeat_interleave(counts)
        begin = torch.repeat_interleave(first - counts.cumsum(0) + counts, counts)
        return which, self._order[begin + torch.arange(len(begin))]


class Rows:
    """Tensors with a row for each node of a type, in memory.

    Args:
        plan: says which there are, and when each is written and last read.
        graph: the nodes, all of one type with consecutive stored ids.
        places: by type, where results are put; for a type that is missing, in the order of stored ids.
    """

    def __init__(self, plan: Plan, graph: StagedGraph, places: Mapping[Any, Places] | None = None) -> None:
        self._plan, self._sizes, self._first, self._places = plan, graph.sizes, graph.first, places or {}
        self._of: dict[Table, Tensor] = {}
        self.stage, self.batches = plan.stages[0], 0
        """The stage that is run, or with which to go on, and how many of its batches are done."""

    def begin(self, stage: int) -> None:
        """Makes place for what a stage writes."""
        if stage > self.stage:
            self.stage, self.batches = stage, 0
        for table in self._plan.tables:
            if table.written == stage and table not in self._of:
                self._of[table] = self._make(table, self._shape(table))

    def done(self, batches: int) -> None:
        """Notes that the first batches of the stage are written."""
        self.batches = batches

    def completed(self, stage: int) -> None:
        """Notes that a stage is done; what it has read is still there."""

    def end(self, stage: int) -> None:
        """Drops what no later stage reads, after :meth:`completed`."""
        kept = set(self._plan.results.values())
        for table in [table for table in self._of if table.last <= stage and table not in kept]:
            self._drop(table)

    def results(self) -> dict[Any, Tensor]:
        """The rows of the model's output, by node type."""
        return {node_type: self._of[table] for node_type, table in self._plan.results.items()}

    def _shape(self, table: Table) -> tuple[int, ...]:
        places = self._places.get(table.node_type) if table in self._plan.results.values() else None
        return (self._sizes[table.node_type] if places is None else places.count, *table.shape)

    def _make(self, table: Table, shape: tuple[int, ...]) -> Tensor:
        return torch.empty(shape, dtype=table.dtype)

    def _drop(self, table: Table) -> None:
        del self._of[table]

    def read(self, table: Table, ids: Tensor) -> Tensor:
        """A copy of the rows of nodes."""
        rows, at = self._of[table], self._at(table, ids)
        return ops.gather_rows(rows, at) if ops.can_gather_rows(rows) else rows.index_select(0, at)

    def table(self, table: Table) -> Tensor:
        """All rows, in the order of stored ids."""
        return self._of[table]

    def _at(self, table: Table, ids: Tensor) -> Tensor:
        first = self._first[table.node_type]
        return ids - first if first else ids

    def write(self, table: Table, ids: Tensor, rows: Tensor) -> None:
        """Puts the rows of nodes, whose ids rise."""
        expected = (len(ids), *table.shape)
        if tuple(rows.shape) != expected or rows.dtype != table.dtype:
            raise ValueError(
                f"model: expected {table.dtype} {list(expected)} as for the batch before, found {rows.dtype} "
                f"{list(rows.shape)}"
            )
        if table in self._plan.results.values() and (places := self._places.get(table.node_type)) is not None:
            which, where = places.of(ids)
            self._of[table].index_copy_(0, where, rows[which])
        elif len(ids):
            self._put(self._of[table], self._at(table, ids), rows)

    @staticmethod
    def _put(to: Tensor, ids: Tensor, rows: Tensor) -> None:
        first, last = int(ids[0]), int(ids[-1])
        if last - first + 1 == len(ids):
            to[first : last + 1] = rows
        else:
            to.index_copy_(0, ids, rows)
