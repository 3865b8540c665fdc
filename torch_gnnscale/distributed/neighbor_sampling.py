"""Draws samples of a graph whose topology is partitioned, hop by hop: the ranks that own the nodes' columns draw."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from typing_extensions import override

from .. import ops
from ..comm.steps import Steps
from ..partition import PartitionBook
from ..sampler.executor import Drawing, Executor
from ..sampler.graph import SampledGraph, end_types
from ..sampler.links import LinkSampling
from ..sampler.minibatch import EARLIEST, LATEST, PreparedSeeds
from .owners import Frontier, Owners, Picked, Requests, WeightedPicks, draw_neighbors

Hops: TypeAlias = Generator[list[Frontier], Sequence[Picked], ops.Sample]
"""A sample in the making: yields the frontiers of each hop, by relation, is sent the edges drawn for each of them, and
returns the sample."""


def by_hops(
    seeds: Sequence[Tensor],
    fanouts: Sequence[Sequence[int]],
    ends: Sequence[tuple[int, int]] = ((0, 0),),
    *,
    disjoint: bool = False,
    layers: bool = False,
    include_dst: bool = True,
    weighted: bool = False,
    seed_time: Sequence[Tensor | None] | None = None,
    seed_start_time: Sequence[Tensor | None] | None = None,
    relabel: Callable[..., ops.Relabelled] = ops.relabel,
) -> Hops:
    """Makes the sample that :func:`torch_gnnscale.ops.sample_neighbors` returns or, if edges have weights,
    :func:`torch_gnnscale.ops.sample_layers`: bit for bit, on the seeds' device.

    All frontiers of a hop are known when it begins, so the edges of all relations can be asked for at once. Where
    neighbors are drawn, a relation of fanout 0 has no frontier, and a hop without frontiers is left out.

    Args:
        seeds: by node type, global ids: int32 or int64, shape [s]; repeats allowed.
        fanouts: fanouts[relation][hop].
        ends: by relation, the numbers of the node types of its sources and of its destinations.
        disjoint, layers: as in ``sample_neighbors``.
        include_dst: as in ``sample_layers``.
        weighted: whether picked edges have weights.
        seed_time: by node type, the time of each seed, if edges have times: int64, shape [s]; trees are disjoint then.
        seed_start_time: the start of each seed's time window, if seeds have some; like ``seed_time``.
        relabel: :func:`torch_gnnscale.ops.relabel`, or its twin.
    """
    none, relations = seeds[0].new_empty(0, dtype=torch.int64), range(len(ends))
    node, counts = [of_type.long() for of_type in seeds], [len(of_type) for of_type in seeds]
    tree = list(torch.arange(sum(counts), device=none.device).split(counts)) if disjoint else None
    limits = [_by_tree(seeds, seed_time, LATEST), _by_tree(seeds, seed_start_time, EARLIEST)]
    colptr = [[none.new_zeros(1)] for _ in relations]
    local, column, edge_id = ([[none] for _ in relations] for _ in range(3))
    weight = [[none.to(torch.float32)] for _ in relations]
    num_nodes: list[list[int]] = [[count] for count in counts]
    num_edges: list[list[int]] = [[] for _ in relations]
    begin = [0] * len(seeds)
    for hop in range(len(fanouts[0]) if len(fanouts) else 0):
        end = [len(of_type) for of_type in node]
        frontiers = []
        for r, (_, dst) in enumerate(ends):
            some = slice(begin[dst], end[dst])
            trees = None if tree is None else tree[dst][some]
            time, start = (None if of is None or trees is None else of[trees] for of in limits)
            frontiers.append(Frontier(hop, fanouts[r][hop], node[dst][some], trees, time, start, r))
        asked = [frontier for frontier in frontiers if frontier.fanout != 0 or weighted]
        answers = iter((yield asked) if asked else ())
        for frontier, (src, dst) in zip(frontiers, ends, strict=True):
            r = frontier.relation
            if frontier.fanout != 0 or weighted:
                picks = next(answers)
            else:
                picks = ops.Picks(torch.zeros_like(frontier.node), none, none)
            of_edges = None if frontier.tree is None else frontier.tree.repeat_interleave(picks.num_edges)
            known = node[src] if include_dst else none
            found = relabel(known, picks.source, known_tree=None if tree is None else tree[src], tree=of_edges)
            assert picks.edge_id is not None
            local[r].append(found.local)
            edge_id[r].append(picks.edge_id)
            if isinstance(picks, WeightedPicks):
                weight[r].append(picks.weight)
            first = 0 if include_dst else begin[dst]
            columns = torch.arange(begin[dst] - first, end[dst] - first, device=none.device)
            column[r].append(columns.repeat_interleave(picks.num_edges))
            colptr[r].append(picks.num_edges.cumsum(0) + sum(num_edges[r]))
            node[src] = torch.cat([node[src], found.node])
            if tree is not None and found.tree is not None:
                tree[src] = torch.cat([tree[src], found.tree])
            num_edges[r].append(len(picks.source))
        for of_type, count in enumerate(end):
            num_nodes[of_type].append(len(node[of_type]) - count)
        begin = [0] * len(seeds) if layers and include_dst else end
    edges = [torch.stack([torch.cat(local[r]), torch.cat(column[r])]) for r in relations]
    return ops.Sample(
        node, [torch.cat(of) for of in colptr], edges, [torch.cat(of) for of in edge_id], tree or [], num_nodes,
        num_edges, [torch.cat(of) for of in weight] if weighted else (),
    )  # fmt: skip


def _by_tree(seeds: Sequence[Tensor], times: Sequence[Tensor | None] | None, missing: int) -> Tensor | None:
    """The time of each tree's seed, over all node types; ``missing`` for seeds of types without times."""
    if times is None:
        return None
    each = zip(seeds, times, strict=True)
    return torch.cat([torch.full_like(of, missing, dtype=torch.int64) if t is None else t for of, t in each])


def finish_together(samples: Sequence[Hops], pick: Callable[[list[Frontier]], Sequence[Picked]]) -> list[ops.Sample]:
    """Makes samples of equal fanouts hop after hop.

    Args:
        samples: from :func:`by_hops`.
        pick: called once per hop with the frontiers of all samples: relation after relation, each sample after sample.
            Returns the edges drawn for each frontier, in the order of its nodes.
    """
    given: list[Sequence[Picked] | None] = [None] * len(samples)
    while True:
        waiting: list[list[Frontier]] = []
        made: list[ops.Sample] = []
        for sample, picks in zip(samples, given, strict=True):
            try:
                waiting.append(sample.send(picks))  # type: ignore[arg-type]  # None starts it
            except StopIteration as end:
                made.append(end.value)
        if not waiting:
            return made
        assert not made
        found = pick([frontier for of_relation in zip(*waiting, strict=True) for frontier in of_relation])
        given = [found[number :: len(samples)] for number in range(len(samples))]


# Executors ############################################################################################################


def not_implemented(mode: str) -> NotImplementedError:
    """The error for a mode that a partitioned topology lacks."""
    return NotImplementedError(
        f"{mode} with a partitioned topology is not implemented; write the parts with topology='replicated'"
    )


class OverParts(Executor):
    """What executors over a partitioned topology have in common.

    Args:
        graph: this rank's columns.
        book: says which part has which nodes.
        part: this one.
        problem: what is wrong with this rank's columns, if anything.
    """

    collective = True

    def __init__(self, graph: SampledGraph, book: PartitionBook, part: int, problem: Exception | None) -> None:
        super().__init__(graph)
        self.book, self.part = book, part
        ends = [end_types(edge_type) for edge_type in graph.edge_types]
        self.ends = [(graph.node_index(src), graph.node_index(dst)) for src, dst in ends]
        """By relation, the numbers of the node types of its sources and of its destinations."""
        self.firsts = [int(book.bounds[dst][part]) for _, dst in ends]
        """By relation, the first node of this part that its edges lead to."""
        self._problem = problem
        self.stored: ops.Relations
        """This rank's columns as operators take them, once a loader was made."""
        self._owners: Owners | None = None

    def check_links(self, links: LinkSampling) -> None:
        """Raises NotImplementedError for links whose edges are excluded, or whose negatives are strict."""
        if links.exclude_seed_edges:
            raise not_implemented(f"exclude_seed_edges={links.exclude_seed_edges!r}")
        if links.strict_negatives is not False:
            raise not_implemented("strict_negatives")

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """From now on the sampler asks the ranks in a loader's steps (:meth:`KeyedSampler.join`).

        Raises:
            ValueError: on all ranks, if the columns of one are malformed; or the sampler is another loader's.
        """
        if self._owners is not None and self._owners.steps is not steps:
            raise ValueError("neighbor_sampler: expected one of this loader alone, found one that another loader has")
        types = [self.graph.node_types[dst] for _, dst in self.ends]
        self._owners = Owners(self.book, self.part, types, own_seeds, self._problem, steps)
        self.stored = self.graph.stored

    @property
    def owners(self) -> Owners:
        """The owners of nodes, while a step is under way on this thread; else raises RuntimeError."""
        if self._owners is None or not self._owners.steps.running:
            raise RuntimeError(
                "sample: expected an iteration of a torch_gnnscale.NeighborLoader over the stores of a part, in whose "
                "steps all ranks sample together, found a call outside of one"
            )
        return self._owners


class PartitionedExecutor(OverParts):
    """Draws hop by hop: for each node of a frontier, the rank that owns its column draws the neighbors.

    A hop takes two rounds, of requests and of drawn edges, for all relations and all batches of a bulk; none, if no
    relation draws in it. The first hop takes none if all seeds are the rank's own. All ranks take the same rounds, even
    if their frontiers are empty.
    """

    def check(self, drawing: Drawing, how: str) -> None:
        """Raises NotImplementedError unless edges are those that are drawn."""
        if drawing.subgraph != "directional":
            raise not_implemented(f"subgraph_type={drawing.subgraph!r}")

    def draw(self, seeds: Sequence[PreparedSeeds], keys: Sequence[int], options: Drawing) -> list[ops.Sample]:
        """As :meth:`Executor.draw`: in a step of the loader, in which each rank samples as many batches. The requests
        of all batches travel together.

        Raises:
            RuntimeError: not in a step; or another rank could not draw.
        """
        if any(of.pairs is not None for of in seeds):
            raise not_implemented("exclusion of edges")
        self.check(options, f"bulk={len(keys)}")
        pick = partial(self.owners.picks, keys=keys, draw=self._draw(options))
        samples = [
            by_hops(
                of.nodes, options.fanouts, self.ends, disjoint=options.disjoint, layers=options.layers,
                seed_time=of.times, seed_start_time=of.start_times,
            )
            for of in seeds
        ]  # fmt: skip
        return finish_together(samples, pick)

    @override
    def edges_into(self, nodes: Tensor, relation: int, limits: Tensor | None) -> ops.Picks:
        taking_all = Drawing([], False, False, False, False, "directional")
        asked = [  # of all relations: other ranks may ask for another one in this round
            Frontier(0, -1, nodes[some], None, None if limits is None else limits[some], relation=number)
            for number in range(len(self.ends))
            for some in [slice(None if number == relation else 0)]
        ]
        return self.owners.picks(asked, [0], self._draw(taking_all))[relation]

    def pick_own(self, node: Tensor, key: int, hop: int, drawing: Drawing) -> ops.Picks:
        """The edges that one batch draws into nodes of this part, in the order of ``node``, without other ranks.

        Args:
            node: stored ids of this part, int64, shape [n].
            key: the batch's.
            hop: the number of the hop, from 0.
            drawing: must not have trees or times; of a graph of one relation.
        """
        requests = Requests(node, None, None, None, [0, len(node)], [key])
        return self._draw(drawing)(requests, Frontier(hop, drawing.fanouts[0][hop], node, None, None))

    def _draw(self, drawing: Drawing) -> Callable[[Requests, Frontier], ops.Picks]:
        """Draws edges into nodes of this part, with these options."""
        return partial(draw_neighbors, self.stored, self.firsts, drawing)
