"""The contract between loaders and feature stores: what is asked of one besides PyG's own methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import TensorAttr
from torch_geometric.typing import NodeType

from ..topology.numbering import Numbering


class RowStore(PyGFeatureStore):
    """A PyG FeatureStore that tells loaders how its rows may be read; to be derived from.

    A store that is only PyG's is read in the thread that iterates. It may have the attributes ``thread_safe`` and
    ``collective`` of its own.
    """

    thread_safe: bool = True
    """Whether several threads may read rows at once, so that they are read ahead."""
    collective: bool = False
    """Whether all ranks of a process group read together: then one thread reads, in the order of the batches."""
    order: Numbering | None = None
    """How the store numbers nodes, if not as the user does."""
    stream_device: torch.device | None = None
    """The GPU on which rows are gathered, if they never change, so that any of its streams may read them."""

    def all_attrs(self) -> list[TensorAttr]:
        """One attribute for every tensor, its index unset, those of a homogeneous graph's edges included."""
        return self.get_all_tensor_attrs()

    def num_rows(self, attr: TensorAttr) -> int:
        """How many rows an attribute has."""
        size = self.get_tensor_size(attr)
        assert size is not None
        return size[0]

    def check_graph(self, hetero: bool, num_nodes: Mapping[NodeType | None, int]) -> None:
        """Raises if the rows are not those of a graph; called when a loader is made.

        Args:
            hetero: whether the graph has types.
            num_nodes: the number of nodes of each type, as far as it is known.

        Raises:
            ValueError: an attribute with fewer rows than nodes, or of no type beside a graph of several, whose batches
                would not have it.
        """
        attrs = self.all_attrs()
        for attr in attrs:
            count = num_nodes.get(attr.group_name)
            if count is not None and (found := self.num_rows(attr)) < count:
                name = (attr.group_name, attr.attr_name)
                raise ValueError(f"data: expected a row of {name} for each of {count} nodes, found {found}")
        if hetero and (names := [attr.attr_name for attr in attrs if attr.group_name is None]):
            raise ValueError(
                f"data: expected features of types of nodes or edges, as the graph has, found {names} of none"
            )

    def device_of(self, attr: TensorAttr) -> torch.device:
        """Where an attribute's rows are gathered: ids that lie there need not be copied."""
        return torch.device("cpu")


@dataclass
class BoundedAttr(TensorAttr):
    """What a loader asks a :class:`RowStore` for: ids that it knows to be in [0, ``below``)."""

    below: int = 0
    bounded: Tensor | None = None
    """The ids that this is known of: ``index`` itself, unless a store has replaced it."""

    @classmethod
    def covers(cls, attr: TensorAttr, num_rows: int) -> bool:
        """Whether the ids that ``attr`` asks for are known to be rows of so many."""
        return isinstance(attr, cls) and attr.index is attr.bounded and attr.below <= num_rows


def all_attrs(store: PyGFeatureStore) -> list[TensorAttr]:
    """One attribute for every tensor of a store, ours or anybody's."""
    return store.all_attrs() if isinstance(store, RowStore) else store.get_all_tensor_attrs()


def may_be_read_by_threads(store: Any) -> bool:
    """Whether a store, ours or anybody's, says that several threads may read it at once."""
    return bool(getattr(store, "thread_safe", False))


def is_collective(store: Any) -> bool:
    """Whether a store, ours or anybody's, says that ranks read it together."""
    return bool(getattr(store, "collective", False))
