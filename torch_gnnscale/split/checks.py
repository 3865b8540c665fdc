"""What split parallelism cannot do, by name."""

from __future__ import annotations

from typing import Any

from torch_geometric.sampler.base import SubgraphType

from ..loader.split import check_modes
from ..sampler.keyed import KeyedSampler


def check_sampler(sampler: Any, collective: bool = False) -> None:
    """Refuses samplers whose batches cannot be cut: an edge must have one group, that of the hop which found its
    destination.

    Args:
        sampler: of whole batches.
        collective: whether it may be one of ranks that sample together.

    Raises:
        ValueError: it is not a KeyedSampler.
        NotImplementedError: its mode, by name.
    """
    if not isinstance(sampler, KeyedSampler):
        raise ValueError(f"split: expected a neighbor_sampler that is a KeyedSampler, found {type(sampler).__name__}")
    bounds = sampler.node_bounds()
    check_modes(getattr(sampler, "subgraph_type", SubgraphType.directional), {
        "HeteroData": getattr(sampler, "is_hetero", False) or (bounds is not None and None not in bounds),
        "layers=True": sampler.layers,
        "time_attr, input_time": sampler.is_temporal,
        "disjoint=True": getattr(sampler, "disjoint", False),
        "sample_direction='backward'": getattr(sampler, "sample_direction", "forward") == "backward",
        "a collective sampler": sampler.collective and not collective,
    })  # fmt: skip


def check_nodes(sampler: KeyedSampler, count: int) -> None:
    """Raises ValueError if a plan has another number of nodes than what a sampler draws from."""
    bounds = sampler.node_bounds()
    if bounds is not None and count != bounds[None]:
        raise ValueError(f"split: expected a plan of {bounds[None]} nodes, found one of {count}")
