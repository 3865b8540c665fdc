"""Looks at a model on a small graph: which layers it calls with what, whether stages give what it gives, and what the
results of an inference depend on."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from typing_extensions import override

from .. import files
from .._user import warn
from ..loader.fields import storage_of
from ..nn.hops import node_stores
from ..nn.trial import agree, first_difference, outputs
from .plan import (
    DEGREE,
    Input,
    OutputMark,
    Reads,
    SeenAttribute,
    SeenCall,
    SeenInput,
    StagePlan,
    identity,
    make_plan,
)
from .stage import Rows, Stage, by_type
from .staged_graph import Key, StagedGraph, WholeGraph
from .staged_model import Caller, Layer, StagedModel, refusal, row_of


class Look(NamedTuple):
    """What a look at a model has found."""

    plan: StagePlan
    model: StagedModel
    small: Data | HeteroData
    """On which it was looked at."""
    results: dict[Any, Tensor]
    """The model's rows of ``small``, by type."""

    def check_again(self) -> None:
        """Raises ValueError if the model no longer gives the same rows for the same graph, so that what its batches
        have given may be of several functions."""
        batch = self.small.clone()
        found = by_type(self.model.run(batch, _sizes(batch), _Whole()), None not in node_stores(batch))
        if found.keys() != self.results.keys() or not all(agree(self.results[t], rows) for t, rows in found.items()):
            raise ValueError(
                "model: expected one that computes the same in every call, found other rows for the same nodes than "
                "at the beginning; what was computed is a mixture: delete the folder of out=, if there is one"
            )


def look(model: StagedModel, graph: StagedGraph, small: Data | HeteroData) -> Look:
    """The plan of a model, found and checked on a small part of the graph, from :meth:`StagedGraph.small`.

    Raises:
        ValueError: the model calls no layers, or stages do not give what it gives; the message names the module.
    """
    batch = small.clone()  # tensors have memory of their own, so that marks tell them apart
    seen = _Seen(batch)
    with outputs(model.module) as whole, seen.reads:
        out = model.run(batch, _sizes(batch), seen)
    results = by_type(out, graph.hetero)
    if any(not isinstance(mark, tuple) or mark[1] not in ("n_id", "e_id") for mark in seen.reads.taken):
        warn(
            "model: it takes numbers out of rows of nodes or edges (by item(), bool(), numpy() and the like), which in "
            "inference are those of a batch: where they stand for all nodes, results are not those on the whole graph"
        )
    if not seen.calls:
        raise ValueError("model: expected it to call its MessagePassing layers, found that it calls none")
    for node_type, rows in results.items():
        if node_type not in graph.sizes:
            raise ValueError(f"call: expected node types of {list(graph.sizes)}, found {node_type!r}")
        if len(rows) != (expected := storage_of(small, node_type).num_nodes):
            raise ValueError(f"call: expected a row for each of {expected} nodes, found {len(rows)} rows")
    plan, part = make_plan(seen.calls, results, seen.attributes, seen.reads), WholeGraph(small)
    for _, attribute in plan.reads(seen.attributes):
        if graph.is_unclear(attribute):
            raise ValueError(
                f"data.{attribute}: expected a name with 'node' or 'edge', for there are as many nodes as edges, and "
                f"nothing else tells of which it is"
            )
    name = model.checked(small, lambda: _difference(model, plan, part, seen.calls, results, whole))
    if name is not None:
        raise ValueError(
            f"{name}: expected a node's rows to follow from its own and its neighbors', found that they change with "
            f"the nodes beside it, as those of norms and poolings over a graph do, so the model cannot be run in "
            f"batches"
        )
    return Look(plan, model, small, results)


def _difference(
    model: StagedModel, plan: StagePlan, graph: StagedGraph, calls: list[SeenCall], results: dict[Any, Tensor],
    whole: dict[str, Tensor],
) -> str | None:  # fmt: skip
    """The name and kind of the first module whose outputs are not those on the whole graph, if the results are not."""
    halves = [
        {t: torch.arange(size // 2) for t, size in graph.sizes.items()},
        {t: torch.arange(size // 2, size) for t, size in graph.sizes.items()},
    ]
    rows = Rows(plan, graph)
    for number in plan.stages:
        rows.begin(number)
        stage = Stage(number, plan, model, graph, rows)
        for seeds in halves:
            stage.run(stage.hop(seeds))
        rows.end(number)
    if all(agree(expected, rows.results()[node_type]) for node_type, expected in results.items()):
        return None
    name = ""
    for seeds in halves:
        with outputs(model.module) as replayed:
            _Replay(calls, graph, seeds).run(model)
        of_seeds = {name: rows for name, out in whole.items() if (rows := _rows_of(out, graph, seeds)) is not None}
        if not name or name.startswith("the model"):
            name = first_difference(model.module, of_seeds, replayed)
    return name


def _rows_of(out: Any, graph: StagedGraph, seeds: dict[Any, Tensor]) -> Any:
    """The rows of some nodes, of a module's output that has a row for each node; of a dictionary, by type. None if the
    number of its rows does not tell the type."""
    if isinstance(out, Mapping):
        return {t: rows[seeds[t]] for t, rows in out.items() if t in seeds and _has(rows, graph.sizes[t])}
    types = [node_type for node_type, size in graph.sizes.items() if size == len(out)]
    if not types:
        return out
    return out[seeds[types[0]]] if len(types) == 1 else None


def _sizes(batch: Any) -> dict[Any, int]:
    return {node_type: store.num_nodes for node_type, store in node_stores(batch).items()}


class _Whole(Caller):
    """Lets layers compute on the whole graph."""

    @override
    def called(self, layer: Layer, given: dict[str, Any]) -> Any:
        return layer.returned(layer.whole(given))


class _Seen(Caller):
    """Lets layers compute on the whole graph, and notes what they are given and return."""

    def __init__(self, batch: Any) -> None:
        self.calls: list[SeenCall] = []
        self.reads = Reads()
        self.attributes = {
            key: SeenAttribute(value, of_edges, identity(value))
            for key, value, of_edges in _attributes(batch)
            if isinstance(value, Tensor) and value.dim() > 0
        }
        for key, seen in self.attributes.items():
            self.reads.mark(seen.rows, [key])
        self._alive: list[Any] = []  # so that identities stay those of one tensor
        self._degrees: dict[Any, dict[Any, Tensor]] = {}

    @override
    def called(self, layer: Layer, given: dict[str, Any]) -> Any:
        keys = layer.row_inputs(given)
        rows = {key: row_of(given, key) for key in keys}
        inputs = {
            key: SeenInput(value.clone(), keys[key], identity(value), self.reads.marks(value))
            for key, value in rows.items()
        }
        others = self.reads.marks(_others(given, keys))
        if (normalization := layer.normalization()) is not None:
            weight = given.get("edge_weight")
            key = id(given["edge_index"]), None if weight is None else identity(weight), normalization
            if key not in self._degrees:
                self._degrees[key] = layer.degrees(given)
            for node_type, degree in self._degrees[key].items():
                seen = SeenInput(degree, node_type, identity(degree), self.reads.marks(weight))
                inputs[Input(DEGREE, node_type)] = seen
        outputs = {t: None if out is None else out.clone() for t, out in layer.whole(given).items()}
        for node_type, out in outputs.items():
            if out is not None:
                self.reads.mark(out, [OutputMark(len(self.calls), node_type)])
        self._alive.append((rows, dict(given), outputs))
        kept = {t: None if out is None else out.clone() for t, out in outputs.items()}
        identities = {t: identity(out) for t, out in outputs.items() if out is not None}
        self.calls.append(SeenCall(layer.title, refusal(layer.layer), inputs, others, kept, identities))
        return layer.returned(outputs)


def _attributes(batch: Any) -> Iterator[tuple[Key, Any, bool]]:
    """(key, value, whether it is of edges) of the attributes of a batch that have rows."""
    if not isinstance(batch, HeteroData):
        for name, value in batch.to_dict().items():
            if name != "edge_index" and (batch.is_node_attr(name) or batch.is_edge_attr(name)):
                yield (None, name), value, not batch.is_node_attr(name)
        return
    for node_type, store in batch.node_items():
        yield from (((node_type, n), v, False) for n, v in store.items() if _has(v, store.num_nodes))
    for edge_type, store in batch.edge_items():
        count = store.edge_index.size(1)
        yield from (((edge_type, n), v, True) for n, v in store.items() if n != "edge_index" and _has(v, count))


def _has(value: Any, count: int) -> bool:
    return isinstance(value, Tensor) and value.shape[:1] == (count,)


def _others(given: dict[str, Any], keys: Mapping[Input, Any]) -> list[Any]:
    """A layer's arguments without the rows of nodes."""
    found = []
    for name, value in given.items():
        if isinstance(value, Mapping):
            found += [entry for place, entry in value.items() if Input(name, place) not in keys]
        elif not isinstance(value, tuple) and Input(name) not in keys:
            found.append(value)
    return found


class _Replay(Caller):
    """Runs a model on some nodes with the outputs that its layers had on the whole graph, and compares each layer.

    Raises:
        ValueError: names the first layer that computes other rows from one hop.
    """

    def __init__(self, calls: list[SeenCall], graph: StagedGraph, seeds: dict[Any, Tensor]) -> None:
        self._calls, self._next = calls, 0
        self._hop = graph.one_hop(seeds)
        self._batch = graph.batch(self._hop, {})

    def run(self, model: StagedModel) -> None:
        """Runs the model."""
        model.run(self._batch, {t: len(nodes) for t, nodes in self._hop.nodes.items()}, self)

    @override
    def called(self, layer: Layer, given: dict[str, Any]) -> Any:
        call, hop = self._calls[self._next], self._hop
        self._next += 1
        found = layer.compute(given, {key: of.rows[hop.nodes[of.node_type]] for key, of in call.inputs.items()})
        expected = {t: None if rows is None else rows[hop.seeds[t]] for t, rows in call.outputs.items()}
        if not agree(expected, found):
            raise ValueError(
                f"{layer.title}: expected rows that follow from a node's own and its neighbors', found others; it "
                f"reads more (the degrees of sources, several hops, statistics of all rows), so the model cannot be "
                f"run layer by layer"
            )
        return layer.returned(expected)


# What the results depend on ###########################################################################################

_SAMPLE = 1024
"""Nodes whose rows and edges are looked at."""


_VALUES = 256
"""Numbers of each type's output that are looked at."""


_OUTPUT = "output on a part of the graph"


def fingerprint(
    model: nn.Module, graph: StagedGraph, plan: StagePlan, nodes: Mapping[Any, Tensor] | None, **options: Any
) -> dict[str, Any]:
    """What the results depend on, each by the name that an error gives it: all parameters and buffers of the model, the
    layers that it calls, the numbers of nodes and edges and a sample of the edges and of the rows, the wanted nodes,
    the options, and some of the model's output on a small part of the graph. That output depends on all else: ``call``,
    code, and attributes of Python."""
    calls = [[call.title, call.level, str(call.outputs)] for call in plan.calls]
    samples = {t: _sample(size) + graph.first[t] for t, size in graph.sizes.items()}
    hop = graph.one_hop(samples)
    of_rows = of_edges = 0
    for store in graph.batch(hop, {}).stores:
        for name, value in sorted(store.items()):
            if isinstance(value, Tensor) and name in ("edge_index", "n_id", "e_id"):
                of_edges = files.bytes_checksum(value, of_edges)
            elif isinstance(value, Tensor):
                of_rows = files.bytes_checksum(value, of_rows)
    for ids in hop.nodes.values():
        of_edges = files.bytes_checksum(ids, of_edges)
    sizes = [[str(t), size] for t, size in graph.sizes.items()]
    edges = [[str(t), csc.num_edges] for t, csc in graph.columns.items()]
    return {
        "model": [of_model(model), calls], "graph": [sizes, edges, of_edges], "rows": of_rows,
        "nodes": of_nodes(nodes),
        "torch": str(torch.__version__), **options,
        _OUTPUT: {str(node_type): _values(rows) for node_type, rows in plan.sample.items()},
    }  # fmt: skip


def of_model(model: nn.Module) -> int:
    """A checksum of all parameters and buffers of a model, and of what ``repr`` says of it."""
    found = zlib.crc32(repr(model).encode())
    for name, value in sorted(model.state_dict().items()):
        found = files.bytes_checksum(value, zlib.crc32(name.encode(), found)) if isinstance(value, Tensor) else found
    return found


def of_nodes(nodes: Mapping[Any, Tensor] | None) -> list[Any] | None:
    """Number and checksum of the wanted nodes, by type."""
    return None if nodes is None else [[str(t), len(ids), files.bytes_checksum(ids, 0)] for t, ids in nodes.items()]


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What the first entry that differs is called, of two fingerprints; None if none does. Outputs may differ as those
    of sums in another order do: :func:`torch_gnnscale.nn.trial.agree`."""
    for name, value in now.items():
        if name == _OUTPUT:
            outputs = [{t: _tensor(*of) for t, of in of_types.items()} for of_types in (before.get(name, {}), value)]
            same = outputs[0].keys() == outputs[1].keys() and agree(*outputs)
        else:
            same = before.get(name) == value
        if not same:
            return name
    return None


def _values(rows: Tensor) -> tuple[str, list[Any]]:
    """Some of the numbers of a tensor, and their dtype."""
    flat = (torch.view_as_real(rows) if rows.is_complex() else rows).reshape(-1)
    chosen = torch.randperm(len(flat), generator=torch.Generator().manual_seed(0))[:_VALUES]
    return str(flat.dtype).removeprefix("torch."), flat[chosen].tolist()


def _tensor(dtype: str, values: list[Any]) -> Tensor:
    return torch.tensor(values, dtype=getattr(torch, dtype))


def _sample(size: int) -> Tensor:
    count = min(size, _SAMPLE)
    return torch.arange(count) * size // max(count, 1)
