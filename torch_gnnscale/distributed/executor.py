"""Draws samples of a graph whose topology is partitioned, hop by hop, in exchanges of the ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import ops
from ..comm.steps import Steps
from ..laps import Laps
from ..ops.arguments import check_key
from ..partition import PartitionBook
from ..sampler.executor import Drawing, Executor
from ..sampler.graph import SampledGraph
from ..sampler.hop_by_hop import Frontier, Hops, Picked, by_hops, finish_together
from .hop_by_owners import Draw, Owners, Requests

PHASES = ("P", "SAMPLE", "EXTRACT")
"""What sampling does (matrix-based sampling, algorithm 1)."""


def not_implemented(mode: str) -> NotImplementedError:
    """The error for a mode that a partitioned topology lacks."""
    return NotImplementedError(
        f"{mode} with a partitioned topology is not implemented; write the parts with topology='replicated'"
    )


class OverParts:
    """What executors over a partitioned topology have in common.

    Args:
        graph: this rank's columns.
        book: says which part has which nodes.
        part: this one.
        problem: what is wrong with this rank's columns, if anything.
    """

    collective = True

    def __init__(self, graph: SampledGraph, book: PartitionBook, part: int, problem: Exception | None) -> None:
        self.graph, self.book, self.part = graph, book, part
        self.first = int(book.bounds[None][part])
        """The first node of this part."""
        self._problem = problem
        self._owners: Owners | None = None
        self.laps = Laps(PHASES)
        """Seconds of sampling, with waiting for other ranks."""

    def check_links(self) -> None:
        """Raises NotImplementedError: samples of links cannot be drawn."""
        raise not_implemented("sampling of links")

    def join(self, steps: Steps, own_seeds: bool) -> None:
        """See :meth:`KeyedSampler.join`.

        Raises:
            ValueError: on all ranks, if the columns of one are malformed; or the sampler is another loader's.
        """
        if self._owners is not None and self._owners.steps is not steps:
            raise ValueError("neighbor_sampler: expected one of this loader alone, found one that another loader has")
        self._owners = Owners(self.book, self.part, own_seeds, self._problem, steps)

    @property
    def owners(self) -> Owners:
        """The owners of nodes, while a step is under way on this thread; else raises RuntimeError."""
        if self._owners is None or not self._owners.steps.running:
            raise RuntimeError(
                "sample: expected an iteration of a torch_gnnscale.NeighborLoader over the stores of a part, in whose "
                "steps all ranks sample together, found a call outside of one"
            )
        return self._owners

    def _drawn_by_owners(self, samples: Sequence[Hops], keys: list[int], draw: Draw, hops: int) -> list[ops.Sample]:
        """Makes samples, whose edges are drawn by the owners of the nodes, with ``draw``.

        In ``laps``, P is the exchange of requests, SAMPLE the drawing, and EXTRACT the exchange of the drawn edges and
        the numbering of their nodes.
        """
        owners, laps = self.owners, self.laps

        def drawn(requests: Requests, frontier: Frontier) -> Picked:
            laps.lap("P")
            found = draw(requests, frontier)
            laps.lap("SAMPLE")
            return found

        def picks(waiting: list[Frontier]) -> list[Picked]:
            laps.lap("EXTRACT")
            return owners.picks(waiting, keys, drawn)

        laps.skip()
        made = finish_together(samples, picks, hops)
        laps.lap("EXTRACT")
        return made


class PartitionedExecutor(OverParts, Executor):
    """Draws hop by hop: for each node of a frontier, the rank that owns its column draws the neighbors.

    A hop takes two rounds, of requests and of drawn edges, for all batches of a bulk. The first hop takes none if all
    seeds are the rank's own. All ranks take the same rounds, even if their frontiers are empty.
    """

    device = torch.device("cpu")

    def check(self, drawing: Drawing, how: str, many: bool) -> None:
        """See :meth:`Executor.check`."""
        if drawing.subgraph != "directional":
            raise not_implemented(f"subgraph_type={drawing.subgraph!r}")
        if many and drawing.disjoint:  # also if edges have times: samples are then disjoint
            raise not_implemented(f"disjoint trees with {how}")

    def sample(
        self, seeds: Sequence[Tensor], key: int, drawing: Drawing, seed_time: Sequence[Tensor | None] | None = None,
        exclude: Sequence[Tensor | None] | None = None,
    ) -> ops.Sample:  # fmt: skip
        """See :meth:`Executor.sample`; in a step of the loader.

        Raises:
            RuntimeError: not in a step; or another rank could not draw.
        """
        if exclude is not None:
            raise not_implemented("exclusion of edges")
        self.check(drawing, "one batch", many=False)
        time = None if seed_time is None else seed_time[0]
        return self._made([by_hops(
            seeds[0], drawing.fanouts[0], disjoint=drawing.disjoint, layers=drawing.layers, seed_time=time,
        )], [key], drawing)[0]  # fmt: skip

    def sample_many(
        self, seeds: Sequence[Sequence[Tensor]], keys: Sequence[int], drawing: Drawing,
        seed_time: Sequence[Sequence[Tensor | None] | None] | None = None,
        exclude: Sequence[Sequence[Tensor | None] | None] | None = None,
    ) -> list[ops.Sample]:  # fmt: skip
        """See :meth:`Executor.sample_many`: in a step of the loader, in which each rank samples as many batches. The
        requests of all batches travel together."""
        if exclude is not None and any(pairs is not None for pairs in exclude):
            raise not_implemented("exclusion of edges")
        self.check(drawing, f"bulk={len(keys)}", many=True)
        return self._made([by_hops(of[0], drawing.fanouts[0], layers=drawing.layers) for of in seeds], keys, drawing)

    def pick_own(self, node: Tensor, key: int, hop: int, drawing: Drawing) -> ops.Picks:
        """The edges that one batch draws into nodes of this part, in the order of ``node``, without other ranks.

        Args:
            node: stored ids of this part, int64, shape [n].
            key: the batch's.
            hop: the number of the hop, from 0.
            drawing: must not have trees or times.
        """
        requests = Requests(node, None, None, [0, len(node)], [check_key(key)])
        return self._drawn(requests, Frontier(hop, drawing.fanouts[0][hop], node, None, None), drawing)

    def _made(self, samples: Sequence[Hops], keys: Sequence[int], drawing: Drawing) -> list[ops.Sample]:
        def draw(requests: Requests, frontier: Frontier) -> ops.Picks:
            return self._drawn(requests, frontier, drawing)

        return self._drawn_by_owners(samples, [check_key(key) for key in keys], draw, len(drawing.fanouts[0]))

    def _drawn(self, requests: Requests, frontier: Frontier, drawing: Drawing) -> ops.Picks:
        """The edges that this rank draws for requests of a hop."""
        return ops.pick_neighbors(
            self.graph.stored, requests.node, requests.ends, requests.keys, frontier.hop, frontier.fanout,
            first=self.first, tree=requests.tree, time=requests.time, replace=drawing.replace,
            last=drawing.last and frontier.time is not None,
        )  # fmt: skip
