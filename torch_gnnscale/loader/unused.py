"""Warnings of a loader's arguments that have no effect beside the others."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NegativeSampling

from .._warn import warn
from ..sampler import NeighborSampler
from ..sampler.base import KeyedSampler
from ..sampler.layerwise import LayerSampler


def warn_of_unused_arguments(
    data: Any, sampler: Any, prefetch: int | None, seed: int | None, options: Mapping[str, Any]
) -> None:
    """Warns of arguments of both loaders. ``options``: the arguments of DataLoader and of PyG's loader; without a
    number of workers where threads do their work."""
    workers = options.get("num_workers", 0)
    if prefetch and workers:
        warn(f"prefetch={prefetch} has no effect beside worker processes (num_workers={workers}); use prefetch_factor=")
    elif prefetch and not isinstance(sampler, KeyedSampler):
        warn(
            f"prefetch={prefetch} has no effect: {type(sampler).__name__} may keep state (it is no KeyedSampler), "
            f"so it is called in the thread that iterates"
        )
    if options.get("worker_init_fn") is not None and not workers:
        warn("worker_init_fn has no effect without worker processes (num_workers=0)")
    if options.get("custom_cls") is not None and isinstance(data, (Data, HeteroData)):
        warn(f"custom_cls has no effect with a {type(data).__name__}, as in PyG: it is the class of batches of stores")
    if seed is not None and options.get("generator") is not None:
        warn("generator has no effect beside seed, which decides the order and every draw")


def warn_of_options_beside_sampler(sampler: Any, num_neighbors: Any, options: Mapping[str, Any], times: bool) -> None:
    """Warns of fanouts and of options of :class:`NeighborSampler` that are not its defaults, beside the user's
    ``neighbor_sampler``.

    With ``times`` of seeds, a ``time_attr`` is no reason to warn: PyG's loaders require it then.
    """
    usual = inspect.signature(NeighborSampler).parameters
    names = [name for name, value in options.items() if getattr(value, "value", value) != usual[name].default]
    if times and "time_attr" in names:
        names.remove("time_attr")
    if names:
        verb = "has" if len(names) == 1 else "have"
        warn(f"{', '.join(names)} {verb} no effect beside neighbor_sampler, which has options of its own")
    own = None
    if isinstance(sampler, LayerSampler):
        own = sampler.num_nodes_of_hops
    elif isinstance(sampler, NeighborSampler):
        own = getattr(sampler.num_neighbors, "values", None)
    given = [*num_neighbors] if isinstance(num_neighbors, Sequence) else None
    if given and isinstance(own, list) and given != own:
        warn(f"num_neighbors={given} has no effect beside neighbor_sampler, which has {own}")


def warn_of_options_of_links(sampler: Any) -> None:
    """Warns of options of a sampler that are for links, where its seeds are nodes."""
    for name in ("exclude_seed_edges", "strict_negatives"):
        if isinstance(sampler, (NeighborSampler, LayerSampler)) and getattr(sampler, name, False) is not False:
            warn(f"{name} of neighbor_sampler has no effect: it is for links, and the seeds are nodes")


def warn_of_negatives(sampler: Any, neg_sampling: Any, neg_sampling_ratio: float | None) -> None:
    """Warns of arguments of negatives that none are drawn by."""
    if neg_sampling is not None and neg_sampling_ratio:
        warn(f"neg_sampling has no effect beside neg_sampling_ratio={neg_sampling_ratio}, as in PyG")
    negatives = None if neg_sampling_ratio else NegativeSampling.cast(neg_sampling)
    if negatives is not None and negatives.is_triplet() and negatives.src_weight is not None:
        warn("neg_sampling: src_weight has no effect in triplets, whose negatives have the sources of links")
    if neg_sampling is None and not neg_sampling_ratio and getattr(sampler, "strict_negatives", False) is not False:
        warn("strict_negatives has no effect without neg_sampling: no negatives are drawn")
