"""A loader of anchors: seeds with lists of positives and negatives (BPR, hard negatives, retrieval); and these lists,
checked and by the stores' ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal, NamedTuple

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.loader.utils import get_input_nodes
from torch_geometric.sampler import NegativeSampling, NodeSamplerInput
from torch_geometric.typing import EdgeType, InputNodes

from .. import ops
from .._user import on_host, warn
from ..ops.arguments import check_int, check_tensor
from ..random import ids_key
from ..sampler import LayerSampler, NeighborSampler
from ..sampler.anchors import NO_NODE, AnchorFields, AnchorInput, AnchorLists, NodeLists
from ..sampler.fanouts import NumNeighborsLike, SamplingOptions
from ..sampler.graph import SampledGraph, check_times, end_types, ordered
from ..sampler.links import ExcludeSeedEdges, cast_negatives
from ..sampler.methods import NEIGHBOR, chosen_sampler
from ..sampler.on_executor import OnExecutor
from ..topology import CSC
from ..topology.reorder import Numbering
from . import checks
from .fields import FieldsByType, put
from .given_data import GivenData, given_data
from .given_links import renumbered
from .given_seeds import GivenSeeds
from .keyed_loader import KeyedLoader, LoaderOptions
from .sharing import told_to_all

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


SAMPLING = (
    "replace", "subgraph_type", "disjoint", "temporal_strategy", "time_attr", "weight_attr", "is_sorted", "directed",
)  # fmt: skip
"""The arguments of sampling, as of :class:`torch_gnnscale.NeighborSampler`."""
_COMMON = tuple(entry.name for entry in fields(LoaderOptions))


class AnchorLoader(KeyedLoader, torch_geometric.loader.NeighborLoader):
    """Batches of anchors with positives and negatives, and the sampled neighborhood of all of them.

    For each anchor, positives are drawn from its list, without replacement. Negatives are drawn from a second list of
    its own, without replacement, and then from all nodes. What is drawn is a function of (``seed``, epoch, number of
    the batch, place of the anchor in the batch). Order, state, ranks' shares and all other arguments are those of
    :class:`torch_gnnscale.NeighborLoader`.

    A batch of B anchors has these fields. In a graph with types, the first, third and fourth are fields of the anchors'
    type, and the second of the positives' type:

    - ``src_index`` [B]: the anchors' positions among the batch's nodes of their type;
    - ``dst_pos_index`` [B, num_positives] and ``dst_neg_index`` [B, negatives]: positions among the batch's nodes of
      their type. If an anchor has fewer, the rest are -1, and False in ``dst_pos_mask`` and ``dst_neg_mask``;
    - ``label_index`` [2, m], in place of ``dst_pos_index`` with ``num_positives=-1``: (anchor, positive), all pairs;
    - ``input_id`` and, with times, ``seed_time`` of each anchor: [B].

    Each node is a seed once. With disjoint trees, each mention of a node is a seed with a tree of its own, and
    ``batch`` has, for each node, the number of its anchor.

    Args:
        data: a Data, a HeteroData, or a pair of a FeatureStore and a GraphStore, ours or foreign ones.
        num_neighbors: fanout of each hop.
        anchors: ids, a mask, or None for all nodes; in a heterogeneous graph a node type, or a pair of a node type and
            one of these.
        positives: an edge type, whose edges lead from anchors to their positives; or (edge type, rowptr, col): the
            positives of node i are col[rowptr[i]:rowptr[i + 1]]. A third tensor has the times of the entries, if their
            nodes have none. Without types None, or (rowptr, col).
        num_positives: how many are drawn for each anchor; -1: all.
        negatives: (rowptr, col): the lists of own negatives, in the form of ``positives``, which are taken first. None:
            there are none.
        neg_sampling: triplets: how many negatives an anchor has, and the weights of those that are drawn from all
            nodes. None: all negatives of its own list, and no others.
        anchor_time: a time per anchor, by default the node's own. Positives, negatives and sampled neighbors are not
            later. Needs ``time_attr``.
        lists_of: ``nodes``: list i is that of the node with id i. ``anchors``: list i is that of the i-th of
            ``anchors``, so that a node that is an anchor twice may have other positives at another time.
        empty: ``error``: an anchor without positives is an error when the loader is made; ``skip``: it is left out.
        exclude_seed_edges: the edges between the batch's anchors and their positives are left out of its sample, as of
            :class:`torch_gnnscale.LinkNeighborLoader`; ``"reverse"``: and their reverses.
        strict_negatives: no negative that is drawn from all nodes is an edge of the positives' type, or a positive of
            the lists.
        neighbor_sampler: a NeighborSampler or LayerSampler to use instead of a new one.
        method: as in :class:`torch_gnnscale.NeighborLoader`.
        **kwargs: ``replace``, ``subgraph_type``, ``disjoint``, ``temporal_strategy``, ``time_attr``, ``weight_attr``,
            ``is_sorted`` and ``directed``; ``seed``, ``prefetch``, ``bulk``, ``edge_layout``, ``shard``,
            ``seed_order``, ``uneven``; ``transform``, ``transform_sampler_output``, ``filter_per_worker``,
            ``input_id``, ``custom_cls`` and the arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        NotImplementedError: ``split``, a GPU, and time windows.
        TypeError, ValueError, IndexError: malformed lists; an anchor without positives; binary negatives. While
            iterating: an anchor for which there is no negative.
    """

    inputs_type = AnchorInput

    @staticmethod
    def _label(loader: Any, of_types: FieldsByType, metadata: AnchorFields) -> None:
        """Puts what is known of the anchors into the fields of a batch."""
        of_anchors, of_nodes = end_types(loader.input_data.lists.edge_type)
        src, dst = of_types[of_anchors], of_types[of_nodes]
        put(src, {"input_id": metadata.input_id, "src_index": metadata.src_index, "label_index": metadata.label_index})
        for name, index in (("dst_pos", metadata.dst_pos_index), ("dst_neg", metadata.dst_neg_index)):
            mask = None if index is None else index != NO_NODE
            put(dst, {f"{name}_index": index, f"{name}_mask": mask})
        put(src, {"seed_time": metadata.seed_time})

    @told_to_all
    @on_host
    def __init__(
        self,
        data: Data | HeteroData | tuple[PyGFeatureStore, PyGGraphStore],
        num_neighbors: NumNeighborsLike,
        anchors: InputNodes = None,
        positives: tuple | EdgeType | None = None,
        num_positives: int = 1,
        negatives: tuple | None = None,
        neg_sampling: NegativeSampling | str | dict | tuple | None = None,
        anchor_time: Tensor | None = None,
        *,
        lists_of: Literal["nodes", "anchors"] = "nodes",
        empty: Literal["error", "skip"] = "error",
        exclude_seed_edges: ExcludeSeedEdges = False,
        strict_negatives: bool = False,
        neighbor_sampler: NeighborSampler | LayerSampler | None = None,
        method: str = NEIGHBOR,
        **kwargs: Any,
    ) -> None:
        over = given_data(data)
        _refuse(kwargs)
        if empty not in ("error", "skip"):
            raise ValueError(f"empty: expected 'error' or 'skip', found {empty!r}")
        if lists_of not in ("nodes", "anchors"):
            raise ValueError(f"lists_of: expected 'nodes' or 'anchors', found {lists_of!r}")
        count = check_int("num_positives", num_positives, -1)
        if count == 0:
            raise ValueError("num_positives: expected at least 1, or -1 for all, found 0")
        triplets = cast_negatives(neg_sampling)
        if triplets is not None and not triplets.is_triplet():
            raise ValueError("neg_sampling: expected triplets, whose negatives are of the anchors, found binary ones")
        if neighbor_sampler is not None and not isinstance(neighbor_sampler, OnExecutor):
            found = type(neighbor_sampler).__name__
            raise TypeError(f"neighbor_sampler: expected a NeighborSampler or a LayerSampler, found {found}")
        arguments = {"exclude_seed_edges": exclude_seed_edges, "strict_negatives": strict_negatives}
        arguments |= {name: kwargs.pop(name) for name in (*SAMPLING, *_COMMON) if name in kwargs}
        sampling = SamplingOptions.of(arguments)
        sampler = chosen_sampler(data, num_neighbors, neighbor_sampler, method, sampling, anchor_time is not None)
        if not isinstance(sampler, OnExecutor):
            raise ValueError(f"method={method!r}: expected one of a NeighborSampler or a LayerSampler with anchors")
        checks.warn_of_negatives(sampler, neg_sampling, None, [triplets])
        given = GivenSeeds.of(
            anchors, anchor_time, None, kwargs.pop("input_id", None), kwargs.get("batch_size", 1), name="anchors",
            time_name="anchor_time",
        )  # fmt: skip
        if given.typed:
            raise TypeError("anchors: expected those of one type, found a dictionary")
        seeds = given.in_order(over, sampler)
        checks.check_input_id("input_id", seeds.input_id, seeds.num_seeds)
        of, nodes, input_id = get_input_nodes(data, seeds.first, seeds.input_id)
        given.check(NodeSamplerInput(input_id, nodes, seeds.time, of), sampler.node_bounds())
        order, list_id = over.numbering, None if lists_of == "nodes" else torch.arange(len(nodes))
        lists, listed = anchor_lists(
            over, sampler, order, positives, count, negatives, triplets, None if list_id is None else len(nodes)
        )
        if (type_of_lists := end_types(lists.edge_type)[0]) != of:
            raise ValueError(f"anchors: expected nodes of {type_of_lists!r}, from which positives lead, found {of!r}")
        stored = nodes if order is None else order.to_stored(nodes, of)
        kept = with_positives(lists, stored, seeds.time, empty, nodes, list_id)
        time = None if seeds.time is None else seeds.time[kept]
        super().__init__(
            over,
            num_neighbors,
            sampler,
            LoaderOptions.of(arguments),
            input_name="input_nodes",
            inputs=nodes[kept] if of is None else (of, nodes[kept]),
            time_name="input_time",
            time=time,
            num_inputs=lambda: len(kept),
            **kwargs,
        )
        kept_id = kept if input_id is None else input_id[kept]
        self.input_data = AnchorInput(kept_id, stored[kept], time, of, lists, None if list_id is None else kept)
        self.anchors, self.anchor_time, self.positives, self.negatives = anchors, anchor_time, positives, negatives
        known = None
        if neighbor_sampler is None and listed:
            row = torch.repeat_interleave(lists.positives.rowptr.diff())
            known = torch.stack([row if list_id is None else stored[row], lists.positives.col.long()])
        sampler.prepare_links(lists.edge_type, lists.neg_sampling, known)
        self._meet_others()

    def _fingerprint(self) -> dict[str, Any]:
        lists: AnchorLists = self.input_data.lists
        amount = None if lists.neg_sampling is None else int(lists.neg_sampling.amount)
        hashed = ("positives", lists.positives), ("own_negatives", lists.negatives)
        return {
            **super()._fingerprint(),
            **{
                name: None if given is None else [ids_key(0, given.rowptr), ids_key(0, given.col)]
                for name, given in hashed
            },
            "num_positives": lists.num_positives,
            "lists_of": "nodes" if self.input_data.list_id is None else "anchors",
            "negatives": amount,
        }


def _refuse(options: dict[str, Any]) -> None:
    """Removes arguments that other loaders have. Raises NotImplementedError unless they have the values by which
    nothing is asked for."""
    for name in ("split", "device", "graph_on_gpu", "graph_on_peers"):
        value = options.pop(name, None)
        if not (value in (None, (), []) or (name == "device" and str(value) == "cpu")):
            raise NotImplementedError(f"anchors with {name}={value!r} are not implemented")
    for name in ("time_window", "input_start_time"):
        if options.pop(name, None) is not None:
            raise NotImplementedError(f"{name}: time windows of anchors are not implemented; anchor_time ends them")
