"""Looks at a model on a small graph: which layers it calls with what, and whether stages give what it gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..loader.storages import storage_of
from ..nn.compare import agree, first_difference, outputs
from .graph import Key, WholeGraph
from .layer import Caller, StagedLayer, StagedModel
from .plan import DEGREE, Plan, SeenCall, identity, make_plan
from .reads import Reads
from .rows import Rows
from .stage import Stage, by_type


def look(model: StagedModel, graph: WholeGraph) -> Plan:
    """The plan of a model, found and checked on a small part of the graph.

    Raises:
        ValueError: the model calls no layers, or stages do not give what it gives; the message names the module.
    """
    small = graph.small()
    batch = small.clone()  # tensors have memory of their own, so that marks tell them apart
    seen = _Seen(batch)
    with outputs(model.module) as whole, seen.reads:
        out = model.run(batch, batch.num_nodes, seen)
    results = by_type(out, graph.hetero)
    if not seen.calls:
        raise ValueError("model: expected it to call its MessagePassing layers, found that it calls none")
    for node_type, rows in results.items():
        if len(rows) != (expected := storage_of(small, node_type).num_nodes):
            raise ValueError(f"call: expected a row for each of {expected} nodes, found {len(rows)} rows")
    plan, part = make_plan(seen.calls, results, seen.attributes, seen.reads), WholeGraph(small)
    name = model.checked(small, lambda: _difference(model, plan, part, seen.calls, results, whole))
    if name is not None:
        raise ValueError(
            f"{name}: expected a node's rows to follow from its own and its neighbors', found that they change with "
            f"the nodes beside it, as those of norms and poolings over a graph do, so the model cannot be run in "
            f"batches"
        )
    return plan


def _difference(
    model: StagedModel, plan: Plan, graph: WholeGraph, calls: list[SeenCall], results: dict[Any, Tensor],
    whole: dict[str, Tensor],
) -> str | None:  # fmt: skip
    """The name and kind of the first module whose outputs are not those on the whole graph, if the results are not."""
    halves = [
        {t: torch.arange(size // 2) for t, size in graph.sizes.items()},
        {t: torch.arange(size // 2, size) for t, size in graph.sizes.items()},
    ]
    rows = Rows(plan, graph.sizes)
    for number in plan.stages:
        rows.begin(number)
        stage = Stage(number, plan, model, graph, rows)
        for seeds in halves:
            stage.run(seeds)
        rows.end(number)
    if all(agree(expected, rows.results()[node_type]) for node_type, expected in results.items()):
        return None
    name = ""
    for seeds in halves:
        with outputs(model.module) as replayed:
            _Replay(calls, graph, seeds).run(model)
        of_seeds = {name: _rows_of(out, graph, seeds) for name, out in whole.items()}
        if not name or name.startswith("the model"):
            name = first_difference(model.module, of_seeds, replayed)
    return name


def _rows_of(out: Tensor, graph: WholeGraph, seeds: dict[Any, Tensor]) -> Tensor:
    """The rows of some nodes, if a module's output has a row for each node."""
    return out[seeds[None]] if len(out) == graph.sizes[None] else out


class _Seen(Caller):
    """Lets layers compute on the whole graph, and notes what they are given and return."""

    def __init__(self, batch: Any) -> None:
        self.calls: list[SeenCall] = []
        self.attributes: dict[Key, tuple[Tensor, bool]] = {}
        self._num_nodes = batch.num_nodes
        self.reads = Reads()
        self._alive: list[Any] = []  # so that identities stay those of one tensor
        self._degrees: dict[Any, Tensor] = {}
        of_edges = set(batch.edge_attrs())
        for name, value in batch.to_dict().items():
            if isinstance(value, Tensor) and value.dim() > 0 and name != "edge_index":
                of_nodes = batch.is_node_attr(name)
                if of_nodes or name in of_edges:
                    self.attributes[None, name] = value, not of_nodes
                    self.reads.mark(value, [(None, name)])

    def called(self, layer: StagedLayer, given: dict[str, Any]) -> Tensor:
        """See :class:`Caller`."""
        rows = {name: given[name] for name in layer.row_arguments(given, self._num_nodes)}
        marks = {name: self.reads.marks(value) for name, value in rows.items()}
        others = self.reads.marks([value for name, value in given.items() if name not in rows])
        if (normalization := layer.normalization) is not None:
            weight = given.get("edge_weight")
            key = None if weight is None else identity(weight), normalization
            if key not in self._degrees:
                self._degrees[key] = layer.degrees(given)
            rows[DEGREE], marks[DEGREE] = self._degrees[key], self.reads.marks(weight)
        out = layer.rows(layer.forward(**given)).clone()
        self.reads.mark(out, [len(self.calls)])
        kept = {name: value.clone() for name, value in rows.items()}
        of = {name: identity(value) for name, value in rows.items()}
        self._alive.append((rows, out))
        self.calls.append(SeenCall(layer.title, None, kept, of, marks, others, out.clone(), identity(out)))
        return out


class _Replay(Caller):
    """Runs a model on some nodes with the outputs that its layers had on the whole graph, and compares each layer.

    Raises:
        ValueError: names the first layer that computes other rows from one hop.
    """

    def __init__(self, calls: list[SeenCall], graph: WholeGraph, seeds: dict[Any, Tensor]) -> None:
        self._calls, self._next = calls, 0
        self._hop = graph.one_hop(seeds)
        self._batch = graph.batch(self._hop, {})

    def run(self, model: StagedModel) -> None:
        """Runs the model."""
        model.run(self._batch, len(self._hop.nodes[None]), self)

    def called(self, layer: StagedLayer, given: dict[str, Any]) -> Tensor:
        """See :class:`Caller`."""
        call = self._calls[self._next]
        self._next += 1
        nodes, seeds = self._hop.nodes[None], self._hop.seeds[None]
        out = layer.compute(given, {name: rows[nodes] for name, rows in call.given.items()})
        if not agree(call.output[seeds], out):
            raise ValueError(
                f"{layer.title}: expected rows that follow from a node's own and its neighbors', found others; it "
                f"reads more (the degrees of sources, several hops, statistics of all rows), so the model cannot be "
                f"run layer by layer"
            )
        return call.output[seeds]
