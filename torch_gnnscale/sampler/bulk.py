"""Batches sampled many at a time, and the graph where a GPU reads it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.sampler.base import SubgraphType

from .. import ops
from ..topology import CSC
from .inputs import as_ids
from .output import NeighborOutput

if TYPE_CHECKING:
    from .neighbor import NeighborSampler

_SPARE = 1 << 30  # bytes of a GPU's free memory that the graph leaves to others


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
    csc = sampler.graph.relations[0].csc
    nodes = [as_ids("seeds", entry.node) for entry in inputs]
    seeds = torch.cat(nodes).to(sampler.device, non_blocking=True)
    samples = ops.sample_bulk(
        csc.colptr, csc.row, seeds, [0, *accumulate(map(len, nodes))], sampler.fanouts[0], keys, edge_id=csc.edge_id,
        replace=sampler.replace, layers=sampler.layers,
    )  # fmt: skip
    outputs = []
    for sample, entry in zip(samples, inputs, strict=True):
        out = sampler._output(sample, [], "directional")
        assert isinstance(out, NeighborOutput)
        out.metadata = (entry.input_id, entry.time)
        outputs.append(out)
    return outputs


def placed(csc: CSC, device: torch.device) -> CSC:
    """The graph where a GPU reads it: in its memory, or in pinned host memory if it is there or too large for the GPU.

    A warning says so in the latter case. Sources and edge ids that lie beside each other stay beside each other.
    """
    parts = [csc.colptr, *_pairs_or_parts(csc)]
    if not all(part.is_pinned() for part in parts):
        size = sum(part.nbytes for part in parts)
        free = torch.cuda.mem_get_info(device)[0]
        if fits := size + _SPARE <= free:
            parts = [part.to(device) for part in parts]
        else:
            parts = [part.pin_memory() for part in parts]
        if not fits:
            warnings.warn(
                f"the graph's {size / 2**30:.1f} GiB do not fit beside what is in {device}'s memory "
                f"({free / 2**30:.1f} GiB free): pinned host memory holds them, which is read over the bus",
                stacklevel=3,
            )
    colptr, *rest = parts
    if len(rest) == 1 and rest[0].dim() == 2:
        rest = list(rest[0].unbind(1))
    return replace(csc, colptr=colptr, row=rest[0], edge_id=rest[1] if len(rest) == 2 else None, origin=None)


def _pairs_or_parts(csc: CSC) -> list[Tensor]:
    """Sources and edge ids: as one matrix [E, 2] if they lie so."""
    row, edge_id = csc.row, csc.edge_id
    if edge_id is None:
        return [row]
    beside = row.dtype == edge_id.dtype and row.stride() == edge_id.stride() == (2,) and row.numel() > 0
    if beside and edge_id.data_ptr() == row.data_ptr() + row.element_size():
        return [row.as_strided((len(row), 2), (2, 1))]
    return [row, edge_id]
