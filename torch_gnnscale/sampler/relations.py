"""Reads a graph's edges, times and weights from PyG's data or from a pair of stores, and builds of them the relations
that the operator samples."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.data.graph_store import EdgeLayout
from torch_geometric.sampler.base import DataType
from torch_geometric.typing import EdgeType, NodeType
from typing_extensions import override

from .. import ops
from .._user import warn
from ..feature.contract import all_attrs
from ..ops.arguments import check_tensor
from ..topology import CSC, GraphStore
from ..topology.graph_store import count_nodes, edges_of
from .graph import Relation, SampledGraph, check_exact, check_times, end_types, ordered

_PREFERRED = [EdgeLayout.CSC, EdgeLayout.COO, EdgeLayout.CSR]
"""The layout that is read if a store has several: the first of these, as in PyG."""


def check_data(data: Any) -> None:
    """Raises TypeError unless it is a Data, a HeteroData or a (FeatureStore, GraphStore) pair.

    PyG's Data is both kinds of store, but a pair of two, or of one twice, is refused: it is taken for two graphs.
    """
    if isinstance(data, (Data, HeteroData)):
        return
    pair = isinstance(data, (tuple, list)) and len(data) == 2
    kinds = (Data, HeteroData)
    if pair and all(isinstance(store, kinds) for store in data):
        raise TypeError(
            f"data: expected one graph, or a (FeatureStore, GraphStore) pair, found a {type(data).__name__} of two "
            f"graphs; make one graph of them (torch_geometric.data.Batch.from_data_list), or a loader for each"
        )
    if not (pair and isinstance(data[0], PyGFeatureStore) and isinstance(data[1], PyGGraphStore)):
        raise TypeError(
            f"data: expected a Data, a HeteroData or a (FeatureStore, GraphStore) pair, found {type(data).__name__}"
        )


def warn_of_sorted(data: Any, is_sorted: bool) -> None:
    """Warns of ``is_sorted`` where the data themselves say how their edges are sorted."""
    if is_sorted and isinstance(data, (tuple, list)):
        warn("is_sorted=True has no effect with stores: a GraphStore says itself how its edges are sorted")


class Source(ABC):
    """Edges and attributes by type. The only type of a homogeneous graph is None."""

    is_hetero: bool

    @abstractmethod
    def edges(self) -> dict[EdgeType | None, CSC]:
        """The edges of each type."""

    @abstractmethod
    def num_nodes(self) -> dict[NodeType | None, int | None]:
        """The number of nodes per type; None where the data do not tell."""

    @abstractmethod
    def of_nodes(self, name: str, sizes: dict) -> dict[NodeType | None, Tensor]:
        """The attribute ``name`` per node type that has it. ``sizes``: the number of nodes per type."""

    @abstractmethod
    def of_edges(self, name: str, edges: dict) -> dict[EdgeType | None, Tensor]:
        """The attribute ``name`` per edge type that has it. ``edges``: what :meth:`edges` returned."""

    @abstractmethod
    def shapes(self, name: str) -> list[tuple[int, ...]]:
        """The shapes of all tensors of this name, of nodes, of edges or of neither."""


class DataSource(Source):
    """A Data or HeteroData. ``is_sorted``: its edges are sorted by destination already."""

    def __init__(self, data: Data | HeteroData, is_sorted: bool) -> None:
        self.data, self.is_sorted = data, is_sorted
        self.is_hetero = isinstance(data, HeteroData)

    @override
    def num_nodes(self) -> dict[NodeType | None, int | None]:
        if not self.is_hetero:
            return {None: self.data.num_nodes}
        return dict(count_nodes(self.data))

    @override
    def edges(self) -> dict[EdgeType | None, CSC]:
        return edges_of(self.data, self.is_sorted)

    @override
    def of_nodes(self, name: str, sizes: dict) -> dict[NodeType | None, Tensor]:
        if not self.is_hetero:
            return {None: _tensor(name, self.data[name])} if name in self.data and self.data.is_node_attr(name) else {}
        return {t: _tensor(name, store[name]) for t, store in self.data.node_items() if name in store}

    @override
    def of_edges(self, name: str, edges: dict) -> dict[EdgeType | None, Tensor]:
        if self.is_hetero:
            return {t: _tensor(name, store[name]) for t, store in self.data.edge_items() if name in store}
        if name not in self.data:
            return {}
        value = _tensor(name, self.data[name])
        return {None: value} if value.shape[:1] == (edges[None].num_edges,) else {}

    @override
    def shapes(self, name: str) -> list[tuple[int, ...]]:
        return [tuple(_tensor(name, store[name]).shape) for store in self.data.stores if name in store]


class StoreSource(Source):
    """A pair of stores, ours or foreign ones."""

    def __init__(self, features: PyGFeatureStore, graph: PyGGraphStore) -> None:
        self.features, self.graph = features, graph
        self.attrs = graph.get_all_edge_attrs()
        self.edge_types = list(dict.fromkeys(attr.edge_type for attr in self.attrs))
        self.is_hetero = self.edge_types != [None]
        if self.is_hetero and None in self.edge_types:
            raise ValueError(f"data: expected typed edges, or only edges of type None, found {self.edge_types}")

    @override
    def num_nodes(self) -> dict[NodeType | None, int | None]:
        named = [attr for attr in self.features.get_all_tensor_attrs() if isinstance(attr.group_name, str)]
        counts: dict[NodeType | None, int | None] = {attr.group_name: None for attr in named if self.is_hetero}
        for attr in self.attrs:
            ends = (attr.edge_type[0], attr.edge_type[-1]) if attr.edge_type is not None else (None, None)
            for node_type, count in zip(ends, attr.size or (None, None), strict=True):
                if counts.get(node_type) is not None and count is not None and count != counts[node_type]:
                    found = f"{counts[node_type]} and {count}"
                    raise ValueError(
                        f"data: expected one number of nodes{of_type(node_type)} in all edges, found {found}; "
                        f"pass size= to put_edge_index"
                    )
                counts[node_type] = count if counts.get(node_type) is None else counts[node_type]
        for attr in named:
            if attr.group_name in counts and counts[attr.group_name] is None:
                size = self.features.get_tensor_size(attr)
                counts[attr.group_name] = None if size is None else size[0]
        return counts

    @override
    def edges(self) -> dict[EdgeType | None, CSC]:
        if isinstance(self.graph, GraphStore):
            return {edge_type: self.graph.relation(edge_type) for edge_type in self.edge_types}
        ours = GraphStore()  # converts every layout by a stable sort, so that samples do not depend on the store
        counts = self.num_nodes()
        for edge_type in self.edge_types:
            attrs = [attr for attr in self.attrs if attr.edge_type == edge_type]
            attr = min(attrs, key=lambda attr: _PREFERRED.index(attr.layout))
            put = copy.copy(attr)
            if put.size is None and edge_type is not None:  # a pointer says how many nodes its own end has
                src, dst = counts[edge_type[0]], counts[edge_type[-1]]
                put.size = None if put.layout == EdgeLayout.CSR else src, None if put.layout == EdgeLayout.CSC else dst
            ours.put_edge_index(self.graph.get_edge_index(attr), put)
        return {edge_type: ours.relation(edge_type) for edge_type in self.edge_types}

    @override
    def of_nodes(self, name: str, sizes: dict) -> dict[NodeType | None, Tensor]:
        if self.is_hetero:
            return self._groups(name, lambda group: isinstance(group, str))
        # A tuple as group means edges. Else PyG decides: "time" belongs to nodes, others to what has their length.
        found = self._groups(name, lambda group: not isinstance(group, tuple))
        return _only({g: v for g, v in found.items() if name == "time" or len(v) == sizes[None]})

    @override
    def of_edges(self, name: str, edges: dict) -> dict[EdgeType | None, Tensor]:
        if self.is_hetero:
            return self._groups(name, lambda group: isinstance(group, tuple))
        found = self._groups(name, lambda group: isinstance(group, tuple))
        if not found:
            others = self._groups(name, lambda group: not isinstance(group, tuple))
            found = {} if name == "time" else {g: v for g, v in others.items() if len(v) == edges[None].num_edges}
        return _only(found)

    @override
    def shapes(self, name: str) -> list[tuple[int, ...]]:
        return [tuple(value.shape) for value in self._groups(name, lambda group: True).values()]

    def _groups(self, name: str, wanted: Callable[[Any], bool]) -> dict:
        found = {}
        for attr in all_attrs(self.features):
            if attr.attr_name == name and wanted(attr.group_name):
                attr.index = None
                found[attr.group_name] = _tensor(name, self.features.get_tensor(attr))
        return found


def _only(found: dict) -> dict[None, Any]:
    """{None: value} of the first group: a homogeneous graph has one, of any name."""
    return dict.fromkeys([None], next(iter(found.values()))) if found else {}


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(value)
    check_tensor(name, value)
    return value.detach().cpu()


def of_type(type_name: Any) -> str:
    """ " of TYPE" for error texts; "" in a homogeneous graph."""
    return "" if type_name is None else f" of {type_name!r}"


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
