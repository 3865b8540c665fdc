"""Directories of graphs, with or without the rows of their nodes, from which tasks are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.data.graph_store import EdgeLayout
from torch_geometric.typing import EdgeType, NodeType

from .. import files
from ..feature import FeatureStore
from ..splits import SUBSETS
from ..topology import GraphStore

KIND = "node task"
LABELLED = ("x", "y", *(f"{subset}_mask" for subset in SUBSETS))
"""What nodes that are to be classified have."""


class Saved(NamedTuple):
    """What a directory holds, its arrays memory-mapped."""

    features: FeatureStore
    """Rows of nodes: ``x``, and of a node task ``y`` and the masks; none if the directory is that of a graph alone."""
    graph: GraphStore
    about: dict[str, Any]
    """Of a node task: its ``metric`` and, in a graph with types, the labelled ``node_type``."""

    @property
    def is_typed(self) -> bool:
        """Whether the graph has types of nodes and edges."""
        return any(attr.edge_type is not None for attr in self.graph.get_all_edge_attrs())

    def rows(self, name: str, node_type: NodeType | None = None) -> Tensor | None:
        """The attribute ``name`` of all nodes of a type, mapped; None if there is none."""
        return self.features.get_tensor(group_name=node_type, attr_name=name, index=None)

    def data(self) -> HeteroData:
        """A graph with types: rows are mapped, edges are copied, in the order of their ids."""
        data = HeteroData()
        for attr in self.graph.get_all_edge_attrs():
            csc = self.graph.relation(attr.edge_type)
            for node_type, count in ((attr.edge_type[0], csc.num_src), (attr.edge_type[-1], csc.num_dst)):
                data[node_type].num_nodes = count
            data[attr.edge_type].edge_index = torch.stack(self.graph.get_edge_index(attr.edge_type, EdgeLayout.COO))
        for attr in self.features.get_all_tensor_attrs():
            data[attr.group_name][attr.attr_name] = self.rows(attr.attr_name, attr.group_name)
        return data


def is_saved(name: str) -> bool:
    """Whether a data set is named by the path of a directory that :func:`save` or ``GraphStore.save`` wrote."""
    return any((folder / files.MANIFEST).is_file() for folder in (Path(name) / "graph", Path(name)))


def save(folder: Path, features: FeatureStore, metric: str | None = None, node_type: NodeType | None = None) -> None:
    """Writes what a directory holds beside ``folder/graph``; without a metric it is no node task."""
    features.save(folder / "features")
    if metric is not None:
        files.save(folder / "task", KIND, {}, {"metric": metric, "node_type": node_type})


def opened(name: str, verify: bool = True) -> Saved:
    """Opens a directory that :func:`save`, :meth:`NodeTask.save` or ``GraphStore.save`` wrote; ``verify`` and errors as
    of :meth:`GraphStore.open`."""
    path = Path(name)
    if (path / "book").is_dir():
        raise ValueError(f"{name}: expected a saved graph, found the parts of one, which --parts takes")
    if not (path / "graph").is_dir():
        return Saved(FeatureStore(), GraphStore.open(path, verify), {})
    about = files.load(path / "task", KIND)[1] if (path / "task").is_dir() else {}  # earlier versions saved none
    return Saved(FeatureStore.open(path / "features", verify), GraphStore.open(path / "graph", verify), about)


def check_no_target(name: str, target: str | None) -> None:
    """Raises ValueError for a target of a data set in which nothing can be chosen."""
    if target is not None:
        raise ValueError(
            f"target: expected none of {name}, which is no directory of a graph with types, found {target!r}"
        )


def target_type(name: str, found: Saved, target: str | None) -> NodeType | None:
    """The labelled type of a graph with types: that of the target ``TYPE.label``, or the one that there is; None if no
    type is labelled."""
    labelled = [attr.group_name for attr in found.features.get_all_tensor_attrs() if attr.attr_name == "y"]
    if target is None and ("node_type" in found.about or len(labelled) < 2):
        return found.about.get("node_type", labelled[0] if labelled else None)
    if target not in (expected := [f"{node_type}.label" for node_type in labelled]):
        raise ValueError(f"target: expected one of {', '.join(expected)} in {name}, found {target!r}")
    return target.removesuffix(".label")


def target_relation(name: str, found: Saved, target: str | None) -> EdgeType:
    """The relation whose edges are to be predicted: the target ``SRC.REL.DST``, or the one that there is."""
    types = [attr.edge_type for attr in found.graph.get_all_edge_attrs()]
    if not found.is_typed:
        raise ValueError(
            f"{name}: expected relations between types, as gnnscale tables or convert --types makes, found none"
        )
    own = [
        edge_type for edge_type in types if reverse_of(edge_type) not in types or not edge_type[1].startswith("rev_")
    ]
    names = [".".join(edge_type) for edge_type in own]
    if target is None and len(own) == 1:
        return own[0]
    if target not in names:
        raise ValueError(f"target: expected one of {', '.join(names)} in {name}, found {target!r}")
    return own[names.index(target)]


def reverse_of(edge_type: EdgeType) -> EdgeType:
    """The relation that leads the other way, or of which this one is the reverse."""
    src, rel, dst = edge_type
    return dst, rel.removeprefix("rev_") if rel.startswith("rev_") else f"rev_{rel}", src


def labelled_rows(name: str, found: Saved, node_type: NodeType | None) -> list[Tensor]:
    """The attributes :data:`LABELLED` of a type's nodes; ValueError, which names the directory, for missing ones."""
    coded = found.rows("category", node_type) is not None  # which are features, too
    rows = {key: found.rows(key, node_type) for key in LABELLED if key != "x" or not coded}
    if missing := [key for key, tensor in rows.items() if tensor is None]:
        raise ValueError(
            f"{name}: expected x, y and three masks beside the graph, found no {', '.join(missing)}; gnnscale convert "
            f"takes them as --x, --y and --split, gnnscale tables as columns, label and split"
        )
    return [tensor for tensor in rows.values() if tensor is not None]
