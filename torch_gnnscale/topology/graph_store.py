"""PyG's GraphStore over CSC relations, in memory or memory-mapped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout
from torch_geometric.typing import EdgeType, NodeType

from .. import files, ops
from .._user import on_host
from .csc import CSC, bound_of
from .reorder import Numbering, Order, TypedOrder, order_arrays, orders_of, reorder_csc, reorder_relation, saved_order

KIND = "graph"


class GraphStore(PyGGraphStore):
    """A GraphStore that keeps every relation as one CSC, whatever layout it was put in.

    A homogeneous graph is the single relation ``None``. What the store returns as COO or CSR is made when asked for;
    samplers of this package read the CSC itself (:meth:`relation`).
    """

    order: Numbering | None
    """The order of a renumbered store, else None. Stored edges then lead between ``order.new`` of the user's nodes, and
    so do those that the store's methods return. The loaders of this package translate: they take and return the user's
    ids. Edge ids are always the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["_relations"] = {}
        self.__dict__["order"] = None

    @classmethod
    def from_csc(cls, csc: CSC) -> GraphStore:
        """A homogeneous store over ``csc``; TypeError for anything else than a CSC."""
        if not isinstance(csc, CSC):
            raise TypeError(f"csc: expected a CSC, found {type(csc).__name__}")
        store = cls()
        store._relations[None] = csc
        return store

    @classmethod
    @on_host
    def from_data(
        cls, data: Data | HeteroData, is_sorted: bool = False, *, order: Order | TypedOrder | None = None
    ) -> GraphStore:
        """A store of the edges of a Data or HeteroData (see :meth:`CSC.from_data`), its nodes renumbered by ``order``.

        Raises:
            TypeError: ``data`` is neither, or ``order`` is not an Order, or with a HeteroData not a TypedOrder.
            ValueError: ``order`` is one of other nodes.
        """
        orders, store = orders_of(data, order), cls()
        edges = edges_of(data, is_sorted)
        if None in edges:
            store._relations[None] = reorder_csc(edges[None], orders[None]) if None in orders else edges[None]
        else:
            if unknown := [node_type for node_type in orders if node_type not in data.node_types]:
                raise ValueError(f"order: expected node types of {data.node_types}, found {unknown}")
            for edge_type, csc in edges.items():
                src, dst = (orders.get(edge_type[end]) for end in (0, -1))
                store._relations[edge_type] = reorder_relation(csc, src, dst)
        store.__dict__["order"] = order
        return store

    @classmethod
    def from_edge_index(cls, edge_index: Tensor, num_nodes: int | None = None, is_sorted: bool = False) -> GraphStore:
        """A homogeneous store of a COO graph (see :meth:`CSC.from_edge_index`)."""
        return cls.from_csc(CSC.from_edge_index(edge_index, num_nodes, is_sorted))

    def numbered_by(self, order: Numbering | None) -> GraphStore:
        """A store of the same stored edges, whose ends are the stored ids of ``order``; None: the user's ids."""
        store = GraphStore()
        store._relations.update(self._relations)
        store.__dict__["order"] = order
        return store

    def relation(self, edge_type: EdgeType | None = None) -> CSC:
        """The CSC of an edge type; KeyError if the store does not have that type."""
        if edge_type not in self._relations:
            raise KeyError(f"edge type {edge_type!r}: expected one of {list(self._relations)}")
        return self._relations[edge_type]

    # PyG's abstract methods ##########################################################################################

    @on_host
    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        row, col = edge_index
        num_src, num_dst = edge_attr.size or (None, None)
        if edge_attr.layout == EdgeLayout.CSC:
            if num_src is None:
                num_src = self._other_size(edge_attr, col, row)
            csc = CSC.from_csc(col, row, num_src=num_src)
        elif edge_attr.layout == EdgeLayout.CSR:
            by_source = CSC.from_csc(
                row, col, num_src=self._other_size(edge_attr, row, col) if num_dst is None else num_dst
            )
            csc = CSC.from_edge_index(
                torch.stack([by_source.col().to(col.dtype), col]), (by_source.num_dst, by_source.num_src)
            )
        else:
            size, of = (num_src, num_dst), edge_attr.edge_type
            if size == (None, None) and of is not None and of[0] != of[-1]:  # else both ends have as many nodes
                size = bound_of(row), bound_of(col)
            csc = CSC.from_edge_index(torch.stack([row, col]), size, edge_attr.is_sorted)
        for name, given, found in (("sources", num_src, csc.num_src), ("destinations", num_dst, csc.num_dst)):
            if given is not None and given != found:
                raise ValueError(f"size: expected {found} {name}, as the edges' pointer says, found {given}")
        self._relations[edge_attr.edge_type] = csc
        return True

    @staticmethod
    def _other_size(edge_attr: EdgeAttr, pointer: Tensor, ids: Tensor) -> int:
        """The number of nodes of ``ids``: in a homogeneous graph that of the pointer, else the largest id + 1; at least
        that of the pointer where both ends are of one type."""
        at_pointer, of = pointer.numel() - 1, edge_attr.edge_type
        if of is None:
            return at_pointer
        return bound_of(ids) if of[0] != of[-1] else max(bound_of(ids), at_pointer)

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        if edge_attr.edge_type not in self._relations:
            return None
        row, col, _ = self._edge_to_layout(edge_attr, edge_attr.layout)
        return row, col

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        return self._relations.pop(edge_attr.edge_type, None) is not None

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """One attribute per relation, in CSC."""
        return [
            EdgeAttr(edge_type, EdgeLayout.CSC, is_sorted=True, size=(csc.num_src, csc.num_dst))
            for edge_type, csc in self._relations.items()
        ]

    def _edge_to_layout(self, attr: EdgeAttr, layout: EdgeLayout, store: bool = False):
        """(row, col, perm) as int64, for code outside this package. COO is sorted by the user's edge id; ``perm`` holds
        the edge id of each entry of CSC or CSR (None: its position).

        Raises:
            ValueError: COO or CSR of edges whose ids are not the numbers below that of edges, each once.
        """
        csc = self.relation(attr.edge_type)
        row = csc.row.to(torch.int64)
        perm = None if csc.edge_id is None else csc.edge_id.to(torch.int64)
        layout = EdgeLayout(layout)
        if layout == EdgeLayout.CSC:
            return row, csc.colptr, perm
        col = csc.col()
        if perm is not None:
            position = _positions(attr.edge_type, perm)
            row, col = row[position], col[position]
        if layout == EdgeLayout.COO:
            return row, col, None
        transposed = CSC.from_edge_index(torch.stack([col, row]), (csc.num_dst, csc.num_src))
        assert transposed.edge_id is not None
        return transposed.colptr, transposed.row.to(torch.int64), transposed.edge_id.to(torch.int64)

    # Files ###########################################################################################################

    def save(self, path: str | os.PathLike) -> None:
        """Writes the store into a new directory (see :mod:`torch_gnnscale.files`), or nothing at all.

        Raises:
            FileExistsError: ``path`` exists and is not an empty directory.
            ValueError: a relation that is malformed, whose edge ids are not its edges' positions, or whose name JSON
                does not keep.
            NotImplementedError: ``order`` is a Numbering that is neither an Order nor a TypedOrder.
            OSError: a file that cannot be written.
        """
        arrays: dict[str, Tensor] = {}
        called: dict[str, str] = {}
        relations = []
        for i, (edge_type, csc) in enumerate(self._relations.items()):
            try:
                _check_inside(csc)
            except (TypeError, ValueError) as error:
                raise ValueError(f"relation {edge_type!r}: {error}") from error
            arrays[f"{i}_colptr"] = csc.colptr
            interleaved = csc.edge_id is not None and csc.edge_id.dtype == csc.row.dtype
            if interleaved:  # side by side, because they are read together
                arrays[f"{i}_edges"] = torch.stack([csc.row, csc.edge_id], dim=1)
            else:
                arrays[f"{i}_row"] = csc.row
                if csc.edge_id is not None:
                    arrays[f"{i}_edge_id"] = csc.edge_id
            called |= {name: f"relation {edge_type!r}" for name in arrays if name not in called}
            relations.append(relation_entry(files.check_name(edge_type), csc.num_src, csc.num_dst, csc.num_edges))
        orders, named = order_arrays(self.order)
        called |= dict.fromkeys(orders, "the order of the nodes")
        files.save(path, KIND, arrays | orders, {"relations": relations} | named, called)

    @classmethod
    @on_host
    def open(cls, path: str | os.PathLike, verify: bool = True) -> GraphStore:
        """Opens a saved store, memory-mapped: processes share its pages.

        Args:
            path: the directory.
            verify: read everything once and check all checksums and ids. False checks the manifest, the files' headers
                and sizes, and the order of a renumbered store; a wrong id is then found when it is sampled.

        Raises:
            FileNotFoundError, ValueError: names the file that is missing, truncated, corrupt or foreign.
        """
        return cls._open(path, verify, with_order=True)

    @classmethod
    def _open(cls, path: str | os.PathLike, verify: bool, with_order: bool) -> GraphStore:
        arrays, meta = files.load(path, KIND, verify)
        store = cls()
        with files.described(Path(path) / files.MANIFEST, "a saved graph"):
            for i, entry in enumerate(meta["relations"]):
                edge_id: Tensor | None
                if f"{i}_edges" in arrays:
                    row, edge_id = arrays[f"{i}_edges"][:, 0], arrays[f"{i}_edges"][:, 1]
                else:
                    row, edge_id = arrays[f"{i}_row"], arrays.get(f"{i}_edge_id")
                edge_type = None if entry["edge_type"] is None else tuple(entry["edge_type"])
                origin = (open_relation, (os.path.abspath(path), edge_type))
                csc = CSC(arrays[f"{i}_colptr"], row, edge_id, int(entry["num_src"]), origin)
                _check_mapped(csc, entry)
                if edge_type in store._relations:
                    raise ValueError(f"relation {edge_type!r} twice")
                store._relations[edge_type] = csc
        if verify:
            for i, csc in enumerate(store._relations.values()):
                with files.described(Path(path) / f"{i}_*.npy", "a saved graph"):
                    _check_inside(csc)
        if with_order:
            with files.described(Path(path) / "order*.npy", "a saved graph"):
                store.__dict__["order"] = saved_order(arrays, meta, store._num_nodes())
        return store

    def _num_nodes(self) -> dict[NodeType | None, int]:
        """The number of nodes of each type that a relation names."""
        counts: dict[NodeType | None, int] = {}
        for edge_type, csc in self._relations.items():
            src, dst = (None, None) if edge_type is None else (edge_type[0], edge_type[-1])
            counts |= {src: csc.num_src, dst: csc.num_dst}
        return counts

    def __reduce__(self):
        return _restore, (dict(self._relations), self.order)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._relations})"


def edges_of(data: Data | HeteroData, is_sorted: bool = False) -> dict[Any, CSC]:
    """The edges of a Data (see :meth:`CSC.from_data`) or HeteroData by type; the only type of a Data is None."""
    if not isinstance(data, HeteroData):
        return {None: CSC.from_data(data, is_sorted)}
    counts = count_nodes(data)
    return {
        edge_type: CSC.from_storage(store, (counts[edge_type[0]], counts[edge_type[-1]]), is_sorted)
        for edge_type, store in data.edge_items()
    }


def count_nodes(data: HeteroData) -> dict[NodeType, int]:
    """Number of nodes of each type that a HeteroData has or that its edge types name.

    A type of which the data hold nothing has no nodes.

    Raises:
        ValueError: a type that does not know its number of nodes, or edges to or from nodes of which nothing is held.
    """
    counts: dict[NodeType, int | None] = {}
    for node_type, nodes in data.node_items():
        counts[node_type] = nodes.num_nodes if len(nodes) else 0
    for edge_type, edges in data.edge_items():
        for node_type in (edge_type[0], edge_type[-1]):
            counts.setdefault(node_type, 0)
            if edges.num_edges and (node_type not in data.node_types or not len(data[node_type])):
                counts[node_type] = None
    if missing := [node_type for node_type, count in counts.items() if count is None]:
        raise ValueError(f"data[{missing[0]!r}]: expected it to know its number of nodes; set num_nodes")
    return counts  # type: ignore[return-value]


def relation_entry(edge_type: EdgeType | None, num_src: int, num_dst: int, num_edges: int) -> dict[str, Any]:
    """The entry of one relation in the metadata of a saved store."""
    return {"edge_type": edge_type, "num_src": num_src, "num_dst": num_dst, "num_edges": num_edges}


def _check_mapped(csc: CSC, entry: dict[str, Any]) -> None:
    """Checks what is known of a mapped relation without reading its arrays; raises ValueError."""
    shapes = csc.colptr.shape, csc.row.shape
    if [len(shape) for shape in shapes] != [1, 1] or csc.colptr.numel() == 0:
        raise ValueError(f"colptr and row of shapes {[tuple(shape) for shape in shapes]}")
    if csc.colptr.dtype != torch.int64 or csc.row.dtype not in ops.ID_DTYPES or csc.num_src < 0:
        raise ValueError(f"colptr {csc.colptr.dtype}, row {csc.row.dtype}, {csc.num_src} sources")
    if csc.edge_id is not None and (csc.edge_id.dtype not in ops.ID_DTYPES or csc.edge_id.shape != csc.row.shape):
        raise ValueError(f"edge ids {csc.edge_id.dtype} {tuple(csc.edge_id.shape)} for {csc.num_edges} edges")
    if (csc.num_dst, csc.num_edges) != (entry["num_dst"], entry["num_edges"]):
        raise ValueError(f"{csc}, but its counts say {entry}")


def _positions(edge_type: EdgeType | None, edge_id: Tensor) -> Tensor:
    """The position of each edge id in ``edge_id``; ValueError unless they are a permutation."""
    count = len(edge_id)
    if (at := ops.first_outside(edge_id, count)) >= 0:
        raise ValueError(f"relation {edge_type!r}: edge_id[{at}] = {int(edge_id[at])}, which is not in [0, {count})")
    position = torch.full_like(edge_id, -1).index_copy_(0, edge_id, torch.arange(count))
    if (at := ops.first_outside(position, count)) >= 0:
        raise ValueError(
            f"relation {edge_type!r}: edge_id: expected every number in [0, {count}) once, found {at} not at all"
        )
    return position


def _check_inside(csc: CSC) -> None:
    """Reads a relation; raises ValueError naming the first entry that is wrong."""
    ops.check_colptr(csc.colptr, csc.num_edges)
    for name, ids, limit in (("row", csc.row, csc.num_src), ("edge_id", csc.edge_id, csc.num_edges)):
        if ids is not None and (at := ops.first_outside(ids, limit)) >= 0:
            raise ValueError(f"{name}[{at}] = {int(ids[at])}, which is not in [0, {limit})")


def open_relation(path: str, edge_type: EdgeType | None) -> CSC:
    """Maps a relation of a saved store, without verifying it: the process that pickled it has opened it before."""
    return GraphStore._open(path, verify=False, with_order=False).relation(edge_type)


def _restore(relations: dict, order: Numbering | None) -> GraphStore:
    store = GraphStore()
    store._relations.update(relations)
    store.__dict__["order"] = order
    return store
