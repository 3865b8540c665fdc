"""The task of predicting links between nodes of two types."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import EdgeType, NodeType

from . import archives, saved
from .node_task import check_data_split, sizes_of
from .planted_types import planted_links, with_reverses


@dataclass
class LinkTask:
    """Links between nodes of two types, to be predicted."""

    name: str
    data: HeteroData
    """The graph: relation ``edge_type`` has the training links; every relation between two types has a reverse."""
    edge_type: EdgeType
    links: dict[str, Tensor]
    """By data split, ``train``, ``val`` and ``test``: links, int64, shape [2, m]. No link is in two of them."""

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


def load_links(name: str = "planted", root: str | Path = ".", split: int = 0) -> LinkTask:
    """A link task by name.

    Args:
        name: ``planted``; the path of a directory that ``gnnscale convert --types`` wrote: of its pairs of nodes, each
            once and sorted, every ninth of ten is for validation and every tenth for testing; or the name of an archive
            of one of two forms. Either with the arrays ``num_users``,
            ``num_items``, ``train_edge_index`` and ``test_edge_index``; every tenth training link is then used for
            validation. Or with the arrays of :func:`torch_gnnscale.datasets.archives.hetero_graph` and, for one
            relation, ``edge_split__S__R__T`` (0 train, 1 val, 2 test); its reverse is made from the training links,
            also if the archive has one.
        root: the folder of archives.
        split: 0: there is one data split.

    Raises:
        ValueError: no such archive, arrays missing, or another split.
    """
    check_data_split(name, split, 1)
    if name == "planted":
        data, links = planted_links()
        return LinkTask(name, data, ("user", "chooses", "item"), links)
    if saved.is_saved(name):
        return _of_saved(name)
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
        links = {subset: edges[:, number_of == number] for number, subset in enumerate(("train", "val", "test"))}
    src, rel, dst = edge_type
    if (reverse := (dst, f"rev_{rel}", src)) in data.edge_types:
        del data[reverse]  # it has the links of all splits
    data[edge_type].edge_index = links["train"]
    return LinkTask(name, with_reverses(data), edge_type, links)


def _of_saved(name: str) -> LinkTask:
    """The links of a saved graph of one relation."""
    found = saved.opened(name)
    types = [attr.edge_type for attr in found.graph.get_all_edge_attrs()]
    if len(types) != 1 or not found.is_typed:
        raise ValueError(
            f"{name}: expected a graph of one relation between types, as gnnscale convert --types makes, found the "
            f"edge types {types}"
        )
    data, edge_type = found.data(), types[0]
    src, dst = data[edge_type].edge_index
    count = data[edge_type[-1]].num_nodes
    pairs = (src * count + dst).unique()
    links = torch.stack([pairs // max(count, 1), pairs % max(count, 1)])
    number = torch.arange(links.size(1)) % 10
    of = {"train": links[:, number < 8], "val": links[:, number == 8], "test": links[:, number == 9]}
    data[edge_type].edge_index = of["train"]
    return LinkTask(name, with_reverses(data), edge_type, of)
