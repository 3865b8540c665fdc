"""The rows of one part as a store: read without other ranks, or in steps that all ranks take together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch_geometric.data import TensorAttr
from torch_geometric.typing import NodeType
from typing_extensions import override

from .. import ops
from ..comm.liveness import CLOSED
from ..comm.mesh import Ranks, RowGroup
from ..comm.steps import Steps
from ..feature import TieredFeatureStore
from ..feature.contract import BoundedAttr, CollectiveRowStore
from ..feature.feature_store import row_ids
from ..ops.arguments import check_ids
from ..partition import RowsMeta, StoredPart, StoredParts
from ..partition.all_parts import WrittenRows
from ..partition.book import edge_type_of
from .buffer import Asked, Kept, LoaderBuffers, PrefetchBuffer, capacities, checked_halo
from .own_rows import MappedRows, OwnRows, TierRows
from .partitioned_graph import numbering_of
from .row_exchange import (
    NOWHERE,
    Arrived,
    Came,
    Coming,
    Located,
    RowKind,
    Travelled,
    answered,
    counts_by_part,
    exchange_rows,
    locate,
)

N_ID = "n_id"
"""The attribute of each node type that holds the user's ids."""


class PartRows(WrittenRows):
    """A FeatureStore of one part: rows of its nodes, and of the edges that lead to them.

    ``get_tensor`` returns rows of this part, by stored ids of nodes and the user's ids of edges. If there is one part,
    it has all rows, and the threads of a loader read it.

    Args:
        parts: the opened directory of parts.
        part: the opened part.
        ranks: the ranks of the run.
        refuse: see :meth:`RowStore.refuse`.
        open_steps: makes the steps of a loader; for split batches it is given what ranks must have alike, by name, and
            ``by_column=True``.
        tiers: has the rows of attributes of the part's nodes, by row number in the part; all others are read where they
            are mapped. None: no tiers.
    """

    ranks: Ranks
    tiers: TieredFeatureStore | None
    """The rows of the part's own nodes, if they are in tiers."""

    def __init__(
        self, parts: StoredParts, part: StoredPart, ranks: Ranks, refuse: Callable[[str], None],
        open_steps: Callable[..., Steps], tiers: TieredFeatureStore | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        state = self.__dict__
        state["_refuse"], state["_open_steps"] = refuse, open_steps
        state["parts"], state["part"], state["ranks"], state["closed"] = parts, part, ranks, False
        state["tiers"] = tiers
        state["order"], state["composites"] = numbering_of(parts), parts.composites
        attrs = {(meta.group_name, meta.attr_name): meta for meta in parts.attrs}
        rows = dict(part.rows)
        if self.order is not None:
            for node_type, user_ids in part.user_ids.items():
                count = parts.book.num_nodes(node_type)
                attrs[node_type, N_ID] = RowsMeta(node_type, N_ID, torch.int64, (), count)
                rows[node_type, N_ID] = user_ids
        state["_attrs"] = attrs
        groups = list(dict.fromkeys(group for group, _ in attrs))
        state["_groups"] = {group: number for number, group in enumerate(groups)}
        state["_names"] = [[name for of, name in attrs if of == group] for group in groups]
        state["_kinds"] = [
            [self.kind((group, name)) for name in names] for group, names in zip(groups, self._names, strict=True)
        ]
        own: dict[Any, OwnRows] = {key: MappedRows(tensor) for key, tensor in rows.items()}
        own |= {} if tiers is None else {key: TierRows(of_tiers) for key, of_tiers in tiers.rows_by_attribute().items()}
        state["_own"] = [[own[group, name] for name in names] for group, names in zip(groups, self._names, strict=True)]

    def close(self) -> None:
        """Ends reading: later reads raise. Rows that were read before stay valid."""
        self.__dict__["closed"] = True

    # What loaders ask ################################################################################################

    def open_split_steps(self, identity: dict[str, Any]) -> Steps:
        """The steps of a loader whose batches the ranks of a column make together.

        Args:
            identity: what all ranks must have alike besides the parts, by name.
        """
        return self._open_steps(identity, by_column=True)

    def open_inference_steps(self, identity: dict[str, Any]) -> Steps:
        """The steps of an inference, in which each rank has its share of its part.

        Args:
            identity: what all ranks must have alike besides the parts, by name.
        """
        return self._open_steps(identity, grid=self.ranks.grid.shares())

    @override
    def refuse(self, why: str) -> None:
        if not self.closed:
            self._refuse(why)

    def check_splittable(self) -> None:
        """Raises NotImplementedError if the part was opened with an option that split batches lack, naming it."""

    def all_attrs(self) -> list[TensorAttr]:
        """See :meth:`RowStore.all_attrs`. With several parts, the user's ids of nodes are the attribute ``n_id``."""
        return [TensorAttr(group, name) for group, name in self._attrs]

    def num_rows(self, attr: TensorAttr) -> int:
        """See :meth:`RowStore.num_rows`: the number in all parts."""
        return self._attrs[attr.group_name, attr.attr_name].num_rows

    def check_graph(self, *given: Any) -> None:
        """See :meth:`RowStore.check_graph`. Raises ValueError if the part was closed."""
        if self.closed:
            raise ValueError("part: expected an open one, found one that is closed")
        super().check_graph(*given)

    # Where rows are ##################################################################################################

    def own_rows(self, key: tuple[Any, str]) -> OwnRows:
        """This part's rows of an attribute, given by group and name."""
        number = self._groups[key[0]]
        return self._own[number][self._names[number].index(key[1])]

    def kind(self, key: tuple[Any, str]) -> RowKind:
        """What the rows of an attribute are, given by group and name."""
        return RowKind(self._attrs[key].dtype, self._attrs[key].shape)

    def bounds(self, group: Any) -> Tensor:
        """Part i has the rows ``bounds[i] .. bounds[i + 1] - 1`` of a group's attributes: int64, shape [K + 1]."""
        book = self.parts.book
        return book.edge_bounds[edge_type_of(group)] if isinstance(group, tuple) else book.bounds[group]

    def places(self, attr: TensorAttr) -> Tensor:
        """The stored ids of the nodes, or the stored positions of the edges, that ``attr.index`` asks for. Raises
        IndexError for an id without a row."""
        group, count = attr.group_name, self.num_rows(attr)
        ids = row_ids(attr.index, count)
        if not BoundedAttr.covers(attr, count):
            check_ids("index", ids, count, "rows")
        ids = ids.to(torch.int64)
        return self.parts.to_positions(ids, edge_type_of(group)) if isinstance(group, tuple) else ids

    # PyG's abstract methods ##########################################################################################

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        key = (attr.group_name, attr.attr_name)
        if key not in self._attrs:
            return None
        if self.closed:
            raise RuntimeError(CLOSED)
        if attr.index is None:
            return self._whole(key)
        ids, rows = self.places(attr), self.own_rows(key)
        if self.ranks.parts > 1:
            ids = ids - self.bounds(key[0])[self.part.number]
            if ops.first_outside(ids, len(rows)) >= 0:
                raise RuntimeError(
                    f"{key}: expected ids of part {self.part.number}, found some of other ranks' parts; torch_gnnscale."
                    f"NeighborLoader and LinkNeighborLoader read them, in steps that all ranks take together"
                )
        return rows.gather(ids)

    def _whole(self, key: tuple[Any, str]) -> Tensor:
        """All rows of an attribute of the whole graph: by the stored ids of nodes, or by the user's ids of edges."""
        if self.ranks.parts == 1 and not isinstance(key[0], tuple):
            return self.part.rows[key]
        if key not in self.parts.graph_attrs:
            raise RuntimeError(
                f"{key}: expected an attribute of the whole graph, found one in parts; what samplers read of all nodes "
                f"or edges (times, weights) is to be named when the parts are written: graph_attrs=[{key[1]!r}]"
            )
        value = self.parts.graph_attrs[key]
        if not isinstance(key[0], tuple):
            return value
        return value[self.parts.to_positions(torch.arange(len(value)), edge_type_of(key[0]))]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(part {self.part.number} of {self.ranks.parts}, {len(self._attrs)} attributes)"


# Rows of other parts ##################################################################################################


@dataclass
class RowNeeds:
    """The rows that one batch reads."""

    attrs: list[TensorAttr]
    located: list[Located]
    """By type."""
    asked: Asked | None = None
    """What is asked of other parts, and what buffers have, once the step is taken."""
    remote: Sequence[Sequence[Came]] = ()
    """The rows of ``located[t].remote``, by type and attribute, once they have come."""
    coming: Coming | None = None
    """What the thread that iterates exchanges, if it does."""
    counts: Tensor | None = None
    """How many rows are asked of each part, by type: int64, shape [parts, types]."""


class PartitionedFeatureStore(PartRows, CollectiveRowStore):
    """A FeatureStore of which this rank holds one part.

    The loaders of this package read all rows, in steps that all ranks take together.

    Args:
        parts, part, ranks, tiers, refuse, open_steps: of :class:`PartRows`.
        kept: which rows of other parts each loader keeps.
        row_group: in which the thread that iterates exchanges rows; None: the thread of the steps does.
    """

    def __init__(
        self, parts: StoredParts, part: StoredPart, ranks: Ranks, tiers: TieredFeatureStore | None,
        refuse: Callable[[str], None], open_steps: Callable[..., Steps], kept: Kept, row_group: RowGroup | None,
    ) -> None:  # fmt: skip
        super().__init__(parts, part, ranks, refuse, open_steps, tiers)
        state = self.__dict__
        state["rows_here"], state["_row_group"] = row_group is not None, row_group
        device = torch.device("cpu") if row_group is None else row_group.device
        state["_device"], state["_stream"] = device, None if device.type == "cpu" else torch.cuda.Stream(device)
        state["_kept"], state["buffer"] = kept, kept.budget
        state["_buffers"] = WeakKeyDictionary()  # by the steps of a loader

    # What loaders ask ################################################################################################

    def open_steps(self) -> Steps:
        """See :meth:`CollectiveRowStore.open_steps`. Each loader has prefetch buffers of its own."""
        steps = self._open_steps()
        self._buffers[steps] = LoaderBuffers(self._make_buffers())
        return steps

    def of_share(self, parts: StoredParts, part: StoredPart) -> PartitionedFeatureStore:
        """The rows of this rank's share of the part, which are read where they are mapped; ``parts`` and ``part`` are
        those of :func:`torch_gnnscale.infer.part_graph.share`."""
        return PartitionedFeatureStore(
            parts, part, self.ranks.alone, None, self._refuse, self._open_steps, Kept(), self._row_group
        )

    @override
    def check_splittable(self) -> None:
        if self.rows_here:
            raise NotImplementedError("open_part(transport='nccl') with split= is not implemented; use 'auto'")
        if self.buffer is not None:
            raise NotImplementedError(f"open_part(buffer={self.buffer!r}) with split= is not implemented")

    def _make_buffers(self) -> list[PrefetchBuffer | None]:
        """By type; None for edges, and where nothing is kept."""
        if self.buffer is None:
            return [None] * len(self._groups)
        node_types = [group for group in self._groups if not isinstance(group, tuple)]
        book, halo = self.parts.book, self.part.halo
        sizes = {t: sum(kind.num_bytes for kind in self._kinds[self._groups[t]]) for t in node_types}
        remote = {t: book.num_nodes(t) - len(book.nodes(self.part.number, t)) for t in node_types}
        rows = capacities(self.buffer, {t: len(halo[t].ids) for t in node_types}, remote, sizes)
        made: list[PrefetchBuffer | None] = [None] * len(self._groups)
        for node_type, count in rows.items():
            number = self._groups[node_type]
            if count:
                policy = self._kept.make(count, *checked_halo(halo[node_type], book, self.part.number, node_type))
                attrs = dict(enumerate(map(tuple, self._kinds[number])))
                made[number] = PrefetchBuffer(policy, attrs, self._device)
        return made

    @override
    def beyond_part(self, ids: Tensor, node_type: NodeType | None) -> str | None:
        found = self.parts.book.part_of(ids, node_type)
        others = (found != self.part.number).nonzero()
        if not len(others):
            return None
        return (
            f"inputs: expected those of part {self.part.number} with seed_order='owned', found position "
            f"{int(others[0])} in part {int(found[others[0]])}; use part.input_nodes(...) or seed_order='global'"
        )

    @override
    def needs(self, attrs: list[TensorAttr]) -> RowNeeds:
        located = [NOWHERE] * len(self._groups)
        for attr in attrs:
            if located[number := self._groups[attr.group_name]] is NOWHERE:
                located[number] = locate(self.places(attr), self.bounds(attr.group_name), self.part.number)
        return RowNeeds(attrs, located)

    def looks_ahead(self, steps: Steps) -> int | Literal["epoch"]:
        """See :meth:`CollectiveReads.looks_ahead`: as many as the policy of the prefetch buffer looks ahead."""
        return self._buffers[steps].window

    @override
    def announce(self, needs: RowNeeds, steps: Steps) -> None:
        self._buffers[steps].announce([found.remote for found in needs.located])

    @override
    def withdraw(self, steps: Steps) -> None:
        self._buffers[steps].withdraw()

    @property
    def counted(self) -> int:
        """See :meth:`CollectiveReads.counted`: one for each type that has rows."""
        return len(self._groups)

    @override
    def counts(self, needs: RowNeeds, steps: Steps) -> Tensor:
        needs.asked = self._buffers[steps].ask([found.remote for found in needs.located])
        needs.counts = torch.empty(self.ranks.parts, len(self._groups), dtype=torch.int64)
        for t, group in enumerate(self._groups):
            needs.counts[:, t] = counts_by_part(needs.asked.ids[t], self.bounds(group))
        return needs.counts

    @override
    def read(self, needs: RowNeeds, asked: Tensor, steps: Steps) -> None:
        assert needs.asked is not None
        assert needs.counts is not None
        with steps.rows.awaited():
            starts = (self.bounds(group)[:-1] for group in self._groups)
            each = zip(needs.asked.ids, starts, needs.counts.unbind(1), strict=True)
            wanted = [ids - start.repeat_interleave(count) for ids, start, count in each]
        buffers = self._buffers[steps]
        if not self.rows_here:
            needs.remote = exchange_rows(
                steps.transport, asked, wanted, needs.counts, self._kinds, self._own, buffers.update
            )
            return
        error = None
        try:
            places = [(self._own[t][name], needs.located[t].place) for t, name in self._numbers(needs)]
            of_batch = [(rows, place[place >= 0]) for rows, place in places]
            needs.coming = answered(
                steps.rows, asked, wanted, needs.counts, self._kinds, self._own, of_batch, self._device, self._stream
            )
            buffers.update()
        except Exception as failed:
            error = failed
        steps.agree(error, "rows")  # from here on every rank exchanges them

    @override
    def taken(self, needs: RowNeeds, steps: Steps) -> None:
        assert needs.asked is not None
        if not self.rows_here:
            needs.remote = self._buffers[steps].take(needs.asked, needs.remote)
        self._buffers[steps].entered(needs.asked)

    @override
    def arrive(self, needs: RowNeeds, steps: Steps) -> None:
        assert needs.asked is not None
        assert needs.coming is not None
        assert steps.rows_here is not None
        buffers, coming, exchange = self._buffers[steps], needs.coming, steps.rows_here
        was_lost, buffers.is_lost = buffers.is_lost, True  # until the rows that entered the buffer are there
        try:
            came = steps.named(lambda: coming.exchanged(exchange))
        except BaseException as error:
            steps.lose(f"{type(error).__name__}: {error}")
            raise
        if was_lost:
            raise RuntimeError("the prefetch buffer has lost rows by an error of an earlier step")
        needs.remote = buffers.take(needs.asked, came)
        buffers.is_lost = False

    @override
    def rows(self, needs: RowNeeds) -> list[Tensor]:
        found = []
        for k, (t, name) in enumerate(self._numbers(needs)):
            place, came = needs.located[t].place, needs.remote[t][name]
            if isinstance(came, Travelled):
                found.append(self._own[t][name].join(place, *came))
            else:
                assert isinstance(came, Arrived)
                assert needs.coming is not None
                found.append(came.joined(needs.coming.own[k], place))
        return found

    def _numbers(self, needs: RowNeeds) -> list[tuple[int, int]]:
        """Of each attribute that a batch needs, the number of its type, and its own among those of the type."""
        numbers = [self._groups[attr.group_name] for attr in needs.attrs]
        return [(t, self._names[t].index(attr.attr_name)) for t, attr in zip(numbers, needs.attrs, strict=True)]
