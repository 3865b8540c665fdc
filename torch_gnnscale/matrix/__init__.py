"""Sampling as products of sparse matrices, k batches at once (Tripathy et al. 2024, section 4).

A hop is algorithm 1: P = QA, NORM, SAMPLE, EXTRACT. The matrices of k batches are stacked (equation 1). Matrices have
integer entries, and SAMPLE draws by the random integers of the fused operators, so that :func:`sample_batches` returns
the samples of these operators, bit for bit. Use it to state a method in the paper's terms, or to try a new method; the
fused operators are faster. Needs scipy (``pip install "torch_gnnscale[matrix]"``), and cupy for a graph on a GPU.
"""

from .algebra import (
    Adjacency,
    DeviceMatrix,
    Drawn,
    Frontier,
    FrontierEdges,
    adjacency,
    choose,
    choose_by_its,
    choose_neighbors,
    draw,
    one_node_each,
    stacked_sets,
    stored_order,
)
from .sampling import Step, extract, fastgcn, graphsage, ladies, sample_batches, squared

__all__ = [
    "Adjacency", "DeviceMatrix", "Drawn", "Frontier", "FrontierEdges", "Step", "adjacency", "choose", "choose_by_its",
    "choose_neighbors", "draw", "extract", "fastgcn", "graphsage", "ladies", "one_node_each", "sample_batches",
    "squared", "stacked_sets", "stored_order",
]  # fmt: skip
