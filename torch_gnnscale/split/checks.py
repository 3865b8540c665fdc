"""What split parallelism cannot do, by name."""

from __future__ import annotations

from ..sampler.keyed import KeyedSampler


def check_sampler(sampler: KeyedSampler) -> None:
    """Raises NotImplementedError for a sampler of several types, or whose edges have not each one group: that of the
    hop which found their destination."""
    if (bounds := sampler.node_bounds()) is None or None not in bounds:
        raise NotImplementedError("split parallelism with several types of nodes (HeteroData) is not implemented")
    subgraph = getattr(getattr(sampler, "subgraph_type", None), "value", "directional")
    found = {
        "layers=True": sampler.layers,
        "times (time_attr)": sampler.is_temporal,
        "disjoint=True": getattr(sampler, "disjoint", False),
        f"subgraph_type={subgraph!r}": subgraph != "directional",
    }
    for name, given in found.items():
        if given:
            raise NotImplementedError(f"split parallelism with {name} is not implemented")
