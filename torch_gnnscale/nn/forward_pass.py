"""What the layers of a model share while it computes a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from .aggregate import sort_edges
from .calls import Call, Calls
from .common_rows import CommonRows
from .hops import EdgeType, HopEdges, Hops, Relation
from .saving import LayerSize


def refuse_compiled(title: str) -> None:
    """Raises NotImplementedError within ``torch.compile``: the sizes of layers change with each batch."""
    if get_eval_frame_callback() not in (None, False):  # also where a function was left to Python
        raise NotImplementedError(f"{title}: expected a model that is not compiled, found it within torch.compile")


class ForwardPass:
    """What the layers of a model share while it computes one batch.

    Args:
        hops: of the batch.
        weights: by relation, a number for each of its edges, by which its message is multiplied; or None.
        calls: the calls of layers; None: they are found out by numbers of rows, which must tell groups.
    """

    def __init__(
        self, hops: Hops, weights: Mapping[EdgeType, Tensor] | None = None, calls: list[Call] | None = None
    ) -> None:
        self.hops = hops
        self.weights = weights
        self.calls = Calls(calls)
        self.differs: str | None = None
        """The title of the first layer that was not called as in ``calls``; from then on, numbers of rows decide."""
        self.common_rows = CommonRows(hops)
        self._normalized: dict[Any, tuple[Tensor | None, HopEdges, Tensor]] = {}

    def normalized(
        self, relation: Relation, weight: Tensor | None, improved: bool, loops: bool, flow: str, dtype: torch.dtype
    ) -> tuple[HopEdges, Tensor]:
        """A relation's edges with self loops, and their weights [e], after PyG's ``gcn_norm``; computed once."""
        key = (relation.key, id(weight), improved, loops, dtype)
        if key not in self._normalized:
            rows = relation.dst.rows
            index, norm = gcn_norm(relation.edges.edges.index, weight, rows[-1], improved, loops, flow, dtype)
            edges, order = sort_edges(index, rows[-1], rows[-1])
            ends = relation.ends_in(edges.forward.ptr)
            # The weight is kept, because its id may be reused when it is freed.
            self._normalized[key] = weight, HopEdges(edges, rows, rows, ends), norm[order]
        return self._normalized[key][1:]


class LayerOfPass(Protocol):
    """What computes a MessagePassing layer during a forward pass."""

    title: str
    """The layer's name and kind, for errors."""

    def size(self) -> LayerSize:
        """What the layer computes per row."""

    def enter(self, forward_pass: ForwardPass) -> None:
        """From now on the layer computes on the batch of this forward pass."""

    def leave(self) -> None:
        """The layer is again what it was before :meth:`enter`."""
