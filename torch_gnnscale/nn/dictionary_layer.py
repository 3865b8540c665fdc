"""A layer that takes dictionaries by type, on a prefix of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch_geometric.nn as pyg_nn
from torch import Tensor

from .batches import EdgeType
from .forward_pass import ForwardPass, Given, refuse_compiled
from .han import han, han_takes, is_pygs_han
from .hgt import hgt, hgt_takes, is_pygs_hgt
from .hops import first_rows
from .messages import parameters_of
from .saving import LayerSize
from .wrapper import Shadow, title_of


def takes_dictionaries(layer: pyg_nn.MessagePassing) -> bool:
    """Whether the layer takes the edges of all relations at once."""
    return any(p.name == "edge_index_dict" for p in parameters_of(layer))


class DictionaryLayer:
    """A layer that gets, between :meth:`enter` and :meth:`leave`, the rows and edges of a batch that it needs.

    Args:
        name: the layer's.
        layer: one that :func:`takes_dictionaries`; before :meth:`enter` and after :meth:`leave` it is unchanged.
    """

    def __init__(self, name: str, layer: pyg_nn.MessagePassing) -> None:
        self.title = title_of(name, layer)
        self.layer = layer
        self._methods = Shadow(layer)

    def size(self) -> LayerSize:
        """What the layer computes per row, for all of its relations together."""
        channels = getattr(self.layer, "out_channels", 0)
        parameters = sum(parameter.numel() for parameter in self.layer.parameters())
        return LayerSize(parameters, False, channels if isinstance(channels, int) else 0)

    def enter(self, forward_pass: ForwardPass) -> None:
        """From now on the layer computes on the batch of this forward pass."""
        self.forward_pass = forward_pass
        self.forward = self.layer.forward
        self._is_hgt, self._is_han = is_pygs_hgt(self.layer), is_pygs_han(self.layer)
        self._names = [p.name for p in parameters_of(self.layer)]
        self._methods.set("forward", self.computed)

    def leave(self) -> None:
        """The layer is again what it was before :meth:`enter`."""
        self._methods.restore()
        del self.forward_pass, self.forward

    def computed(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's ``forward``: by type, the rows of its destinations."""
        refuse_compiled(self.title)
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        hops, edges, out = self.forward_pass.hops, given["edge_index_dict"], None
        common_rows = self.forward_pass.common_rows
        common_rows.called.append(self.title)
        with common_rows.paused():
            for key, index in edges.items():
                if hops.relation(index) is not hops.relations.get(key):
                    raise ValueError(
                        f"{self.title}: expected the batch's edge_index of {key} itself, found other edges; a model "
                        f"that changes the edges cannot be narrowed"
                    )
            self._refuse_statistics(edges)
            groups = self._groups(given, tuple(edges))
            for name, value in given.items():
                if isinstance(value, Mapping):
                    given[name] = {key: self._cut(key, entry, groups) for key, entry in value.items()}
            if (compute := self._own_way(given, [*edges])) is not None:
                prefixes = {key: hops.relations[key].edges.prefix(groups) for key in edges}
                num_dst = {key: hops.nodes[key].rows[groups - 2] for key in given["x_dict"]}
                out = compute(self.layer, given["x_dict"], prefixes, num_dst)
        if out is None:
            with common_rows.noting():
                out = self.forward(**given)
        if isinstance(out, tuple):
            return self._outputs(out[0], groups), *out[1:]
        return self._outputs(out, groups)

    def _own_way(self, given: dict[str, Any], relations: list[EdgeType]) -> Callable[..., dict[str, Any]] | None:
        """The function that computes what the layer returns for these arguments, if there is one."""
        x_dict = given["x_dict"]
        if self._is_hgt and hgt_takes(self.layer, x_dict, relations):
            return hgt
        asks_more = given.get("return_semantic_attention_weights")
        return han if self._is_han and not asks_more and han_takes(self.layer, x_dict, relations) else None

    def _refuse_statistics(self, edges: Mapping[EdgeType, Any]) -> None:
        """Raises ValueError for a HANConv whose attention over relations reads all rows of a type. Of two relations or
        more it is a softmax of their means over all nodes of the type, so that each row that is left out changes the
        rows of the seeds; of one it is 1."""
        if not isinstance(self.layer, pyg_nn.HANConv):
            return
        into = Counter(key[-1] for key in edges if key is not None)
        for key in edges:
            if key is not None and into[key[-1]] > 1:
                raise ValueError(
                    f"{self.title}: expected at most one relation into each type, found {key} and {into[key[-1]] - 1} "
                    f"more into {key[-1]!r}: its attention weighs them by means over all nodes of the batch, so a "
                    f"seed's row depends on every node's, and none can be left out"
                )

    def _groups(self, given: dict[str, Any], relations: tuple[EdgeType, ...]) -> int:
        """The number of first groups whose rows the layer gets, the fewest of all types: of each the most, if several
        have as many rows."""
        hops, x_dict = self.forward_pass.hops, given.get("x_dict")
        if not isinstance(x_dict, Mapping):
            raise ValueError(f"{self.title}: expected an argument x_dict with rows by type, found {[*given]}")
        if (other := next((key for key in x_dict if key not in hops.nodes), None)) is not None:
            raise ValueError(f"{self.title}: expected rows of the batch's types {[*hops.nodes]}, found {other!r}")
        counts = {key: x.size(0) for key, x in x_dict.items() if isinstance(x, Tensor)}
        of_types = {key: hops.nodes[key].groups(count) for key, count in counts.items()}
        found = min(of_types.values(), default=0)
        if found == 0:
            wrong = next((key for key, groups in of_types.items() if groups == 0), None)
            expected = None if wrong is None else hops.nodes[wrong].rows
            raise ValueError(
                f"{self.title}: expected input rows of whole hops {expected}, found "
                f"{'no tensor' if wrong is None else f'{counts[wrong]} rows of {wrong!r}'}"
            )
        if found == 1:
            raise ValueError(
                f"{self.title}: expected one hop a layer, found that earlier layers used up the batch's {hops.depth} "
                f"hops"
            )
        rows = [Given(count, hops.nodes[key].rows) for key, count in counts.items()]
        return self.forward_pass.groups(self.title, found, relations, rows)

    def _cut(self, key: Any, value: Any, groups: int) -> Any:
        """An entry of a dictionary by types of nodes or edges, without the rows that the layer does not need. A tensor
        that has no row for each edge of the type, or for each node of whole hops, stays as it is."""
        if not isinstance(value, Tensor):
            return value
        hops = self.forward_pass.hops
        relation, nodes = hops.relations.get(key), hops.nodes.get(key)
        if relation is not None and value is relation.index:
            return relation.edges.prefix(groups).index
        count = value.size(0) if value.dim() else -1
        if relation is not None and count == relation.ends[-1]:
            return value[: relation.edges.prefix(groups).num_edges]
        return value if nodes is None or not nodes.groups(count) else first_rows(value, nodes.rows[groups - 1])

    def _outputs(self, out: Any, groups: int) -> Any:
        found, common_rows = {}, self.forward_pass.common_rows
        with common_rows.paused():
            for key, value in out.items():
                nodes = self.forward_pass.hops.nodes[key]
                found[key] = first_rows(value, nodes.rows[groups - 2]) if isinstance(value, Tensor) else value
                common_rows.returned(found[key], nodes)
        return found
