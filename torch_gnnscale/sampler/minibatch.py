"""The carrier of a batch: one object from its number to its Data, into which order, sampling, fetching and collating
write in turn. Inside, there is one entry per node type and per relation; a homogeneous graph has one of each. And its
seeds, their times and excluded edges, checked, as executors take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.sampler.utils import to_bidirectional
from torch_geometric.typing import NodeType

from ..ops.arguments import NO_IDS, as_ids, check_ids
from .base import ByType, check_no_mask
from .graph import (
    GraphTypes,
    ReverseIds,
    SampledGraph,
    check_times,
    check_windows,
    end_types,
    ordered_limit,
    outside_integers,
)

EARLIEST, LATEST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
"""Limits of times that leave out nothing."""

HOMOGENEOUS = GraphTypes([None], [None])
"""The types of a homogeneous graph."""


class SampledEdges(NamedTuple):
    """The sampled edges of one type."""

    edge_index: Tensor
    """Local COO: int64, shape [2, e]."""
    colptr: Tensor | None
    """Edges colptr[i]..colptr[i+1]-1 lead to node i; later nodes have no edges. With ``layers``, the columns of hop 0
    are followed by those of hop 1, and so on. None if edges are not sorted by destination."""
    edge_id: Tensor | None
    """The user's ids of the edges, [e]."""
    weight: Tensor | None = None
    """The sampler's weights of the edges, [e]."""


NO_EDGES = SampledEdges(NO_IDS.expand(2, 0), torch.zeros(1, dtype=torch.int64), NO_IDS)
"""The edges of a type that was not sampled."""


_NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


class MiniBatch:
    """A batch from its number to its Data. What a step has not written yet is None or empty."""

    # Of the order of seeds, and known before sampling

    inputs: Any = None
    """The inputs at ``positions``: seeds, or links; None again after sampling."""
    key: int = 0
    """Of all draws."""
    transform_key: int | None = None
    """Of the draws of the user's ``transform_sampler_output``, if there is one."""
    labels: int | None = None
    """The number of the version of links' labels, if there are labels."""

    # Written by sampling

    types: GraphTypes = HOMOGENEOUS
    nodes: list[Tensor]
    """Per node type, ids of the stores: int64, [n]."""
    edges: list[SampledEdges]
    """Per edge type."""
    trees: Sequence[Tensor | None] | None = None
    """Per node type, the tree of each node, [n], if trees are disjoint."""
    num_nodes: Sequence[Sequence[int] | None] | None = None
    """Per node type, how many nodes each hop found, beginning with the seeds; None if edges do not belong to hops."""
    num_edges: Sequence[Sequence[int] | None] | None = None
    """Per edge type, how many edges each hop drew."""
    original: Sequence[Tensor | None] | None = None
    """Per edge type, the edges before their reverses were added, if they are kept: local COO."""
    metadata: Any = None
    """What is known of the inputs: (input_id, time) of seeds, what PyG's LinkLoader expects of links; by type, if they
    are of several types."""
    fields: Any = _NO_FIELDS
    """Further fields that the batch gets, by name."""
    separate_sources: bool = False
    """Whether, with ``layers``, a layer's sources are its hop's nodes alone; local ids begin with 0 in each hop."""
    whole: dict[str, int] | None = None
    """Of a rank's part of a batch, numbers that are alike on all ranks that have parts of it."""
    out: Any = None
    """The output of a sampler or a transform of the user's, if this is what it says."""
    transformed: bool = False
    """Whether the user's transform was called."""

    # Written by fetching

    rows: Any = None
    """What a row source returned; None before, after collating, and if attributes were changed so that they could not
    be read."""
    versions: Any = None
    """The versions of attributes before rows were read."""

    # Written by collating

    data: Any = None
    """The Data or HeteroData with all fields; None if its rows were not read."""

    def __init__(self, epoch: int = 0, number: int = -1, positions: Any = None) -> None:
        self.epoch, self.number = epoch, number
        """The number of the batch in its epoch; -1 for inputs that a user has chosen."""
        self.positions = positions
        """Of its inputs, among all of a loader's."""

    def size(self, edge_type: Any) -> tuple[int, int]:
        """(number of sampled nodes of the source type, of the destination type)."""
        src, dst = (self.nodes_of(end) for end in end_types(edge_type))
        return src.numel(), dst.numel()

    def nodes_of(self, node_type: Any) -> Tensor:
        """The nodes of a type; none of a type that was not sampled."""
        number = self.types.node_number.get(node_type)
        return NO_IDS if number is None else self.nodes[number]

    def edges_of(self, edge_type: Any) -> SampledEdges | None:
        """The edges of a type; None if it was not sampled."""
        number = self.types.edge_number.get(edge_type)
        return None if number is None else self.edges[number]


def sampled_ids(sampled: MiniBatch, groups: Iterable[Any]) -> list[Tensor | None]:
    """By group of rows, the ids of its sampled nodes or edges; None of a group that was not sampled."""
    types, found = sampled.types, list[Tensor | None]()
    for group in groups:
        of, key = types.edge_number if isinstance(group, tuple) else types.node_number, group if types.hetero else None
        if (number := of.get(key)) is None:
            found.append(None)
        else:
            found.append(sampled.edges[number].edge_id if isinstance(group, tuple) else sampled.nodes[number])
    return found


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
        if input_id is not None and isinstance(seeds, Tensor) and input_id.numel() != seeds.numel():  # len() is slower
            raise ValueError(f"input_id: expected {seeds.numel()} ids, one per seed, found {input_id.numel()}")
    metadata = inputs.input_id, inputs.time
    if inputs.input_type is None and inputs.time is None and not graph.is_hetero and not graph.is_temporal:
        return PreparedSeeds([_seeds_on(device, graph, 0, inputs.node)], _ONLY, None, None, None, metadata, None)
    if inputs.input_type is None:
        times, starts = inputs.time, getattr(inputs, "start_time", None)
        if starts is None and graph.is_temporal and not graph.is_hetero:  # the usual case of times in fewer steps
            nodes = [_seeds_on(device, graph, 0, inputs.node)]
            return PreparedSeeds(nodes, _ONLY, _seed_times(graph, _ONLY, nodes, times), metadata=metadata)
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
        nodes[number] = _seeds_on(device, graph, number, ids)
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


def _seeds_on(device: torch.device | None, graph: SampledGraph, number: int, seeds: Any) -> Tensor:
    """Ids of any integer type, of nodes of the type with this number, as int32 or int64 on the device; None: where they
    are. Raises TypeError for anything else, also for a dict, and ValueError for what could be a mask."""
    if isinstance(seeds, Tensor) and seeds.dtype == torch.int64:
        ids = seeds
    else:
        ids = as_ids("seeds", seeds)
        check_no_mask("seeds", seeds, graph.sizes[number])
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
    graph: SampledGraph, numbers: Sequence[int], nodes: list[Tensor], seed_time: Seeds | None
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
            ids = nodes[number]
            try:
                result[number] = own.index_select(0, ids if ids.device == own.device else ids.to(own.device))
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
                limit = torch.where(none, LATEST, limit)
                times[number] = torch.where(none, EARLIEST, last)
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


def add_reverses(batch: MiniBatch, graph: SampledGraph, reverse_ids: ReverseIds) -> None:
    """Adds to a batch of drawn edges their reverses, each once, and keeps the drawn ones as ``original``; like PyG's
    ``to_bidirectional(keep_orig_edges=True)``, but for the ids of edges."""
    drawn = batch.edges
    batch.original = [edges.edge_index for edges in drawn]
    batch.edges = []
    for number, edges in enumerate(drawn):
        if (reverse := graph.stored.reverse[number]) < 0:
            batch.edges.append(edges._replace(colptr=None))
            continue
        others = drawn[reverse]
        assert edges.edge_id is not None
        assert others.edge_id is not None
        row, col, ids = to_bidirectional(
            *edges.edge_index, *others.edge_index, edges.edge_id, -1 - others.edge_id
        )  # fmt: skip
        assert ids is not None
        batch.edges.append(SampledEdges(torch.stack([row, col]), None, reverse_ids.found(number, ids), edges.weight))
