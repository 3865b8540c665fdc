"""Graphs of PyG's and OGB's data sets, which these libraries read from files or download."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch_geometric import datasets
from torch_geometric.data import Data

from .._library import needed

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
        with _reading(name, root):
            return datasets.Planetoid(str(root), name)[0]
    if key in HETEROPHILOUS:
        with _reading(name, root):
            return datasets.HeterophilousGraphDataset(str(root), name)[0]
    if key in classes:
        with _reading(name, root):
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
    with _reading(name, root):
        dataset = ogb.PygNodePropPredDataset(name, str(root))
        data, split = dataset[0], dataset.get_idx_split()
    for key, name_of_ogb in (("train", "train"), ("val", "valid"), ("test", "test")):
        mask = torch.zeros(data.num_nodes, dtype=torch.bool)
        mask[split[name_of_ogb]] = True
        data[f"{key}_mask"] = mask
    return data


@contextmanager
def _reading(name: str, root: Path) -> Iterator[None]:
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
