"""The boundary graph: what random data hardly ever hits, in one graph for all tests of parts and of owners.

Faults at exact boundaries (``<`` for ``<=``, the first id of the next part, a last row that is left out) survive tests
on random graphs, where the one node that would show them is drawn by no batch. Here, for every number of parts up to
:data:`MOST_PARTS`, the first and the last node of each part are sources, destinations, seeds and labelled, with edges
between all of them in both directions, loops and multi-edges included. From three parts on, part 1 has a single node,
so that ranks have steps without seeds of their own. The rows of ``x`` are columns of a wider table, which has other
strides than its copies.
"""

from __future__ import annotations

import torch
from helpers.data import edge_rows, node_rows
from helpers.parts import homogeneous
from torch import Tensor
from torch_geometric.data import Data

NODES = 200
MOST_PARTS = 4


def owners_of(parts: int) -> Tensor:
    """The part of each node, for 1 to :data:`MOST_PARTS` parts: int64, shape [NODES]. Nodes of a part have user's ids
    that are not consecutive."""
    sizes = torch.full((parts,), NODES // parts if parts < 3 else (NODES - 1) // (parts - 1))
    if parts >= 3:
        sizes[1] = 1
    sizes[0] += NODES - int(sizes.sum())
    owners = torch.empty(NODES, dtype=torch.int64)
    order = torch.randperm(NODES, generator=torch.Generator().manual_seed(9))
    owners[order] = torch.arange(parts).repeat_interleave(sizes)
    return owners


def ends_of(owners: Tensor) -> Tensor:
    """The first and the last node of each part, in whose order nodes are stored: int64."""
    return torch.cat([(owners == part).nonzero().view(-1)[[0, -1]] for part in owners.unique()])


ENDS = torch.cat([ends_of(owners_of(parts)) for parts in range(1, MOST_PARTS + 1)]).unique()
"""Those for all numbers of parts, ascending."""


def boundary_graph() -> Data:
    """The graph of :func:`helpers.parts.homogeneous`, with the attributes and the edges that the module tells of."""
    data = homogeneous(NODES)
    pairs = torch.cartesian_prod(ENDS, ENDS).t()
    data.edge_index = torch.cat([data.edge_index, pairs, pairs[:, ::5]], 1)
    data.edge_attr = edge_rows(torch.arange(data.num_edges))
    data.kind = torch.arange(data.num_edges) % 5
    data.train_mask[ENDS] = True
    wider = torch.full((NODES, 5), -1.0, dtype=torch.float64)
    wider[:, 1:4] = node_rows(torch.arange(NODES))
    data.x = wider[:, 1:4]
    return data
