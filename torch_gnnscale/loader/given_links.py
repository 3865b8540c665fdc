"""The links that a user gives to a loader: of one relation, or of several by edge type."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling
from torch_geometric.typing import EdgeType

from .._user import warn
from ..feature.contract import version_of
from ..ops.arguments import check_tensor
from ..sampler.base import LinksByType, name_of
from ..sampler.graph import end_types
from ..sampler.links import Negatives, cast_negatives, check_links, check_weights, negatives_of
from ..sampler.minibatch import MiniBatch
from ..topology.reorder import Numbering
from .checks import check_input_id
from .given_data import GivenData
from .given_seeds import check_types, sizes_by_type


class GivenLinks(NamedTuple):
    """Arguments of a loader of links, by edge type. In a homogeneous graph the only type is None."""

    links: dict[EdgeType | None, Tensor]
    """The links of each relation, [2, m], in the user's ids."""
    chosen: frozenset[EdgeType | None]
    """The relations whose links the user gave; for the others, the links are all edges."""
    label: dict[Any, Tensor]
    time: dict[Any, Tensor]
    start_time: dict[Any, Tensor]
    """Where time windows begin."""
    input_id: dict[Any, Tensor]
    neg_sampling: Negatives
    """By edge type if there are several."""
    sizes: dict[Any, int] | None
    """How many links of each relation a batch has; None: as many as its part of the permutation has."""
    typed: bool
    """Whether the user gave a dictionary."""

    @classmethod
    def of(
        cls, data: GivenData, links: Any, label: Any, time: Any, start_time: Any, input_id: Any, batch_size: Any,
        neg_sampling: Any, ratio: float | None,
    ) -> GivenLinks:  # fmt: skip
        """The arguments ``edge_label_index``, ``edge_label``, ``edge_label_time``, ``edge_label_start_time``,
        ``input_id``, ``batch_size``, ``neg_sampling`` and ``neg_sampling_ratio`` of a loader over ``data``.

        Raises:
            TypeError, ValueError: unknown relations; links, labels or times that are no tensors; a dictionary beside
                links of one relation, or with other relations than the links have.
        """
        fields = {
            "edge_label": label, "edge_label_time": time, "edge_label_start_time": start_time, "input_id": input_id,
        }  # fmt: skip
        if not isinstance(links, dict):
            edge_type, found = _links_of(data, links)
            for name, value in fields.items():
                if value is not None:
                    check_tensor(name, value)
            if isinstance(batch_size, dict):
                raise TypeError(
                    "batch_size: expected a number, because edge_label_index is no dictionary, found a dict"
                )
            labels, times, starts, ids = ({} if value is None else {edge_type: value} for value in fields.values())
            negatives = NegativeSampling("binary", ratio) if ratio else cast_negatives(neg_sampling)
            chosen = frozenset() if _type_and_links(links)[1] is None else frozenset([edge_type])
            return cls({edge_type: found}, chosen, labels, times, starts, ids, negatives, None, typed=False)
        if not links:
            raise ValueError("edge_label_index: expected links of at least one edge type, found an empty dictionary")
        by_type = dict(_links_of(data, (edge_type, of_type)) for edge_type, of_type in links.items())
        if None in by_type or len(by_type) < len(links):
            raise ValueError(f"edge_label_index: expected different edge types, found {list(links)}")
        names = dict(zip(links, by_type, strict=True))
        for name, value in fields.items():
            check_types(name, value, links, "edge_label_index")
            for edge_type, tensor in (value or {}).items():
                check_tensor(f"{name}[{edge_type!r}]", tensor)
        labels, times, starts, ids = (
            {names[of]: tensor for of, tensor in (value or {}).items()} for value in fields.values()
        )
        for name, what, given in (
            ("input_id", "ids", ids), ("edge_label_time", "times", times), ("edge_label_start_time", "times", starts),
        ):  # fmt: skip
            if given and (missing := [of for of in by_type if of not in given]):
                raise ValueError(f"{name}: expected {what} of the links of all relations, found none of {missing}")
        if ratio or not isinstance(neg_sampling, dict) or "mode" in neg_sampling:
            one = NegativeSampling("binary", ratio) if ratio else cast_negatives(neg_sampling)
            negatives = dict.fromkeys(by_type, one)
        else:
            check_types("neg_sampling", neg_sampling, links, "edge_label_index")
            negatives = {names[of]: cast_negatives(value) for of, value in neg_sampling.items()}
        if len(by_type) == 1:
            negatives = negatives_of(negatives, next(iter(by_type)))
        sizes = sizes_by_type(batch_size, links, "edge_label_index")
        sizes = None if sizes is None else {names[of]: size for of, size in sizes.items()}
        chosen = frozenset(names[of] for of, given in links.items() if given is not None)
        return cls(by_type, chosen, labels, times, starts, ids, negatives, sizes, typed=True)

    def check(self, sampler: Any) -> None:
        """Checks links, labels and times against each other and against the graph of a loader's sampler; warns of
        labels that look like those of negatives.

        Raises:
            TypeError, ValueError, IndexError: ids out of range; another number of labels or times than of links; labels
                with triplets; links of several relations with a sampler that takes those of one.
        """
        if len(self.links) > 1 and not sampler.takes_types:
            raise ValueError(
                f"edge_label_index: expected links of one relation with a {name_of(sampler)}, which is no "
                f"KeyedSampler that takes several (takes_types), found a dictionary"
            )
        for edge_type, links in self.links.items():
            of = f"[{edge_type!r}]" if self.typed else ""
            if sampler.keyed:
                check_links(f"edge_label_index{of}", links, edge_type, sampler.node_bounds())
            for name, values in (("edge_label", self.label), ("edge_label_time", self.time)):
                value = values.get(edge_type)
                if value is not None and value.shape[:1] != links.shape[1:]:
                    found = len(value) if value.dim() else "a number"
                    raise ValueError(f"{name}{of}: expected one for each of {links.size(1)} links, found {found}")
            _check_labels(f"edge_label{of}", self.label.get(edge_type), negatives_of(self.neg_sampling, edge_type))
            check_input_id(f"input_id{of}", self.input_id.get(edge_type), links[0].numel)

    def num_links(self) -> int:
        """How many links there are."""
        return sum(links.size(1) for links in self.links.values())

    def inputs(self) -> EdgeSamplerInput | LinksByType:
        """The inputs of a loader, in the user's ids and without labels."""
        each = [
            EdgeSamplerInput(self.input_id.get(of), *links.unbind(), None, self.time.get(of), of)
            for of, links in self.links.items()
        ]
        return each[0] if len(each) == 1 else LinksByType(each)

    def each_negatives(self) -> list[NegativeSampling | None]:
        """How negatives of each relation are drawn."""
        return [negatives_of(self.neg_sampling, edge_type) for edge_type in self.links]

    def labels(self, edge_type: EdgeType | None) -> Tensor | None:
        """The labels of a relation's links as batches have them: as in PyG, 1 is added beside binary negatives if the
        smallest is 0."""
        label, negatives = self.label.get(edge_type), negatives_of(self.neg_sampling, edge_type)
        if label is None:
            return None
        if negatives is not None and negatives.is_binary() and label.numel() and bool(label.min() == 0):
            label = label + 1
        return label.cpu()

    def strict(self, data: GivenData, strict_negatives: Any) -> Any:
        """The argument ``strict_negatives`` as a sampler takes it, by edge type in a graph with types.

        Raises:
            TypeError, ValueError: one tensor for several relations; a dictionary of other relations than the links'.
        """
        if isinstance(strict_negatives, Tensor) and None not in self.links:
            if len(self.links) > 1:
                raise TypeError("strict_negatives: expected a bool or a dictionary by edge type, found Tensor")
            return {next(iter(self.links)): strict_negatives}
        if isinstance(strict_negatives, dict) and None not in self.links:
            known = {data.whole_type(of): links for of, links in strict_negatives.items()}
            check_types("strict_negatives", known, self.links, "edge_label_index")
            return known
        return strict_negatives

    def in_stored_order(self, order: Numbering, num_nodes: Mapping[Any, int]) -> Negatives:
        """``neg_sampling`` with weights by the stores' ids of nodes. ``num_nodes``: by type, if known."""
        if not isinstance(self.neg_sampling, dict):
            return renumbered(self.neg_sampling, order, next(iter(self.links)), num_nodes)
        return {of: renumbered(negatives, order, of, num_nodes) for of, negatives in self.neg_sampling.items()}


def renumbered(
    neg_sampling: NegativeSampling | None, order: Numbering, edge_type: EdgeType | None, num_nodes: Mapping[Any, int]
) -> NegativeSampling | None:
    """How negatives are drawn, with weights by the stores' ids of nodes. ``num_nodes``: by type, if known."""
    if neg_sampling is None:
        return None
    found = copy.copy(neg_sampling)
    for name, node_type in zip(("src_weight", "dst_weight"), end_types(edge_type), strict=True):
        if (weight := getattr(neg_sampling, name)) is not None:
            size = num_nodes.get(node_type, len(weight))
            check_weights(name, weight, size)  # here, so that the error names the user's id
            stored = torch.empty_like(weight)
            stored[order.to_stored(torch.arange(len(weight)), node_type)] = weight
            setattr(found, name, stored)
    return found


def _check_labels(name: str, label: Tensor | None, negatives: NegativeSampling | None) -> None:
    """Raises ValueError for labels beside triplets. Warns if links have the label that binary negatives get, 0: as in
    PyG, 1 is added to labels only if 0 is the smallest of them."""
    if label is None or negatives is None:
        return
    if negatives.is_triplet():
        raise ValueError(f"{name}: expected none with negatives in triplets, found some")
    if label.numel() and bool((label < 0).any() & (label == 0).any()):
        warn(
            f"{name}: links of label 0 look like negatives, which have label 0: 1 is not added to the labels, as "
            f"in PyG, because the smallest is {label.min().item()}; pass labels of at least 0"
        )


def in_stored(order: Numbering, links: Tensor | dict[EdgeType, Tensor]) -> Tensor | dict[EdgeType, Tensor]:
    """Links, by edge type in a graph with types, by the stores' ids."""
    if isinstance(links, dict):
        return {of: to_stored(order, of_type, of) for of, of_type in links.items()}
    return to_stored(order, links, None)


def _links_of(data: GivenData, edge_label_index: Any) -> tuple[EdgeType | None, Tensor]:
    """(edge type, links in the user's ids) for a value of ``edge_label_index``."""
    edge_type, links = _type_and_links(edge_label_index)
    edge_type = data.whole_type(edge_type)
    _check_type(edge_type, links, data.edge_types)
    if links is None:
        links = data.links(edge_type)
    return edge_type, links.as_tensor() if isinstance(links, EdgeIndex) else links


def _check_type(edge_type: EdgeType | None, links: Any, known: list) -> None:
    """Raises ValueError for a type of links that a graph of the ``known`` edge types does not have. Links that are
    given may be of an edge type without edges."""
    if known == [None]:
        if edge_type is not None:
            raise ValueError(f"edge_label_index: expected links of a graph without edge types, found type {edge_type}")
    elif edge_type is None:
        raise ValueError("edge_label_index: expected an edge type, or a pair of an edge type and links, found neither")
    elif links is None and edge_type not in known:
        raise ValueError(f"edge_label_index: expected an edge type of {known}, found {edge_type}")


def _type_and_links(edge_label_index: Any) -> tuple[tuple[str, ...] | None, Any]:
    """(edge type as given, possibly shortened, or None; links as given or None)."""
    if edge_label_index is None or isinstance(edge_label_index, Tensor):
        return None, edge_label_index
    given = (edge_label_index,) if isinstance(edge_label_index, str) else edge_label_index
    if isinstance(given, (tuple, list)) and any(isinstance(entry, Tensor) for entry in given[:1]):
        raise TypeError(
            f"edge_label_index: expected links in a tensor of shape (2, num_links), found a {type(given).__name__} of "
            f"tensors; use torch.stack"
        )
    if isinstance(given, (tuple, list)):
        if given and all(isinstance(entry, str) for entry in given):
            return tuple(given), None
        if len(given) == 2 and (given[1] is None or isinstance(given[1], Tensor)):
            return (given[0],) if isinstance(given[0], str) else given[0], given[1]
    raise TypeError(
        f"edge_label_index: expected links, an edge type, or a pair of an edge type and links, found "
        f"{type(edge_label_index).__name__}"
    )


def to_stored(order: Numbering, links: Tensor, edge_type: EdgeType | None) -> Tensor:
    """Links [2, m], converted from the user's ids to the stores' ids."""
    ends = zip(links.to(torch.int64).cpu(), end_types(edge_type), strict=True)
    return torch.stack([order.to_stored(ids, node_type) for ids, node_type in ends])


class LinkLabels:
    """The labels of a loader's links, which may be changed while batches are prepared.

    Args:
        links: all inputs of the loader.
    """

    def __init__(self, links: EdgeSamplerInput) -> None:
        self._links = links

    def number(self) -> int | None:
        """The number of their version, of all relations together; None without one, or without labels."""
        label: Any = self._links.label
        if label is None:
            return None
        numbers = [version_of(of_type)[1] for of_type in (label.values() if isinstance(label, dict) else (label,))]
        return None if None in numbers else sum(numbers)  # type: ignore[arg-type]

    def changed(self, number: int | None) -> bool:
        """Whether there are labels, and they may be others than those of the version with this number."""
        return self._links.label is not None and (number is None or number != self.number())

    def put(self, batch: MiniBatch, links: EdgeSamplerInput) -> None:
        """Puts the labels that the batch's links have now into its metadata."""
        if isinstance(links, LinksByType):
            before = batch.metadata
            batch.metadata = {of.input_type: _relabelled(before[of.input_type], of.label) for of in links.inputs}
        else:
            batch.metadata = _relabelled(batch.metadata, links.label)


def _relabelled(metadata: tuple, label: Tensor | None) -> tuple:
    """The metadata of links with the labels ``label``."""
    if label is None:
        return metadata
    before = metadata[2]
    if len(label) < len(before):  # those of negatives follow
        label = torch.cat([label, before[len(label) :].detach()])
    return *metadata[:2], label, *metadata[3:]
