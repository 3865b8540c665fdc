"""What a split plan gives to a loader: a sampler of its rank's part, and the steps of all ranks."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import NodeSamplerInput

from .. import ops
from .._warn import warn
from ..comm.at_exit import close_at_exit
from ..comm.header import check_alike
from ..comm.mesh import Grid, Ranks
from ..comm.rendezvous import Rendezvous, rank_and_world
from ..comm.steps import Steps
from ..distributed.part_rows import PartRows
from ..loader.checks import common_numbering
from ..loader.row_source import CollectiveSource, RowSource
from ..loader.split import Split, SplitBatches
from ..sampler.base import Inputs, KeyedSampler
from ..topology.numbering import Numbering
from ..version import __version__
from .cooperative_sampler import CooperativeSampler
from .cut_sampler import RankSampler, SplitSampler, check_nodes
from .halo_rows import SplitRows

TIMEOUT = 600.0
"""Seconds after which a rank that does not answer is an error, unless the loader has a ``timeout``."""


class SplitByOwners(Split):
    """Which part computes which node; a loader's ``split``.

    With torch.distributed, P ranks are P / K groups for K parts, P a multiple of K: rank r computes part r mod K of the
    batches of group r // K. A single process computes all parts as one: its batches are whole.
    """

    owners: Tensor
    """The part of each node, by the user's ids: int32 or int64, shape [nodes]."""
    parts: int
    """K."""
    fingerprint: str
    """Equal for plans with equal owners."""

    def of_loader(
        self, sampler: KeyedSampler, inputs: type[Inputs], data: Any, timeout: float | None
    ) -> SplitBatches:  # fmt: skip
        """See :meth:`Split.of_loader`."""
        if inputs is not NodeSamplerInput:
            raise NotImplementedError("links with split= are not implemented; use NeighborLoader")
        features = data[0] if isinstance(data, (tuple, list)) else None
        if isinstance(features, PartRows):
            if timeout:
                warn(f"timeout={timeout} has no effect with the stores of a part: open_part(timeout=) decides")
            return PartBatches(sampler, features, self.owners, self.parts, self.fingerprint)
        if timeout is not None and timeout < 0:
            raise ValueError(f"timeout: expected at least 0, found {timeout}")
        order = common_numbering(data) if isinstance(data, (tuple, list)) else None
        if order is not None:
            check_nodes(sampler, len(self.owners))
        return OwnedBatches(self, sampler, self.owners_in(order), timeout or TIMEOUT)

    def refuse(self, data: Any, timeout: float | None, why: str) -> None:
        """See :meth:`Split.refuse`."""
        features = data[0] if isinstance(data, (tuple, list)) and data else None
        if isinstance(features, PartRows):
            features.refuse(why)
            return
        rank, world = rank_and_world()
        if world == 1:
            return
        valid = isinstance(timeout, (int, float)) and timeout > 0
        with contextlib.suppress(RuntimeError, ValueError):  # they do not come, or cannot
            rendezvous = Rendezvous(rank, world, float(timeout) if valid else TIMEOUT)  # type: ignore[arg-type]
            rendezvous.refuse(why)
            rendezvous.close()

    def owners_in(self, order: Numbering | None) -> Tensor:
        """``owners`` by stored ids. ``order``: the numbering of the stores; None if they have the user's ids."""
        if order is None:
            return self.owners
        stored = order.to_stored(torch.arange(len(self.owners)))
        return torch.empty_like(self.owners).index_copy_(0, stored, self.owners)


class OwnedBatches(SplitBatches):
    """One loader's share of batches that are cut by a plan.

    Args:
        plan: of the loader.
        sampler: samples whole batches.
        owners: the plan's, by stored ids.
        timeout: seconds after which a rank that does not answer is an error.
    """

    def __init__(self, plan: SplitByOwners, sampler: KeyedSampler, owners: Tensor, timeout: float) -> None:
        rank, world = rank_and_world()
        self.grid = Grid(world, 1 if world == 1 else plan.parts, "parts")
        self.ranks = Ranks(self.grid.copy(rank), self.grid.copies)
        self.parts, self._owners = plan.parts, owners
        self.sampler: KeyedSampler = SplitSampler(sampler, owners, self.grid.parts, self.grid.part(rank))
        self._identity: dict[str, Any] = {"version": __version__}
        if world > 1:
            self._identity |= {"parts of the split plan": plan.parts, "split plan": plan.fingerprint}
        self._timeout = timeout

    def owners_of(self, nodes: Tensor) -> Tensor:
        """See :meth:`SplitBatches.owners_of`."""
        return ops.gather_rows(self._owners, nodes)

    def source(self, rows: RowSource) -> CollectiveSource:
        """See :meth:`SplitBatches.source`."""
        if not rows.threads:
            raise ValueError("data: expected stores that threads may read (thread_safe) with split=, found others")
        return SplitRows(rows)

    def open_steps(self) -> Steps:
        """See :meth:`SplitBatches.open_steps`."""
        rendezvous = Rendezvous(*rank_and_world(), self._timeout)
        try:
            rendezvous.all_made(lambda: True)  # here a rank refuses
            check_alike(rendezvous.gather(self._identity))  # before there are groups by the number of parts
            steps = Steps(rendezvous, self.grid, self._identity, lambda _: rendezvous.close(), by_column=True)
        except BaseException:
            rendezvous.close()
            raise
        close_at_exit(steps)
        return steps


class PartBatches(SplitBatches):
    """One loader's share of batches of a graph in parts: rank i of a column computes the nodes of part i.

    If edges are in parts, the ranks of a column draw a batch together; else each rank draws the whole batch.

    Args:
        sampler: of whole batches, over the stores of the part.
        features: the rows of the part.
        owners: the plan's: the part of each node, by the user's ids: int32 or int64, shape [nodes].
        parts: the plan's number of parts.
        fingerprint: the plan's.

    Raises:
        NotImplementedError: a sampler whose batches cannot be split, or a part that was opened for other loaders.
    """

    def __init__(self, sampler: KeyedSampler, features: PartRows, owners: Tensor, parts: int, fingerprint: str) -> None:
        features.check_splittable()
        self._features, self._owners, self._parts_of_plan, self._fingerprint = features, owners, parts, fingerprint
        ranks, book = features.ranks, features.parts.book
        self.parts, self.ranks = book.num_parts, Ranks(ranks.copy, ranks.copies)
        self.sampler: RankSampler
        if features.parts.topology == "partitioned":
            self.sampler = CooperativeSampler(sampler, book, ranks.part)
        else:
            self.sampler = SplitSampler(sampler, book, ranks.parts, ranks.part)

    def owners_of(self, nodes: Tensor) -> Tensor:
        """See :meth:`SplitBatches.owners_of`."""
        return self._features.parts.book.part_of(nodes)

    def source(self, rows: RowSource) -> CollectiveSource:
        """See :meth:`SplitBatches.source`: own rows are all in this part, so that they are read without other ranks."""
        return SplitRows(rows)

    def open_steps(self) -> Steps:
        """See :meth:`SplitBatches.open_steps`."""
        steps = self._features.open_split_steps(
            {"parts of the split plan": self._parts_of_plan, "split plan": self._fingerprint}
        )
        problems = [text for text in steps.gather(self._problem()) if text is not None]
        if problems:
            raise ValueError(problems[0])
        return steps

    def _problem(self) -> str | None:
        """What is wrong with the plan for this part, if anything."""
        book, number = self._features.parts.book, self._features.ranks.part
        if self._parts_of_plan != self.parts:
            return f"split: expected a plan of {self.parts} parts, as the graph has, found one of {self._parts_of_plan}"
        if len(self._owners) != book.num_nodes():
            return f"split: expected a plan of {book.num_nodes()} nodes, found one of {len(self._owners)}"
        ids = self._features.part.user_ids[None]
        found = self._owners[ids]
        others = (found != number).nonzero()
        if not len(others):
            return None
        at = int(others[0])
        return (
            f"split: expected parts that were written by the plan's owners, found node {int(ids[at])} of part "
            f"{int(found[at])} in part {number}; partition.write(..., owners=plan.owners) writes them"
        )
