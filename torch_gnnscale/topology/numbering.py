"""The contract between the user's ids of nodes and those of the stores."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch_geometric.typing import NodeType


@runtime_checkable
class Numbering(Protocol):
    """How stores number the nodes of each type (None in a homogeneous graph), if not as the user does.

    A pair of stores has it as ``order``. Loaders take seeds and give ``n_id`` by the user's ids; samplers and rows know
    the stores' ids alone.
    """

    def to_stored(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """The stores' ids of the user's: int64, the shape of ``ids``; IndexError for ids that are no nodes."""
        ...

    def to_user(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor | None:
        """The user's ids of the stores': int64, on the device of ``ids``. None where the features have them as rows of
        an attribute ``n_id``, so that nobody keeps a table of all nodes."""
        ...

    def to(self, device: torch.device) -> Numbering:
        """The same, for ids on a device."""
        ...

    def equals(self, other: Any) -> bool:
        """Whether another store numbers the nodes alike."""
        ...
