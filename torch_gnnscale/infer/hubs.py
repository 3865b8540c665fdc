"""Hubs: a node's edges, aggregated piece by piece."""

from __future__ import annotations

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor

from ..nn.pyg_layers import BY_EDGE, has_own_propagate, is_basis

_REDUCTIONS = ("sum", "add", "mean", "max", "min")
_STEPS = ("propagate", "edge_update", "message", "aggregate")
"""Of MessagePassing, those whose hooks would see a piece as if it were all edges."""


def refusal(layer: pyg_nn.MessagePassing) -> str | None:
    """Why a layer cannot aggregate pieces of a node's edges one after the other; None if it can."""
    kind, base = type(layer), pyg_nn.MessagePassing
    inherited = kind.aggregate is base.aggregate and kind.update is base.update and not has_own_propagate(kind)
    if (kind.forward, kind.message) not in BY_EDGE or not inherited:
        return f"{kind.__name__}, which needs all of a node's edges at once"
    for step in () if is_basis(layer) else _STEPS:
        if getattr(layer, f"_{step}_forward_hooks") or getattr(layer, f"_{step}_forward_pre_hooks"):
            return f"a hook of {kind.__name__}'s {step}, which needs all of a node's edges at once"
    if layer.aggr not in _REDUCTIONS:
        return f"aggr={layer.aggr!r}, which needs all of a node's edges at once"
    return None


class Pieces:
    """What is known of the aggregations of one node's edges, of which each forward pass of the model sees a piece.

    Attributes:
        last: whether this is the last piece.
    """

    def __init__(self) -> None:
        self.last = False
        self._of: dict[tuple[str, int], tuple[Tensor, int]] = {}
        self._loops: dict[int, Tensor] = {}
        self._next: dict[str, int] = {}

    def begin(self, last: bool) -> None:
        """Begins a piece."""
        self.last, self._next = last, {}

    def _number(self, what: str) -> int:
        self._next[what] = self._next.get(what, -1) + 1
        return self._next[what]

    def add(self, what: str, reduce: str, of_piece: Tensor, count: int) -> Tensor:
        """The aggregate of all pieces so far; of those that were aggregated as ``what``, the next in order. Rows of 16
        bits are summed in 32.

        Args:
            what: the name of the aggregation.
            reduce: "sum", "add", "mean", "max" or "min".
            of_piece: the aggregate of this piece's edges: [1, ...].
            count: how many these are.
        """
        key, dtype = (what, self._number(what)), of_piece.dtype
        total, before = self._of.get(key, (None, 0))
        if dtype.itemsize == 2:
            of_piece = of_piece.float()
        if total is None or (before == 0 and count > 0):
            total = of_piece * count if reduce == "mean" else of_piece
        elif count > 0:
            if reduce in ("max", "min"):
                total = torch.maximum(total, of_piece) if reduce == "max" else torch.minimum(total, of_piece)
            else:
                total = total + (of_piece * count if reduce == "mean" else of_piece)
        self._of[key] = total, before + count
        found = total / max(before + count, 1) if reduce == "mean" else total
        return found.to(dtype, copy=True)  # layers may write to it

    def loops(self, index: Tensor, weight: Tensor | None, fill: float, what: str) -> tuple[Tensor, Tensor | None]:
        """PyG's ``add_remaining_self_loops`` for the node: its self loop is an edge of the last piece alone."""
        number = self._number(what)
        loops = index[0] == index[1]
        if weight is not None and bool(loops.any()):
            self._loops[number] = weight[loops][-1:]
        index, weight = index[:, ~loops], None if weight is None else weight[~loops]
        if not self.last:
            return index, weight
        own = index.new_zeros(2, 1)
        if weight is not None:
            weight = torch.cat([weight, self._loops.get(number, weight.new_full((1,), fill))])
        return torch.cat([index, own], dim=1), weight
