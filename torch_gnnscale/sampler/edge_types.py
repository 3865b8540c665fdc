"""Edge types: the node types at their ends, and the edge type of the reverse edges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch_geometric.typing import EdgeType, NodeType


def end_types(edge_type: EdgeType | None) -> tuple[NodeType | None, NodeType | None]:
    """(type of sources, type of destinations); (None, None) in a homogeneous graph."""
    return (None, None) if edge_type is None else (edge_type[0], edge_type[-1])


def reverse_relations(edge_types: Sequence[EdgeType | None]) -> list[int]:
    """result[i]: the relation that holds the reverse edges of relation i by PyG's rules, or -1.

    The reverse of (src, rel, dst) is (dst, rev_rel, src) if it exists; else the relation itself if src == dst; else the
    relation from dst to src, if there is exactly one. A relation ``rev_rel`` gets a reverse only by the first rule.
    """
    numbers = {edge_type: number for number, edge_type in enumerate(edge_types)}
    ways = Counter(map(end_types, edge_types))
    reverse = [-1] * len(edge_types)
    for number, edge_type in enumerate(edge_types):
        if edge_type is None:
            reverse[number] = number
        elif len(edge_type) == 3 and not str(edge_type[1]).startswith("rev_"):  # stores accept types of any length
            src, rel, dst = edge_type
            if (named := numbers.get((dst, f"rev_{rel}", src))) is not None:
                reverse[number], reverse[named] = named, number
            elif src == dst:
                reverse[number] = number
            elif ways[dst, src] == 1:
                reverse[number] = next(n for n, t in enumerate(edge_types) if end_types(t) == (dst, src))
    return reverse
