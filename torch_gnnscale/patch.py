"""Makes PyG's own loaders and samplers use our operators, for a whole program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import torch
import torch_geometric.sampler.neighbor_sampler as pyg
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler.base import SubgraphType

from .loader.given_data import given_data
from .loader.line import Collator, label_seeds
from .loader.neighbor_loaders import label_links
from .random import draw_seed
from .sampler import NeighborSampler
from .sampler.base import keyed
from .sampler.graph import subgraph_kind
from .sampler.minibatch import MiniBatch, Seeds
from .sampler.outputs import write_output

_originals: list[tuple[Any, str, Any]] = []
"""(class, name of its attribute, original value) for each attribute that was replaced."""


class Patch:
    """The result of :func:`patch_pyg`: a context manager that restores PyG at its end."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        unpatch_pyg()


def patch_pyg() -> Patch:
    """Makes PyG's NeighborLoader, LinkNeighborLoader and NeighborSampler use our operators.

    They then need neither pyg-lib nor torch-sparse. Methods of PyG's classes are replaced, not the classes, so names
    that were imported before are patched as well. Negatives, metadata and bidirectional edges are still PyG's code. The
    key of each batch is drawn from torch's generator, which ``torch.manual_seed`` sets. Feature rows are gathered
    natively, and attributes of edges in stores are correct.

    :func:`unpatch_pyg` restores PyG, and so does the end of a ``with`` block; samplers that were made before keep our
    operators. A second call has no effect. ::

        with torch_gnnscale.patch_pyg():
            loader = torch_geometric.loader.NeighborLoader(data, [10, 10])
    """
    if not _originals:
        _replace(pyg.NeighborSampler, "__init__", _init)
        for kind, sampler, label in (
            (NodeLoader, "node_sampler", label_seeds),
            (LinkLoader, "link_sampler", label_links),
        ):
            _replace(kind, "filter_fn", _filter_fn(kind.filter_fn, sampler, label))
    return Patch()


def unpatch_pyg() -> None:
    """Restores what :func:`patch_pyg` replaced; no effect if PyG is not patched."""
    while _originals:
        owner, name, value = _originals.pop()
        setattr(owner, name, value)


def _replace(owner: Any, name: str, value: Any) -> None:
    _originals.append((owner, name, vars(owner)[name]))
    setattr(owner, name, value)


# Replacements of PyG's methods #######################################################################################


def _init(
    self: Any, data: Any, num_neighbors: Any, subgraph_type: Any = "directional", replace: bool = False,
    disjoint: bool = False, temporal_strategy: str = "uniform", time_attr: str | None = None,
    weight_attr: str | None = None, is_sorted: bool = False, share_memory: bool = False, directed: bool = True,
    sample_direction: str = "forward",
) -> None:  # fmt: skip
    """Replaces NeighborSampler.__init__: makes our sampler and uses it in ``_sample``; other methods stay PyG's."""
    if given_data(data).numbering is not None:
        raise NotImplementedError(
            "renumbered stores are not implemented in PyG's loaders, which cannot convert ids: use torch_gnnscale's "
            "loaders"
        )
    kind = SubgraphType.induced if not directed else subgraph_kind(subgraph_type)
    ours = NeighborSampler(
        data, num_neighbors, "induced" if kind == SubgraphType.induced else "directional", replace, disjoint,
        temporal_strategy, time_attr, weight_attr, is_sorted, share_memory, directed, sample_direction,
    )  # fmt: skip
    for name in ("data_type", "node_types", "edge_types", "num_nodes", "node_time", "edge_time", "sample_direction"):
        setattr(self, name, getattr(ours, name))
    self.perm = None  # our sampler returns the user's edge ids
    self.to_backward_edge_type = {}  # num_neighbors keeps the user's edge types
    self.num_neighbors = num_neighbors
    self.replace, self.subgraph_type, self.disjoint = replace, kind, disjoint
    self.temporal_strategy, self.keep_orig_edges = temporal_strategy, False
    if type(self)._sample is pyg.NeighborSampler._sample:
        self._sample = partial(_sample, self, ours)


def _sample(theirs: Any, ours: NeighborSampler, seed: Seeds, seed_time: Seeds | None = None, **kwargs: Any) -> Any:
    """Replaces ``_sample``: samples by ours with the current options of theirs."""
    if ours.num_neighbors is not theirs.num_neighbors:
        ours.num_neighbors = theirs.num_neighbors
    ours.replace, ours.disjoint, ours.temporal_strategy = theirs.replace, theirs.disjoint, theirs.temporal_strategy
    induced = theirs.subgraph_type == SubgraphType.induced
    ours.subgraph_type = SubgraphType.induced if induced else SubgraphType.directional
    seed = {t: ids.to(torch.int64) for t, ids in seed.items()} if isinstance(seed, dict) else seed.to(torch.int64)
    return ours.sample(seed, seed_time, draw_seed()).to_pyg()


def _filter_fn(original: Callable, sampler_name: str, label: Callable) -> Callable:
    """Returns the replacement of a loader class's ``filter_fn``: it makes batches by a Collator."""

    def filter_fn(self: Any, out: Any) -> Any:
        sampler = getattr(self, sampler_name)
        if type(sampler).__name__ == "DistNeighborSampler":  # its output has the features already
            return original(self, out)
        given = given_data(self.data)
        collator = Collator(
            given.rows(self.custom_cls), given.edge_layouts(None), keyed(sampler),
            partial(label, self), self,
        )  # fmt: skip
        write_output(batch := MiniBatch(), out, sampler.edge_permutation)
        data = collator.at_once(batch).data
        return data if self.transform is None else self.transform(data)

    return filter_fn
