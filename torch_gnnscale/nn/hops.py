"""What a batch says of its seeds, nodes and relations, with types or without; its hops, and the edges that each layer
of a model needs of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData

from .. import ops
from .._private import column_pointer
from .aggregate import Bipartite

NodeType = str | None
"""Of a node; None in a batch of a homogeneous graph, which is one of a single type and a single relation."""
EdgeType = tuple[str, str, str] | None
"""Of an edge; None as for nodes."""


def check_batch(batch: Any) -> None:
    """Raises TypeError for what is neither a Data nor a HeteroData, and ValueError for PyG's Batch, whose
    ``batch_size`` is a number of graphs."""
    if not isinstance(batch, (Data, HeteroData)):
        raise TypeError(f"batch: expected a Data or a HeteroData of a loader, found {type(batch).__name__}")
    if isinstance(batch, Batch):
        raise ValueError(
            "batch: expected a batch of a loader, found a torch_geometric.data.Batch, whose batch_size is its number "
            "of graphs; this package's loaders make a Data of it"
        )


def node_stores(batch: Any) -> Mapping[NodeType, Any]:
    """By type, what holds the fields of a batch's nodes; of a homogeneous graph that is its only storage."""
    return batch._node_store_dict if isinstance(batch, HeteroData) else {None: batch._store}


def num_seeds(batch: Any) -> dict[NodeType, int]:
    """The number of a batch's seeds, which are its first nodes, by node type, for the types that have seeds. Of links
    these are the ends, each once, or once per tree. Raises what :func:`check_batch` does."""
    check_batch(batch)
    found: dict[NodeType, int] = {}
    for node_type, store in node_stores(batch).items():
        fields = store._mapping  # to look at: the store's own methods take longer
        size = fields.get("batch_size")
        size = fields.get("num_sampled_nodes", (0,))[0] if size is None else size
        if size or node_type is None:
            found[node_type] = size
    return found


def has_links(batch: Any) -> bool:
    """Whether the seeds of a batch of one type are ends of links."""
    return "edge_label_index" in batch or "src_index" in batch


def relations_of(batch: Any) -> dict[EdgeType, Any]:
    """By relation, what holds ``edge_index`` and ``num_sampled_edges``; of a homogeneous graph that is its only
    storage. A relation of links alone, whose storage has no edges, is left out."""
    if not isinstance(batch, HeteroData):
        return {None: batch._store}
    stores = batch._edge_store_dict
    return {key: store for key, store in stores.items() if "edge_index" in store._mapping or _has_edges(store)}


def _has_edges(store: Any) -> bool:
    """Whether a storage without ``edge_index`` has edges."""
    fields = store._mapping
    return "adj_t" in fields or any(fields.get("num_sampled_edges", ()))


class SampledNumbers(NamedTuple):
    """What a loader says of the hops of a batch, in lists."""

    nodes: dict[NodeType, list[int]]
    """``num_sampled_nodes`` by node type."""
    edges: dict[EdgeType, list[int]]
    """``num_sampled_edges`` by relation; there is one."""
    seeds: dict[NodeType, int]
    """What :func:`num_seeds` returns."""


def sampled_numbers(batch: Any) -> SampledNumbers | None:
    """The numbers of a batch; None unless all are lists and there are relations. Each store is looked at once: in small
    batches that takes longer than what is done with them."""
    nodes: dict[NodeType, Any] = {}
    edges: dict[EdgeType, Any] = {}
    seeds: dict[NodeType, int] = {}
    check_batch(batch)
    for node_type, store in node_stores(batch).items():
        fields = store._mapping
        if type(counts := fields.get("num_sampled_nodes")) is not list:
            return None
        nodes[node_type] = counts
        size = fields.get("batch_size")
        size = (*counts, 0)[0] if size is None else size
        if size or node_type is None:
            seeds[node_type] = size
    for edge_type, store in relations_of(batch).items():
        if type(counts := store._mapping.get("num_sampled_edges")) is not list:
            return None
        edges[edge_type] = counts
    return SampledNumbers(nodes, edges, seeds) if edges else None


def with_edges(num_edges: Mapping[EdgeType, Sequence[int]]) -> set[EdgeType | int]:
    """The relations, and the hops of any relation, that have edges."""
    found: set[EdgeType | int] = set()
    for key, counts in num_edges.items():
        if hops := [hop for hop, count in enumerate(counts) if count]:
            found.add(key)
            found.update(hops)
    return found


def device_of(batch: Any) -> torch.device:
    """The device of a batch's edges; the CPU if it has none."""
    for store in relations_of(batch).values():
        if isinstance(index := getattr(store, "edge_index", None), Tensor):
            return index.device
    return torch.device("cpu")


def first_rows(x: Tensor, count: int) -> Tensor:
    """``x[:count]``, or x itself if it has no other rows: the gradient of a slice is a copy."""
    return x if x.size(0) == count else x[:count]


def seed_rows(
    out: Any, batch: Any, returned: Mapping[NodeType, int], seeds: dict[NodeType, int] | None = None
) -> Any:  # fmt: skip
    """What a model returns, without the rows of other nodes than a batch's seeds, which are the first ones. Of a
    dictionary by node type, the types that have seeds are left, and types whose ``batch_size`` is 0, with no rows. If
    several types have seeds, a tensor is returned as it is.

    Args:
        out: of the model.
        batch: the batch.
        returned: by node type, of how many first groups its layers have returned rows, at least; a type that is missing
            has all of its rows.
        seeds: what :func:`num_seeds` returns, if it is known.

    Raises:
        TypeError: it is neither.
        ValueError: there are not as many rows as nodes in some first groups, or no rows of a type that has seeds. A
            tensor that may be something else than rows of these nodes, scores of links or rows of another type, has as
            many rows as layers returned.
    """
    if seeds is None:
        seeds = num_seeds(batch)
    if isinstance(out, Tensor):
        if len(seeds) != 1:
            return out
        ((key, count),) = seeds.items()
        groups = returned.get(key, 0) if key is not None or has_links(batch) else None
        return _first_of(out, batch, (key, count), groups)
    if not isinstance(out, Mapping) or None in seeds:
        raise TypeError(f"model: expected a tensor, or a dictionary by node type, found {type(out).__name__}")
    if seeds and not any(key in out for key in seeds):
        raise ValueError(f"model: expected rows of {' or '.join(map(repr, seeds))}, the seeds, found {[*out]}")
    of_seeds = {key: _first_of(out[key], batch, (key, n)) for key, n in seeds.items() if out.get(key) is not None}
    # If a loader's seeds have several types, a batch may have none of one type.
    none = [key for key, store in batch.node_items() if store.get("batch_size") == 0 and out.get(key) is not None]
    return {**of_seeds, **{key: out[key][:0] for key in none}}


def _first_of(out: Tensor, batch: Any, seeds: tuple[NodeType, int], groups: int | None = None) -> Tensor:
    """The rows of the seeds of a type, (type, number), of rows of its first nodes: those of the first ``groups``
    groups, of all nodes if it is 0, or of any first groups if it is None."""
    key, count = seeds
    found = out.size(0) if out.dim() else "none"
    if found == count:
        return out
    sizes = (batch if key is None else batch.get_node_store(key)).num_sampled_nodes
    if not groups and found == sum(sizes):
        return out[:count]
    rows = NodeRows(sizes)
    if not (out.dim() and rows.groups(len(out))):
        raise ValueError(
            f"model: expected rows of the nodes of whole hops, {rows.rows}{_of(key)}, found {found}; {_SCORES}"
        )
    if groups is not None and found != (expected := rows.rows[groups - 1]):
        raise ValueError(
            f"model: expected {expected} rows of nodes{_of(key)}, as its layers return, found {found}; {_SCORES}"
        )
    return out[:count]


_SCORES = "let it return rows of nodes, and compute scores of links from the rows of the seeds"


def _of(key: NodeType) -> str:
    return "" if key is None else f" of {key!r}"


def _colptr(name: str, dst: Tensor, num_nodes: int, verify: bool) -> Tensor:
    """The column pointer of a batch's edges, which are sorted by destination; without ``verify`` this is not checked on
    a GPU, for which the host would wait.

    Raises:
        ValueError: they are not, or a destination is out of range.
    """
    if dst.device.type == "cpu":
        try:
            return ops.colptr_of_sorted(dst, num_nodes)
        except (IndexError, ValueError) as error:
            raise ValueError(f"{name}: {error}") from None
    if verify and dst.numel():
        if bool((dst[1:] < dst[:-1]).any()):
            raise ValueError(f"{name}: dst: expected edges sorted by destination, found others")
        if (least := int(dst[0])) < 0 or (most := int(dst[-1])) >= num_nodes:
            found = least if least < 0 else most
            raise ValueError(f"{name}: dst: expected ids in [0, {num_nodes}), found {found}")
    return column_pointer(dst.contiguous(), num_nodes)


class NodeRows:
    """The nodes of one type in a batch of L hops, which are in L + 1 groups: the seeds, and what each hop found.

    Args:
        sizes: of the groups.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        self.rows = list(accumulate(sizes))
        """``rows[g - 1]`` is the number of nodes of the first g groups."""
        self._groups = {count: g for g, count in enumerate(self.rows, 1)}
        self.tell = len(self._groups) == len(self.rows)
        """Whether numbers of rows tell groups: whether every hop found a node."""

    def groups(self, rows: int) -> int:
        """The number of first groups that have ``rows`` nodes together; 0 if there is none, the largest if there are
        several."""
        return self._groups.get(rows, 0)

    def has(self, sizes: Iterable[int]) -> bool:
        """Whether each size is the number of nodes of some first groups."""
        return all(size in self._groups for size in sizes)


class HopEdges:
    """Edges between the nodes of a batch, sorted by destination, and the prefixes of them that layers need.

    Args:
        edges: all edges.
        src_rows, dst_rows: ``NodeRows.rows`` of the types of sources and destinations.
        ends: ``ends[h - 1]`` is the number of edges that lead into the first h groups of destinations; their sources
            are in the first h + 1.
    """

    def __init__(self, edges: Bipartite, src_rows: list[int], dst_rows: list[int], ends: list[int]) -> None:
        self.edges = edges
        self.src_rows = src_rows
        self.dst_rows = dst_rows
        self.ends = ends
        self._prefixes: dict[int, Bipartite] = {}

    def prefix(self, groups: int) -> Bipartite:
        """The edges from the nodes of the first ``groups`` groups to those of the first ``groups - 1``."""
        found = self._prefixes.get(groups)
        if found is None:
            sizes = self.src_rows[groups - 1], self.dst_rows[groups - 2], self.ends[groups - 2]
            found = self._prefixes[groups] = self.edges.prefix(*sizes)
        return found


class Relation:
    """The edges of one type in a batch.

    Args:
        key: the type.
        index: the batch's ``edge_index``, sorted by destination.
        src, dst: the nodes of the types of sources and destinations; one object if the types are the same.
        counts: ``num_sampled_edges``.

    Its edges are looked at by :meth:`read`, or when they are first needed.
    """

    def __init__(self, key: EdgeType, index: Tensor, src: NodeRows, dst: NodeRows, counts: Iterable[int]) -> None:
        self.key = key
        self.name = "batch.edge_index" if key is None else f"batch[{key}].edge_index"
        self.index = index
        self.src, self.dst = src, dst
        self.counts = list(counts)
        self.ends = list(accumulate(self.counts))
        """As of :class:`HopEdges`."""
        self._edges: HopEdges | None = None

    @property
    def edges(self) -> HopEdges:
        """The edges; sorted edges are looked at when they are first needed."""
        return self._edges or self.read(verify=False)

    @edges.setter
    def edges(self, edges: HopEdges) -> None:
        self._edges = edges

    def read(self, verify: bool) -> HopEdges:
        """Looks at the edges; ``verify`` as of :class:`BatchHops`.

        Raises:
            ValueError: they are not sorted by destination, or hops end elsewhere.
        """
        index = self.index.as_tensor() if isinstance(self.index, EdgeIndex) else self.index
        ptr = _colptr(self.name, index[1], self.dst.rows[-1], verify)
        if (verify or index.device.type == "cpu") and (found := self.ends_in(ptr)) != self.ends:
            of = "batch" if self.key is None else f"batch[{self.key}]"
            raise ValueError(f"{of}: expected {self.ends} edges into its hops' nodes, found {found}")
        edges = Bipartite.sorted(index, ptr, self.src.rows[-1])
        self._edges = HopEdges(edges, self.src.rows, self.dst.rows, self.ends)
        return self._edges

    def ends_in(self, ptr: Tensor) -> list[int]:
        """How many edges lead into the first 1, 2, ..., L groups, by the column pointer of edges into all destinations.
        The host waits for the tensor."""
        rows = self.dst.rows[:-1]
        if ptr.device.type == "cpu":  # one by one in a third of the time, but on a GPU each would be waited for
            return [int(ptr[row].item()) for row in rows]
        return ptr[rows].tolist()


class BatchHops:
    """The nodes and edges of a batch's first hops, as prefixes of all of them.

    A layer whose input has rows of the first g groups computes those of the first g - 1.

    Args:
        batch: a mini-batch, a Data or a HeteroData, whose edges are sorted by destination, with ``num_sampled_nodes``
            and ``num_sampled_edges``, as this package's loader and PyG's make them.
        verify: check the number of nodes, and, on a GPU too, that the edges are sorted and where each hop ends. The
            host then waits for the GPU. On a CPU the edges that layers read are always checked.

    Raises:
        TypeError: it is neither.
        ValueError: the batch has no hops, or its edges do not agree with the numbers of its hops.
    """

    def __init__(self, batch: Any, verify: bool = True) -> None:
        check_batch(batch)
        self.nodes: dict[NodeType, NodeRows] = {}
        self.relations: dict[EdgeType, Relation] = {}
        for node_type, store in node_stores(batch).items():
            self.nodes[node_type] = NodeRows(_field(store, "num_sampled_nodes", node_type))
        for key, store in relations_of(batch).items():
            index, counts = (_field(store, name, key) for name in ("edge_index", "num_sampled_edges"))
            src, dst = (self.nodes[None if key is None else key[end]] for end in (0, -1))
            self.relations[key] = Relation(key, index, src, dst, counts)
        if not self.relations:
            raise ValueError("batch: expected one with types of edges, found none")
        depths: list[tuple[str, Any, int]] = [("edges", key, len(edges.ends)) for key, edges in self.relations.items()]
        depths += [("nodes", key, len(nodes.rows) - 1) for key, nodes in self.nodes.items()]
        self.depth = depths[0][2]
        """How many hops there are."""
        if other := next((found for found in depths if found[2] != self.depth), None):
            one, another = (
                f"{depth} of {what}{'' if key is None else f' of {key!r}'}" for what, key, depth in (depths[0], other)
            )
            raise ValueError(f"batch: expected as many hops of all types of nodes and edges, found {one} and {another}")
        if self.depth == 0:
            raise ValueError("batch: expected one with hops to narrow to, found none (num_sampled_edges=[])")
        self.tell = all(nodes.tell for nodes in self.nodes.values())
        """Whether numbers of rows tell groups, of all types."""
        self._by_index = {id(relation.index): relation for relation in self.relations.values()}
        for key, relation in self.relations.items():
            of = "batch" if key is None else f"batch[{key}]"
            nodes = relation.dst.rows[-1], (batch if key is None else batch[key[-1]]).num_nodes
            if relation.ends[-1] != relation.index.size(1) or (verify and nodes[0] != nodes[1]):
                raise ValueError(
                    f"{of}: expected {relation.ends[-1]} edges and {nodes[0]} nodes as its hops say, found "
                    f"{relation.index.size(1)} and {nodes[1]}"
                )
            if verify or key is None:
                relation.read(verify)

    def add(self, relation: Relation) -> None:
        """Adds edges to those that :meth:`relation` finds."""
        self._by_index[id(relation.index)] = relation

    @property
    def only(self) -> Relation:
        """The relation of a homogeneous batch."""
        (relation,) = self.relations.values()
        return relation

    @property
    def has_seeds(self) -> bool:
        """Whether a type has seeds."""
        return any(nodes.rows[0] for nodes in self.nodes.values())

    @property
    def with_edges(self) -> set[EdgeType | int]:
        """The hops and relations that have edges (:func:`with_edges`)."""
        return with_edges({key: relation.counts for key, relation in self.relations.items()})

    def relation(self, edge_index: Any) -> Relation | None:
        """The relation whose ``edge_index`` this very object is."""
        found = self._by_index.get(id(edge_index))
        return found if found is not None and found.index is edge_index else None

    def are_rows(self, sizes: Iterable[int]) -> bool:
        """Whether there is a type of nodes of which each size is the number of nodes of some first groups."""
        sizes = list(sizes)
        return any(nodes.has(sizes) for nodes in self.nodes.values())


def _field(store: Any, name: str, key: Any) -> Any:
    value = getattr(store, name, None)
    if value is None:
        of = "" if key is None else f" of {key!r}"
        raise ValueError(
            f"batch: expected one of NeighborLoader with {name}{of}, found none; subgraph_type='induced' and "
            f"'bidirectional', edge_layout='sparse_csr' and 'SparseTensor' have no hops to narrow to"
        )
    return value
