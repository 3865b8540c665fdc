"""Stored edges of some nodes, and the weights of those that layer-wise sampling draws."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .. import ops
from .owners import expanded


def stored_edges(graph: ops.Relations, column: Tensor) -> ops.Picks:
    """All stored edges of columns of a part, in stored order. ``column``: int64, shape [m], numbers of columns.

    Raises:
        RuntimeError: a source is no node of the graph.
    """
    colptr, row, edge_id = graph.colptr[0], graph.row[0], graph.edge_id[0]
    begin = colptr[column]
    degree = colptr[column + 1] - begin
    place = expanded(begin, degree)
    source = row[place].to(torch.int64)
    if (bad := ops.first_outside(source, graph.sizes[0])) >= 0:
        at, found = int(place[bad]), int(source[bad])
        raise RuntimeError(f"the graph is malformed: row[{at}] = {found}: expected a node in [0, {graph.sizes[0]})")
    return ops.Picks(degree, source, place if edge_id is None else edge_id[place].to(torch.int64))


def drawn_weights(
    drawing: ops.LayerDrawing, stored: ops.Picks, drawn: Tensor, correction: Tensor, degrees: Tensor | None
) -> Tensor:
    """The weights of drawn edges, in double and rounded once, as of :func:`torch_gnnscale.ops.sample_layers`.

    Args:
        drawing: the options.
        stored: all stored edges of the columns.
        drawn: which of them are drawn: bool, shape [e].
        correction: c_v of each drawn edge: float64, shape [m].
        degrees: the number of edges into each node of the graph, for ``gcn``: int64, shape [n].

    Returns:
        float32, shape [m].
    """
    degree = stored.num_edges.numpy()
    every = np.repeat(np.arange(len(degree)), degree)
    column = every[drawn.numpy()]
    of_source = None if degrees is None else degrees[stored.source].numpy()
    factor = _factors(drawing.aggregation, degree[every], of_source)
    weight = factor[drawn.numpy()] * correction.numpy()
    if drawing.weights == "self_normalized":
        whole: np.ndarray = np.ones(len(degree))
        if drawing.aggregation == "sum":
            whole = degree.astype(np.float64)
        elif drawing.aggregation == "gcn":
            whole = np.bincount(every, factor, len(degree))  # adds in stored order
        total = np.bincount(column, weight, len(degree))[column]
        weight = np.divide(weight * whole[column], total, out=np.zeros_like(weight), where=total > 0)
    return torch.from_numpy(weight).to(torch.float32)


def _factors(aggregation: str, degree: np.ndarray, of_source: np.ndarray | None) -> np.ndarray:
    """a_e of edges into nodes of ``degree`` edges from nodes of ``of_source`` edges."""
    if aggregation == "sum":
        return np.ones(len(degree))
    if aggregation == "mean":
        return 1.0 / degree
    assert of_source is not None
    root = np.sqrt(degree.astype(np.float64) * of_source.astype(np.float64))
    return np.divide(1.0, root, out=np.zeros(len(root)), where=of_source > 0)
