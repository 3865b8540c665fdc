"""Which products of rows may be computed in other ways than by calling a module."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn

from .aggregate import Adjacency

WIDE = (torch.float32, torch.float64)
"""Dtypes whose sums need no other dtype."""
OF_EDGE = 4
"""How many multiply-adds of a product of matrices take the time of one of an edge and a channel. The ways that
constants from 1 to 6 choose take 1.01 times the faster ways' time in the mean, and larger constants choose slower ones
(benchmarks/bench_hgt.py at commit 7036b28)."""
_AROUND = tuple(f"_{when}_hooks" for when in ("forward", "forward_pre", "backward", "backward_pre"))
_OF_ALL_MODULES = [getattr(nn.modules.module, f"_global{hooks}") for hooks in _AROUND]


def is_wide(x: Tensor) -> bool:
    """Whether products of x are computed and rounded in its own dtype, float32 or float64: PyG rounds results of 16
    bits after each step."""
    return x.dtype in WIDE and not torch.is_autocast_enabled(x.device.type)


def is_plain(linear: Any, kind: type = pyg_nn.Linear) -> bool:
    """Whether calling the module does no more than PyG's ``Linear``, or another class's ``forward``."""
    own = vars(linear)
    return type(linear) is kind and "forward" not in own and not any(map(own.get, _AROUND))


def is_called_plainly(module: nn.Module) -> bool:
    """Whether calling the module does no more than its ``forward``: it has no hooks."""
    own = vars(module)
    return not any(map(own.get, _AROUND)) and not any(_OF_ALL_MODULES) and own.get("_compiled_call_impl") is None


def products_of(layer: pyg_nn.MessagePassing) -> tuple[pyg_nn.Linear, pyg_nn.Linear | None] | None:
    """What a layer multiplies the aggregated rows by, and the destinations' own rows; None unless it returns the sum of
    these two plain products alone."""
    own: Any = vars(layer)["_modules"]
    if type(layer) is pyg_nn.SAGEConv and not layer.normalize and not layer.project:
        of_neighbors, of_root = own["lin_l"], own["lin_r"] if layer.root_weight else None
    elif type(layer) is pyg_nn.GraphConv:
        of_neighbors, of_root = own["lin_rel"], own["lin_root"]
    else:
        return None
    if not is_plain(of_neighbors) or (of_root is not None and not (is_plain(of_root) and of_root.bias is None)):
        return None
    return of_neighbors, of_root


def multiplies_destinations(edges: Adjacency, features: int, channels: int, heads: int) -> bool:
    """Whether matrices multiply rows of destinations, not those of sources; decided by the multiply-adds
    of both ways."""
    num_edges = edges.num_edges
    of_sources = min(edges.num_src, num_edges) * features * channels + OF_EDGE * num_edges * channels
    return edges.num_dst * features * channels + OF_EDGE * num_edges * heads * features <= of_sources
