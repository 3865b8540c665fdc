"""PyG's GraphStore over CSC relations, in memory or memory-mapped."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout
from torch_geometric.typing import EdgeType

from .. import files
from .csc import CSC

KIND = "graph"


class GraphStore(PyGGraphStore):
    """A GraphStore that keeps every relation as one CSC, whatever layout it was put in.

    A homogeneous graph is the single relation ``None``. What the store returns as COO or CSR is made when asked for;
    samplers of this package read the CSC itself (:meth:`relation`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["_relations"] = {}
        self.__dict__["_path"] = None

    @classmethod
    def from_csc(cls, csc: CSC) -> GraphStore:
        """A homogeneous store over ``csc``."""
        store = cls()
        store._relations[None] = csc
        return store

    @classmethod
    def from_data(cls, data: Data, is_sorted: bool = False) -> GraphStore:
        """A homogeneous store of a Data's edges (see :meth:`CSC.from_data`)."""
        return cls.from_csc(CSC.from_data(data, is_sorted))

    @classmethod
    def from_edge_index(cls, edge_index: Tensor, num_nodes: int | None = None, is_sorted: bool = False) -> GraphStore:
        """A homogeneous store of a COO graph (see :meth:`CSC.from_edge_index`)."""
        return cls.from_csc(CSC.from_edge_index(edge_index, num_nodes, is_sorted))

    def relation(self, edge_type: EdgeType | None = None) -> CSC:
        """The CSC of a relation; KeyError if the store does not have it."""
        if edge_type not in self._relations:
            raise KeyError(f"edge type {edge_type!r}: expected one of {list(self._relations)}")
        return self._relations[edge_type]

    # PyG's abstract methods ##########################################################################################

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        row, col = edge_index
        size = edge_attr.size or (None, None)
        if edge_attr.layout == EdgeLayout.CSC:
            csc = CSC.from_csc(col, row, num_src=size[0])
        elif edge_attr.layout == EdgeLayout.CSR:
            src = torch.repeat_interleave(row.diff(), output_size=col.numel()).to(col.dtype)
            csc = CSC.from_edge_index(torch.stack([src, col]), (row.numel() - 1, size[1]))
        else:
            csc = CSC.from_edge_index(torch.stack([row, col]), size, edge_attr.is_sorted)
        self._relations[edge_attr.edge_type] = csc
        self.__dict__["_path"] = None
        return True

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        if edge_attr.edge_type not in self._relations:
            return None
        row, col, _ = self._edge_to_layout(edge_attr, edge_attr.layout)
        return row, col

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        self.__dict__["_path"] = None
        return self._relations.pop(edge_attr.edge_type, None) is not None

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """One attribute a relation, in CSC."""
        return [
            EdgeAttr(edge_type, EdgeLayout.CSC, is_sorted=True, size=(csc.num_src, csc.num_dst))
            for edge_type, csc in self._relations.items()
        ]

    def _edge_to_layout(self, attr: EdgeAttr, layout: EdgeLayout, store: bool = False):
        """(row, col, perm) as int64, for readers other than ours; perm leads to the user's edge ids."""
        csc = self.relation(attr.edge_type)
        row = csc.row.to(torch.int64)
        perm = None if csc.edge_id is None else csc.edge_id.to(torch.int64)
        layout = EdgeLayout(layout)
        if layout == EdgeLayout.CSC:
            return row, csc.colptr, perm
        if layout == EdgeLayout.COO:
            return row, csc.col(), perm
        transposed = CSC.from_edge_index(torch.stack([csc.col(), row]), (csc.num_dst, csc.num_src))
        assert transposed.edge_id is not None
        order = transposed.edge_id.to(torch.int64)
        return transposed.colptr, transposed.row.to(torch.int64), order if perm is None else perm[order]

    # Files ###########################################################################################################

    def save(self, path: str | os.PathLike) -> None:
        """Writes the store into a new directory (see :mod:`torch_gnnscale.files`)."""
        arrays: dict[str, Tensor] = {}
        relations = []
        for i, (edge_type, csc) in enumerate(self._relations.items()):
            arrays[f"{i}_colptr"] = csc.colptr
            interleaved = csc.edge_id is not None and csc.edge_id.dtype == csc.row.dtype
            if interleaved:  # as they are read: together
                arrays[f"{i}_edges"] = torch.stack([csc.row, csc.edge_id], dim=1)
            else:
                arrays[f"{i}_row"] = csc.row
                if csc.edge_id is not None:
                    arrays[f"{i}_edge_id"] = csc.edge_id
            relations.append(
                {
                    "edge_type": edge_type,
                    "num_src": csc.num_src,
                    "num_dst": csc.num_dst,
                    "num_edges": csc.num_edges,
                }
            )
        files.save(path, KIND, arrays, {"relations": relations})

    @classmethod
    def open(cls, path: str | os.PathLike, verify: bool = True) -> GraphStore:
        """Opens a saved store, memory-mapped: processes share its pages.

        Args:
            path: the directory.
            verify: read it once and compare checksums and ids. Without, only headers and sizes are compared, and what
                is wrong inside is found when it is sampled.

        Raises:
            FileNotFoundError, ValueError: names the file that is missing, truncated, corrupt or foreign.
        """
        arrays, meta = files.load(path, KIND, verify)
        store = cls()
        try:
            for i, entry in enumerate(meta["relations"]):
                edge_id: Tensor | None
                if f"{i}_edges" in arrays:
                    row, edge_id = arrays[f"{i}_edges"][:, 0], arrays[f"{i}_edges"][:, 1]
                else:
                    row, edge_id = arrays[f"{i}_row"], arrays.get(f"{i}_edge_id")
                csc = CSC(arrays[f"{i}_colptr"], row, edge_id, int(entry["num_src"]))
                if (csc.num_dst, csc.num_edges) != (entry["num_dst"], entry["num_edges"]):
                    raise ValueError(f"relation {i} has {csc}, its counts say {entry}")
                if verify:
                    CSC.from_csc(csc.colptr, csc.row, csc.edge_id, csc.num_src)
                edge_type = entry["edge_type"]
                store._relations[None if edge_type is None else tuple(edge_type)] = csc
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ValueError(f"{path}: expected a saved graph, found {error}") from error
        store.__dict__["_path"] = os.fspath(path)
        return store

    def __reduce__(self):
        # A mapped store travels as its path, so that the other process maps the same pages.
        if self._path is not None:
            return _reopen, (self._path,)
        return _restore, (dict(self._relations),)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._relations})"


def _reopen(path: str) -> GraphStore:
    return GraphStore.open(path, verify=False)


def _restore(relations: dict) -> GraphStore:
    store = GraphStore()
    store._relations.update(relations)
    return store
