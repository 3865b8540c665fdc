"""Rows that lie in parts on several ranks, exchanged in two rounds per batch (FastSample, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch_geometric.data import TensorAttr
from torch_geometric.typing import NodeType

from ..feature import TieredFeatureStore
from ..feature.contract import CollectiveRowStore, Ranks, Steps
from ..partition import StoredPart, StoredParts
from .buffer import Kept, PrefetchBuffer, capacities
from .loader_buffers import Asked, LoaderBuffers
from .part_rows import PartRows
from .rows import NOWHERE, Located, Travelled, counts_by_part, exchange_rows, locate
from .steps import RankSteps


@dataclass
class RowPlan:
    """The rows that one batch reads."""

    attrs: list[TensorAttr]
    located: list[Located]
    """By type."""
    asked: Asked | None = None
    """What is asked of other parts, and what buffers have, once the step is taken."""
    remote: list[list[Travelled]] = field(default_factory=list)
    """The rows of ``located[t].remote``, by type and attribute, once they have come."""
    counts: Tensor | None = None
    """How many rows are asked of each part, by type: int64, shape [parts, types]."""


class PartitionedFeatureStore(PartRows, CollectiveRowStore):
    """A FeatureStore of which this rank holds one part.

    The loaders of this package read all rows, in steps that all ranks take together.

    Args:
        parts, part, ranks, tiers: of :class:`PartRows`.
        open_steps: makes the steps of a loader.
        kept: which rows of other parts each loader keeps.
    """

    def __init__(
        self, parts: StoredParts, part: StoredPart, ranks: Ranks, tiers: TieredFeatureStore | None,
        open_steps: Callable[[], RankSteps], kept: Kept,
    ) -> None:  # fmt: skip
        super().__init__(parts, part, ranks, tiers)
        state = self.__dict__
        state["_open_steps"], state["_kept"], state["_buffers"] = open_steps, kept, {}

    # What loaders ask ################################################################################################

    def open_steps(self) -> Steps:
        """See :meth:`CollectiveRowStore.open_steps`. Each loader has prefetch buffers of its own."""
        steps = self._open_steps()
        self._buffers[steps] = LoaderBuffers(self._make_buffers())
        return steps

    def _make_buffers(self) -> list[PrefetchBuffer | None]:
        """By type; None for edges, and where nothing is kept."""
        if self._kept.budget is None:
            return [None] * len(self._groups)
        node_types = [group for group in self._groups if not isinstance(group, tuple)]
        book, halo = self.parts.book, self.part.halo
        sizes = {t: sum(kind.num_bytes for kind in self._kinds[self._groups[t]]) for t in node_types}
        remote = {t: book.num_nodes(t) - len(book.nodes(self.part.number, t)) for t in node_types}
        rows = capacities(self._kept.budget, {t: len(halo[t].ids) for t in node_types}, remote, sizes)
        made: list[PrefetchBuffer | None] = [None] * len(self._groups)
        for node_type, count in rows.items():
            number = self._groups[node_type]
            if count:
                policy = self._kept.make(count, *halo[node_type])
                made[number] = PrefetchBuffer(policy, dict(enumerate(map(tuple, self._kinds[number]))))
        return made

    def beyond_part(self, ids: Tensor, node_type: NodeType | None) -> str | None:
        """See :meth:`CollectiveRowStore.beyond_part`."""
        found = self.parts.book.part_of(ids, node_type)
        others = (found != self.part.number).nonzero()
        if not len(others):
            return None
        return (
            f"inputs: expected those of part {self.part.number} with seed_order='owned', found position "
            f"{int(others[0])} in part {int(found[others[0]])}; use part.input_nodes(...) or seed_order='global'"
        )

    def plan(self, attrs: list[TensorAttr]) -> RowPlan:
        """See :meth:`CollectiveRowStore.plan`."""
        located = [NOWHERE] * len(self._groups)
        for attr in attrs:
            if located[number := self._groups[attr.group_name]] is NOWHERE:
                located[number] = locate(self._stored(attr), self._bounds(attr.group_name), self.part.number)
        return RowPlan(attrs, located)

    def plans_ahead(self, steps: Steps) -> int | Literal["epoch"]:
        """See :meth:`CollectiveRowStore.plans_ahead`: as many as the policy of the prefetch buffer looks ahead."""
        return self._buffers[steps].window

    def announce(self, plan: RowPlan, steps: Steps) -> None:
        """See :meth:`CollectiveRowStore.announce`."""
        self._buffers[steps].announce([found.remote for found in plan.located])

    def withdraw(self, steps: Steps) -> None:
        """See :meth:`CollectiveRowStore.withdraw`."""
        self._buffers[steps].withdraw()

    def counts(self, plan: RowPlan, steps: Steps) -> Tensor:
        """See :meth:`CollectiveRowStore.counts`."""
        plan.asked = self._buffers[steps].ask([found.remote for found in plan.located])
        plan.counts = torch.empty(self.ranks.parts, len(self._groups), dtype=torch.int64)
        for t, group in enumerate(self._groups):
            plan.counts[:, t] = counts_by_part(plan.asked.ids[t], self._bounds(group))
        return plan.counts

    def read(self, plan: RowPlan, asked: Tensor, steps: Steps) -> None:
        """See :meth:`CollectiveRowStore.read`."""
        assert isinstance(steps, RankSteps)
        assert plan.asked is not None
        assert plan.counts is not None
        starts = (self._bounds(group)[:-1] for group in self._groups)
        each = zip(plan.asked.ids, starts, plan.counts.unbind(1), strict=True)
        wanted = [ids - start.repeat_interleave(count) for ids, start, count in each]
        buffers = self._buffers[steps]
        came = exchange_rows(steps.rows, asked, wanted, plan.counts, self._kinds, self._own, buffers.update)
        plan.remote = buffers.take(plan.asked, came)

    def rows(self, plan: RowPlan) -> list[Tensor]:
        """See :meth:`CollectiveRowStore.rows`."""
        found = []
        for attr in plan.attrs:
            number = self._groups[attr.group_name]
            name = self._names[number].index(attr.attr_name)
            found.append(self._own[number][name].join(plan.located[number].place, *plan.remote[number][name]))
        return found
