"""Products of the rows of distinct nodes, where a batch's trees repeat nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn

from .._private import is_compiled
from .shadow import Shadow

OF_NUMBER = 32
"""How many multiply-adds take the time in which a number of a row is compared and gathered
(benchmarks/bench_trees.py at commit ad4f2413)."""
_FORWARDS = (nn.Linear.forward, pyg_nn.Linear.forward)


def linear_modules(model: nn.Module) -> list[nn.Module]:
    """A model's modules that multiply rows, outside of its MessagePassing layers and of what is compiled."""
    modules = list(model.modules())
    within = {inner for module in modules if _is_whole(module) for inner in module.modules()}
    return [m for m in modules if type(m).forward in _FORWARDS and "forward" not in vars(m) and m not in within]


def _is_whole(module: nn.Module) -> bool:
    return isinstance(module, pyg_nn.MessagePassing) or is_compiled(module)


class DistinctRows:
    """Computes modules whose input is ``batch.x``, or that of a type, on the rows of distinct nodes, and gathers the
    results, where that takes less time. Before that the rows of a node are compared: where they differ, the type is
    computed as it is, in later batches, too.

    Args:
        linears: what :func:`linear_modules` returns.
    """

    def __init__(self, linears: Iterable[nn.Module]) -> None:
        self.linears = list(linears)
        self.differ: set[Any] = set()
        """The types of which the rows of a node differed; None is that of a graph of one type."""

    @contextmanager
    def of(self, batch: Any) -> Iterator[None]:
        """A context in which the modules do so, if the batch has trees."""
        stores = [s for s in batch.node_stores if "batch" in s and "n_id" in s and isinstance(s.get("x"), Tensor)]
        with ExitStack() as stack:
            for linear in self.linears if stores else ():
                shadow = Shadow(linear)
                stack.callback(shadow.restore)
                shadow.set("forward", partial(self._computed, linear.forward, linear, stores))
            yield

    def _computed(self, forward: Any, linear: Any, stores: list[Any], *args: Any, **kwargs: Any) -> Tensor:
        if len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
            return forward(*args, **kwargs)
        x = args[0]
        store = next((store for store in stores if store.x is x), None)
        if store is None or store._key in self.differ or x.dim() != 2 or x.requires_grad or x.device.type != "cpu":
            return forward(x)
        (count, features), channels = x.shape, len(linear.weight)
        product, cost = features * channels, OF_NUMBER * (features + channels)
        if product <= cost:
            return forward(x)
        ids, place = torch.unique(store.n_id, return_inverse=True)
        if product * (count - len(ids)) <= cost * count:
            return forward(x)
        of_id = torch.empty_like(ids)
        of_id[place] = torch.arange(count)
        rows = x.index_select(0, of_id)
        if not torch.equal(rows.index_select(0, place), x):
            self.differ.add(store._key)
            return forward(x)
        return forward(rows).index_select(0, place)
