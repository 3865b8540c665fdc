"""The task of predicting events (links with times) between nodes of two types."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import EdgeType

from .. import tables
from ..splits import SUBSETS
from . import archives, saved
from .node_task import check_data_split, sizes_of
from .planted import planted_events, with_reverses


@dataclass
class EventTask:
    """Events between nodes of two types; each is predicted from earlier events."""

    name: str
    data: HeteroData
    """The graph: all events as relation ``edge_type``, in ascending order of ``time`` (int64), and its reverse."""
    edge_type: EdgeType
    events: dict[str, Tensor]
    """By data split, ``train``, ``val`` and ``test``: ids of events, ascending. In time, val follows train, and test
    follows val."""
    target: str | None = None
    """The target that was asked for when the task was loaded."""

    def __str__(self) -> str:
        events = ", ".join(f"{len(ids):,} {subset} events" for subset, ids in self.events.items())
        return f"{self.name}: {sizes_of(self.data)}; {' '.join(self.edge_type)}: {events}"


def load_events(name: str = "planted", root: str | Path = ".", split: int = 0, target: str | None = None) -> EventTask:
    """An event task by name.

    Args:
        name: ``planted``; the path of a directory that ``gnnscale tables`` wrote, of a relation whose edges have times
            and are split by them; or the name of an archive with the arrays ``num_users``, ``num_items``,
            ``edge_index`` (item i has the id num_users + i),
            ``edge_time`` (ascending) and ``edge_split`` (0 train, 1 val, 2 test).
        root: the folder of archives.
        split: 0: there is one data split.
        target: ``SRC.REL.DST``: which relation of a directory with several.

    Raises:
        ValueError: no such archive, arrays missing, or another split.
    """
    check_data_split(name, split, 1)
    if saved.is_saved(name):
        return _of_saved(name, target)
    saved.check_no_target(name, target)
    if name == "planted":
        data = planted_events()
        edge_type = ("user", "visits", "page")
        ids = torch.arange(data[edge_type].num_edges)
        bounds = [len(ids) * 70 // 100, len(ids) * 85 // 100]  # 70 % train, 15 % val, 15 % test
        return EventTask(name, data, edge_type, dict(zip(SUBSETS, ids.tensor_split(bounds), strict=True)))
    arrays = archives.read(name, root, "events in time")
    users, items = arrays.number("num_users"), arrays.number("num_items")
    edge_type = ("user", "event", "item")
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = users, items
    edges = arrays.edges("edge_index", users, users + items)
    if edges.numel() and int(edges[1].min()) < users:
        raise arrays.wrong("edge_index", f"destinations of at least {users}, after all users", int(edges[1].min()))
    data[edge_type].edge_index = edges - torch.tensor([[0], [users]])
    data[edge_type].time = time = arrays.integers("edge_time")
    if time.shape != edges[0].shape:
        raise arrays.wrong("edge_time", f"times of {edges.size(1)} edges", f"shape {tuple(time.shape)}")
    number_of = arrays.split_of("edge_split", edges.size(1))
    events = {subset: (number_of == number).nonzero().view(-1) for number, subset in enumerate(SUBSETS)}
    return EventTask(name, with_reverses(data), edge_type, events)


def _of_saved(name: str, target: str | None) -> EventTask:
    """The edges of a relation of a graph of tables, by time: the graph has this relation and its reverse alone."""
    found = saved.opened(name)
    edge_type = saved.target_relation(name, found, target)
    whole, data = found.data(), HeteroData()
    if missing := [key for key in ("time", "train_mask") if key not in whole[edge_type]]:
        raise ValueError(
            f"{name}: expected {'.'.join(edge_type)} to have times and a split by them, found no {missing[0]}"
        )
    for node_type in dict.fromkeys((edge_type[0], edge_type[-1])):
        data[node_type].update({key: value for key, value in whole[node_type].items() if key in ("x", "category")})
        data[node_type].num_nodes = whole[node_type].num_nodes
    order = torch.argsort(whole[edge_type].time, stable=True)
    data[edge_type].edge_index = whole[edge_type].edge_index[:, order]
    per_second = {"s": 1, "ms": 1000, "us": 1_000_000}[tables.about(name)["time_unit"]]
    data[edge_type].time = time = whole[edge_type].time[order] // per_second
    events = {subset: whole[edge_type][f"{subset}_mask"][order].nonzero().view(-1) for subset in SUBSETS}
    last = -math.inf
    for subset, ids in events.items():
        if len(ids) and (first := int(time[ids[0]])) < last:
            raise ValueError(
                f"{name}: expected {'.'.join(edge_type)} to be split by time, found {subset} from {first} on, after "
                f"{last}"
            )
        last = int(time[ids[-1]]) if len(ids) else last
    return EventTask(name, with_reverses(data), edge_type, events, target)
