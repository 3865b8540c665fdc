"""The lists that a user gives to a loader of anchors, in the form in which positives and negatives are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import EdgeType

from .. import ops
from .._warn import warn
from ..ops.arguments import check_tensor
from ..random import ids_key
from ..sampler.anchors import AnchorLists, NodeLists
from ..sampler.graph import SampledGraph, check_times, end_types, ordered
from ..topology import CSC
from ..topology.numbering import Numbering

CHUNK = 1 << 16
"""How many anchors' lists are counted at a time."""


class GivenLists(NamedTuple):
    """Lists of the destinations of ``edge_type`` by its sources, in the user's ids."""

    edge_type: EdgeType | None
    lists: tuple[Tensor, ...] | None
    """rowptr, col and, if the entries have times of their own, these; None: the graph's edges of that type."""


def positives_of(data: Any, graph: SampledGraph, positives: Any) -> GivenLists:
    """The argument ``positives``: None, an edge type, lists, or an edge type and lists.

    Raises:
        TypeError, ValueError: none of these, or types that the graph does not have.
    """
    edge_type, lists = None, positives
    if isinstance(positives, (tuple, list)) and positives and not isinstance(positives[0], Tensor):
        whole = all(isinstance(entry, str) for entry in positives)
        edge_type, lists = (tuple(positives), None) if whole else (positives[0], tuple(positives[1:]))
        lists = lists if lists != (None,) else None
        if isinstance(data, HeteroData) and isinstance(edge_type, (tuple, list)):
            edge_type = data._to_canonical(*edge_type)
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
    return GivenLists(edge_type, None if lists is None else tuple(lists))


def negatives_of_anchors(negatives: Any, edge_type: EdgeType | None) -> GivenLists | None:
    """The argument ``negatives``: lists of nodes of the type of positives, or None."""
    if negatives is None:
        return None
    _check_lists("negatives", negatives)
    return GivenLists(edge_type, tuple(negatives))


def _described(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _check_lists(name: str, lists: Any) -> None:
    if not isinstance(lists, (tuple, list)) or len(lists) not in (2, 3):
        raise TypeError(f"{name}: expected (rowptr, col), or these and times, found {_described(lists)}")
    for part, value in zip(("rowptr", "col", "time"), lists, strict=False):
        check_tensor(f"{name}: {part}", value)


def node_lists(
    name: str, given: GivenLists, graph: SampledGraph, order: Numbering | None, anchors: int | None = None
) -> NodeLists:
    """The lists of ``given`` by the stores' ids of nodes; or by the numbers of the anchors, if there are lists for
    ``anchors`` of them.

    An entry's time is that of its node or, where nodes have none, its own: that of the graph's edge, or the third of
    what was given. Entries without any time may always be drawn.

    Raises:
        TypeError, ValueError, IndexError: lists that are malformed, not one for each node, or of nodes out of range.
        NotImplementedError: the graph's edges of stores that do not have them all.
    """
    of_anchors, of_nodes = end_types(given.edge_type)
    size, num_nodes = (graph.sizes[graph.node_index(of)] for of in (of_anchors, of_nodes))
    if anchors is not None and given.lists is None:
        raise ValueError(f"lists_of='anchors': expected {name} in lists, found the graph's edges")
    time: Tensor | None = None
    if given.lists is None:
        relation = graph.relations[graph.edge_types.index(given.edge_type)]
        csc = relation.csc if graph.backward else relation.csc.transposed()
        if graph.edge_time is not None and (of_edges := graph.edge_time.get(given.edge_type)) is not None:
            time = of_edges if csc.edge_id is None else of_edges[csc.edge_id.to(torch.int64)]
    else:
        csc = _checked(name, given.lists, anchors, size, num_nodes)
        if len(given.lists) > 2:
            time = given.lists[2]
            check_times(f"{name}: time", time, csc.num_edges)
        if order is not None:
            csc, time = _stored(csc, time, given.edge_type, order, anchors is None)
    of_type = None if graph.node_time is None else graph.node_time.get(of_nodes)
    time = time if of_type is None else of_type[csc.row.to(torch.int64)]
    if given.lists is not None and len(given.lists) > 2 and (of_type is not None or not graph.is_temporal):
        why = "without time_attr" if not graph.is_temporal else "beside those of the nodes, which count"
        warn(f"{name}: times of the entries have no effect {why}")
    if time is None or not graph.is_temporal:
        return NodeLists(csc.colptr, csc.row.contiguous(), num_nodes)
    in_order = ordered(time, graph.floating_time)
    by_time = torch.argsort(in_order, stable=True)
    sorting = by_time[torch.argsort(csc.col()[by_time], stable=True)]
    return NodeLists(csc.colptr, csc.row[sorting].contiguous(), num_nodes, in_order[sorting])


def _checked(name: str, lists: Sequence[Tensor], anchors: int | None, size: int, num_nodes: int) -> CSC:
    rowptr, col = lists[:2]
    of, size = ("nodes", size) if anchors is None else ("anchors", anchors)
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
    """Lists and times, converted from the user's ids to the stores' ids; ``by_node``: those of the lists, too."""
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
        lists, anchors, time: what is drawn, for whom, and their times, in the stores' ids.
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
    """What a loader's state says of lists."""
    return {name: None if lists is None else [ids_key(0, lists.rowptr), ids_key(0, lists.col)]}
