"""Tasks on graphs of several node types by name: classes of nodes, links, and links in time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import EdgeType

from . import archives
from .planted_types import planted_events, planted_links, planted_types, with_reverses
from .readers import NodeTask


def _sizes(data: HeteroData) -> str:
    return ", ".join(f"{data[node_type].num_nodes:,} {node_type} nodes" for node_type in data.node_types)


@dataclass
class LinkTask:
    """Links to be predicted between the nodes of two types."""

    name: str
    data: HeteroData
    """The graph, with the training links as relation ``edge_type``; every relation between two types has a reverse."""
    edge_type: EdgeType
    links: dict[str, Tensor]
    """``train``, ``val`` and ``test``: int64, shape [2, m]; no link is in two of them."""

    def __str__(self) -> str:
        links = ", ".join(f"{links.size(1):,} {part} links" for part, links in self.links.items())
        return f"{self.name}: {_sizes(self.data)}; {' '.join(self.edge_type)}: {links}"


@dataclass
class EventTask:
    """Events between the nodes of two types, to be predicted from those before them."""

    name: str
    data: HeteroData
    """The graph of all events, ascending in ``time`` (int64) of relation ``edge_type``, and of its reverse."""
    edge_type: EdgeType
    parts: dict[str, Tensor]
    """``train``, ``val`` and ``test``: ids of events, ascending; each part later than those before it."""

    def __str__(self) -> str:
        events = ", ".join(f"{len(ids):,} {part} events" for part, ids in self.parts.items())
        return f"{self.name}: {_sizes(self.data)}; {' '.join(self.edge_type)}: {events}"


def load_types(name: str = "planted", root: str | Path = ".", split: int = 0) -> NodeTask:
    """Classification of one type's nodes in a heterogeneous graph.

    Args:
        name: ``planted``, or an archive of arrays ``num_nodes__T``, features ``x__T`` (or in CSR),
            ``edge_index__S__R__T``, the labelled node type ``target``, ``y__T`` and masks.
        root: where archives are.
        split: which of several splits, from 0.

    Raises:
        ValueError: no such archive, or not of that form, or no such split.
    """
    if name == "planted":
        return NodeTask.from_types(name, planted_types(), "author", split)
    arrays = archives.read(name, root, "a heterogeneous graph with labels")
    if "target" not in arrays:
        raise ValueError(
            f"dataset {name!r}: expected a heterogeneous graph with labels (target, y__T), found no target"
        )
    target = str(arrays["target"])
    data = _graph(arrays)
    data[target].y = archives.ids(arrays[f"y__{target}"])
    for part in ("train", "val", "test"):
        data[target][f"{part}_mask"] = torch.from_numpy(arrays[f"{part}_mask__{target}"])
    return NodeTask.from_types(name, with_reverses(data), target, split)


def load_links(name: str = "planted", root: str | Path = ".", split: int = 0) -> LinkTask:
    """Links to be predicted.

    Args:
        name: ``planted``, or an archive of either ``num_users``, ``num_items``, ``train_edge_index`` and
            ``test_edge_index`` (every tenth training link becomes one for validation), or of a heterogeneous graph
            with ``edge_split__S__R__T`` (0 train, 1 val, 2 test) for one relation.
        root: where archives are.
        split: 0, for there is one split.

    Raises:
        ValueError: no such archive, or not of that form, or another split.
    """
    _only_split(name, split)
    if name == "planted":
        data, links = planted_links()
        return LinkTask(name, data, ("user", "chooses", "item"), links)
    arrays = archives.read(name, root, "links to be predicted")
    if "train_edge_index" in arrays and "num_users" in arrays:
        train = archives.ids(arrays["train_edge_index"])
        held_out = torch.arange(train.size(1)) % 10 == 9
        data = HeteroData()
        data["user"].num_nodes, data["item"].num_nodes = int(arrays["num_users"]), int(arrays["num_items"])
        edge_type = ("user", "chooses", "item")
        links = {
            "train": train[:, ~held_out],
            "val": train[:, held_out],
            "test": archives.ids(arrays["test_edge_index"]),
        }
    else:
        splits = [key.removeprefix("edge_split__") for key in arrays if key.startswith("edge_split__")]
        if len(splits) != 1:
            raise ValueError(
                f"dataset {name!r}: expected train_edge_index, test_edge_index and num_users, or "
                f"edge_split__S__R__T of one relation, found {sorted(arrays)}"
            )
        data = _graph(arrays)
        src, rel, dst = splits[0].split("__")
        edge_type = (src, rel, dst)
        of_part = torch.from_numpy(arrays[f"edge_split__{splits[0]}"])
        edges = data[edge_type].edge_index
        links = {part: edges[:, of_part == number] for number, part in enumerate(("train", "val", "test"))}
    data[edge_type].edge_index = links["train"]
    return LinkTask(name, with_reverses(data), edge_type, links)


def load_events(name: str = "planted", root: str | Path = ".", split: int = 0) -> EventTask:
    """Events to be predicted.

    Args:
        name: ``planted``, or an archive of ``num_users``, ``num_items``, ``edge_index`` (items are numbered after the
            users), ``edge_time`` (ascending) and ``edge_split`` (0 train, 1 val, 2 test).
        root: where archives are.
        split: 0, for there is one split.

    Raises:
        ValueError: no such archive, or not of that form, or another split.
    """
    _only_split(name, split)
    parts = ("train", "val", "test")
    if name == "planted":
        data = planted_events()
        edge_type = ("user", "visits", "page")
        ids = torch.arange(data[edge_type].num_edges)
        bounds = [len(ids) * 70 // 100, len(ids) * 85 // 100]  # the shares of the events
        return EventTask(name, data, edge_type, dict(zip(parts, ids.tensor_split(bounds), strict=True)))
    arrays = archives.read(name, root, "events in time")
    if missing := [key for key in ("num_users", "edge_index", "edge_time", "edge_split") if key not in arrays]:
        raise ValueError(f"dataset {name!r}: expected events in time, found no {', '.join(missing)}")
    users = int(arrays["num_users"])
    edge_type = ("user", "edits", "page")
    data = HeteroData()
    data["user"].num_nodes, data["page"].num_nodes = users, int(arrays["num_items"])
    data[edge_type].edge_index = archives.ids(arrays["edge_index"]) - torch.tensor([[0], [users]])
    data[edge_type].time = archives.ids(arrays["edge_time"])
    of_part = torch.from_numpy(arrays["edge_split"])
    of = {part: (of_part == number).nonzero().view(-1) for number, part in enumerate(parts)}
    return EventTask(name, with_reverses(data), edge_type, of)


def _graph(arrays: dict[str, np.ndarray]) -> HeteroData:
    """Node types with their features, and relations."""
    data = HeteroData()
    for key in arrays:
        if key.startswith("num_nodes__"):
            node_type = key.removeprefix("num_nodes__")
            x = archives.rows(arrays, f"__{node_type}")
            if x is None:
                data[node_type].num_nodes = int(arrays[key])
            else:
                data[node_type].x = x
    for key in arrays:
        if key.startswith("edge_index__"):
            src, rel, dst = key.removeprefix("edge_index__").split("__")
            data[src, rel, dst].edge_index = archives.ids(arrays[key])
    return data


def _only_split(name: str, split: int) -> None:
    if split != 0:
        raise ValueError(f"{name}: expected 0, for there is one split, found split {split}")
