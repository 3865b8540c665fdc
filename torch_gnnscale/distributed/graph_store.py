"""A graph of which every rank holds the columns of its part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout
from torch_geometric.sampler.base import DataType

from .. import ops
from ..partition import StoredPart, StoredParts
from ..partition.part_numbering import PartNumbering, numbering_of
from ..sampler.executor import LayerExecutor, LayerOptions, SampledStore
from ..sampler.graph import Relation, SampledGraph, check_times
from ..sampler.relations import prepared_edges
from ..topology import CSC
from .layerwise_grid import GridLayers
from .layerwise_sampling import OwnersLayers
from .neighbor_sampling import PartitionedExecutor, not_implemented


@dataclass(eq=False)
class PartRelation(Relation):
    """The columns of a part's nodes. Sources are of all parts."""

    edges_of_all: int = 0
    """The number of edges in all parts, those of weight 0 included."""
    degree_of_all: int = 0
    """The largest number of edges that lead to a node of any part."""

    @property
    def num_edges(self) -> int:
        """See :meth:`Relation.num_edges`: in all parts."""
        return self.edges_of_all

    @property
    def largest_degree(self) -> int:
        """See :meth:`Relation.largest_degree`: in all parts."""
        return self.degree_of_all

    @property
    def id_bound(self) -> int:
        """See :meth:`Relation.id_bound`: in all parts."""
        return self.edges_of_all


class PartGraph(SampledGraph):
    """A graph of one relation whose columns are those of this rank's part."""

    problem: Exception | None = None
    """What is wrong with the edges of this part alone: all ranks raise it together."""

    def _checked(self) -> ops.Relations:
        (relation,) = self.relations
        csc = relation.csc
        return ops.relations(
            [csc.colptr], [csc.row], edge_id=[csc.edge_id], weight=[relation.weight], time=[relation.time],
            src_type=[0], dst_type=[1], sizes=[self.sizes[0], csc.num_dst],
        )  # fmt: skip


class PartitionedGraphStore(SampledStore):
    """A GraphStore of which this rank holds one part: the edges that lead to its nodes.

    :class:`torch_gnnscale.NeighborLoader` samples it, in steps that all ranks take together: 2 rounds per hop, of which
    the first hop's are left out where all seeds are of the rank's own part. Nothing else returns edges.

    Args:
        parts, part: the opened files, of a homogeneous graph.

    Raises:
        NotImplementedError: the graph has types.
    """

    order: PartNumbering | None
    """Leads from the user's ids to the stored ones."""

    def __init__(self, parts: StoredParts, part: StoredPart) -> None:
        super().__init__()
        if parts.hetero:
            raise not_implemented("types of nodes and edges")
        state = self.__dict__
        state["parts"], state["part"], state["order"] = parts, part, numbering_of(parts)

    def sampled_graph(
        self, features: PyGFeatureStore, *, time_attr: str | None, weight_attr: str | None, backward: bool
    ) -> PartGraph:
        """See :meth:`SampledStore.sampled_graph`."""
        if backward:
            raise not_implemented("sample_direction='backward'")
        weight, of_edges = self._of_own_edges(weight_attr), self._of_own_edges(time_attr)
        if weight_attr is not None and weight is None:
            raise ValueError(f"weight_attr={weight_attr!r}: expected an attribute of edges, found none of this name")
        of_nodes = None if time_attr is None else self._of_all_nodes(time_attr)
        if time_attr is not None and (of_edges is None) == (of_nodes is None):
            found = "none of this name" if of_nodes is None else "both"
            raise ValueError(f"time_attr={time_attr!r}: expected an attribute of nodes or edges, found {found}")
        time = of_edges if of_nodes is None else of_nodes
        floating = time is not None and time.is_floating_point()
        stored, problem = self.part.relations[None], None
        positions = CSC(stored.colptr, stored.row, None, stored.num_src)
        try:
            if time is not None:
                check_times(f"{self._file_of(time_attr)}time_attr={time_attr!r}", time, len(time))
            name = f"{self._file_of(weight_attr)}weight_attr={weight_attr!r}"
            made = prepared_edges(positions, name, weight, of_nodes, of_edges, floating)
        except (TypeError, ValueError) as error:
            problem = error
            ones, zeros = torch.ones(stored.num_edges), torch.zeros(stored.num_edges)  # in their place, for the options
            made = prepared_edges(
                positions, "", None if weight is None else ones, None, None if time is None else zeros, floating
            )
        csc, edge_id = made.csc, stored.edge_id
        if edge_id is not None and csc.edge_id is not None:
            edge_id = edge_id[csc.edge_id.to(torch.int64)]
        relation = PartRelation(
            None, CSC(csc.colptr, csc.row, edge_id, csc.num_src), made.weight, made.time, None, csc.row is stored.row,
            edges_of_all=self.parts.book.num_edges(), degree_of_all=self.parts.largest_degree[None],
        )  # fmt: skip
        graph = PartGraph(
            DataType.remote, [None], [self.parts.book.num_nodes()], [relation], False,
            None if of_nodes is None else {None: of_nodes}, None if of_edges is None else {None: of_edges}, floating,
        )  # fmt: skip
        graph.problem = problem
        return graph

    def executor(self, graph: SampledGraph, device: torch.device) -> PartitionedExecutor:
        """See :meth:`SampledStore.executor`."""
        if device.type != "cpu":
            raise not_implemented(f"device={str(device)!r}")
        assert isinstance(graph, PartGraph)
        return PartitionedExecutor(graph, self.parts.book, self.part.number, graph.problem)

    def layer_executor(self, graph: SampledGraph, options: LayerOptions) -> LayerExecutor:
        """See :meth:`SampledStore.layer_executor`."""
        assert isinstance(graph, PartGraph)
        made = OwnersLayers if options.drawing.method == "labor" else GridLayers
        return made(graph, self.parts.book, self.part.number, graph.problem, options)

    def _of_own_edges(self, name: str | None) -> Tensor | None:
        """An attribute of this part's edges, in the order of its relation; None if there is none."""
        return None if name is None else self.part.rows.get(((None, None), name))

    def _file_of(self, name: str | None) -> str:
        """The file of an attribute of this part's edges, for errors; "" if there is none."""
        folder, _, array = self.part.origins.get(((None, None), name), ("", "", ""))
        return f"{folder}/{array}.npy: " if array else ""

    def _of_all_nodes(self, name: str) -> Tensor | None:
        """An attribute of the nodes of all parts by stored id; None if there is none.

        Raises:
            ValueError: it is stored in parts only.
        """
        if (None, name) not in self.part.rows:
            return None
        if (None, name) not in self.parts.graph_attrs:
            raise ValueError(
                f"time_attr={name!r}: expected times of all nodes, found them in parts; they are to be named when the "
                f"parts are written: graph_attrs=[{name!r}]"
            )
        return self.parts.graph_attrs[None, name]

    # PyG's abstract methods ##########################################################################################

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """The relation between the nodes of all parts, in CSC."""
        count = self.parts.book.num_nodes()
        return [EdgeAttr(None, EdgeLayout.CSC, is_sorted=True, size=(count, count))]

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
