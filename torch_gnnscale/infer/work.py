"""The nodes of each stage, the batches of them, and how many are held at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .. import machine, ops
from ..memory import budget_bytes, format_bytes, is_bytes
from ..nn.layered import Layered, Weighed, default_call
from ..ops.arguments import as_ids, as_tensor
from ..sampler.graph import end_types
from ..sampler.relations import of_type
from .plan import StagePlan, Table
from .staged_graph import StagedGraph
from .staged_model import StagedModel

_CHUNK = 1 << 16
"""Nodes whose neighbors are looked up at a time."""


@dataclass(frozen=True, eq=False)
class NodeSet:
    """Nodes of a type by rising stored ids: those of ``ids``, or if it is None ``count`` from ``begin``."""

    count: int
    ids: Tensor | None = None
    begin: int = 0

    def slice(self, first: int, end: int) -> Tensor:
        """The ids of nodes ``first`` to ``end - 1`` of the set: int64."""
        return torch.arange(self.begin + first, self.begin + end) if self.ids is None else self.ids[first:end]


Sets = dict[Any, NodeSet]
"""By type."""
Part = dict[Any, tuple[int, int]]
"""By type, the bounds of some nodes of a set."""


class Piece(NamedTuple):
    """A piece of the edges of a single node."""

    edges: slice
    """Which of the edges of each type."""
    last: bool
    """Whether it is the last piece."""


class Work(NamedTuple):
    """What a model is run on at a time."""

    batch: int
    """The number of its batch in the stage, from 1."""
    part: Part
    """The nodes of a stage's sets."""
    piece: Piece | None
    """Which of the edges into them are read; None: all that the stage reads."""

    @property
    def completes(self) -> bool:
        """Whether its batch is done with it."""
        return self.piece is None or self.piece.last

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return sum(end - first for first, end in self.part.values())

    def seeds(self, sets: Sets) -> dict[Any, Tensor]:
        """The stored ids of the nodes, by type."""
        return {node_type: sets[node_type].slice(*bounds) for node_type, bounds in self.part.items()}


def work_of_stage(graph: StagedGraph, sets: Sets, size: int, most_edges: int, reads_edges: bool) -> Iterator[Work]:
    """The work of a stage: batches of its nodes, and of a node with more than ``most_edges`` edges the pieces.

    Args:
        graph, sets, size, most_edges: as of :func:`batches`.
        reads_edges: whether the stage reads edges.
    """
    for number, part in enumerate(batches(graph, sets, size, most_edges), 1):
        whole = Work(number, part, None)
        if not reads_edges or whole.num_nodes > 1 or num_edges(graph, sets, part) <= most_edges:
            yield whole
            continue
        node_type, seed = next((t, ids) for t, ids in whole.seeds(sets).items() if len(ids))
        count = graph.largest_degree(node_type, seed)
        for first in range(0, count, most_edges):
            yield Work(number, part, Piece(slice(first, first + most_edges), first + most_edges >= count))


Masks = dict[Any, Tensor]
"""Of the nodes that a process computes, by type: bool."""


def sets_of_stages(
    plan: StagePlan, graph: StagedGraph, nodes: Mapping[Any, Tensor] | None,
    at_owners: Callable[[Masks, Mapping[Any, Tensor]], None] | None = None,
) -> dict[int, Sets]:  # fmt: skip
    """The nodes that each stage computes in this process.

    Args:
        plan: its stages.
        graph: the graph.
        nodes: by type, stored ids of the nodes whose results are wanted, of those that this process computes; None:
            all.
        at_owners: called for each stage, where other processes compute some of the nodes, with the masks to which it
            adds what others read, and by type with the nodes of others that this process reads.
    """
    sets: dict[int, Sets] = {}
    masks = None if nodes is None else {t: torch.zeros(size, dtype=torch.bool) for t, size in graph.sizes.items()}
    for node_type, ids in (nodes or {}).items():
        assert masks is not None
        masks[node_type][ids - graph.first[node_type]] = True
    for stage in reversed(plan.stages):
        found = {t: _set(graph, t, None if masks is None else masks[t]) for t in graph.sizes}
        written = {table.node_type for table in plan.tables if table.written == stage}
        sets[stage] = {t: of if t in written else NodeSet(0) for t, of in found.items()}
        if masks is not None:
            others = _add_sources(masks, graph, found)
            if at_owners is not None:
                at_owners(masks, others)
    return sets


def _set(graph: StagedGraph, node_type: Any, mask: Tensor | None) -> NodeSet:
    begin = graph.first[node_type]
    if mask is None or bool(mask.all()):
        return NodeSet(graph.sizes[node_type], begin=begin)
    ids = mask.nonzero().view(-1) + begin
    return NodeSet(len(ids), ids)


def _add_sources(masks: Masks, graph: StagedGraph, sets: Sets) -> dict[Any, Tensor]:
    """Adds the sources of all edges into some nodes; returns those of other processes, rising, by type."""
    others: dict[Any, Tensor] = {node_type: torch.empty(0, dtype=torch.int64) for node_type in graph.sizes}
    for edge_type in graph.columns:
        src, dst = end_types(edge_type)
        of, begin = sets[dst], graph.first[src]
        for first in range(0, of.count, _CHUNK):
            ids = of.slice(first, min(of.count, first + _CHUNK))
            source = graph.edges_into(edge_type, ids).source.long()
            if graph.sizes[src] < graph.all_sizes[src]:
                own = (source >= begin) & (source < begin + graph.sizes[src])
                others[src] = torch.unique(torch.cat([others[src], source[~own]]))
                source = source[own]
            masks[src][source - begin] = True
    return others


def batches(graph: StagedGraph, sets: Sets, size: int, most_edges: int) -> Iterator[Part]:
    """Cuts sets of nodes into parts of at most ``size`` nodes and ``most_edges`` edges into them, or one node. Each has
    the same share of every type, to a node, before it is cut for its edges."""
    counts = [of.count for of in sets.values() if of.count]
    count = -(-sum(counts) // size)
    if sum(-(-of_type // count) for of_type in counts) > size:  # a share that is rounded up has almost a node too many
        count = -(-sum(counts) // max(1, size - len(counts) + 1))
    for number in range(count):
        part = {t: (of.count * number // count, of.count * (number + 1) // count) for t, of in sets.items()}
        yield from _cut(graph, sets, part, size, most_edges)


def _cut(graph: StagedGraph, sets: Sets, part: Part, size: int, most_edges: int) -> Iterator[Part]:
    total = sum(end - first for first, end in part.values())
    if total <= 1 or (total <= size and num_edges(graph, sets, part) <= most_edges):
        if total:
            yield part
        return
    left, before, after = total // 2, {}, {}
    for node_type, (first, end) in part.items():
        middle = first + min(left, end - first)
        left -= middle - first
        before[node_type], after[node_type] = (first, middle), (middle, end)
    yield from _cut(graph, sets, before, size, most_edges)
    yield from _cut(graph, sets, after, size, most_edges)


def num_edges(graph: StagedGraph, sets: Sets, part: Part) -> int:
    """How many edges lead to the nodes of a part."""
    total = 0
    for edge_type in graph.columns:
        dst = end_types(edge_type)[1]
        if part[dst][0] < part[dst][1]:
            total += int(graph.degrees(edge_type, sets[dst].slice(*part[dst])).sum())
    return total


def first_hub(graph: StagedGraph, sets: Sets, most_edges: int) -> tuple[Any, Tensor] | None:
    """Type and stored id ([1]) of the first node with more than ``most_edges`` edges into it; None if there is none."""
    for node_type, of in sets.items():
        into = [edge_type for edge_type in graph.columns if end_types(edge_type)[1] == node_type]
        for first in range(0, of.count, _CHUNK):
            ids = of.slice(first, min(of.count, first + _CHUNK))
            degree = sum((graph.degrees(edge_type, ids) for edge_type in into), torch.zeros_like(ids))
            if len(found := (degree > most_edges).nonzero().view(-1)):
                return node_type, ids[found[:1]]
    return None


# Arguments ############################################################################################################


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


def peak_of(plan: StagePlan, sets: Mapping[int, Sets], first: int) -> int:
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


def refuse_hubs(plan: StagePlan, graph: StagedGraph, sets: Mapping[int, Sets], memory: int) -> None:
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


def most_edges_of(plan: StagePlan, stage: int, memory: int) -> int:
    """How many edges a batch has at most. An edge takes about its ids, its source's row and its message."""
    inputs = {table for call in plan.calls if call.level == stage for table in call.inputs.values()}
    return max(1, memory // (48 + 2 * sum(table.row_bytes for table in inputs)))
