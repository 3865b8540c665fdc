"""Samples one rank's part of each batch: the whole batch is drawn on every rank, and cut. What cannot be cut is
named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.typing import EdgeType, NodeType
from typing_extensions import override

from .. import ops
from .._user import on_host
from ..comm.steps import Steps
from ..distributed.neighbor_sampling import PartitionedExecutor, not_implemented
from ..loader.sharing import check_modes
from ..ops.arguments import NO_IDS
from ..ops.ranks import Cut
from ..partition import PartitionBook
from ..random import ids_key
from ..sampler.base import Inputs, KeyedSampler, keyed, name_of
from ..sampler.minibatch import MiniBatch, SampledEdges
from ..sampler.neighbor import NeighborSampler
from ..sampler.outputs import drawing_into_batches, output_of
from ..topology.sort_on_disk import id_dtype
from .rank_rows import ShuffleIndex


def check_sampler(sampler: KeyedSampler, collective: bool = False) -> None:
    """Refuses samplers whose batches cannot be cut: an edge must have one group, that of the hop which found its
    destination.

    Args:
        sampler: of whole batches.
        collective: whether it may be one of ranks that sample together.

    Raises:
        ValueError: it is not a KeyedSampler.
        NotImplementedError: its mode, by name.
    """
    if not sampler.keyed:
        raise ValueError(f"split: expected a neighbor_sampler that is a KeyedSampler, found {name_of(sampler)}")
    bounds = sampler.node_bounds()
    check_modes(getattr(sampler, "subgraph_type", SubgraphType.directional), {
        "HeteroData": getattr(sampler, "is_hetero", False) or (bounds is not None and None not in bounds),
        "layers=True": sampler.layers,
        "time_attr, input_time": sampler.is_temporal,
        "disjoint=True": getattr(sampler, "disjoint", False),
        "sample_direction='backward'": getattr(sampler, "sample_direction", "forward") == "backward",
        "a collective sampler": sampler.collective and not collective,
    })  # fmt: skip


def check_nodes(sampler: KeyedSampler, count: int) -> None:
    """Raises ValueError if a plan has another number of nodes than what a sampler draws from."""
    bounds = sampler.node_bounds()
    if bounds is not None and count != bounds[None]:
        raise ValueError(f"split: expected a plan of {bounds[None]} nodes, found one of {count}")


class RankSampler(KeyedSampler):
    """Base of the samplers of the part of each batch that one rank computes.

    Batches get the fields ``shuffle_index`` (:class:`torch_gnnscale.split.ShuffleIndex`), ``batch_key`` and
    ``global_batch_size``, the number of seeds of the whole batch. ``batch_key`` is the key by which the batch was
    drawn; where batches share it (``batch_dependency``), a hash of it and the batch's seeds.

    Args:
        sampler: would sample whole batches.
        parts: the number of ranks.
        part: the number of this one.
    """

    _draws = True

    def __init__(self, sampler: KeyedSampler, parts: int, part: int) -> None:
        self.sampler, self.parts, self.part = sampler, parts, part
        self.batches_per_key, self.weight_name = sampler.batches_per_key, sampler.weight_name

    def draw(self, batch: MiniBatch, neg_sampling: Any = None) -> None:
        """Writes this rank's part of the batch of ``batch.inputs``, the seeds of all ranks, by ``batch.key``."""
        raise NotImplementedError

    @on_host
    def sample_from_nodes(self, inputs: NodeSamplerInput, key: int | None = None) -> Any:
        """What :meth:`draw` writes, as PyG's output."""
        if key is None:
            raise ValueError("key: expected one, by which all ranks draw the same batch, found None")
        batch = MiniBatch()
        batch.inputs, batch.key = inputs, key
        self.draw(batch)
        return output_of(batch)

    def options(self) -> dict[str, Any]:
        """The options of whole batches, which may be cut in any way."""
        return self.sampler.options()

    @override
    def node_bounds(self) -> Mapping[NodeType | None, int] | None:
        return self.sampler.node_bounds()

    @override
    def edge_bound(self, edge_type: EdgeType | None) -> int | None:
        return self.sampler.edge_bound(edge_type)

    def _write(self, batch: MiniBatch, cut: Cut, edge: Tensor | None, weight: Tensor | None, seeds: Tensor) -> None:
        """Writes a cut into a batch.

        Args:
            batch: gets all but ``metadata`` and ``whole``.
            cut: its ``local`` are ids.
            edge: the ids of its edges.
            weight: those of its edges.
            seeds: of all ranks.
        """
        columns = torch.arange(len(cut.colptr) - 1, device=cut.colptr.device)
        index = torch.stack([cut.row, columns.repeat_interleave(cut.colptr.diff(), output_size=len(cut.row))])
        batch.nodes, batch.edges = [cut.local], [SampledEdges(index, cut.colptr, edge, weight)]
        batch.num_nodes, batch.num_edges = [cut.num_nodes], [cut.num_edges]
        batch.fields = {
            **batch.fields,
            "shuffle_index": ShuffleIndex(self.parts, self.part, cut.sent, cut.num_sent, cut.num_received),
            "batch_key": batch.key if self.batches_per_key == 1 else ids_key(batch.key, seeds.cpu()),
            "global_batch_size": len(seeds),
        }


class SplitSampler(RankSampler):
    """Every rank draws the whole batch, by its key, and cuts it (:func:`torch_gnnscale.ops.cut_batch`), so that both
    sides know without a message which rows travel (GSplit, section 5).

    Args:
        sampler: samples whole batches of a homogeneous graph from nodes, without trees; sampled edges are those that
            were drawn.
        owners: owners[i]: the rank of the node of stored id i: int32 or int64, shape [nodes]; or the book of the parts
            whose numbers are those of the ranks.
        parts: the number of ranks. A single one computes all nodes, whoever their owners are.
        part: the number of this one.

    Raises:
        NotImplementedError: a sampler whose batches cannot be cut.
        ValueError: owners of another number of nodes.
    """

    def __init__(self, sampler: KeyedSampler, owners: Tensor | PartitionBook, parts: int = 1, part: int = 0) -> None:
        check_sampler(keyed(sampler))
        check_nodes(sampler, owners.num_nodes() if isinstance(owners, PartitionBook) else len(owners))
        super().__init__(sampler, parts, part)
        self._drawing = drawing_into_batches(sampler)
        self.owners = owners if isinstance(owners, PartitionBook) else owners.to(sampler.device)
        self.device = sampler.device
        self._check_ids = sampler.node_bounds() is None
        self.thread_safe = sampler.thread_safe
        self.usual_bulk = sampler.usual_bulk

    @override
    def check_many(self, inputs: type[Inputs], how: str) -> None:
        self.sampler.check_many(inputs, how)

    @override
    def draw(self, batch: MiniBatch, neg_sampling: Any = None) -> None:
        self._drawing.draw(batch)
        self._cut(batch)

    def draw_many(self, batches: Sequence[MiniBatch], neg_sampling: Any = None) -> None:
        """:meth:`draw` for many batches, by one call of the sampler."""
        self._drawing.draw_many(batches)
        for batch in batches:
            self._cut(batch)

    def _cut(self, batch: MiniBatch) -> None:
        """Leaves this rank's part of a sampled batch in it."""
        node, edges, counts = batch.nodes[0], batch.edges[0], None if batch.num_nodes is None else batch.num_nodes[0]
        if batch.types.hetero or edges.colptr is None or counts is None or (
            batch.trees is not None or batch.separate_sources
        ):  # fmt: skip
            raise NotImplementedError(
                f"split of samples of {type(self.sampler).__name__} is not implemented: expected NeighborOutputs with "
                f"colptr and hops, without trees"
            )
        row = edges.edge_index[0]
        sums = _sums(node, row)
        cut = ops.cut_batch(node, counts, edges.colptr, row, self._owners_of(node), self.parts, self.part)
        batch.whole = {
            "key": batch.key, "number of nodes": len(node), "number of edges": len(row),
            **dict(zip(("sum of ids", "sum of sources"), sums.tolist(), strict=True)),
        }  # fmt: skip
        edge, weight = (None if of is None else of.index_select(0, cut.edge) for of in (edges.edge_id, edges.weight))
        own = cut.local[: cut.num_nodes[0]]
        batch.metadata = tuple(None if entry is None else entry.to(own.device)[own] for entry in batch.metadata)
        found = cut._replace(local=node.index_select(0, cut.local))
        self._write(batch, found, edge, weight, node[: int(counts[0])])
        batch.out = batch.original = None

    def _owners_of(self, node: Tensor) -> Tensor:
        if self.parts == 1:
            return torch.zeros(len(node), dtype=torch.int32, device=node.device)
        if isinstance(self.owners, PartitionBook):
            return self.owners.part_of(node)
        return ops.select_rows(self.owners, node, check=self._check_ids)


def _sums(*numbers: Tensor) -> Tensor:
    """The sum of each tensor of integers, in host memory. The host does not wait: sums of tensors on a GPU may be read
    after something else has waited for the stream, as cutting a batch does."""
    return torch.stack([each.sum() for each in numbers]).to("cpu", non_blocking=True)


# Batches that the ranks draw together (GSplit, algorithm 1) ###########################################################


class GrowingCut:
    """The cut of one rank, while the ranks of a batch draw it together.

    In each hop, draw the edges into ``frontier``, pass them to :meth:`drawn`, send the others what it returns, and pass
    what they sent to :meth:`came`. Each remote node is sent once to its owner, in the first hop in which this rank
    draws an edge from it, so that both know its level. All nodes have numbers in the order in which this rank finds
    them; :meth:`cut` turns the numbers into rows.

    Args:
        seeds: the rank's own, in the batch's order, with repeats: int64, shape [s].
        bounds: rank i owns the nodes bounds[i]..bounds[i + 1] - 1: int64, shape [ranks + 1].
        part: the number of this rank.
    """

    def __init__(self, seeds: Tensor, bounds: Tensor, part: int) -> None:
        self.frontier = seeds
        """The own nodes of the last group: int64, ascending, except for seeds, which have the order of the batch."""
        self._bounds, self._part = bounds, part
        self._known = seeds  # ids by number
        self._groups = [torch.arange(len(seeds))]  # numbers of own nodes
        self._asked: list[list[Tensor]] = []  # numbers of remote nodes, by level and owner
        self._sent: list[Sequence[Tensor]] = []  # numbers of own nodes, by level and the rank that asked
        self._found: tuple[Tensor, Tensor] = NO_IDS, NO_IDS  # ids and numbers of the own nodes that this hop found here
        self._degrees: list[Tensor] = []
        self._edges: list[tuple[Tensor, Tensor]] = []  # numbers of sources, and ids of edges, by hop

    def drawn(self, picks: ops.Picks) -> list[Tensor]:
        """Takes the edges drawn into the frontier, in its order; returns the ids to send to each rank.

        Args:
            picks: with the ids of edges.

        Returns:
            For each rank, those of its nodes that are new to this one: int64, ascending; none for this rank.
        """
        assert picks.edge_id is not None
        found, first = ops.relabel(self._known, picks.source), len(self._known)
        self._known = torch.cat([self._known, found.node])
        self._degrees.append(picks.num_edges)
        self._edges.append((found.local, picks.edge_id))
        ids, order = found.node.sort()
        sizes = torch.searchsorted(ids, self._bounds).diff().tolist()
        of_ranks, numbers = list(ids.split(sizes)), list((order + first).split(sizes))
        self._found = of_ranks[self._part], numbers[self._part]
        of_ranks[self._part] = numbers[self._part] = NO_IDS
        self._asked.append(numbers)
        return of_ranks

    def came(self, asked: Sequence[Tensor]) -> None:
        """Takes what each rank sent, which ends the hop: the own nodes that are new are the next frontier."""
        ids, first = torch.cat(list(asked)), len(self._known)
        found = ops.relabel(self._known, ids)
        self._known = torch.cat([self._known, found.node])
        self._sent.append(found.local.split([len(of_rank) for of_rank in asked]))
        numbers = torch.cat([self._found[1], torch.arange(first, len(self._known))])
        self.frontier, order = torch.cat([self._found[0], found.node]).sort()
        self._groups.append(numbers[order])

    def cut(self) -> Cut:
        """The cut after the last hop, as :func:`torch_gnnscale.ops.cut_batch` would return it, but with ids in place of
        positions in the batch: ``local`` and ``halo`` have ids of nodes, ``edge`` ids of edges."""
        ranks = range(len(self._bounds) - 1)
        own, halo, sent = (
            torch.cat([*pieces, NO_IDS])
            for pieces in (self._groups, _by_rank(self._asked, ranks), _by_rank(self._sent, ranks))
        )
        row = torch.empty_like(self._known)
        row[own] = torch.arange(len(own))
        row[halo] = torch.arange(len(own), len(own) + len(halo))
        degrees, sources, edges = (
            torch.cat([*pieces, NO_IDS])
            for pieces in (self._degrees, [hop[0] for hop in self._edges], [hop[1] for hop in self._edges])
        )
        return Cut(
            self._known[own], [len(group) for group in self._groups], [len(hop[0]) for hop in self._edges],
            torch.cat([NO_IDS.new_zeros(1), degrees.cumsum(0)]), row[sources], edges, self._known[halo],
            _counts(self._asked, ranks), row[sent], _counts(self._sent, ranks),
        )  # fmt: skip


def _by_rank(levels: Sequence[Sequence[Tensor]], ranks: range) -> list[Tensor]:
    """The pieces in the order of (rank, level), given in the order of (level, rank)."""
    return [level[rank] for rank in ranks for level in levels]


def _counts(levels: Sequence[Sequence[Tensor]], ranks: range) -> list[list[int]]:
    """counts[rank][level]."""
    return [[len(level[rank]) for level in levels] for rank in ranks]


class CooperativeSampler(RankSampler):
    """Every rank draws the edges into its own nodes, and tells the owners of remote sources that they are needed
    (GSplit, section 3 and algorithm 1).

    A hop takes one round, of the ids of remote nodes, each of which is sent once per batch. All ranks take the rounds
    of all hops, even if their frontiers are empty. Samples equal those of :class:`SplitSampler` over the whole graph,
    bit for bit.

    Args:
        sampler: a :class:`NeighborSampler` over the stores of a part whose topology is partitioned.
        book: of the parts.
        part: the number of this rank's.

    Raises:
        NotImplementedError: another sampler, or a mode of it that cannot be cut.
    """

    collective = True

    def __init__(self, sampler: KeyedSampler, book: PartitionBook, part: int) -> None:
        check_sampler(sampler, collective=True)
        if not isinstance(sampler, NeighborSampler) or not isinstance(sampler.executor, PartitionedExecutor):
            raise not_implemented(f"split= of a {type(sampler).__name__}")
        super().__init__(sampler, book.num_parts, part)
        self._neighbors, self._executor = sampler, sampler.executor
        self._bounds, self._ids = book.bounds[None], id_dtype(book.num_nodes())

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """From now on the ranks draw in a loader's steps (:meth:`KeyedSampler.join`).

        Raises:
            ValueError: as of :meth:`PartitionedExecutor.join`.
        """
        self._executor.join(steps, own_seeds)

    @override
    def check_many(self, inputs: type[Inputs], how: str) -> None:
        raise not_implemented(f"{how} of split batches")

    @override
    def draw(self, batch: MiniBatch, neg_sampling: Any = None) -> None:
        """Called in a step of the loader. Raises RuntimeError outside of one, or if another rank could not draw."""
        inputs, key = batch.inputs, batch.key
        steps, seeds = self._executor.owners.steps, inputs.node.to(torch.int64)
        own = ((seeds >= self._bounds[self.part]) & (seeds < self._bounds[self.part + 1])).nonzero().view(-1)
        drawing = self._neighbors.drawing
        growing = GrowingCut(seeds[own], self._bounds, self.part)
        # If a rank fails between two rounds, the others learn it in their next `counted`; after the last round, in the
        # `counted` of the step.
        for hop in range(len(drawing.fanouts[0])):
            wanted = growing.drawn(self._executor.pick_own(growing.frontier, key, hop, drawing))
            sent, counted = [ids.to(self._ids) for ids in wanted], partial(steps.counted, what="sampling")
            asked, _ = steps.transport.messages(sent, None, counted, "frontiers")
            growing.came([ids.to(torch.int64) for ids in asked])
        cut = growing.cut()
        self._write(batch, cut, cut.edge, None, seeds)
        batch.metadata = tuple(None if entry is None else entry[own] for entry in (inputs.input_id, inputs.time))
        batch.whole = {"key": key, "number of seeds": len(seeds), "sum of seeds": int(seeds.sum())}
        batch.inputs = None
