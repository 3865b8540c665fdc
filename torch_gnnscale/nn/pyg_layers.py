"""What is known of PyG's layers: their messages, which weights of edges multiply, and which of their products of rows
are computed in other ways than by calling a module: before or after sums, or of the rows of distinct nodes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.nn import to_hetero_with_bases_transformer
from torch_geometric.nn.aggr import MeanAggregation, SumAggregation

from .. import ops
from .._private import is_compiled
from .aggregate import Bipartite
from .wrapper import Shadow

BY_EDGE = {
    (kind.forward, kind.message): name
    for name in ("CGConv", "EdgeConv", "GCN2Conv", "GCNConv", "GINConv", "GINEConv", "GraphConv", "LEConv", "LGConv",
                 "NNConv", "ResGatedGraphConv", "SAGEConv")
    for kind in [getattr(pyg_nn, name)]
}  # fmt: skip
"""Layers that aggregate messages, each computed from one edge and its two nodes, and use edges for nothing else."""
_WEIGHTS = {
    "SAGEConv": None, "GINConv": None, "GraphConv": "edge_weight", "GCNConv": "edge_weight", "GCN2Conv": "edge_weight",
    "LGConv": "edge_weight", "GATConv": "alpha", "GATv2Conv": "alpha",
}  # fmt: skip
WEIGHT_OF_MESSAGE: dict[Any, str | None] = {getattr(pyg_nn, name).message: weight for name, weight in _WEIGHTS.items()}
"""By function ``message``: the name of the argument (a weight per edge) by which the source's row is multiplied, if
there is one. Such messages are aggregated over the CSC."""
KNOWN_FORWARD = {getattr(pyg_nn, name).forward for name in _WEIGHTS}
"""Layers whose operands have rows of the same hops: ``CommonRows`` has nothing to do within them."""
NORMALIZES = (pyg_nn.GCNConv, pyg_nn.GCN2Conv, pyg_nn.LGConv)
"""Layers that weigh an edge by the degrees of both of its nodes, which only the whole batch has."""
MULTIPLIES_DESTINATIONS = {pyg_nn.SAGEConv.forward, pyg_nn.GINConv.forward, pyg_nn.GraphConv.forward}
"""Layers that multiply the aggregated rows, as GATConv with one head does; others multiply the rows of sources, before
the aggregation."""
_HOOKED = ("propagate", "message", "aggregate", "message_and_aggregate")
"""The methods around which PyG calls hooks of its own."""
REPLACED = {"propagate", "message", "aggregate", "update", "edge_update", "edge_updater"}
"""Methods of a layer that its user may have replaced, which narrowed layers otherwise do not call."""
AGGREGATIONS = {
    "sum": pyg_nn.SumAggregation, "mean": pyg_nn.MeanAggregation, "max": pyg_nn.MaxAggregation,
    "min": pyg_nn.MinAggregation,
}  # fmt: skip
"""What PyG makes of a layer's ``aggr``; users may replace it."""
_SUM = SumAggregation()


def parameters_of(layer: pyg_nn.MessagePassing) -> list[inspect.Parameter]:
    """The parameters of a layer's ``forward``. If it passes on ``*args``, and so does not name them, those of the
    nearest class whose ``forward`` it stands for and that does."""
    found = [*inspect.signature(layer.forward).parameters.values()]
    for kind in type(layer).__mro__:
        if all(p.kind is not p.VAR_POSITIONAL for p in found):
            break
        if "forward" in vars(kind):
            found = [*inspect.signature(vars(kind)["forward"].__get__(layer)).parameters.values()]
    return found


def hooks_of(layer: pyg_nn.MessagePassing) -> list[Any]:
    """The hooks of PyG's own around methods of a layer, by hook, as the layer keeps them."""
    return [getattr(layer, f"_{part}_forward{pre}_hooks") for part in _HOOKED for pre in ("", "_pre")]


def sums_as(layer: pyg_nn.MessagePassing, kind: type[pyg_nn.MessagePassing], *methods: str) -> bool:
    """Whether a layer is of this very class and sums messages along the edges, with methods that nobody replaced and
    without hooks; ``methods``: others that must be the class's."""
    own = vars(layer)
    if type(layer) is not kind or any(name in own for name in (*REPLACED, "forward", *methods)) or any(hooks_of(layer)):
        return False
    plain = type(layer.aggr_module) is SumAggregation and layer.decomposed_layers == 1 and not layer.explain
    return plain and layer.flow == "source_to_target"


def has_bases(layer: pyg_nn.MessagePassing) -> bool:
    """Whether it is a layer of ``to_hetero_with_bases``, whose hook multiplies messages by a weight of their edge's
    relation: ``layer.edge_type_weight[0, layer._edge_type]``."""
    return to_hetero_with_bases_transformer.hook in layer._message_forward_hooks.values()


def is_basis(layer: pyg_nn.MessagePassing) -> bool:
    """Whether a layer :func:`has_bases` and no other hooks."""
    return has_bases(layer) and sum(map(len, hooks_of(layer))) == 1


def is_pair(value: Any) -> bool:
    """Whether it is a pair of the rows of sources and, if these are given, of destinations."""
    if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[0], Tensor) or value[0].dim() == 0:
        return False
    return value[1] is None or (isinstance(value[1], Tensor) and value[1].dim() > 0)


def has_own_propagate(kind: type) -> bool:
    """Whether a kind of layer does not inherit ``propagate``. PyG compiles one for each that does."""
    compiled, before = (getattr(kind, name, None) for name in ("_jinja_propagate", "_orig_propagate"))
    return kind.propagate is not pyg_nn.MessagePassing.propagate and compiled is before  # type: ignore[attr-defined]


def refuse_unfit(title: str, layer: pyg_nn.MessagePassing) -> None:
    """Raises ValueError if a layer's output with weighted messages would not estimate its output with all edges."""
    kind, base = type(layer), pyg_nn.MessagePassing
    of_base = kind.aggregate is base.aggregate and kind.update is base.update
    if (kind.forward, kind.message) not in BY_EDGE or not of_base:
        raise ValueError(
            f"{title}: expected a layer that sums messages, each of one edge ({', '.join(sorted(BY_EDGE.values()))}), "
            f"found {kind.__name__}, which cannot be weighed"
        )
    if type(layer.aggr_module) not in (SumAggregation, MeanAggregation):
        raise ValueError(
            f"{title}: expected aggr='sum', 'add' or 'mean', found {layer.aggr!r}, which cannot be weighed"
        )
    if isinstance(layer, NORMALIZES) and layer.normalize:
        raise ValueError(
            f"{title}: expected normalize=False, found True: it would normalize by the degrees of the sample; "
            f"LayerSampler(aggregation='gcn') makes weights that are normalized by those of the graph"
        )
    if layer.flow != "source_to_target":
        raise ValueError(f"{title}: expected flow='source_to_target', found {layer.flow!r}")


def refuse_twice(title: str, given: Mapping[str, Any], weight: Tensor) -> None:
    """Raises ValueError if a layer gets ``weight``, by which its messages are multiplied, as ``edge_weight`` too."""
    own = given.get("edge_weight")
    if isinstance(own, Tensor) and own.numel() and own.data_ptr() == weight.data_ptr():
        raise ValueError(
            f"{title}: expected no edge_weight, or another, found the one that weigh multiplies every message by"
        )


@contextmanager
def weigh_messages(layer: pyg_nn.MessagePassing, weight: Tensor) -> Iterator[None]:
    """Within, ``layer.propagate`` returns sum_e weight[e] m_e, m_e being the message of edge e, also if the layer
    otherwise takes the mean.

    Args:
        layer: one that :func:`refuse_unfit` accepts.
        weight: of the edges that are propagated, in their order: [e].
    """
    message, shadow = layer.message, Shadow(layer)

    def weighed(*args: Any, **kwargs: Any) -> Tensor:
        out = message(*args, **kwargs)
        shape = [1] * out.dim()
        shape[layer.node_dim] = -1
        return out * weight.to(out.dtype).view(shape)

    def total(inputs: Tensor, index: Tensor, ptr: Tensor | None = None, dim_size: int | None = None) -> Tensor:
        return _SUM(inputs, index, ptr=ptr, dim_size=dim_size, dim=layer.node_dim)

    shadow.set("message", weighed)
    shadow.set("aggregate", total)
    shadow.set("fuse", False)  # PyG's fused matrix products with an EdgeIndex do not call message()
    try:
        yield
    finally:
        shadow.restore()


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
