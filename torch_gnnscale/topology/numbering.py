"""The contract of a renumbering: the user's node ids, the ids under which stores keep the nodes, and back."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch_geometric.typing import NodeType


@runtime_checkable
class Numbering(Protocol):
    """Maps the user's node ids to stored ids and back, for each node type (None in a homogeneous graph).

    A pair of stores whose ids differ from the user's has one as ``order``. Loaders accept seeds as user ids and return
    ``n_id`` as user ids; samplers and row stores see stored ids only.
    """

    def to_stored(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """User ids to stored ids: int64, the shape of ``ids``. IndexError for ids that are no nodes."""
        ...

    def to_user(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor | None:
        """Stored ids to user ids: int64, on the device of ``ids``. None if the feature store has the user ids as an
        attribute ``n_id``, which is then read like any other row, and no process keeps a table of all nodes."""
        ...

    def to(self, device: torch.device) -> Numbering:
        """The same numbering, for ids on ``device``."""
        ...

    def equals(self, other: Any) -> bool:
        """Whether ``other`` maps every node to the same stored id."""
        ...
