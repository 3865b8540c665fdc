"""Layers of several relations whose outputs are added up by type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .forward_pass import ForwardPass
from .hops import Relation
from .layer import NarrowedLayer
from .sums import sums


class _Call(NamedTuple):
    """A layer that was called, and computes its share later."""

    layer: NarrowedLayer
    given: dict[str, Any]
    relation: Relation
    groups: int


class Join:
    """Calls layers one after another, and adds their outputs up.

    The shares of layers that :meth:`~torch_gnnscale.nn.layer.NarrowedLayer.adds` are computed at the end, in one
    function.

    Args:
        forward_pass: that of the layers.
        add: adds up two or more outputs where some come from other layers.
    """

    def __init__(self, forward_pass: ForwardPass, add: Callable[[list[Any]], Any]) -> None:
        self._forward_pass = forward_pass
        self._add = add
        self._calls: dict[Any, list[_Call]] = {}
        self._others: dict[Any, list[Any]] = {}

    def call(self, total: Any, module: nn.Module, layer: NarrowedLayer | None, args: Any, kwargs: Any) -> None:
        """Calls a module whose output is a part of ``total``, any key; ``layer``: what computes it, or None."""
        others = self._others.setdefault(total, [])
        if layer is not None:
            given = {**dict(zip(layer.names, args, strict=False)), **kwargs}
            with self._forward_pass.common_rows.paused():
                if layer.adds(given):
                    self._calls.setdefault(total, []).append(_Call(layer, given, *layer.called(given)))
                    return
        others.append(module(*args, **kwargs))

    def totals(self, divided: bool) -> dict[Any, Any]:
        """The totals, by key in the order of calls; ``divided``: by the number of their parts."""
        common_rows, outs = self._forward_pass.common_rows, {total: list[Tensor]() for total in self._others}
        with common_rows.paused():
            for total, out in self._sums(divided):
                common_rows.returned(out, self._calls[total][0].relation.dst)
                outs[total].append(out)
        return {total: self._total(out, total, divided) for total, out in outs.items()}

    def _sums(self, divided: bool) -> Iterator[tuple[Any, Tensor]]:
        """The sums of shares, with the totals that they are parts of."""
        asked, shares, nums_dst, scales = list[Any](), list[Any](), list[int](), list[float]()
        for total, calls in self._calls.items():
            # Types may have rows of more groups; rows that not all relations compute are not used.
            groups = min(call.groups for call in calls)
            found = [call.layer.share(call.given, call.relation, groups) for call in calls]
            same = len({len(share.of_neighbors) for share in found}) == 1
            for several in [found] if same else [[share] for share in found]:
                asked.append(total)
                shares.append(several)
                nums_dst.append(calls[0].relation.dst.rows[groups - 2])
                alone = divided and same and not self._others[total]
                scales.append(1 / len(calls) if alone else 1.0)
        yield from zip(asked, sums(shares, nums_dst, scales), strict=True)

    def _total(self, outs: list[Any], total: Any, divided: bool) -> Any:
        others = self._others[total]
        if not others and len(outs) == 1:
            return outs[0]
        parts = [*outs, *others]
        found = parts[0] if len(parts) == 1 else self._add(parts)
        count = len(others) + len(self._calls.get(total, ()))
        return found / count if divided and count > 1 else found


def added(parts: list[Any]) -> Any:
    """The sum of two or more outputs, without a copy of all of them at a time."""
    return reduce(torch.add, parts)
