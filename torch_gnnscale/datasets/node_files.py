"""Rows, labels and data splits of the nodes of a graph, from files beside its edges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..splits import SUBSETS
from .archives import loaded

ROW_TYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
"""The NumPy dtypes of features."""


def read_rows(file: str | Path) -> Tensor:
    """Features of all nodes, memory-mapped: ``.npy`` of shape [N, F], a dtype of :data:`ROW_TYPES`.

    Raises:
        ValueError: names the file, what was expected and what was found.
        OSError: the file cannot be read.
    """
    rows = _vectors(file)
    if rows.ndim != 2 or str(rows.dtype) not in ROW_TYPES:
        raise ValueError(
            f"{file}: expected features of shape (nodes, features) and a type of {', '.join(ROW_TYPES)}, found shape "
            f"{rows.shape} and type {rows.dtype}"
        )
    return torch.from_numpy(rows)


def read_labels(file: str | Path) -> Tensor:
    """The class of each node: ``.npy`` of integers, shape [N] or [N, 1], -1 where it is unknown. int64, shape [N].

    Raises:
        ValueError, OSError: as of :func:`read_rows`.
    """
    labels = _vectors(file)
    if labels.dtype.kind not in "iu" or labels.ndim not in (1, 2) or labels.size != len(labels):
        raise ValueError(
            f"{file}: expected one class for each node, integers of shape (nodes,), found shape {labels.shape} and "
            f"type {labels.dtype}"
        )
    classes = torch.from_numpy(labels.astype(np.int64).reshape(-1))
    if len(classes) and (lowest := int(classes.min())) < -1:
        raise ValueError(f"{file}: expected classes of at least 0, or -1 where they are unknown, found {lowest}")
    return classes


def read_splits(file: str | Path, count: int) -> dict[str, Tensor]:
    """The masks of a data split: ``.npz`` of the arrays ``train``, ``val`` and ``test``, each of ids of nodes or a bool
    mask [N]; no node may be in two of them.

    Args:
        file: the archive.
        count: N, the number of nodes.

    Raises:
        ValueError, OSError: as of :func:`read_rows`.
    """
    arrays = loaded(Path(file))
    if isinstance(arrays, np.ndarray) or set(arrays) != set(SUBSETS):
        found = "a single array" if isinstance(arrays, np.ndarray) else sorted(arrays)
        raise ValueError(f"{file}: expected an archive (.npz) of the arrays {', '.join(SUBSETS)}, found {found}")
    masks: dict[str, Tensor] = {}
    for subset in SUBSETS:
        given, mask = arrays[subset], torch.zeros(count, dtype=torch.bool)
        if given.dtype == np.bool_:
            if given.shape != (count,):
                raise ValueError(f"{file}, {subset}: expected a mask of {count} nodes, found shape {given.shape}")
            mask = torch.from_numpy(given)
        elif given.ndim == 1 and (given.dtype.kind in "iu" or not given.size):
            for found in (given.min(), given.max()) if given.size else ():
                if not 0 <= found < count:
                    raise ValueError(f"{file}, {subset}: expected nodes in [0, {count}), found {found}")
            mask[torch.from_numpy(given.astype(np.int64))] = True
        else:
            raise ValueError(
                f"{file}, {subset}: expected ids of nodes, shape (m,), or a mask, found shape {given.shape} and type "
                f"{given.dtype}"
            )
        for other, taken in masks.items():
            if (both := (mask & taken).nonzero()).numel():
                raise ValueError(
                    f"{file}: expected each node in one split, found {int(both[0])} in {other} and {subset}"
                )
        masks[subset] = mask
    if not bool(masks["train"].any()):
        raise ValueError(f"{file}, train: expected at least one node, found none")
    return masks


def _vectors(file: str | Path) -> np.ndarray:
    """The array of a ``.npy`` file, mapped copy-on-write."""
    array = loaded(Path(file), mapped=True)
    if not isinstance(array, np.ndarray) or not array.ndim:
        raise ValueError(f"{file}: expected an array of a row for each node (.npy), found another")
    return array
