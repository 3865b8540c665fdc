"""PyG's LinkNeighborLoader with the fused sampler, the native gather and prefetching threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.data import FeatureStore as PyGFeatureStore
from torch_geometric.data import GraphStore as PyGGraphStore
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NegativeSampling
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.typing import EdgeType, InputEdges

from .._host import on_host
from ..memory import Budget
from ..sampler.base import LinksByType, each_type
from ..sampler.fanouts import NumNeighborsLike, SamplingOptions
from ..sampler.graph import end_types
from ..sampler.links import ExcludeSeedEdges, Negatives, StrictNegatives, negatives_of
from ..sampler.methods import NEIGHBOR, chosen_sampler
from .checks import warn_of_negatives
from .fields import EdgeLayout, FieldsByType, put
from .given_data import given_data
from .given_links import GivenLinks, in_stored, to_stored
from .given_seeds import GivenWindows
from .keyed_loader import KeyedLoader, LoaderOptions
from .share import Shard, SharedOrder, Uneven
from .sharing import told_to_all


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
        method: as in :class:`torch_gnnscale.NeighborLoader`.
        exclude_seed_edges: True: the edges between the ends of a batch's links are excluded from its sample;
            ``"reverse"``: their reverses, too (see :class:`torch_gnnscale.NeighborSampler`).
        strict_negatives: True: no negative is an edge of the links' type or a link of the loader. Links [2, m], or by
            edge type: no negative is one of these either. If every edge of that type has its reverse, the reverses of
            links are not drawn either.
        seed: decides every draw and the order; by default drawn from ``generator`` or torch's own generator.
        prefetch: how many batches threads prepare while the model trains; the default is that of
            :class:`torch_gnnscale.NeighborLoader`.
        bulk: how many batches are sampled by one call, as in :class:`torch_gnnscale.NeighborLoader`.
        edge_layout: the layout of a batch's edges (see :data:`torch_gnnscale.loader.fields.EdgeLayout`).
        shard, seed_order, uneven, device, graph_on_gpu, graph_on_peers: as in :class:`torch_gnnscale.NeighborLoader`.
            With a GPU as ``device``, the host draws negatives, and the GPU the neighborhoods.
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
