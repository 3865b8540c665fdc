"""PyG's NeighborLoader and LinkNeighborLoader with the fused sampler, the native gather and prefetching threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NegativeSampling, NodeSamplerInput
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.typing import EdgeType, InputEdges, InputNodes, NodeType

from .._user import on_host
from ..memory import Budget
from ..sampler.base import LinksByType, each_type
from ..sampler.fanouts import NumNeighborsLike, SamplingOptions
from ..sampler.graph import end_types
from ..sampler.links import ExcludeSeedEdges, Negatives, StrictNegatives, negatives_of
from ..sampler.methods import NEIGHBOR, chosen_sampler
from .checks import warn_of_negatives, warn_of_options_of_links
from .epochs import Shard, SharedOrder, Uneven
from .fields import EdgeLayout, FieldsByType, put
from .given_data import given_data
from .given_links import GivenLinks, in_stored, to_stored
from .given_seeds import GivenSeeds, GivenWindows
from .keyed_loader import KeyedLoader, LoaderOptions
from .line import label_seeds
from .sharing import Split, check_modes, told_to_all


class NeighborLoader(KeyedLoader, torch_geometric.loader.NeighborLoader):
    """A drop-in :class:`torch_geometric.loader.NeighborLoader`: the same arguments, batches and order of fields.

    batch = f(graph, seeds, fanouts, options; ``seed``, epoch, number of the batch): it is the same in every run, for
    any ``prefetch`` and ``num_workers``. Every ``iter()`` begins the next epoch.

    Args:
        data: a Data, a HeteroData, or a pair of a FeatureStore and a GraphStore, ours or foreign ones. Batches have its
            class, or are plain Data or HeteroData if it is a Batch or hides a field of batches. Rows of a Data
            and of our stores are gathered ahead by threads; those of a foreign store in the thread that iterates,
            unless it has ``thread_safe = True``. With renumbered stores (``GraphStore.order``), seeds and ``n_id`` are
            still the user's ids.
        num_neighbors: fanout of each hop, or a list per edge type. :class:`torch_gnnscale.NeighborSampler` explains
            this and the other arguments of sampling in full.
        input_nodes: the seeds: ids, a mask, or None for all nodes; in a heterogeneous graph a node type, a pair of a
            node type and one of these, or a dictionary of these by node type. With a dictionary, the seeds of all types
            are permuted together, and a batch has ``input_id``, ``batch_size`` and ``seed_time`` for each of the types.
            Seeds may repeat; each has its own row. A 0 or 1 of type uint8 for each node is refused: it could be ids or
            a mask.
        input_time: a time per seed; by default the node's own time. Needs ``time_attr``. If ``input_nodes`` is a
            dictionary, so are ``input_time`` and ``input_id``. ``batch_size`` may be one, too: then a batch has that
            many seeds of each type, and a type whose seeds are used up adds none to the later batches.
        replace: draw with replacement.
        subgraph_type: ``directional``, ``bidirectional`` or ``induced``.
        disjoint: each seed gets a tree of its own; ``batch`` holds the tree of each node.
        temporal_strategy: ``uniform`` or ``last``.
        time_attr: name of the times of nodes or edges.
        weight_attr: name of the weights of edges.
        transform: called on each batch in the thread that iterates, in order; by worker processes that gather
            (``filter_per_worker``), there, where a random one draws from generators of their own.
        transform_sampler_output: called on each sampler output, in order, in the thread that iterates, which then also
            gathers the rows. Meanwhile torch's, Python's and NumPy's generators are seeded by the batch's key, so that
            random ones give equal batches for any ``prefetch``, ``bulk`` and workers. Where ranks read or sample
            together, other threads call it: there it must not keep state, nor draw but by ``generator=`` of its own.
        is_sorted: edges are sorted by destination already.
        filter_per_worker: with worker processes, whether they also gather features, as in PyG; False by default if a
            store has rows on a GPU, or rows that require grad.
        neighbor_sampler: the sampler to use instead of a new one; its own fanouts and options apply. One that is not a
            KeyedSampler makes its random draws itself.
        directed: deprecated; False means ``subgraph_type="induced"``.
        method: ``neighbor``; or ``ladies``, ``fastgcn`` or ``labor``: layer by layer, with the defaults of
            :class:`torch_gnnscale.LayerSampler`, whose ``num_nodes`` are ``num_neighbors``. Batches then have
            ``edge_weight``. Or the name of a sampler of your own (:func:`torch_gnnscale.sampler.register_method`).
        layers: batches have ``layers`` instead of edges: one :class:`torch_gnnscale.sampler.Layer` per layer of the
            model, in the model's order. Each hop expands every node found so far, as in the papers.
        seed: decides every draw and the order; by default drawn from ``generator`` or torch's own generator.
        prefetch: how many batches threads prepare while the model trains (at most one thread per core). No effect with
            a ``neighbor_sampler`` that is not a KeyedSampler. By default 0 or 4, whichever is faster in the first 72
            batches (:mod:`torch_gnnscale.loader.pipeline`); always 4 on a GPU, in bulks, and where sampling or reading
            rows is collective.
        edge_layout: the layout of a batch's edges (see :data:`torch_gnnscale.loader.fields.EdgeLayout`); by
            default that of the input, for each relation: ``edge_index`` and ``adj_t`` if it has both.
        shard: which batches this process makes, where several train together. True: its share among the ranks of
            torch.distributed; (rank, number of ranks): that share; False: all. By default all, and the ranks' share
            with the stores of a part. Without ``seed``, all ranks use the one that rank 0 draws.
        seed_order: ``global``: batch k of the epoch, the one that a single process makes, is made by rank k mod P.
            ``owned``, the default with the stores of a part, unless there is ``split``: each part's seeds are ordered
            by themselves. With ``split`` and K parts, batch t then has ``batch_size / K`` seeds of each part, those of
            its own order: chunk t of part 0, then of part 1, and so on, for any number of ranks.
        uneven: what happens if a rank has fewer batches than others. ``pad``: it takes seeds a second time, with new
            draws. ``drop``: the others leave out batches. ``serve``: it ends earlier, so that each seed is taken once;
            with the stores of a part it still sends rows to the others. ``serve`` is for evaluation, not for training
            under DDP. With ``split`` and the order ``owned``, the same holds for a part that has fewer seeds than
            others: with ``pad`` it begins again, with ``drop`` it ends the epoch, with ``serve`` it adds no seeds to
            later batches.
        device: where batches are made: ``cpu`` or a CUDA device. On a CUDA device, the graph is copied there (see
            ``graph_on_gpu``), batches are made on CUDA streams of their own, and all of their fields are there. They
            equal those of the CPU. ``seconds["stall"]``: seconds in which the consumer's stream waited for a batch.
        graph_on_gpu: how much of the graph the GPU holds, in bytes ("4GiB") or as a share (0.5): the column pointers
            and the first edges; the rest is copied to pinned host memory, which the GPU reads. By default the whole
            graph if it fits, else nothing, with a warning; nothing of a graph that the user has pinned.
        graph_on_peers: a budget for each of the GPUs 0, 1, ...: the edges that do not fit in ``graph_on_gpu`` are
            interleaved over them (see :class:`torch_gnnscale.NeighborSampler`).
        bulk: how many batches are sampled by one call; by default 4 on a GPU and 1 on a CPU. On a CPU, each thread
            takes whole batches, which suits small batches. ``prefetch`` is rounded up to a multiple of ``bulk``. If
            edges are in parts, the requests of all batches of a bulk travel together.
        split: a plan: each batch is computed by several ranks, each a part of its nodes (:mod:`torch_gnnscale.split`).
            ``batch_size`` is the whole batch's. Batches have the rows of this rank's own nodes, and ``shuffle_index``,
            ``batch_key``, ``global_batch_size`` and, if there is ``x``, ``x_halo``. Homogeneous graphs and seeds only.
            With a GPU as ``device``, each rank draws the whole batch there and cuts it.
            With the stores of a part, which must have been written by the plan's owners, ranks that together hold all
            parts make a batch of the seeds of all parts. ``timeout``: seconds after which a rank that does not answer
            is an error; by default 600, with the stores of a part that of ``open_part``.
        input_start_time: a time per seed, in the form of ``input_time``, which is needed beside it: a seed's tree has
            only edges of times from the one to the other, both included. Types without times are not limited, nor are
            seeds of types that a dictionary lacks.
        input_end_time: another name of ``input_time``.
        time_window: in place of ``input_start_time``, the length of all windows, which begin at
            ``input_time - time_window``.
        **kwargs: ``input_id``, ``custom_cls`` and the arguments of :class:`torch.utils.data.DataLoader`.
            ``num_workers`` means threads unless something needs processes; the default of 0 is as fast.

    Raises:
        NotImplementedError: an argument that is not implemented, or not on a GPU or in bulks.
        TypeError, ValueError, IndexError: a malformed graph, fanout, seed, time or weight; an unknown device.
    """

    inputs_type = NodeSamplerInput
    _label = staticmethod(label_seeds)

    @told_to_all
    @on_host
    def __init__(
        self,
        data: Data | HeteroData | tuple[PyGFeatureStore, PyGGraphStore],
        num_neighbors: NumNeighborsLike,
        input_nodes: InputNodes | dict[NodeType, Any] = None,
        input_time: Tensor | dict[NodeType, Tensor] | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable | None = None,
        transform_sampler_output: Callable | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        method: str = NEIGHBOR,
        layers: bool = False,
        seed: int | None = None,
        prefetch: int | None = None,
        edge_layout: EdgeLayout | None = None,
        shard: Shard = None,
        seed_order: SharedOrder | None = None,
        uneven: Uneven = "pad",
        device: torch.device | str | None = None,
        graph_on_gpu: Budget | None = None,
        graph_on_peers: Sequence[Budget] = (),
        bulk: int | None = None,
        split: Split | None = None,
        input_start_time: Tensor | dict[NodeType, Tensor] | None = None,
        input_end_time: Tensor | dict[NodeType, Tensor] | None = None,
        time_window: float | None = None,
        **kwargs: Any,
    ) -> None:
        arguments = {**kwargs, **locals()}
        over = given_data(data)
        if input_time is not None and input_end_time is not None:
            raise ValueError("input_time, input_end_time: expected one of them, which mean the same, found both")
        times = input_time if input_end_time is None else input_end_time
        end_name = "input_time" if input_end_time is None else "input_end_time"
        windows = GivenWindows(end_name, "input_start_time", input_start_time, time_window)
        given = GivenSeeds.of(
            input_nodes, times, input_start_time, kwargs.pop("input_id", None), kwargs.get("batch_size", 1),
            time_name=end_name,
        )  # fmt: skip
        sampling = SamplingOptions.of(arguments)
        if neighbor_sampler is None and split is not None and over.of_part:
            # before its sampler is made, which knows of no split
            check_modes(sampling.subgraph, {"time_attr, input_time": time_attr is not None})
        sampler = chosen_sampler(data, num_neighbors, neighbor_sampler, method, sampling, timed=times is not None)
        if neighbor_sampler is not None:
            warn_of_options_of_links(sampler)
        windows.check(sampler)
        seeds = given.in_order(over, sampler)
        super().__init__(
            over,
            num_neighbors,
            sampler,
            LoaderOptions.of(arguments),
            input_name="input_nodes",
            inputs=seeds.first,
            time_name="input_time",
            time=seeds.time,
            input_id=seeds.input_id,
            by_type=seeds.by_type,
            sizes=given.sizes,
            num_inputs=seeds.num_seeds,
            **kwargs,
        )
        self.input_nodes, self.input_time, self.input_end_time = input_nodes, input_time, input_end_time
        self.input_start_time, self.time_window = input_start_time, time_window
        given.check(self.input_data, sampler.node_bounds())
        self.input_data = windows.of(self.input_data, given.starts(self.input_data.input_type), given.typed)
        if self.order is not None:
            for entry in each_type(self.input_data):
                entry.node = self.order.to_stored(entry.node, entry.input_type)
        sampler.check_inputs(self.input_data)
        self._meet_others()


def label_links(loader: Any, fields: FieldsByType, of_links: Any) -> None:
    """Puts what is known of the links into the fields of a batch. ``loader``: of ours, or PyG's LinkLoader;
    ``of_links``: a sample's metadata."""
    edge_type = loader.input_data.input_type
    several = isinstance(of_links, dict)
    for of, metadata in of_links.items() if several else ((edge_type, of_links),):
        links = fields[of]
        put(links, {"input_id": metadata[0]})
        negatives = negatives_of(loader.neg_sampling, of)
        if negatives is None or negatives.is_binary():
            put(links, dict(zip(("edge_label_index", "edge_label", "edge_label_time"), metadata[1:], strict=True)))
            continue
        # Two relations of one node type would both have these fields there.
        src, dst = (links, links) if several else (fields[end] for end in end_types(of))
        src["src_index"], dst["dst_pos_index"], dst["dst_neg_index"] = metadata[1:4]
        for end in (src, dst):
            put(end, {"seed_time": metadata[4]})
        for name in ("edge_label_index", "edge_label_time"):  # attributes of the input
            links.pop(name, None)


class LinkNeighborLoader(KeyedLoader, torch_geometric.loader.LinkNeighborLoader):
    """A drop-in :class:`torch_geometric.loader.LinkNeighborLoader`: the same arguments, batches and order of fields.

    batch = f(graph, links, options; ``seed``, epoch, number of the batch), negatives included. Order, state and
    prefetching are those of :class:`torch_gnnscale.NeighborLoader`.

    Args:
        data: a Data, a HeteroData, or a pair of a FeatureStore and a GraphStore, ours or foreign ones. With renumbered
            stores (``GraphStore.order``), links, weights of negatives and ``n_id`` are still by the user's ids.
        num_neighbors: fanout of each hop; -1 takes all neighbors. In a heterogeneous graph also a list per edge type.
        edge_label_index: the links (source, destination), shape [2, m], or None for all edges. In a heterogeneous graph
            an edge type, a pair of an edge type and links or None, or a dictionary of these by edge type. With a
            dictionary, the links of all relations are permuted together, and a batch has ``input_id``,
            ``edge_label_index`` and ``edge_label`` for each relation. If there are several relations, the fields of
            triplets, ``src_index``, ``dst_pos_index`` and ``dst_neg_index``, are in the relation, too.
        edge_label: a label per link, shape [m, ...]. Binary negatives have label 0; if the smallest label is 0, 1 is
            added to the labels of links, as in PyG.
        edge_label_time: a time per link, shape [m]. A node, or edge, is drawn for a link only if its time is at most
            the link's. If ``edge_label_index`` is a dictionary, so are ``edge_label``, ``edge_label_time`` and
            ``input_id``; ``neg_sampling`` may be one, and is otherwise the same for all relations; with a dictionary
            as ``batch_size``, a batch has that many links of each relation. Either all relations have times or none.
        replace: draw with replacement.
        subgraph_type: ``directional``, ``bidirectional`` or ``induced``.
        disjoint: each link gets a tree of its own; trees share no nodes.
        temporal_strategy: ``uniform``, or ``last`` to draw the latest neighbors.
        neg_sampling: PyG's NegativeSampling or its arguments: ``binary`` or ``triplet``, negatives per link, weights of
            sources and destinations. Nodes of weight 0 and nodes later than the link are never drawn.
        neg_sampling_ratio: deprecated: binary negatives per link.
        time_attr: name of the times of nodes or edges; to be given together with ``edge_label_time``.
        weight_attr: name of the weights of edges: P(edge) is proportional to its weight.
        transform, transform_sampler_output, is_sorted, filter_per_worker, neighbor_sampler, directed, method: as in
            :class:`torch_gnnscale.NeighborLoader`.
        exclude_seed_edges: True: the edges between the ends of a batch's links are excluded from its sample;
            ``"reverse"``: their reverses, too (see :class:`torch_gnnscale.NeighborSampler`).
        strict_negatives: True: no negative is an edge of the links' type or a link of the loader. Links [2, m], or by
            edge type: no negative is one of these either. If every edge of that type has its reverse, the reverses of
            links are not drawn either.
        seed: decides every draw and the order; by default drawn from ``generator`` or torch's own generator.
        prefetch: how many batches threads prepare while the model trains; the default is that of
            :class:`torch_gnnscale.NeighborLoader`.
        edge_layout: the layout of a batch's edges (see :data:`torch_gnnscale.loader.fields.EdgeLayout`).
        bulk, shard, seed_order, uneven, device, graph_on_gpu, graph_on_peers: as in
            :class:`torch_gnnscale.NeighborLoader`. With a GPU as ``device``, the host draws negatives, and
            the GPU the neighborhoods.
        edge_label_start_time: a time per link, in the form of ``edge_label_time``, which is needed beside it: the trees
            of a link have only edges of times from the one to the other, both included. Negatives are not later than
            ``edge_label_time``, and may be earlier than this.
        time_window: in place of ``edge_label_start_time``, the length of all windows, which begin at
            ``edge_label_time - time_window``.
        **kwargs: ``input_id``, ``custom_cls`` and the arguments of :class:`torch.utils.data.DataLoader`.

    Raises:
        NotImplementedError: what only :class:`torch_gnnscale.NeighborLoader` has: ``layers=True`` (pass a sampler that
            has it), ``split``.
        TypeError, ValueError, IndexError: a malformed graph, fanout, link, label, time or weight. While iterating: a
            link for which there is no negative.
    """

    inputs_type = EdgeSamplerInput
    _label = staticmethod(label_links)
    neg_sampling: Negatives

    @told_to_all
    @on_host
    def __init__(
        self,
        data: Data | HeteroData | tuple[PyGFeatureStore, PyGGraphStore],
        num_neighbors: NumNeighborsLike,
        edge_label_index: InputEdges | dict[EdgeType, Tensor | None] = None,
        edge_label: Tensor | dict[EdgeType, Tensor] | None = None,
        edge_label_time: Tensor | dict[EdgeType, Tensor] | None = None,
        replace: bool = False,
        subgraph_type: SubgraphType | str = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: NegativeSampling | str | dict | tuple | None = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable | None = None,
        transform_sampler_output: Callable | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: BaseSampler | None = None,
        directed: bool = True,
        *,
        method: str = NEIGHBOR,
        exclude_seed_edges: ExcludeSeedEdges = False,
        strict_negatives: StrictNegatives = False,
        seed: int | None = None,
        prefetch: int | None = None,
        bulk: int | None = None,
        edge_layout: EdgeLayout | None = None,
        shard: Shard = None,
        seed_order: SharedOrder | None = None,
        uneven: Uneven = "pad",
        device: torch.device | str | None = None,
        graph_on_gpu: Budget | None = None,
        graph_on_peers: Sequence[Budget] = (),
        edge_label_start_time: Tensor | dict[EdgeType, Tensor] | None = None,
        time_window: float | None = None,
        **kwargs: Any,
    ) -> None:
        arguments = dict(locals(), split=kwargs.pop("split", None))
        over = given_data(data)
        if kwargs.pop("layers", False):
            raise NotImplementedError(
                "layers=True is not an argument of LinkNeighborLoader; pass neighbor_sampler=NeighborSampler(data, "
                "num_neighbors, layers=True)"
            )
        given = GivenLinks.of(
            over, edge_label_index, edge_label, edge_label_time, edge_label_start_time, kwargs.pop("input_id", None),
            kwargs.get("batch_size", 1), neg_sampling, neg_sampling_ratio,
        )  # fmt: skip
        windows = GivenWindows("edge_label_time", "edge_label_start_time", edge_label_start_time, time_window)
        made = neighbor_sampler is None
        if made:
            if (edge_label_time is None) != (time_attr is None):
                said = ["is not set" if value is None else "is set" for value in (edge_label_time, time_attr)]
                raise ValueError(
                    f"'edge_label_time' {said[0]} while 'time_attr' {said[1]}: expected both for temporal sampling"
                )
            arguments["strict_negatives"] = known = given.strict(over, strict_negatives)
        sampling = SamplingOptions.of(arguments)
        sampler: Any = chosen_sampler(
            data, num_neighbors, neighbor_sampler, method, sampling, timed=edge_label_time is not None
        )
        if made and not isinstance(known, bool) and (order := over.numbering) is not None:
            sampler.strict_negatives = in_stored(order, known)
        windows.check(sampler)
        given.check(sampler)
        warn_of_negatives(sampler, neg_sampling, neg_sampling_ratio, given.each_negatives())
        inputs = given.inputs()
        first = each_type(inputs)[0]
        links = torch.stack([first.row, first.col])
        super().__init__(
            over,
            num_neighbors,
            sampler,
            LoaderOptions.of(arguments),
            input_name="edge_label_index",
            inputs=over.typed_links(first.input_type, links),
            time_name="edge_label_time",
            time=first.time,
            input_id=first.input_id,
            by_type=inputs if isinstance(inputs, LinksByType) else None,
            sizes=given.sizes,
            num_inputs=given.num_links,
            **kwargs,
        )
        self.edge_label_index, self.neg_sampling = edge_label_index, given.neg_sampling
        self.edge_label_time, self.edge_label_start_time = edge_label_time, edge_label_start_time
        self.time_window = time_window
        self.input_data = windows.of(self.input_data, given.start_time, given.typed)
        if self.order is not None:
            self.neg_sampling = given.in_stored_order(self.order, sampler.node_bounds() or {})
        for entry in each_type(self.input_data):
            entry.label = given.labels(entry.input_type)
            if self.order is not None:
                stored = to_stored(self.order, torch.stack([entry.row, entry.col]), entry.input_type)
                entry.row, entry.col = stored
            known = torch.stack([entry.row, entry.col]) if made and entry.input_type in given.chosen else None
            sampler.prepare_links(entry.input_type, negatives_of(self.neg_sampling, entry.input_type), known)
        self._meet_others()

    def _fingerprint(self) -> dict[str, Any]:
        each = [negatives_of(self.neg_sampling, entry.input_type) for entry in each_type(self.input_data)]
        said = [None if negatives is None else [negatives.mode.value, negatives.amount] for negatives in each]
        return {**super()._fingerprint(), "negatives": said if isinstance(self.input_data, LinksByType) else said[0]}
