"""Reads graphs from .npz archives, and from data sets of PyG and OGB, which these libraries read or download."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor
from torch_geometric import datasets
from torch_geometric.data import Data, HeteroData

from .. import machine
from .._library import needed

_LARGEST = 1 << 62


class Arrays(Mapping[str, np.ndarray]):
    """The arrays of an archive by name. Each is read when it is asked for.

    All methods raise ValueError, which names the archive, for an array that is missing, or of another shape, type or
    range than they expect.

    Args:
        file: the archive.
        expected: the beginning of the message about an array that is missing: what was expected of which archive.
    """

    def __init__(self, file: Path, expected: str) -> None:
        self.file, self._expected = file, expected
        with _reading(file) as found:
            if isinstance(found, np.ndarray):
                raise ValueError(f"{file}: expected an archive of arrays (.npz), found a single array")
            self._names = list(found.files)

    def need(self, *keys: str) -> None:
        """Raises ValueError for the first of these arrays that is missing."""
        for key in keys:
            if key not in self._names:
                raise ValueError(f"{self._expected}, found no {key}")

    def __getitem__(self, key: str) -> np.ndarray:
        self.need(key)
        with _reading(self.file) as found:
            return found[key]

    def __contains__(self, key: object) -> bool:
        return key in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def get(self, key: str, default: Any = None) -> Any:
        """The array, or ``default`` if there is none of this name."""
        return self[key] if key in self._names else default

    def number(self, key: str) -> int:
        """An integer of at least 0."""
        array = self[key]
        if array.size != 1 or array.dtype.kind not in "iu" or not 0 <= int(array.reshape(-1)[0]) < _LARGEST:
            found = array.reshape(-1)[0] if array.size == 1 else f"shape {array.shape}"
            raise self.wrong(key, "one integer of at least 0", found)
        return int(array.reshape(-1)[0])

    def integers(self, key: str, least: int = -_LARGEST, below: int = _LARGEST) -> Tensor:
        """Integers in [least, below), of any shape: int64."""
        array = self[key]
        kind = array.dtype.kind
        if kind not in "biuf" or (kind == "f" and not (np.isfinite(array).all() and (array == np.rint(array)).all())):
            raise self.wrong(key, "integers", f"{array.dtype} of shape {array.shape}")
        if array.size and not (least <= array.min() and array.max() < below):
            found = array.min() if array.min() < least else array.max()
            raise self.wrong(key, f"numbers in [{least}, {below})", found)
        return torch.from_numpy(array.astype(np.int64))

    def edges(self, key: str, num_src: int = _LARGEST, num_dst: int = _LARGEST) -> Tensor:
        """Sources in [0, num_src) and destinations in [0, num_dst): int64, shape [2, E]."""
        edges = self.integers(key, 0, max(num_src, num_dst))
        if edges.dim() != 2 or len(edges) != 2:
            raise self.wrong(key, "sources and destinations, shape (2, edges)", f"shape {tuple(edges.shape)}")
        for end, count in zip(edges, (num_src, num_dst), strict=True):
            if len(end) and int(end.max()) >= count:
                raise self.wrong(key, f"nodes in [0, {count})", int(end.max()))
        return edges

    def mask(self, key: str, count: int) -> Tensor:
        """A mask of ``count`` nodes: bool, shape [count], or [count, S] for S data splits."""
        mask = self[key]
        if mask.dtype != np.bool_ or mask.ndim not in (1, 2) or len(mask) != count:
            raise self.wrong(key, f"a mask of {count} nodes", f"{mask.dtype} of shape {mask.shape}")
        return torch.from_numpy(mask)

    def split_of(self, key: str, count: int) -> Tensor:
        """The data split of ``count`` edges: 0 for training, 1 for validation, 2 for testing: int64, shape [count]."""
        number = self.integers(key, 0, 3)
        if number.shape != (count,):
            raise self.wrong(key, f"the splits of {count} edges", f"shape {tuple(number.shape)}")
        return number

    def features(self, suffix: str = "") -> Tensor | None:
        """Features of nodes, shape [N, F]; None if there are none.

        They are stored as ``x``, or in CSR form as ``x_indptr``, ``x_indices``, ``x_dim`` and optionally ``x_data``
        (the values; by default all are 1). Features from ``x`` are float32; from CSR, uint8 if all values are integers
        in 0..255, else float32. ``suffix`` is appended to the names of arrays: ``__TYPE`` for a node type.
        """
        names = {name: f"{name}{suffix}" for name in ("x", "x_indptr", "x_indices", "x_dim", "x_data")}
        if names["x"] in self:
            rows = self[names["x"]]
            if rows.dtype.kind not in "biuf" or rows.ndim < 1:
                raise self.wrong(names["x"], "features, shape (nodes, features)", f"{rows.dtype} of shape {rows.shape}")
            return torch.from_numpy(np.ascontiguousarray(rows, np.float32))  # a DataFrame is saved by column
        if names["x_indptr"] not in self:
            return None
        width = self.number(names["x_dim"])
        pointer, column = self.integers(names["x_indptr"], 0), self.integers(names["x_indices"], 0, width)
        if pointer.dim() != 1 or not len(pointer) or int(pointer[0]) != 0 or bool((pointer.diff() < 0).any()):
            raise self.wrong(names["x_indptr"], "numbers that rise from 0", "others")
        degree, count = pointer.diff(), len(pointer) - 1
        if column.shape != (int(pointer[-1]),):
            raise self.wrong(names["x_indices"], f"{int(pointer[-1])} columns", f"shape {tuple(column.shape)}")
        data = self.get(names["x_data"], np.uint8(1))
        if data.dtype.kind not in "biuf" or data.shape not in ((), tuple(column.shape)):
            raise self.wrong(names["x_data"], f"{len(column)} values", f"{data.dtype} of shape {data.shape}")
        small = data.dtype.kind in "iu" and data.size > 0 and data.min() >= 0 and data.max() <= 255
        needed, there = count * width * (1 if small else 4), machine.available_memory()
        if needed > there:
            raise self.wrong(names["x_dim"], f"features that {there} bytes of memory hold", f"{count} rows of {width}")
        x = torch.zeros(count, width, dtype=torch.uint8 if small else torch.float32)
        x.numpy()[np.repeat(np.arange(count), degree.numpy()), column.numpy()] = data
        return x

    def wrong(self, key: str, expected: str, found: Any) -> ValueError:
        """The error about an array."""
        return ValueError(f"{self.file}, {key}: expected {expected}, found {found}")


def candidates(name: str, root: str | Path) -> list[Path]:
    """The two paths at which the archive of a data set may be; of a name with .npz, itself and below ``root``."""
    if name.endswith(".npz"):
        return [Path(name), Path(root) / name]
    return [Path(root) / f"{name}.npz", Path(root) / name / f"{name}.npz"]


@contextmanager
def _reading(file: Path, mapped: bool = False) -> Iterator[Any]:
    """What NumPy opens: an array, or an archive, whose members are read in the block. ValueError, which names the file,
    if it is neither, or damaged."""
    try:
        found = np.load(file, mmap_mode="c" if mapped else None)
    except _DAMAGE as error:
        raise _damaged(file) from error
    if isinstance(found, np.ndarray):
        yield found
        return
    with found:
        try:
            yield found
        except _DAMAGE as error:
            raise _damaged(file) from error


_DAMAGE = (ValueError, EOFError, BadZipFile, zlib.error, NotImplementedError, OverflowError, MemoryError)
"""What reading a file that is damaged or foreign raises."""


def _damaged(file: Path) -> ValueError:
    return ValueError(f"{file}: expected arrays of numbers (.npy or .npz), found something else or a damaged file")


def loaded(file: Path, mapped: bool = False) -> np.ndarray | dict[str, np.ndarray]:
    """The array of a .npy file, or those of a .npz file by name; ValueError, which names the file, if it is neither.

    ``mapped``: the array of a .npy file is memory-mapped, copy-on-write.
    """
    with _reading(file, mapped) as found:
        return found if isinstance(found, np.ndarray) else {key: found[key] for key in found.files}


def read(name: str, root: str | Path, needed: str) -> Arrays:
    """The archive ``NAME.npz`` or ``NAME/NAME.npz`` below ``root``, or at the path NAME that ends in .npz.

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
    return Arrays(file, f"dataset {name!r}: expected {needed}")


def hetero_graph(arrays: Arrays) -> HeteroData:
    """A heterogeneous graph from its arrays.

    Per node type T: ``num_nodes__T`` and optionally features (see :meth:`Arrays.features`). Per relation R from S to T:
    ``edge_index__S__R__T``.
    """
    data, counts = HeteroData(), {}
    for key in arrays:
        if key.startswith("num_nodes__"):
            node_type = key.removeprefix("num_nodes__")
            counts[node_type] = arrays.number(key)
            x = arrays.features(f"__{node_type}")
            if x is None:
                data[node_type].num_nodes = counts[node_type]
            elif len(x) != counts[node_type]:
                raise arrays.wrong(key, f"{len(x)}, the number of rows of features", counts[node_type])
            else:
                data[node_type].x = x
    for key in arrays:
        if key.startswith("edge_index__"):
            edge_type = key.removeprefix("edge_index__").split("__")
            if len(edge_type) != 3 or not {edge_type[0], edge_type[2]} <= set(counts):
                raise arrays.wrong(key, f"a name of the form edge_index__S__R__T, S and T among {list(counts)}", key)
            src, rel, dst = edge_type
            data[src, rel, dst].edge_index = arrays.edges(key, counts[src], counts[dst])
    return data


PLANETOID = ("cora", "citeseer", "pubmed")
HETEROPHILOUS = ("roman-empire", "amazon-ratings", "minesweeper", "tolokers", "questions")
CLASSES = ("Actor", "DGraphFin", "Flickr", "Reddit", "Reddit2", "WikiCS")
"""The classes of torch_geometric.datasets that need nothing but a root and hold one graph with features, one class per
node, and masks for training, validation and testing."""


def from_pyg(name: str, root: Path) -> Data:
    """The graph of one of PyG's data sets.

    Args:
        name: a name that Planetoid or HeterophilousGraphDataset accept, or one of :data:`CLASSES`; upper and lower case
            are equal.
        root: the folder to read from or to download to. Classes use the subfolder of their name.

    Raises:
        ValueError: an unknown data set, or one that is not a node-classification task; names those that are.
        OSError: the data set could neither be read nor downloaded.
    """
    key = name.lower()
    classes = {known.lower(): known for known in CLASSES}
    if key in PLANETOID:
        with _downloading(name, root):
            return datasets.Planetoid(str(root), name)[0]
    if key in HETEROPHILOUS:
        with _downloading(name, root):
            return datasets.HeterophilousGraphDataset(str(root), name)[0]
    if key in classes:
        with _downloading(name, root):
            return getattr(datasets, classes[key])(str(root / classes[key]))[0]
    if key in (other.lower() for other in datasets.__all__):
        raise ValueError(
            f"dataset {name!r}: expected a class of torch_geometric.datasets that needs only a root and is one graph "
            f"with x, y and three masks of nodes ({', '.join(CLASSES)}), found another; for any other graph with these "
            f"attributes, call NodeTask.from_data(...).save(DIR) and pass --dataset DIR"
        )
    raise ValueError(
        f"dataset {name!r}: expected 'planted', a saved directory, {root}/{name}.npz, {root}/{name}/{name}.npz, an "
        f"'ogbn-' name or a data set of torch_geometric.datasets"
    )


def from_ogb(name: str, root: Path) -> Data:
    """The graph of one of OGB's node-classification data sets, with its data split as masks.

    Raises:
        ImportError: the package ogb is not installed.
        OSError: the data set could neither be read nor downloaded.
    """
    ogb = needed("ogb.nodeproppred", f"dataset {name!r} needs the package ogb: pip install ogb")
    with _downloading(name, root):
        dataset = ogb.PygNodePropPredDataset(name, str(root))
        data, split = dataset[0], dataset.get_idx_split()
    for key, name_of_ogb in (("train", "train"), ("val", "valid"), ("test", "test")):
        mask = torch.zeros(data.num_nodes, dtype=torch.bool)
        mask[split[name_of_ogb]] = True
        data[f"{key}_mask"] = mask
    return data


@contextmanager
def _downloading(name: str, root: Path) -> Iterator[None]:
    """Adds the data set's name and ``--root`` to errors; removes the empty folders that a failed download leaves."""
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    before = set(root.iterdir()) if root.is_dir() else set()
    try:
        yield
    except Exception as error:  # any type: from files, the network, or the downloading library
        new = [child for child in root.iterdir() if child not in before and child.is_dir()] if root.is_dir() else []
        for child in new:
            for folder, _, _ in os.walk(child, topdown=False):
                _remove_if_empty(Path(folder))
        for made in missing:
            _remove_if_empty(made)
        raise OSError(
            f"dataset {name!r}: expected its files in {root} (--root) or a connection to download them, found "
            f"{type(error).__name__}: {error}"
        ) from error


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
