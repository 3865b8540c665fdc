"""The attributes of nodes and edges that are put into tiers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from .. import ops
from .._warn import warn
from .attributes import EDGES, typed_storages
from .composite import Composite, Composites
from .feature_store import HOMOGENEOUS_EDGES, KIND, FeatureStore
from .tier_builder import Source
from .tiered_rows import FileRows


def check_names(names: Any) -> None:
    """Raises TypeError unless ``names`` is a list or None."""
    if isinstance(names, str) or not isinstance(names, (Sequence, type(None))):
        raise TypeError(f"names: expected a list of attributes' names, found {names!r}")


def whole_names(composites: Composites, names: Sequence[str] | None) -> Sequence[str] | None:
    """``names``, in which a composite's name stands for those of its tensors."""
    if names is None:
        return None
    parts = {name: list[str]() for _, name in composites}
    for (_, name), composite in composites.items():
        parts[name] += composite.parts
    return list(dict.fromkeys(part for name in names for part in parts.get(name, [name])))


def composites_of(composites: Composites, keys: Collection[tuple[Any, str]]) -> dict[tuple[Any, str], Composite]:
    """The composites all of whose tensors are among ``keys``."""
    return {
        (group, name): whole
        for (group, name), whole in composites.items()
        if all((group, part) in keys for part in whole.parts)
    }


def attributes_of(
    data: Data | HeteroData, names: Sequence[str] | None, edges: bool
) -> tuple[dict[tuple[Any, str], Tensor], Composites]:
    """The attributes of nodes, and with ``edges`` of edges, that ``names`` asks for, by (group, name); all of them
    without ``names``. Groups are those of :meth:`FeatureStore.from_data`. Beside them, the composites of which they are
    the tensors.

    Raises:
        TypeError, ValueError: ``names`` is no list, or names others; a tensor that is not a plain one in host memory.
        NotImplementedError: an attribute that tiers do not hold.
    """
    check_names(names)
    whole = FeatureStore._from_data(data)
    names = whole_names(whole.composites, names)
    stored = {*whole._tensors, *whole.composites}
    found = {key: tensor for key, tensor in whole._tensors.items() if edges or not isinstance(key[0], tuple)}
    named = {name for _, name in found}
    others = {name: "edges' attributes" for key in whole._tensors if key not in found and (name := key[1]) not in named}
    for storage in typed_storages(data):
        groups = {storage.type_name} | ({HOMOGENEOUS_EDGES} if storage.type_name is None else set())
        for name in storage.store:
            kind = None if name in EDGES else storage.rows_of(name)
            if kind is not None and (edges or kind == "nodes") and stored.isdisjoint((g, name) for g in groups):
                others[name] = f"lists, and of tensors with a column for each {kind[:-1]},"
    for what in dict.fromkeys(others.values()):
        if wrong := [name for name, kind in others.items() if kind == what and (names is None or name in names)]:
            raise NotImplementedError(f"tiers of {what} are not implemented, found {wrong}; name the others by names=")
    known = list(dict.fromkeys(name for _, name in found))
    if (missing := [name for name in names or () if name not in named]) or not found:
        raise ValueError(f"names: expected some of {known}, found {missing}")
    labels = {storage.type_name: storage.label for storage in typed_storages(data)}
    labels |= {HOMOGENEOUS_EDGES: labels[None]} if None in labels else {}
    chosen = {key: tensor for key, tensor in found.items() if names is None or key[1] in names}
    for (group, name), tensor in chosen.items():
        label = labels[group](name)
        if tensor.device.type != "cpu" or not ops.can_gather_rows(tensor):
            what = f"{type(tensor).__name__}, {tensor.layout}, {tensor.device}"
            raise ValueError(f"{label}: expected a plain tensor in host memory, found {what}")
        if tensor.requires_grad:
            warn(f"{label} requires grad: tiers hold a copy, which does not learn; use a Data or FeatureStore")
    return chosen, composites_of(whole.composites, chosen.keys())


def sources_of(
    data: Data | HeteroData, names: Sequence[str] | None, storage: torch.dtype | None
) -> tuple[list[Source], Composites]:
    """:func:`attributes_of` nodes and edges, stored in ``storage`` (float16 or bfloat16; None: each in its own dtype).

    Raises:
        TypeError, ValueError, NotImplementedError: as of :func:`attributes_of`; another ``storage``.
    """
    chosen, composites = attributes_of(data, names, edges=True)
    if storage not in (None, torch.float16, torch.bfloat16):
        raise TypeError(f"storage: expected torch.float16 or torch.bfloat16, found {storage}")
    if storage is not None and not any(ops.can_widen(storage, tensor.dtype) for tensor in chosen.values()):
        found = ", ".join(f"{name} of {tensor.dtype}" for (_, name), tensor in chosen.items())
        warn(f"storage={storage} has no effect: expected attributes of float32 or float64, found {found}")
    sources = [
        Source(key, tensor.detach(), storage if storage and ops.can_widen(storage, tensor.dtype) else tensor.dtype)
        for key, tensor in chosen.items()
    ]
    return sources, composites


def saved_sources(saved: FeatureStore, names: Sequence[str] | None) -> tuple[list[Source], Composites]:
    """The attributes of an opened store, whose rows stay in its files.

    Raises:
        TypeError, ValueError: ``names`` is no list, or names others.
    """
    check_names(names)
    names = whole_names(saved.composites, names)
    known = list(dict.fromkeys(name for _, name in saved._tensors))
    if missing := [name for name in names or () if name not in known]:
        raise ValueError(f"names: expected some of {known}, found {missing}")
    sources = [
        Source(key, tensor, tensor.dtype, FileRows(folder, KIND, array, 0))
        for key, tensor in saved._tensors.items()
        for folder, array in [saved._origins[key]]
        if names is None or key[1] in names
    ]
    return sources, composites_of(saved.composites, {source.key for source in sources})
