"""What NeighborSampler and LayerSampler have in common, attributes of PyG's NeighborSampler included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput
from torch_geometric.sampler.base import DataType
from torch_geometric.typing import EdgeType, NodeType
from typing_extensions import override

from .. import ops
from .._user import on_host
from ..comm.steps import Steps
from ..ops.arguments import check_key
from ..random import draw_seed
from .anchors import AnchorInput
from .base import Inputs, KeyedSampler, each_type
from .executor import Executor
from .graph import ReverseIds, SampledGraph
from .links import ExcludeSeedEdges, LinkSampling, StrictNegatives
from .minibatch import (
    MiniBatch,
    PreparedSeeds,
    SampledEdges,
    Seeds,
    add_reverses,
    check_starts,
    prepared_seeds,
    seeds_of_nodes,
    without_times,
)
from .outputs import output_of


class PyGAttributes:
    """What a sampler tells of its graph under PyG's names; before KeyedSampler in a class's bases."""

    graph: SampledGraph
    is_temporal: bool
    """Whether nodes or edges have times."""
    _disjoint: bool
    """Whether disjoint trees were asked for."""

    @property
    def data_type(self) -> DataType:
        """homogeneous, heterogeneous or remote (a pair of stores)."""
        return self.graph.data_type

    @property
    def is_hetero(self) -> bool:
        """Whether nodes and edges have types."""
        return self.graph.is_hetero

    @property
    def node_types(self) -> list[NodeType | None]:
        """The node types; [None] in a homogeneous graph."""
        return self.graph.node_types

    @property
    def edge_types(self) -> list[EdgeType | None]:
        """The edge types; [None] in a homogeneous graph."""
        return self.graph.edge_types

    @property
    def num_nodes(self) -> int | dict[NodeType, int]:
        """The number of nodes; per type in a heterogeneous graph."""
        return self._by_type(self.graph.bounds())

    @property
    def node_time(self) -> Tensor | dict[NodeType, Tensor] | None:
        """The nodes' times, by type in a heterogeneous graph; None if they have none."""
        return self._by_type(self.graph.node_time)

    @property
    def edge_time(self) -> Tensor | dict[EdgeType, Tensor] | None:
        """The edges' times in the user's order, by type in a heterogeneous graph; None if they have none."""
        return self._by_type(self.graph.edge_time)

    def _by_type(self, values: dict | None) -> Any:
        return values if values is None or self.is_hetero else values[None]

    @property
    def disjoint(self) -> bool:
        """Whether trees of different seeds share no nodes."""
        return self._disjoint or self.is_temporal

    @disjoint.setter
    def disjoint(self, disjoint: bool) -> None:
        self._disjoint = disjoint

    @property
    def edge_permutation(self) -> None:
        """None: the sampler returns the user's edge ids already."""
        return None


class OnExecutor(PyGAttributes, KeyedSampler):
    """A KeyedSampler whose samples are drawn by an executor: it checks the inputs, lets the executor draw, and writes
    what was drawn into the batch. A subclass has the options of its method (:meth:`options`), by which its executor
    draws (:meth:`_options_of_draws`)."""

    graph: SampledGraph
    links: LinkSampling
    executor: Executor
    """Draws the samples, on the CPU, on a GPU, or over the stores of a part."""
    device: torch.device
    takes_types = True
    _directional = True
    """Whether the edges of a sample belong to hops, so that each hop's are counted."""
    _separate_sources = False
    """Whether a layer's sources are its hop's nodes alone."""
    _ids: Callable[[int, Tensor], Tensor | None] | None = None
    """Maps a relation's number and the executor's ids of its edges to those in the batch; None: they are the same."""
    _reversed: ReverseIds | None = None
    """The ids of the reverse edges that are added to a sample; None: none are added."""
    _drawn_by: Any = None
    """The options that the executor draws by; None if they changed since."""

    @property
    def collective(self) -> bool:  # type: ignore[override]
        """Whether all ranks of a process group sample together."""
        return self.executor.collective

    @property
    def usual_bulk(self) -> int:  # type: ignore[override]
        """1 on a CPU; 4 on a GPU, which one batch does not fill."""
        return 1 if self.device.type == "cpu" else 4

    def node_bounds(self) -> dict[NodeType | None, int]:
        """The number of nodes per type."""
        return self.graph.bounds()

    def edge_bound(self, edge_type: EdgeType | None) -> int:
        """All of the user's edge ids of a type are in [0, edge_bound)."""
        return self.graph.relations[self.graph.types.edge_number[edge_type]].id_bound

    @property
    def _said_of_graph(self) -> dict[str, Any]:
        """The entries of :meth:`options` that tell the size of the graph."""
        return {"nodes": list(self.graph.sizes), "edges": [relation.num_edges for relation in self.graph.relations]}

    @override
    def join(self, steps: Steps, own_seeds: bool) -> None:
        self.executor.join(steps, own_seeds)

    @override
    def check_many(self, inputs: type[Inputs], how: str) -> None:
        if not issubclass(inputs, NodeSamplerInput):
            self.executor.check_links(self.links)

    @override
    def check_inputs(self, inputs: Inputs) -> None:
        for entry in each_type(inputs) if self.is_temporal else ():
            if entry.time is None and (self.graph.node_time or {}).get(entry.input_type) is None:
                raise ValueError(without_times("input_time", entry.input_type))

    @override
    def prepare_links(
        self, edge_type: EdgeType | None, neg_sampling: NegativeSampling | None, links: Tensor | None
    ) -> None:
        self.executor.check_links(self.links)
        self.links.prepare(edge_type, neg_sampling, links)

    @property
    def exclude_seed_edges(self) -> ExcludeSeedEdges:
        """Which edges between the ends of links are excluded."""
        return self.links.exclude_seed_edges

    @property
    def strict_negatives(self) -> StrictNegatives:
        """Which links are never negatives."""
        return self.links.strict_negatives

    @strict_negatives.setter
    def strict_negatives(self, strict_negatives: StrictNegatives) -> None:
        self.links = LinkSampling(self.graph, self.exclude_seed_edges, strict_negatives)

    # Sampling ########################################################################################################

    @property
    def _draws(self) -> bool:  # type: ignore[override]
        return self._as_ours((*_OF_ONE, "sample_many"))

    def _as_ours(self, names: Sequence[str]) -> bool:
        """Whether these methods are ours, and were not changed by a user."""
        return all(getattr(getattr(self, name), "__func__", None) is getattr(OnExecutor, name) for name in names)

    def _drawn(self, seeds: Sequence[PreparedSeeds], keys: Sequence[int]) -> list[ops.Sample]:
        """What the executor draws for each batch."""
        return self.executor.draw(seeds, keys, self._drawn_by or self._options_of_draws())

    def _options_of_draws(self) -> Any:
        """Sets and returns :attr:`_drawn_by`."""
        raise NotImplementedError

    def _write(self, batch: MiniBatch, sample: ops.Sample) -> None:
        """Writes into a batch what was drawn for it."""
        write_sample(batch, sample, self.graph, self._directional, self._ids)
        batch.separate_sources = self._separate_sources
        if self._reversed is not None:
            add_reverses(batch, self.graph, self._reversed)

    def draw(self, batch: MiniBatch, neg_sampling: Any = None) -> None:
        """Samples for ``batch.inputs`` by ``batch.key``, and writes nodes, edges and what is known of the inputs."""
        seeds = self._seeds(batch, neg_sampling)
        self._complete(batch, seeds, self._drawn([seeds], [batch.key])[0])

    def draw_many(self, batches: Sequence[MiniBatch], neg_sampling: Any = None) -> None:
        """:meth:`draw` for many batches. On a CPU, threads take whole batches; on a GPU, all are drawn at once.

        Raises:
            NotImplementedError: a mode that the executor lacks.
        """
        for kind in {type(batch.inputs) for batch in batches}:
            self.check_many(kind, "bulk")
        seeds = [self._seeds(batch, neg_sampling) for batch in batches]
        samples = self._drawn(seeds, [batch.key for batch in batches])
        for batch, of, sample in zip(batches, seeds, samples, strict=True):
            self._complete(batch, of, sample)

    def _seeds(self, batch: MiniBatch, neg_sampling: Any) -> PreparedSeeds:
        """What is sampled for a batch."""
        inputs: Any = batch.inputs
        if type(inputs) is NodeSamplerInput:  # the usual case first
            return seeds_of_nodes(self.graph, inputs, self.executor.seeds_on)
        if isinstance(inputs, AnchorInput):
            return inputs.lists.seeds(inputs, batch.key, self.disjoint)
        if isinstance(inputs, NodeSamplerInput):
            return seeds_of_nodes(self.graph, inputs, self.executor.seeds_on)
        self.executor.check_links(self.links)
        return self.links.seeds(inputs, neg_sampling, batch.key, self.disjoint)

    def _complete(self, batch: MiniBatch, seeds: PreparedSeeds, sample: ops.Sample) -> None:
        """Writes into a batch what was drawn for its seeds."""
        self._write(batch, sample)
        if batch.trees is not None and len(seeds.numbers) > 1:
            of_seeds = [(number, len(seeds.nodes[number])) for number in seeds.numbers]
            batch.trees = _renumbered_trees(batch.trees, of_seeds)
        batch.metadata, batch.inputs = seeds.metadata, None
        if seeds.complete is not None:
            seeds.complete(batch)

    # As PyG asks #####################################################################################################

    @on_host
    def sample_from_nodes(self, inputs: NodeSamplerInput, key: int | None = None) -> Any:
        """Samples for ``inputs.node``; ``metadata`` is (input_id, time), as PyG's loaders expect."""
        return self._output(inputs, key, None)

    @on_host
    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None, key: int | None = None
    ) -> Any:
        """Samples the neighborhood of links and their negatives; ``metadata`` is what PyG's loaders expect.

        Negatives are a function of the key as well. P(node) is proportional to its weight in ``neg_sampling``, over the
        nodes whose time is at most the link's (all nodes if they have no times). With ``strict_negatives`` no negative
        is an edge.

        Raises:
            ValueError: some link has no such negative.
        """
        return self._output(inputs, key, neg_sampling)

    def _output(self, inputs: Inputs, key: int | None, neg_sampling: NegativeSampling | None) -> Any:
        batch = MiniBatch()
        batch.inputs, batch.key = inputs, draw_seed() if key is None else check_key(key)
        self.draw(batch, neg_sampling)
        return output_of(batch)

    @on_host
    def sample_many(
        self, inputs: Sequence[Inputs], keys: Sequence[int], neg_sampling: NegativeSampling | None = None
    ) -> list[Any]:
        """PyG's outputs of many batches; see :meth:`draw_many`. One after the other, if a subclass changes how one is
        sampled."""
        if not self._as_ours(_OF_ONE):
            return super().sample_many(inputs, keys, neg_sampling)
        batches = [_unnumbered(entry, key) for entry, key in zip(inputs, keys, strict=True)]
        self.draw_many(batches, neg_sampling)
        return [output_of(batch) for batch in batches]

    @on_host
    def sample(
        self,
        seeds: Seeds,
        seed_time: Seeds | None,
        key: int,
        exclude: Tensor | dict[EdgeType, Tensor] | None = None,
        seed_start_time: Seeds | None = None,
    ) -> Any:
        """Samples for seeds.

        Args:
            seeds: ids of any integer type, shape [s]; by node type in a heterogeneous graph. They may repeat.
                ``node[:s]`` of the output are the seeds as given.
            seed_time: times of the seeds, in the same form; by default the nodes' own times.
            key: 64 bits, from :func:`torch_gnnscale.random.batch_key`.
            exclude: pairs (source, destination) whose edges are not sampled: int64, shape [2, m], in any order; by edge
                type in a heterogeneous graph.
            seed_start_time: the starts of the seeds' time windows, in the form of ``seed_time``: a tree has edges of
                times from its seed's start to its seed's time, both included.

        Returns:
            PyG's output without metadata. ``batch[i]`` is the tree of node i; trees are numbered like the seeds given.
            ``num_sampled_nodes`` and ``num_sampled_edges`` are None for ``bidirectional`` and ``induced``.
        """
        check_starts(self.graph, seeds, seed_time, seed_start_time)
        batch, on = _unnumbered(None, key), self.executor.seeds_on
        prepared = prepared_seeds(self.graph, on, seeds, seed_time, seed_start_time, exclude)
        self._complete(batch, prepared, self._drawn([prepared], [batch.key])[0])
        return output_of(batch)


_OF_ONE = ("sample_from_nodes", "sample_from_edges", "sample_inputs")
"""The methods that sample one batch."""


def write_sample(
    batch: MiniBatch, sample: ops.Sample, graph: SampledGraph, directional: bool = True,
    ids: Callable[[int, Tensor], Tensor | None] | None = None,
) -> None:  # fmt: skip
    """Writes what an operator returned into a batch.

    Args:
        batch: gets nodes, edges, trees and sizes of hops.
        sample: of ``graph``.
        graph: what was sampled.
        directional: whether edges are those that hops drew, of which there are counts.
        ids: ids(number of a relation, the operator's ids of its edges) are the edges' ids in the batch; None: they are
            the operator's.
    """
    batch.types, batch.nodes, batch.trees = graph.types, sample.node, sample.tree or None
    batch.num_nodes, batch.num_edges = (sample.num_nodes, sample.num_edges) if directional else (None, None)
    if ids is None and not graph.backward and not sample.edge_weight:
        batch.edges = list(map(SampledEdges, sample.edge_index, sample.colptr, sample.edge_id))
        return
    batch.edges = [
        SampledEdges(
            index.flip(0) if graph.backward else index,
            None if graph.backward else sample.colptr[number],
            edge_id if ids is None else ids(number, edge_id),
            sample.edge_weight[number] if sample.edge_weight else None,
        )
        for number, (index, edge_id) in enumerate(zip(sample.edge_index, sample.edge_id, strict=True))
    ]


def _unnumbered(inputs: Inputs | None, key: int) -> MiniBatch:
    batch = MiniBatch()
    batch.inputs, batch.key = inputs, check_key(key)
    return batch


def _renumbered_trees(trees: Sequence[Any], seeds: list[tuple[int, int]]) -> Sequence[Any]:
    """Renumbers trees. ``trees``: per node type, numbered over the seeds of node type 0, then 1, and so on. The result
    is numbered over ``seeds``, pairs (node type, number of seeds), in the order given."""
    if [number for number, _ in seeds] == sorted(number for number, _ in seeds):
        return trees
    begin, first = 0, {}
    for number, count in seeds:
        first[number] = torch.arange(begin, begin + count)
        begin += count
    renumber = torch.cat([first[number] for number in sorted(first)]).to(trees[0].device)
    return [renumber.index_select(0, tree) for tree in trees]  # in a third of the time of renumber[tree]
