"""One stage of an inference, a pass over all nodes; and the rows between stages, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .. import ops
from .plan import DEGREE, Input, LayerCall, StagePlan, Table
from .staged_graph import ALL, NONE, OneHop, StagedGraph
from .staged_model import Caller, Layer, Pieces, StagedModel, row_of
from .work import Piece


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

    def __init__(self, plan: StagePlan, graph: StagedGraph, places: Mapping[Any, Places] | None = None) -> None:
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


# A stage ##############################################################################################################

NOTHING: Mapping[Table, Tensor] = {}


class EndOfStage(BaseException):
    """Ends a model's forward pass when a stage has all that it needs. No Exception, which the model might catch."""


class Stage(Caller):
    """Runs a model on batches of nodes.

    Args:
        number: of the stage.
        plan: says what the stage computes, reads and writes.
        model: the model.
        graph: the graph.
        rows: those that earlier stages wrote, and where this one's are put.
    """

    def __init__(self, number: int, plan: StagePlan, model: StagedModel, graph: StagedGraph, rows: Rows) -> None:
        self.number, self.plan = number, plan
        self._model, self._graph, self._rows = model, graph, rows
        self._last = number == plan.stages[-1]
        self._ends = plan.ends(number)
        self._edges = ALL if plan.reads_edges(number) else NONE
        self._pieces: Pieces | None = None

    def hop(self, seeds: Mapping[Any, Tensor], piece: Piece | None = None) -> OneHop:
        """Some nodes, given by stored ids, which rise, and by type, and what the stage reads of the edges into them."""
        return self._graph.one_hop(seeds, self._edges if piece is None else piece.edges)

    def run(self, hop: OneHop, piece: Piece | None = None, known: Mapping[Table, Tensor] = NOTHING) -> None:
        """Computes and writes the rows of the seeds of a hop.

        Args:
            hop: of :meth:`hop`.
            piece: if the edges are a piece of those of a single node; the pieces before were run, in their order.
            known: tables whose rows of ``hop.nodes`` are read already.
        """
        if piece is None or piece.edges.start == 0:
            self._pieces = None if piece is None else Pieces()
        if self._pieces is not None and piece is not None:
            self._pieces.begin(piece.last)
        self._hop, pieces = hop, self._pieces
        self._next, self._read, self._written = 0, dict(known), set[Table]()
        batch = self._graph.batch(hop, self.plan.without[self.number])
        try:
            out = self._model.run(batch, {t: len(nodes) for t, nodes in hop.nodes.items()}, self, pieces)
        except EndOfStage:
            return
        self._expect(self._next == self._ends, "no further layer")
        for node_type, rows in by_type(out, self._graph.hetero).items():
            self._rows.write(self.plan.results[node_type], hop.seeds[node_type], rows)

    def called(self, layer: Layer, given: dict[str, Any]) -> Any:
        """What a :class:`Caller` returns: stored rows, or what stands in for them, for calls of lower levels; the
        computed rows for those of this stage; for those of the next, keeps what they get."""
        known = self._next < len(self.plan.calls)
        self._expect(known and self.plan.calls[self._next].title == layer.title, layer.title)
        call = self.plan.calls[self._next]
        self._next += 1
        if call.level == self.number:
            assert self._pieces is None or call.refusal is None
            outputs = self._computed(layer, given, call)
            for node_type, table in call.kept.items():
                self._write(table, outputs[node_type])
        else:
            outputs = {node_type: self._known(call, node_type) for node_type in call.outputs}
        if call.level == self.number + 1:
            for key, table in call.inputs.items():
                if table.written == self.number:
                    of_degree = key.argument == DEGREE
                    self._write(table, layer.degrees(given)[key.place] if of_degree else row_of(given, key))
        if self._next == self._ends and not self._last:
            raise EndOfStage
        return layer.returned(outputs)

    def _computed(self, layer: Layer, given: dict[str, Any], call: LayerCall) -> dict[Any, Tensor | None]:
        try:
            return layer.compute(given, self._inputs(call))
        except (RuntimeError, IndexError) as error:
            if all(bool(edges.colptr.diff().all()) for edges in self._hop.edges.values() if edges.colptr is not None):
                raise
            raise ValueError(
                f"{layer.title}: expected a layer that takes nodes without edges, found that it fails on a batch with "
                f"some: {error}"
            ) from error

    def _known(self, call: LayerCall, node_type: Any) -> Tensor | None:
        """The output of a call of another level, or what stands in for it."""
        table, stand_in = call.kept.get(node_type), call.outputs[node_type]
        if table is not None and call.level < self.number <= table.last:
            return self._rows.read(table, self._hop.seeds[node_type])
        return None if stand_in is None else stand_in.rows(len(self._hop.seeds[node_type]))

    def _inputs(self, call: LayerCall) -> dict[Input, Tensor]:
        """The rows of all nodes of the batch, each table read once; of destinations in a pair, perhaps the seeds'."""
        found = {}
        for key, table in call.inputs.items():
            if table not in self._read and key.place == 1:
                found[key] = self._rows_of(table, self._hop.seeds[table.node_type])
                continue
            if table not in self._read:
                self._read[table] = self._rows_of(table, self._hop.nodes[table.node_type])
            found[key] = self._read[table]
        return found

    def _rows_of(self, table: Table, nodes: Tensor) -> Tensor:
        if table.attribute is None:
            return self._rows.read(table, nodes)
        return self._graph.rows({table.node_type: nodes}, table.attribute)

    def _write(self, table: Table, rows: Tensor | None) -> None:
        if table not in self._written:
            assert rows is not None
            self._rows.write(table, self._hop.seeds[table.node_type], rows)
            self._written.add(table)

    def _expect(self, right: bool, found: str) -> None:
        if not right:
            calls = self.plan.calls
            expected = calls[self._next].title if self._next < len(calls) else "no further layer"
            raise ValueError(
                f"model: expected it to call its layers as for the batch before, {expected} next, found {found}"
            )


def by_type(out: Any, hetero: bool) -> dict[Any, Tensor]:
    """A model's output by node type, without types whose output is None; ValueError for what is none."""
    rows = out if hetero else {None: out}
    if isinstance(rows, Mapping):
        rows = {node_type: of_type for node_type, of_type in rows.items() if of_type is not None}
        if rows and all(isinstance(of_type, Tensor) and of_type.dim() > 0 for of_type in rows.values()):
            return rows
    expected = "rows by node type" if hetero else "rows of the nodes"
    found = f"a {type(out).__name__}" if hetero or not isinstance(out, Tensor) else repr(out)[:60]
    raise ValueError(f"call: expected {expected}, found {found}")
