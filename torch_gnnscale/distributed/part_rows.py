"""The rows of one part, read without other ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import TensorAttr

from .. import ops
from ..comm.liveness import CLOSED
from ..comm.mesh import Ranks
from ..comm.steps import Steps
from ..feature import TieredFeatureStore
from ..feature.contract import BoundedAttr
from ..feature.feature_store import row_ids
from ..ops.arguments import check_ids
from ..partition import RowsMeta, StoredPart, StoredParts
from ..partition.part_numbering import numbering_of
from ..partition.written_rows import WrittenRows
from .own_rows import MappedRows, OwnRows, TierRows
from .row_exchange import RowKind

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
        """The steps of an inference over the parts.

        Args:
            identity: what all ranks must have alike besides the parts, by name.
        """
        return self._open_steps(identity)

    def refuse(self, why: str) -> None:
        """See :meth:`RowStore.refuse`."""
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
        if not isinstance(group, tuple):
            return book.bounds[group]
        return book.edge_bounds[self._edge_type(group)]

    def places(self, attr: TensorAttr) -> Tensor:
        """The stored ids of the nodes, or the stored positions of the edges, that ``attr.index`` asks for. Raises
        IndexError for an id without a row."""
        group, count = attr.group_name, self.num_rows(attr)
        ids = row_ids(attr.index, count)
        if not BoundedAttr.covers(attr, count):
            check_ids("index", ids, count, "rows")
        ids = ids.to(torch.int64)
        return self.parts.to_positions(ids, self._edge_type(group)) if isinstance(group, tuple) else ids

    @staticmethod
    def _edge_type(group: tuple) -> Any:
        return None if group[0] is None else group

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
        return value[self.parts.to_positions(torch.arange(len(value)), self._edge_type(key[0]))]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(part {self.part.number} of {self.ranks.parts}, {len(self._attrs)} attributes)"
