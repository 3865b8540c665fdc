"""The options, fanouts and bounds of the operators that draw samples, and what they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from torch import Tensor

MAX_HOPS = 64
"""Hops a draw's counter can tell apart."""
MAX_FANOUT = 1 << 17
"""Neighbors of one node that can be drawn at random in one hop."""
MAX_RELATIONS = 1 << 10
"""Relations a draw's counter can tell apart."""
Subgraph = Literal["directional", "bidirectional", "induced"]
"""Which edges a sample has: see :func:`sample_neighbors`."""
SUBGRAPHS = get_args(Subgraph)
REPLACE, DISJOINT, LAST, LAYERS, BIDIRECTIONAL, INDUCED, WITH_EDGE_ID, WITH_COL = (1 << bit for bit in range(8))
"""The options of the native operators, bits of one integer: see cuda/sample/options.h."""
KEEP_KNOWN, LAYER_DEPENDENCY, INCLUDE_DST = (1 << bit for bit in range(8, 11))
"""Further ones, of sample_layers."""
OF_SUBGRAPH = {"directional": 0, "bidirectional": BIDIRECTIONAL, "induced": INDUCED}
"""The option that asks for a subgraph."""


class Sample(NamedTuple):
    """The answer of :func:`sample_neighbors`; every list has one entry per node type or per relation."""

    node: list[Tensor]
    """Per node type, the sampled nodes' ids in order of first occurrence, seeds first: int64, shape [n]."""
    colptr: list[Tensor]
    """Per relation, where each column's edges begin: int64, shape [columns + 1]. Columns are the expanded nodes of the
    destination type, or all of its sampled nodes if ``subgraph`` is not directional."""
    edge_index: list[Tensor]
    """Per relation, local ids of sources and, if asked for, destinations: int64, shape [1 or 2, e]."""
    edge_id: list[Tensor]
    """Per relation, original edge ids, if asked for: int64, shape [e]. -1 for an edge that another relation drew."""
    tree: list[Tensor]
    """Per node type, each node's tree, if trees are disjoint: int64, shape [n]. Seeds are numbered over all types."""
    num_nodes: list[list[int]]
    """Per node type, how many nodes each hop found; the first of the hops + 1 entries is the number of seeds."""
    num_edges: list[list[int]]
    """Per relation, how many edges each hop drew."""
    edge_weight: Sequence[Tensor] = ()
    """Per relation, a weight of each edge, if the sampler has weights: floating point, shape [e]."""


def check_fanouts(fanouts: Sequence, relations: int) -> list[int]:
    """The fanouts of all hops, relation by relation; raises ValueError for what is none."""
    lists = list(fanouts)
    if not (lists and all(isinstance(entry, Sequence) for entry in lists)):
        _check_list(lists)
        return lists * relations
    if len(lists) != relations or len({len(entry) for entry in lists}) > 1:
        raise ValueError(f"fanouts: expected {relations} lists of as many hops, found {fanouts}")
    for entry in lists:
        _check_list(entry)
    return [fanout for entry in lists for fanout in entry]


def _check_list(fanouts: Sequence) -> None:
    if len(fanouts) > MAX_HOPS:
        raise ValueError(f"fanouts: expected at most {MAX_HOPS} hops, found {len(fanouts)}")
    for hop, fanout in enumerate(fanouts):
        if not isinstance(fanout, int) or isinstance(fanout, bool) or not -1 <= fanout <= MAX_FANOUT:
            raise ValueError(f"fanouts[{hop}]: expected -1 (all) or 0..{MAX_FANOUT}, found {fanout}")
