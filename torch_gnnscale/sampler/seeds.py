"""The inputs of batches, of one type or of several, with time windows or without; and seeds, their times and excluded
edges as executors take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput
from torch_geometric.typing import EdgeType, NodeType

from ..ops.arguments import as_ids, check_ids, check_tensor
from .graph import SampledGraph, check_times, check_windows, ordered_limit, outside_integers
from .minibatch import NO_IDS, MiniBatch

T = TypeVar("T", NodeSamplerInput, EdgeSamplerInput)


class _Windowed:
    """Inputs with time windows. For each, edges are sampled whose times are from ``start_time`` to ``time``, both
    included."""

    start_time: Tensor

    def __getitem__(self, index: Any) -> Any:
        at = torch.as_tensor(index, dtype=torch.int64)
        return windowed(super().__getitem__(at), self.start_time[at])  # type: ignore[misc]


class WindowedNodes(_Windowed, NodeSamplerInput):
    """Seeds of one type with time windows."""


class WindowedLinks(_Windowed, EdgeSamplerInput):
    """Links of one relation with time windows."""


def windowed(inputs: NodeSamplerInput | EdgeSamplerInput, start_time: Tensor) -> WindowedNodes | WindowedLinks:
    """The inputs, which have times, with the starts of their windows."""
    kind: Any = WindowedNodes if isinstance(inputs, NodeSamplerInput) else WindowedLinks
    made = kind.__new__(kind)  # PyG's constructors copy
    made.__dict__.update(inputs.__dict__, start_time=start_time)
    return made


def start_time_of(inputs: Any) -> Any:
    """Where the time windows of inputs begin: [inputs], or a dictionary by type; None if there are no windows."""
    return getattr(inputs, "start_time", None)


class ByType(Generic[T]):
    """Inputs of several types. Position p is one of the first type's, then of the second's, and so on.

    Args:
        inputs: of each type; their ``input_type`` is set, and all differ.
    """

    def __init__(self, inputs: Sequence[T]) -> None:
        self.inputs = tuple(inputs)
        """Of each type, in the order in which the user gave them."""

    @property
    def counts(self) -> list[int]:
        """How many inputs there are of each type."""
        return [(entry.node if isinstance(entry, NodeSamplerInput) else entry.row).numel() for entry in self.inputs]

    @property
    def types(self) -> Tensor:
        """The number of each input's type: int64, shape [inputs]."""
        return torch.repeat_interleave(torch.tensor(self.counts))

    def __getitem__(self, positions: Any) -> Any:
        """The inputs at these positions. A type without inputs there stays, with none."""
        at = torch.as_tensor(positions, dtype=torch.int64)
        chosen, begin = [], 0
        for entry, count in zip(self.inputs, self.counts, strict=True):
            chosen.append(entry[at[(at >= begin) & (at < begin + count)] - begin])
            begin += count
        return type(self)(chosen)

    @property
    def input_type(self) -> tuple:
        """The types."""
        return tuple(entry.input_type for entry in self.inputs)

    def _field(self, name: str) -> dict[Any, Tensor] | None:
        """A field of the inputs by type, of those that have it; None if none has."""
        found = {entry.input_type: getattr(entry, name, None) for entry in self.inputs}
        return {of: value for of, value in found.items() if value is not None} or None

    input_id = property(lambda self: self._field("input_id"), doc="Ids of the inputs, by type.")
    time = property(lambda self: self._field("time"), doc="Times, by type; None without any.")
    start_time = property(lambda self: self._field("start_time"), doc="Starts of time windows, by type; or None.")


class NodesByType(ByType[NodeSamplerInput], NodeSamplerInput):
    """Seeds of several node types: ``node``, ``input_id`` and ``time`` are dictionaries by node type."""

    node: dict[NodeType, Tensor] = property(lambda self: self._field("node"))  # type: ignore[assignment]


class LinksByType(ByType[EdgeSamplerInput], EdgeSamplerInput):
    """Links of several relations: ``row``, ``col``, ``label``, ``input_id`` and ``time`` are dictionaries by edge
    type."""

    row: dict[EdgeType, Tensor] = property(lambda self: self._field("row"))  # type: ignore[assignment]
    col: dict[EdgeType, Tensor] = property(lambda self: self._field("col"))  # type: ignore[assignment]
    label = property(lambda self: self._field("label"))  # type: ignore[assignment]


def each_type(inputs: Any) -> tuple[Any, ...]:
    """The inputs of each type, of one or several."""
    return inputs.inputs if isinstance(inputs, ByType) else (inputs,)


def inputs_ids(inputs: NodeSamplerInput | EdgeSamplerInput) -> Tensor:
    """The ids of inputs of one type: seeds [s], or links [2, m]."""
    return inputs.node if isinstance(inputs, NodeSamplerInput) else torch.stack([inputs.row, inputs.col])


def check_no_mask(name: str, nodes: Tensor, num_nodes: int) -> None:
    """Raises ValueError for a 0 or 1 of type uint8 for each node: it could be ids or a mask."""
    if nodes.dtype == torch.uint8 and len(nodes) == num_nodes > 0 and int(nodes.max()) <= 1:
        raise ValueError(
            f"{name}: expected a mask of torch.bool, or ids, found uint8 values of 0 and 1 for each of {num_nodes} "
            f"nodes, which could be either; pass {name}.bool() for a mask, {name}.long() for ids"
        )


Seeds: TypeAlias = Tensor | dict[NodeType, Tensor]
"""Seeds or their times: a tensor; in a heterogeneous graph, tensors by node type."""


class PreparedSeeds(NamedTuple):
    """The seeds of a batch, and what limits their samples, with one entry per node type or relation."""

    nodes: list[Tensor]
    numbers: Sequence[int]
    """The node types that seeds were given for, in that order."""
    times: list[Tensor | None] | None = None
    start_times: list[Tensor | None] | None = None
    """Of the seeds' time windows."""
    pairs: list[Tensor | None] | None = None
    """The excluded edges."""
    metadata: Any = None
    """Of the sample: (input_id, time) of seeds, as PyG's loaders expect."""
    complete: Callable[[MiniBatch], None] | None = None
    """Writes what is known of links or anchors into their sample, the metadata included."""


_ONLY = (0,)
"""The node types that have seeds in a homogeneous graph."""


def seeds_of_nodes(graph: SampledGraph, inputs: NodeSamplerInput, device: torch.device | None) -> PreparedSeeds:
    """The seeds of one or several types, with (input_id, time), in which each is by type if there are several. They go
    to ``device``, or, if that is None, stay where they are.

    Raises:
        TypeError, ValueError: seeds that could be a mask, or another number of ``input_id`` than of seeds.
    """
    entries = inputs.inputs if isinstance(inputs, ByType) else (inputs,)
    for entry in entries:
        seeds, input_id = entry.node, entry.input_id
        if not isinstance(seeds, Tensor):
            check_tensor("seeds", seeds)
        if seeds.dtype == torch.uint8:  # seeds of a batch are int64 elsewhere
            check_no_mask("seeds", seeds, graph.sizes[graph.node_index(entry.input_type)])
        if input_id is not None and input_id.numel() != (count := seeds.numel()):  # len() takes five times as long
            raise ValueError(f"input_id: expected {count} ids, one per seed, found {input_id.numel()}")
    metadata = inputs.input_id, inputs.time
    if inputs.input_type is None and inputs.time is None and not graph.is_hetero and not graph.is_temporal:
        return PreparedSeeds([_seeds_on(device, inputs.node)], _ONLY, metadata=metadata)
    if inputs.input_type is None:
        times, starts = inputs.time, getattr(inputs, "start_time", None)
        return prepared_seeds(graph, device, inputs.node, times, starts, metadata=metadata)
    by_type = {entry.input_type: entry.node for entry in entries}
    times = {entry.input_type: entry.time for entry in entries if entry.time is not None} or None
    given = {entry.input_type: getattr(entry, "start_time", None) for entry in entries}
    starts = {of: start for of, start in given.items() if start is not None} or None
    return prepared_seeds(graph, device, by_type, times, starts, metadata=metadata)


def prepared_seeds(
    graph: SampledGraph, device: torch.device | None, seeds: Seeds, seed_time: Seeds | None = None,
    start_time: Seeds | None = None, exclude: Any = None, metadata: Any = None,
) -> PreparedSeeds:  # fmt: skip
    """What is asked for, checked against the graph. ``device``: where seeds go; None: they stay where they are. Others
    as of :meth:`NeighborSampler.sample` and :class:`PreparedSeeds`."""
    given = typed(graph, "seeds", seeds)
    numbers = [graph.node_index(node_type) for node_type in given]
    nodes = [NO_IDS] * len(graph.sizes)
    for number, ids in zip(numbers, given.values(), strict=True):
        nodes[number] = _seeds_on(device, ids)
    timed = seed_time is not None or graph.is_temporal
    times, starts = _seed_times(graph, numbers, nodes, seed_time) if timed else None, None
    if start_time is not None:
        assert times is not None
        starts = _start_times(graph, numbers, start_time, {} if seed_time is None else seed_time, times)
    return PreparedSeeds(
        nodes,
        numbers,
        times,
        starts,
        None if exclude is None else exclusions(graph, exclude),
        metadata,
    )


def _seeds_on(device: torch.device | None, seeds: Any) -> Tensor:
    """Ids of any integer type as int32 or int64 on the device; raises TypeError for anything else, also for a dict.
    None: where they are."""
    ids = seeds if isinstance(seeds, Tensor) and seeds.dtype == torch.int64 else as_ids("seeds", seeds)
    return ids if device is None or ids.device == device else ids.to(device)  # `to` takes longer if it does nothing


def typed(graph: SampledGraph, name: str, value: Any) -> dict:
    """``value`` by type. In a homogeneous graph the only type is None."""
    hetero = graph.is_hetero
    if isinstance(value, dict) != hetero:
        expected = "a dictionary by type, because the graph is heterogeneous" if hetero else "a tensor"
        raise TypeError(f"{name}: expected {expected}, found {type(value).__name__}")
    return value if hetero else {None: value}


def exclusions(graph: SampledGraph, exclude: Any) -> list[Tensor | None]:
    """Per relation, the excluded pairs in the direction of sampling, sorted."""
    pairs = typed(graph, "exclude", exclude)
    if unknown := [edge_type for edge_type in pairs if edge_type not in graph.edge_types]:
        raise ValueError(f"exclude: expected edge types of {graph.edge_types}, found {unknown}")
    return [_sorted_pairs(pairs.get(edge_type), graph.backward) for edge_type in graph.edge_types]


def _seed_times(
    graph: SampledGraph, numbers: list[int], nodes: list[Tensor], seed_time: Seeds | None
) -> list[Tensor | None]:
    if not graph.is_temporal:
        raise ValueError("seed_time: expected none from a sampler without time_attr, found some")
    times = {} if seed_time is None else typed(graph, "seed_time", seed_time)
    result: list[Tensor | None] = [None] * len(nodes)
    for number in numbers:
        node_type = graph.node_types[number]
        if (time := times.get(node_type)) is not None:
            name = "seed_time" if node_type is None else f"seed_time of {node_type!r}"
            check_times(name, time, len(nodes[number]))
            result[number] = ordered_limit(name, time, graph.floating_time)
        elif (own := graph.own_limits(node_type)) is None:
            raise ValueError(without_times("seed_time", node_type))
        else:
            try:
                result[number] = own.index_select(0, nodes[number].to(own.device))
            except (IndexError, RuntimeError):
                check_ids("seeds", nodes[number], len(own), "nodes")
                raise
    return result


def without_times(name: str, node_type: NodeType | None) -> str:
    """The error of seeds without times of their own or of their nodes; ``name``: of the argument that gives them."""
    seeds = "the seeds" if node_type is None else f"the seeds of {node_type!r}"
    return f"{name}: expected times for {seeds}, whose nodes have no times, found none"


def _start_times(
    graph: SampledGraph, numbers: list[int], starts: Seeds, ends: Seeds, times: list[Tensor | None]
) -> list[Tensor | None]:
    """The start of each seed's window, by node type as ``times``, their ends. Where no time lies in a window, its entry
    of ``times`` is changed so that nothing is sampled."""
    result: list[Tensor | None] = [None] * len(times)
    by_type = typed(graph, "seed_start_time", starts)
    end_of = ends if isinstance(ends, dict) else {None: ends}
    for number in numbers:
        node_type = graph.node_types[number]
        if (start := by_type.get(node_type)) is None:
            continue
        limit, last = ordered_limit("seed_start_time", start, graph.floating_time, start=True), times[number]
        if not graph.floating_time:
            none = outside_integers(start, end_of.get(node_type, start.new_zeros(0, dtype=torch.int64)))
            if bool(none.any()):
                assert last is not None
                limit = torch.where(none, torch.iinfo(torch.int64).max, limit)
                times[number] = torch.where(none, torch.iinfo(torch.int64).min, last)
        result[number] = limit
    return result


def check_starts(graph: SampledGraph, given: Seeds, seed_time: Seeds | None, start_time: Seeds | None) -> None:
    """Raises TypeError, ValueError or IndexError unless the time windows that are asked for have starts that are no
    later than their ends. Loaders check all of theirs when they are made."""
    if start_time is None:
        return
    if not graph.is_temporal:
        raise ValueError("seed_start_time: expected none from a sampler without time_attr, found some")
    ends = {} if seed_time is None else typed(graph, "seed_time", seed_time)
    seeds = typed(graph, "seeds", given)
    for node_type, start in typed(graph, "seed_start_time", start_time).items():
        if node_type not in seeds:
            raise ValueError(f"seed_start_time: expected node types of {list(seeds)}, found {node_type!r}")
        of, ids = "" if node_type is None else f" of {node_type!r}", as_ids("seeds", seeds[node_type])
        if (end := ends.get(node_type)) is not None:
            check_times(f"seed_time{of}", end, ids.numel())
        elif (own := (graph.node_time or {}).get(node_type)) is not None:
            check_ids("seeds", ids, len(own), "nodes")
            end = own[ids.to(own.device, torch.int64)]
        else:
            continue  # sampling says that the ends are missing
        check_windows(f"seed_start_time{of}", start, f"seed_time{of}", end)


def _sorted_pairs(pairs: Tensor | None, backward: bool) -> Tensor | None:
    """Pairs of nodes [2, m] in the direction of sampling, sorted by destination, then by source."""
    if pairs is None:
        return None
    pairs = pairs.flip(0) if backward else pairs
    pairs = pairs[:, torch.argsort(pairs[0], stable=True)]
    return pairs[:, torch.argsort(pairs[1], stable=True)]
