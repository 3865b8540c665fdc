"""Makes split plans, and measures what they do to batches (GSplit, sections 5 and 6.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import InputNodes
from tqdm import tqdm

from .._user import table
from ..loader import NeighborLoader
from ..loader.accesses import Hops, sampled_hops
from ..loader.given_data import given_data
from ..loader.keyed_loader import KeyedLoader
from ..ops.arguments import check_choice, check_int, to_int
from ..partition.assignment import assign, by_metis
from ..partition.input_graph import given_owners
from ..partition.whole import Whole
from ..sampler import NeighborSampler
from ..sampler.fanouts import NumNeighborsLike
from ..sampler.relations import sampled_graph
from ..topology import CSC
from ..topology.csc import CHUNK
from .cut_sampler import check_sampler
from .plans import Plan


class Presampled(NamedTuple):
    """Counts over batches of L hops. A node of group g, and an edge into it, is computed by L - g layers: a node of
    group 0 (a seed) by all."""

    rows: Tensor
    """rows[v]: how many rows of the batches are node v's. int64, shape [n]."""
    layers: Tensor
    """layers[v]: the sum of L - g over these rows. int64, shape [n]."""
    edges: Tensor
    """edges[e], N_e in the paper: the sum of L - g over the batches' edges whose user's id is e; g is the group of the
    edge's destination. int64, shape [edges]."""

    def node_load(self, csc: CSC, load: str) -> Tensor:
        """What each node adds to its part, N_v in the paper: int64, shape [n].

        Args:
            csc: the graph that was sampled.
            load: "edges": ``layers[v]``, and ``edges[e]`` for each edge e into v. "layers": in how many layers v
                appears, the sum of L - g + 1, as in the paper.
        """
        if load == "layers":
            return self.layers + self.rows
        return self.layers + self._drawn_into(csc)

    def by_place(self, csc: CSC) -> Tensor:
        """``edges`` in the order of ``csc.row``."""
        return self.edges[: csc.num_edges] if csc.edge_id is None else self.edges[csc.edge_id]

    def expected(self, csc: CSC) -> Tensor:
        """The expected N_e of each edge if all edges into a node are drawn equally often: the mean of N_e over the
        edges into the node. In the order of ``csc.row``: float64, shape [edges]."""
        degree = csc.colptr.diff()
        share = self._drawn_into(csc).to(torch.float64) / degree.clamp(min=1)
        return share.repeat_interleave(degree, output_size=csc.num_edges)

    def _drawn_into(self, csc: CSC) -> Tensor:
        """The sum of N_e over the edges into each node: int64, shape [n]."""
        return torch.cat([self.edges.new_zeros(1), self.by_place(csc).cumsum(0)])[csc.colptr].diff()


def presample(loader: KeyedLoader, epochs: Sequence[int], progress: bool = False) -> Presampled:
    """Counts over all batches of the given epochs, by the stores' ids of nodes; only the topology is read.

    Raises:
        TypeError, ValueError, NotImplementedError: as of :func:`torch_gnnscale.loader.accesses_by_hop`.
    """
    num_nodes, num_edges, samples = sampled_hops(loader, epochs)
    device = loader.keyed_sampler.device
    rows, layers = torch.zeros(2, num_nodes, dtype=torch.int64, device=device)
    edges = torch.zeros(num_edges, dtype=torch.int64, device=device)
    total = len(epochs) * len(loader)
    batches: Iterable[Hops] = tqdm(samples, "presampling", total, unit=" batches", disable=None if progress else True)
    for hops in batches:
        for count, groups, each in ((rows, hops.nodes, 0), (layers, hops.nodes, 1), (edges, hops.edges, 1)):
            for group, ids in enumerate(groups):
                weight = len(hops.edges) - group if each else 1
                count.index_add_(0, ids, torch.full_like(ids, weight, dtype=torch.int64))
    return Presampled(rows.cpu(), layers.cpu(), edges.cpu())


WEIGHTS = ("presampled", "node", "edge", "random")
"""The ways of giving nodes to parts: see :func:`torch_gnnscale.split.plan`."""
_NODE_FACTOR = 10
"""A node weighs 1 + 10 N_v: with 1 + N_v, the many nodes of a large graph that were never drawn would decide."""
_EDGE_FACTOR = 100
"""An edge weighs 1 + 100 N_e: the 1 lets edges that were never drawn decide between cuts that are equal otherwise."""
_TOLERANCE = 1.01
"""What max / mean of the loads may be: every batch waits for the part with the largest load."""
_LIMIT = 1 << 53
"""Weights are scaled down where their sum is above it: METIS adds them up as int64 and compares sums as floats."""


def owners_by(
    weights: str, csc: CSC, node_load: Tensor, edge_load: Tensor, seeds: Tensor, parts: int, seed: int
) -> Tensor:
    """The part of each node: int32, shape [n].

    Args:
        weights: one of :data:`WEIGHTS`.
        csc: the graph.
        node_load: N_v, int64, shape [n].
        edge_load: N_e, or what it is expected to be, in the order of ``csc.row``: float64, shape [E].
        seeds: of training.
        parts, seed: as of :func:`torch_gnnscale.split.plan`.

    Raises:
        ImportError, RuntimeError: METIS is not installed, or failed.
    """
    relations, sizes = {None: csc}, {None: csc.num_src}
    if weights == "random":
        return assign(relations, sizes, parts, method="random", seed=seed).owner[None]
    if weights == "edge":
        train = {None: seeds.unique()}
        found = assign(relations, sizes, parts, method="metis", train=train, balance=("edges", "train"), seed=seed)
        return found.owner[None]
    whole = Whole.of(relations, sizes, {}, ["nodes"])
    whole = replace(
        whole,
        weight=weights_of(node_load, _NODE_FACTOR).unsqueeze(1),
        names=["load"],
        edge_weight=[weights_of(edge_load, _EDGE_FACTOR)] if weights == "presampled" else None,
    )
    return by_metis(whole, parts, seed, _TOLERANCE).owner.to(torch.int32)


def weights_of(load: Tensor, factor: int) -> Tensor:
    """1 + factor * load, rounded down, with a smaller factor if these numbers would add up to more than 2^53: int64,
    the shape of ``load``."""
    most, load = _LIMIT - len(load), load.to(torch.float64)
    total = float(load.sum())
    return 1 + (load * (factor if factor * total <= most else most / total)).floor_().to(torch.int64)


LOADS = ("edges", "layers")
"""What a node adds to its part: see :func:`plan`."""
FIRST_EPOCH = 1 << 32
"""The number of the first epoch that is presampled: those of training are smaller."""


def plan(
    data: Any,
    input_nodes: InputNodes,
    num_neighbors: NumNeighborsLike,
    parts: int = 4,
    *,
    batch_size: int = 1024,
    epochs: int = 10,
    weights: str | Any = "presampled",
    load: str = "edges",
    seed: int = 0,
    progress: bool = False,
    **options: Any,
) -> Plan:
    """A split plan for training with these batches: parts with about equal loads and few edges between them.

    Batches are drawn as in training, in other epochs (GSplit, section 4). Let g be the group of a node of a batch (0:
    the seeds) or of an edge's destination, and L the number of hops. Summed over the batches::

        N_e = L - g                                   # in how many layers the edge is computed
        N_v = L - g for v's row and each of its edges # load="edges"
        N_v = L - g + 1                               # load="layers", the paper's: in how many layers v appears

    weights:

    - "presampled": METIS with nodes of weight 1 + 10 N_v and edges of weight 1 + 100 N_e; both directions of an edge
      are added. If all edges into a node are drawn equally often (neighbor sampling without weights), the weights take
      the mean of N_e over these edges: a few epochs tell how often a node is expanded, but not how often each of its
      edges is drawn.
    - "node": as "presampled", but all edges have the same weight.
    - "edge": METIS with equal numbers of edges and of seeds in all parts; needs no presampling.
    - "random": a random permutation of the nodes, in equal ranges.
    - a vector: the part of each node by the user's ids, integers in [0, parts), shape [n].

    Equal arguments give equal plans, on all ranks too, with one version of METIS.

    Args:
        data: a Data, or a (FeatureStore, GraphStore) pair that has the whole topology; only that is read.
        input_nodes, num_neighbors, batch_size: of training, as :class:`torch_gnnscale.NeighborLoader` takes them.
        parts: how many parts.
        epochs: how many epochs are presampled. 0, which "presampled" and "node" refuse, leaves all counts 0.
        weights: how nodes are given to parts.
        load: "edges" or "layers".
        seed: of the draws and of the method.
        progress: show a progress bar.
        **options: further arguments of the NeighborLoader that decide what is drawn: ``method``, ``replace``, ...

    Raises:
        NotImplementedError: a graph with types, the stores of a part, ``disjoint``, ``layers``, ``time_attr``, and
            subgraphs that are not ``directional``.
        TypeError, ValueError, IndexError: arguments of another form or out of range.
        ImportError, RuntimeError: METIS is not installed, or failed.
    """
    parts = check_int("parts", parts, 1, torch.iinfo(torch.int32).max)
    epochs, seed = check_int("epochs", epochs), to_int("seed", seed)
    named = isinstance(weights, str)
    if named and weights not in WEIGHTS:
        raise ValueError(f"weights: expected one of {WEIGHTS} or the part of each node, found {weights!r}")
    check_choice("load", load, LOADS)
    if epochs == 0 and named and weights in ("presampled", "node"):
        raise ValueError(f"epochs: expected at least 1 for weights={weights!r}, found 0")
    csc = _graph(data)
    if not named:
        weights, given = "given", given_owners(weights, {None: csc.num_dst}, parts)[None]
    loader = NeighborLoader(
        data, num_neighbors, input_nodes, batch_size=batch_size, shuffle=True, seed=seed, shard=False, **options
    )
    check_sampler(loader.keyed_sampler)
    counts = presample(loader, range(FIRST_EPOCH, FIRST_EPOCH + epochs), progress)
    node_load, by_place = counts.node_load(csc, load), counts.by_place(csc)
    stored = torch.arange(csc.num_dst)  # by the user's ids
    if loader.order is not None:
        stored = loader.order.to_stored(stored)
    if weights == "given":
        owners = torch.empty_like(given).index_copy_(0, stored, given)
    else:
        edge_load = counts.expected(csc) if _draws_evenly(loader.keyed_sampler) else by_place.to(torch.float64)
        owners = owners_by(weights, csc, node_load, edge_load, loader.input_data.node, parts, seed)
    about = {
        "weights": weights, "load": load, "sampler": loader.keyed_sampler.options(), "batch_size": batch_size,
        "epochs": epochs, "seed": seed,
    }  # fmt: skip
    cut = _cut(csc, by_place, owners)
    node_load, edges, rows = (_compact(count) for count in (node_load[stored], counts.edges, counts.rows[stored]))
    return Plan(owners[stored], parts, node_load, edges, rows, cut, about)


def _draws_evenly(sampler: Any) -> bool:
    """Whether all edges into a node are drawn equally often."""
    return isinstance(sampler, NeighborSampler) and sampler.graph.relations[0].weight is None


def _graph(data: Any) -> CSC:
    """The edges, by the stores' ids."""
    given = given_data(data)
    if isinstance(data, HeteroData):
        raise NotImplementedError("a split plan of a HeteroData is not implemented: use a Data")
    if given.of_part:
        raise NotImplementedError(
            "a split plan of the stores of a part is not implemented: make it of the whole graph, before it is in parts"
        )
    graph = sampled_graph(data)
    if graph.is_hetero:
        raise NotImplementedError("a split plan of a graph with types is not implemented: expected one without")
    return graph.relations[0].csc


def _cut(csc: CSC, edge_load: Tensor, owners: Tensor) -> int:
    """The sum of ``edge_load``, in the order of ``csc.row``, over the edges between parts."""
    cut = 0
    for begin in range(0, csc.num_edges, CHUNK):
        end = min(begin + CHUNK, csc.num_edges)
        dst = torch.searchsorted(csc.colptr, torch.arange(begin, end), right=True) - 1
        crossing = owners[csc.row[begin:end].to(torch.int64)] != owners[dst]
        cut += int(edge_load[begin:end][crossing].sum())
    return cut


def _compact(count: Tensor) -> Tensor:
    """int32 where that holds all counts."""
    fits = not len(count) or int(count.max()) <= torch.iinfo(torch.int32).max
    return count.to(torch.int32) if fits else count


# Measuring ############################################################################################################


class Measured(NamedTuple):
    """What each part does in b batches of L hops. Layers are in the model's order: layer 0 reads features."""

    edges: Tensor
    """edges[k, l, p]: the edges that part p computes in layer l for batch k: those into its nodes. int64, shape
    [b, L, parts]."""
    cross: Tensor
    """cross[k, l]: how many edges of layer l of batch k, in all parts, come from another part. int64, shape [b, L]."""
    rows: Tensor
    """rows[k, p]: the rows that part p loads for batch k. int64, shape [b, parts]."""

    @property
    def imbalance(self) -> Tensor:
        """max / mean of the edges of a layer over the parts; 1 where a layer has none. float64, shape [b, L]."""
        edges = self.edges.to(torch.float64)
        found = edges.amax(2) / edges.mean(2)
        return torch.where(self.edges.sum(2) > 0, found, 1.0)

    @property
    def cross_share(self) -> Tensor:
        """The share of a batch's edges, summed over layers, that cross; 0 where there are none. float64, shape [b]."""
        return self.cross.sum(1) / self.edges.sum((1, 2)).clamp(min=1).to(torch.float64)

    def table(self) -> str:
        """A text table of means over the batches, by layer."""
        lines: list[tuple[str, ...]] = [("layer", "edges per batch", "that cross", "max / mean over the parts")]
        for layer, imbalance in enumerate(self.imbalance.mean(0).tolist()):
            edges, cross = int(self.edges[:, layer].sum()), int(self.cross[:, layer].sum())
            share = 100 * cross / max(edges, 1)
            lines.append((str(layer), f"{edges / max(len(self.edges), 1):,.0f}", f"{share:.2f} %", f"{imbalance:.3f}"))
        return "\n".join(table(lines))


def measure(plan: Plan, loader: KeyedLoader, epochs: Sequence[int]) -> Measured:
    """What each part of a plan does in all batches of the given epochs; only the topology is read.

    Raises:
        TypeError, ValueError, NotImplementedError: the loader draws from another graph, or what
            :func:`torch_gnnscale.split.plan` refuses.
    """
    check_sampler(loader.keyed_sampler)
    bounds = loader.keyed_sampler.node_bounds()
    if bounds != {None: plan.num_nodes}:
        raise ValueError(f"loader: expected one of {plan.num_nodes} nodes, found {bounds}")
    owners = plan.owners_in(loader.order)
    edges, cross, rows = [], [], []
    for epoch in epochs:
        for out in loader.samples(epoch):
            owner = owners[out.node.cpu()].to(torch.int64)
            dst = owner[out.col.cpu()]
            crosses = owner[out.row.cpu()] != dst
            sizes = list(out.num_sampled_edges)  # of hop 0, which all layers compute, then 1, ...
            by_hop = [torch.bincount(some, minlength=plan.parts) for some in dst.split(sizes)]
            edges.append(torch.stack(by_hop).cumsum(0).flip(0))
            cross.append(torch.stack([some.sum() for some in crosses.split(sizes)]).cumsum(0).flip(0))
            rows.append(torch.bincount(owner, minlength=plan.parts))
    return Measured(torch.stack(edges), torch.stack(cross), torch.stack(rows))


def plot(plan: Plan, measured: Measured, file: str) -> None:
    """Draws the loads of the parts, and each batch's imbalance over its crossing edges, into an image."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    mean = max(sum(plan.loads) / plan.parts, 1e-9)
    left.bar(range(plan.parts), [load / mean for load in plan.loads])
    left.axhline(1, linestyle="--", color="gray")
    left.set(xlabel="part", ylabel="presampled load / mean", xticks=range(plan.parts))
    layers = measured.imbalance.unbind(1)
    for layer, imbalance in enumerate(layers):  # smaller points over larger ones: all show where some coincide
        size = 12 * (len(layers) - layer)
        right.scatter(100 * measured.cross_share, imbalance, s=size, label=f"layer {layer}")
    right.set(xlabel="edges that cross, % (a point per batch)", ylabel="max / mean edges of a layer")
    figure.legend(*right.get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(f"{plan.parts} parts by {plan.about['weights']}")
    figure.savefig(file, dpi=120)
