"""What is sampled for the inputs of a batch, and what is then done with the output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch_geometric.sampler import NodeSamplerInput

from .output import Seeds


class SeedRequest(NamedTuple):
    """Arguments of :meth:`NeighborSampler.sample`, and what completes its output."""

    seeds: Seeds
    seed_time: Seeds | None
    exclude: Any = None
    finish: Callable[[Any], Any] = lambda out: out


def request_of_nodes(inputs: NodeSamplerInput) -> SeedRequest:
    """The seeds themselves; ``finish`` sets ``metadata`` to (input_id, time), as PyG's loaders expect."""
    seeds: Seeds = inputs.node
    seed_time: Seeds | None = inputs.time
    if inputs.input_type is not None:
        seeds = {inputs.input_type: inputs.node}
        seed_time = None if inputs.time is None else {inputs.input_type: inputs.time}

    def finish(out: Any) -> Any:
        out.metadata = (inputs.input_id, inputs.time)
        return out

    return SeedRequest(seeds, seed_time, finish=finish)
