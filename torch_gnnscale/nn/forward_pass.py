"""What the layers of a model share while it computes a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from .._private import get_eval_frame_callback
from .aggregate import sort_edges
from .batches import Call, Calls, EdgeType, NodeType
from .common_rows import CommonRows
from .hops import BatchHops, HopEdges, Relation
from .saving import LayerSize
from .wrapper import Shadow


def refuse_compiled(title: str) -> None:
    """Raises NotImplementedError within ``torch.compile``: the sizes of layers change with each batch."""
    if get_eval_frame_callback() not in (None, False):  # also where a function was left to Python
        raise NotImplementedError(f"{title}: expected a model that is not compiled, found it within torch.compile")


class Given(NamedTuple):
    """Rows of the nodes of one type that a layer gets."""

    number: int
    """How many there are."""
    rows: Sequence[int]
    """``rows[g - 1]`` is the number of those that are used in a call on the first g groups."""


class ForwardPass:
    """What the layers of a model share while it computes one batch.

    Args:
        hops: of the batch.
        weights: by relation, a number for each of its edges, by which its message is multiplied; or None.
        calls: the calls of layers; None: they are found out by numbers of rows, which must tell groups.
    """

    def __init__(
        self, hops: BatchHops, weights: dict[EdgeType, Tensor] | None = None, calls: list[Call] | None = None
    ) -> None:
        self.hops = hops
        self.weights = weights
        self.calls = Calls(calls)
        self.differs: str | None = None
        """The title of the first layer that was not called as in ``calls``; from then on, numbers of rows decide."""
        self.returned: dict[NodeType, int] = {}
        """By type of nodes, of how many first groups a layer has returned rows, at least."""
        self.common_rows = CommonRows(hops)
        self._normalized: dict[Any, tuple[Tensor | None, HopEdges, Tensor]] = {}

    def groups(self, title: str, found: int, relations: tuple[EdgeType, ...], given: Sequence[Given]) -> int:
        """The number of first groups whose rows a layer gets in the call that comes next; it returns those of one less.

        Args:
            title: the layer's.
            found: that number by the numbers of its input's rows.
            relations: whose edges it reads.
            given: the rows that it gets, of each type.
        """
        groups = self._groups(title, found, relations, given)
        for relation in relations:
            node_type = None if relation is None else relation[-1]
            self.returned[node_type] = min(self.returned.get(node_type, groups), groups - 1)
        return groups

    def _groups(self, title: str, found: int, relations: tuple[EdgeType, ...], given: Sequence[Given]) -> int:
        calls = self.calls
        if calls.finds_out:
            calls.calls.append(Call(title, found, relations=relations))
            return found
        call = None if self.differs else calls.next(title)
        if call is not None and call.relations == relations:
            expected = [rows[call.groups - 1] for _, rows in given]
            fewest = min(number - least for (number, _), least in zip(given, expected, strict=True))
            # Types may have rows of more groups, of which the layer uses the fewest; a single row may have been
            # broadcast to them in a module that is compiled.
            if fewest == 0 or (fewest > 0 and 1 in expected):
                return call.groups
        self.differs = self.differs or title
        return found

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


class JoinOfPass(Protocol):
    """What computes a module during a forward pass."""

    def enter(self, forward_pass: ForwardPass) -> None:
        """From now on the module computes on the batch of this forward pass."""

    def leave(self) -> None:
        """The module is again what it was before :meth:`enter`."""


class LayerOfPass(JoinOfPass, Protocol):
    """What computes a MessagePassing layer during a forward pass."""

    title: str
    """The layer's name and kind, for errors."""

    def size(self) -> LayerSize:
        """What the layer computes per row."""


class NormOfPass:
    """Notes all that a norm calls as one function: a norm with running statistics takes another way in training than
    when it is compared with the whole batch.

    Args:
        module: the norm.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self._methods = module, Shadow(module)

    def enter(self, forward_pass: ForwardPass) -> None:
        """From now on the norm is one function of this forward pass."""
        self._noting, self._forward = forward_pass.common_rows.noting_one, self.module.forward
        self._methods.set("forward", self.computed)

    def leave(self) -> None:
        """The norm is again what it was before :meth:`enter`."""
        self._methods.restore()
        del self._noting, self._forward

    def computed(self, *args: Any, **kwargs: Any) -> Any:
        """The norm's ``forward``."""
        with self._noting(type(self.module).__name__):
            return self._forward(*args, **kwargs)
