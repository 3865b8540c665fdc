"""Anchors: seeds with lists, from which positives and negatives are drawn for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling, NodeSamplerInput
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from ..random import Purpose, batch_key
from .ends import next_ends, seeds_of_ends
from .graph import end_types, ordered_limit
from .links import LinkSampling
from .minibatch import PreparedSeeds

NO_NODE = -1
"""Takes the place of a node where a list is shorter than others."""


class NodeLists:
    """Lists of nodes, one for each node of a type or for each anchor, from which some are drawn without replacement.

    Args:
        rowptr: list i is col[rowptr[i]:rowptr[i + 1]]: int64, shape [n + 1].
        col: the nodes of all lists: int32 or int64.
        num_nodes: how many nodes there are to list.
        time: the time of each entry, from :func:`torch_gnnscale.sampler.graph.ordered`. Times do not decrease within a
            list. None: there are no times.
    """

    def __init__(self, rowptr: Tensor, col: Tensor, num_nodes: int, time: Tensor | None = None) -> None:
        self.rowptr, self.col, self.time = rowptr, col, time
        self._lists = ops.relations(
            [rowptr], [col], time=[time], src_type=[1], dst_type=[0], sizes=[rowptr.numel() - 1, num_nodes]
        )
        self._prepared: dict[int, ops.PreparedNeighbors] = {}

    def draw(self, numbers: Tensor, count: int, key: int, limit: Tensor | None) -> tuple[Tensor, Tensor]:
        """Draws ``count`` entries of each list, or all if it has no more.

        A draw is a function of (key, number of the list, place of this number in ``numbers``).

        Args:
            numbers: of the lists, shape [B].
            count: how many entries; -1: all.
            key: 64 bits, from :func:`torch_gnnscale.random.batch_key`.
            limit: the latest time that an entry of each list may have, from
                :func:`torch_gnnscale.sampler.graph.ordered_limit`: int64, shape [B].

        Returns:
            (nodes, counts): int64, shapes [m] and [B]. The first counts[0] nodes were drawn from the first list, and
            so on.
        """
        if (prepared := self._prepared.get(count)) is None:
            prepared = ops.PreparedNeighbors(self._lists, [count], disjoint=True, with_edge_id=False)
            self._prepared[count] = prepared
        times = None if self.time is None else [limit, None]
        none = numbers.new_empty(0)
        sample = prepared.sample([numbers, none], key, times)
        return sample.node[1][sample.edge_index[0][0]], sample.colptr[0].diff()


class AnchorLists:
    """What a loader draws for its anchors.

    Args:
        links: of the sampler, for negatives that are not listed and for edges that samples leave out.
        edge_type: leads from anchors to the nodes of the lists; None in a homogeneous graph.
        positives: the lists of positives.
        num_positives: how many are drawn for each anchor; -1: all.
        negatives: the lists of the anchors' own negatives; None without.
        neg_sampling: triplets: ``amount`` negatives for each anchor, those of its own list first. None: all of its own
            list.
    """

    def __init__(
        self, links: LinkSampling, edge_type: EdgeType | None, positives: NodeLists, num_positives: int,
        negatives: NodeLists | None, neg_sampling: NegativeSampling | None,
    ) -> None:  # fmt: skip
        self.links, self.edge_type = links, edge_type
        self.positives, self.num_positives = positives, num_positives
        self.negatives, self.neg_sampling = negatives, neg_sampling

    def limit(self, anchors: Tensor, time: Tensor | None) -> Tensor | None:
        """The latest time that what is drawn for each anchor may have: ``time``, or by default the anchor's own; None
        in a graph without times."""
        graph, anchor_type = self.links.graph, end_types(self.edge_type)[0]
        if time is not None:
            return ordered_limit("anchor_time", time, graph.floating_time)
        own = graph.own_limits(anchor_type)
        if own is None and graph.is_temporal:
            raise ValueError("anchor_time: expected times of the anchors, whose nodes have none, found none")
        return None if own is None else own[anchors]

    def seeds(self, inputs: AnchorInput, key: int, disjoint: bool) -> PreparedSeeds:
        """What is sampled for a batch of anchors: the neighborhood of anchors, positives and negatives."""
        graph, anchors, time = self.links.graph, inputs.node, inputs.time
        limit = self.limit(anchors, time)
        if time is None and limit is not None:
            assert graph.node_time is not None
            time = graph.node_time[inputs.input_type][anchors]
        lists = anchors if inputs.list_id is None else inputs.list_id
        drawn = [self.positives.draw(lists, self.num_positives, batch_key(key, purpose=Purpose.POSITIVE), limit)]
        amount = None if self.neg_sampling is None else int(self.neg_sampling.amount)
        if self.negatives is not None:
            own_key = batch_key(key, purpose=Purpose.OWN_NEGATIVE)
            drawn.append(self.negatives.draw(lists, -1 if amount is None else amount, own_key, limit))
        if amount is not None:
            others = self._others(anchors, amount, time, key)
            drawn = [drawn[0], others if self.negatives is None else _filled(drawn[1], others[0], amount)]
        ends = _Anchors(inputs, time, self.num_positives, amount, drawn)
        exclude = self.links.exclusions([ends]) if self.links.exclude_seed_edges else None
        return seeds_of_ends(graph, [ends], exclude, disjoint)

    def _others(self, anchors: Tensor, amount: int, time: Tensor | None, key: int) -> tuple[Tensor, Tensor]:
        """``amount`` negatives for each anchor, drawn from all nodes, in the form of :meth:`NodeLists.draw`."""
        assert self.neg_sampling is not None
        drawn = self.links.negatives(
            anchors.repeat_interleave(amount), amount * anchors.numel(),
            None if time is None else time.repeat_interleave(amount), self.edge_type, self.neg_sampling, key, 0,
        )  # fmt: skip
        return drawn[1], torch.full((anchors.numel(),), amount)


def _filled(own: tuple[Tensor, Tensor], others: Tensor, amount: int) -> tuple[Tensor, Tensor]:
    """Fills up what was drawn from the anchors' own lists: ``amount`` negatives for each, in the form of
    :meth:`NodeLists.draw`.

    Args:
        own: what :meth:`NodeLists.draw` returned.
        others: ``amount`` further negatives for each anchor. Entry j takes place j if the anchor has no own one there.
        amount: how many negatives an anchor has.
    """
    nodes, counts = own
    found = others.view(-1, amount).clone()
    anchor, place = _places(counts)
    found[anchor, place] = nodes.to(found.dtype)
    return found.view(-1), torch.full_like(counts, amount)


def _places(counts: Tensor) -> tuple[Tensor, Tensor]:
    """For each entry of lists with ``counts`` entries, (number of its list, its place in that list)."""
    anchor = torch.repeat_interleave(counts)
    begin = counts.cumsum(0) - counts
    return anchor, torch.arange(anchor.numel()) - begin[anchor]


class AnchorInput(NodeSamplerInput):
    """Anchors, and what is drawn for them. ``list_id`` [B]: the number of each anchor's lists, by default its id."""

    def __init__(
        self, input_id: Tensor | None, node: Tensor, time: Tensor | None, input_type: NodeType | None,
        lists: AnchorLists, list_id: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__(input_id, node, time, input_type)
        self.lists, self.list_id = lists, list_id

    def __getitem__(self, positions: Any) -> AnchorInput:
        of = super().__getitem__(positions)
        list_id = None if self.list_id is None else self.list_id[torch.as_tensor(positions, dtype=torch.int64)]
        return AnchorInput(of.input_id, of.node, of.time, of.input_type, self.lists, list_id)


class AnchorFields(NamedTuple):
    """The metadata of a sample of anchors, which becomes fields of the batch. An index has positions among the sampled
    nodes of a type; NO_NODE where a list is shorter than others."""

    input_id: Tensor | None
    src_index: Tensor
    """The anchors: [B]."""
    label_index: Tensor | None
    """All pairs (anchor, positive): [2, m]; None if positives are drawn."""
    dst_pos_index: Tensor | None
    """The drawn positives: [B, P]; None if all are taken."""
    dst_neg_index: Tensor | None
    """The negatives: [B, N]; None without negatives."""
    seed_time: Tensor | None
    """The anchors' times: [B]."""


class _Anchors:
    """The ends of a batch's anchors; see :class:`torch_gnnscale.sampler.ends.Ends`.

    ``drawn``: positives and, if there are any, negatives, as of :meth:`NodeLists.draw`.
    """

    start_time: Tensor | None = None

    def __init__(
        self, inputs: AnchorInput, time: Tensor | None, num_positives: int, amount: int | None,
        drawn: Sequence[tuple[Tensor, Tensor]],
    ) -> None:  # fmt: skip
        self.inputs, self.time, self.num_positives, self.amount = inputs, time, num_positives, amount
        self.sources: list[Tensor] = [inputs.node]
        self.destinations: list[Tensor] = [nodes for nodes, _ in drawn]
        self.places = [_places(counts) for _, counts in drawn]

    @property
    def edge_type(self) -> EdgeType | None:
        return self.inputs.lists.edge_type

    @property
    def size(self) -> int:
        return self.inputs.node.numel()

    def of_end(self, what: str, end: list[Tensor], first: int) -> list[Tensor]:
        if what == "nodes":
            return end
        values = self.time if what == "times" else torch.arange(first, first + self.size)
        assert values is not None
        return [values] if end is self.sources else [values[anchor] for anchor, _ in self.places]

    def pairs(self) -> Tensor:
        return torch.stack([self.inputs.node[self.places[0][0]], self.destinations[0]]).to(torch.int64)

    def metadata(self, found: dict[NodeType | None, Tensor], begins: dict[NodeType | None, int]) -> AnchorFields:
        """The fields of the batch."""
        of_src, of_dst = end_types(self.edge_type)
        src = next_ends(found, begins, of_src, self.size)
        each = [next_ends(found, begins, of_dst, nodes.numel()) for nodes in self.destinations]
        pairs = positives = negatives = None
        if self.num_positives < 0:
            pairs = torch.stack([src[self.places[0][0]], each[0]])
        else:
            positives = self._padded(0, each[0], self.num_positives)
        if len(each) > 1:
            negatives = self._padded(1, each[1], self.amount)
        return AnchorFields(self.inputs.input_id, src, pairs, positives, negatives, self.time)

    def _padded(self, number: int, index: Tensor, width: int | None) -> Tensor:
        """What was drawn, as [B, width], with NO_NODE where an anchor has fewer. ``width=None``: the longest row's."""
        anchor, place = self.places[number]
        if width is None:
            width = int(place.max()) + 1 if place.numel() else 0
        padded = torch.full((self.size, width), NO_NODE)
        padded[anchor, place] = index
        return padded
