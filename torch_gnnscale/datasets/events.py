"""Events in time between nodes of two types: the task, and the task by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import EdgeType

from . import archives
from .nodes import check_split, sizes_of
from .planted_types import planted_events, with_reverses


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
        return f"{self.name}: {sizes_of(self.data)}; {' '.join(self.edge_type)}: {events}"


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
    check_split(name, split, 1)
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
