"""The task of predicting links between nodes of two types."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import EdgeType, NodeType

from ..splits import SUBSETS
from . import archives, saved
from .node_task import check_data_split, sizes_of
from .planted import planted_links, with_reverses


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
