"""Graphs in .npz archives: where they are, and how their features are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData


def candidates(name: str, root: str | Path) -> list[Path]:
    """Where an archive of that name may be."""
    return [Path(root) / f"{name}.npz", Path(root) / name / f"{name}.npz"]


def read(name: str, root: str | Path, needed: str) -> dict[str, np.ndarray]:
    """All arrays of the archive ``NAME.npz`` or ``NAME/NAME.npz`` below ``root``.

    Raises:
        ValueError: there is none; says that ``needed`` was expected, and where it was looked for.
    """
    files = candidates(name, root)
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise ValueError(
            f"dataset {name!r}: expected {needed}, found neither {files[0]} nor {files[1]} (--root, by default the "
            f"folder that the environment variable GNNSCALE_DATA names)"
        )
    with np.load(file) as arrays:
        return {key: arrays[key] for key in arrays.files}


def rows(arrays: Mapping[str, np.ndarray], of_type: str = "") -> Tensor | None:
    """Feature rows of nodes: ``x`` (float32), or ``x_indptr``, ``x_indices``, ``x_dim`` and perhaps ``x_data``, CSR.

    Rows in CSR become uint8 where their values are integers up to 255, else float32; without ``x_data`` they are 1.
    ``of_type`` is what follows the names: ``__TYPE`` for the nodes of a type. None if there are no features.
    """
    if f"x{of_type}" in arrays:
        return torch.from_numpy(arrays[f"x{of_type}"].astype(np.float32))
    if f"x_indptr{of_type}" not in arrays:
        return None
    degree = np.diff(arrays[f"x_indptr{of_type}"])
    data = arrays.get(f"x_data{of_type}", np.uint8(1))
    small = data.dtype.kind in "iu" and data.size > 0 and data.min() >= 0 and data.max() <= 255
    x = torch.zeros(len(degree), int(arrays[f"x_dim{of_type}"]), dtype=torch.uint8 if small else torch.float32)
    x.numpy()[np.repeat(np.arange(len(degree)), degree), arrays[f"x_indices{of_type}"].astype(np.int64)] = data
    return x


def ids(array: np.ndarray) -> Tensor:
    """Ids of any integer type as int64."""
    return torch.from_numpy(array.astype(np.int64))


def hetero_graph(arrays: Mapping[str, np.ndarray]) -> HeteroData:
    """A graph of several node types.

    Its arrays: for each node type T ``num_nodes__T`` and features (see :func:`rows`), and for each relation R from S to
    T ``edge_index__S__R__T``.
    """
    data = HeteroData()
    for key in arrays:
        if key.startswith("num_nodes__"):
            node_type = key.removeprefix("num_nodes__")
            x = rows(arrays, f"__{node_type}")
            if x is None:
                data[node_type].num_nodes = int(arrays[key])
            else:
                data[node_type].x = x
    for key in arrays:
        if key.startswith("edge_index__"):
            src, rel, dst = key.removeprefix("edge_index__").split("__")
            data[src, rel, dst].edge_index = ids(arrays[key])
    return data
