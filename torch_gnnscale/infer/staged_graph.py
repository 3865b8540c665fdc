"""A whole graph, read as batches of nodes with all edges into them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import BaseData

from .. import ops
from ..feature.contract import is_collective
from ..loader.fields import EdgeLayouts, has_own_values, storage_of
from ..loader.given_data import given_data
from ..loader.row_source import Bounds
from ..sampler.graph import GraphTypes, end_types
from ..sampler.minibatch import NO_EDGES, MiniBatch, SampledEdges
from ..sampler.on_executor import write_sample
from ..sampler.relations import sampled_graph
from ..topology import CSC

Key = tuple[Any, str]
"""Type and name of an attribute; the only type of a homogeneous graph is None."""
ALL, NONE = slice(None), slice(0)
"""Which edges into some nodes are read: all of them, or none."""
_OF_NODES = {"x", "y", "feat", "pos", "batch", "n_id"}
"""These attributes are of nodes, though their names do not say so."""
_COO = EdgeLayouts("coo")
_FANOUTS, _FANOUTS_OF_TYPES = [3, 2, 2, 2], [2, 1, 1, 1]
"""Of the small part of a graph on which a model is looked at, without and with types."""


class InEdges(NamedTuple):
    """The edges of one type into some nodes, sorted by destination."""

    ptr: Tensor
    """int64, [n + 1]: edges ptr[i]..ptr[i + 1] - 1 lead to node i."""
    source: Tensor
    """Stored ids of the sources, [e]."""
    edge_id: Tensor
    """The user's ids of the edges: int64, [e]."""


class OneHop(NamedTuple):
    """Nodes and all of their neighbors; dictionaries are by type."""

    seeds: dict[Any, Tensor]
    """Stored ids of the nodes, each once."""
    nodes: dict[Any, Tensor]
    """Stored ids of the seeds, then of the sources of edges into them that are no seeds."""
    edges: dict[Any, SampledEdges]
    """Their ends are positions in ``nodes``, sorted by destination."""


class StandIn(NamedTuple):
    """Stands in for rows that nothing reads."""

    shape: tuple[int, ...]
    """Of a row."""
    dtype: torch.dtype
    of_edges: bool = False
    """Whether there is a row for each edge, and not for each node."""

    def rows(self, count: int) -> Tensor:
        """Rows of NaN, of an integer type of 0, which models may write to: [count, ...]."""
        value = float("nan") if self.dtype.is_floating_point or self.dtype.is_complex else 0
        return torch.full((count, *self.shape), value, dtype=self.dtype)


class StagedGraph:
    """The nodes of a graph that this process computes in each stage, the edges into them, and their rows.

    Args:
        data: a Data, a HeteroData or a (FeatureStore, GraphStore) pair.
        columns: by edge type, the edges into these nodes; their sources are stored ids of the graph.
        sizes: by type, the number of these nodes, whose stored ids are consecutive.
        all_sizes: by type, the number of nodes of the graph.
        first: by type, the first stored id of these nodes.
    """

    def __init__(
        self, data: Any, columns: dict[Any, CSC], sizes: dict[Any, int], all_sizes: dict[Any, int],
        first: dict[Any, int],
    ) -> None:  # fmt: skip
        self.columns, self.sizes, self.all_sizes, self.first = columns, sizes, all_sizes, first
        self.hetero = None not in sizes
        self._data = data
        given = given_data(data)
        self._rows: Any = given.rows()
        self.order, self._of_stores = given.numbering, bool(given.stores)

    def stored_ids(self, ids: Tensor, node_type: Any) -> Tensor:
        """The stored ids of the user's nodes."""
        return ids if self.order is None else self.order.to_stored(ids, node_type)

    def user_ids(self, ids: Tensor, node_type: Any) -> Tensor:
        """The user's ids of stored nodes."""
        if self.order is None:
            return ids
        found = self.order.to_user(ids, node_type)
        return self.rows({node_type: ids}, (node_type, "n_id")) if found is None else found

    def is_unclear(self, name: str) -> bool:
        """Whether an attribute of a Data can be of nodes as well as of edges, for it has as many of both, and a name
        that does not tell."""
        if self.hetero or self._of_stores or "edge" in name or "node" in name or name in _OF_NODES:
            return False
        return all(self.sizes[None] == csc.num_edges for csc in self.columns.values())

    # Edges ###########################################################################################################

    def largest_degree(self, node_type: Any, node: Tensor) -> int:
        """The largest number of edges of one type into a node, given as a vector of one stored id."""
        return max((int(self.degrees(t, node)) for t in self.columns if end_types(t)[1] == node_type), default=0)

    def degrees(self, edge_type: Any, ids: Tensor) -> Tensor:
        """The number of edges of a type into each of some nodes, given by stored ids: int64, [n]."""
        colptr, at = self.columns[edge_type].colptr, self._columns_of(edge_type, ids)
        return colptr[at + 1] - colptr[at]

    def _columns_of(self, edge_type: Any, ids: Tensor) -> Tensor:
        return ids - self.first[end_types(edge_type)[1]]

    def edges_into(self, edge_type: Any, ids: Tensor, piece: slice = ALL) -> InEdges:
        """The edges of a type into nodes, given by rising stored ids. ``piece``: of a single node, which of them."""
        csc, count = self.columns[edge_type], len(ids)
        if count == 0:
            none = torch.empty(0, dtype=torch.int64)
            return InEdges(torch.zeros(1, dtype=torch.int64), none, none)
        ids = self._columns_of(edge_type, ids)
        first, last = int(ids[0]), int(ids[-1])
        if last - first + 1 == count:  # consecutive: a slice of the columns
            ptr = csc.colptr[first : last + 2]
            begin, end = int(ptr[0]), int(ptr[-1])
            if piece is not ALL:
                first, last, _ = piece.indices(end - begin)
                ptr = torch.tensor([begin + first, begin + last])
                begin, end = ptr.tolist()
            edge_id = torch.arange(begin, end) if csc.edge_id is None else csc.edge_id[begin:end]
            return InEdges(ptr - begin, csc.row[begin:end], edge_id.to(torch.int64))
        column = csc.colptr[ids]
        degree = csc.colptr[ids + 1] - column
        ptr = torch.zeros(count + 1, dtype=torch.int64)
        torch.cumsum(degree, 0, out=ptr[1:])
        place = torch.arange(int(ptr[-1])) + torch.repeat_interleave(column - ptr[:-1], degree)
        return InEdges(ptr, csc.row[place], (place if csc.edge_id is None else csc.edge_id[place]).to(torch.int64))

    def one_hop(self, seeds: Mapping[Any, Tensor], piece: slice = ALL) -> OneHop:
        """Nodes, given by rising stored ids, and all edges into them.

        ``piece``: :data:`NONE` for no edges; of a single node, which of the edges of each type.
        """
        seeds = {node_type: seeds.get(node_type, torch.empty(0, dtype=torch.int64)) for node_type in self.sizes}
        into = {}
        for edge_type in self.columns:
            ids = seeds[end_types(edge_type)[1]]
            into[edge_type] = self.edges_into(edge_type, ids[:0] if piece is NONE else ids, piece)
        local: dict[Any, Tensor] = {}
        nodes = {}
        for node_type, known in seeds.items():
            types = [edge_type for edge_type in into if end_types(edge_type)[0] == node_type]
            sources = [into[edge_type].source for edge_type in types]
            joined = sources[0] if len(sources) == 1 else torch.cat([known[:0], *(s.to(torch.int64) for s in sources)])
            found = ops.relabel(known, joined)
            nodes[node_type] = torch.cat([known, found.node])
            local |= dict(zip(types, found.local.split([len(s) for s in sources]), strict=True))
        return OneHop(seeds, nodes, {t: _sampled(e, local[t], len(seeds[end_types(t)[1]])) for t, e in into.items()})

    # Rows ############################################################################################################

    def rows(self, nodes: Mapping[Any, Tensor], key: Key) -> Any:
        """The rows of one attribute of nodes, given by stored ids and type."""
        part = self._part(dict(nodes), {edge_type: NO_EDGES for edge_type in self.columns})
        return storage_of(self._batch(part, lambda other: other == key), key[0])[key[1]]

    def batch(self, hop: OneHop, without: Mapping[Key, StandIn]) -> Data | HeteroData:
        """What a model is called with: the rows of the seeds, as if they were the whole graph, and all edges into them.

        ``edge_index`` refers to ``hop.nodes``, of which only the first rows are there. ``n_id``, ``e_id`` and
        ``batch_size`` are added where the graph has no attributes of these names.

        Args:
            hop: from :meth:`one_hop`.
            without: attributes that are not read, and what stands in for their rows.
        """
        batch = self._batch(self._part(hop.seeds, hop.edges), lambda key: key not in without)
        for (of, name), stand_in in without.items():
            count = hop.edges[of].edge_index.size(1) if stand_in.of_edges else len(hop.seeds[of])
            storage_of(batch, of)[name] = stand_in.rows(count)
        self._put_ids(batch, hop.seeds, hop.edges)
        return batch

    def _put_ids(
        self, batch: Data | HeteroData, nodes: Mapping[Any, Tensor], edges: Mapping[Any, SampledEdges]
    ) -> None:
        for node_type, ids in nodes.items():
            store = storage_of(batch, node_type)
            store.num_nodes = store.batch_size = len(ids)
            if "n_id" not in store:
                store.n_id = self.user_ids(ids, node_type)
        for edge_type, of_type in edges.items():
            store = storage_of(batch, edge_type)
            if "e_id" not in store:
                store.e_id = of_type.edge_id

    def _part(self, nodes: dict[Any, Tensor], edges: dict[Any, SampledEdges]) -> MiniBatch:
        types = GraphTypes(list(nodes), list(edges))
        types.hetero = self.hetero
        part = MiniBatch()
        part.types, part.nodes, part.edges = types, list(nodes.values()), list(edges.values())
        return part

    def _batch(self, part: MiniBatch, wanted: Callable[[Key], bool]) -> Data | HeteroData:
        rows = self._rows.fetch(part, Bounds(), wanted=lambda key: wanted(key if self.hetero else (None, key[1])))
        return self._rows.batch(part, rows, _COO)

    # A part to look at ###############################################################################################

    def small(self) -> Data | HeteroData:
        """A small graph: the ends of some edges, a few neighbors around them, and their rows. A homogeneous one has not
        as many nodes as edges, so that numbers of rows tell the rows of nodes."""
        most = max(1, 64 // max(len(self.columns), 1))
        for count in range(min(4, most), most + 5):
            part = self._drawn(self._seeds(count))
            if self.hetero or len(part.nodes[0]) != part.edges[0].edge_index.size(1):
                break
        batch = self._rows.batch(part, self._fetched(part), _COO)
        types = part.types
        self._put_ids(
            batch, dict(zip(types.nodes, part.nodes, strict=True)), dict(zip(types.edges, part.edges, strict=True))
        )
        return batch

    def _seeds(self, count: int) -> list[Tensor]:
        """By type, the destinations of ``count`` edges of each relation, evenly spaced, and a few other nodes."""
        seeds: dict[Any, list[Tensor]] = {node_type: [] for node_type in self.sizes}
        for edge_type, csc in self.columns.items():
            edges = torch.arange(min(count, csc.num_edges)) * (csc.num_edges // count or 1)
            seeds[end_types(edge_type)[1]].append(torch.searchsorted(csc.colptr, edges, right=True) - 1)
        for node_type, size in self.sizes.items():
            seeds[node_type].append(torch.arange(min(size, 2)))
        return [torch.unique(torch.cat(found)) + self.first[node_type] for node_type, found in seeds.items()]

    @property
    def _fanouts(self) -> list[list[int]]:
        fanouts = _FANOUTS if len(self.columns) == 1 else _FANOUTS_OF_TYPES
        return [fanouts] * len(self.columns)

    def _drawn(self, seeds: list[Tensor]) -> MiniBatch:
        """A sample around nodes, given by type."""
        raise NotImplementedError

    def _fetched(self, part: MiniBatch) -> Any:
        """The rows of all attributes of a sample, as :meth:`RowSource.fetch` returns them."""
        return self._rows.fetch(part, Bounds())


class WholeGraph(StagedGraph):
    """A graph that is read by one process.

    Args:
        data: a Data, a HeteroData or a (FeatureStore, GraphStore) pair.

    Raises:
        TypeError, ValueError, IndexError: data of another kind; a malformed graph.
        NotImplementedError: stores of others that several ranks read together, data on another device, values of
            ``adj_t``.
    """

    def __init__(self, data: Any) -> None:
        if isinstance(data, (tuple, list)) and any(is_collective(store) for store in data):
            raise NotImplementedError(
                "data: inference with stores that several ranks read together is implemented for those of open_part "
                "alone; open the whole graph in one process, or give each rank a loader of its own nodes"
            )
        if isinstance(data, BaseData):
            _check_stores(data)
        self._graph = graph = sampled_graph(data)
        columns = {relation.edge_type: relation.csc for relation in graph.relations}
        sizes = graph.bounds()
        super().__init__(data, columns, sizes, sizes, dict.fromkeys(sizes, 0))

    def _drawn(self, seeds: list[Tensor]) -> MiniBatch:
        sample = ops.sample_neighbors(self._graph.stored, seeds, self._fanouts, key=0)
        write_sample(batch := MiniBatch(), sample, self._graph)
        return batch


def _check_stores(data: Any) -> None:
    for store in data.stores:
        of = "data" if store._key is None else f"data[{store._key!r}]"
        for name, value in store.items():
            if isinstance(value, Tensor) and value.device.type != "cpu":
                raise NotImplementedError(
                    f"{of}.{name}: inference with data on {value.device} is not implemented; use data.cpu()"
                )
        if has_own_values(store):
            raise NotImplementedError(
                f"{of}.adj_t: inference with its values is not implemented, for batches have edge_index; make them an "
                f"attribute of edges"
            )


def _sampled(edges: InEdges, source: Tensor, num_dst: int) -> SampledEdges:
    ptr, _, edge_id = edges
    dst = torch.repeat_interleave(ptr.diff(), output_size=len(source)) if len(ptr) > 1 else source
    pointer = ptr if len(ptr) == num_dst + 1 else torch.zeros(num_dst + 1, dtype=torch.int64)
    return SampledEdges(torch.stack([source, dst]), pointer, edge_id)
