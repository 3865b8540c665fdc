"""Builds the relations that the operator samples from PyG's data; adds the reverse of each drawn edge to samples."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler.base import DataType
from torch_geometric.sampler.utils import to_bidirectional
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from ..topology import CSC
from .graph import Relation, SampledGraph, check_exact, check_times, end_types, ordered
from .minibatch import MiniBatch, SampledEdges
from .sources import DataSource, Source, StoreSource, check_data, of_type


def sampled_graph(
    data: Any, *, is_sorted: bool = False, time_attr: str | None = None, weight_attr: str | None = None,
    backward: bool = False,
) -> SampledGraph:  # fmt: skip
    """The relations of a Data, a HeteroData or a (FeatureStore, GraphStore) pair. Edges of our stores are not copied.

    Raises:
        TypeError, ValueError, IndexError: data of another type; a malformed graph; times or weights that are missing,
            of another length or type, NaN, or, for weights, infinite or negative; integer times above 2^53 in size
            beside times of another type that are floats.
    """
    check_data(data)
    source: Source = StoreSource(*data) if isinstance(data, (tuple, list)) else DataSource(data, is_sorted)
    cscs = source.edges()
    sizes = _sizes(source, cscs)
    node_time, edge_time = (None, None) if time_attr is None else _times(source, time_attr, sizes, cscs)
    weights = {} if weight_attr is None else source.of_edges(weight_attr, cscs)
    if weight_attr is not None and not weights:
        found = _found(source, weight_attr, sizes, cscs) or "none of this name"
        raise ValueError(f"weight_attr={weight_attr!r}: expected an attribute of edges, found {found}")
    for edge_type in weights:
        _check_type(f"weight_attr={weight_attr!r}", edge_type, cscs)
    times = (node_time or {}) | (edge_time or {})
    floating = any(time.is_floating_point() for time in times.values())
    if floating:
        for type_name, time in times.items():
            check_exact(f"time_attr={time_attr!r}{of_type(type_name)}", time, "other times of the graph")

    relations = []
    for edge_type, csc in cscs.items():
        src, dst = end_types(edge_type)
        opened = csc
        csc = _padded(opened, sizes[src], sizes[dst])
        if backward:
            csc = csc.transposed()
        of_src = None if node_time is None else node_time.get(src)
        of_edges = None if edge_time is None else edge_time.get(edge_type)
        name = f"weight_attr={weight_attr!r}{of_type(edge_type)}"
        prepared = prepared_edges(csc, name, weights.get(edge_type), of_src, of_edges, floating)
        left_out = prepared.left_out
        left_out = left_out.flip(0) if left_out is not None and backward else left_out
        csc = prepared.csc
        mapped = opened.origin is not None and csc.row is opened.row
        relations.append(Relation(edge_type, csc, prepared.weight, prepared.time, left_out, mapped))
    return SampledGraph(
        DataType.from_data(data), list(sizes), list(sizes.values()), relations, backward, node_time, edge_time, floating
    )


def _found(source: Source, name: str, sizes: dict, cscs: dict) -> str:
    """For an error: the shape of the tensor of this name, which fits neither the nodes nor the edges of a homogeneous
    graph; "" if there is none, or the graph is heterogeneous."""
    if source.is_hetero or not (shapes := source.shapes(name)):
        return ""
    return f"shape {shapes[0]} for {sizes[None]} nodes and {cscs[None].num_edges} edges"


def _sizes(source: Source, cscs: dict[EdgeType | None, CSC]) -> dict[NodeType | None, int]:
    """The number of nodes per type: as given in the data, else 1 + the largest id in the edges."""
    counts = source.num_nodes()
    found: dict[NodeType | None, int] = {}
    for edge_type, csc in cscs.items():
        for node_type, count in zip(end_types(edge_type), (csc.num_src, csc.num_dst), strict=True):
            found[node_type] = max(found.get(node_type, 0), count)
    return {node_type: found[node_type] if count is None else count for node_type, count in counts.items()}


# From the user's edges to those that are sampled #####################################################################


class PreparedEdges(NamedTuple):
    """The edges of a relation as they are drawn: the entries of :class:`Relation` of these names."""

    csc: CSC
    weight: Tensor | None
    time: Tensor | None
    left_out: Tensor | None


def prepared_edges(
    csc: CSC, name: str, weight: Tensor | None, node_time: Tensor | None, edge_time: Tensor | None, floating: bool
) -> PreparedEdges:
    """Leaves out the edges of weight 0, and sorts the others in each column by time.

    Args:
        csc: the edges; its columns may be those of some nodes only.
        name: the name of the weights, for errors.
        weight: the weight of each edge, by its id; or None.
        node_time: the time of each source; or None, and then ``edge_time`` counts.
        edge_time: the time of each edge, by its id; or None.
        floating: whether times are compared as float64.

    Raises:
        TypeError, ValueError: weights of another length or type, NaN, infinite or negative.
    """
    time, left_out = None, None
    if weight is not None:
        csc, weight, left_out = _with_weights(name, csc, weight)
    if node_time is not None:
        time = ordered(node_time, floating)[csc.row.to(torch.int64)]
    elif edge_time is not None:
        time = _of_stored(csc, ordered(edge_time, floating))
    if time is not None:
        csc, time, weight = _by_time(csc, time, weight)
    return PreparedEdges(csc, None if weight is None else ops.weight_sums(csc.colptr, weight), time, left_out)


def _padded(csc: CSC, num_src: int, num_dst: int) -> CSC:
    """The CSC with ``num_src`` sources and ``num_dst`` destinations; the added nodes have no edges."""
    if csc.num_src > num_src or csc.num_dst > num_dst:
        raise ValueError(f"data: expected edges between {num_src} and {num_dst} nodes, found {csc}")
    if (csc.num_src, csc.num_dst) == (num_src, num_dst):
        return csc
    last = csc.colptr[-1:].expand(num_dst - csc.num_dst)
    return CSC(torch.cat([csc.colptr, last]), csc.row, csc.edge_id, num_src)


def _edge_ids(csc: CSC) -> Tensor:
    return torch.arange(csc.num_edges) if csc.edge_id is None else csc.edge_id.to(torch.int64)


def _of_stored(csc: CSC, values: Tensor) -> Tensor:
    """The values of the stored edges from those by edge ids, [E, ...]; ValueError for an id that no edge has, as a file
    that nobody verified may hold."""
    edge_id = _edge_ids(csc)
    if (at := ops.first_outside(edge_id, len(values))) >= 0:
        raise ValueError(f"edge_id[{at}] = {int(edge_id[at])}: expected ids of edges in [0, {len(values)})")
    return values[edge_id]


def _with_weights(name: str, csc: CSC, weight: Tensor) -> tuple[CSC, Tensor, Tensor | None]:
    """(edges of positive weight, their weights in stored order, the other edges as (source, destination) [2, k] or
    None)."""
    if weight.dtype == torch.bool or weight.is_complex():
        raise TypeError(f"{name}: expected real numbers, found {weight.dtype}")
    if weight.shape != (csc.num_edges,):
        raise ValueError(f"{name}: expected {csc.num_edges} weights, one per edge, found shape {tuple(weight.shape)}")
    if bool((wrong := ~(torch.isfinite(weight) & (weight >= 0))).any()):
        edge = int(wrong.nonzero()[0])
        raise ValueError(f"{name}: expected finite numbers of at least 0, found {weight[edge].item()} at edge {edge}")
    weight = _of_stored(csc, weight)
    kept = weight > 0
    if bool(kept.all()):
        return csc, weight, None
    left_out = torch.stack([csc.row[~kept].to(torch.int64), csc.col()[~kept]])
    before = torch.cat([torch.zeros(1, dtype=torch.int64), kept.cumsum(0)])
    return CSC(before[csc.colptr], csc.row[kept], _edge_ids(csc)[kept], csc.num_src), weight[kept], left_out


def _by_time(csc: CSC, time: Tensor, weight: Tensor | None) -> tuple[CSC, Tensor, Tensor | None]:
    """Sorts the edges of each column by time, stably; returns (edges, times, weights)."""
    falls = time[1:] < time[:-1]
    falls[csc.colptr[1:-1][(csc.colptr[1:-1] > 0) & (csc.colptr[1:-1] < csc.num_edges)] - 1] = False
    if not bool(falls.any()):
        return csc, time, weight
    order = torch.argsort(time, stable=True)
    by_time = CSC.from_edge_index(torch.stack([csc.row[order], csc.col()[order]]), (csc.num_src, csc.num_dst))
    assert by_time.edge_id is not None
    order = order[by_time.edge_id.to(torch.int64)]
    by_time.edge_id.copy_(_edge_ids(csc)[order])  # in place: it is interleaved with the sources
    return by_time, time[order], None if weight is None else weight[order]


def _times(
    source: Source, name: str, sizes: dict, cscs: dict
) -> tuple[dict[NodeType | None, Tensor] | None, dict[EdgeType | None, Tensor] | None]:
    """(times of nodes by type, None) or (None, times of edges by type)."""
    of_nodes, of_edges = source.of_nodes(name, sizes), source.of_edges(name, cscs)
    if of_nodes and of_edges and len(source.shapes(name)) == 1:
        # One attribute, and as many nodes as edges. As in PyG, a Data means nodes, and stores mean edges.
        of_nodes, of_edges = (of_nodes, {}) if isinstance(source, DataSource) else ({}, of_edges)
    if of_nodes and of_edges:
        raise ValueError(
            f"time_attr={name!r}: expected times of nodes or of edges, found both: {[*of_nodes, *of_edges]}"
        )
    if not of_nodes and not of_edges:
        other = _found(source, name, sizes, cscs) or "none of this name"
        raise ValueError(f"time_attr={name!r}: expected an attribute of nodes or edges, found {other}")
    for types, found in ((sizes, of_nodes), (cscs, of_edges)):
        for type_name, time in found.items():
            _check_type(f"time_attr={name!r}", type_name, types)
            count = types[type_name] if types is sizes else types[type_name].num_edges
            check_times(f"time_attr={name!r}{of_type(type_name)}", time, count)
    return of_nodes or None, of_edges or None


def _check_type(name: str, type_name: NodeType | EdgeType | None, types: dict) -> None:
    """Raises ValueError for an attribute of a type that the graph does not have, as stores may."""
    if type_name not in types:
        raise ValueError(f"{name}: expected a type of {list(types)}, found {type_name!r}")


class ReverseIds:
    """The ids of the edges that are the reverses of others, for each relation of a graph. Made on first use.

    The reverse of an edge of a relation is an edge of its reverse relation between the same nodes and, where edges have
    times, at the same time; of several, the k-th that is stored belongs to the k-th. Relations have ids of reverses if
    every edge of both has a reverse.
    """

    def __init__(self, graph: SampledGraph) -> None:
        self._graph = graph
        self._tables: dict[int, Tensor | None] = {}
        self._copies: dict[tuple[int, torch.device], Tensor] = {}
        """Tables where samples are."""

    def __getitem__(self, number: int) -> Tensor | None:
        """For a relation that has a reverse relation: result[id of an edge of that one] is the id of this relation's
        edge that leads the other way; None unless every edge has such an edge."""
        if number not in self._tables:
            graph = self._graph
            reverse = graph.relations[graph.stored.reverse[number]]
            self._tables[number] = ops.reverse_edges(
                graph.stored, number, reverse.id_bound, same_time=graph.edge_time is not None
            )
        return self._tables[number]

    def found(self, number: int, edge: Tensor) -> Tensor | None:
        """The ids of a relation's sampled edges, of which those that were turned have -1 - (the id of the edge of the
        reverse relation); None if there are reverses that the graph does not have."""
        if self._graph.stored.reverse[number] < 0:
            return edge
        if (table := self[number]) is None:
            return None
        turned = edge < 0
        if edge.device.type == "cpu" and not bool(turned.any()):
            return edge
        if (there := self._copies.get((number, edge.device))) is None:
            there = self._copies[number, edge.device] = table.to(edge.device)
        return torch.where(turned, there[(-1 - edge).clamp(min=0)].to(edge.dtype), edge)


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
