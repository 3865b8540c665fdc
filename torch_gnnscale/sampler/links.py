"""Links as seeds: their negatives and labels, and the edges that are excluded because a model must predict them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from ..ops.arguments import as_ids, check_key
from ..random import Purpose, batch_key
from .graph import SampledGraph, check_times, end_types, ordered, ordered_limit, reverse_relations
from .inputs import SeedRequest
from .output import HeteroNeighborOutput, NeighborOutput, Seeds

ExcludeSeedEdges: TypeAlias = bool | Literal["reverse"]
"""True: edges between the ends of a batch's links are excluded from its sample. "reverse": their reverses, too."""
StrictNegatives: TypeAlias = bool | Tensor | dict[EdgeType, Tensor]
"""True: negatives are never edges. Links [2, m] (by edge type in a heterogeneous graph): negatives are never edges or
these links. If every edge has its reverse, negatives are never the reverses of these links either."""

_FEW_IDS = 8
"""Up to this many ids, a dictionary finds the distinct ones faster than torch does."""


class _Ends(NamedTuple):
    """Candidates for one end of negatives, and the user's weights from which they were prepared."""

    weight: Tensor | None
    candidates: ops.Candidates


class LinkSampling:
    """Draws negatives for links, excludes edges, and lays out seeds and metadata for a sampler of neighborhoods.

    Args:
        graph: the relations.
        exclude_seed_edges: see :data:`ExcludeSeedEdges`.
        strict_negatives: see :data:`StrictNegatives`.

    Raises:
        TypeError, ValueError, IndexError: an option of another type or form, or links outside the graph.
    """

    def __init__(
        self, graph: SampledGraph, exclude_seed_edges: ExcludeSeedEdges, strict_negatives: StrictNegatives
    ) -> None:
        if not isinstance(exclude_seed_edges, bool) and exclude_seed_edges != "reverse":
            raise ValueError(f"exclude_seed_edges: expected False, True or 'reverse', found {exclude_seed_edges!r}")
        self.graph = graph
        self.exclude_seed_edges = exclude_seed_edges
        self.strict_negatives = strict_negatives
        self._known: dict[EdgeType | None, Tensor] = {}
        if not isinstance(strict_negatives, bool):
            if isinstance(strict_negatives, dict) != graph.is_hetero:
                expected = "a dictionary by edge type" if graph.is_hetero else "a tensor"
                raise TypeError(
                    f"strict_negatives: expected a bool or {expected}, found {type(strict_negatives).__name__}"
                )
            known = strict_negatives if isinstance(strict_negatives, dict) else {None: strict_negatives}
            for edge_type, links in known.items():
                check_links("strict_negatives", links, edge_type, graph.bounds())
            self._known = {edge_type: links.to(torch.int64).cpu() for edge_type, links in known.items()}
        self._ends: dict[tuple[NodeType | None, str, bool], _Ends] = {}
        """By (node type, "src_weight" or "dst_weight", whether there are no weights): the candidates used last."""
        self._edges: dict[EdgeType | None, ops.EdgeSet] = {}

    # What is the same for every batch ################################################################################

    def prepare(
        self, edge_type: EdgeType | None, neg_sampling: NegativeSampling | None, known: Tensor | None = None
    ) -> None:
        """Prepares what negatives of an edge type are drawn from, so that forked worker processes inherit it.

        ``known``: links [2, m] that strict negatives must not be either.

        Raises:
            TypeError, ValueError: weights that are not finite numbers >= 0; no edge type for the reverse edges.
        """
        self._exclusion_types(edge_type)
        if known is not None:
            before = [self._known[edge_type]] if edge_type in self._known else []
            self._known[edge_type] = torch.cat([*before, known.to(torch.int64).cpu()], dim=1)
        if neg_sampling is not None:
            src_type, dst_type = end_types(edge_type)
            if neg_sampling.is_binary():
                self._candidates(src_type, "src_weight", neg_sampling.src_weight)
            self._candidates(dst_type, "dst_weight", neg_sampling.dst_weight)
            self._edge_set(edge_type)

    def _candidates(self, node_type: NodeType | None, name: str, weight: Tensor | None) -> ops.Candidates:
        known = self._ends.get((node_type, name, weight is None))
        if known is None or known.weight is not weight:
            graph = self.graph
            time = (graph.node_time or {}).get(node_type)
            ordered_time = None if time is None else ordered(time, graph.floating_time)
            size = graph.sizes[graph.node_index(node_type)]
            candidates = _weighted(name, size, weight, ordered_time)
            known = self._ends[node_type, name, weight is None] = _Ends(weight, candidates)
        return known.candidates

    def _edge_set(self, edge_type: EdgeType | None) -> ops.EdgeSet | None:
        if self.strict_negatives is False:
            return None
        if edge_type not in self._edges:
            graph, ends = self.graph, end_types(edge_type)
            sizes = [graph.sizes[graph.node_index(node_type)] for node_type in ends]
            links = torch.empty(2, 0, dtype=torch.int64)
            if edge_type in graph.edge_types:
                relation = graph.relations[graph.edge_types.index(edge_type)]
                pairs = torch.stack([relation.csc.row.to(torch.int64), relation.csc.col()])
                links = pairs.flip(0) if graph.backward else pairs
                if relation.left_out is not None:
                    links = torch.cat([links, relation.left_out], dim=1)
            if (known := self._known.get(edge_type)) is not None:
                both_ways = ends[0] == ends[1] and _is_undirected(links, sizes)
                links = torch.cat([links, known, known.flip(0)] if both_ways else [links, known], dim=1)
            self._edges[edge_type] = ops.edge_set(*links, *sizes)
        return self._edges[edge_type]

    def _exclusion_types(self, edge_type: EdgeType | None) -> list[tuple[EdgeType | None, bool]]:
        """(edge type, reversed) per edge type whose edges are excluded: of the links, or of the links reversed."""
        types = self.graph.edge_types
        if not self.exclude_seed_edges:
            return []
        found = [(edge_type, False)] if edge_type in types else []
        if self.exclude_seed_edges == "reverse":
            reverse = reverse_relations(types)[types.index(edge_type)] if edge_type in types else -1
            if reverse < 0:
                raise ValueError(
                    f"exclude_seed_edges='reverse': expected an edge type of the reverse edges of {edge_type}, found "
                    f"none among {types}; use True"
                )
            found.append((types[reverse], True))
        return found

    # What is done for each batch #####################################################################################

    def request(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None, key: int, disjoint: bool
    ) -> SeedRequest:
        """What is sampled for links and their negatives: the neighborhood of their ends. ``finish`` adds the metadata
        that PyG's LinkLoader expects.

        Negative j belongs to link ``j % num_links``: it has that link's time and tree, and in triplets its source.
        """
        triplets = neg_sampling is not None and neg_sampling.is_triplet()
        src, dst, label = as_ids("row", inputs.row), as_ids("col", inputs.col), inputs.label
        links, time, edge_type = src.numel(), inputs.time, inputs.input_type
        if triplets and label is not None:
            raise ValueError("edge_label: expected none with negatives in triplets, found some")
        exclude = self._exclusions(src, dst, edge_type) if self.exclude_seed_edges else None
        sources, destinations = [src], [dst]
        src_time = dst_time = time
        if neg_sampling is not None:
            count = math.ceil(links * neg_sampling.amount)
            neg_time = None
            if time is not None:
                check_times("edge_label_time", time, links)
                neg_time = _repeated(time, count)
                dst_time = torch.cat([time, neg_time])
            neg_src, neg_dst = self._negatives(src, count, neg_time, edge_type, neg_sampling, key).unbind()
            destinations.append(neg_dst)
            if not triplets:
                sources.append(neg_src)
                src_time = dst_time
                label = torch.ones(links) if label is None else label
                label = torch.cat([label, label.new_zeros((count, *label.shape[1:]))])

        num_sources = links if triplets or neg_sampling is None else links + count
        seeds, index = _each_once(_by_end(sources, destinations, edge_type), disjoint)
        seed_time = None if time is None else _by_end([src_time], [dst_time], edge_type)

        def finish(out: NeighborOutput | HeteroNeighborOutput) -> NeighborOutput | HeteroNeighborOutput:
            if disjoint:
                out.batch = _map(out.batch, lambda tree: _link_of(tree, num_sources, links))
            if neg_sampling is not None and triplets:
                of_links = index[2 * links :].view(int(neg_sampling.amount), links).t().contiguous()
                dst_neg_index = of_links[:, 0] if neg_sampling.amount == 1 else of_links
                out.metadata = (inputs.input_id, index[:links], index[links : 2 * links], dst_neg_index, time)
            else:
                out.metadata = (inputs.input_id, index.view(2, num_sources), label, src_time)
            return out

        return SeedRequest(seeds, seed_time, exclude, finish)

    def _negatives(
        self,
        src: Tensor,
        count: int,
        time: Tensor | None,
        edge_type: EdgeType | None,
        neg_sampling: NegativeSampling,
        key: int,
    ) -> Tensor:
        """``count`` negatives of links with these sources; ``time``: of each negative's link."""
        src_type, dst_type = end_types(edge_type)
        destinations = self._candidates(dst_type, "dst_weight", neg_sampling.dst_weight)
        sources: Tensor | ops.Candidates
        if neg_sampling.is_triplet():
            sources = _repeated(src, count)
        else:
            sources = self._candidates(src_type, "src_weight", neg_sampling.src_weight)
        limits = None
        if time is not None:
            limits = ordered_limit("edge_label_time", time, self.graph.floating_time)
        elif destinations.time is not None or (isinstance(sources, ops.Candidates) and sources.time is not None):
            raise ValueError(
                "edge_label_time: expected times of the links, which limit the times of negatives, found none"
            )
        return ops.sample_negatives(
            count,
            sources,
            destinations,
            batch_key(check_key(key), purpose=Purpose.NEGATIVE),
            seed_time=limits,
            edges=self._edge_set(edge_type),
        )

    def _exclusions(self, src: Tensor, dst: Tensor, edge_type: EdgeType | None) -> Any:
        pairs = torch.stack([src.to(torch.int64), dst.to(torch.int64)])
        found: dict[EdgeType | None, Tensor] = {}
        for excluded, turned in self._exclusion_types(edge_type):
            of_type = pairs.flip(0) if turned else pairs
            found[excluded] = torch.cat([found[excluded], of_type], dim=1) if excluded in found else of_type
        return (found if self.graph.is_hetero else found[None]) if found else None


def sorted_pairs(pairs: Tensor | None, backward: bool) -> Tensor | None:
    """Pairs of nodes [2, m] in the direction of sampling, sorted by destination, then by source."""
    if pairs is None:
        return None
    pairs = pairs.flip(0) if backward else pairs
    pairs = pairs[:, torch.argsort(pairs[0], stable=True)]
    return pairs[:, torch.argsort(pairs[1], stable=True)]


def _is_undirected(links: Tensor, sizes: list[int]) -> bool:
    """Whether there are links and the reverse of every link is a link."""
    one, other = ops.edge_set(*links, *sizes), ops.edge_set(*links.flip(0), *sizes)
    return links.size(1) > 0 and all(map(torch.equal, one, other))


def check_weights(name: str, weight: Tensor, size: int) -> None:
    """Raises TypeError or ValueError unless there are ``size`` weights, and names the first that is not a finite number
    of at least 0."""
    _weighted(name, size, weight, None)


def _weighted(name: str, size: int, weight: Tensor | None, time: Tensor | None) -> ops.Candidates:
    """Candidates for negatives: ``size`` nodes with these weights and times."""
    try:
        return ops.candidates(size, None if weight is None else weight.cpu(), time)
    except (TypeError, ValueError) as error:
        raise type(error)(f"neg_sampling: {name}: {error}") from None


def check_links(
    name: str, links: Any, edge_type: EdgeType | None, num_nodes: Mapping[NodeType | None, int] | None
) -> None:
    """Raises unless ``links`` are ids of shape [2, m] in range for the node types of the edge type. Without
    ``num_nodes`` the range is not checked."""
    if not isinstance(links, Tensor):
        raise TypeError(f"{name}: expected a tensor of links, found {type(links).__name__}")
    if links.dim() != 2 or links.size(0) != 2:
        raise ValueError(f"{name}: expected shape (2, num_links), found {tuple(links.shape)}")
    for end, node_type in enumerate(end_types(edge_type)):
        ids = as_ids(name, links[end])
        if num_nodes is None:
            continue
        if node_type not in num_nodes:
            raise ValueError(f"node type {node_type!r}: expected one of {list(num_nodes)}")
        size = num_nodes[node_type]
        if (at := ops.first_outside(ids, size)) >= 0:
            of_type = "" if node_type is None else f" of {node_type!r}"
            raise IndexError(
                f"{name}[{end}, {at}] = {int(ids[at])} is out of range: expected nodes{of_type} in [0, {size})"
            )


def _repeated(values: Tensor, count: int) -> Tensor:
    """result[j] = values[j % len(values)], shape [count]."""
    if count <= len(values):
        return values[:count]
    return values[torch.arange(count) % len(values)]


def _by_end(src: list[Tensor], dst: list[Tensor], edge_type: EdgeType | None) -> Seeds:
    """Values of sources and destinations, in parts, in the form of seeds: by node type, sources first."""
    if edge_type is None:
        return torch.cat([*src, *dst])
    if edge_type[0] == edge_type[-1]:
        return {edge_type[0]: torch.cat([*src, *dst])}
    return {edge_type[0]: torch.cat(src), edge_type[-1]: torch.cat(dst)}


def _each_once(ends: Seeds, disjoint: bool) -> tuple[Seeds, Tensor]:
    """(seeds, index): index[i] is the position of end i among the sampled nodes of its type; the ends of all types are
    numbered together. Each node is a seed once; with ``disjoint``, once per end."""
    by_type = ends if isinstance(ends, dict) else {None: ends}
    if disjoint:
        found = {node_type: (ids, torch.arange(len(ids))) for node_type, ids in by_type.items()}
    else:
        found = {node_type: _distinct(ids) for node_type, ids in by_type.items()}
    seeds = {node_type: ids for node_type, (ids, _) in found.items()}
    index = [inverse for _, inverse in found.values()]
    return seeds if isinstance(ends, dict) else seeds[None], index[0] if len(index) == 1 else torch.cat(index)


def _distinct(ids: Tensor) -> tuple[Tensor, Tensor]:
    """What ``ids.unique(return_inverse=True)`` returns; faster than it for a few ids."""
    if ids.numel() > _FEW_IDS:
        return ids.unique(return_inverse=True)
    given = ids.tolist()
    found = sorted(set(given))
    position = {node: number for number, node in enumerate(found)}
    index = [position[node] for node in given]
    return torch.tensor(found, dtype=ids.dtype), torch.tensor(index, dtype=torch.int64)


def _map(value: Any, function: Callable) -> Any:
    return {name: function(entry) for name, entry in value.items()} if isinstance(value, dict) else function(value)


def _link_of(tree: Tensor, sources: int, links: int) -> Tensor:
    """The number of the link that each tree belongs to. Trees 0..sources-1 are those of sources."""
    return torch.where(tree < sources, tree, tree - sources) % max(links, 1)
