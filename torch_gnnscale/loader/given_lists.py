"""The lists that a user gives to a loader of anchors, checked and by the stores' ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling
from torch_geometric.typing import EdgeType

from .. import ops
from .._warn import warn
from ..ops.arguments import check_tensor
from ..random import ids_key
from ..sampler import LayerSampler, NeighborSampler
from ..sampler.anchors import AnchorLists, NodeLists
from ..sampler.graph import SampledGraph, check_times, end_types, ordered
from ..topology import CSC
from ..topology.reorder import Numbering
from .given_data import GivenData
from .given_links import renumbered

CHUNK = 1 << 16
"""How many anchors' lists are counted at a time."""


class _GivenLists(NamedTuple):
    """Lists of the destinations of ``edge_type`` by its sources, in the user's ids."""

    name: str
    """The name of the argument."""
    edge_type: EdgeType | None
    lists: tuple[Tensor, ...] | None
    """rowptr, col and, if the entries have times of their own, these times. None: the graph's edges of that type."""


def anchor_lists(
    data: GivenData, sampler: NeighborSampler | LayerSampler, order: Numbering | None, positives: Any,
    num_positives: int, negatives: Any, neg_sampling: NegativeSampling | None, anchors: int | None,
) -> tuple[AnchorLists, bool]:  # fmt: skip
    """(what is drawn for anchors, whether the user gave the lists of positives).

    Args:
        data, sampler, order: of the loader; ``order`` numbers the stores' nodes.
        positives, num_positives, negatives, neg_sampling: the loader's arguments.
        anchors: how many anchors there are, if each has lists of its own; None: each node has.

    Raises:
        TypeError, ValueError, IndexError: lists that are malformed, are not one for each node or anchor, or have nodes
            out of range; types that the graph does not have.
    """
    graph = sampler.graph
    given = _positives(data, graph, positives)
    own = None
    if negatives is not None:
        _check_lists("negatives", negatives)
        own = _GivenLists("negatives", given.edge_type, tuple(negatives))
    found = AnchorLists(
        sampler.links,
        given.edge_type,
        _node_lists(given, graph, order, anchors),
        num_positives,
        None if own is None else _node_lists(own, graph, order, anchors),
        neg_sampling if order is None else renumbered(neg_sampling, order, given.edge_type, graph.bounds()),
    )
    return found, given.lists is not None


def _positives(data: GivenData, graph: SampledGraph, positives: Any) -> _GivenLists:
    """The argument ``positives``: None, an edge type, lists, or an edge type and lists.

    Raises:
        TypeError, ValueError: none of these, or types that the graph does not have.
    """
    edge_type, lists = None, positives
    if isinstance(positives, (tuple, list)) and positives and not isinstance(positives[0], Tensor):
        whole = all(isinstance(entry, str) for entry in positives)
        edge_type, lists = (tuple(positives), None) if whole else (positives[0], tuple(positives[1:]))
        lists = lists if lists != (None,) else None
        if isinstance(edge_type, (tuple, list)):
            edge_type = data.whole_type(edge_type)
    if lists is not None:
        _check_lists("positives", lists)
    if graph.is_hetero == (edge_type is None):
        expected = "an edge type, or one and lists" if graph.is_hetero else "lists, or None, in a graph without types"
        raise ValueError(f"positives: expected {expected}, found {_described(positives)}")
    if edge_type is not None:
        for end in end_types(edge_type):
            graph.node_index(end)
        if lists is None and edge_type not in graph.edge_types:
            raise ValueError(f"positives: expected an edge type of {graph.edge_types}, found {edge_type}")
    return _GivenLists("positives", edge_type, None if lists is None else tuple(lists))


def _described(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _check_lists(name: str, lists: Any) -> None:
    if not isinstance(lists, (tuple, list)) or len(lists) not in (2, 3):
        raise TypeError(f"{name}: expected (rowptr, col), or these and times, found {_described(lists)}")
    for part, value in zip(("rowptr", "col", "time"), lists, strict=False):
        check_tensor(f"{name}: {part}", value)


def _node_lists(
    given: _GivenLists, graph: SampledGraph, order: Numbering | None, anchors: int | None
) -> NodeLists:  # fmt: skip
    """Lists by the stores' ids of nodes or, if each of so many ``anchors`` has one, by the anchors' numbers.

    The time of an entry is that of its node. Where nodes have no times, it is the time of the graph's edge, or the one
    that was given for it. Entries without any time may always be drawn.
    """
    of_anchors, of_nodes = end_types(given.edge_type)
    size, num_nodes = (graph.sizes[graph.node_index(of)] for of in (of_anchors, of_nodes))
    time: Tensor | None = None
    if given.lists is None:
        if anchors is not None:
            raise ValueError(f"lists_of='anchors': expected {given.name} in lists, found the graph's edges")
        relation = graph.relations[graph.edge_types.index(given.edge_type)]
        if relation.num_edges > relation.csc.num_edges:
            raise NotImplementedError(
                f"{given.name} of the graph's edges with a partitioned topology is not implemented; write the parts "
                f"with topology='replicated', or give lists"
            )
        csc = relation.csc if graph.backward else relation.csc.transposed()
        if graph.edge_time is not None and (of_edges := graph.edge_time.get(given.edge_type)) is not None:
            time = of_edges if csc.edge_id is None else of_edges[csc.edge_id.to(torch.int64)]
    else:
        of, count = ("nodes", size) if anchors is None else ("anchors", anchors)
        csc = _checked(given.name, given.lists, of, count, num_nodes)
        if len(given.lists) > 2:
            time = given.lists[2]
            check_times(f"{given.name}: time", time, csc.num_edges)
        if order is not None:
            csc, time = _stored(csc, time, given.edge_type, order, anchors is None)
    of_type = None if graph.node_time is None else graph.node_time.get(of_nodes)
    if given.lists is not None and len(given.lists) > 2 and (of_type is not None or not graph.is_temporal):
        why = "beside those of the nodes, which count" if graph.is_temporal else "without time_attr"
        warn(f"{given.name}: times of the entries have no effect {why}")
    time = time if of_type is None else of_type[csc.row.to(torch.int64)]
    if time is None or not graph.is_temporal:
        return NodeLists(csc.colptr, csc.row.contiguous(), num_nodes)
    in_order = ordered(time, graph.floating_time)
    by_time = torch.argsort(in_order, stable=True)
    sorting = by_time[torch.argsort(csc.col()[by_time], stable=True)]
    return NodeLists(csc.colptr, csc.row[sorting].contiguous(), num_nodes, in_order[sorting])


def _checked(name: str, lists: Sequence[Tensor], of: str, size: int, num_nodes: int) -> CSC:
    """The lists, the argument ``name``, if there is one for each of ``size`` nodes or anchors (``of``)."""
    rowptr, col = lists[:2]
    if rowptr.dim() != 1 or rowptr.numel() != size + 1:
        raise ValueError(
            f"{name}: rowptr: expected shape ({size + 1},), for a list of each of {size} {of}, found "
            f"{tuple(rowptr.shape)}"
        )
    try:
        return CSC.from_csc(rowptr, col, num_src=num_nodes)
    except (TypeError, ValueError, IndexError) as error:
        text = str(error)
        for theirs, ours in (("colptr", "rowptr"), ("row", "col")):
            if text.startswith(theirs):
                raise type(error)(f"{name}: {ours}{text[len(theirs) :]}") from None
        raise


def _stored(
    csc: CSC, time: Tensor | None, edge_type: EdgeType | None, order: Numbering, by_node: bool
) -> tuple[CSC, Tensor | None]:
    """Lists and times of their entries, converted from the user's ids to the stores' ids; ``by_node``: the lists are
    those of nodes, so that they change places."""
    of_anchors, of_nodes = end_types(edge_type)
    if not by_node:
        col = order.to_stored(csc.row.to(torch.int64), of_nodes)
        return CSC.from_csc(csc.colptr, col, num_src=csc.num_src), time
    anchor = order.to_stored(csc.col(), of_anchors)
    sorting = torch.argsort(anchor, stable=True)
    rowptr = ops.colptr_of_sorted(anchor[sorting], csc.num_dst)
    col = order.to_stored(csc.row.to(torch.int64), of_nodes)[sorting]
    return CSC.from_csc(rowptr, col, num_src=csc.num_src), None if time is None else time[sorting]


def with_positives(
    lists: AnchorLists, anchors: Tensor, time: Tensor | None, empty: str, given: Any, list_id: Tensor | None
) -> Tensor:
    """The positions of the anchors that have a positive.

    Args:
        lists: what is drawn for anchors.
        anchors, time: the anchors, in the stores' ids, and their times.
        empty: "error" or "skip".
        given: the anchors in the user's ids, for the error.
        list_id: the number of each anchor's list; by default its id.

    Raises:
        ValueError: an anchor without positives, unless they are skipped.
    """
    counts = [
        lists.positives.draw(numbers, -1, 0, lists.limit(some, times))[1]
        for some, numbers, times in zip(
            anchors.split(CHUNK),
            (anchors if list_id is None else list_id).split(CHUNK),
            [None] * len(anchors) if time is None else time.split(CHUNK),
            strict=False,
        )
    ]
    has = torch.cat([*counts, anchors.new_empty(0)]) > 0
    if empty == "error" and not bool(has.all()):
        at = int((~has).nonzero()[0])
        late = "" if lists.positives.time is None else " not later than itself"
        raise ValueError(
            f"anchors: expected a positive{late} for each, found none for anchors[{at}] = {int(given[at])}; use "
            f"empty='skip' to leave such anchors out"
        )
    return has.nonzero().view(-1)


def said_of_lists(name: str, lists: NodeLists | None) -> dict[str, Any]:
    """The entry ``name`` of a loader's state: hashes of the lists, or None without lists."""
    return {name: None if lists is None else [ids_key(0, lists.rowptr), ids_key(0, lists.col)]}
