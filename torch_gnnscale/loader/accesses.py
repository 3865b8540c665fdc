"""How often a loader's batches read each node and edge: known beforehand, because batches are pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ops.arguments import check_int
from ..sampler.keyed import KeyedSampler
from .keyed_loader import KeyedLoader


class Accesses(NamedTuple):
    """Counts over the batches of some epochs."""

    nodes: Tensor
    """By hop in which a node was found (0: the seeds), how often: int64, shape [hops + 1, num_nodes]."""
    edges: Tensor
    """By hop in which an edge was drawn, how often: int64, shape [hops, num_edges], by the user's edge ids."""


def accesses(loader: KeyedLoader, epochs: Sequence[int]) -> Tensor:
    """How often a loader's batches of some epochs read each node's features.

    Epochs that training will not have are a sample of it (presampling, as GNNLab and GSplit do); the epoch to come
    itself gives its accesses exactly. Nothing but the topology is read.

    Draws are made for nodes as the graph numbers them. Counts for a store that is to be ``renumbered`` by them are
    therefore a sample of its epochs, of which the batches differ; with a map of places they are exact.

    Args:
        loader: of a homogeneous graph, with an order that is a function of its seed.
        epochs: their numbers, at least 0.

    Returns:
        int64, shape [num_nodes], by the user's ids.

    Raises:
        TypeError, ValueError: another loader, other epochs, an order that is the user's.
        NotImplementedError: a heterogeneous graph.
    """
    num_nodes, samples = _samples(loader, epochs)
    count = torch.zeros(num_nodes, dtype=torch.int64, device=loader._sampler.device)
    for out in samples:
        _add(count, out.node)
    return _by_user(loader, count.cpu())


def accesses_by_hop(loader: KeyedLoader, epochs: Sequence[int]) -> Accesses:
    """How often a loader's batches of some epochs find each node and draw each edge, hop by hop; see :func:`accesses`.

    Raises:
        TypeError, ValueError, NotImplementedError: as of :func:`accesses`; ValueError where edges are not those that
            were drawn (``bidirectional`` and ``induced``).
    """
    num_nodes, samples = _samples(loader, epochs)
    device, num_edges = loader._sampler.device, loader._sampler.edge_bound(None)
    nodes: list[Tensor] = []
    edges: list[Tensor] = []
    for out in samples:
        if out.num_sampled_nodes is None or out.num_sampled_edges is None or num_edges is None:
            raise ValueError("loader: expected samples of the edges that were drawn, with their ids, found others")
        for counts, ids, sizes, size in (
            (nodes, out.node, out.num_sampled_nodes, num_nodes),
            (edges, out.edge, out.num_sampled_edges, num_edges),
        ):
            counts += [torch.zeros(size, dtype=torch.int64, device=device) for _ in sizes[len(counts) :]]
            for count, some in zip(counts, ids.split(list(sizes)), strict=True):
                _add(count, some)
    of_nodes = [_by_user(loader, count.cpu()) for count in nodes]
    return Accesses(
        torch.stack(of_nodes) if nodes else torch.zeros(0, num_nodes, dtype=torch.int64),
        torch.stack(edges).cpu() if edges else torch.zeros(0, num_edges or 0, dtype=torch.int64),
    )


def _samples(loader: KeyedLoader, epochs: Sequence[int]) -> tuple[int, Iterator[Any]]:
    """The number of nodes, and the samples of all batches of the epochs."""
    sampler = loader._sampler if isinstance(loader, KeyedLoader) else None
    if not isinstance(sampler, KeyedSampler):
        raise TypeError(f"loader: expected one of this package with a KeyedSampler, found {type(loader).__name__}")
    bounds = sampler.node_bounds()
    if bounds is None or None not in bounds:
        raise NotImplementedError(
            "accesses of a heterogeneous graph's nodes are not implemented; count by type yourself"
        )
    if not isinstance(epochs, Iterable):
        raise TypeError(f"epochs: expected their numbers, found {epochs!r}")
    numbers = [check_int(f"epochs[{i}]", epoch) for i, epoch in enumerate(epochs)]
    return bounds[None], chain.from_iterable(map(loader.samples, numbers))


def _add(count: Tensor, ids: Tensor) -> None:
    count.index_add_(0, ids, torch.ones_like(ids))


def _by_user(loader: KeyedLoader, count: Tensor) -> Tensor:
    """Counts by the stores' ids, by the user's."""
    return count if loader.order is None else count[loader.order.to_stored(torch.arange(len(count)))]
