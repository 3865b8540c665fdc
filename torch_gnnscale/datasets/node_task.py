"""The task of classifying nodes, of one type in a graph with types: from PyG's data, from files, by name."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from .. import files
from ..feature import FeatureStore
from ..ops.arguments import as_tensor, check_choice
from ..splits import SUBSETS
from ..topology import GraphStore
from ..topology.csc import check_graph
from . import archives, saved
from .archives import from_ogb, from_pyg
from .planted import planted, planted_types, with_reverses

ROC_AUC = {"minesweeper", "tolokers", "questions"}
"""Data sets with two unbalanced classes, whose metric is the area under the ROC curve."""
FB100_WIDTHS = (11, 516, 516, 500)
"""Number of codes of each feature of Facebook100: status, major, second major, dormitory. Code 0: missing."""


@dataclass
class NodeTask:
    """A graph, the labels of its nodes, and its data split."""

    name: str
    data: Any
    """The graph: a Data, a HeteroData or a (FeatureStore, GraphStore) pair."""
    y: Tensor
    """Class of each node, -1 if unknown: int64, shape [N]."""
    masks: dict[str, Tensor]
    """The nodes of ``train``, ``val`` and ``test``: bool, shape [N]."""
    num_features: int
    num_nodes: int
    num_edges: int
    metric: str = "accuracy"
    """``accuracy`` or ``roc_auc``."""
    node_type: str | None = None
    """The labelled node type of a heterogeneous graph; None in a homogeneous graph. N counts its nodes."""
    target: str | None = None
    """The target that was asked for when the task was loaded."""

    def __str__(self) -> str:
        labelled = "nodes" if self.node_type is None else f"{self.node_type} nodes"
        return (
            f"{self.name}: {self.num_nodes:,} {labelled}, {self.num_edges:,} edges, {self.num_features} features, "
            f"{self.num_classes} classes, {int(self.masks['train'].sum()):,} training nodes"
        )

    @property
    def num_classes(self) -> int:
        """max(y) + 1; 0 without nodes."""
        return int(self.y.max()) + 1 if len(self.y) else 0

    @property
    def sizes(self) -> Any:
        """A graph whose types, numbers of nodes and widths of features a model is made for."""
        return self.data

    def seeds(self, subset: str) -> Any:
        """The nodes of ``train``, ``val`` or ``test`` as a loader takes them."""
        nodes = self.masks[subset].nonzero().view(-1)
        return nodes if self.node_type is None else (self.node_type, nodes)

    def labelled(self, subset: str) -> tuple[Tensor, Tensor]:
        """(features, classes) of the nodes of ``train``, ``val`` or ``test`` of a heterogeneous graph: float32 [m, F +
        C], int64 [m]. The last C columns are the codes of categories."""
        mask, nodes = self.masks[subset], self.data[self.node_type]
        return torch.cat([nodes[name][mask].float() for name in ("x", "category") if name in nodes], dim=1), self.y[
            mask
        ]

    def loader_options(self, training: bool) -> dict[str, Any]:
        """Further arguments of this package's loaders, of training or of evaluation."""
        return {}

    @classmethod
    def from_data(cls, name: str, data: Data, split: int = 0) -> NodeTask:
        """A task from a Data with ``x``, ``y``, ``train_mask``, ``val_mask`` and ``test_mask``.

        Masks are of bool or uint8. Those of shape [N, splits] have one column per data split: column ``split`` is
        used. Classes and masks may be NumPy arrays. ``data`` stays as it is; the task has a shallow copy.

        Raises:
            TypeError: ``data`` is no Data.
            ValueError: an attribute is missing or malformed, or there is no such split.
        """
        check_graph(data, Data)
        data = copy(data)
        masks = _labels(name, data, split)
        metric = "roc_auc" if name.lower().split("/")[-1] in ROC_AUC else "accuracy"
        return cls(name, data, data.y, masks, data.num_features, data.num_nodes, data.num_edges, metric)

    @classmethod
    def from_types(cls, name: str, data: HeteroData, node_type: str, split: int = 0) -> NodeTask:
        """A task from a HeteroData whose nodes of ``node_type`` have the attributes that :meth:`from_data` needs.

        Raises:
            TypeError: ``data`` is no HeteroData.
            ValueError: no such type, an attribute that is missing or malformed, or no such split.
        """
        check_graph(data, HeteroData)
        check_choice("node_type", node_type, data.node_types)
        data = copy(data)
        store = data[node_type]
        masks = _labels(name, store, split)
        sizes = store.num_features, store.num_nodes, data.num_edges
        return cls(name, data, store.y, masks, *sizes, node_type=node_type)

    def save(self, path: str | Path) -> None:
        """Writes the graph, its node tensors and its metric into a new directory. ``load(path)`` opens it
        memory-mapped, under the path as its name; so does ``load_types(path)`` if the graph has types, its edges in
        memory."""
        if isinstance(self.data, tuple):
            features, graph = self.data
        else:
            features, graph = FeatureStore.from_data(self.data), GraphStore.from_data(self.data)
        with files.creating(path) as folder:
            graph.save(folder / "graph")
            saved.save(folder, features, self.metric, self.node_type)


def _labels(name: str, store: Any, split: int) -> dict[str, Tensor]:
    """Reduces the masks of ``store`` to those of one data split and ``y`` to int64 [N], in place; returns the masks.

    A mask of shape [N, splits] has one column per split; a mask of shape [N] is used for every split. Where the masks
    have different numbers of columns, there are as many splits as the least of them.
    """
    names = ("train_mask", "val_mask", "test_mask")
    features = "category" if "category" in store else "x"
    missing = [key for key in (features, "y", *names) if key not in store]
    if missing:
        raise ValueError(f"{name}: expected x, y and three masks, found no {', '.join(missing)}")
    y, count = as_tensor(f"{name}: y", store.y), store.num_nodes
    if y.numel() != count or y.is_floating_point():
        raise ValueError(
            f"{name}: expected one class for each of {count} nodes, found y of shape {tuple(y.shape)} "
            f"and type {str(y.dtype).removeprefix('torch.')}"
        )
    masks = {key: as_tensor(f"{name}: {key}", store[key]) for key in names}
    for key, mask in masks.items():
        if mask.shape[:1] != (count,) or mask.dim() > 2 or mask.dtype not in (torch.bool, torch.uint8):
            raise ValueError(
                f"{name}: expected {key} of shape [{count}] or [{count}, splits] and type bool or uint8, found shape "
                f"{tuple(mask.shape)} and type {str(mask.dtype).removeprefix('torch.')}"
            )
    check_data_split(name, split, min((mask.size(1) for mask in masks.values() if mask.dim() == 2), default=1))
    for key, mask in masks.items():
        store[key] = (mask[:, split] if mask.dim() == 2 else mask).bool()
    store.y = y.view(-1).to(torch.int64)
    return {key: store[f"{key}_mask"] for key in SUBSETS}


def sizes_of(data: HeteroData) -> str:
    """The number of nodes per type as text: "25 author nodes, 40 paper nodes"."""
    return ", ".join(f"{data[node_type].num_nodes:,} {node_type} nodes" for node_type in data.node_types)


def check_data_split(name: str, split: int, splits: int) -> None:
    """Raises ValueError unless 0 <= split < splits, the number of data splits of the data set ``name``."""
    if not 0 <= split < splits:
        expected = f"0 <= split < {splits} of {name}" if splits > 1 else f"0, because {name} has one split"
        raise ValueError(f"split: expected {expected}, found {split}")


def load(
    name: str = "planted", root: str | Path = ".", split: int = 0, verify: bool = True, target: str | None = None
) -> NodeTask:
    """A node-classification task by name.

    Args:
        name: one of

            - ``planted``: :func:`torch_gnnscale.datasets.planted`;
            - the path of a directory written by :meth:`NodeTask.save` or, with rows, labels and splits, by ``gnnscale
              convert``;
            - the path of an archive ``.npz``, or NAME of ``NAME.npz`` or ``NAME/NAME.npz`` in ``root``;
              ``fb100/SCHOOL`` is one school of Facebook100, ``fb100`` all schools;
            - ``ogbn-...``, which needs the package ogb;
            - a name that :func:`torch_gnnscale.datasets.archives.from_pyg` accepts.
        root: the folder to read from or to download to.
        split: the number of the data split, from 0.
        verify: compare the checksums of a saved directory.
        target: None: all nodes are of one type.

    Raises:
        ValueError: no data set of that name (the message says where it was looked for), an archive that lacks an
            array, or no such split.
        ImportError, OSError: see :mod:`torch_gnnscale.datasets.archives`.
    """
    root = Path(root)
    if target is not None:
        raise ValueError(f"target: expected none of task nodes, whose nodes are of one type, found {target!r}")
    if name == "planted":
        return NodeTask.from_data(name, planted(), split)
    if saved.is_saved(name):
        check_data_split(name, split, 1)
        return _saved(name, saved.opened(name, verify))
    if name == "fb100" and (root / "fb100").is_dir():
        return NodeTask.from_data(name, _fb100(sorted((root / "fb100").glob("*.npz"))), split)
    for archive in archives.candidates(name, root):
        if archive.is_file():
            data = _fb100([archive]) if archive.parent.name == "fb100" else _archive(archive)
            return NodeTask.from_data(name, data, split)
    if name.endswith(".npz"):
        found = " nor ".join(map(str, archives.candidates(name, root)))
        raise ValueError(f"dataset {name!r}: expected an archive of arrays, found neither {found}")
    if name.startswith("ogbn-"):
        return NodeTask.from_data(name, from_ogb(name, root), split)
    return NodeTask.from_data(name, from_pyg(name, root), split)


def _saved(name: str, found: saved.Saved) -> NodeTask:
    if found.is_typed:
        raise ValueError(
            f"{name}: expected a graph without types, found one with {found.graph.get_all_edge_attrs()[0].edge_type}; "
            f"--task hetero and links are for types"
        )
    x, y, *masks = saved.labelled_rows(name, found, None)
    csc = found.graph.relation()
    sizes, metric = (x.size(1) if x.dim() > 1 else 1, csc.num_dst, csc.num_edges), found.about.get("metric", "accuracy")
    return NodeTask(name, (found.features, found.graph), y, dict(zip(SUBSETS, masks, strict=True)), *sizes, metric)


def _archive(path: Path) -> Data:
    """A graph from the arrays ``edge_index``, ``y``, three masks, features (:meth:`archives.Arrays.features`) and,
    optionally, ``undirected`` (True: edges are stored in one direction only)."""
    arrays = archives.Arrays(path, f"{path}: expected edge_index, y and three masks")
    arrays.need("edge_index")
    x = arrays.features()
    if x is None:
        raise ValueError(f"{path}: expected features (x, or x_indptr and x_indices), found {sorted(arrays)}")
    edge_index = arrays.edges("edge_index", len(x), len(x))
    if arrays.get("undirected", np.False_).any():
        edge_index = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    masks = {key: arrays.mask(key, len(x)) for key in ("train_mask", "val_mask", "test_mask")}
    y = arrays.integers("y")
    if len(y.shape) == 0 or len(y) != len(x):
        raise arrays.wrong("y", f"a class of each of {len(x)} nodes", f"shape {tuple(y.shape)}")
    return Data(x=x.float(), edge_index=edge_index, y=y, **masks)


def _fb100(paths: list[Path]) -> Data:
    """Schools of Facebook100 as one graph without edges between schools. Features are one-hot codes (bool), ``y``
    the class years."""
    arrays_of: dict[str, list[Tensor]] = {}
    offset = 0
    for path in paths:
        arrays = archives.Arrays(path, f"{path}: expected a school of Facebook100")
        codes, y, count = arrays.integers("x_codes", 0), arrays.integers("y"), arrays.number("num_nodes")
        if codes.shape != (count, len(FB100_WIDTHS)) or bool((codes > torch.tensor(FB100_WIDTHS)).any()):
            raise arrays.wrong("x_codes", f"codes of at most {FB100_WIDTHS} for {count} nodes", "others")
        if y.shape != (count,):
            raise arrays.wrong("y", f"a year for each of {count} nodes", f"shape {tuple(y.shape)}")
        found = {"x_codes": codes, "y": y}
        found |= {key: arrays.mask(key, count) for key in ("train_mask", "val_mask", "test_mask")}
        for key, value in {**found, "edge_index": arrays.edges("edge_index", count, count) + offset}.items():
            arrays_of.setdefault(key, []).append(value)
        offset += count
    joined = {key: torch.cat(values, dim=int(key == "edge_index")) for key, values in arrays_of.items()}
    codes = joined.pop("x_codes")
    x = torch.zeros(offset, sum(FB100_WIDTHS), dtype=torch.bool)
    first = 0
    for column, width in enumerate(FB100_WIDTHS):
        known = (codes[:, column] > 0).nonzero().view(-1)
        x[known, first + codes[known, column]] = True
        first += width
    edges = joined.pop("edge_index")
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], dim=1), **joined)


def load_types(name: str = "planted", root: str | Path = ".", split: int = 0, target: str | None = None) -> NodeTask:
    """A task of classifying one node type, by name.

    Args:
        name: ``planted``; the path of a directory that :meth:`NodeTask.save`, ``gnnscale convert`` or ``gnnscale
            tables`` wrote of a graph with types, a type's rows, labels and splits; or the name of an archive with the
            arrays of :func:`torch_gnnscale.datasets.archives.hetero_graph`,
            ``target`` (the labelled node type T), ``y__T``,
            ``train_mask__T``, ``val_mask__T`` and ``test_mask__T``.
        root: the folder of archives.
        split: the number of the data split, from 0.
        target: ``TYPE.label``: which labels of a directory with several types that have some.

    Raises:
        ValueError: no such archive, arrays missing, no such split, or no such target.
    """
    if not saved.is_saved(name):
        saved.check_no_target(name, target)
    if name == "planted":
        return NodeTask.from_types(name, planted_types(), "author", split)
    if saved.is_saved(name):
        check_data_split(name, split, 1)
        found = saved.opened(name)
        if not found.is_typed:
            raise ValueError(f"{name}: expected a graph with types, found one without; --task nodes is for these")
        node_type = saved.target_type(name, found, target)
        saved.labelled_rows(name, found, node_type)
        task = NodeTask.from_types(name, with_reverses(found.data()), str(node_type))
        return replace(task, target=target)
    arrays = archives.read(name, root, "a heterogeneous graph with labels (target, y__T)")
    target = str(arrays["target"])
    data = archives.hetero_graph(arrays)
    if target not in data.node_types:
        raise arrays.wrong("target", f"one of {data.node_types}", repr(target))
    count = arrays.number(f"num_nodes__{target}")
    data[target].y = y = arrays.integers(f"y__{target}")
    if not y.dim() or len(y) != count:
        raise arrays.wrong(f"y__{target}", f"a class of each of {count} nodes", f"shape {tuple(y.shape)}")
    for subset in ("train", "val", "test"):
        data[target][f"{subset}_mask"] = arrays.mask(f"{subset}_mask__{target}", count)
    return NodeTask.from_types(name, with_reverses(data), target, split)
