"""What is partitioned: a graph, its rows, the nodes and links of its data splits."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import TensorAttr
from torch_geometric.typing import EdgeType, NodeType

from .. import files, ops
from ..feature import FeatureStore
from ..feature.composite import Composites
from ..feature.contract import all_attrs
from ..ops.arguments import as_ids, as_tensor
from ..sampler.graph import end_types
from ..sampler.relations import sampled_graph
from ..topology import CSC
from ..topology.csc import CHUNK
from .directory import RowsMeta, edge_type_of

_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_LENGTH = 1 << 17
"""Edges that are hashed at a time: what they take fits into caches."""


def edge_sum(*columns: Tensor) -> int:
    """The sum of a hash of 64 bits of each edge, modulo 2^63.

    Args:
        columns: the destinations of edges, their places in the columns of the CSC, their sources and, if they have
            some, their ids: any integer type, shape [m].
    """
    total = 0
    for pieces in zip(*(column.split(_LENGTH) for column in columns), strict=True):
        mixed = np.full(len(pieces[0]), len(columns), np.uint64)  # from 0, the edge of zeros would count for nothing
        for odd, piece in zip(_ODD, pieces, strict=False):
            mixed += piece.numpy().astype(np.int64).view(np.uint64) * np.uint64(odd)
        for shift, odd in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64's last steps
            mixed ^= mixed >> np.uint64(shift)
            mixed *= np.uint64(odd)
        total += int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))
    return total % (1 << 63)


def places_of(colptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(column, place in it) of each edge of consecutive columns: int64, shape [m]; ``colptr``: int64, shape [n + 1]."""
    degree = np.diff(colptr)
    column = np.repeat(np.arange(len(degree)), degree)
    return column, np.arange(len(column)) - np.repeat(colptr[:-1] - colptr[0], degree)


def checksum_of(csc: CSC) -> int:
    """The checksum of a relation, whatever the types of integers; mapped arrays are read a piece at a time."""
    total, colptr = 0, csc.colptr.numpy()
    for at in range(0, csc.num_edges, _LENGTH):
        end = min(at + _LENGTH, csc.num_edges)
        begin, last = np.searchsorted(colptr, at, side="right") - 1, np.searchsorted(colptr, end)
        column, place = places_of(colptr[begin : last + 1].clip(at, end))
        place[column == 0] += at - colptr[begin]
        edges = [array[at:end] for array in (csc.row, csc.edge_id) if array is not None]
        total += edge_sum(torch.from_numpy(column + begin), torch.from_numpy(place), *edges)
    return total % (1 << 63)


_MASKS = ("train", "val", "test")
"""The splits that are read from the attributes SPLIT_mask, if they are not given."""


@dataclass(eq=False)
class InputRows:
    """The rows of an attribute, read from the user's store."""

    meta: RowsMeta
    store: PyGFeatureStore
    attr: TensorAttr

    @classmethod
    def of(cls, store: PyGFeatureStore, attr: TensorAttr, num_rows: int) -> InputRows:
        """The first ``num_rows`` rows of an attribute; ValueError if there are fewer, or if it is not dense."""
        key = (files.check_name(attr.group_name), files.check_name(attr.attr_name))
        size = store.get_tensor_size(attr)
        if size is None or size[0] < num_rows:
            raise ValueError(f"data: expected {num_rows} rows of {key}, found {0 if size is None else size[0]}")
        first = _read(store, attr, torch.empty(0, dtype=torch.int64))
        if first.layout != torch.strided or first.is_nested or first.is_quantized:
            raise ValueError(f"{key}: expected a dense tensor, found {first.layout}")
        return cls(RowsMeta(*key, first.dtype, tuple(first.shape[1:]), num_rows), store, attr)

    def read(self, ids: Tensor) -> Tensor:
        """The rows at ``ids``, of any integer type, in host memory."""
        return _read(self.store, self.attr, ids.to(torch.int64))

    def pieces(self, ids: Iterator[Tensor] | Sequence[Tensor], memory: int) -> Iterator[Tensor]:
        """The rows at ``ids``, as many at a time as ``memory`` bytes hold twice."""
        step = max(1, memory // (2 * max(1, self.meta.row_bytes)))
        for some in ids:
            for part in some.split(step):
                yield self.read(part)
                ops.pool_trim()  # or the pool would keep every piece's memory


@dataclass(eq=False)
class InputGraph:
    """A graph in the user's ids, its rows and data splits, checked."""

    relations: dict[EdgeType | None, CSC]
    num_nodes: dict[NodeType | None, int]
    rows: list[InputRows]
    splits: dict[tuple[NodeType | None, str], Tensor]
    """Ids of nodes by type and name of the split: int64."""
    links: dict[tuple[EdgeType | None, str], Tensor]
    """Ends of links by type and name of the split: int64, shape [2, m]."""
    link_ids: dict[tuple[EdgeType | None, str], Tensor] = field(default_factory=dict)
    """The ids of the edges that the links of a split are, if they were given as such: int64, shape [m]."""
    composites: Composites = field(default_factory=dict)
    """The attributes that are made of several of ``rows``."""

    def train(self) -> dict[NodeType | None, Tensor]:
        """The nodes of the split ``train``, by type; of links, their destinations."""
        found = {node_type: ids for (node_type, split), ids in self.splits.items() if split == "train"}
        for (edge_type, split), ends in self.links.items():
            if split == "train":
                found.setdefault(end_types(edge_type)[1], ends[1].unique())
        return found

    def out_degree(self, node_type: NodeType | None) -> Tensor:
        """How many edges each node of a type has, of all relations that lead from it: int64, shape [n]."""
        degree = torch.zeros(self.num_nodes[node_type], dtype=torch.int64)
        for edge_type, csc in self.relations.items():
            if end_types(edge_type)[0] == node_type:
                degree += ops.count_ids(csc.row, len(degree), threads=1)
        return degree

    def edge_checksums(self) -> list[int]:
        """A checksum of each relation's edges and of their ids, whatever the types of integers."""
        return [checksum_of(csc) for csc in self.relations.values()]


def input_graph_of(
    data: Any, splits: Mapping[str, Any] | None = None, links: Mapping[str, Any] | None = None
) -> InputGraph:  # fmt: skip
    """Reads a graph's structure; its rows stay where they are.

    Raises:
        TypeError, ValueError, IndexError: see :func:`torch_gnnscale.partition.write`.
        NotImplementedError: stores that are renumbered.
    """
    graph = sampled_graph(data)
    features = data[0] if (stores := isinstance(data, (tuple, list))) else FeatureStore.from_data(data)
    if stores and any(getattr(store, "order", None) is not None for store in data):
        raise NotImplementedError("data: a partition of renumbered stores is not implemented: pass them in user's ids")
    relations = {relation.edge_type: relation.csc for relation in graph.relations}
    sizes = graph.bounds()
    for edge_type, csc in relations.items():
        for part in () if csc.edge_id is None else csc.edge_id.split(CHUNK):
            if (at := ops.first_outside(part, csc.num_edges)) >= 0:
                raise ValueError(
                    f"data: expected edge ids of {edge_type!r} in [0, {csc.num_edges}), found {int(part[at])}"
                )
    rows = []
    for attr in all_attrs(features):
        if isinstance(attr.group_name, tuple) and edge_type_of(attr.group_name) in relations:
            count = relations[edge_type_of(attr.group_name)].num_edges
        elif attr.group_name in sizes:
            count = sizes[attr.group_name]
        else:
            groups = [*sizes, *((None, None) if edge_type is None else edge_type for edge_type in relations)]
            raise ValueError(f"data: expected rows of {groups}, found {attr.attr_name!r} of {attr.group_name!r}")
        rows.append(InputRows.of(features, attr, count))
    found = _given_splits(splits or {}, sizes)
    for of_mask in rows:
        _add_mask(found, of_mask, set(splits or ()))
    composites = getattr(features, "composites", {})
    return InputGraph(relations, sizes, rows, found, *_given_links(links or {}, relations), composites)


def given_owners(owners: Any, num_nodes: dict[NodeType | None, int], parts: int) -> dict[NodeType | None, Tensor]:
    """A partition that the user gave, checked: the part of each node, by type: int32.

    Raises:
        TypeError, ValueError, IndexError: not a vector of integers for each type, of its length, in [0, parts).
    """
    if not isinstance(owners, Mapping):
        if set(num_nodes) != {None}:
            raise TypeError(f"owners: expected parts by type of {list(num_nodes)}, found {type(owners).__name__}")
        owners = {None: owners}
    if set(owners) != set(num_nodes):
        raise ValueError(f"owners: expected parts of nodes of {list(num_nodes)}, found {list(owners)}")
    checked = {}
    for node_type, count in num_nodes.items():
        name = "owners" if node_type is None else f"owners[{node_type!r}]"
        owner = as_ids(name, as_tensor(name, owners[node_type]))
        if owner.shape != (count,):
            raise ValueError(f"{name}: expected the parts of {count} nodes, found shape {tuple(owner.shape)}")
        if (at := ops.first_outside(owner, parts)) >= 0:
            raise IndexError(f"{name}[{at}] = {int(owner[at])} is out of range: expected parts in [0, {parts})")
        checked[node_type] = owner.to(torch.int32)
    return checked


def _read(store: PyGFeatureStore, attr: TensorAttr, ids: Tensor) -> Tensor:
    attr = copy.copy(attr)
    attr.index = ids
    rows = store.get_tensor(attr)
    return (torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows).detach().cpu()


def _add_mask(splits: dict[tuple[NodeType | None, str], Tensor], rows: InputRows, given: set[str]) -> None:
    """Adds the split of a mask of nodes, if the rows are one and its name was not given."""
    name, _, suffix = rows.meta.attr_name.rpartition("_")
    if rows.meta.of_edges or suffix != "mask" or name not in _MASKS or name in given:
        return
    if rows.meta.dtype != torch.bool or rows.meta.shape != ():
        found = f"{str(rows.meta.dtype).removeprefix('torch.')} {(rows.meta.num_rows, *rows.meta.shape)}"
        raise ValueError(
            f"{rows.meta.attr_name}: expected a mask of shape ({rows.meta.num_rows},), found {found}; "
            f"pass splits={{{name!r}: ...}}"
        )
    splits[rows.meta.group_name, name] = rows.read(torch.arange(rows.meta.num_rows)).nonzero().view(-1)


def _given_splits(splits: Mapping[str, Any], sizes: dict) -> dict[tuple[NodeType | None, str], Tensor]:
    """Ids of nodes by type and name."""
    found = {}
    for split, name, node_type, value in _entries("splits", splits, sizes):
        ids = as_tensor(name, value)
        if ids.dtype == torch.bool:
            if ids.shape != (sizes[node_type],):
                raise ValueError(f"{name}: expected a mask of {sizes[node_type]} nodes, found {tuple(ids.shape)}")
            ids = ids.nonzero().view(-1)
        ids = as_ids(name, ids)
        if ids.dim() != 1:
            raise ValueError(f"{name}: expected a vector of ids, found shape {tuple(ids.shape)}")
        _check_nodes(name, ids, sizes[node_type])
        found[node_type, split] = ids.to(torch.int64).cpu()
    return found


def _given_links(links: Mapping[str, Any], relations: dict) -> tuple[dict, dict]:
    """``links`` and ``link_ids`` of an :class:`InputGraph`."""
    found, of_edges = {}, {}
    for split, name, edge_type, value in _entries("links", links, relations):
        given, csc = as_tensor(name, value), relations[edge_type]
        if given.dim() == 1:
            if given.dtype == torch.bool:
                if len(given) != csc.num_edges:
                    raise ValueError(f"{name}: expected a mask of {csc.num_edges} edges, found one of {len(given)}")
                given = given.nonzero().view(-1)
            ids = as_ids(name, given).to(torch.int64).cpu()
            if (at := ops.first_outside(ids, csc.num_edges)) >= 0:
                raise IndexError(f"{name}: expected edges in [0, {csc.num_edges}), found {int(ids[at])}")
            found[edge_type, split], of_edges[edge_type, split] = _ends_of(csc, ids), ids
            continue
        ends = as_ids(name, given)
        if ends.dim() != 2 or ends.size(0) != 2:
            raise ValueError(f"{name}: expected ids of edges, or shape (2, links), found {tuple(ends.shape)}")
        for nodes, limit in zip(ends, (csc.num_src, csc.num_dst), strict=True):
            _check_nodes(name, nodes, limit)
        found[edge_type, split] = ends.to(torch.int64).cpu()
    return found, of_edges


def _ends_of(csc: CSC, ids: Tensor) -> Tensor:
    """The ends of the edges ``ids``, int64 in [0, e): int64, shape [2, m]. The edges may be mapped: they are read in
    chunks."""
    if csc.edge_id is None:
        place = ids
    else:
        wanted, inverse = ids.unique(return_inverse=True)
        found = torch.full_like(wanted, -1)
        for begin, piece in zip(range(0, csc.num_edges, CHUNK), csc.edge_id.split(CHUNK), strict=True):
            at = torch.searchsorted(wanted, piece.to(torch.int64)).clamp_(max=len(wanted) - 1)
            here = (wanted[at] == piece).nonzero().view(-1) if len(wanted) else at[:0]
            found[at[here]] = here + begin
        if (missing := ops.first_outside(found, csc.num_edges)) >= 0:
            raise ValueError(f"data: expected every edge id once, found {int(wanted[missing])} not at all")
        place = found[inverse]
    dst = torch.searchsorted(csc.colptr, place, right=True) - 1
    return torch.stack([csc.row[place].to(torch.int64), dst])


def _entries(argument: str, given: Mapping[str, Any], types: dict) -> Iterator[tuple[str, str, Any, Any]]:
    """(split, the entry's name in errors, type, ids) of each entry of ``splits`` or ``links``."""
    for split, value in given.items():
        if not isinstance(split, str):
            raise TypeError(f"{argument}: expected names of splits, found {split!r}")
        name = f"{argument}[{split!r}]"
        yield split, name, *_typed(name, value, types)


def _typed(name: str, value: Any, types: dict) -> tuple[Any, Any]:
    """(type, ids) of the value of a split; without types, the value is the ids."""
    if None in types:
        return None, value
    typed = isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], (str, tuple))
    if not typed or value[0] not in types:
        found = repr(value[0]) if typed else type(value).__name__
        raise ValueError(f"{name}: expected a pair of a type of {list(types)} and ids, found {found}")
    return value[0], value[1]


def _check_nodes(name: str, ids: Tensor, limit: int) -> None:
    if (at := ops.first_outside(ids, limit)) >= 0:
        raise IndexError(f"{name}: expected nodes in [0, {limit}), found {int(ids[at])}")
