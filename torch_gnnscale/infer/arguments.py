"""Checks the arguments of an inference, and what its stages hold at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .. import machine, ops
from ..memory.budget import budget_bytes, format_bytes, is_bytes
from ..nn.layered import Layered
from ..nn.weigh import Weighed, default_call
from ..ops.arguments import as_ids, as_tensor
from ..sampler.sources import of_type
from .graph import StagedGraph
from .model import StagedModel
from .nodes import Sets, first_hub
from .plan import Plan, Table


def bytes_of(memory: Any) -> int:
    """The bytes that the argument ``memory`` means."""
    try:
        if is_bytes(memory):
            return budget_bytes("memory", memory, 0)
    except (TypeError, ValueError):
        pass
    raise ValueError(f"memory: expected bytes or a string such as '1GiB', found {memory!r}")


def staged_model(model: nn.Module, call: Callable[[Any, Any], Any]) -> StagedModel:
    """The model, which may have been narrowed.

    Raises:
        ValueError: it is in training mode or weighed, or has no layers.
        NotImplementedError: it is on a GPU.
    """
    if isinstance(model, Layered):
        model, call = model.module, model.call if call is default_call else call  # type: ignore[assignment]
    if isinstance(model, Weighed):
        raise ValueError("model: expected one that takes all edges, found what weigh() returned, for edges of samples")
    training = next((name for name, module in model.named_modules() if module.training), None)
    if training is not None:
        of = f"its module {training} " if training else ""
        raise ValueError(f"model: expected it in evaluation mode, found {of}in training; call model.eval()")
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if value.device.type != "cpu":
            raise NotImplementedError(
                f"model: inference on {value.device}, where {name} is, is not implemented; use model.cpu()"
            )
    return StagedModel(model, call)


def wanted_nodes(nodes: Any, graph: StagedGraph) -> dict[Any, Tensor]:
    """The stored ids of the nodes that a user named, by type."""
    by_type = nodes if graph.hetero else {None: nodes}
    if not isinstance(by_type, Mapping):
        raise TypeError(f"nodes: expected ids or masks by node type, found {type(nodes).__name__}")
    found = {}
    for node_type, of_nodes in by_type.items():
        if node_type not in graph.all_sizes:
            raise ValueError(f"nodes: expected node types of {list(graph.all_sizes)}, found {node_type!r}")
        name, size = "nodes" if node_type is None else f"nodes[{node_type!r}]", graph.all_sizes[node_type]
        ids = _ids(name, as_tensor(name, of_nodes), size)
        if (at := ops.first_outside(ids, size)) >= 0:
            raise IndexError(f"{name}[{at}] = {int(ids[at])} is out of range: expected nodes in [0, {size})")
        found[node_type] = graph.stored_ids(ids, node_type)
    return found


def _ids(name: str, nodes: Tensor, size: int) -> Tensor:
    """The ids in a vector of ids or a mask."""
    if nodes.dtype == torch.bool:
        if nodes.shape != (size,):
            raise IndexError(f"{name}: expected a mask of {size} nodes, found shape {tuple(nodes.shape)}")
        return nodes.nonzero().view(-1)
    if nodes.dim() != 1:
        raise ValueError(f"{name}: expected a vector, found shape {tuple(nodes.shape)}")
    return as_ids(name, nodes)


def peak_of(plan: Plan, sets: Mapping[int, Sets], first: int) -> int:
    """The most bytes that all tables together take in one of the stages that are left, from ``first`` on."""
    results = set(plan.results.values())

    def size(table: Table) -> int:
        return table.row_bytes * sets[table.written][table.node_type].count

    def size_in(stage: int) -> int:
        return sum(size(t) for t in plan.tables if t.written <= stage and (t.last >= stage or t in results))

    return max((size_in(stage) for stage in plan.stages if stage >= first), default=0)


def check_memory(size: int, whose: str) -> None:
    """Raises MemoryError if this machine lacks ``size`` bytes of memory for rows of nodes ``whose``."""
    if size > (available := machine.available_memory()):
        raise MemoryError(
            f"out: expected {format_bytes(size)} of memory for rows of nodes{whose}, found {format_bytes(available)}; "
            f"name a folder for them"
        )


def refuse_hubs(plan: Plan, graph: StagedGraph, sets: Mapping[int, Sets], memory: int) -> None:
    """Raises ValueError if a node has more edges than are held at a time, and a layer needs all of them at once."""
    for call in plan.calls:
        if call.refusal is None:
            continue
        if (hub := first_hub(graph, sets[call.level], most_edges_of(plan, call.level, memory))) is not None:
            node_type, seed = hub
            node = f"node {int(graph.user_ids(seed, node_type))}{of_type(node_type)}"
            raise ValueError(
                f"{call.title}: expected a layer that takes the sum, mean, max or min of messages, found "
                f"{call.refusal}; {node} has more neighbors than memory= holds, which must be larger for this layer"
            )


def most_edges_of(plan: Plan, stage: int, memory: int) -> int:
    """How many edges a batch has at most. An edge takes about its ids, its source's row and its message."""
    inputs = {table for call in plan.calls if call.level == stage for table in call.inputs.values()}
    return max(1, memory // (48 + 2 * sum(table.row_bytes for table in inputs)))
