"""What layers compute and read in batches like those of training (GSplit, section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from ..loader.accesses import Hops, sampled_hops
from ..loader.keyed_loader import KeyedLoader
from ..topology import CSC


class Presampled(NamedTuple):
    """Counts over batches of L hops. A node of group g, and an edge into it, is computed by L - g layers: a node of
    group 0 (a seed) by all."""

    rows: Tensor
    """rows[v]: how many rows of the batches are node v's. int64, shape [n]."""
    layers: Tensor
    """layers[v]: the sum of L - g over these rows. int64, shape [n]."""
    edges: Tensor
    """edges[e], N_e in the paper: the sum of L - g over the batches' edges whose user's id is e; g is the group of the
    edge's destination. int64, shape [edges]."""

    def node_load(self, csc: CSC, load: str) -> Tensor:
        """What each node adds to its part, N_v in the paper: int64, shape [n].

        Args:
            csc: the graph that was sampled.
            load: "edges": ``layers[v]``, and ``edges[e]`` for each edge e into v. "layers": in how many layers v
                appears, the sum of L - g + 1, as in the paper.
        """
        if load == "layers":
            return self.layers + self.rows
        return self.layers + self._drawn_into(csc)

    def by_place(self, csc: CSC) -> Tensor:
        """``edges`` in the order of ``csc.row``."""
        return self.edges[: csc.num_edges] if csc.edge_id is None else self.edges[csc.edge_id]

    def expected(self, csc: CSC) -> Tensor:
        """The expected N_e of each edge if all edges into a node are drawn equally often: the mean of N_e over the
        edges into the node. In the order of ``csc.row``: float64, shape [edges]."""
        degree = csc.colptr.diff()
        share = self._drawn_into(csc).to(torch.float64) / degree.clamp(min=1)
        return share.repeat_interleave(degree, output_size=csc.num_edges)

    def _drawn_into(self, csc: CSC) -> Tensor:
        """The sum of N_e over the edges into each node: int64, shape [n]."""
        return torch.cat([self.edges.new_zeros(1), self.by_place(csc).cumsum(0)])[csc.colptr].diff()


def presample(loader: KeyedLoader, epochs: Sequence[int], progress: bool = False) -> Presampled:
    """Counts over all batches of the given epochs, by the stores' ids of nodes; only the topology is read.

    Raises:
        TypeError, ValueError, NotImplementedError: as of :func:`torch_gnnscale.loader.accesses_by_hop`.
    """
    num_nodes, num_edges, samples = sampled_hops(loader, epochs)
    device = loader.keyed_sampler.device
    rows, layers = torch.zeros(2, num_nodes, dtype=torch.int64, device=device)
    edges = torch.zeros(num_edges, dtype=torch.int64, device=device)
    total = len(epochs) * len(loader)
    batches: Iterable[Hops] = tqdm(samples, "presampling", total, unit=" batches", disable=None if progress else True)
    for hops in batches:
        for count, groups, each in ((rows, hops.nodes, 0), (layers, hops.nodes, 1), (edges, hops.edges, 1)):
            for group, ids in enumerate(groups):
                weight = len(hops.edges) - group if each else 1
                count.index_add_(0, ids, torch.full_like(ids, weight, dtype=torch.int64))
    return Presampled(rows.cpu(), layers.cpu(), edges.cpu())
