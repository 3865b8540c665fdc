"""A loader of anchors: seeds with lists of positives and negatives (BPR, hard negatives, retrieval)."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.loader.utils import get_input_nodes
from torch_geometric.sampler import NegativeSampling
from torch_geometric.typing import EdgeType, InputNodes

from .._host import on_host
from ..ops.arguments import check_int
from ..sampler import LayerSampler, NeighborSampler
from ..sampler.anchors import NO_NODE, AnchorFields, AnchorInput, AnchorLists
from ..sampler.base import Output
from ..sampler.fanouts import NumNeighborsLike
from ..sampler.graph import end_types
from ..sampler.links import ExcludeSeedEdges
from ..sampler.methods import NEIGHBOR, make_sampler
from ..sampler.sources import check_data
from . import checks
from .fields import fields_of, put
from .given_links import renumbered
from .given_lists import negatives_of_anchors, node_lists, positives_of, said_of_lists, with_positives
from .given_seeds import GivenSeeds
from .keyed_loader import KeyedLoader
from .refusal import told_to_all
from .sharing import Owned

SAMPLING = (
    "replace", "subgraph_type", "disjoint", "temporal_strategy", "time_attr", "weight_attr", "is_sorted", "directed",
)  # fmt: skip
"""The arguments of sampling, as of :class:`torch_gnnscale.NeighborSampler`."""


class AnchorLoader(KeyedLoader, torch_geometric.loader.NeighborLoader):
    """Batches of anchors with positives and negatives, and the sampled neighborhood of all of them.

    Positives are drawn for each anchor from its list, without replacement; so are negatives from a list of its own, and
    then from all nodes. What is drawn is a function of (``seed``, epoch, number of the batch, place of the anchor in
    it). Order, state, ranks' shares and all other arguments are those of :class:`torch_gnnscale.NeighborLoader`.

    A batch of B anchors has, with the types of nodes where there are types:

    - ``src_index`` [B]: the anchors' positions among the nodes of their type;
    - ``dst_pos_index`` [B, num_positives], ``dst_neg_index`` [B, negatives]: positions among the nodes of theirs. Where
      an anchor has fewer, -1, and False in ``dst_pos_mask`` or ``dst_neg_mask``;
    - with ``num_positives=-1``, in place of ``dst_pos_index``, ``label_index`` [2, m]: (anchor, positive) of all;
    - ``input_id`` and, with times, ``seed_time``, of the anchors.

    Each node is a seed once; with disjoint trees, once per mention, and ``batch`` is the anchor of each tree.

    Args:
        data: a Data, a HeteroData, or a pair of a FeatureStore and a GraphStore, ours or foreign ones.
        num_neighbors: fanout of each hop.
        anchors: ids, a mask, or None for all nodes; in a heterogeneous graph a node type, or a pair of a node type and
            one of these.
        positives: an edge type, whose edges lead from anchors to their positives; or (edge type, rowptr, col): the
            positives of node i are col[rowptr[i]:rowptr[i + 1]]. A third tensor has the times of the entries, if their
            nodes have none. Without types None, or (rowptr, col).
        num_positives: how many are drawn for each anchor; -1: all.
        negatives: (rowptr, col): the own negatives of each node of the anchors' type, taken first; None: there are
            none.
        neg_sampling: triplets: how many negatives an anchor has, and the weights of those that are drawn from all
            nodes. None: all of its own, and no others.
        anchor_time: a time per anchor, by default the node's own. Positives, negatives and sampled neighbors are not
            later. Needs ``time_attr``.
        lists_of: whose lists ``positives`` and ``negatives`` are. ``nodes``: of all nodes of the anchors' type, by id.
            ``anchors``: of ``anchors``, in their order, so that one node may have other positives at another time.
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
        check_data(data)
        for name in ("split", "device", "graph_on_gpu", "graph_on_peers"):
            if (value := kwargs.pop(name, None)) not in (None, "cpu"):
                raise NotImplementedError(f"anchors with {name}={value!r} are not implemented")
        for name in ("time_window", "input_start_time"):
            if kwargs.pop(name, None) is not None:
                raise NotImplementedError(f"{name}: time windows of anchors are not implemented; anchor_time ends them")
        if empty not in ("error", "skip"):
            raise ValueError(f"empty: expected 'error' or 'skip', found {empty!r}")
        if lists_of not in ("nodes", "anchors"):
            raise ValueError(f"lists_of: expected 'nodes' or 'anchors', found {lists_of!r}")
        count = check_int("num_positives", num_positives, -1)
        if count == 0:
            raise ValueError("num_positives: expected at least 1, or -1 for all, found 0")
        triplets = NegativeSampling.cast(neg_sampling)
        if triplets is not None and not triplets.is_triplet():
            raise ValueError("neg_sampling: expected triplets, whose negatives are of the anchors, found binary ones")
        sampling = {name: kwargs.pop(name) for name in SAMPLING if name in kwargs}
        if neighbor_sampler is None:
            of_links = {"exclude_seed_edges": exclude_seed_edges, "strict_negatives": strict_negatives}
            sampler = make_sampler(method, data, num_neighbors, {**sampling, **of_links})
        elif not isinstance(neighbor_sampler, (NeighborSampler, LayerSampler)):
            found = type(neighbor_sampler).__name__
            raise TypeError(f"neighbor_sampler: expected a NeighborSampler or a LayerSampler, found {found}")
        elif method != NEIGHBOR or exclude_seed_edges is not False or strict_negatives is not False:
            raise ValueError(
                "method, exclude_seed_edges, strict_negatives: expected none beside a neighbor_sampler; pass them to it"
            )
        else:
            sampler = neighbor_sampler
            times = anchor_time is not None
            checks.warn_of_options_beside_sampler(sampler, num_neighbors, sampling, times)
        given = GivenSeeds.of(anchors, anchor_time, None, kwargs.pop("input_id", None), kwargs.get("batch_size", 1))
        if given.typed:
            raise TypeError("anchors: expected those of one type, found a dictionary")
        given = given._replace(name="anchors", time_name="anchor_time")
        checks.warn_of_negatives(sampler, neg_sampling, None, [triplets])
        seeds = given.in_order(data, sampler)
        if seeds.input_id is not None and seeds.input_id.shape != (seeds.num_seeds(),):
            raise ValueError(
                f"input_id: expected {seeds.num_seeds()} ids, one per anchor, found shape {tuple(seeds.input_id.shape)}"
            )
        of, nodes, input_id = get_input_nodes(data, seeds.first, seeds.input_id)
        inputs = AnchorInput(input_id, nodes, seeds.time, of, None)  # type: ignore[arg-type]
        given.check(inputs, sampler.node_bounds())
        order, graph = checks.common_numbering(data), sampler.graph
        of_positives = positives_of(data, graph, positives)
        if end_types(of_positives.edge_type)[0] != of:
            expected = f"nodes of {end_types(of_positives.edge_type)[0]!r}, from which positives lead"
            raise ValueError(f"anchors: expected {expected}, found {of!r}")
        own = negatives_of_anchors(negatives, of_positives.edge_type)
        each, numbers = (None, None) if lists_of == "nodes" else (len(nodes), torch.arange(len(nodes)))
        lists = AnchorLists(
            sampler.links, of_positives.edge_type, node_lists("positives", of_positives, graph, order, each),
            count, None if own is None else node_lists("negatives", own, graph, order, each),
            triplets if order is None else renumbered(triplets, order, of_positives.edge_type, graph.bounds()),
        )  # fmt: skip
        stored = nodes if order is None else order.to_stored(nodes, of)
        kept = with_positives(lists, stored, seeds.time, empty, nodes, numbers)
        time = None if seeds.time is None else seeds.time[kept]
        super().__init__(
            data,
            num_neighbors,
            sampler,
            input_name="input_nodes",
            inputs=nodes[kept] if of is None else (of, nodes[kept]),
            time_name="input_time",
            time=time,
            num_inputs=lambda: len(kept),
            **kwargs,
        )
        self.input_data = AnchorInput(
            kept if input_id is None else input_id[kept],
            stored[kept],
            time,
            of,
            lists,
            None if numbers is None else kept,
        )
        self.anchors, self.anchor_time, self.positives, self.negatives = anchors, anchor_time, positives, negatives
        known = None
        if neighbor_sampler is None and of_positives.lists is not None:
            listed = torch.repeat_interleave(lists.positives.rowptr.diff())
            anchor = listed if numbers is None else stored[listed]
            known = torch.stack([anchor, lists.positives.col.long()])
        sampler.links.prepare(of_positives.edge_type, lists.neg_sampling, known)
        self._meet_others()

    def _owned_ids(self) -> Owned:
        return [(self.input_data.node, self.input_data.input_type)]

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

    def _label(self, batch: Data | HeteroData, out: Output) -> None:
        fields: AnchorFields = out.metadata
        of_anchors, of_nodes = end_types(self.input_data.lists.edge_type)
        src, dst = fields_of(batch, of_anchors), fields_of(batch, of_nodes)
        put(src, {"input_id": fields.input_id, "src_index": fields.src_index, "label_index": fields.label_index})
        for name, index in (("dst_pos", fields.dst_pos_index), ("dst_neg", fields.dst_neg_index)):
            mask = None if index is None else index != NO_NODE
            put(dst, {f"{name}_index": index, f"{name}_mask": mask})
        put(src, {"seed_time": fields.seed_time})
