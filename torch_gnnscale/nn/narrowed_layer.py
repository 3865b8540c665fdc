"""A MessagePassing layer that computes on a prefix of the batch, which its place among the model's calls decides."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch_geometric.nn as pyg_nn
from torch import Tensor
from torch.nn import functional

from .. import ops
from . import convolutions, pyg_layers
from .aggregate import Apart, Bipartite, aggregate, aggregate_and_root
from .forward_pass import ForwardPass, Given, LayerSize, refuse_compiled
from .hops import HopEdges, Relation, first_rows
from .pyg_layers import WIDE, is_called_plainly, is_wide, products_of
from .sums import Share
from .wrapper import Read, Shadow, title_of

_EDGES_OF_X = ("x", "edge_index")


class NarrowedLayer:
    """A layer that computes, between :meth:`enter` and :meth:`leave`, on prefixes of a batch.

    Args:
        name: the layer's in the model.
        layer: the layer; before :meth:`enter` and after :meth:`leave` it is unchanged.
    """

    def __init__(self, name: str, layer: pyg_nn.MessagePassing) -> None:
        kind = type(layer)
        self.title = title_of(name, layer)
        self.layer = layer
        self._methods, self._options = Shadow(layer), Shadow(layer)
        self._read_signature()
        self.reduce = "sum" if layer.aggr == "add" else layer.aggr
        self.weight = pyg_layers.WEIGHT_OF_MESSAGE.get(kind.message)
        self._known = (
            kind.message in pyg_layers.WEIGHT_OF_MESSAGE
            and kind.aggregate is pyg_nn.MessagePassing.aggregate
            and kind.update is pyg_nn.MessagePassing.update
            and self.reduce in ops.REDUCTIONS
            and not pyg_layers.has_own_propagate(kind)
        )
        self._hooks = pyg_layers.hooks_of(layer)
        self._is_gat = kind.forward is pyg_nn.GATConv.forward
        self._relation: Relation | None = None  # within a call
        self._edges: Bipartite | None = None  # within a call
        self._of_edges: Tensor | None = None  # the forward pass's weights of these edges
        self._of_kinds: Tensor | None = None  # these edges' weights by relation, in a model of to_hetero_with_bases
        self._apart: Apart | None = None  # rows of sources that the layer's input lacks
        self._roots_are_sources = False  # whether the destinations' rows are the first ones of the sources
        self._aggregated: tuple[Tensor, Tensor | None, Tensor] | None = None  # (rows, the layer's weights, result)

    def size(self) -> LayerSize:
        """What the layer computes per row."""
        layer = self.layer
        parameters = sum(parameter.numel() for parameter in layer.parameters())
        channels, heads = getattr(layer, "out_channels", 0), getattr(layer, "heads", 1)
        channels = channels * heads if isinstance(channels, int) and isinstance(heads, int) else 0
        of_destinations = type(layer).forward in pyg_layers.MULTIPLIES_DESTINATIONS or (
            self._is_gat and layer.heads == 1
        )
        return LayerSize(parameters, of_destinations, channels)

    def enter(self, forward_pass: ForwardPass) -> None:
        """From now on the layer computes on the batch of this forward pass."""
        layer = self.layer
        if vars(layer).get("forward") is not self._own_forward:
            self._read_signature()
        self.forward_pass = forward_pass
        self.forward, self.propagate = layer.forward, layer.propagate
        self._fused = (
            self._known
            and layer.decomposed_layers == 1
            and not layer.explain
            and (not any(self._hooks) or (pyg_layers.is_basis(layer) and self.weight != "alpha"))
            and pyg_layers.REPLACED.isdisjoint(vars(layer))
            and type(layer.aggr_module) is pyg_layers.AGGREGATIONS[self.reduce]
        )
        self._rows_agree = self._fused and self._own_forward is None and type(layer).forward in pyg_layers.KNOWN_FORWARD
        self._adds = self._rows_agree and not any(self._hooks) and is_called_plainly(layer)
        self._products = products_of(layer) if self._adds else None
        self._is_sage = self._rows_agree and type(layer).forward is pyg_nn.SAGEConv.forward
        self._methods.set("forward", self.computed)
        self._methods.set("propagate", self.aggregated)

    def leave(self) -> None:
        """The layer is again what it was before :meth:`enter`."""
        self._methods.restore()
        del self.forward_pass, self.forward, self.propagate

    def _read_signature(self) -> None:
        self._own_forward = vars(self.layer).get("forward")
        parameters = pyg_layers.parameters_of(self.layer)
        self.names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._takes_pair = {p.name for p in parameters if "Tuple[" in str(p.annotation)}

    def computed(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's ``forward``: the rows of its destinations."""
        refuse_compiled(self.title)
        names, common_rows = self.names, self.forward_pass.common_rows
        common_rows.called.append(self.title)
        with common_rows.paused():
            given = dict(zip(names, args, strict=False))
            given.update(kwargs)
            self._relation = self._called_on(given)
            groups = self.groups(given)
            hop_edges, destinations = self._relation.edges, self._relation.dst
            try:
                if isinstance(self.layer, pyg_layers.NORMALIZES) and self.layer.normalize:
                    hop_edges, given["edge_weight"] = self._normalized(given)
                    self._options.set("normalize", False)
                edges = self._edges = hop_edges.prefix(groups)
                if pyg_layers.has_bases(self.layer):
                    self._options.set("_edge_type", kinds := self.layer._edge_type[: edges.num_edges])
                    self._of_kinds = self.layer.edge_type_weight.view(-1)[kinds]
                self._cut(given, self.read(given, hop_edges.edges.num_edges), groups, edges)
                if self.forward_pass.weights is not None:
                    self._of_edges = self.forward_pass.weights[self._relation.key][: edges.num_edges]
                    pyg_layers.refuse_twice(self.title, given, self._of_edges)
                out = self._of_sage(given, edges) if self._is_sage else None
                if self._is_gat and self._rows_agree:
                    out = self._of_gat(given, edges)
                if out is None:
                    if self._fused:
                        self._aggregate_first(given, edges)
                    if self._is_gat and self._roots_are_sources and self.layer.lin is not None:
                        self._options.set("lin", convolutions.projected_once(self.layer.lin, given["x"][1]))
                    args = (*(given.pop(name) for name in names[: len(args)]), *args[len(names) :])
                    with nullcontext() if self._rows_agree and not common_rows.everywhere else common_rows:
                        out = self.forward(*args, **given)
            finally:
                self._options.restore()
                self._relation = self._edges = self._of_edges = self._aggregated = self._apart = None
                self._of_kinds = None
            rows, *others = out if isinstance(out, tuple) else (out,)
            rows = first_rows(rows, edges.num_dst)
            common_rows.returned(rows, destinations)
            return (rows, *others) if isinstance(out, tuple) else rows

    def adds(self, given: dict[str, Any]) -> bool:
        """Whether :meth:`share` tells all that the layer computes with these arguments."""
        if self._products is None or any(value is not None for name, value in given.items() if name not in _EDGES_OF_X):
            return False
        x, root = x if isinstance(x := given.get("x"), tuple) else (x, x)
        if not (isinstance(x, Tensor) and x.dim() == 2 and is_wide(x) and ops.can_aggregate(x)):
            return False
        if root is not None and not (isinstance(root, Tensor) and root.dim() == 2 and root.dtype == x.dtype):
            return False
        weights, relation = self.forward_pass.weights, self.forward_pass.hops.relation(given.get("edge_index"))
        return weights is None or (relation is not None and not weights[relation.key].requires_grad)

    def called(self, given: dict[str, Any]) -> tuple[Relation, int]:
        """Counts as the layer's call with these arguments: the relation, and the number of first groups whose rows it
        gets."""
        self._relation = relation = self._called_on(given)
        try:
            return relation, self.groups(given)
        finally:
            self._relation = None

    def share(self, given: dict[str, Any], relation: Relation, groups: int) -> Share:
        """What the layer returns for the destinations of the first ``groups`` - 1 groups, if it :meth:`adds` that."""
        assert self._products is not None
        x, root = x if isinstance(x := given["x"], tuple) else (x, x)
        sources = first_rows(x, relation.src.rows[groups - 1])
        edges, reduce, weight = None, self.reduce, None
        if count := relation.ends[groups - 2]:
            edges = relation.edges.prefix(groups)
            if (weights := self.forward_pass.weights) is not None:
                reduce, weight = "sum", weights[relation.key][:count].to(x.dtype).unsqueeze(1)
        of_neighbors, of_root = self._products
        root = None if of_root is None or root is None else sources if root is x else root
        factor = None if root is None or of_root is None else of_root.weight
        return Share(sources, weight, edges, reduce, of_neighbors.weight, of_neighbors.bias, root, factor)

    def _called_on(self, given: dict[str, Any]) -> Relation:
        """The relation whose edges the layer gets. Raises ValueError unless it can compute on a prefix of them."""
        relation = self.forward_pass.hops.relation(given.get("edge_index"))
        if relation is None:
            raise ValueError(
                f"{self.title}: expected the batch's edge_index itself, found other edges; a model that changes the "
                f"edges cannot be narrowed"
            )
        if given.get("size") is not None:
            raise ValueError(f"{self.title}: expected no size, found {given['size']}; narrowing decides it")
        if self.layer.flow != "source_to_target":
            raise ValueError(f"{self.title}: expected flow='source_to_target', found {self.layer.flow!r}")
        if relation.src is not relation.dst and getattr(self.layer, "add_self_loops", False):
            raise ValueError(
                f"{self.title}: expected add_self_loops=False between two types, found True for {relation.key}: loops "
                f"would join nodes of the same numbers, as many as the smaller type has in a batch"
            )
        return relation

    @property
    def relation(self) -> Relation:
        """Of a call, the relation whose edges the layer gets."""
        assert self._relation is not None
        return self._relation

    def groups(self, given: dict[str, Any]) -> int:
        """The number of first groups whose rows the layer gets; it returns the rows of one group less."""
        relation = self.relation
        sources, destinations = self._numbers_of_rows(given)
        found = self._groups_by_rows(relation, sources, destinations)
        rows = [Given(sources, relation.src.rows)]
        if destinations is not None:
            rows.append(Given(destinations, [0, *relation.dst.rows]))
        return self.forward_pass.groups(self.title, found, (relation.key,), rows)

    def _numbers_of_rows(self, given: dict[str, Any]) -> tuple[int, int | None]:
        """How many rows of sources the layer gets, and how many of destinations, if it gets a pair of tensors."""
        for key, value in given.items():
            if key != "edge_index":
                first, second = value if pyg_layers.is_pair(value) else (value, None)
                if isinstance(first, Tensor) and first.dim() > 0:
                    return first.size(0), None if second is None else second.size(0)
        raise ValueError(f"{self.title}: expected input rows of whole hops {self._rows_expected()}, found no tensor")

    def _groups_by_rows(self, relation: Relation, sources: int, destinations: int | None) -> int:
        """:meth:`groups` by the numbers of the layer's input rows; the most groups, if several have them."""
        groups, limit = relation.src.groups(sources), len(relation.src.rows)
        if destinations is not None:
            limit = relation.dst.groups(destinations) + 1
        if groups == 0 or limit == 1:
            found = f"{sources} rows" if destinations is None else f"{sources} and {destinations} rows"
            raise ValueError(f"{self.title}: expected input rows of whole hops {self._rows_expected()}, found {found}")
        if min(groups, limit) == 1:
            raise ValueError(
                f"{self.title}: expected one hop a layer, found that earlier layers used up the batch's "
                f"{self.forward_pass.hops.depth} hops"
            )
        return min(groups, limit)

    def _rows_expected(self) -> str:
        relation = self.relation
        rows = str(relation.src.rows)
        return rows if relation.src is relation.dst else f"{rows} of sources and {relation.dst.rows} of destinations"

    def _normalized(self, given: dict[str, Any]) -> tuple[HopEdges, Tensor]:
        layer = self.layer
        if getattr(layer, "cached", False):
            raise ValueError(f"{self.title}: expected cached=False, for every batch has other edges")
        improved, loops = getattr(layer, "improved", False), getattr(layer, "add_self_loops", False)
        x, weight = given["x"], given.get("edge_weight")
        if not isinstance(x, Tensor):
            raise ValueError(f"{self.title}: expected a tensor of rows, found a pair, which this layer does not take")
        return self.forward_pass.normalized(self.relation, weight, improved, loops, layer.flow, x.dtype)

    def read(self, given: dict[str, Any], num_edges: int) -> Read:
        """The arguments whose rows are cut to those that the layer computes with; the relation has ``num_edges`` edges.
        Between nodes of two types, rows of nodes are those of pairs: numbers of rows would not tell of which type they
        are. Raises ValueError for other tensors there."""
        relation = self.relation
        nodes, edges = [], []
        for key, value in given.items():
            if key == "edge_index":
                continue
            if pyg_layers.is_pair(value):
                nodes.append(key)
            elif isinstance(value, Tensor) and value.dim() > 0:
                of_one_type = relation.src is relation.dst and not key.startswith("edge")
                if of_one_type and relation.src.groups(value.size(0)) > 0:
                    nodes.append(key)
                elif value.size(0) == num_edges:
                    edges.append(key)
                elif relation.src is not relation.dst:
                    raise ValueError(
                        f"{self.title}: expected rows of nodes of two types as one argument, a pair, found {key} of "
                        f"{value.size(0)} rows alone"
                    )
        return Read(tuple(nodes), tuple(edges))

    def sources(self, value: Tensor, groups: int, edges: Bipartite) -> Tensor:
        """The rows of the sources of ``edges``, which begin with those of the destinations. ``value`` has the rows of
        the first ``groups`` groups, or more."""
        return first_rows(value, edges.num_src)

    def _cut(self, given: dict[str, Any], read: Read, groups: int, edges: Bipartite) -> None:
        """Cuts arguments to the rows that ``edges`` need. A parameter that takes a pair of tensors gets the sources'
        and the destinations' rows."""
        given["edge_index"] = edges.index
        self._roots_are_sources = False
        for key in read.nodes:
            value = given[key]
            first, second = value if isinstance(value, tuple) else (value, value)
            given[key] = sources = self.sources(first, groups, edges)
            if isinstance(value, tuple) or key in self._takes_pair:
                if is_root := second is first:
                    second = sources[: edges.num_dst]
                elif second is not None:
                    second = first_rows(second, edges.num_dst)
                given[key] = (sources, second)
                self._roots_are_sources |= is_root and key == "x"
        for key in read.edges:
            given[key] = given[key][: edges.num_edges]

    def _aggregate_first(self, given: dict[str, Any], edges: Bipartite) -> None:
        """If the layer propagates the input's rows as they are, aggregates them before the layer does, so that their
        gradient and that of the destinations' own rows are added up in one tensor."""
        if self.weight == "alpha" or not self._roots_are_sources or getattr(self.layer, "project", False):
            return
        x, own = given["x"][0], None if self.weight is None else given.get(self.weight)
        reduce, weight = self._weighed(x, own)
        if self._can_aggregate(x, weight):
            out, root = aggregate_and_root(x, edges, reduce, weight, self._apart)
            given["x"] = (x, root)
            self._aggregated = x, own, out

    def _of_sage(self, given: dict[str, Any], edges: Bipartite) -> Tensor | None:
        """The output of a SAGEConv, as one function; None if more than :func:`torch_gnnscale.nn.convolutions.sage`."""
        layer, x = self.layer, given.get("x")
        if not isinstance(x, tuple) or not convolutions.sage_takes(layer, x[1]):
            return None
        reduce, weight = self._weighed(x[0], None)
        if not self._can_aggregate(x[0], weight) or (weight is not None and weight.requires_grad):
            return None
        of_neighbors, of_root = layer.lin_l, layer.lin_r
        root = None if self._roots_are_sources else x[1]
        given_to = of_neighbors.weight, of_neighbors.bias, of_root.weight, edges, reduce, self._apart
        out = convolutions.sage(x[0], root, weight, *given_to)
        return functional.normalize(out, p=2.0, dim=-1) if layer.normalize else out

    def _of_gat(self, given: dict[str, Any], edges: Bipartite) -> Tensor | None:
        """The output of a GATConv by :func:`torch_gnnscale.nn.convolutions.gat`; None if it does something else."""
        x = given.get("x")
        if not isinstance(x, tuple) or self._of_edges is not None or not convolutions.gat_takes(self.layer, given):
            return None
        return convolutions.gat(self.layer, x[0], x[1], edges, given.get("edge_attr"))

    def _reads_sum_alone(self, x: Any, weight: Any) -> bool:
        """Whether the layer reads nothing of the sources' rows x but their sum or mean, which
        :meth:`_aggregate_first` computes; ``weight``: the layer's own, of all edges, or None."""
        weights, relation = self.forward_pass.weights, self._relation
        of_batch = None if weights is None or relation is None else weights[relation.key]
        return (
            self._rows_agree
            and type(self.layer).forward in pyg_layers.MULTIPLIES_DESTINATIONS
            and not getattr(self.layer, "project", False)
            and self.reduce in ("sum", "mean")
            and "x" in self._takes_pair
            and (weight is None or isinstance(weight, Tensor))
            and not any(given is not None and given.requires_grad for given in (weight, of_batch))
            and isinstance(x, Tensor)
            and x.dtype in WIDE  # else the halo's gradients would be rounded one by one
            and self._can_aggregate(x, weight)
        )

    def _weighed(self, x: Any, own: Tensor | None) -> tuple[str, Tensor | None]:
        """The reduction and the weights of messages: the layer's ``own``, times the forward pass's if it has any. The
        mean of weighed messages, each times the destination's number of edges, is their sum."""
        if not isinstance(x, Tensor):
            return self.reduce, own
        if self._of_kinds is not None:
            own = self._of_kinds if own is None else own * self._of_kinds.view(-1, *[1] * (own.dim() - 1))
        if self._of_edges is None:
            return self.reduce, own
        weight = self._of_edges.to(x.dtype)
        return "sum", weight if own is None else own * weight.view(-1, *[1] * (own.dim() - 1))

    def _can_aggregate(self, x: Any, weight: Tensor | None) -> bool:
        return (
            isinstance(x, Tensor)
            and ops.can_aggregate(x)
            and (
                weight is None or (self.reduce in ("sum", "mean") and weight.dtype in (x.dtype, ops.sum_dtype(x.dtype)))
            )
        )

    def aggregated(self, edge_index: Any, size: Any = None, **kwargs: Any) -> Tensor:
        """``propagate``: over the CSC if the layer's message is known, else PyG's own over the narrowed edges."""
        if self._fused and self._edges is not None:
            with self.forward_pass.common_rows.paused():
                found = self._over_csc(edge_index, kwargs)
            if found is not None:
                return found
        if self._of_edges is None:
            return self.propagate(edge_index, size=size, **kwargs)
        with pyg_layers.weigh_messages(self.layer, self._of_edges):
            return self.propagate(edge_index, size=size, **kwargs)

    def _over_csc(self, edge_index: Any, kwargs: dict[str, Any]) -> Tensor | None:
        """The sum of messages by this package's operator; None if it cannot compute it."""
        assert self._edges is not None
        x = kwargs["x"]
        x, x_dst = x if isinstance(x, tuple) else (x, None)
        own = None if self.weight is None else kwargs[self.weight]
        if self._aggregated is not None and self._aggregated[0] is x and self._aggregated[1] is own:
            return self._aggregated[2]
        reduce, weight = self._weighed(x, own)
        if not self._can_aggregate(x, weight):
            return None
        edges = self._edges
        if edge_index is not edges.index:
            edges = Bipartite.from_coo(edge_index, len(x), len(x) if x_dst is None else len(x_dst))
        return aggregate(x, edges, reduce, weight)
