"""Divides parts that several ranks hold: each rank has a share of its part's nodes, as if that were a part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..sampler.graph import end_types
from ..topology import CSC
from .book import PartitionBook, edge_type_of
from .reading import StoredPart, StoredParts


def share_bounds(bounds: Tensor, copies: int) -> Tensor:
    """Divides each part's ids into ``copies`` consecutive shares, as :meth:`Tensor.tensor_split` does.

    Args:
        bounds: part i has the ids bounds[i]..bounds[i + 1] - 1: int64, shape [K + 1].
        copies: c.

    Returns:
        The bounds of the shares, those of a part one after another: int64, shape [K c + 1].
    """
    (each, more), copy = (bounds.diff() // copies, bounds.diff() % copies), torch.arange(copies)[:, None]
    begins = bounds[:-1] + copy * each + torch.minimum(copy, more)
    return torch.cat([begins.T.reshape(-1), bounds[-1:]])


def share(
    parts: StoredParts, part: StoredPart, copy: int, copies: int, gather: Callable[[Any], list[Any]]
) -> tuple[StoredParts, StoredPart]:
    """A share of a part, and the parts as they are if each of the K c shares is a part of its own.

    Seeds, links and halo remain those of the whole part.

    Args:
        parts, part: the opened directory, and the part of this rank.
        copy: which share: 0, ..., copies - 1.
        copies: c, how many shares a part has.
        gather: the values of all ranks; rank ``i c + j`` has share j of part i.
    """
    bounds = {node_type: share_bounds(of, copies) for node_type, of in parts.book.bounds.items()}
    number = part.number * copies + copy
    begins = {}
    for edge_type, csc in part.relations.items():
        of_nodes, first = bounds[end_types(edge_type)[1]], parts.book.edges(part.number, edge_type).start
        begins[edge_type] = first + int(csc.colptr[of_nodes[number] - of_nodes[part.number * copies]])
    of_ranks = gather(begins)
    edge_bounds = {t: torch.tensor([*(of[t] for of in of_ranks), parts.book.num_edges(t)]) for t in begins}
    book = PartitionBook(bounds, edge_bounds)

    def slice_of(group: Any) -> slice:
        if isinstance(group, tuple):
            edge_type = edge_type_of(group)
            own, first = book.edges(number, edge_type), parts.book.edges(part.number, edge_type).start
        else:
            own, first = book.nodes(number, group), parts.book.nodes(part.number, group).start
        return slice(own.start - first, own.stop - first)

    relations = {}
    for edge_type, csc in part.relations.items():
        nodes, edges = slice_of(end_types(edge_type)[1]), slice_of((None, None) if edge_type is None else edge_type)
        edge_id = None if csc.edge_id is None else csc.edge_id[edges]
        colptr = csc.colptr[nodes.start : nodes.stop + 1] - edges.start
        relations[edge_type] = CSC(colptr, csc.row[edges], edge_id, csc.num_src)
    return replace(parts, book=book), replace(
        part, number=number, relations=relations,
        rows={key: rows[slice_of(key[0])] for key, rows in part.rows.items()},
        user_ids={node_type: ids[slice_of(node_type)] for node_type, ids in part.user_ids.items()},
    )  # fmt: skip
