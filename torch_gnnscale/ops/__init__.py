"""The one door to native code: typed wrappers of ``torch.ops.gnnscale.*`` that check what a user can get wrong.

``threads`` means the same everywhere: how many of torch's threads an operator may use. No result depends on it. 0 means
what :func:`limit_threads` says for the calling Python thread; by default ``torch.get_num_threads()``, but at most the
process's share of the machine's cores (:func:`torch_gnnscale.machine.cores`).
"""

from . import registrations as _registrations  # noqa: F401 (what torch.compile needs to know)
from .aggregation import (
    REDUCTIONS,
    aggregate,
    can_aggregate,
    edge_attention,
    edge_attention_backward,
    edge_dot,
    extreme_backward,
    share_of_extremes,
    sum_dtype,
)
from .arguments import ID_DTYPES, MAX_COUNT, first_outside, limit_threads
from .bulk import PreparedBulks, sample_bulk
from .bulk_input import MAX_BATCHES, StoredEdges, in_halves
from .graph_arguments import MAX_FANOUT, MAX_HOPS, Relations, Sample, Subgraph, relations
from .layer_drawing import (
    MAX_ITERATIONS,
    LayerDrawing,
    PreparedLayerBulks,
    count_ids,
    reverse_pagerank,
    sample_layers_bulk,
    score_unit,
)
from .layer_sampling import PreparedLayers, choose_edges, choose_nodes, node_scores, sample_layers, weigh_edges
from .memory import (
    BOARD_NUMBERS,
    PoolStats,
    board_leave,
    board_size,
    board_take,
    empty_bytes,
    empty_rows,
    huge_pages,
    map_file,
    map_shared,
    pool_limit,
    pool_stats,
    pool_trim,
    release_pages,
)
from .neighbor_drawing import PreparedNeighbors, sample_neighbors, weight_sums
from .random_draws import (
    Candidates,
    EdgeSet,
    candidates,
    dropout_rows,
    edge_set,
    permutation,
    random_bits,
    rmat_edges,
    sample_negatives,
)
from .ranks import MAX_PARTS, Cut, Picks, Relabelled, cut_batch, pick_neighbors, relabel, shuffle_rows
from .rows import can_gather_rows, gather_nested, gather_rows, join_rows, pack_rows, select_rows
from .tiers import TieredTable, can_widen, gather_tables, gather_tiers, place_dtype
from .topology import (
    MAX_ROUNDS,
    MAX_STEPS,
    Side,
    check_colptr,
    colptr_of_sorted,
    contract,
    coo_to_csc,
    propagate_labels,
    renumber,
    reverse_edges,
    transpose,
)

__all__ = [
    "BOARD_NUMBERS", "Candidates", "Cut", "EdgeSet", "ID_DTYPES", "LayerDrawing", "MAX_BATCHES", "MAX_COUNT",
    "MAX_FANOUT", "MAX_HOPS", "MAX_ITERATIONS", "MAX_PARTS", "MAX_ROUNDS", "MAX_STEPS", "Picks", "PoolStats",
    "PreparedBulks", "PreparedLayerBulks", "PreparedLayers", "PreparedNeighbors", "REDUCTIONS", "Relabelled",
    "Relations", "Sample", "Side", "StoredEdges", "Subgraph", "TieredTable", "aggregate", "board_leave", "board_size",
    "board_take", "can_aggregate", "can_gather_rows", "can_widen", "candidates", "check_colptr", "choose_edges",
    "choose_nodes", "colptr_of_sorted", "contract", "coo_to_csc", "count_ids", "cut_batch", "dropout_rows",
    "edge_attention", "edge_attention_backward", "edge_dot", "edge_set", "empty_bytes", "empty_rows",
    "extreme_backward", "first_outside", "gather_nested", "gather_rows", "gather_tables", "gather_tiers", "huge_pages",
    "in_halves", "join_rows", "limit_threads", "map_file", "map_shared", "node_scores", "pack_rows", "permutation",
    "pick_neighbors", "place_dtype", "pool_limit", "pool_stats", "pool_trim", "propagate_labels", "random_bits",
    "relabel", "relations", "release_pages", "renumber", "reverse_edges", "reverse_pagerank", "rmat_edges",
    "sample_bulk", "sample_layers", "sample_layers_bulk", "sample_negatives", "sample_neighbors", "score_unit",
    "select_rows", "share_of_extremes", "shuffle_rows", "sum_dtype", "transpose", "weigh_edges", "weight_sums",
]  # fmt: skip
