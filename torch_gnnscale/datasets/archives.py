"""Reads graphs from .npz archives."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData


class Arrays(dict[str, np.ndarray]):
    """The arrays of an archive by name; one that is missing is a ValueError that names it.

    Args:
        arrays: by name.
        expected: the beginning of that error's message, which says what was expected of which archive.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], expected: str) -> None:
        super().__init__(arrays)
        self._expected = expected

    def __missing__(self, key: str) -> np.ndarray:
        raise ValueError(f"{self._expected}, found no {key}")


def candidates(name: str, root: str | Path) -> list[Path]:
    """The two paths at which the archive of a data set may be."""
    return [Path(root) / f"{name}.npz", Path(root) / name / f"{name}.npz"]


def opened(file: Path, expected: str) -> Arrays:
    """All arrays of an archive; ``expected`` as of :class:`Arrays`. ValueError, which names the file, if it is not
    an archive."""
    arrays = loaded(file)
    if isinstance(arrays, np.ndarray):
        raise ValueError(f"{file}: expected an archive of arrays (.npz), found a single array")
    return Arrays(arrays, expected)


def loaded(file: Path, mapped: bool = False) -> np.ndarray | dict[str, np.ndarray]:
    """The array of a .npy file, or those of a .npz file by name; ValueError, which names the file, if it is neither.

    ``mapped``: the array of a .npy file is memory-mapped, copy-on-write.
    """
    try:
        found = np.load(file, mmap_mode="c" if mapped else None)
        if isinstance(found, np.ndarray):
            return found
        with found:
            return {key: found[key] for key in found.files}
    except (ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{file}: expected arrays of numbers (.npy or .npz), found something else or a damaged file"
        ) from error


def read(name: str, root: str | Path, needed: str) -> Arrays:
    """All arrays of the archive ``NAME.npz`` or ``NAME/NAME.npz`` below ``root``.

    Raises:
        ValueError: there is no such archive: the message has ``needed`` (which says what was expected) and both paths;
            or the file is not an archive, or is damaged.
    """
    files = candidates(name, root)
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise ValueError(
            f"dataset {name!r}: expected {needed}, found neither {files[0]} nor {files[1]} (--root, by default the "
            f"folder that the environment variable GNNSCALE_DATA names)"
        )
    return opened(file, f"dataset {name!r}: expected {needed}")


def features(arrays: Mapping[str, np.ndarray], suffix: str = "") -> Tensor | None:
    """Features of nodes, shape [N, F]; None if there are none.

    They are stored as ``x``, or in CSR form as ``x_indptr``, ``x_indices``, ``x_dim`` and optionally ``x_data`` (the
    values; by default all are 1). Features from ``x`` are float32; from CSR, uint8 if all values are integers in
    0..255, else float32. ``suffix`` is appended to the names of arrays: ``__TYPE`` for a node type.
    """
    if f"x{suffix}" in arrays:
        return torch.from_numpy(arrays[f"x{suffix}"].astype(np.float32))
    if f"x_indptr{suffix}" not in arrays:
        return None
    degree = np.diff(arrays[f"x_indptr{suffix}"])
    data = arrays.get(f"x_data{suffix}", np.uint8(1))
    small = data.dtype.kind in "iu" and data.size > 0 and data.min() >= 0 and data.max() <= 255
    x = torch.zeros(len(degree), int(arrays[f"x_dim{suffix}"]), dtype=torch.uint8 if small else torch.float32)
    x.numpy()[np.repeat(np.arange(len(degree)), degree), arrays[f"x_indices{suffix}"].astype(np.int64)] = data
    return x


def ids(array: np.ndarray) -> Tensor:
    """Ids of any integer type as an int64 tensor."""
    return torch.from_numpy(array.astype(np.int64))


def hetero_graph(arrays: Mapping[str, np.ndarray]) -> HeteroData:
    """A heterogeneous graph from its arrays.

    Per node type T: ``num_nodes__T`` and optionally features (see :func:`features`). Per relation R from S to T:
    ``edge_index__S__R__T``.
    """
    data = HeteroData()
    for key in arrays:
        if key.startswith("num_nodes__"):
            node_type = key.removeprefix("num_nodes__")
            x = features(arrays, f"__{node_type}")
            if x is None:
                data[node_type].num_nodes = int(arrays[key])
            else:
                data[node_type].x = x
    for key in arrays:
        if key.startswith("edge_index__"):
            src, rel, dst = key.removeprefix("edge_index__").split("__")
            data[src, rel, dst].edge_index = ids(arrays[key])
    return data
