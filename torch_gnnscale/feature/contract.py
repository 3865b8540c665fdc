"""The contract of feature stores: what loaders ask besides the methods of PyG's FeatureStore."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import TensorAttr
from torch_geometric.typing import NodeType

from ..comm.mesh import Ranks
from ..comm.steps import Steps
from ..topology.reorder import Numbering
from .composite import Composites

Version: TypeAlias = tuple[Any, int | None]
"""(what the rows of an attribute are read from, compared by identity; how often it was changed). Without a number, the
rows are read by the thread that iterates, when their batch is delivered."""


def version_of(value: Any) -> Version:
    """The version of an attribute's value. It has no number if the value requires grad, so that the graph of autograd
    is made where the model runs. Changes of what is no tensor, or has no version, are not seen."""
    if isinstance(value, Tensor):
        if value.requires_grad and torch.is_grad_enabled():
            return value, None
        try:
            return value, value._version
        except RuntimeError:  # an inference tensor
            pass
    return value, 0


def changed(then: Mapping[Any, Version], now: Mapping[Any, Version]) -> list[Any]:
    """The keys of attributes whose versions differ or have no number, those that only one mapping has included."""
    found = []
    for key, (of, number) in now.items():
        was = then.get(key)
        if was is None or number is None or was[0] is not of or was[1] != number:
            found.append(key)
    if found or len(then) != len(now):
        found += [key for key in then if key not in now]
    return found


def without_number(versions: Mapping[Any, Version]) -> list[Any]:
    """The keys of attributes whose versions have no number."""
    return [key for key, (_, number) in versions.items() if number is None]


class RowStore(PyGFeatureStore):
    """Base class of feature stores that tell loaders how their rows may be read.

    A store that derives only from PyG's FeatureStore is read in the thread that iterates the loader, unless it defines
    the attributes ``thread_safe`` or ``collective`` itself. Its reads are taken to wait, unless it defines ``waits``.

    A store may have a method ``read_async(attr, ids)`` that starts to read and returns a future whose ``result()`` is
    the rows, [len(ids), ...]. Loaders then call it, from several threads at once, in place of ``get_tensor``.
    """

    thread_safe: bool = True
    """Whether several threads may read at once. The loader then reads the rows of later batches ahead of time."""
    waits: bool = False
    """Whether reads mostly wait, for a network or a database. As many are then under way as the loader prepares
    batches; otherwise, as many as there are cores."""
    collective: bool = False
    """Whether all ranks of a process group must read together. One thread then reads, batch after batch."""
    ranks: Ranks | None = None
    """The ranks that hold the parts of a partitioned graph; None for a store that has all rows."""
    order: Numbering | None = None
    """Maps the user's node ids to this store's, if they differ."""
    composites: Composites = MappingProxyType({})
    """The attributes whose rows are several tensors. These are attributes of the store; a batch has the whole."""
    stream_device: torch.device | None = None
    """The GPU that gathers the rows, if the rows never change; any of its streams may then read them."""

    def get_tensor(self, *args: Any, convert_type: bool = False, **kwargs: Any) -> Any:
        """As PyG's; of one of :attr:`composites`, a value of its type."""
        attr = self._tensor_attr_cls.cast(*args, **kwargs)
        if (whole := self.composites.get((attr.group_name, attr.attr_name))) is None:
            return super().get_tensor(attr, convert_type=convert_type)
        at = [attr.index] if isinstance(attr.index, int) else attr.index
        parts = [TensorAttr(attr.group_name, part, at) for part in whole.parts]
        return whole.joined({part.attr_name: super(RowStore, self).get_tensor(part) for part in parts})

    def all_attrs(self) -> list[TensorAttr]:
        """One attribute per stored tensor, with ``index`` unset, those of a homogeneous graph's edges included."""
        return self.get_all_tensor_attrs()

    def num_rows(self, attr: TensorAttr) -> int:
        """The number of rows of an attribute."""
        size = self.get_tensor_size(attr)
        assert size is not None
        return size[0]

    def check_graph(self, hetero: bool, num_nodes: Mapping[NodeType | None, int]) -> None:
        """Raises if the rows do not fit a graph; called when a loader is made.

        Args:
            hetero: whether the graph has types.
            num_nodes: the number of nodes of each type whose number is known.

        Raises:
            ValueError: an attribute has fewer rows than its type has nodes, or has no type although the graph has types
                (no batch would contain it).
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

    def refuse(self, why: str) -> None:
        """Called in place of what the ranks do together to make a loader, on a rank that does not make its loader.

        Args:
            why: the error, which the other ranks raise as a ValueError that names this one.
        """

    def versions(self) -> Mapping[tuple[Hashable, str], Version]:
        """The versions of the attributes whose rows may change while a loader reads ahead, by (group, name). Rows that
        were read from another version than that at their batch's delivery are read again."""
        return {}

    def device_of(self, attr: TensorAttr) -> torch.device:
        """The device that gathers an attribute's rows; ids on it are used without a copy."""
        return torch.device("cpu")


class CollectiveRowStore(RowStore):
    """A store that all ranks read together: in a step of a loader, each gets the rows that it asks for.

    ``multi_get_tensor`` answers only what needs no other rank.
    """

    thread_safe = False
    collective = True

    open_steps: Callable[..., Steps]
    """Opens the steps of one loader, which end with it. All ranks open those of their loaders in one order."""

    @abstractmethod
    def beyond_part(self, ids: Tensor, node_type: NodeType | None) -> str | None:
        """Where nodes (stored ids) are of other parts than this rank's, a text that says so; else None."""

    @abstractmethod
    def row_source(self, graph: Any, custom_cls: Any) -> Any:
        """Reads the rows of one loader's batches: a :class:`torch_gnnscale.loader.row_source.CollectiveSource`.

        Args:
            graph: the store of the edges.
            custom_cls: the loader's argument.
        """


@dataclass
class BoundedAttr(TensorAttr):
    """A request of a loader to a :class:`RowStore` whose ids are known to be in [0, ``below``)."""

    below: int = 0
    bounded: Tensor | None = None
    """The ids whose range is known. They are ``index`` itself, unless a store has put other ids there."""

    @classmethod
    def covers(cls, attr: TensorAttr, num_rows: int) -> bool:
        """Whether the ids of ``attr`` are known to be in [0, ``num_rows``)."""
        return isinstance(attr, cls) and attr.index is attr.bounded and attr.below <= num_rows


def all_attrs(store: PyGFeatureStore) -> list[TensorAttr]:
    """One attribute per stored tensor, of any PyG feature store; see :meth:`RowStore.all_attrs`. Where a store names no
    group, as a Data does, it is None."""
    if isinstance(store, RowStore):
        return store.all_attrs()
    attrs = store.get_all_tensor_attrs()
    for attr in attrs:
        if not attr.is_set("group_name"):
            attr.group_name = None
    return attrs


def may_be_read_by_threads(store: Any) -> bool:
    """The store's ``thread_safe``; for one that does not define it, whether it has ``read_async``."""
    return bool(getattr(store, "thread_safe", hasattr(store, "read_async")))


def reads_wait(store: Any) -> bool:
    """The store's ``waits``; True for one that does not define it. A store with ``read_async`` waits."""
    return hasattr(store, "read_async") or bool(getattr(store, "waits", True))


def is_collective(store: Any) -> bool:
    """The store's ``collective``; False for one that does not define it."""
    return bool(getattr(store, "collective", False))
