"""Node-classification tasks by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from .. import files
from ..feature import FeatureStore
from ..topology import GraphStore
from . import archives
from .downloads import from_ogb, from_pyg
from .planted import planted

ROC_AUC = {"minesweeper", "tolokers", "questions"}
"""Sets with two unbalanced classes, scored by the area under the ROC curve."""
FB100_WIDTHS = (11, 516, 516, 500)
"""Codes of the columns of a Facebook100 school: status, major, second major, dormitory (0: missing)."""


@dataclass
class NodeTask:
    """A graph, its labels, and who is trained, validated and tested on."""

    name: str
    data: Any
    """What a loader takes: a Data, or a (FeatureStore, GraphStore) pair."""
    y: Tensor
    """Class of each node, int64, shape [N]; -1 where unknown."""
    masks: dict[str, Tensor]
    """``train``, ``val`` and ``test``, bool, shape [N]."""
    num_features: int
    num_nodes: int
    num_edges: int
    metric: str = "accuracy"
    """``accuracy`` or ``roc_auc``."""
    node_type: str | None = None
    """The type of the labelled nodes in a heterogeneous graph."""

    def __str__(self) -> str:
        labelled = "nodes" if self.node_type is None else f"{self.node_type} nodes"
        return (
            f"{self.name}: {self.num_nodes:,} {labelled}, {self.num_edges:,} edges, {self.num_features} features, "
            f"{self.num_classes} classes, {int(self.masks['train'].sum()):,} training nodes"
        )

    @property
    def num_classes(self) -> int:
        """One more than the largest class."""
        return int(self.y.max()) + 1

    @classmethod
    def from_data(cls, name: str, data: Data, split: int = 0) -> NodeTask:
        """From a Data with ``x``, ``y`` and masks; of several splits (columns of the masks) takes number ``split``.

        Raises:
            ValueError: something is missing, or there is no split of that number.
        """
        masks = _labels(name, data, split)
        metric = "roc_auc" if name.lower().split("/")[-1] in ROC_AUC else "accuracy"
        return cls(name, data, data.y, masks, data.num_features, data.num_nodes, data.num_edges, metric)

    @classmethod
    def from_types(cls, name: str, data: HeteroData, node_type: str, split: int = 0) -> NodeTask:
        """From a HeteroData whose nodes of one type have what :meth:`from_data` asks for.

        Raises:
            ValueError: something is missing, or there is no split of that number.
        """
        store = data[node_type]
        masks = _labels(name, store, split)
        sizes = store.num_features, store.num_nodes, data.num_edges
        return cls(name, data, store.y, masks, *sizes, node_type=node_type)

    def save(self, path: str | Path) -> None:
        """Writes graph and node tensors into a new directory that ``load`` opens, memory-mapped, by its path.

        Raises:
            ValueError: the graph is heterogeneous.
        """
        if self.node_type is not None:
            raise ValueError(f"{self.name}: expected a homogeneous graph to save, found a heterogeneous one")
        if isinstance(self.data, Data):
            features, graph = FeatureStore.from_data(self.data), GraphStore.from_data(self.data)
        else:
            features, graph = self.data
        with files.creating(path) as folder:
            features.save(folder / "features")
            graph.save(folder / "graph")


def _labels(name: str, store: Any, split: int) -> dict[str, Tensor]:
    """The masks of a split; puts them and the labels into the store as a task has them.

    A mask of shape [N, splits] has a column for each split; one of shape [N] is that of all splits.
    """
    names = ("train_mask", "val_mask", "test_mask")
    missing = [key for key in ("x", "y", *names) if key not in store]
    if missing:
        raise ValueError(f"{name}: expected x, y and three masks, found no {', '.join(missing)}")
    if store.y.numel() != store.num_nodes or store.y.is_floating_point():
        raise ValueError(
            f"{name}: expected one class for each of {store.num_nodes} nodes, found y of shape {tuple(store.y.shape)} "
            f"and type {str(store.y.dtype).removeprefix('torch.')}"
        )
    check_split(name, split, max(store[key].size(1) if store[key].dim() == 2 else 1 for key in names))
    for key in names:
        store[key] = store[key][:, split] if store[key].dim() == 2 else store[key]
    store.y = store.y.view(-1).to(torch.int64)
    return {key: store[f"{key}_mask"] for key in ("train", "val", "test")}


def sizes_of(data: HeteroData) -> str:
    """How many nodes each type has, in words."""
    return ", ".join(f"{data[node_type].num_nodes:,} {node_type} nodes" for node_type in data.node_types)


def check_split(name: str, split: int, splits: int) -> None:
    """Raises ValueError if the data set ``name``, which has ``splits`` splits, has none of number ``split``."""
    if not 0 <= split < splits:
        expected = f"0 <= split < {splits}" if splits > 1 else "0, for there is one split"
        raise ValueError(f"{name}: expected {expected}, found split {split}")


def load(name: str = "planted", root: str | Path = ".", split: int = 0, verify: bool = True) -> NodeTask:
    """A task by name.

    Args:
        name: ``planted``; the path of a directory written by :meth:`NodeTask.save`; an archive ``NAME.npz`` or
            ``NAME/NAME.npz`` below ``root`` (``fb100/SCHOOL`` for one school, ``fb100`` for all); ``ogbn-...`` (needs
            the package ogb); or a class of ``torch_geometric.datasets``, or a name that Planetoid or
            HeterophilousGraphDataset know, which PyG reads from or downloads to ``root``.
        root: where the files are.
        split: which of several splits.
        verify: compare the checksums of a saved directory.

    Raises:
        ValueError: nothing of that name, says where it was looked for; or no such split.
    """
    root = Path(root)
    if name == "planted":
        return NodeTask.from_data(name, planted(), split)
    if (Path(name) / "graph" / files.MANIFEST).is_file():
        check_split(name, split, 1)
        return _saved(Path(name), verify)
    if name == "fb100" and (root / "fb100").is_dir():
        return NodeTask.from_data(name, _fb100(sorted((root / "fb100").glob("*.npz"))), split)
    for archive in archives.candidates(name, root):
        if archive.is_file():
            data = _fb100([archive]) if archive.parent.name == "fb100" else _archive(archive)
            return NodeTask.from_data(name, data, split)
    if name.startswith("ogbn-"):
        return NodeTask.from_data(name, from_ogb(name, root), split)
    return NodeTask.from_data(name, from_pyg(name, root), split)


def _saved(path: Path, verify: bool) -> NodeTask:
    features, graph = FeatureStore.open(path / "features", verify), GraphStore.open(path / "graph", verify)

    def tensor(key: str) -> Tensor:
        try:
            return features.get_tensor(group_name=None, attr_name=key, index=None)
        except KeyError:
            raise ValueError(f"{path}: expected x, y and three masks, found no {key}") from None

    masks = {key: tensor(f"{key}_mask") for key in ("train", "val", "test")}
    csc = graph.relation()
    x = tensor("x")
    return NodeTask(str(path), (features, graph), tensor("y"), masks, x.size(1), csc.num_dst, csc.num_edges)


def _archive(path: Path) -> Data:
    """One graph of arrays: ``edge_index``, ``y``, the masks, and ``x`` or its CSR."""
    with np.load(path) as arrays:
        if "edge_index" not in arrays or "y" not in arrays:
            raise ValueError(f"{path}: expected edge_index, y and masks, found {sorted(arrays.files)}")
        edge_index = torch.from_numpy(arrays["edge_index"].astype(np.int64))
        if bool(arrays.get("undirected", False)):
            edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
        x = archives.rows(arrays)
        if x is None:
            raise ValueError(f"{path}: expected features (x, or x_indptr and x_indices), found {sorted(arrays.files)}")
        masks = {key: torch.from_numpy(arrays[key]) for key in ("train_mask", "val_mask", "test_mask")}
        return Data(x=x.float(), edge_index=edge_index, y=torch.from_numpy(arrays["y"].astype(np.int64)), **masks)


def _fb100(paths: list[Path]) -> Data:
    """Schools of Facebook100 as one graph of disjoint parts; features are one-hot codes (bool), labels class years."""
    parts: dict[str, list[np.ndarray]] = {}
    offset = 0
    for path in paths:
        with np.load(path) as arrays:
            if "x_codes" not in arrays:
                raise ValueError(f"{path}: expected a school of Facebook100 (x_codes), found {sorted(arrays.files)}")
            for key in ("x_codes", "y", "train_mask", "val_mask", "test_mask"):
                parts.setdefault(key, []).append(arrays[key])
            parts.setdefault("edge_index", []).append(arrays["edge_index"].astype(np.int64) + offset)
            offset += int(arrays["num_nodes"])
    joined = {
        key: torch.from_numpy(np.concatenate(values, axis=int(key == "edge_index"))) for key, values in parts.items()
    }
    codes = joined.pop("x_codes").to(torch.int64)
    x = torch.zeros(offset, sum(FB100_WIDTHS), dtype=torch.bool)
    first = 0
    for column, width in enumerate(FB100_WIDTHS):
        known = (codes[:, column] > 0).nonzero().view(-1)
        x[known, first + codes[known, column]] = True
        first += width
    edges = joined.pop("edge_index")
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], dim=1), **joined)
