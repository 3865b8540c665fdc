"""Tasks whose graph is stored in parts, as the rank of a part sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import EdgeType, NodeType

from ..distributed import Part
from ..loader.epochs import SharedOrder
from ..ops.arguments import check_ids
from ..partition import RowsMeta, StoredParts
from ..splits import SUBSETS
from .link_task import LinkTask
from .node_task import NodeTask, sizes_of

KINDS = ("nodes", "hetero", "links")
"""Tasks that parts are written for."""
Everyone: TypeAlias = Callable[[Any], list[Any]]


def _alone(value: Any) -> list[Any]:
    return [value]


def about_task(kind: str, name: str, task: NodeTask | LinkTask) -> dict[str, Any]:
    """What :func:`torch_gnnscale.partition.write` is told of a task, as ``about``, for :func:`task_of_part`."""
    about: dict[str, Any] = {"task": kind, "dataset": name}
    if isinstance(task, LinkTask):
        return about | {"edge_type": list(task.edge_type)}
    return about | {
        "node_type": task.node_type,
        "metric": task.metric,
        "num_classes": task.num_classes,
        "num_features": task.num_features,
    }


def kind_of_parts(parts: StoredParts) -> str:
    """The task that parts were written for, one of KINDS: the one named in ``parts.about``, or, without a name, the one
    that fits their data splits.

    Raises:
        ValueError: the name is not in KINDS.
    """
    if (kind := parts.about.get("task")) is not None:
        if kind not in KINDS:
            raise ValueError(f"{parts.path}: expected parts of a task of {KINDS}, found {kind!r}")
        return kind
    if any(split == "train" for _, split in parts.link_splits):
        return "links"
    return "hetero" if parts.hetero else "nodes"


class _PartTask:
    """What all kinds of tasks over parts have in common.

    Args:
        part: the opened part.
        order: ``owned``: the ranks of a part take its seeds; ``global``: batches are those of one process.
    """

    def __init__(self, part: Part, order: SharedOrder) -> None:
        self.part, self._seed_order = part, order
        self.name: str = part.parts.about.get("dataset", part.parts.path.name)
        self.data = (part.features, part.graph)
        """The stores of the part."""

    @property
    def num_edges(self) -> int:
        """The number of edges of all relations, in all parts."""
        return sum(self.part.parts.book.num_edges(edge_type) for edge_type in self.part.parts.book.edge_bounds)

    @property
    def sizes(self) -> HeteroData:
        """A graph with the types, numbers of nodes and shapes of features of all parts, on the device ``meta``."""
        book, data = self.part.parts.book, HeteroData()
        for node_type in book.bounds:
            count, x = book.num_nodes(node_type), self._rows(node_type, "x")
            data[node_type].num_nodes = count
            if self._rows(node_type, "category") is not None:
                raise NotImplementedError(
                    f"{self.part.parts.path}: training on categories of {node_type} in parts is not implemented; use "
                    f"numbers, or one process"
                )
            if x is not None:
                data[node_type].x = torch.empty(count, *x.shape, dtype=x.dtype, device="meta")
        for edge_type in book.edge_bounds:
            data[edge_type].edge_index = torch.empty(2, book.num_edges(edge_type), dtype=torch.int64, device="meta")
        return data

    def loader_options(self, training: bool) -> dict[str, Any]:
        """Further arguments of the loaders, of training or of evaluation: in the latter, each seed is taken once."""
        return {"seed_order": self._seed_order, **({} if training else {"uneven": "serve"})}

    @property
    def _of(self) -> Any:
        return "part" if self._seed_order == "owned" else "all"

    def _rows(self, node_type: NodeType | None, name: str) -> RowsMeta | None:
        found = [meta for meta in self.part.parts.attrs if (meta.group_name, meta.attr_name) == (node_type, name)]
        return found[0] if found else None

    def _here(self) -> str:
        return f"part {self.part.ranks.part} of {self.part.ranks.parts}"


class PartNodeTask(_PartTask):
    """A :class:`NodeTask` in parts. See :class:`NodeTask` for what its members are."""

    def __init__(self, part: Part, order: SharedOrder, everyone: Everyone) -> None:
        super().__init__(part, order)
        parts, about = part.parts, part.parts.about
        self.node_type: NodeType | None = (
            about["node_type"] if "node_type" in about else _type_of(parts.path, "nodes", parts.splits)
        )
        self.metric: str = about.get("metric", "accuracy")
        x, y = (self._rows(self.node_type, name) for name in ("x", "y"))
        if x is None or y is None or len(x.shape) != 1 or y.shape or y.dtype.is_floating_point:
            found = [None if rows is None else f"{list(rows.shape)} {rows.dtype}" for rows in (x, y)]
            raise ValueError(f"{parts.path}: expected rows x of shape [F] and y, classes, of the nodes to be "
                             f"classified, found {found}")  # fmt: skip
        self.num_features = x.shape[0]
        own = part.stored.rows[self.node_type, "y"]
        self.num_classes: int = about.get("num_classes") or max(everyone(int(own.max()) if len(own) else 0)) + 1

    def __str__(self) -> str:
        book, labelled = self.part.parts.book, "nodes" if self.node_type is None else f"{self.node_type} nodes"
        training = len(self.part.parts.input_nodes("train", self.node_type))
        return (
            f"{self.name}: {book.num_nodes(self.node_type):,} {labelled}, {self.num_edges:,} edges, "
            f"{self.num_features} features, {self.num_classes} classes, {training:,} training nodes; {self._here()}"
        )

    def seeds(self, subset: str) -> Any:
        """The seeds of this part or, in the global order, of all parts."""
        return self.part.input_nodes(subset, self._of, self.node_type)

    def labelled(self, subset: str) -> tuple[Tensor, Tensor]:
        """The labelled nodes of this rank. The ranks together have each node once."""
        part, node_type = self.part, self.node_type
        stored, ranks = part.parts.to_stored(part.stored.seeds[node_type, subset], node_type), part.ranks
        own = part.parts.book.nodes(ranks.part, node_type)
        rows = (stored - own.start)[ranks.copy :: ranks.copies]
        check_ids(f"seeds of {subset!r}", rows, len(own), "rows of the part")
        return part.stored.rows[node_type, "x"][rows].float(), part.stored.rows[node_type, "y"][rows].long()


class PartLinkTask(_PartTask):
    """A :class:`LinkTask` in parts. See :class:`LinkTask` for what its members are."""

    def __init__(self, part: Part, order: SharedOrder) -> None:
        super().__init__(part, order)
        parts = part.parts
        known = parts.about.get("edge_type")
        edge_type = tuple(known) if known else _type_of(parts.path, "links", parts.link_splits)
        if edge_type is None:
            raise NotImplementedError(f"{parts.path}: links of a graph without types are not implemented as a task")
        self.edge_type: EdgeType = edge_type
        self.links: Mapping[str, Tensor] = {subset: parts.links(subset, edge_type) for subset in SUBSETS}
        """The links of all parts, by data split."""

    def __str__(self) -> str:
        links = ", ".join(f"{links.size(1):,} {subset} links" for subset, links in self.links.items())
        return f"{self.name}: {sizes_of(self.sizes)}; {' '.join(self.edge_type)}: {links}; {self._here()}"

    def seeds(self, subset: str) -> Any:
        """The links of this part or, in the global order, of all parts."""
        return self.part.links(subset, self._of, self.edge_type)

    def all_nodes(self, node_type: NodeType) -> Any:
        """All nodes of this part or, in the global order, of all parts."""
        if self._seed_order == "owned":
            return node_type, self.part.stored.user_ids[node_type]
        return node_type, torch.arange(self.part.parts.book.num_nodes(node_type))


def task_of_part(part: Part, order: SharedOrder = "owned", everyone: Everyone = _alone) -> PartNodeTask | PartLinkTask:
    """The task that parts were written for, as the rank of one part sees it.

    Args:
        part: the opened part.
        order: of seeds.
        everyone: given this rank's value, returns the values of all ranks.

    Raises:
        ValueError: the parts are of an unknown task, or lack the rows, labels or data splits that the task needs.
        NotImplementedError: they were written for links of a graph without types.
    """
    return PartLinkTask(part, order) if kind_of_parts(part.parts) == "links" else PartNodeTask(part, order, everyone)


def _type_of(path: Path, what: str, splits: list[tuple[Any, str]]) -> Any:
    """The only type that has all data splits."""
    types = [name for name in dict.fromkeys(name for name, _ in splits) if all((name, s) in splits for s in SUBSETS)]
    if len(types) != 1:
        raise ValueError(f"{path}: expected data splits {SUBSETS} of {what} of one type, found {splits}")
    return types[0]
