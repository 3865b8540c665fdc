"""Finds out which tensors a computation reads."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .._private import TorchDispatchMode

Marks = frozenset[Hashable]
_NONE: Marks = frozenset()
_TO_PYTHON = (Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__)
"""Methods that give values to others than torch, which :class:`TorchDispatchMode` does not see."""


class Reads(TorchDispatchMode):
    """Within, every tensor bears the marks of all tensors that it was computed from.

    Marks belong to memory: a view bears those of its base, and what is written in place adds to them. If numbers are
    taken out of a tensor to Python, every tensor bears the marks of that tensor from then on.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of: dict[int, tuple[Any, Marks]] = {}  # with the memory, so that its number is not given to another
        self.taken: Marks = _NONE
        """Of tensors whose numbers were taken to Python."""
        self._to_python = _ToPython(self)

    def __enter__(self) -> Reads:
        self._to_python.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._to_python.__exit__(*error)

    def mark(self, tensor: Tensor, marks: Iterable[Hashable]) -> None:
        """Gives a tensor these marks in place of others."""
        storage = tensor.untyped_storage()
        self._of[storage._cdata] = storage, frozenset(marks)

    def marks(self, *values: Any) -> Marks:
        """The marks of all tensors in some values."""
        found = self.taken
        for tensor in _tensors(values):
            found |= self._of.get(_memory(tensor), (None, _NONE))[1]
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        marks = self.marks(args, list(kwargs.values()))
        out = func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            self.taken |= marks
        written = [
            kwargs.get(argument.name, args[place] if place < len(args) else None)
            for place, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if marks:
            for tensor in _tensors([out, written]):
                self.mark(tensor, marks | self.marks(tensor))
        return out


class _ToPython(TorchFunctionMode):
    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _TO_PYTHON:
            self._reads.taken |= self._reads.marks(args)
        return func(*args, **(kwargs or {}))


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else -1


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors with memory of their own in nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        if value.layout == torch.strided:
            yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _tensors(entry)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
