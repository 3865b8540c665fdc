"""PyG's FeatureStore over tensors in memory or memory-mapped files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData, TensorAttr

from .. import files, ops
from .._user import on_host, warn
from ..ops.arguments import check_ids, found_instead
from ..ops.rows import has_contiguous_rows
from ..topology.reorder import Numbering, Order, TypedOrder, order_arrays, orders_of, saved_order
from .attributes import EDGES, check_layout, typed_storages, unlike_rows
from .composite import Composite, is_composite, read_composites
from .contract import BoundedAttr, RowStore, Version, version_of

KIND = "features"
HOMOGENEOUS_EDGES = (None, None)
"""The group of the edges of a homogeneous graph."""


class FeatureStore(RowStore):
    """A FeatureStore whose rows are gathered by the native operator, or by torch on devices without the operator.

    A TensorFrame is stored as one tensor for each semantic type; batches have it whole, and so has ``get_tensor``.
    """

    composites: dict[tuple[Any, str], Composite]

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["_tensors"] = {}  # (group, name) to tensor
        self.__dict__["_own"] = set()  # (group, name) of tensors that the store copied before it changed rows of them
        self.__dict__["composites"] = {}
        self.__dict__["_origins"] = {}  # (group, name) of a mapped tensor to its (directory, array)

    @classmethod
    @on_host
    def from_data(cls, data: Data | HeteroData, *, order: Order | TypedOrder | None = None) -> FeatureStore:
        """A store of all tensors of a Data or HeteroData that have a row for each node or edge.

        Their groups are the node and edge types; in a homogeneous graph None and, as in PyG's LocalFeatureStore,
        (None, None). With ``order``, rows of nodes are copied in that order, beside a GraphStore of the same one. A
        warning names other attributes that have, or seem to have, an entry for each node or edge, such as lists.

        Raises:
            TypeError: ``data`` is neither, or ``order`` is not an Order, or with a HeteroData not a TypedOrder.
            ValueError: ``order`` is one of another number of nodes.
        """
        orders = orders_of(data, order)
        store = cls._from_data(data, orders)
        store.__dict__["order"] = order
        for label, found in [*unlike_rows(data), *store._left_out(data)]:
            warn(f"{label} has {found}: it is not in the store")
        return store

    @classmethod
    def _from_data(cls, data: Data | HeteroData, orders: dict[Any, Order] | None = None) -> FeatureStore:
        store, storages, orders = cls(), typed_storages(data), orders or {}
        groups = [(of.type_name, of.store) for of in storages if of.has_nodes]
        groups += [(of.type_name or HOMOGENEOUS_EDGES, of.store) for of in storages if of.has_edges]
        for group, stored in groups:
            of_edges = isinstance(group, tuple)
            for name, value in stored.items():
                if (
                    not (is_composite(value) or isinstance(value, (Tensor, np.ndarray)))
                    or data.__cat_dim__(name, value, stored) != 0
                ):
                    continue
                if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
                    continue  # strings, objects and times, which are no tensors
                if stored.is_edge_attr(name) if of_edges else stored.is_node_attr(name):
                    of_type = None if of_edges else orders.get(group)
                    whole, parts = Composite.of(name, value) if is_composite(value) else (None, {name: value})
                    if of_type is not None:
                        parts = {part: _reordered(name, rows, of_type) for part, rows in parts.items()}
                    store._check_new(group, parts)
                    for part, rows in parts.items():
                        store.put_tensor(rows, group_name=group, attr_name=part, index=None)
                    if whole is not None:
                        store.composites[group, name] = whole
        return store

    def _check_new(self, group: Any, names: Iterable[str], replaced: Sequence[str] = ()) -> None:
        """Raises ValueError if a name, perhaps of a tensor of a TensorFrame, is that of another tensor."""
        if taken := [name for name in names if (group, name) in self._tensors and name not in replaced]:
            raise ValueError(
                f"{(group, taken[0])}: expected an attribute of another name than the tensors of a TensorFrame, found "
                f"this name twice"
            )

    def _left_out(self, data: Data | HeteroData) -> Iterator[tuple[str, str]]:
        """(name for messages, what it has) per attribute with an entry for each node or edge that is not stored."""
        stored = {*self._tensors, *self.composites}
        for storage in typed_storages(data):
            groups = {storage.type_name} | ({HOMOGENEOUS_EDGES} if storage.type_name is None else set())
            for name, value in storage.store.items():
                if name in EDGES or stored.intersection((group, name) for group in groups):
                    continue
                if storage.has_rows(name):
                    is_row = data.__cat_dim__(name, value, storage.store) == 0
                    what = f"an entry of a {type(value).__name__}" if is_row else "a column"
                    yield storage.label(name), f"{what} for each node or edge"

    # PyG's abstract methods ##########################################################################################

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        key = (attr.group_name, attr.attr_name)
        if is_composite(tensor):
            if attr.index is not None:
                raise ValueError(
                    f"{key}: expected a TensorFrame to be put whole (index=None); rows of its tensors, "
                    f"{self.composites[key].parts if key in self.composites else []}, can be changed"
                )
            composite, parts = Composite.of(key[1], tensor)
            self._check_new(key[0], parts, self.composites[key].parts if key in self.composites else ())
            self._remove_tensor(attr)
            for part, rows in parts.items():
                self._put_tensor(rows, self._tensor_attr_cls(key[0], part, None))
            self.composites[key] = composite
            return True
        if isinstance(tensor, np.ndarray) and tensor.dtype.kind in "biufc":
            tensor = torch.from_numpy(tensor)
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{key}: expected a tensor or an array of numbers, found {found_instead(tensor)}")
        if attr.index is None:
            check_layout(key, tensor)
            if tensor.dim() == 0:
                raise ValueError(f"{key}: expected a row for each node, found a scalar")
            if (of := self._frame_of(key)) is not None and tensor.shape != (form := self._tensors[key].shape):
                raise ValueError(
                    f"{key}: expected shape {list(form)}, as it is a part of {of!r}, found {list(tensor.shape)}"
                )
            # The gather needs contiguous rows: copied once here, not for each batch. What learns is no copy.
            whole = tensor.layout != torch.strided or tensor.requires_grad or has_contiguous_rows(tensor)
            if key in self.composites:
                self._remove_tensor(attr)
            self._tensors[key] = tensor if whole else tensor.contiguous()
            self._own.discard(key)
        else:
            if key not in self._tensors:
                raise KeyError(f"{key}: expected it to be put whole (index=None) before rows of it are changed")
            if self._tensors[key].requires_grad:
                raise ValueError(
                    f"{key}: expected to be put whole (index=None), because it requires grad, and a copy in which rows "
                    f"are changed would not learn; or change the tensor itself, under torch.no_grad()"
                )
            if key not in self._own:  # what the user gave, or what is mapped, stays as it was
                self._tensors[key] = self._tensors[key].clone()
                self._own.add(key)
            try:
                self._tensors[key][attr.index] = tensor
            except (RuntimeError, IndexError) as error:  # other ids or shapes
                kind = IndexError if isinstance(error, IndexError) else ValueError
                raise kind(f"{key}: {error}") from None
        self._origins.pop(key, None)
        return True

    @on_host
    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        tensor = self._tensors.get((attr.group_name, attr.attr_name))
        index = attr.index
        if tensor is None or index is None:
            return tensor
        if isinstance(index, (slice, int)):
            return tensor[index]
        index = row_ids(index, tensor.size(0))
        known = BoundedAttr.covers(attr, tensor.size(0))
        try:
            if ops.can_gather_rows(tensor):
                return ops.select_rows(tensor, index.to(tensor.device), check=not known)
            check_ids("index", index, None if known else tensor.size(0), "rows")
        except IndexError as error:
            raise IndexError(f"{(attr.group_name, attr.attr_name)}: {error}") from None
        return tensor.index_select(0, index.to(tensor.device))

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        key = (attr.group_name, attr.attr_name)
        if (whole := self.composites.pop(key, None)) is not None:
            return all([self._remove_tensor(self._tensor_attr_cls(key[0], part)) for part in whole.parts])
        if (name := self._frame_of(key)) is not None:
            raise ValueError(f"{key}: expected the TensorFrame {name!r} to be removed, of which this is a part")
        self._origins.pop(key, None)
        self._own.discard(key)
        return self._tensors.pop(key, None) is not None

    def _frame_of(self, key: tuple[Any, str]) -> str | None:
        """The name of the TensorFrame of which a tensor is a part, if it is one."""
        return next(
            (of for (group, of), whole in self.composites.items() if group == key[0] and key[1] in whole.parts), None
        )

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        tensor = self._tensors.get((attr.group_name, attr.attr_name))
        return None if tensor is None else tuple(tensor.shape)

    def update_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """Replaces a tensor, or the rows that ``index`` names in a copy of it; the copy is made the first time."""
        return self.put_tensor(tensor, *args, **kwargs)  # PyG's would remove the whole tensor first

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """One attribute per tensor, its index unset; without those of a homogeneous graph's edges, group (None, None).

        PyG's Data leaves these out as well, because PyG's loaders would index them by node ids. The loaders of this
        package call :meth:`all_attrs`.
        """
        return [attr for attr in self.all_attrs() if attr.group_name != HOMOGENEOUS_EDGES]

    # What our loaders ask (RowStore) #################################################################################

    def all_attrs(self) -> list[TensorAttr]:
        """One attribute per tensor, its index unset, those of a homogeneous graph's edges included."""
        return [self._tensor_attr_cls(group_name=group, attr_name=name) for group, name in list(self._tensors)]

    def num_rows(self, attr: TensorAttr) -> int:
        """How many rows an attribute has."""
        return self._tensors[attr.group_name, attr.attr_name].shape[0]

    def versions(self) -> dict[tuple[Any, str], Version]:
        """The versions of all tensors; see :meth:`RowStore.versions`."""
        return {key: version_of(tensor) for key, tensor in self._tensors.copy().items()}

    def device_of(self, attr: TensorAttr) -> torch.device:
        """Where an attribute's rows are, and are gathered."""
        return self._tensors[attr.group_name, attr.attr_name].device

    # Files ###########################################################################################################

    def file_of(self, attr: TensorAttr) -> tuple[str, str] | None:
        """The directory of a saved store and the name of the array there that an attribute is mapped from; None for one
        in memory."""
        return self._origins.get((attr.group_name, attr.attr_name))

    def save(self, path: str | os.PathLike) -> None:
        """Writes the store into a new directory (see :mod:`torch_gnnscale.files`), or nothing at all.

        Raises:
            FileExistsError: ``path`` exists and is not an empty directory.
            ValueError: an attribute that is sparse or not in host memory, or has a name that JSON does not keep.
            NotImplementedError: ``order`` is a Numbering that is neither an Order nor a TypedOrder.
            OSError: a file that cannot be written.
        """
        names = [{"group": files.check_name(group), "name": files.check_name(name)} for group, name in self._tensors]
        arrays = {str(i): tensor for i, tensor in enumerate(self._tensors.values())}
        called = {str(i): str(key) for i, key in enumerate(self._tensors)}
        orders, named = order_arrays(self.order)
        called |= dict.fromkeys(orders, "the order of the nodes")
        whole = [composite.entry(group) for (group, _), composite in self.composites.items()]
        meta = {"tensors": names} | ({"composites": whole} if whole else {}) | named
        files.save(path, KIND, arrays | orders, meta, called)

    @classmethod
    @on_host
    def open(cls, path: str | os.PathLike, verify: bool = True) -> FeatureStore:
        """Opens a saved store, memory-mapped; arguments and errors as :meth:`GraphStore.open`."""
        arrays, meta = files.load(path, KIND, verify)
        store = cls()
        with files.described(Path(path) / files.MANIFEST, "saved features"):
            for i, entry in enumerate(meta["tensors"]):
                key = (files.read_name(entry["group"]), entry["name"])
                store._tensors[key] = arrays[str(i)]
                store._origins[key] = (os.path.abspath(path), str(i))
            store.composites.update(read_composites(meta.get("composites", []), store._tensors))
        with files.described(Path(path) / "order*.npy", "saved features"):
            store.__dict__["order"] = saved_order(arrays, meta, {})
        return store

    def __reduce__(self):
        # Of mapped tensors only the files' names are pickled: the other process maps the same pages.
        in_memory = {key: value for key, value in self._tensors.items() if key not in self._origins}
        return _restore, (list(self._tensors), in_memory, dict(self._origins), self.order, self.composites)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({ {key: tuple(value.shape) for key, value in self._tensors.items()} })"


def row_ids(index: Any, num_rows: int) -> Tensor:
    """The rows that an index of PyG means: ids in a tensor, array, list or range, or a mask; IndexError for a mask of
    another length."""
    ids = torch.as_tensor(index)
    if not isinstance(index, Tensor) and ids.numel() == 0:
        ids = ids.to(torch.int64)  # an empty list knows no type
    if ids.dtype == torch.bool:
        if ids.shape != (num_rows,):
            raise IndexError(f"index: expected a mask of {num_rows} rows, found shape {tuple(ids.shape)}")
        ids = ids.nonzero().view(-1)
    return ids


def _reordered(name: str, rows: Tensor | np.ndarray, order: Order) -> Tensor:
    """The rows in the order of the store."""
    tensor = torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows
    if len(tensor) != len(order.old):
        raise ValueError(f"order: expected one of {len(tensor)} nodes, as {name!r} has, found {len(order.old)}")
    return ops.gather_rows(tensor, order.old) if ops.can_gather_rows(tensor) else tensor.index_select(0, order.old)


def _restore(
    keys: list, in_memory: dict, origins: dict, order: Numbering | None, composites: dict[tuple[Any, str], Composite]
) -> FeatureStore:
    store = FeatureStore()
    opened = {path: files.load(path, KIND, verify=False)[0] for path in {path for path, _ in origins.values()}}
    mapped = {key: opened[path][name] for key, (path, name) in origins.items()}
    store._tensors.update((key, in_memory[key] if key in in_memory else mapped[key]) for key in keys)
    store._origins.update(origins)
    store.composites.update(composites)
    store.__dict__["order"] = order
    return store
