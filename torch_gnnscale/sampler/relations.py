"""From PyG's data to the relations that the operator samples."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.data.graph_store import EdgeLayout
from torch_geometric.sampler.base import DataType
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from ..feature.feature_store import all_attrs
from ..topology import CSC, GraphStore
from .inputs import ends_of, reverse_relations
from .times import check_times, ordered


@dataclass(eq=False)
class Relation:
    """The edges of one type, as they are sampled."""

    edge_type: EdgeType | None
    csc: CSC
    """By destination, or by source where edges are followed backward; times do not decrease in a column."""
    weight: Tensor | None = None
    """What :func:`torch_gnnscale.ops.weight_sums` makes of the weights."""
    time: Tensor | None = None
    """Each stored edge's time: int64, in the order of the user's."""
    left_out: Tensor | None = None
    """Edges of weight 0, which are not sampled: sources and destinations, int64, shape [2, k]."""
    mapped: bool = False
    """The edges lie in a file."""

    _num_ids: int | None = field(default=None, init=False, repr=False)

    @property
    def num_ids(self) -> int:
        """The user's ids of its edges are below this."""
        if self._num_ids is None:
            edge_id = self.csc.edge_id
            if edge_id is None or len(edge_id) == 0:
                self._num_ids = self.csc.num_edges
            else:
                self._num_ids = int(edge_id.max()) + 1
        return self._num_ids


@dataclass(eq=False)
class SampledGraph:
    """A graph's relations, its nodes and their times.

    ``node_types`` and ``edge_types`` are [None] in a homogeneous graph. ``node_time`` and ``edge_time`` are the user's
    own tensors by type; where there is a time, types without one are untimed.
    """

    data_type: DataType
    node_types: list[NodeType | None]
    sizes: list[int]
    relations: list[Relation]
    backward: bool
    node_time: dict[NodeType | None, Tensor] | None = None
    edge_time: dict[EdgeType | None, Tensor] | None = None
    floating_time: bool = False
    """Times are compared as float64."""

    _stored: ops.Relations | None = field(default=None, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        # A CSC knows how to travel, its tensors do not.
        return {**self.__dict__, "_stored": None}

    @property
    def stored(self) -> ops.Relations:
        """What the operator draws from, in the direction of sampling; made when first asked for."""
        if self._stored is None:  # without a lock, which a process that is forked meanwhile would find closed
            self._stored = self._checked()
        return self._stored

    def _checked(self) -> ops.Relations:
        ends = [ends_of(edge_type) for edge_type in self.edge_types]
        cscs = [relation.csc for relation in self.relations]
        return ops.relations(
            [csc.colptr for csc in cscs],
            [csc.row for csc in cscs],
            edge_id=[csc.edge_id for csc in cscs],
            weight=[relation.weight for relation in self.relations],
            time=[relation.time for relation in self.relations],
            src_type=[self.node_types.index(pair[self.backward]) for pair in ends],
            dst_type=[self.node_types.index(pair[not self.backward]) for pair in ends],
            sizes=self.sizes,
            reverse=reverse_relations(self.edge_types),
        )

    def move_to_huge_pages(self) -> None:
        """Moves what is read at random and is no file's."""
        found: list[Tensor | None] = []
        for relation in self.relations:
            csc = relation.csc
            found += [relation.time, relation.weight]
            found += [] if relation.mapped else [csc.colptr, csc.row, csc.edge_id]
        ops.move_to_huge_pages(tensor for tensor in found if tensor is not None)

    @property
    def largest_degree(self) -> int:
        """Of all nodes in all relations."""
        return max((int(r.csc.colptr.diff().max()) for r in self.relations if r.csc.num_dst), default=0)

    @property
    def is_hetero(self) -> bool:
        """Whether nodes and edges have types."""
        return self.node_types != [None]

    @property
    def edge_types(self) -> list[EdgeType | None]:
        """The relations' types, in their order."""
        return [relation.edge_type for relation in self.relations]

    def node_index(self, node_type: NodeType | None) -> int:
        """The number of a node type; ValueError if the graph has none of that name."""
        if node_type not in self.node_types:
            raise ValueError(f"node type {node_type!r}: expected one of {self.node_types}")
        return self.node_types.index(node_type)


def sampled_graph(
    data: Any, *, is_sorted: bool = False, time_attr: str | None = None, weight_attr: str | None = None,
    backward: bool = False,
) -> SampledGraph:  # fmt: skip
    """The relations of a Data, a HeteroData or a (FeatureStore, GraphStore) pair, ours without a copy.

    Raises:
        TypeError, ValueError, IndexError: not such data; a malformed graph; times or weights that are missing, of the
            wrong length or no numbers that can be used.
    """
    if isinstance(data, (Data, HeteroData)):
        source: _Source = _DataSource(data, is_sorted)
    elif (
        isinstance(data, (tuple, list))
        and len(data) == 2
        and isinstance(data[0], PyGFeatureStore)
        and isinstance(data[1], PyGGraphStore)
    ):
        source = _StoreSource(*data)
    else:
        raise TypeError(
            f"data: expected a Data, a HeteroData or a (FeatureStore, GraphStore) pair, found {type(data).__name__}"
        )
    cscs = source.edges()
    sizes = _sizes(source, cscs)
    node_time, edge_time = (None, None) if time_attr is None else _times(source, time_attr, sizes, cscs)
    weights = {} if weight_attr is None else source.of_edges(weight_attr, cscs)
    if weight_attr is not None and not weights:
        raise ValueError(f"weight_attr={weight_attr!r}: expected it to be an attribute of edges, found none")
    floating = any(t.is_floating_point() for t in [*(node_time or {}).values(), *(edge_time or {}).values()])

    relations = []
    for edge_type, csc in cscs.items():
        src, dst = ends_of(edge_type)
        opened = csc
        csc = _padded(opened, sizes[src], sizes[dst])
        if backward:
            csc = csc.transposed()
        weight, time, left_out = weights.get(edge_type), None, None
        if weight is not None:
            csc, weight, left_out = _with_weights(f"weight_attr={weight_attr!r}{_of(edge_type)}", csc, weight)
            left_out = left_out.flip(0) if left_out is not None and backward else left_out
        if node_time is not None and src in node_time:
            time = ordered(node_time[src], floating)[csc.row.to(torch.int64)]
        elif edge_time is not None and edge_type in edge_time:
            time = ordered(edge_time[edge_type], floating)[_edge_ids(csc)]
        if time is not None:
            csc, time, weight = _by_time(csc, time, weight)
        sums = None if weight is None else ops.weight_sums(csc.colptr, weight)
        mapped = opened.origin is not None and csc.row is opened.row
        relations.append(Relation(edge_type, csc, sums, time, left_out, mapped))
    return SampledGraph(
        DataType.from_data(data), list(sizes), list(sizes.values()), relations, backward, node_time, edge_time, floating
    )


_PREFERRED = [EdgeLayout.CSC, EdgeLayout.COO, EdgeLayout.CSR]
"""The layout to read of several, as PyG chooses."""


# Where edges, times and weights come from ############################################################################


class _Source:
    """What is asked of the data: edges as put by the user, and attributes of nodes and edges by type."""

    is_hetero: bool

    def edges(self) -> dict[EdgeType | None, CSC]:
        raise NotImplementedError

    def num_nodes(self) -> dict[NodeType | None, int | None]:
        raise NotImplementedError

    def of_nodes(self, name: str, sizes: dict) -> dict[NodeType | None, Tensor]:
        raise NotImplementedError

    def of_edges(self, name: str, edges: dict) -> dict[EdgeType | None, Tensor]:
        raise NotImplementedError


class _DataSource(_Source):
    def __init__(self, data: Data | HeteroData, is_sorted: bool) -> None:
        self.data, self.is_sorted = data, is_sorted
        self.is_hetero = isinstance(data, HeteroData)

    def num_nodes(self) -> dict[NodeType | None, int | None]:
        if not self.is_hetero:
            return {None: self.data.num_nodes}
        known = {node_type: self.data[node_type].num_nodes for node_type in self.data.node_types}
        for src, _, dst in self.data.edge_types:
            if missing := [node_type for node_type in (src, dst) if node_type not in known]:
                raise ValueError(
                    f"data: expected nodes of type {missing[0]!r}, which edges lead from or to, found none"
                )
        return known

    def edges(self) -> dict[EdgeType | None, CSC]:
        if not self.is_hetero:
            return {None: CSC.from_data(self.data, self.is_sorted)}
        sizes = _known(self.num_nodes())
        return {
            edge_type: CSC.from_storage(store, (sizes[edge_type[0]], sizes[edge_type[-1]]), self.is_sorted)
            for edge_type, store in self.data.edge_items()
        }

    def of_nodes(self, name: str, sizes: dict) -> dict[NodeType | None, Tensor]:
        if not self.is_hetero:
            return {None: _tensor(name, self.data[name])} if name in self.data and self.data.is_node_attr(name) else {}
        return {t: _tensor(name, store[name]) for t, store in self.data.node_items() if name in store}

    def of_edges(self, name: str, edges: dict) -> dict[EdgeType | None, Tensor]:
        if self.is_hetero:
            return {t: _tensor(name, store[name]) for t, store in self.data.edge_items() if name in store}
        if name not in self.data:
            return {}
        value = _tensor(name, self.data[name])
        return {None: value} if len(value) == edges[None].num_edges else {}


class _StoreSource(_Source):
    def __init__(self, features: PyGFeatureStore, graph: PyGGraphStore) -> None:
        self.features, self.graph = features, graph
        self.attrs = graph.get_all_edge_attrs()
        self.edge_types = list(dict.fromkeys(attr.edge_type for attr in self.attrs))
        self.is_hetero = self.edge_types != [None]
        if self.is_hetero and None in self.edge_types:
            raise ValueError(f"data: expected the single edge type None or none, found {self.edge_types}")

    def num_nodes(self) -> dict[NodeType | None, int | None]:
        named = [attr for attr in self.features.get_all_tensor_attrs() if isinstance(attr.group_name, str)]
        counts: dict[NodeType | None, int | None] = {attr.group_name: None for attr in named if self.is_hetero}
        for attr in self.attrs:
            ends = (attr.edge_type[0], attr.edge_type[-1]) if attr.edge_type is not None else (None, None)
            for node_type, count in zip(ends, attr.size or (None, None), strict=True):
                if counts.get(node_type) is not None and count is not None and count != counts[node_type]:
                    found = f"{counts[node_type]} and {count}"
                    raise ValueError(
                        f"data: expected as many nodes{_of(node_type)} in all edges, found {found}; put edges with "
                        f"their size"
                    )
                counts[node_type] = count if counts.get(node_type) is None else counts[node_type]
        for attr in named:
            if attr.group_name in counts and counts[attr.group_name] is None:
                size = self.features.get_tensor_size(attr)
                counts[attr.group_name] = None if size is None else size[0]
        return counts

    def edges(self) -> dict[EdgeType | None, CSC]:
        if isinstance(self.graph, GraphStore):
            return {edge_type: self.graph.relation(edge_type) for edge_type in self.edge_types}
        ours = GraphStore()  # converts any layout, stably, so that a graph gives the same samples from any store
        for edge_type in self.edge_types:
            attrs = [attr for attr in self.attrs if attr.edge_type == edge_type]
            attr = min(attrs, key=lambda attr: _PREFERRED.index(attr.layout))
            ours.put_edge_index(self.graph.get_edge_index(attr), copy.copy(attr))
        return {edge_type: ours.relation(edge_type) for edge_type in self.edge_types}

    def of_nodes(self, name: str, sizes: dict) -> dict[NodeType | None, Tensor]:
        if self.is_hetero:
            return self._groups(name, lambda group: isinstance(group, str))
        # An attribute of a homogeneous graph has the edges' group or it does not; then PyG tells them apart by name.
        found = self._groups(name, lambda group: not isinstance(group, tuple))
        return _only({g: v for g, v in found.items() if name == "time" or len(v) == sizes[None]})

    def of_edges(self, name: str, edges: dict) -> dict[EdgeType | None, Tensor]:
        if self.is_hetero:
            return self._groups(name, lambda group: isinstance(group, tuple))
        found = self._groups(name, lambda group: isinstance(group, tuple))
        if not found:
            others = self._groups(name, lambda group: not isinstance(group, tuple))
            found = {} if name == "time" else {g: v for g, v in others.items() if len(v) == edges[None].num_edges}
        return _only(found)

    def _groups(self, name: str, wanted: Callable[[Any], bool]) -> dict:
        found = {}
        for attr in all_attrs(self.features):
            if attr.attr_name == name and wanted(attr.group_name):
                attr.index = None
                found[attr.group_name] = _tensor(name, self.features.get_tensor(attr))
        return found


def _only(found: dict) -> dict[None, Any]:
    """The attribute of a homogeneous graph, whatever its group is called."""
    return dict.fromkeys([None], next(iter(found.values()))) if found else {}


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: expected a tensor, found {type(value).__name__}")
    return value.detach().cpu()


def _of(type_name: Any) -> str:
    """Names a type in an error, where there are types."""
    return "" if type_name is None else f" of {type_name!r}"


def _known(counts: dict) -> dict:
    if missing := [node_type for node_type, count in counts.items() if count is None]:
        raise ValueError(f"data: expected it to know its number of nodes{_of(missing[0])}; set num_nodes")
    return counts


def _sizes(source: _Source, cscs: dict[EdgeType | None, CSC]) -> dict[NodeType | None, int]:
    """How many nodes each type has: what the data say, or else the largest id among its edges."""
    counts = source.num_nodes()
    if isinstance(source, _DataSource):
        return _known(counts)
    found: dict[NodeType | None, int] = {}
    for edge_type, csc in cscs.items():
        for node_type, count in zip(ends_of(edge_type), (csc.num_src, csc.num_dst), strict=True):
            found[node_type] = max(found.get(node_type, 0), count)
    return {node_type: found[node_type] if count is None else count for node_type, count in counts.items()}


# From the user's edges to those that are sampled #####################################################################


def _padded(csc: CSC, num_src: int, num_dst: int) -> CSC:
    """The same edges among so many nodes."""
    if csc.num_src > num_src or csc.num_dst > num_dst:
        raise ValueError(f"data: expected edges between {num_src} and {num_dst} nodes, found {csc}")
    if (csc.num_src, csc.num_dst) == (num_src, num_dst):
        return csc
    last = csc.colptr[-1:].expand(num_dst - csc.num_dst)
    return CSC(torch.cat([csc.colptr, last]), csc.row, csc.edge_id, num_src)


def _edge_ids(csc: CSC) -> Tensor:
    return torch.arange(csc.num_edges) if csc.edge_id is None else csc.edge_id.to(torch.int64)


def _with_weights(name: str, csc: CSC, weight: Tensor) -> tuple[CSC, Tensor, Tensor | None]:
    """The edges of positive weight, their weights as they are stored, and the ends of the others if there are any."""
    if weight.dtype == torch.bool or weight.is_complex():
        raise TypeError(f"{name}: expected real numbers, found {weight.dtype}")
    if weight.shape != (csc.num_edges,):
        raise ValueError(f"{name}: expected {csc.num_edges} weights, one an edge, found shape {tuple(weight.shape)}")
    if bool((wrong := ~(torch.isfinite(weight) & (weight >= 0))).any()):
        edge = int(wrong.nonzero()[0])
        raise ValueError(f"{name}: expected finite numbers of at least 0, found {weight[edge].item()} at edge {edge}")
    weight = weight[_edge_ids(csc)]
    kept = weight > 0
    if bool(kept.all()):
        return csc, weight, None
    left_out = torch.stack([csc.row[~kept].to(torch.int64), csc.col()[~kept]])
    before = torch.cat([torch.zeros(1, dtype=torch.int64), kept.cumsum(0)])
    return CSC(before[csc.colptr], csc.row[kept], _edge_ids(csc)[kept], csc.num_src), weight[kept], left_out


def _by_time(csc: CSC, time: Tensor, weight: Tensor | None) -> tuple[CSC, Tensor, Tensor | None]:
    """Edges in the order of time within each column, those of equal times in the order they had."""
    falls = time[1:] < time[:-1]
    falls[csc.colptr[1:-1][(csc.colptr[1:-1] > 0) & (csc.colptr[1:-1] < csc.num_edges)] - 1] = False
    if not bool(falls.any()):
        return csc, time, weight
    order = torch.argsort(time, stable=True)
    by_time = CSC.from_edge_index(torch.stack([csc.row[order], csc.col()[order]]), (csc.num_src, csc.num_dst))
    assert by_time.edge_id is not None
    order = order[by_time.edge_id.to(torch.int64)]
    by_time.edge_id.copy_(_edge_ids(csc)[order])  # beside the sources, as they are read
    return by_time, time[order], None if weight is None else weight[order]


def _times(
    source: _Source, name: str, sizes: dict, cscs: dict
) -> tuple[dict[NodeType | None, Tensor] | None, dict[EdgeType | None, Tensor] | None]:
    """Times of nodes or of edges, by type."""
    of_nodes, of_edges = source.of_nodes(name, sizes), source.of_edges(name, cscs)
    if of_nodes and of_edges and of_nodes.get(None) is of_edges.get(None) is not None:
        # As long as both: of nodes in a Data, as PyG has it, and of edges in a store, where those of nodes are "time".
        of_nodes, of_edges = (of_nodes, {}) if isinstance(source, _DataSource) else ({}, of_edges)
    if of_nodes and of_edges:
        raise ValueError(
            f"time_attr={name!r}: expected times of nodes or of edges, found both: {[*of_nodes, *of_edges]}"
        )
    if not of_nodes and not of_edges:
        raise ValueError(f"time_attr={name!r}: expected it to be an attribute of nodes or edges, found neither")
    for types, found in ((sizes, of_nodes), (cscs, of_edges)):
        for type_name, time in found.items():
            if type_name not in types:
                raise ValueError(f"time_attr={name!r}: expected a type of {list(types)}, found {type_name!r}")
            count = types[type_name] if types is sizes else types[type_name].num_edges
            check_times(f"time_attr={name!r}{_of(type_name)}", time, count)
    return of_nodes or None, of_edges or None
