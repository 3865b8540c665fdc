"""The class of batches: that of the data, unless it would hide fields that a loader puts into its batches."""

from __future__ import annotations

import copy
from typing import Any

from torch_geometric.data import Batch, Data, HeteroData

from .._warn import warn
from ..sampler.base import OWN_FIELDS

_COMPUTED = frozenset(("num_nodes",))
"""Fields that a subclass may define: batches have them where the data have."""
_OF_BATCH = ("_num_graphs", "_slice_dict", "_inc_dict")
"""What a Batch knows of its graphs beside its attributes."""
_POINTER = "ptr"


def hidden_fields(kind: type) -> list[str]:
    """The fields of batches, by name, that a subclass of Data or HeteroData hides by properties, methods or values."""
    if kind in (Data, HeteroData):
        return []
    known = (HeteroData if issubclass(kind, HeteroData) else Data).__mro__
    defined = {name for base in kind.__mro__ if base not in known for name in vars(base)}
    return sorted(defined & (OWN_FIELDS - _COMPUTED))


def as_batch(data: Data | HeteroData) -> Any:
    """A copy of the data whose attributes can be replaced: of their class or, if it hides fields of batches, a Data or
    HeteroData. That of a PyG Batch knows nothing of its graphs, whose nodes it has only some of."""
    batch = copy.copy(data)
    if hidden_fields(type(data)):  # Data's own __setattr__ would take the class for an attribute
        object.__setattr__(batch, "__class__", HeteroData if isinstance(data, HeteroData) else Data)
    if isinstance(data, Batch):
        for name in _OF_BATCH:
            batch.__dict__.pop(name, None)
        for store in batch.stores:
            store.pop(_POINTER, None)
    return batch


def check_classes(data: Any, custom_cls: Any) -> None:
    """Warns if batches are of another class than the data that a loader gets; says nothing of a Batch, whose batches
    are no batches of graphs.

    Raises:
        ValueError: ``custom_cls`` hides fields of batches.
    """
    if isinstance(custom_cls, type) and (hidden := hidden_fields(custom_cls)):
        raise ValueError(
            f"custom_cls: expected a class without {', '.join(hidden)}, which a loader puts into its batches, found "
            f"{custom_cls.__name__}"
        )
    if isinstance(data, (Data, HeteroData)) and not isinstance(data, Batch) and (hidden := hidden_fields(type(data))):
        plain = "HeteroData" if isinstance(data, HeteroData) else "Data"
        warn(
            f"batches are of class {plain}, because {', '.join(hidden)} of {type(data).__name__} would hide what the "
            f"loader puts there"
        )
