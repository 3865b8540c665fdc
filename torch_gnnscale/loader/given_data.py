"""The data that a loader is given, adapted once, where the loader is made: a Data, a HeteroData or a pair of stores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch, HeteroData
from torch_geometric.typing import EdgeType
from typing_extensions import override

from .. import ops
from .._user import warn
from ..feature.attributes import EDGES, check_attributes, typed_storages, warn_of_whole_attributes
from ..feature.contract import CollectiveRowStore, RowStore
from ..memory import move_to_huge_pages
from ..ops.arguments import as_tensor
from ..ops.rows import has_contiguous_rows
from ..sampler.base import KeyedSampler
from ..sampler.graph import end_types
from ..sampler.relations import check_data
from ..topology import CSC, GraphStore
from ..topology.reorder import Numbering
from .data_rows import DataRows
from .fields import EdgeLayout, EdgeLayouts, edge_layouts_of, hidden_fields, plain_kind
from .row_source import RowSource, StoreRows


class GivenData(ABC):
    """What a loader asks of its data."""

    data: Any
    """As the user gave them."""
    stores: tuple[Any, ...] = ()
    """The pair of stores; () of a graph."""
    features: Any = None
    """The FeatureStore; None of a graph."""
    numbering: Numbering | None = None
    """The numbering of renumbered stores; None: ids are the user's."""
    of_part: bool = False
    """Whether the stores are those of a part of a graph, be it the only one."""
    reads_together: bool = False
    """Whether all ranks of a process group read rows together."""
    has_rows_on_gpu: bool = False
    """Whether a RowStore has rows on a GPU, which forked workers cannot gather."""
    stream_device: torch.device | None = None
    """The GPU that gathers rows of stores, on streams of its own; None without one."""

    @abstractmethod
    def rows(self, custom_cls: Any = None, device: torch.device | None = None) -> RowSource:
        """What reads the rows of samples. ``custom_cls``: the class of batches of stores; ``device``: of edges of
        batches, by default that of the data's."""

    @property
    def has_learned_rows(self) -> bool:
        """Whether rows require grad."""
        with torch.enable_grad():
            return bool(self.rows().learned())

    @abstractmethod
    def edge_layouts(self, asked: EdgeLayout | None) -> EdgeLayouts:
        """By edge type, the layout of a batch's edges (:func:`.fields.edge_layouts_of`)."""

    @abstractmethod
    def check_features(self, sampler: KeyedSampler) -> None:
        """Raises TypeError if rows of an attribute cannot be taken, ValueError if a RowStore has other numbers of rows
        than the graph has nodes and edges."""

    def check_class(self, custom_cls: Any) -> None:
        """Warns if batches are of another class than the data. Raises ValueError if ``custom_cls`` hides fields of
        batches."""
        if isinstance(custom_cls, type) and (hidden := hidden_fields(custom_cls)):
            raise ValueError(
                f"custom_cls: expected a class without {', '.join(hidden)}, which a loader puts into its batches, "
                f"found {custom_cls.__name__}"
            )

    @abstractmethod
    def warn_of_rows(self, device: torch.device | None) -> None:
        """Warns of attributes that batches have whole, and of tensors whose rows are gathered slowly. ``device``: the
        GPU that makes batches, if one does."""

    def move_to_huge_pages(self) -> None:  # noqa: B027
        """Asks the system to keep the rows that are gathered natively in huge pages."""

    # Links and seeds #################################################################################################

    def whole_type(self, edge_type: Any) -> Any:
        """The whole of an edge type that may be shortened, as a HeteroData takes it."""
        return edge_type

    @property
    @abstractmethod
    def edge_types(self) -> list[EdgeType | None]:
        """The types of edges; [None] without types."""

    @abstractmethod
    def links(self, edge_type: EdgeType | None) -> Tensor:
        """All edges of a type in the user's ids: shape [2, E].

        Raises:
            NotImplementedError: stores that cannot tell the user's ids.
        """

    def typed_links(self, edge_type: EdgeType | None, links: Tensor) -> Any:
        """Links in the form in which PyG's loaders take them."""
        return edge_type, links

    def num_nodes(self, bounds: Mapping[Any, int]) -> int:
        """The number of nodes of a graph without types; ``bounds``: of the sampler's ids."""
        return bounds[None]


class GivenGraph(GivenData):
    """A Data or HeteroData."""

    def __init__(self, data: Any) -> None:
        self.data, self.typed = data, isinstance(data, HeteroData)

    @override
    def rows(self, custom_cls: Any = None, device: torch.device | None = None) -> DataRows:
        return DataRows(self.data, self.typed, device)

    @property
    def _edge_stores(self) -> list[tuple[Any, Any]]:
        return [(store._key, store) for store in self.data.edge_stores]

    @override
    def edge_layouts(self, asked: EdgeLayout | None) -> EdgeLayouts:
        return edge_layouts_of(self._edge_stores, asked)

    @override
    def check_features(self, sampler: KeyedSampler) -> None:
        check_attributes(self.data)

    @override
    def check_class(self, custom_cls: Any) -> None:
        super().check_class(custom_cls)
        # of a Batch, batches are no batches of graphs, which needs no warning
        if not isinstance(self.data, Batch) and (hidden := hidden_fields(kind := type(self.data))):
            warn(
                f"batches are of class {plain_kind(kind).__name__}, because {', '.join(hidden)} of {kind.__name__} "
                f"would hide what the loader puts there"
            )

    @override
    def warn_of_rows(self, device: torch.device | None) -> None:
        warn_of_whole_attributes(self.data)
        for name, value in self._row_tensors():
            if not has_contiguous_rows(value):
                by_column = (
                    ", as what DataFrame.to_numpy() returns," if value.dim() > 1 and value.stride(0) == 1 else ","
                )
                warn(
                    f"{name} has no contiguous rows (strides {value.stride()}){by_column} so they are gathered by the "
                    f"slower torch.index_select; use {name} = {name}.contiguous()"
                )
        for storage in typed_storages(self.data):
            for key, value in storage.store.items():
                turned = isinstance(value, np.ndarray) and value.flags.f_contiguous and not value.flags.c_contiguous
                if turned and key not in EDGES and storage.has_rows(key):
                    name = storage.label(key)
                    warn(
                        f"{name} has no contiguous rows (strides {value.strides}), as what DataFrame.to_numpy() "
                        f"returns, so they are gathered slowly; use {name} = numpy.ascontiguousarray({name})"
                    )
        if device is not None:
            found = ((name, value.device) for name, value in self._row_tensors())
            _warn_of_host_rows(found, device, f"data.to({str(device)!r}) if it fits")

    @override
    def move_to_huge_pages(self) -> None:
        move_to_huge_pages(value for _, value in self._row_tensors() if ops.can_gather_rows(value))

    def _row_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name for messages, tensor) per tensor that has one row per node or edge."""
        for storage in typed_storages(self.data):
            for name, value in storage.store.items():
                if not isinstance(value, Tensor) or value.layout != torch.strided:
                    continue
                if storage.has_rows(name) and self.data.__cat_dim__(name, value, storage.store) == 0:
                    yield storage.label(name), value

    @override
    def whole_type(self, edge_type: Any) -> Any:
        if not self.typed or edge_type is None:
            return edge_type
        return self.data._to_canonical(*([edge_type] if isinstance(edge_type, str) else edge_type))

    @property
    def edge_types(self) -> list[EdgeType | None]:
        """The types of its edges, each once."""
        return [edge_type for edge_type, _ in self._edge_stores]

    @override
    def links(self, edge_type: EdgeType | None) -> Tensor:
        store, data = dict(self._edge_stores)[edge_type], self.data
        if "edge_index" in store:
            return as_tensor("edge_index", store["edge_index"])
        src, dst = ((data if of is None else data[of]).num_nodes for of in end_types(edge_type))
        csc = CSC.from_storage(store, (src, dst))
        links = torch.stack([csc.row.to(torch.int64), csc.col()])
        return links if csc.edge_id is None else links[:, torch.argsort(csc.edge_id)]

    @override
    def typed_links(self, edge_type: EdgeType | None, links: Tensor) -> Any:
        return (edge_type, links) if self.typed else links

    @override
    def num_nodes(self, bounds: Mapping[Any, int]) -> int:
        return bounds[None] if self.typed else self.data.num_nodes


class GivenStores(GivenData):
    """A pair of a FeatureStore and a GraphStore, ours or foreign ones."""

    def __init__(self, data: Any) -> None:
        self.data, self.stores = data, tuple(data)
        self.features, self.graph = self.stores
        self._of_ours = isinstance(self.features, RowStore)
        self.of_part = self._of_ours and self.features.ranks is not None
        self.reads_together = isinstance(self.features, CollectiveRowStore)
        self.stream_device = getattr(self.features, "stream_device", None)

    @override
    def rows(self, custom_cls: Any = None, device: torch.device | None = None) -> StoreRows:
        if self.reads_together:
            return self.features.row_source(self.graph, custom_cls)
        return StoreRows(self.features, self.graph, custom_cls)

    @override
    def edge_layouts(self, asked: EdgeLayout | None) -> EdgeLayouts:
        return edge_layouts_of([], asked)

    @override
    def check_features(self, sampler: KeyedSampler) -> None:
        if self._of_ours:
            typed = any(edge_type is not None for edge_type in self.edge_types)
            self.features.check_graph(typed, sampler.node_bounds() or {})

    @override
    def warn_of_rows(self, device: torch.device | None) -> None:
        if device is not None:
            _warn_of_host_rows(self._devices(), device, f"tensors or tiers on {device}")

    @property
    def has_rows_on_gpu(self) -> bool:  # type: ignore[override]
        """Whether rows are gathered on a GPU."""
        return any(where.type == "cuda" for _, where in self._devices())

    def _devices(self) -> Iterator[tuple[str, torch.device]]:
        """(name, device on which its rows are gathered) per attribute of a RowStore; nothing of others."""
        for attr in self.features.all_attrs() if self._of_ours else ():
            yield f"features{[attr.group_name, attr.attr_name]}", self.features.device_of(attr)

    @cached_property
    def numbering(self) -> Numbering | None:  # type: ignore[override]
        """The numbering of the stores, or None.

        Raises:
            TypeError: what a store has as its order lacks a method of a Numbering.
            ValueError: the two stores have different numberings.
        """
        features, graph = map(_numbering_of, self.stores)
        if features is not graph and (features is None or graph is None or not features.equals(graph)):
            names = ["the user's" if order is None else "another" for order in (features, graph)]
            raise ValueError(
                f"data: expected features and graph in one order of nodes, found {names[0]} and {names[1]}; "
                f"use GraphStore.from_data(data, order=features.order)"
            )
        return graph

    @property
    def edge_types(self) -> list[EdgeType | None]:
        """The types of its edges, each once."""
        return list(dict.fromkeys(attr.edge_type for attr in self.graph.get_all_edge_attrs()))

    @override
    def links(self, edge_type: EdgeType | None) -> Tensor:
        rows, cols, _ = self.graph.coo(None if edge_type is None else [edge_type])
        links = torch.stack([rows, cols] if edge_type is None else [rows[edge_type], cols[edge_type]])
        if (order := self.numbering) is None:
            return links
        users = [order.to_user(ids, t) for ids, t in zip(links, end_types(edge_type), strict=True)]
        if any(ids is None for ids in users):
            raise NotImplementedError("edge_label_index=None over these stores is not implemented; give the links")
        return torch.stack(users)  # type: ignore[arg-type]


def given_data(data: Any) -> GivenGraph | GivenStores:
    """The data of a loader; TypeError unless they are a Data, a HeteroData or a pair of stores."""
    check_data(data)
    return GivenStores(data) if isinstance(data, (tuple, list)) else GivenGraph(data)


def _numbering_of(store: Any) -> Numbering | None:
    """The numbering of one store. Foreign stores may use the name ``order`` for something else."""
    order = getattr(store, "order", None)
    if order is None or isinstance(order, Numbering):
        return order
    if not isinstance(store, (RowStore, GraphStore)) and not hasattr(order, "to_stored"):
        return None
    missing = [name for name in vars(Numbering) if not name.startswith("_") and not hasattr(order, name)]
    raise TypeError(
        f"order of a {type(store).__name__}: expected the methods of a torch_gnnscale.topology.reorder.Numbering, "
        f"found a {type(order).__name__} without {', '.join(missing)}"
    )


def _warn_of_host_rows(found: Any, device: torch.device, instead: str) -> None:
    """Warns of each of these (name, device) in host memory: its rows are copied to the GPU for every batch."""
    for name, where in found:
        if where.type == "cpu":
            warn(
                f"{name} is in host memory: its rows are gathered there and copied to {device}, which is slower than "
                f"gathering them on {device}; use {instead}"
            )
