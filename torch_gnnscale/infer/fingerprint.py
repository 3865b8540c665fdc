"""What the results of an inference depend on, in a few numbers."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .. import files
from ..nn.compare import agree
from .graph import StagedGraph
from .plan import Plan

_SAMPLE = 1024
"""Nodes whose rows and edges are looked at."""
_VALUES = 256
"""Numbers of each type's output that are looked at."""
_OUTPUT = "output on a part of the graph"


def fingerprint(
    model: nn.Module, graph: StagedGraph, plan: Plan, nodes: Mapping[Any, Tensor] | None, **options: Any
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
    of sums in another order do: :func:`.agree`."""
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
