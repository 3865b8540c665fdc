"""EXTRACT: the edges from the drawn nodes into a frontier."""

from __future__ import annotations

import numpy as np

from .algebra import Adjacency, Frontier, FrontierEdges, csr_array, one_node_each, stored_order
from .choosing import Drawn


def extract(graph: Adjacency, frontier: Frontier, drawn: Drawn) -> FrontierEdges:
    """The edges of A_S = diag(A_R1, ..., A_Rk) Q_C, each row's in stored order; A_R = Q_R A (sections 4.2.3 and 4.2.4).

    A_S has kb x s entries; column c of a row is the c-th node that the row's batch drew. The paper's Q_C has kn rows;
    here it has a row only for each (batch, node) that occurs in A_R. A drawn node without an edge into the frontier has
    none.
    """
    a_r = one_node_each(frontier, graph.num_nodes) @ graph.position
    batch = frontier.batch
    code = np.repeat(batch, np.diff(a_r.indptr)) * graph.num_nodes + a_r.indices
    occurring = np.unique(code)
    column = np.searchsorted(occurring, code)
    diagonal = csr_array((a_r.data, column, a_r.indptr), shape=(len(frontier.node), len(occurring)))
    del code, column  # arrays as large as A_R: freed before the product
    counts = np.diff(drawn.ptr)
    batch_of = np.repeat(np.arange(len(counts)), counts)
    wanted = batch_of * graph.num_nodes + drawn.node
    at = np.searchsorted(occurring, wanted)
    occurs = at < len(occurring)
    occurs[occurs] = occurring[at[occurs]] == wanted[occurs]
    number = (np.arange(len(wanted)) - drawn.ptr[batch_of])[occurs]
    width = int(counts.max(initial=0))
    q_c = csr_array((np.ones(len(number), np.int64), (at[occurs], number)), shape=(len(occurring), width))
    a_s = stored_order(diagonal @ graph.hold(q_c))
    of_draw = drawn.ptr[batch[a_s.row]] + a_s.source
    return a_s._replace(source=drawn.node[of_draw], correction=drawn.correction[of_draw])
