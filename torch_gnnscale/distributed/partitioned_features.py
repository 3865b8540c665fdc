"""The rows of one part as a store: read without other ranks, or in steps that all ranks take together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData, TensorAttr
from torch_geometric.typing import NodeType
from typing_extensions import override

from .. import ops
from ..comm.exchange import CLOSED
from ..comm.mesh import Ranks, RowGroup
from ..comm.steps import Steps
from ..feature import TieredFeatureStore
from ..feature.contract import BoundedAttr, CollectiveRowStore
from ..feature.feature_store import row_ids
from ..loader.fields import EdgeLayouts
from ..loader.row_source import Bounds, CollectiveSource, StoreRows
from ..ops.arguments import check_ids
from ..partition import RowsMeta, StoredPart, StoredParts
from ..partition.all_parts import WrittenRows
from ..partition.directory import edge_type_of
from ..sampler.minibatch import MiniBatch, sampled_ids
from .buffer import Asked, Kept, LoaderBuffers, PrefetchBuffer, capacities, check_halo
from .own_rows import MappedRows, OwnRows, TierRows
from .partitioned_graph import numbering_of
from .row_exchange import NOTHING, Coming, Located, PartTables, RowKind, Wanted, answered

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
    groups: list[Any]
    """The types of nodes and edges that have attributes; ``tables`` has their rows."""
    numbers: dict[tuple[Any, str], tuple[int, int]]
    """Of each attribute, by group and name, the number of its group, and its own among those of the group."""
    tables: PartTables

    def __init__(
        self, parts: StoredParts, part: StoredPart, ranks: Ranks, refuse: Callable[[str], None],
        open_steps: Callable[..., Steps], tiers: TieredFeatureStore | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        state = self.__dict__
        state["_refuse"], state["open_steps"] = refuse, open_steps
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
        state["_attrs"], state["_counts"] = attrs, {group: meta.num_rows for (group, _), meta in attrs.items()}
        groups = list(dict.fromkeys(group for group, _ in attrs))
        names = [[name for of, name in attrs if of == group] for group in groups]
        state["numbers"] = {(g, name): (t := groups.index(g), names[t].index(name)) for g, name in attrs}
        kinds = [[self.kind((group, name)) for name in of] for group, of in zip(groups, names, strict=True)]
        own: dict[Any, OwnRows] = {key: MappedRows(tensor) for key, tensor in rows.items()}
        own |= {} if tiers is None else {key: TierRows(of_tiers) for key, of_tiers in tiers.rows_by_attribute().items()}
        by_type = [[own[group, name] for name in of] for group, of in zip(groups, names, strict=True)]
        state["groups"] = groups
        state["tables"] = PartTables(part.number, list(map(self.bounds, groups)), kinds, by_type)

    def close(self) -> None:
        """Ends reading: later reads raise. Rows that were read before stay valid."""
        self.__dict__["closed"] = True

    # What loaders ask ################################################################################################

    def open_split_steps(self, identity: dict[str, Any]) -> Steps:
        """The steps of a loader whose batches the ranks of a column make together.

        Args:
            identity: what all ranks must have alike besides the parts, by name.
        """
        return self.open_steps(identity, by_column=True)

    def open_inference_steps(self, identity: dict[str, Any]) -> Steps:
        """The steps of an inference, in which each rank has its share of its part.

        Args:
            identity: what all ranks must have alike besides the parts, by name.
        """
        return self.open_steps(identity, grid=self.ranks.grid.shares())

    @override
    def refuse(self, why: str) -> None:
        if not self.closed:
            self._refuse(why)

    def check_splittable(self) -> None:
        """Raises NotImplementedError if the part was opened with an option that split batches lack, naming it."""

    def all_attrs(self) -> list[TensorAttr]:
        """All attributes of nodes and edges. With several parts, the user's ids of nodes are the attribute ``n_id``."""
        return [TensorAttr(group, name) for group, name in self._attrs]

    def num_rows(self, attr: TensorAttr) -> int:
        """The number of rows of an attribute in all parts."""
        return self._attrs[attr.group_name, attr.attr_name].num_rows

    def check_graph(self, *given: Any) -> None:
        """Raises ValueError if the rows are not those of the graph, or the part was closed."""
        if self.closed:
            raise ValueError("part: expected an open one, found one that is closed")
        super().check_graph(*given)

    # Where rows are ##################################################################################################

    def own_rows(self, key: tuple[Any, str]) -> OwnRows:
        """This part's rows of an attribute, given by group and name."""
        t, a = self.numbers[key]
        return self.tables.own[t][a]

    def kind(self, key: tuple[Any, str]) -> RowKind:
        """What the rows of an attribute are, given by group and name."""
        return RowKind(self._attrs[key].dtype, self._attrs[key].shape)

    def bounds(self, group: Any) -> Tensor:
        """Part i has the rows ``bounds[i] .. bounds[i + 1] - 1`` of a group's attributes: int64, shape [K + 1]."""
        book = self.parts.book
        return book.edge_bounds[edge_type_of(group)] if isinstance(group, tuple) else book.bounds[group]

    def places(self, group: Any, index: Any, below: int | None = None) -> Tensor:
        """The stored ids of the nodes, or the stored positions of the edges, that an index of rows of a group asks for.
        Raises IndexError for an id without a row. ``below``: the index are ids that are known to be in [0, below)."""
        ids, count = index, self._counts[group]
        if below is None or below > count:
            check_ids("index", ids := row_ids(index, count), count, "rows")
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
        known = attr.below if isinstance(attr, BoundedAttr) and attr.index is attr.bounded else None
        ids, rows = self.places(key[0], attr.index, known), self.own_rows(key)
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
        state["device"], state["stream"] = device, None if device.type == "cpu" else torch.cuda.Stream(device)
        state["_kept"], state["buffer"] = kept, kept.budget
        for node_type, halo in ({} if kept.budget is None else part.halo).items():
            check_halo(halo, parts.book, part.number, node_type)

    @override
    def row_source(self, graph: Any, custom_cls: Any) -> PartitionedRows:
        return PartitionedRows(self, graph, custom_cls)

    def of_share(self, parts: StoredParts, part: StoredPart) -> PartitionedFeatureStore:
        """The rows of this rank's share of the part, which are read where they are mapped; ``parts`` and ``part`` are
        those of :func:`torch_gnnscale.infer.part_graph.share`."""
        return PartitionedFeatureStore(
            parts, part, self.ranks.alone, None, self._refuse, self.open_steps, Kept(), self._row_group
        )

    @override
    def check_splittable(self) -> None:
        if self.rows_here:
            raise NotImplementedError("open_part(transport='nccl') with split= is not implemented; use 'auto'")
        if self.buffer is not None:
            raise NotImplementedError(f"open_part(buffer={self.buffer!r}) with split= is not implemented")

    def new_buffers(self) -> list[PrefetchBuffer | None]:
        """The prefetch buffers of a loader, by type; None for edges, and where nothing is kept."""
        node_types = [group for group in self.groups if not isinstance(group, tuple)]
        book, halo, tables = self.parts.book, self.part.halo, self.tables
        sizes = {group: sum(of) for group, of in zip(self.groups, tables.sizes, strict=True)}
        remote = {t: book.num_nodes(t) - len(book.nodes(self.part.number, t)) for t in node_types}
        assert self.buffer is not None
        rows = capacities(self.buffer, {t: len(halo[t].ids) for t in node_types}, remote, sizes)
        made: list[PrefetchBuffer | None] = []
        for group, kinds in zip(self.groups, tables.kinds, strict=True):
            made.append(None)
            if count := rows.get(group):
                policy = self._kept.make(count, *halo[group])
                made[-1] = PrefetchBuffer(policy, dict(enumerate(kinds)), self.device)
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


@dataclass
class RowNeeds:
    """The rows that one batch reads."""

    attrs: list[TensorAttr]
    which: list[tuple[int, int]]
    """Of each attribute, the number of its type, and its own among those of the type."""
    located: list[Located]
    """By type."""
    wanted: Wanted = NOTHING
    """What is asked of other parts in the step."""
    asked: Asked = field(init=False)
    """With buffers, what these are asked for."""
    remote: Any = ()
    """The rows of ``located[t].remote``, by type and attribute, once they have come."""
    coming: Coming = field(init=False)
    """What the thread that iterates exchanges, if it does."""


class PartitionedRows(StoreRows, CollectiveSource):
    """The rows of one loader's batches: those of this part, and those that other parts have."""

    def __init__(self, features: PartitionedFeatureStore, graph: Any, custom_cls: Any) -> None:
        super().__init__(features, graph, custom_cls)
        self._tables, self.rows_here, self.counted = features.tables, features.rows_here, len(features.groups)
        self.buffers: LoaderBuffers | None = None
        """The rows of other parts that are kept."""

    @override
    def join(self, steps: Steps) -> None:
        super().join(steps)
        if self.features.buffer is not None:
            self.buffers = LoaderBuffers(self.features.new_buffers())
            self.window = self.buffers.window

    @override
    def versions(self) -> Any:
        return None  # no row changes

    @override
    def needs(self, sampled: MiniBatch, bounds: Bounds, versions: Any) -> RowNeeds:
        features, hetero = self.features, sampled.types.hetero
        each = sampled_ids(sampled, features.groups)
        places: list[Tensor | None] = []
        for group, ids in zip(features.groups, each, strict=True):
            below = None if isinstance(group, tuple) else bounds.of_nodes.get(group if hetero else None)
            places.append(None if ids is None else features.places(group, ids.cpu(), below))
        attrs, which = [], []
        for (group, name), (t, a) in features.numbers.items():
            if (ids := each[t]) is not None:
                attrs.append(TensorAttr(group, name, ids))
                which.append((t, a))
        return RowNeeds(attrs, which, self._tables.locate(places))

    @override
    def announce(self, needs: RowNeeds) -> None:
        if self.buffers is not None:
            self.buffers.announce([found.remote for found in needs.located])

    @override
    def withdraw(self) -> None:
        if self.buffers is not None:
            self.buffers.withdraw()

    @override
    def counts(self, needs: RowNeeds) -> Tensor:
        ids = [found.remote for found in needs.located]
        if self.buffers is not None:
            needs.asked = self.buffers.ask(ids)
            ids = needs.asked.ids
        needs.wanted = Wanted.of(ids, self._tables.bounds)
        return needs.wanted.counts

    @override
    def read(self, needs: RowNeeds, asked: Tensor) -> Callable[[], None] | None:
        tables, steps, update = self._tables, self.steps, None if self.buffers is None else self.buffers.update
        left = None if self.buffers is None else partial(self._keep, needs)
        if not self.rows_here:
            needs.remote = tables.exchange(steps.transport, asked, needs.wanted, update)
            return left
        error, features = None, self.features
        try:
            places = [(tables.own[t][a], needs.located[t].place) for t, a in needs.which]
            of_batch = [(rows, place[place >= 0]) for rows, place in places]
            of_step = tables, steps.rows, asked, needs.wanted
            needs.coming = answered(*of_step, of_batch, features.device, features.stream)
            if update is not None:
                update()
        except Exception as failed:
            error = failed
        steps.agree(error, "rows")  # from here on every rank exchanges them
        return left

    def _keep(self, needs: RowNeeds) -> None:
        """After a step: takes the batch's rows that the buffers hold, and puts in the new rows that they keep."""
        assert self.buffers is not None
        if not self.rows_here:
            needs.remote = self.buffers.take(needs.asked, needs.remote)
        self.buffers.entered(needs.asked)

    @override
    def arrive(self, needs: RowNeeds) -> None:
        buffers, steps, exchange, was_lost = self.buffers, self.steps, self.steps.rows_here, False
        assert exchange is not None
        if buffers is not None:
            was_lost, buffers.is_lost = buffers.is_lost, True  # until the rows that entered the buffer are there
        try:
            needs.remote = steps.named(lambda: needs.coming.exchanged(exchange))
        except BaseException as error:
            steps.lose(f"{type(error).__name__}: {error}")
            raise
        if was_lost:
            raise RuntimeError("the prefetch buffer has lost rows by an error of an earlier step")
        if buffers is not None:
            needs.remote = buffers.take(needs.asked, needs.remote)
            buffers.is_lost = False

    @override
    def batch(self, sampled: MiniBatch, rows: Any, layouts: EdgeLayouts | None) -> Data | HeteroData:
        needs: RowNeeds = rows  # not what :meth:`fetch` returns
        if not self.rows_here:
            found = self._tables.joined(needs.which, needs.located, needs.remote)
        else:
            each = zip(needs.which, needs.coming.own, strict=True)
            found = [needs.remote[t][a].joined(own, needs.located[t].place) for (t, a), own in each]
        return super().batch(sampled, list(zip(needs.attrs, found, strict=True)), layouts)
