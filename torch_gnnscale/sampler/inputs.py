"""Ids and types as users give them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.typing import EdgeType, NodeType

from ..ops.arguments import as_ids, as_tensor


def end_types(edge_type: EdgeType | None) -> tuple[NodeType | None, NodeType | None]:
    """The node types of sources and destinations; None in a homogeneous graph."""
    return (None, None) if edge_type is None else (edge_type[0], edge_type[-1])


def reverse_relations(edge_types: Sequence[EdgeType | None]) -> list[int]:
    """Per relation, the one that holds its reverse edges by PyG's rules, or -1.

    A relation ``rel`` is paired with ``rev_rel``; or it is symmetric in itself, if it leads from nodes of a type to
    others of it; or it takes the only relation that leads the other way.
    """
    numbers = {edge_type: number for number, edge_type in enumerate(edge_types)}
    ways = Counter(map(end_types, edge_types))
    reverse = [-1] * len(edge_types)
    for number, edge_type in enumerate(edge_types):
        if edge_type is None:
            reverse[number] = number
        elif len(edge_type) == 3 and not str(edge_type[1]).startswith("rev_"):  # stores take types of any length
            src, rel, dst = edge_type
            if (named := numbers.get((dst, f"rev_{rel}", src))) is not None:
                reverse[number], reverse[named] = named, number
            elif src == dst:
                reverse[number] = number
            elif ways[dst, src] == 1:
                reverse[number] = next(n for n, t in enumerate(edge_types) if end_types(t) == (dst, src))
    return reverse


def as_nodes(name: str, nodes: Any, num_nodes: int) -> Tensor:
    """Ids, or a mask of ``num_nodes`` nodes, as a tensor, whatever they come in; values of ids are not looked at.

    Raises:
        TypeError: no integers, nor booleans.
        ValueError: not a vector.
        IndexError: a mask of fewer nodes.
    """
    nodes = as_tensor(name, nodes)
    if nodes.dim() != 1:
        raise ValueError(f"{name}: expected a vector or a mask, found shape {tuple(nodes.shape)}")
    if nodes.dtype != torch.bool:
        return as_ids(name, nodes)
    if len(nodes) < num_nodes:
        raise IndexError(f"{name}: expected a mask of {num_nodes} nodes, found one of {len(nodes)}")
    return nodes


def sorted_pairs(pairs: Tensor | None, backward: bool) -> Tensor | None:
    """Pairs of nodes [2, m] in the direction of sampling, sorted by destination, then source."""
    if pairs is None:
        return None
    pairs = pairs.flip(0) if backward else pairs
    pairs = pairs[:, torch.argsort(pairs[0], stable=True)]
    return pairs[:, torch.argsort(pairs[1], stable=True)]
