"""What a batch says of its seeds, nodes and relations, with types or without; and the calls of a model's layers in
their order, which say at which hop each of them is.

Numbers of rows do not tell where a hop found no node, for then the first g groups of a batch have as many nodes as the
first g + 1; nor on a rank that has none of a batch's nodes. So calls are found out on a batch that has nodes in every
group, by numbers of rows, and each later batch takes them from there. In a batch of types, a call is that of a layer
on one relation, or of a layer that takes dictionaries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data, HeteroData

NodeType = str | None
"""Of a node; None in a batch of a homogeneous graph, which is one of a single type and a single relation."""
EdgeType = tuple[str, str, str] | None
"""Of an edge; None as for nodes."""


def check_batch(batch: Any) -> None:
    """Raises TypeError for what is neither a Data nor a HeteroData, and ValueError for PyG's Batch, whose
    ``batch_size`` is a number of graphs."""
    if not isinstance(batch, (Data, HeteroData)):
        raise TypeError(f"batch: expected a Data or a HeteroData of a loader, found {type(batch).__name__}")
    if isinstance(batch, Batch):
        raise ValueError(
            "batch: expected a batch of a loader, found a torch_geometric.data.Batch, whose batch_size is its number "
            "of graphs; this package's loaders make a Data of it"
        )


def node_stores(batch: Any) -> Mapping[NodeType, Any]:
    """By type, what holds the fields of a batch's nodes; of a homogeneous graph that is its only storage."""
    return batch._node_store_dict if isinstance(batch, HeteroData) else {None: batch._store}


def num_seeds(batch: Any) -> dict[NodeType, int]:
    """The number of a batch's seeds, which are its first nodes, by node type, for the types that have seeds. Of links
    these are the ends, each once, or once per tree. Raises what :func:`check_batch` does."""
    check_batch(batch)
    found: dict[NodeType, int] = {}
    for node_type, store in node_stores(batch).items():
        fields = store._mapping  # to look at: the store's own methods take longer
        size = fields.get("batch_size")
        size = fields.get("num_sampled_nodes", (0,))[0] if size is None else size
        if size or node_type is None:
            found[node_type] = size
    return found


def has_links(batch: Any) -> bool:
    """Whether the seeds of a batch of one type are ends of links."""
    return "edge_label_index" in batch or "src_index" in batch


def relations_of(batch: Any) -> dict[EdgeType, Any]:
    """By relation, what holds ``edge_index`` and ``num_sampled_edges``; of a homogeneous graph that is its only
    storage. A relation of links alone, whose storage has no edges, is left out."""
    if not isinstance(batch, HeteroData):
        return {None: batch._store}
    stores = batch._edge_store_dict
    return {key: store for key, store in stores.items() if "edge_index" in store._mapping or _has_edges(store)}


def _has_edges(store: Any) -> bool:
    """Whether a storage without ``edge_index`` has edges."""
    fields = store._mapping
    return "adj_t" in fields or any(fields.get("num_sampled_edges", ()))


class SampledNumbers(NamedTuple):
    """What a loader says of the hops of a batch, in lists."""

    nodes: dict[NodeType, list[int]]
    """``num_sampled_nodes`` by node type."""
    edges: dict[EdgeType, list[int]]
    """``num_sampled_edges`` by relation; there is one."""
    seeds: dict[NodeType, int]
    """What :func:`num_seeds` returns."""


def sampled_numbers(batch: Any) -> SampledNumbers | None:
    """The numbers of a batch; None unless all are lists and there are relations. Each store is looked at once: in small
    batches that takes longer than what is done with them."""
    nodes: dict[NodeType, Any] = {}
    edges: dict[EdgeType, Any] = {}
    seeds: dict[NodeType, int] = {}
    check_batch(batch)
    for node_type, store in node_stores(batch).items():
        fields = store._mapping
        if type(counts := fields.get("num_sampled_nodes")) is not list:
            return None
        nodes[node_type] = counts
        size = fields.get("batch_size")
        size = (*counts, 0)[0] if size is None else size
        if size or node_type is None:
            seeds[node_type] = size
    for edge_type, store in relations_of(batch).items():
        if type(counts := store._mapping.get("num_sampled_edges")) is not list:
            return None
        edges[edge_type] = counts
    return SampledNumbers(nodes, edges, seeds) if edges else None


def with_edges(num_edges: Mapping[EdgeType, Sequence[int]]) -> set[EdgeType | int]:
    """The relations, and the hops of any relation, that have edges."""
    found: set[EdgeType | int] = set()
    for key, counts in num_edges.items():
        if hops := [hop for hop, count in enumerate(counts) if count]:
            found.add(key)
            found.update(hops)
    return found


def device_of(batch: Any) -> torch.device:
    """The device of a batch's edges; the CPU if it has none."""
    for store in relations_of(batch).values():
        if isinstance(index := getattr(store, "edge_index", None), Tensor):
            return index.device
    return torch.device("cpu")


MOST_KNOWN = 16
"""How many orders of calls are kept: what a model calls may depend on the batch, so that there is no end of them."""


class Read(NamedTuple):
    """The rows that a layer reads in one call."""

    nodes: tuple[str, ...] = ()
    """The arguments that have a row for each node of the batch's first groups."""
    edges: tuple[str, ...] = ()
    """The arguments that have a row for each of the batch's edges."""


class Call(NamedTuple):
    """One call of a layer."""

    title: str
    """The layer's."""
    groups: int
    """The number of first groups whose rows it gets; it returns the rows of one group less."""
    read: Read = Read()
    """Where ranks compute parts of a batch: what it reads, the same on all ranks."""
    shares: bool = False
    """Where ranks compute parts of a batch: whether another call reads the same tensor, whose halo is then exchanged
    once for all of them."""
    relations: tuple[EdgeType, ...] = (None,)
    """Whose edges it reads."""


class Calls:
    """Goes through the calls of one forward pass.

    Args:
        known: the calls; None: they are found out, and kept in ``calls``.
    """

    def __init__(self, known: list[Call] | None) -> None:
        self.finds_out = known is None
        self.calls: list[Call] = [] if known is None else known
        self.number = 0
        """Of the call that comes next."""

    def expected(self) -> str:
        """The title of the layer whose call comes next."""
        return self.calls[self.number].title if self.number < len(self.calls) else "no further layer"

    def next(self, title: str) -> Call | None:
        """The call that comes next, if it is one of the layer ``title``; else None, and it still comes next."""
        if self.number == len(self.calls) or self.calls[self.number].title != title:
            return None
        self.number += 1
        return self.calls[self.number - 1]


class Functions:
    """The functions and layers that a model called in forward passes that were compared with the whole model. A pass
    that calls others, or in another order, may compute something that was never compared."""

    def __init__(self) -> None:
        self.known: set[tuple[str, ...]] = set()
        """For each such pass, the names of what it called, in order."""
        self.names: set[str] = set()
        """All of these names."""

    def knows(self, called: list[str]) -> bool:
        """Whether a pass called the same as one before, in the same order. Once MOST_KNOWN orders are known, the order
        no longer counts: only whether it called nothing new."""
        return tuple(called) in self.known or (len(self.known) >= MOST_KNOWN and self.names.issuperset(called))

    def add(self, called: list[str]) -> None:
        """Adds a pass that was compared."""
        self.known.add(tuple(called))
        self.names.update(called)
