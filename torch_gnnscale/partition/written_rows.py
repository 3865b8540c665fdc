"""What stores of written rows have in common: attributes that are known, and rows that never change."""

from __future__ import annotations

from typing import Any

from torch_geometric.data import TensorAttr

from ..feature.contract import RowStore
from .book import RowsMeta


class WrittenRows(RowStore):
    """Base of FeatureStores over rows of a partitioned graph. A subclass sets ``_attrs``, by group and name."""

    _attrs: dict[tuple[Any, str], RowsMeta]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        meta = self._attrs.get((attr.group_name, attr.attr_name))
        return None if meta is None else (meta.num_rows, *meta.shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """One attribute per tensor, its index unset; without those of a homogeneous graph's edges, as in PyG."""
        return [attr for attr in self.all_attrs() if attr.group_name != (None, None)]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise NotImplementedError("rows of a partitioned graph do not change; write the parts again")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise NotImplementedError("rows of a partitioned graph do not change; write the parts again")
