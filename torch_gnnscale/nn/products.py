"""Which products of rows are computed in other ways than by calling a module: before or after sums, or of the rows of
distinct nodes, where a batch's trees repeat nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .. import ops
from .._private import is_compiled
from .aggregate import Bipartite
from .wrapper import Shadow

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


def takes_rows(weight: Tensor | None, x: Any) -> bool:
    """Whether ``x`` has rows [n, F] whose sums over the CSC are those of PyG, and ``weight``, by which they are
    multiplied, has its size and their dtype; None: nothing multiplies them."""
    if not isinstance(x, Tensor) or x.dim() != 2 or not is_wide(x) or not ops.can_aggregate(x):
        return False
    return weight is None or (not is_lazy(weight) and weight.dtype == x.dtype)


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


def multiplies_destinations(edges: Bipartite, features: int, channels: int, heads: int) -> bool:
    """Whether matrices multiply rows of destinations, not those of sources; decided by the multiply-adds
    of both ways."""
    num_edges = edges.num_edges
    of_sources = min(edges.num_src, num_edges) * features * channels + OF_EDGE * num_edges * channels
    return edges.num_dst * features * channels + OF_EDGE * num_edges * heads * features <= of_sources


def occurring(x: Tensor, edges: Bipartite) -> tuple[Tensor, Bipartite]:
    """The rows of those sources that have edges, and the edges from them. If there are more edges than sources, most
    have some, and all are left."""
    if edges.num_edges >= edges.num_src:
        return x, edges
    seen = torch.zeros(edges.num_src, dtype=torch.bool, device=x.device)
    seen[edges.index[0]] = True
    ids, place = seen.nonzero().view(-1), seen.cumsum(0) - 1
    index = torch.stack([place[edges.index[0]], edges.index[1]])
    return x.index_select(0, ids), Bipartite.sorted(index, edges.forward.ptr, len(ids))


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
