"""A layer that takes dictionaries by type, HGTConv or one like it, on a prefix of a batch."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch_geometric.nn as pyg_nn
from torch import Tensor

from .calls import Call
from .forward_pass import ForwardPass, refuse_compiled
from .hops import EdgeType, NodeType, first_rows
from .saving import LayerSize
from .shadow import Shadow


def takes_dictionaries(layer: pyg_nn.MessagePassing) -> bool:
    """Whether the layer takes the edges of all relations at once."""
    return "edge_index_dict" in inspect.signature(layer.forward).parameters


class DictionaryLayer:
    """A layer that gets, between :meth:`enter` and :meth:`leave`, the rows and edges of a batch that it needs.

    Args:
        name: the layer's.
        layer: one that :func:`takes_dictionaries`; before :meth:`enter` and after :meth:`leave` it is unchanged.
    """

    def __init__(self, name: str, layer: pyg_nn.MessagePassing) -> None:
        self.title = f"{name} ({type(layer).__name__})"
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
        self._names = list(inspect.signature(self.forward).parameters)
        self._methods.set("forward", self.computed)

    def leave(self) -> None:
        """The layer is again what it was before :meth:`enter`."""
        self._methods.restore()
        del self.forward_pass, self.forward

    def computed(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's ``forward``: by type, the rows of its destinations."""
        refuse_compiled(self.title)
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        hops, edges = self.forward_pass.hops, given["edge_index_dict"]
        for key, index in edges.items():
            if hops.relation(index) is not hops.relations.get(key):
                raise ValueError(
                    f"{self.title}: expected the batch's edge_index of {key} itself, found other edges; a model that "
                    f"changes the edges cannot be narrowed"
                )
        self._refuse_statistics(edges)
        groups = self._groups(given, tuple(edges))
        rows = {key: nodes.rows for key, nodes in hops.nodes.items()}
        for name, value in given.items():
            if isinstance(value, Mapping):
                given[name] = {key: self._cut(key, entry, rows, groups) for key, entry in value.items()}
        common_rows = self.forward_pass.common_rows
        with common_rows.paused():
            out = self.forward(**given)
        if isinstance(out, tuple):
            return self._outputs(out[0], rows, groups), *out[1:]
        return self._outputs(out, rows, groups)

    def _refuse_statistics(self, edges: Mapping[EdgeType, Any]) -> None:
        """Raises ValueError for a HANConv whose attention over relations reads all rows of a type: a softmax over the
        mean over nodes, of which there are two or more."""
        if not isinstance(self.layer, pyg_nn.HANConv):
            return
        into = Counter(key[-1] for key in edges if key is not None)
        for key in edges:
            if key is not None and into[key[-1]] > 1:
                raise ValueError(
                    f"{self.title}: expected at most one relation into each type, found {key} and {into[key[-1]] - 1} "
                    f"more into {key[-1]!r}: its attention over relations averages over all nodes of a batch, so it "
                    f"cannot be narrowed"
                )

    def _groups(self, given: dict[str, Any], relations: tuple[EdgeType, ...]) -> int:
        """The number of first groups whose rows the layer gets, the fewest of all types: of each the most, if several
        have as many rows."""
        hops, calls = self.forward_pass.hops, self.forward_pass.calls
        counts = {key: x.size(0) for key, x in given["x_dict"].items() if isinstance(x, Tensor) and key in hops.nodes}
        of_types = {key: hops.nodes[key].groups(count) for key, count in counts.items()}
        found = min(of_types.values(), default=0)
        if found == 0:
            wrong = next((key for key, groups in of_types.items() if groups == 0), None)
            rows = None if wrong is None else hops.nodes[wrong].rows
            raise ValueError(
                f"{self.title}: expected input rows of whole hops {rows}, found "
                f"{'no tensor' if wrong is None else f'{counts[wrong]} rows of {wrong!r}'}"
            )
        if found == 1:
            raise ValueError(
                f"{self.title}: expected one hop a layer, found that earlier layers used up the batch's {hops.depth} "
                f"hops"
            )
        if calls.finds_out:
            calls.calls.append(Call(self.title, found, relations=relations))
            return found
        call = None if self.forward_pass.differs else calls.next(self.title)
        if call is not None and call.relations == relations:
            expected = {key: hops.nodes[key].rows[call.groups - 1] for key in counts}
            fewest = min(count - expected[key] for key, count in counts.items())
            if fewest == 0 or (fewest > 0 and 1 in expected.values()):  # single rows are broadcast
                return call.groups
        self.forward_pass.differs = self.forward_pass.differs or self.title
        return found

    def _cut(self, key: Any, value: Any, rows: Mapping[NodeType, list[int]], groups: int) -> Any:
        """An entry of a dictionary by types of nodes or edges, without what the layer does not need."""
        if not isinstance(value, Tensor):
            return value
        relation = self.forward_pass.hops.relations.get(key) if isinstance(key, tuple) else None
        if relation is not None:
            edges = relation.edges.prefix(groups)
            return edges.index if value is relation.index else value[: edges.num_edges]
        return first_rows(value, rows[key][groups - 1]) if key in rows else value

    def _outputs(self, out: Any, rows: Mapping[NodeType, list[int]], groups: int) -> Any:
        return {
            key: first_rows(value, rows[key][groups - 2]) if isinstance(value, Tensor) else value
            for key, value in out.items()
        }
