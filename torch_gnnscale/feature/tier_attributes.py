"""The attributes of a Data that are put into tiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch_geometric.data import Data

from .. import ops
from .._warn import warn
from .feature_store import FeatureStore


def check_names(names: Any) -> None:
    """Raises TypeError unless ``names`` is a list or None."""
    if isinstance(names, str) or not isinstance(names, (Sequence, type(None))):
        raise TypeError(f"names: expected a list of attributes' names, found {names!r}")


def node_attributes(data: Data, names: Sequence[str] | None) -> dict[str, Tensor]:
    """The attributes of nodes that ``names`` asks for, by name; all of them without ``names``.

    Raises:
        TypeError, ValueError: ``names`` is no list, or names others; a tensor that is not a plain one in host memory.
        NotImplementedError: an attribute that tiers do not hold.
    """
    check_names(names)
    whole = FeatureStore._from_data(data)
    found = {name: tensor for (group, name), tensor in whole._tensors.items() if group is None}
    others = {name: "edges' attributes" for group, name in whole._tensors if group is not None and name not in found}
    for name in data.keys():  # noqa: SIM118 (a Data is no mapping)
        if name not in found and data.is_node_attr(name):
            others[name] = "lists, and of tensors with a column for each node,"
    for what in dict.fromkeys(others.values()):
        if wrong := [name for name, kind in others.items() if kind == what and (names is None or name in names)]:
            raise NotImplementedError(f"tiers of {what} are not implemented, found {wrong}; name the others by names=")
    if (missing := [name for name in names or () if name not in found]) or not found:
        raise ValueError(f"names: expected some of {list(found)}, found {missing}")
    chosen = {name: tensor for name, tensor in found.items() if names is None or name in names}
    for name, tensor in chosen.items():
        if tensor.device.type != "cpu" or not ops.can_gather_rows(tensor):
            what = f"{type(tensor).__name__}, {tensor.layout}, {tensor.device}"
            raise ValueError(f"data.{name}: expected a plain tensor in host memory, found {what}")
        if tensor.requires_grad:
            warn(f"data.{name} requires grad: tiers hold a copy, which does not learn; use a Data or FeatureStore")
    return chosen
