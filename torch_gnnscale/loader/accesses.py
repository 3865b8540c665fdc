"""Counts how often a loader's batches read each node and edge, before training: batches are pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.typing import NodeType

from ..feature.feature_store import HOMOGENEOUS_EDGES
from ..ops.arguments import check_int
from ..sampler.minibatch import MiniBatch
from .keyed_loader import KeyedLoader


class Accesses(NamedTuple):
    """Counts summed over the batches of the given epochs."""

    nodes: Tensor
    """nodes[h, v]: how often node v was found in hop h (hop 0: the seeds). int64, shape [hops + 1, num_nodes]."""
    edges: Tensor
    """edges[h, e]: how often the edge of the user's id e was drawn in hop h. int64, shape [hops, num_edges]."""


class Hops(NamedTuple):
    """A batch, hop by hop."""

    nodes: Sequence[Tensor]
    """nodes[h]: the stores' ids of the nodes found in hop h (hop 0: the seeds). int64."""
    edges: Sequence[Tensor]
    """edges[h]: the user's ids of the edges drawn for the nodes of nodes[h]. int64."""


def accesses(
    loader: KeyedLoader, epochs: Sequence[int], *, batches: int | None = None, edges: bool = False
) -> Tensor | dict[Any, Tensor]:
    """result[v]: how often the batches of the given epochs read the features of node v; with types, by type.

    The counts of an epoch that will be trained are exact. Other epochs give an estimate (presampling, as in GNNLab and
    GSplit). Only the topology is read.

    Draws depend on the stored ids of nodes. If the stores are renumbered by these counts, later batches differ, and the
    counts are an estimate; they stay exact for a tiered store that keeps the ids.

    Args:
        loader: a loader whose order follows from its seed (no ``sampler=`` or ``batch_sampler=`` of the user's).
        epochs: numbers of epochs, each at least 0.
        batches: only the first batches of each epoch are counted; None: all. With ``shuffle=True`` these have a random
            sample of the seeds.
        edges: whether the reads of edges are counted too.

    Returns:
        int64, shape [num_nodes], by the user's ids; of a graph with types, such a tensor for each type. With ``edges``,
        always a mapping by type, also of the edges: int64, shape [num_edges], by the user's ids. In a homogeneous
        graph its keys are None for the nodes and (None, None) for the edges. Edge types of which batches have no ids,
        and so no rows, are left out.

    Raises:
        TypeError, ValueError: another loader, a sampler that is no KeyedSampler or does not know the number of nodes
            (with ``edges``, of edges), not epochs, ``batches`` below 1, or an order that does not follow from the seed.
    """
    num_nodes, samples = _samples(loader, epochs, batches)
    device = loader.keyed_sampler.device
    counts = {of: torch.zeros(size, dtype=torch.int64, device=device) for of, size in num_nodes.items()}
    of_edges: dict[Any, Tensor] = {}
    for batch in samples:
        for node_type, ids in zip(batch.types.nodes, batch.nodes, strict=True):
            _add(counts[node_type], ids)
        for edge_type, ids in _edge_ids(batch).items() if edges else ():
            if edge_type not in of_edges:
                if (bound := loader.keyed_sampler.edge_bound(edge_type)) is None:
                    raise ValueError(
                        "loader: expected a sampler whose edge_bound() tells the number of edges, found "
                        f"a {type(loader.keyed_sampler).__name__} that does not know it"
                    )
                of_edges[edge_type] = torch.zeros(bound, dtype=torch.int64, device=device)
            _add(of_edges[edge_type], ids)
    found = {node_type: _by_user(loader, count.cpu(), node_type) for node_type, count in counts.items()}
    if edges:
        return found | {HOMOGENEOUS_EDGES if of is None else of: count.cpu() for of, count in of_edges.items()}
    return found.get(None, found)


def accesses_by_hop(loader: KeyedLoader, epochs: Sequence[int]) -> Accesses:
    """How often the batches of the given epochs find each node and draw each edge, per hop; see :func:`accesses`.

    Raises:
        TypeError, ValueError, NotImplementedError: as in :func:`accesses`; ValueError also for ``bidirectional`` and
            ``induced``, whose edges have no hops.
    """
    num_nodes, num_edges, samples = sampled_hops(loader, epochs)
    device = loader.keyed_sampler.device
    nodes: list[Tensor] = []
    edges: list[Tensor] = []
    for hops in samples:
        for counts, ids, size in ((nodes, hops.nodes, num_nodes), (edges, hops.edges, num_edges)):
            counts += [torch.zeros(size, dtype=torch.int64, device=device) for _ in ids[len(counts) :]]
            for count, some in zip(counts, ids, strict=True):
                _add(count, some)
    of_nodes = [_by_user(loader, count.cpu()) for count in nodes]
    return Accesses(
        torch.stack(of_nodes) if nodes else torch.zeros(0, num_nodes, dtype=torch.int64),
        torch.stack(edges).cpu() if edges else torch.zeros(0, num_edges, dtype=torch.int64),
    )


def sampled_hops(loader: KeyedLoader, epochs: Sequence[int]) -> tuple[int, int, Iterator[Hops]]:
    """(number of nodes, number of edges, the hops of each batch of the given epochs).

    Raises:
        TypeError, ValueError, NotImplementedError: as in :func:`accesses_by_hop`; some when a batch is drawn.
    """
    bounds, samples = _samples(loader, epochs)
    if (num_nodes := bounds.get(None)) is None:
        raise NotImplementedError(
            "accesses by hop of a heterogeneous graph's nodes are not implemented; count by type yourself"
        )
    num_edges = loader.keyed_sampler.edge_bound(None)
    return num_nodes, num_edges or 0, (_hops(batch, num_edges) for batch in samples)


def _hops(batch: MiniBatch, num_edges: int | None) -> Hops:
    nodes, edges = (None if counts is None else counts[0] for counts in (batch.num_nodes, batch.num_edges))
    if nodes is None or edges is None or num_edges is None or (edge_id := batch.edges[0].edge_id) is None:
        raise ValueError(
            "loader: expected samples with edge ids and sizes of hops (subgraph_type='directional'), found others"
        )
    return Hops(batch.nodes[0].split(list(nodes)), edge_id.split(list(edges)))


def _edge_ids(batch: MiniBatch) -> dict[Any, Tensor]:
    """The ids of a sample's edges by type, of the types whose edges have ids."""
    each = zip(batch.types.edges, batch.edges, strict=True)
    found = {edge_type: edges.edge_id for edge_type, edges in each if edges.edge_id is not None}
    if not found:
        raise ValueError("loader: expected samples with edge ids, found others")
    return found


def _samples(
    loader: KeyedLoader, epochs: Sequence[int], batches: int | None = None
) -> tuple[dict[NodeType | None, int], Iterator[Any]]:
    """(number of nodes by type, the samples of all batches of the epochs, or of the first ``batches`` of each)."""
    if not isinstance(loader, KeyedLoader):
        raise TypeError(f"loader: expected one of this package with a KeyedSampler, found {type(loader).__name__}")
    sampler = loader.keyed_sampler
    if (bounds := sampler.node_bounds()) is None:
        raise ValueError(
            f"loader: expected a sampler whose node_bounds() tells the number of nodes, found a "
            f"{type(sampler).__name__} that does not know it"
        )
    if not isinstance(epochs, Iterable):
        raise TypeError(f"epochs: expected their numbers, found {epochs!r}")
    numbers = [check_int(f"epochs[{i}]", epoch) for i, epoch in enumerate(epochs)]
    if batches is not None:
        check_int("batches", batches, 1)
    return {**bounds}, (batch for number in numbers for batch in islice(loader._sampled(number), batches))


def _add(count: Tensor, ids: Tensor) -> None:
    count.index_add_(0, ids, torch.ones_like(ids))


def _by_user(loader: KeyedLoader, count: Tensor, node_type: NodeType | None = None) -> Tensor:
    """Counts that are given by the stores' ids, by the user's ids."""
    return count if loader.order is None else count[loader.order.to_stored(torch.arange(len(count)), node_type)]
