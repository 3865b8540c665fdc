"""PyG's FeatureStore over tensors in memory or memory-mapped files."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, TensorAttr
from torch_geometric.data import FeatureStore as PyGFeatureStore

from .. import files, ops

KIND = "features"


class FeatureStore(PyGFeatureStore):
    """A FeatureStore whose rows are gathered by the native operator."""

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["_tensors"] = {}  # (group, name) to tensor
        self.__dict__["_path"] = None

    @classmethod
    def from_data(cls, data: Data) -> FeatureStore:
        """A homogeneous store of all node-level tensors of a Data."""
        store = cls()
        for name, value in data.items():
            if data.is_node_attr(name) and isinstance(value, (Tensor, np.ndarray)):
                store.put_tensor(value, group_name=None, attr_name=name, index=None)
        return store

    # PyG's abstract methods ##########################################################################################

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        tensor = torch.from_numpy(tensor) if isinstance(tensor, np.ndarray) else tensor
        key = (attr.group_name, attr.attr_name)
        if attr.index is None:
            # The gather reads whole rows; this one copy is made here, not for each batch.
            self._tensors[key] = tensor if tensor.numel() == 0 or tensor[0].is_contiguous() else tensor.contiguous()
        else:
            if key not in self._tensors:
                raise KeyError(f"{key}: expected it to be put whole (index=None) before rows of it are changed")
            if self._path is not None:  # the mapped file is copied on write, but never change what others may hold
                self._tensors[key] = self._tensors[key].clone()
            self._tensors[key][attr.index] = tensor
        self.__dict__["_path"] = None
        return True

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        tensor = self._tensors.get((attr.group_name, attr.attr_name))
        index = attr.index
        if tensor is None or index is None:
            return tensor
        if isinstance(index, (slice, int)):
            return tensor[index]
        index = torch.as_tensor(index)
        if index.dtype == torch.bool:
            index = index.nonzero().view(-1)
        return ops.gather_rows(tensor, index)

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        self.__dict__["_path"] = None
        return self._tensors.pop((attr.group_name, attr.attr_name), None) is not None

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        tensor = self._tensors.get((attr.group_name, attr.attr_name))
        return None if tensor is None else tuple(tensor.shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """One attribute a tensor, its index unset."""
        return [self._tensor_attr_cls(group_name=group, attr_name=name) for group, name in self._tensors]

    # Files ###########################################################################################################

    def save(self, path: str | os.PathLike) -> None:
        """Writes the store into a new directory (see :mod:`torch_gnnscale.files`)."""
        names = [{"group": group, "name": name} for group, name in self._tensors]
        arrays = {str(i): tensor for i, tensor in enumerate(self._tensors.values())}
        files.save(path, KIND, arrays, {"tensors": names})

    @classmethod
    def open(cls, path: str | os.PathLike, verify: bool = True) -> FeatureStore:
        """Opens a saved store, memory-mapped; arguments and errors as :meth:`GraphStore.open`."""
        arrays, meta = files.load(path, KIND, verify)
        store = cls()
        try:
            for i, entry in enumerate(meta["tensors"]):
                store._tensors[(entry["group"], entry["name"])] = arrays[str(i)]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}: expected saved features, found {error}") from error
        store.__dict__["_path"] = os.fspath(path)
        return store

    def __reduce__(self):
        if self._path is not None:
            return _reopen, (self._path,)
        return _restore, (dict(self._tensors),)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({ {key: tuple(value.shape) for key, value in self._tensors.items()} })"


def _reopen(path: str) -> FeatureStore:
    return FeatureStore.open(path, verify=False)


def _restore(tensors: dict) -> FeatureStore:
    store = FeatureStore()
    store._tensors.update(tensors)
    return store
