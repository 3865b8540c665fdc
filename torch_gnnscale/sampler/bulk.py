"""Batches sampled many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.sampler.base import SubgraphType

from .inputs import as_ids
from .output import NeighborOutput
from .placed import PlacedGraph

if TYPE_CHECKING:
    from .neighbor import NeighborSampler


def check_modes(sampler: NeighborSampler, how: str) -> None:
    """Raises NotImplementedError naming the first mode that is not drawn in bulk; ``how`` says what asks for it."""
    modes = {
        "a heterogeneous graph": sampler.is_hetero,
        "weight_attr": any(relation.weight is not None for relation in sampler.graph.relations),
        "time_attr": sampler.is_temporal,
        "disjoint=True": sampler.disjoint,
        f"subgraph_type={sampler.subgraph_type.value!r}": sampler.subgraph_type != SubgraphType.directional,
        "sample_direction='backward'": sampler.graph.backward,
    }
    if unknown := [mode for mode, asked in modes.items() if asked]:
        raise NotImplementedError(f"{unknown[0]} with {how} is not implemented; use device='cpu' and bulk=1")


def sample_bulk(
    sampler: NeighborSampler, inputs: Sequence[NodeSamplerInput], keys: Sequence[int]
) -> list[NeighborOutput]:
    """What the sampler's ``sample_from_nodes`` gives for each of the inputs, drawn at once where its graph lies.

    Raises:
        NotImplementedError: a mode that is not drawn in bulk.
        IndexError, TypeError: seeds that are not nodes.
    """
    check_modes(sampler, "bulk")
    graph = sampler.placed or PlacedGraph.of(sampler.graph.relations[0].csc)
    nodes = [as_ids("seeds", entry.node) for entry in inputs]
    samples = graph.sample(nodes, sampler.fanouts[0], keys, replace=sampler.replace, layers=sampler.layers)
    outputs = []
    for sample, entry in zip(samples, inputs, strict=True):
        out = sampler._output(sample, [], "directional")
        assert isinstance(out, NeighborOutput)
        out.metadata = (entry.input_id, entry.time)
        outputs.append(out)
    return outputs
