"""What is sampled for the inputs of a batch, and what is then done with the output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import NodeSamplerInput

from ..ops.arguments import check_tensor
from .graph import SampledGraph
from .output import Seeds


class SeedRequest(NamedTuple):
    """Arguments of :meth:`NeighborSampler.sample`, and what completes its output."""

    seeds: Seeds
    seed_time: Seeds | None
    exclude: Any = None
    finish: Callable[[Any], Any] = lambda out: out


def check_no_mask(name: str, nodes: Tensor, num_nodes: int) -> None:
    """Raises ValueError for a 0 or 1 of type uint8 for each node: it could be ids or a mask."""
    if nodes.dtype == torch.uint8 and len(nodes) == num_nodes > 0 and int(nodes.max()) <= 1:
        raise ValueError(
            f"{name}: expected a mask of torch.bool, or ids, found uint8 values of 0 and 1 for each of {num_nodes} "
            f"nodes, which could be either; pass {name}.bool() for a mask, {name}.long() for ids"
        )


def request_of_nodes(inputs: NodeSamplerInput, graph: SampledGraph) -> SeedRequest:
    """The seeds themselves; ``finish`` sets ``metadata`` to (input_id, time), as PyG's loaders expect.

    Raises:
        TypeError, ValueError: seeds that could be a mask, or another number of ``input_id`` than of seeds.
    """
    check_tensor("seeds", inputs.node)
    if inputs.node.dtype == torch.uint8:  # seeds of a batch are int64 elsewhere
        check_no_mask("seeds", inputs.node, graph.sizes[graph.node_index(inputs.input_type)])
    seeds: Seeds = inputs.node
    count, input_id = inputs.node.numel(), inputs.input_id  # len() of a tensor takes five times as long
    if input_id is not None and input_id.numel() != count:
        raise ValueError(f"input_id: expected {count} ids, one per seed, found {input_id.numel()}")
    seed_time: Seeds | None = inputs.time
    if inputs.input_type is not None:
        seeds = {inputs.input_type: inputs.node}
        seed_time = None if inputs.time is None else {inputs.input_type: inputs.time}

    def finish(out: Any) -> Any:
        out.metadata = (inputs.input_id, inputs.time)
        return out

    return SeedRequest(seeds, seed_time, None, finish)
