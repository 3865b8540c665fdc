"""A graph of which every rank holds the columns of its part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout
from torch_geometric.sampler.base import DataType
from torch_geometric.typing import EdgeType, NodeType
from typing_extensions import override

from .. import ops
from ..partition import StoredPart, StoredParts
from ..sampler.executor import Executor, LayerOptions, SampledStore
from ..sampler.graph import Relation, SampledGraph, check_exact, check_times, end_types
from ..sampler.relations import StoreSource, of_type, prepared_edges
from ..topology import CSC
from .layerwise_sampling import GridLayers, OwnersLayers
from .neighbor_sampling import PartitionedExecutor, not_implemented


def numbering_of(parts: StoredParts) -> PartNumbering | None:
    """The numbering of the stores of a part; None with a single part, whose stored ids are the user's."""
    return None if parts.book.num_parts == 1 else PartNumbering(parts)


class PartNumbering:
    """The numbering of a partitioned graph, a :class:`torch_gnnscale.topology.reorder.Numbering`.

    The user's ids become stored ones by a table in a mapped file; the way back, ``n_id``, comes with the rows.
    """

    def __init__(self, parts: StoredParts) -> None:
        self._parts = parts

    def to_stored(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """User ids to stored ids: int64, the shape of ``ids``. IndexError for ids that are no nodes."""
        return self._parts.to_stored(ids.to(torch.int64), node_type)

    def to_user(self, ids: Tensor, node_type: NodeType | None = None) -> None:
        """None: the feature store has the user ids as an attribute ``n_id``."""

    def to(self, device: torch.device) -> PartNumbering:
        """The numbering on a device; seeds are mapped on the CPU."""
        return self

    def equals(self, other: Any) -> bool:
        """Whether ``other`` is the numbering of the same parts."""
        return isinstance(other, PartNumbering) and other._parts.fingerprint == self._parts.fingerprint


@dataclass(eq=False)
class PartRelation(Relation):
    """The columns of a part's nodes. Sources are of all parts."""

    edges_of_all: int = 0
    """The number of edges in all parts, those of weight 0 included."""
    degree_of_all: int = 0
    """The largest number of edges that lead to a node of any part."""

    @property
    def num_edges(self) -> int:
        """The number of edges in all parts."""
        return self.edges_of_all

    @property
    def largest_degree(self) -> int:
        """The largest degree in all parts."""
        return self.degree_of_all

    @property
    def id_bound(self) -> int:
        """All ids of edges, in all parts, are below it."""
        return self.edges_of_all


class PartGraph(SampledGraph):
    """A graph whose columns are those of this rank's part; ``sizes`` are those of all parts."""

    problem: Exception | None = None
    """What is wrong with the edges of this part alone: all ranks raise it together."""

    def _checked(self) -> ops.Relations:
        cscs, types = [relation.csc for relation in self.relations], range(len(self.node_types))
        ends = [list(map(self.node_index, end_types(edge_type))) for edge_type in self.edge_types]
        own = [0] * len(self.node_types)
        for csc, (_, dst) in zip(cscs, ends, strict=True):
            own[dst] = csc.num_dst
        return ops.relations(  # the nodes of this part are types of their own, after those of all parts
            [csc.colptr for csc in cscs], [csc.row for csc in cscs], edge_id=[csc.edge_id for csc in cscs],
            weight=[relation.weight for relation in self.relations],
            time=[relation.time for relation in self.relations], src_type=[src for src, _ in ends],
            dst_type=[len(types) + dst for _, dst in ends], sizes=[*self.sizes, *own],
        )  # fmt: skip


class PartitionedGraphStore(SampledStore):
    """A GraphStore of which this rank holds one part: the edges that lead to its nodes.

    :class:`torch_gnnscale.NeighborLoader` samples it, in steps that all ranks take together: 2 rounds per hop, of which
    the first hop's are left out where all seeds are of the rank's own part. Nothing else returns edges.

    Args:
        parts, part: the opened files.
    """

    order: PartNumbering | None
    """Leads from the user's ids to the stored ones."""

    def __init__(self, parts: StoredParts, part: StoredPart) -> None:
        super().__init__()
        state = self.__dict__
        state["parts"], state["part"], state["order"] = parts, part, numbering_of(parts)

    @override
    def sampled_graph(
        self, features: PyGFeatureStore, *, time_attr: str | None, weight_attr: str | None, backward: bool
    ) -> PartGraph:
        if backward:
            raise not_implemented("sample_direction='backward'")
        weights, of_edges = self._of_own_edges(weight_attr), self._of_own_edges(time_attr)
        if weight_attr is not None and not weights:
            raise ValueError(f"weight_attr={weight_attr!r}: expected an attribute of edges, found none of this name")
        of_nodes = {} if time_attr is None else self._of_all_nodes(time_attr)
        if time_attr is not None and bool(of_edges) == bool(of_nodes):
            found = "both" if of_nodes else "none of this name"
            raise ValueError(f"time_attr={time_attr!r}: expected an attribute of nodes or edges, found {found}")
        floating = any(time.is_floating_point() for time in (of_nodes | of_edges).values())
        for node_type, times in of_nodes.items():
            name = f"time_attr={time_attr!r}{of_type(node_type)}"
            check_times(name, times, len(times))
            if floating:
                check_exact(name, times, "other times of the graph")
        relations: list[Relation] = []
        problem: Exception | None = None
        for edge_type in self.parts.book.edge_bounds:
            weight, time = weights.get(edge_type), of_edges.get(edge_type)
            of_src = of_nodes.get(end_types(edge_type)[0])
            try:
                self._check_times_of_edges(time_attr, edge_type, time, floating)
                relation = self._relation(edge_type, weight_attr, weight, of_src, time, floating)
            except (TypeError, ValueError) as error:
                problem, count = problem or error, self.part.relations[edge_type].num_edges
                ones, zeros = torch.ones(count), torch.zeros(count)  # in their place, for the options
                weight, time = None if weight is None else ones, None if time is None else zeros
                relation = self._relation(edge_type, weight_attr, weight, of_src, time, floating)
            relations.append(relation)
        sizes = {of: self.parts.book.num_nodes(of) for of in StoreSource(features, self).num_nodes()}
        graph = PartGraph(
            DataType.remote, list(sizes), list(sizes.values()), relations, False, of_nodes or None, of_edges or None,
            floating,
        )  # fmt: skip
        graph.problem = problem
        return graph

    def _check_times_of_edges(
        self, name: str | None, edge_type: EdgeType | None, time: Tensor | None, floating: bool
    ) -> None:
        """Raises TypeError or ValueError for malformed times of this part's edges."""
        if time is not None:
            name = f"{self._file_of(name, edge_type)}time_attr={name!r}{of_type(edge_type)}"
            check_times(name, time, self.part.relations[edge_type].num_edges)
            if floating:
                check_exact(name, time, "other times of the graph")

    def _relation(
        self, edge_type: EdgeType | None, weight_attr: str | None, weight: Tensor | None, of_src: Tensor | None,
        of_edges: Tensor | None, floating: bool,
    ) -> PartRelation:  # fmt: skip
        """This part's edges of a type, with their weights and times, of sources or of edges."""
        stored, book = self.part.relations[edge_type], self.parts.book
        name = f"{self._file_of(weight_attr, edge_type)}weight_attr={weight_attr!r}{of_type(edge_type)}"
        positions = CSC(stored.colptr, stored.row, None, stored.num_src)
        csc, weight, time, _ = prepared_edges(positions, name, weight, of_src, of_edges, floating)
        edge_id = stored.edge_id
        if edge_id is not None and csc.edge_id is not None:
            edge_id = edge_id[csc.edge_id.to(torch.int64)]
        return PartRelation(
            edge_type, CSC(csc.colptr, csc.row, edge_id, csc.num_src), weight, time, None, csc.row is stored.row,
            edges_of_all=book.num_edges(edge_type), degree_of_all=self.parts.largest_degree[edge_type],
        )  # fmt: skip

    def executor(self, graph: SampledGraph, device: torch.device, options: LayerOptions | None = None) -> Executor:
        """As :meth:`SampledStore.executor`: on the CPU, by the ranks together."""
        if device.type != "cpu":
            raise not_implemented(f"device={str(device)!r}")
        assert isinstance(graph, PartGraph)
        of_part = graph, self.parts.book, self.part.number, graph.problem
        if options is None:
            return PartitionedExecutor(*of_part)
        return (OwnersLayers if options.drawing.method == "labor" else GridLayers)(*of_part, options)

    def _of_own_edges(self, name: str | None) -> dict[EdgeType | None, Tensor]:
        """An attribute of this part's edges by type, in the order of its relations."""
        rows = self.part.rows
        return {of: rows[_group(of), name] for of in self.parts.book.edge_bounds if name and (_group(of), name) in rows}

    def _file_of(self, name: str | None, edge_type: EdgeType | None) -> str:
        """The file of an attribute of this part's edges, for errors; "" if there is none."""
        folder, _, array = self.part.origins.get((_group(edge_type), name), ("", "", ""))
        return f"{folder}/{array}.npy: " if array else ""

    def _of_all_nodes(self, name: str) -> dict[NodeType | None, Tensor]:
        """An attribute of the nodes of all parts by type and stored id.

        Raises:
            ValueError: it is stored in parts only.
        """
        known = [node_type for node_type in self.parts.book.bounds if (node_type, name) in self.part.rows]
        if any((node_type, name) not in self.parts.graph_attrs for node_type in known):
            raise ValueError(
                f"time_attr={name!r}: expected times of all nodes, found them in parts; they are to be named when the "
                f"parts are written: graph_attrs=[{name!r}]"
            )
        return {node_type: self.parts.graph_attrs[node_type, name] for node_type in known}

    # PyG's abstract methods ##########################################################################################

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """The relations between the nodes of all parts, in CSC."""
        book = self.parts.book
        return [
            EdgeAttr(of, EdgeLayout.CSC, is_sorted=True, size=tuple(map(book.num_nodes, end_types(of))))
            for of in book.edge_bounds
        ]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> NoReturn:
        raise RuntimeError(
            f"edges: expected a graph that one process has, found part {self.part.number} of a partitioned one; "
            f"torch_gnnscale.NeighborLoader samples it, in steps that all ranks take together"
        )

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        raise NotImplementedError("edges of a partitioned graph do not change; write the parts again")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        raise NotImplementedError("edges of a partitioned graph do not change; write the parts again")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(part {self.part.number} of {self.parts.book.num_parts})"


def _group(edge_type: EdgeType | None) -> Any:
    """The group of rows of edges of a type."""
    return (None, None) if edge_type is None else edge_type
