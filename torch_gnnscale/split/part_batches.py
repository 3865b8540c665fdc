"""What a split plan gives to a loader over the stores of a part, if the parts were written by that plan."""

from __future__ import annotations

from torch import Tensor

from ..comm.mesh import Ranks
from ..comm.steps import Steps
from ..distributed.part_rows import PartRows
from ..loader.row_source import CollectiveSource, RowSource
from ..loader.split import SplitBatches
from ..sampler.keyed import KeyedSampler
from .cooperative import CooperativeSampler
from .halo_rows import SplitRows
from .split_sampler import RankSampler, SplitSampler


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
