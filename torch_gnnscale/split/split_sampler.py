"""Samples one rank's part of each batch: the whole batch is drawn on every rank, and cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling, NodeSamplerInput
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from ..random import ids_key
from ..sampler.keyed import Inputs, KeyedSampler, Output
from ..sampler.output import NeighborOutput
from .checks import check_sampler
from .shuffle_index import ShuffleIndex


@dataclass(repr=False)
class SplitOutput(NeighborOutput):
    """One rank's part of a sample."""

    whole: tuple[int, ...] = ()
    """Numbers that are alike on all ranks that have parts of one sample."""


class SplitSampler(KeyedSampler):
    """Samples the part of each batch that one rank computes (GSplit, section 5).

    Every rank draws the whole batch, by its key, and cuts it (:func:`torch_gnnscale.ops.cut_batch`), so that both sides
    know without a message which rows travel. Batches get the fields ``shuffle_index``
    (:class:`torch_gnnscale.split.ShuffleIndex`), ``batch_key`` and ``global_batch_size``, the number of seeds of the
    whole batch. ``batch_key`` is the key by which the batch was drawn; where batches share it (``batch_dependency``), a
    hash of it and the batch's seeds.

    Args:
        sampler: samples whole batches of a homogeneous graph from nodes, without trees; sampled edges are those that
            were drawn.
        owners: owners[i]: the rank of the node of stored id i: int32 or int64, shape [nodes].
        parts: the number of ranks. A single one computes all nodes, whoever their owners are.
        part: the number of this one.

    Raises:
        NotImplementedError: a sampler whose batches cannot be cut.
        ValueError: owners of another number of nodes.
    """

    def __init__(self, sampler: KeyedSampler, owners: Tensor, parts: int = 1, part: int = 0) -> None:
        check_sampler(sampler)
        bounds = sampler.node_bounds()
        if bounds is not None and len(owners) != bounds[None]:
            raise ValueError(f"split: expected a plan of {bounds[None]} nodes, found one of {len(owners)}")
        self.sampler, self.owners, self.parts, self.part = sampler, owners, parts, part
        self._check_ids = bounds is None
        self.thread_safe = sampler.thread_safe
        self.batches_per_key, self.weight_name = sampler.batches_per_key, sampler.weight_name
        self.usual_bulk = sampler.usual_bulk

    def options(self) -> dict[str, Any]:
        """See :meth:`KeyedSampler.options`: those of whole batches, which may be cut in any way."""
        return self.sampler.options()

    def node_bounds(self) -> Mapping[NodeType | None, int] | None:
        """See :meth:`KeyedSampler.node_bounds`."""
        return self.sampler.node_bounds()

    def edge_bound(self, edge_type: EdgeType | None) -> int | None:
        """See :meth:`KeyedSampler.edge_bound`."""
        return self.sampler.edge_bound(edge_type)

    def check_many(self, inputs: type[Inputs], how: str) -> None:
        """See :meth:`KeyedSampler.check_many`."""
        self.sampler.check_many(inputs, how)

    def sample_from_nodes(self, inputs: NodeSamplerInput, key: int | None = None) -> SplitOutput:  # type: ignore[override]
        """This rank's part of the batch of ``inputs.node``, the seeds of all ranks, which need one key."""
        if key is None:
            raise ValueError("key: expected one, by which all ranks draw the same batch, found None")
        return self._cut(self.sampler.sample_from_nodes(inputs, key), key)

    def sample_many(
        self, inputs: Sequence[Inputs], keys: Sequence[int], neg_sampling: NegativeSampling | None = None
    ) -> list[Output]:
        """See :meth:`KeyedSampler.sample_many`."""
        found = self.sampler.sample_many(inputs, keys, neg_sampling)
        return [self._cut(out, key) for out, key in zip(found, keys, strict=True)]

    def _cut(self, out: Any, key: int) -> SplitOutput:
        if not isinstance(out, NeighborOutput) or out.colptr is None or out.num_sampled_nodes is None or (
            out.batch is not None or out.separate_sources
        ):  # fmt: skip
            raise NotImplementedError(
                f"split of samples of {type(self.sampler).__name__} is not implemented: expected NeighborOutputs with "
                f"colptr and hops, without trees"
            )
        cut = ops.cut_batch(
            out.node, out.num_sampled_nodes, out.colptr, out.row, self._owners_of(out.node), self.parts, self.part
        )
        seeds, num_seeds = cut.local[: cut.num_nodes[0]], int(out.num_sampled_nodes[0])
        columns = torch.arange(len(cut.colptr) - 1)
        edge_index = torch.stack([cut.row, columns.repeat_interleave(cut.colptr.diff(), output_size=len(cut.row))])
        row, col = edge_index.unbind()
        return SplitOutput(
            out.node[cut.local],
            row,
            col,
            None if out.edge is None else out.edge[cut.edge],
            None,
            cut.num_nodes,
            cut.num_edges,
            metadata=tuple(None if entry is None else entry[seeds] for entry in out.metadata),
            colptr=cut.colptr,
            edge_index=edge_index,
            edge_weight=None if out.edge_weight is None else out.edge_weight[cut.edge],
            fields={
                **out.fields,
                "shuffle_index": ShuffleIndex(self.parts, self.part, cut.sent, cut.num_sent, cut.num_received),
                "batch_key": key if self.batches_per_key == 1 else ids_key(key, out.node[:num_seeds]),
                "global_batch_size": num_seeds,
            },
            whole=(key, len(out.node), len(out.row), int(out.node.sum()), int(out.row.sum())),
        )

    def _owners_of(self, node: Tensor) -> Tensor:
        if self.parts == 1:
            return torch.zeros(len(node), dtype=torch.int32)
        return ops.gather_rows(self.owners, node, check=self._check_ids)
