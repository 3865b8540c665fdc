"""Links as seeds: their negatives and labels, and the edges that are excluded because a model must predict them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling
from torch_geometric.sampler.base import NegativeSamplingMode
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from ..ops.arguments import as_ids, check_key
from ..random import Purpose, batch_key
from .base import LinksByType, each_type, start_time_of
from .ends import Ends, next_ends, seeds_of_ends
from .graph import SampledGraph, check_times, end_types, ordered, ordered_limit, reverse_relations
from .minibatch import PreparedSeeds

ExcludeSeedEdges: TypeAlias = bool | Literal["reverse"]
"""True: edges between the ends of a batch's links are excluded from its sample. "reverse": their reverses, too."""
StrictNegatives: TypeAlias = bool | Tensor | dict[EdgeType, Tensor]
"""True: negatives are never edges. Links [2, m] (by edge type in a heterogeneous graph): negatives are never edges or
these links. If every edge has its reverse, negatives are never the reverses of these links either."""

Negatives: TypeAlias = NegativeSampling | dict[EdgeType, NegativeSampling | None] | None
"""How negatives of links are drawn: in one way for all relations, or by edge type."""


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

    def seeds(self, inputs: EdgeSamplerInput, neg_sampling: Negatives, key: int, disjoint: bool) -> PreparedSeeds:
        """What is sampled for links and their negatives: the neighborhood of their ends. The sample gets the metadata
        that PyG's LinkLoader expects; of several relations, a dictionary of it by edge type.

        Negative j belongs to link ``j % num_links``: it has that link's time and tree, and in triplets its source.
        Trees are numbered over the links of the first relation, then of the second, and so on.
        """
        drawn = [
            self._with_negatives(entry, negatives_of(neg_sampling, entry.input_type), key, number)
            for number, entry in enumerate(each_type(inputs))
        ]
        exclude = self.exclusions(drawn) if self.exclude_seed_edges else None
        return seeds_of_ends(self.graph, drawn, exclude, disjoint, isinstance(inputs, LinksByType))

    def _with_negatives(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None, key: int, number: int
    ) -> _Links:
        """The links of one relation, the ``number``-th, with their negatives."""
        src, dst = as_ids("row", inputs.row), as_ids("col", inputs.col)
        links, time, edge_type = src.numel(), inputs.time, inputs.input_type
        if neg_sampling is None:
            return _Links(inputs, None, [src], [dst], 0)
        if neg_sampling.is_triplet() and inputs.label is not None:
            raise ValueError("edge_label: expected none with negatives in triplets, found some")
        count, neg_time = math.ceil(links * neg_sampling.amount), None
        if time is not None:
            check_times("edge_label_time", time, links)
            neg_time = _repeated(time, count)
        negatives = self.negatives(src, count, neg_time, edge_type, neg_sampling, key, number)
        neg_src, neg_dst = negatives.unbind()
        return _Links(
            inputs, neg_sampling, [src] if neg_sampling.is_triplet() else [src, neg_src], [dst, neg_dst], count
        )

    def negatives(
        self,
        src: Tensor,
        count: int,
        time: Tensor | None,
        edge_type: EdgeType | None,
        neg_sampling: NegativeSampling,
        key: int,
        number: int,
    ) -> Tensor:
        """``count`` negatives of the ``number``-th relation, for links with the sources ``src``. ``time``: of the link
        of each negative."""
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
            batch_key(check_key(key), number, purpose=Purpose.NEGATIVE),
            seed_time=limits,
            edges=self._edge_set(edge_type),
        )

    def exclusions(self, drawn: Sequence[Ends]) -> Any:
        """The edges that are excluded from the sample of these links, as :meth:`NeighborSampler.sample` takes them;
        None if there are none."""
        found: dict[EdgeType | None, Tensor] = {}
        for links in drawn:
            pairs = links.pairs()
            for excluded, turned in self._exclusion_types(links.edge_type):
                of_type = pairs.flip(0) if turned else pairs
                found[excluded] = torch.cat([found[excluded], of_type], dim=1) if excluded in found else of_type
        return (found if self.graph.is_hetero else found[None]) if found else None


class _Links(NamedTuple):
    """A batch's links of one relation and their negatives; see :class:`Ends`."""

    inputs: EdgeSamplerInput
    negatives: NegativeSampling | None
    sources: list[Tensor]
    """The source nodes: of the links, and of binary negatives."""
    destinations: list[Tensor]
    """The destination nodes: of the links, and of negatives."""
    drawn: int
    """How many negatives there are."""

    @property
    def edge_type(self) -> EdgeType | None:
        return self.inputs.input_type

    @property
    def time(self) -> Tensor | None:
        return self.inputs.time

    @property
    def start_time(self) -> Tensor | None:
        return start_time_of(self.inputs)

    @property
    def size(self) -> int:
        return self.inputs.row.numel()

    def of_end(self, what: str, end: list[Tensor], first: int) -> list[Tensor]:
        if what == "nodes":
            return end
        if what == "numbers":
            values: Tensor | None = torch.arange(first, first + self.size)
        else:
            values = self.time if what == "times" else self.start_time
        assert values is not None
        return [values] if len(end) == 1 else [values, _repeated(values, self.drawn)]

    def pairs(self) -> Tensor:
        return torch.stack([self.sources[0].to(torch.int64), self.destinations[0].to(torch.int64)])

    def metadata(self, found: dict[NodeType | None, Tensor], begins: dict[NodeType | None, int]) -> tuple:
        """What PyG's LinkLoader expects."""
        links, time, input_id = self.size, self.time, self.inputs.input_id
        triplets = self.negatives is not None and self.negatives.is_triplet()
        (of_src, of_dst), count = end_types(self.edge_type), links + self.drawn
        sources = links if triplets else count
        if of_src == of_dst:
            ends = next_ends(found, begins, of_src, sources + count)
            index = ends if triplets else ends.view(2, count)
            src, dst = (ends[:sources], ends[sources:]) if triplets else (ends, ends)
        else:
            src, dst = next_ends(found, begins, of_src, sources), next_ends(found, begins, of_dst, count)
            index = src if triplets else torch.stack([src, dst])
        if triplets:
            assert self.negatives is not None
            amount = int(self.negatives.amount)
            of_links = dst[links:].view(amount, links).t().contiguous()
            return input_id, src, dst[:links], of_links[:, 0] if amount == 1 else of_links, time
        label = self.inputs.label
        if self.negatives is not None:
            label = torch.ones(links) if label is None else label
            label = torch.cat([label, label.new_zeros((self.drawn, *label.shape[1:]))])
            time = None if time is None else torch.cat([time, _repeated(time, self.drawn)])
        return input_id, index, label, time


def cast_negatives(given: Any) -> NegativeSampling | None:
    """The argument ``neg_sampling`` of a loader for links of one type; errors name it."""
    try:
        return NegativeSampling.cast(given)
    except ValueError as error:
        modes = [mode.value for mode in NegativeSamplingMode]
        raise ValueError(
            f"neg_sampling: expected one of {modes}, and an amount above 0, whole for triplets: {error}"
        ) from None


def negatives_of(neg_sampling: Negatives, edge_type: EdgeType | None) -> NegativeSampling | None:
    """How negatives of a relation's links are drawn."""
    return neg_sampling.get(edge_type) if isinstance(neg_sampling, dict) else neg_sampling


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
