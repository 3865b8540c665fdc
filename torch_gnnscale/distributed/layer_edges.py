"""Stored edges of some nodes, and the weights of those that layer-wise sampling draws."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import ops
from .hop_by_owners import expanded


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
    """The weights of drawn edges, as of :func:`torch_gnnscale.ops.sample_layers`.

    Args:
        drawing: the options.
        stored: all stored edges of the columns.
        drawn: which of them are drawn: bool, shape [e].
        correction: c_v of each drawn edge: float64, shape [m].
        degrees: the number of edges into each node of the graph, for ``gcn``: int64, shape [n].

    Returns:
        float32, shape [m].
    """
    degree = stored.num_edges
    row = torch.arange(len(degree)).repeat_interleave(degree)[drawn]
    of_stored = None if degrees is None else degrees[stored.source]
    of_source = None if of_stored is None else of_stored[drawn]
    return ops.weigh_edges(drawing, degree, row, correction, of_source, of_stored)
