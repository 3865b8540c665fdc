"""The tasks of predicting links, and events (links with times), between nodes of two types."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import EdgeType, NodeType

from .. import tables
from ..splits import SUBSETS
from . import archives, saved
from .node_task import check_data_split, sizes_of
from .planted import planted_events, planted_links, with_reverses


@dataclass
class LinkTask:
    """Links between nodes of two types, to be predicted."""

    name: str
    data: HeteroData
    """The graph: relation ``edge_type`` has the training links; every relation between two types has a reverse."""
    edge_type: EdgeType
    links: dict[str, Tensor]
    """By data split, ``train``, ``val`` and ``test``: links, int64, shape [2, m]. No link is in two of them."""
    target: str | None = None
    """The target that was asked for when the task was loaded."""

    def __str__(self) -> str:
        links = ", ".join(f"{links.size(1):,} {subset} links" for subset, links in self.links.items())
        return f"{self.name}: {sizes_of(self.data)}; {' '.join(self.edge_type)}: {links}"

    @property
    def sizes(self) -> HeteroData:
        """A graph whose types, numbers of nodes and widths of features a model is made for."""
        return self.data

    @property
    def num_edges(self) -> int:
        """The number of edges of all relations."""
        return self.data.num_edges

    def seeds(self, subset: str) -> tuple[EdgeType, Tensor]:
        """The links of ``train``, ``val`` or ``test`` as a loader takes them."""
        return self.edge_type, self.links[subset]

    def all_nodes(self, node_type: NodeType) -> Any:
        """The nodes of a type as a loader takes them."""
        return node_type

    def loader_options(self, training: bool) -> dict[str, Any]:
        """Further arguments of this package's loaders, of training or of evaluation."""
        return {}


def load_links(name: str = "planted", root: str | Path = ".", split: int = 0, target: str | None = None) -> LinkTask:
    """A link task by name.

    Args:
        name: ``planted``; the path of a directory that ``gnnscale tables`` or ``gnnscale convert --types`` wrote: of
            its pairs of nodes, each once, those of the first of the table's splits in which they occur, or, without
            splits, of the sorted pairs every ninth of ten for validation and every tenth for testing; or the name of
            an archive of one of two forms. Either with the arrays ``num_users``,
            ``num_items``, ``train_edge_index`` and ``test_edge_index``; every tenth training link is then used for
            validation. Or with the arrays of :func:`torch_gnnscale.datasets.archives.hetero_graph` and, for one
            relation, ``edge_split__S__R__T`` (0 train, 1 val, 2 test); its reverse is made from the training links,
            also if the archive has one.
        root: the folder of archives.
        split: 0: there is one data split.
        target: ``SRC.REL.DST``: which relation of a directory with several.

    Raises:
        ValueError: no such archive, arrays missing, or another split.
    """
    check_data_split(name, split, 1)
    if not saved.is_saved(name):
        saved.check_no_target(name, target)
    if name == "planted":
        data, links = planted_links()
        return LinkTask(name, data, ("user", "chooses", "item"), links)
    if saved.is_saved(name):
        return _of_saved(name, target)
    arrays = archives.read(name, root, "links to be predicted")
    if "train_edge_index" in arrays and "num_users" in arrays:
        users, items = arrays.number("num_users"), arrays.number("num_items")
        train = arrays.edges("train_edge_index", users, items)
        held_out = torch.arange(train.size(1)) % 10 == 9
        data = HeteroData()
        data["user"].num_nodes, data["item"].num_nodes = users, items
        edge_type = ("user", "chooses", "item")
        links = {
            "train": train[:, ~held_out],
            "val": train[:, held_out],
            "test": arrays.edges("test_edge_index", users, items),
        }
    else:
        splits = [key.removeprefix("edge_split__") for key in arrays if key.startswith("edge_split__")]
        if len(splits) != 1:
            raise ValueError(
                f"dataset {name!r}: expected train_edge_index, test_edge_index and num_users, or "
                f"edge_split__S__R__T of one relation, found {sorted(arrays)}"
            )
        data = archives.hetero_graph(arrays)
        if splits[0].count("__") != 2:
            raise arrays.wrong(f"edge_split__{splits[0]}", "a name of the form edge_split__S__R__T", "another")
        src, rel, dst = splits[0].split("__")
        edge_type = (src, rel, dst)
        edges = arrays.edges(f"edge_index__{splits[0]}")
        number_of = arrays.split_of(f"edge_split__{splits[0]}", edges.size(1))
        links = {subset: edges[:, number_of == number] for number, subset in enumerate(SUBSETS)}
    src, rel, dst = edge_type
    if (reverse := (dst, f"rev_{rel}", src)) in data.edge_types:
        del data[reverse]  # it has the links of all splits
    data[edge_type].edge_index = links["train"]
    return LinkTask(name, with_reverses(data), edge_type, links)


def _of_saved(name: str, target: str | None) -> LinkTask:
    """The links of a relation of a saved graph; the graph has those for training alone."""
    found = saved.opened(name)
    edge_type = saved.target_relation(name, found, target)
    data = found.data()
    count = max(data[edge_type[-1]].num_nodes, 1)
    pairs = data[edge_type].edge_index[0] * count + data[edge_type].edge_index[1]
    if "train_mask" in data[edge_type]:
        of, known = {}, pairs[:0]
        for subset in SUBSETS:
            asked = pairs[data[edge_type][f"{subset}_mask"]].unique()
            of[subset] = asked[~torch.isin(asked, known)]
            known = torch.cat([known, asked])
    else:
        pairs = pairs.unique()
        number = torch.arange(len(pairs)) % 10
        of = {"train": pairs[number < 8], "val": pairs[number == 8], "test": pairs[number == 9]}
    links = {subset: torch.stack([some // count, some % count]) for subset, some in of.items()}
    for each in (edge_type, saved.reverse_of(edge_type)):  # with the edges of all splits, and their attributes
        if each in data.edge_types:
            del data[each]
    data[edge_type].edge_index = links["train"]
    return LinkTask(name, with_reverses(data), edge_type, links, target)


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
        return _events_of_saved(name, target)
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


def _events_of_saved(name: str, target: str | None) -> EventTask:
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
