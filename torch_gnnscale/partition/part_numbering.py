"""The user's ids and the ids under which a partitioned graph is stored."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.typing import NodeType

from . import StoredParts


def numbering_of(parts: StoredParts) -> PartNumbering | None:
    """The numbering of the stores of a part; None with a single part, whose stored ids are the user's."""
    return None if parts.book.num_parts == 1 else PartNumbering(parts)


class PartNumbering:
    """The numbering of a partitioned graph, a :class:`torch_gnnscale.topology.numbering.Numbering`.

    The user's ids become stored ones by a table in a mapped file; the way back, ``n_id``, comes with the rows.
    """

    def __init__(self, parts: StoredParts) -> None:
        self._parts = parts

    def to_stored(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """See :meth:`Numbering.to_stored`."""
        return self._parts.to_stored(ids.to(torch.int64), node_type)

    def to_user(self, ids: Tensor, node_type: NodeType | None = None) -> None:
        """See :meth:`Numbering.to_user`."""

    def to(self, device: torch.device) -> PartNumbering:
        """See :meth:`Numbering.to`; seeds are mapped on the CPU."""
        return self

    def equals(self, other: Any) -> bool:
        """See :meth:`Numbering.equals`."""
        return isinstance(other, PartNumbering) and other._parts.fingerprint == self._parts.fingerprint
