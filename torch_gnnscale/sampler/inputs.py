"""The inputs of batches, of one type or of several, with time windows or without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput
from torch_geometric.typing import EdgeType, NodeType

T = TypeVar("T", NodeSamplerInput, EdgeSamplerInput)


class _Windowed:
    """Inputs with time windows. For each, edges are sampled whose times are from ``start_time`` to ``time``, both
    included."""

    start_time: Tensor

    def __getitem__(self, index: Any) -> Any:
        at = torch.as_tensor(index, dtype=torch.int64)
        return windowed(super().__getitem__(at), self.start_time[at])  # type: ignore[misc]


class WindowedNodes(_Windowed, NodeSamplerInput):
    """Seeds of one type with time windows."""


class WindowedLinks(_Windowed, EdgeSamplerInput):
    """Links of one relation with time windows."""


def windowed(inputs: NodeSamplerInput | EdgeSamplerInput, start_time: Tensor) -> WindowedNodes | WindowedLinks:
    """The inputs, which have times, with the starts of their windows."""
    kind: Any = WindowedNodes if isinstance(inputs, NodeSamplerInput) else WindowedLinks
    made = kind.__new__(kind)  # PyG's constructors copy
    made.__dict__.update(inputs.__dict__, start_time=start_time)
    return made


def start_time_of(inputs: Any) -> Any:
    """Where the time windows of inputs begin: [inputs], or a dictionary by type; None if there are no windows."""
    return getattr(inputs, "start_time", None)


class ByType(Generic[T]):
    """Inputs of several types. Position p is one of the first type's, then of the second's, and so on.

    Args:
        inputs: of each type; their ``input_type`` is set, and all differ.
    """

    def __init__(self, inputs: Sequence[T]) -> None:
        self.inputs = tuple(inputs)
        """Of each type, in the order in which the user gave them."""

    @property
    def counts(self) -> list[int]:
        """How many inputs there are of each type."""
        return [(entry.node if isinstance(entry, NodeSamplerInput) else entry.row).numel() for entry in self.inputs]

    @property
    def types(self) -> Tensor:
        """The number of each input's type: int64, shape [inputs]."""
        return torch.repeat_interleave(torch.tensor(self.counts))

    def __getitem__(self, positions: Any) -> Any:
        """The inputs at these positions. A type without inputs there stays, with none."""
        at = torch.as_tensor(positions, dtype=torch.int64)
        chosen, begin = [], 0
        for entry, count in zip(self.inputs, self.counts, strict=True):
            chosen.append(entry[at[(at >= begin) & (at < begin + count)] - begin])
            begin += count
        return type(self)(chosen)

    @property
    def input_type(self) -> tuple:
        """The types."""
        return tuple(entry.input_type for entry in self.inputs)

    def _field(self, name: str) -> dict[Any, Tensor] | None:
        """A field of the inputs by type, of those that have it; None if none has."""
        found = {entry.input_type: getattr(entry, name, None) for entry in self.inputs}
        return {of: value for of, value in found.items() if value is not None} or None

    input_id = property(lambda self: self._field("input_id"), doc="Ids of the inputs, by type.")
    time = property(lambda self: self._field("time"), doc="Times, by type; None without any.")
    start_time = property(lambda self: self._field("start_time"), doc="Starts of time windows, by type; or None.")


class NodesByType(ByType[NodeSamplerInput], NodeSamplerInput):
    """Seeds of several node types: ``node``, ``input_id`` and ``time`` are dictionaries by node type."""

    node: dict[NodeType, Tensor] = property(lambda self: self._field("node"))  # type: ignore[assignment]


class LinksByType(ByType[EdgeSamplerInput], EdgeSamplerInput):
    """Links of several relations: ``row``, ``col``, ``label``, ``input_id`` and ``time`` are dictionaries by edge
    type."""

    row: dict[EdgeType, Tensor] = property(lambda self: self._field("row"))  # type: ignore[assignment]
    col: dict[EdgeType, Tensor] = property(lambda self: self._field("col"))  # type: ignore[assignment]
    label = property(lambda self: self._field("label"))  # type: ignore[assignment]


def each_type(inputs: Any) -> tuple[Any, ...]:
    """The inputs of each type, of one or several."""
    return inputs.inputs if isinstance(inputs, ByType) else (inputs,)


def inputs_ids(inputs: NodeSamplerInput | EdgeSamplerInput) -> Tensor:
    """The ids of inputs of one type: seeds [s], or links [2, m]."""
    return inputs.node if isinstance(inputs, NodeSamplerInput) else torch.stack([inputs.row, inputs.col])


def check_no_mask(name: str, nodes: Tensor, num_nodes: int) -> None:
    """Raises ValueError for a 0 or 1 of type uint8 for each node: it could be ids or a mask."""
    if nodes.dtype == torch.uint8 and len(nodes) == num_nodes > 0 and int(nodes.max()) <= 1:
        raise ValueError(
            f"{name}: expected a mask of torch.bool, or ids, found uint8 values of 0 and 1 for each of {num_nodes} "
            f"nodes, which could be either; pass {name}.bool() for a mask, {name}.long() for ids"
        )
