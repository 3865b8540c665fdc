"""A slow, plain PyTorch twin of every operator: the oracle of the tests.

Everything is computed from its definition, in Python's integers, one number at a time. The signatures are those of
:mod:`torch_gnnscale.ops` without ``threads`` and without arguments that a twin does not implement; arguments are not
checked.
"""

from .aggregation import (
    aggregate,
    edge_attention,
    edge_attention_backward,
    edge_dot,
    extreme_backward,
    share_of_extremes,
)
from .cutting import cut_batch
from .draws import bounded, choose, counter_draw, draw, philox
from .generate import permutation, random_bits, rmat_edges
from .hops import pick_neighbors, relabel
from .layerwise import choose_nodes, node_scores, sample_layers
from .partition import contract, propagate_labels, transpose
from .sampling import sample_negatives, sample_neighbors
from .shuffle import dropout_rows, shuffle_rows
from .topology import (
    colptr_of_sorted,
    coo_to_csc,
    count_ids,
    first_malformed,
    first_outside,
    gather_nested,
    gather_rows,
    gather_tiers,
    join_rows,
    pack_rows,
    renumber,
    reverse_edges,
    reverse_pagerank,
)

__all__ = [
    "aggregate",
    "bounded",
    "choose",
    "choose_nodes",
    "colptr_of_sorted",
    "contract",
    "coo_to_csc",
    "count_ids",
    "counter_draw",
    "cut_batch",
    "draw",
    "dropout_rows",
    "edge_attention",
    "edge_attention_backward",
    "edge_dot",
    "extreme_backward",
    "first_malformed",
    "first_outside",
    "gather_nested",
    "gather_rows",
    "gather_tiers",
    "join_rows",
    "node_scores",
    "pack_rows",
    "permutation",
    "philox",
    "pick_neighbors",
    "propagate_labels",
    "random_bits",
    "relabel",
    "renumber",
    "reverse_edges",
    "reverse_pagerank",
    "rmat_edges",
    "sample_layers",
    "sample_negatives",
    "sample_neighbors",
    "share_of_extremes",
    "shuffle_rows",
    "transpose",
]
