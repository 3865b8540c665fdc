"""The contract between loaders and samplers: samples that are functions of a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.typing import EdgeType, NodeType

Inputs: TypeAlias = NodeSamplerInput | EdgeSamplerInput
"""What a batch is sampled from: seeds, or links."""
Output: TypeAlias = SamplerOutput | HeteroSamplerOutput
"""What a sampler returns; our own outputs (:mod:`torch_gnnscale.sampler.output`) also keep CSC, weights and fields."""


class KeyedSampler(BaseSampler):
    """A PyG sampler whose samples are functions of (inputs, key): all that the loaders of this package ask of one.

    To be derived from. A sampler implements ``sample_from_nodes`` or ``sample_from_edges`` and gets from the loaders
    everything that follows from the key: equal batches for any number of threads and worker processes, prefetching,
    bulks, resuming in the middle of an epoch, ``samples()`` and ``loader(index)``::

        class FirstNeighbors(KeyedSampler):
            def sample_from_nodes(self, inputs, key=None): ...      # a SamplerOutput
            def options(self): return {"sampler": "first neighbors"}

    The attributes below are constants of a sampler: a loader reads them when it is made.
    """

    device: torch.device = torch.device("cpu")
    """Where samples are. On a GPU, loaders sample on streams of their own."""
    layers: bool = False
    """Whether every hop expands all nodes known so far, so that batches get a list of bipartite ``layers``."""
    is_temporal: bool = False
    """Whether seeds have times."""
    thread_safe: bool = True
    """Whether several threads may sample at once. Otherwise one thread samples, in the order of the batches."""
    collective: bool = False
    """Whether all ranks of a process group sample together: then one thread samples, in the order of the batches, and
    nothing that only this rank knows decides whether it does."""
    usual_bulk: int = 1
    """How many batches a loader samples at once unless the user says."""

    # Samples #########################################################################################################

    def sample_from_nodes(self, inputs: NodeSamplerInput, key: int | None = None) -> Output:  # type: ignore[override]
        """The sample of seeds, its ``metadata`` being (input_id, time), as PyG's loaders expect.

        Args:
            inputs: seeds, as ids of the stores.
            key: 64 bits, from :func:`torch_gnnscale.random.batch_key`; None, under PyG's own loaders, draws one from
                torch's generator.
        """
        raise NotImplementedError(f"{type(self).__name__} does not sample from nodes")

    def sample_from_edges(  # type: ignore[override]
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None, key: int | None = None
    ) -> Output:
        """The sample of links and their negatives, with the ``metadata`` that PyG's loaders expect."""
        raise NotImplementedError(f"{type(self).__name__} does not sample from links")

    def sample_inputs(self, inputs: Inputs, key: int, neg_sampling: NegativeSampling | None = None) -> Output:
        """The sample of one batch's inputs, whichever they are."""
        if isinstance(inputs, NodeSamplerInput):
            return self.sample_from_nodes(inputs, key=key)
        return self.sample_from_edges(inputs, neg_sampling, key=key)

    def sample_many(
        self, inputs: Sequence[Inputs], keys: Sequence[int], neg_sampling: NegativeSampling | None = None
    ) -> list[Output]:
        """The samples of many batches, each equal to that of :meth:`sample_inputs`; by default one after the other."""
        return [self.sample_inputs(entry, key, neg_sampling) for entry, key in zip(inputs, keys, strict=True)]

    # What loaders ask beforehand #####################################################################################

    def options(self) -> dict[str, Any]:
        """What decides samples besides the key and the edges themselves, in plain values; states are compared by it."""
        return {}

    def node_bounds(self) -> Mapping[NodeType | None, int] | None:
        """The number of nodes of each type (None in a homogeneous graph), below which all sampled ids are; None if it
        is not known, so that ids are checked where rows are read."""
        return None

    def edge_bound(self, edge_type: EdgeType | None) -> int | None:
        """Edge ids of a type are below this; None if that is not known."""
        return None

    def check_many(self, inputs: type[Inputs], how: str) -> None:
        """Raises NotImplementedError if batches of such inputs are not sampled many at a time, or on the sampler's
        device; ``how`` is what the user asked for, such as "bulk=4"."""

    def prepare_links(
        self, edge_type: EdgeType | None, neg_sampling: NegativeSampling | None, links: torch.Tensor | None
    ) -> None:
        """Called once by a loader of links, before worker processes are made: for what negatives are drawn from.

        Args:
            edge_type: of the links.
            neg_sampling: how negatives are drawn.
            links: ids of the stores, shape [2, m]: links that strict negatives must not be, if there are any.
        """
