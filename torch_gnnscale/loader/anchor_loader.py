"""A loader of anchors: seeds with lists of positives and negatives (BPR, hard negatives, retrieval)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.loader.utils import get_input_nodes
from torch_geometric.sampler import NegativeSampling, NodeSamplerInput
from torch_geometric.typing import EdgeType, InputNodes

from .._host import on_host
from ..ops.arguments import check_int
from ..sampler import LayerSampler, NeighborSampler
from ..sampler.anchors import NO_NODE, AnchorFields, AnchorInput, AnchorLists
from ..sampler.fanouts import NumNeighborsLike, SamplingOptions
from ..sampler.graph import end_types
from ..sampler.links import ExcludeSeedEdges, cast_negatives
from ..sampler.methods import NEIGHBOR, chosen_sampler
from ..sampler.on_executor import OnExecutor
from . import checks
from .fields import FieldsByType, put
from .given_data import given_data
from .given_lists import anchor_lists, said_of_lists, with_positives
from .given_seeds import GivenSeeds
from .keyed_loader import KeyedLoader, LoaderOptions
from .sharing import told_to_all

SAMPLING = (
    "replace", "subgraph_type", "disjoint", "temporal_strategy", "time_attr", "weight_attr", "is_sorted", "directed",
)  # fmt: skip
"""The arguments of sampling, as of :class:`torch_gnnscale.NeighborSampler`."""
_COMMON = tuple(entry.name for entry in fields(LoaderOptions))


def label_anchors(loader: Any, of_types: FieldsByType, metadata: Any) -> None:
    """Puts what is known of the anchors into the fields of a batch. ``metadata``: of its sample."""
    fields: AnchorFields = metadata
    of_anchors, of_nodes = end_types(loader.input_data.lists.edge_type)
    src, dst = of_types[of_anchors], of_types[of_nodes]
    put(src, {"input_id": fields.input_id, "src_index": fields.src_index, "label_index": fields.label_index})
    for name, index in (("dst_pos", fields.dst_pos_index), ("dst_neg", fields.dst_neg_index)):
        mask = None if index is None else index != NO_NODE
        put(dst, {f"{name}_index": index, f"{name}_mask": mask})
    put(src, {"seed_time": fields.seed_time})


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
    _label = staticmethod(label_anchors)

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
        return {
            **super()._fingerprint(),
            **said_of_lists("positives", lists.positives),
            **said_of_lists("own_negatives", lists.negatives),
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
