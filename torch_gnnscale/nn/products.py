"""Which products of rows may be computed in other ways than by calling a module."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor

WIDE = (torch.float32, torch.float64)
"""Dtypes whose sums need no other dtype."""
_AROUND = tuple(f"_{when}_hooks" for when in ("forward", "forward_pre", "backward", "backward_pre"))


def is_wide(x: Tensor) -> bool:
    """Whether products of x are computed and rounded in its own dtype, float32 or float64: PyG rounds results of 16
    bits after each step."""
    return x.dtype in WIDE and not torch.is_autocast_enabled(x.device.type)


def is_plain(linear: Any) -> bool:
    """Whether calling the module does no more than PyG's ``Linear``."""
    own = vars(linear)
    return type(linear) is pyg_nn.Linear and "forward" not in own and not any(map(own.get, _AROUND))
