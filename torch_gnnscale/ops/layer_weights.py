"""The weights of drawn edges, in NumPy, for samplers whose edges no operator of this library draws."""

from __future__ import annotations

import numpy as np


def layer_weights(
    aggregation: str, weights: str, degree: np.ndarray, row: np.ndarray, correction: np.ndarray,
    of_source: np.ndarray | None = None, of_stored: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """The weights of :func:`sample_layers`, before they are rounded: float64, shape [m].

    Args:
        aggregation, weights: of :class:`LayerDrawing`.
        degree: d_i, the number of stored edges of each row: int64, shape [n].
        row: of each drawn edge, ascending: int64, shape [m].
        correction: c_v of each drawn edge: float64, shape [m].
        of_source: for ``gcn``: d_j of each drawn edge's source: int64, shape [m].
        of_stored: for ``gcn``, ``self_normalized``: d_j of the sources of all stored edges of the rows, in stored
            order: int64.
    """
    weight = _factors(aggregation, degree[row], of_source) * correction
    if weights == "unbiased":
        return weight
    rows = len(degree)
    whole: np.ndarray = np.ones(rows)
    if aggregation == "sum":
        whole = degree.astype(np.float64)
    elif aggregation == "gcn":
        every = np.repeat(np.arange(rows), degree)
        whole = np.bincount(every, _factors(aggregation, degree[every], of_stored), rows)  # adds in stored order
    total = np.bincount(row, weight, rows)[row]
    return np.divide(weight * whole[row], total, out=np.zeros_like(weight), where=total > 0)


def _factors(aggregation: str, degree: np.ndarray, of_source: np.ndarray | None) -> np.ndarray:
    """a_e of edges into nodes of ``degree`` edges, from nodes of ``of_source`` edges."""
    if aggregation == "sum":
        return np.ones(len(degree))
    if aggregation == "mean":
        return 1.0 / degree
    assert of_source is not None
    root = np.sqrt(degree.astype(np.float64) * of_source.astype(np.float64))
    return np.divide(1.0, root, out=np.zeros(len(root)), where=of_source > 0)
