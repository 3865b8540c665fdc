"""Rows that lie in parts on several ranks, exchanged in two rounds per batch (FastSample, section 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import TensorAttr
from torch_geometric.typing import NodeType

from .. import ops
from ..feature.contract import BoundedAttr, CollectiveRowStore, Ranks, Steps
from ..feature.feature_store import row_ids
from ..memory import Budget
from ..ops.arguments import check_ids
from ..ops.rows import as_words
from ..partition import RowsMeta, StoredPart, StoredParts
from .buffer import POLICIES, PrefetchBuffer, capacities
from .loader_buffers import Asked, LoaderBuffers
from .numbering import PartNumbering
from .rows import NOWHERE, Located, RowKind, counts_by_part, exchange_rows, locate
from .steps import RankSteps

N_ID = "n_id"
"""The attribute of each node type that holds the user's ids."""


@dataclass
class RowPlan:
    """The rows that one batch reads."""

    attrs: list[TensorAttr]
    located: list[Located]
    """By type."""
    asked: Asked | None = None
    """What is asked of other parts, and what buffers have, once the step is taken."""
    remote: list[list[Tensor]] = field(default_factory=list)
    """The rows of ``located[t].remote``, by type and attribute, once they have come."""
    counts: Tensor | None = None
    """How many rows are asked of each part, by type: int64, shape [parts, types]."""


class PartitionedFeatureStore(CollectiveRowStore):
    """A FeatureStore of which this rank holds one part: rows of its nodes, and of the edges that lead to them.

    The loaders of this package read all rows, in steps that all ranks take together. ``get_tensor`` answers what lies
    in this part, by stored ids of nodes and the user's ids of edges.

    Args:
        parts, part: the opened files.
        ranks: of the run.
        open_steps: makes the steps of a loader.
        buffer: how many rows of other parts each loader keeps (:func:`torch_gnnscale.distributed.buffer.capacities`);
            None: none.
        policy: which ones: a name in :data:`torch_gnnscale.distributed.buffer.POLICIES`; by default "massivegnn".
        policy_options: further arguments of the policy.
    """

    ranks: Ranks

    def __init__(
        self, parts: StoredParts, part: StoredPart, ranks: Ranks, open_steps: Callable[[], RankSteps],
        buffer: Budget | None = None, policy: str | None = None, policy_options: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        state = self.__dict__
        if buffer is None and (policy is not None or policy_options):
            raise ValueError("policy, policy_options: expected none without a buffer")
        if policy is not None and policy not in POLICIES:
            raise ValueError(f"policy: expected one of {list(POLICIES)}, found {policy!r}")
        state["_buffer"], state["_policy"] = buffer, policy or "massivegnn"
        state["_policy_options"], state["_buffers"] = dict(policy_options or {}), {}
        state["parts"], state["part"], state["ranks"], state["_open_steps"] = parts, part, ranks, open_steps
        state["order"] = PartNumbering(parts)
        attrs = {(meta.group_name, meta.attr_name): meta for meta in parts.attrs}
        rows = dict(part.rows)
        for node_type, user_ids in part.user_ids.items():
            count = parts.book.num_nodes(node_type)
            attrs[node_type, N_ID] = RowsMeta(node_type, N_ID, torch.int64, (), count)
            rows[node_type, N_ID] = user_ids
        state["_attrs"] = attrs
        groups = list(dict.fromkeys(group for group, _ in attrs))
        state["_groups"] = {group: number for number, group in enumerate(groups)}
        state["_names"] = [[name for of, name in attrs if of == group] for group in groups]
        state["_kinds"] = [
            [RowKind(attrs[group, name].dtype, attrs[group, name].shape) for name in names]
            for group, names in zip(groups, self._names, strict=True)
        ]
        state["_rows"] = [
            [rows[group, name] for name in names] for group, names in zip(groups, self._names, strict=True)
        ]

    # What loaders ask ################################################################################################

    def all_attrs(self) -> list[TensorAttr]:
        """See :meth:`RowStore.all_attrs`; the user's ids of nodes are the attribute ``n_id``."""
        return [TensorAttr(group, name) for group, name in self._attrs]

    def num_rows(self, attr: TensorAttr) -> int:
        """See :meth:`RowStore.num_rows`: in all parts."""
        return self._attrs[attr.group_name, attr.attr_name].num_rows

    def open_steps(self) -> Steps:
        """See :meth:`CollectiveRowStore.open_steps`. Each loader has prefetch buffers of its own."""
        steps = self._open_steps()
        self._buffers[steps] = LoaderBuffers(self._make_buffers())
        return steps

    def _make_buffers(self) -> list[PrefetchBuffer | None]:
        """By type; None for edges, and where nothing is kept."""
        if self._buffer is None:
            return [None] * len(self._groups)
        node_types = [group for group in self._groups if not isinstance(group, tuple)]
        book, halo = self.parts.book, self.part.halo
        sizes = {t: sum(kind.num_bytes for kind in self._kinds[self._groups[t]]) for t in node_types}
        remote = {t: book.num_nodes(t) - len(book.nodes(self.part.number, t)) for t in node_types}
        rows = capacities(self._buffer, {t: len(halo[t].ids) for t in node_types}, remote, sizes)
        made: list[PrefetchBuffer | None] = [None] * len(self._groups)
        for node_type, count in rows.items():
            number = self._groups[node_type]
            if count:
                policy = POLICIES[self._policy](count, *halo[node_type], **self._policy_options)
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
        bounds = [self._bounds(group) for group in self._groups]
        plan.counts = torch.stack([counts_by_part(*of) for of in zip(plan.asked.ids, bounds, strict=True)], 1)
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
        came = exchange_rows(steps.rows, asked, wanted, plan.counts, self._kinds, self._rows, buffers.update)
        plan.remote = buffers.take(plan.asked, came)

    def rows(self, plan: RowPlan) -> list[Tensor]:
        """See :meth:`CollectiveRowStore.rows`."""
        return [self._joined(attr, plan.located, plan.remote) for attr in plan.attrs]

    def _joined(self, attr: TensorAttr, located: Sequence[Located], remote: list[list[Tensor]]) -> Tensor:
        """The rows of an attribute in the order of its ids."""
        number = self._groups[attr.group_name]
        name = self._names[number].index(attr.attr_name)
        found, rows = located[number], self._rows[number][name]
        own = ops.gather_rows(rows, found.own_rows, check=False)
        if not len(found.at):
            return own
        out = rows.new_empty((found.size, *rows.shape[1:]))
        if out.numel():
            words = as_words(out)
            words[found.own] = as_words(own)
            words[found.at] = as_words(ops.gather_rows(remote[number][name], found.inverse, check=False))
        return out

    def _bounds(self, group: Any) -> Tensor:
        book = self.parts.book
        if not isinstance(group, tuple):
            return book.bounds[group]
        return book.edge_bounds[self._edge_type(group)]

    def _stored(self, attr: TensorAttr) -> Tensor:
        """Stored ids of an attribute's nodes, or stored positions of its edges. IndexError for ids without a row."""
        group, count = attr.group_name, self.num_rows(attr)
        ids = row_ids(attr.index, count)
        if not BoundedAttr.covers(attr, count):
            check_ids("index", ids, count, "rows")
        ids = ids.to(torch.int64)
        return self.parts.stored_edges(self._edge_type(group))[ids] if isinstance(group, tuple) else ids

    @staticmethod
    def _edge_type(group: tuple) -> Any:
        return None if group[0] is None else group

    # PyG's abstract methods ##########################################################################################

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        key = (attr.group_name, attr.attr_name)
        if key not in self._attrs:
            return None
        if attr.index is None:
            return self._whole(key)
        found = locate(self._stored(attr), self._bounds(attr.group_name), self.part.number)
        if len(found.at):
            raise RuntimeError(
                f"{key}: expected ids of part {self.part.number}, found some of other ranks' parts; "
                f"torch_gnnscale.NeighborLoader and LinkNeighborLoader read them, in steps that all ranks take together"
            )
        number = self._groups[attr.group_name]
        return ops.gather_rows(self._rows[number][self._names[number].index(attr.attr_name)], found.own_rows)

    def _whole(self, key: tuple[Any, str]) -> Tensor:
        """An attribute that is stored whole with the graph, in the order of stored nodes or of the user's edges."""
        if self.ranks.parts == 1 and not isinstance(key[0], tuple):
            return self._rows[self._groups[key[0]]][self._names[self._groups[key[0]]].index(key[1])]
        if key not in self.parts.graph_attrs:
            raise RuntimeError(
                f"{key}: expected an attribute of the whole graph, found one in parts; what samplers read of all nodes "
                f"or edges (times, weights) is to be named when the parts are written: graph_attrs=[{key[1]!r}]"
            )
        value = self.parts.graph_attrs[key]
        return value[self.parts.stored_edges(self._edge_type(key[0]))] if isinstance(key[0], tuple) else value

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        meta = self._attrs.get((attr.group_name, attr.attr_name))
        return None if meta is None else (meta.num_rows, *meta.shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """One attribute per tensor, its index unset; without those of a homogeneous graph's edges, as in PyG."""
        return [attr for attr in self.all_attrs() if attr.group_name != (None, None)]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise NotImplementedError("rows of a partitioned graph do not change; write the parts again")

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise NotImplementedError("rows of a partitioned graph do not change; write the parts again")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(part {self.part.number} of {self.ranks.parts}, {len(self._attrs)} attributes)"
