"""The ends of links as seeds: each node once, or once per end in a tree of its own, and the way back to the links."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch_geometric.typing import EdgeType, NodeType

from .graph import SampledGraph, end_types
from .minibatch import MiniBatch, PreparedSeeds, prepared_seeds


class Ends(Protocol):
    """The ends of a batch's links of one relation, negatives included."""

    @property
    def sources(self) -> list[Tensor]:
        """The source nodes: those of the links, then those of negatives."""

    @property
    def destinations(self) -> list[Tensor]:
        """The destination nodes: those of the links, then those of negatives."""

    @property
    def edge_type(self) -> EdgeType | None:
        """The links' type; None in a graph without types."""

    @property
    def time(self) -> Tensor | None:
        """The links' times: [size]; None without times."""

    @property
    def start_time(self) -> Tensor | None:
        """Where the links' time windows begin: [size]; None without windows."""

    @property
    def size(self) -> int:
        """How many links there are, each with a tree."""

    def of_end(self, what: str, end: list[Tensor], first: int) -> list[Tensor]:
        """What is asked of one end, ``sources`` or ``destinations``, in the order of its nodes.

        ``what``: ``nodes``, the nodes themselves; ``times`` or ``start times`` of their links; ``numbers``, of their
        links, which are numbered from ``first`` on."""

    def pairs(self) -> Tensor:
        """The links that a sample may exclude: int64, shape [2, m]."""

    def metadata(self, found: dict[NodeType | None, Tensor], begins: dict[NodeType | None, int]) -> tuple:
        """The output's metadata.

        Args:
            found: by node type, the positions of the ends of all relations among the sampled nodes.
            begins: by node type, where those of this relation begin; they are set to where they end.
        """


def seeds_of_ends(
    graph: SampledGraph, drawn: Sequence[Ends], exclude: Any, disjoint: bool, several: bool = False
) -> PreparedSeeds:  # fmt: skip
    """What is sampled for the ends of links, in host memory.

    Args:
        graph: is sampled.
        drawn: the ends of the links of each relation.
        exclude: edges that are not sampled, as :meth:`NeighborSampler.sample` takes them.
        disjoint: each end has a tree of its own; in the sample, a tree has the number of its link.
        several: whether the sample's metadata is a dictionary by edge type.
    """
    seeds, found = _each_once(_by_end(drawn, "nodes"), disjoint)

    def complete(batch: MiniBatch) -> None:
        if disjoint and batch.trees is not None:
            link = torch.cat(list(_by_end(drawn, "numbers").values()))
            batch.trees = [None if tree is None else link.to(tree.device).index_select(0, tree) for tree in batch.trees]
        metadata, begins = {}, dict.fromkeys(found, 0)
        for links in drawn:
            metadata[links.edge_type] = links.metadata(found, begins)
        batch.metadata = metadata if several else metadata[drawn[0].edge_type]

    given: list[Any] = [seeds, _times_by_end(drawn, "times"), _times_by_end(drawn, "start times")]
    given = given if graph.is_hetero else [of if of is None else of[None] for of in given]
    prepared = prepared_seeds(graph, torch.device("cpu"), given[0], given[1], given[2], exclude)
    return prepared._replace(complete=complete)


def _by_end(drawn: Sequence[Ends], what: str) -> dict[NodeType | None, Tensor]:
    """By node type, what :meth:`Ends.of_end` returns: for the first relation's sources, then for its destinations,
    then for the second relation's, and so on."""
    found: dict[NodeType | None, list[Tensor]] = {}
    first = 0
    for links in drawn:
        of_src, of_dst = end_types(links.edge_type)
        found.setdefault(of_src, []).extend(links.of_end(what, links.sources, first))
        found.setdefault(of_dst, []).extend(links.of_end(what, links.destinations, first))
        first += links.size
    return {of: values[0] if len(values) == 1 else torch.cat(values) for of, values in found.items()}


def _times_by_end(drawn: Sequence[Ends], what: str) -> dict[NodeType | None, Tensor] | None:
    """What :func:`_by_end` returns for ``times`` or ``start times``; None if no links have any. ValueError if those of
    some relations alone have."""
    without = [links.edge_type for links in drawn if (links.time if what == "times" else links.start_time) is None]
    if len(without) not in (0, len(drawn)):
        name = "time" if what == "times" else "start_time"
        raise ValueError(f"{name}: expected times of the links of all relations, found none of {without}")
    return None if without else _by_end(drawn, what)


def _each_once(
    ends: dict[NodeType | None, Tensor], disjoint: bool
) -> tuple[dict[NodeType | None, Tensor], dict[NodeType | None, Tensor]]:
    """(seeds, index), by node type: index[i] is the position of end i among the sampled nodes. Each node is a seed
    once; with ``disjoint``, once per end."""
    seeds, index = {}, {}
    for node_type, ids in ends.items():
        seeds[node_type], index[node_type] = (
            (ids, torch.arange(ids.numel())) if disjoint else ids.unique(return_inverse=True)
        )
    return seeds, index


def next_ends(found: dict[Any, Tensor], begins: dict[Any, int], node_type: NodeType | None, count: int) -> Tensor:
    """The next ``count`` entries of a type, from ``begins`` on, which is moved to where they end."""
    of_type, begin = found[node_type], begins[node_type]
    begins[node_type] = begin + count
    return of_type if of_type.numel() == count else of_type[begin : begin + count]
