"""Operands that have rows of different hops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from .._private import current_function_mode
from .batches import Functions
from .hops import BatchHops, NodeRows
from .wrapper import running_here

JOINS = {"cat", "concat", "stack"}
"""Functions of a list of tensors."""
_ELEMENTWISE = {"add", "sub", "mul", "div", "truediv", "true_divide", "pow", "maximum", "minimum", "where", "lerp",
                "addcmul", "addcdiv", "max", "min", "gt", "ge", "lt", "le", "eq", "ne", "and", "or", "xor"}  # fmt: skip
NARROWED = JOINS | {
    spelled for name in _ELEMENTWISE for spelled in (name, f"{name}_", f"__{name}__", f"__i{name}__", f"__r{name}__")
}
"""Functions whose operands are cut."""

_OF_SIZES = {"__get__", "__len__", "dim", "size", "numel", "is_floating_point", "is_complex"}
"""Functions that are not noted."""


class CommonRows(TorchFunctionMode):
    """If the operands of an element-wise function or a join have rows of different hops of a batch, cuts them to the
    rows that all of them have. Torch itself would refuse such operands, except for a single row, which it would add to
    all: one that comes from a layer is a node's, and is followed from function to function."""

    everywhere = False
    """Whether it is active also within those layers whose operands have rows of the same hops, so that none is cut."""

    def __init__(self, hops: BatchHops) -> None:
        super().__init__()
        self.hops = hops
        self.called: list[str] = []
        """The functions of tensors with rows, and the layers, that were called so far, in their order."""
        self.compared: Functions | None = None
        """What the model called when it was compared with the model on whole batches, if it was."""
        self.begins = ""
        """The first function that it did not call then, and its module."""
        self.only_notes = False
        """Whether operands are left as they are."""
        self._quiet = False
        self._single = WeakIdKeyDictionary()
        """By tensor that comes from the single row of a layer: the nodes of its type."""

    def returned(self, out: Any, nodes: NodeRows) -> None:
        """Says that a layer returned rows of the first of these nodes; other objects are left alone."""
        if isinstance(out, Tensor) and out.dim() > 0 and out.size(0) == 1 < nodes.rows[-1]:
            self._single[out] = nodes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        self.note(name, args)
        if self.only_notes:
            return func(*args, **kwargs)
        if name in NARROWED:
            args, kwargs = self._cut(name, args, kwargs)
        out = func(*args, **kwargs)
        if self._single:
            nodes = next((self._single[t] for t in _tensors((*args, *kwargs.values())) if t in self._single), None)
            for tensor in _tensors([out]) if nodes is not None else ():
                self._single[tensor] = nodes
        return out

    def note(self, name: str, args: Any) -> None:
        """Notes that a function is called; but not if it reads a size or an attribute, or has a single number."""
        first = args[0] if args else None
        if name in _OF_SIZES or self._quiet or (type(first) is Tensor and first.dim() == 0):
            return
        self.called.append(name)
        if self.compared is not None and not self.begins and name not in self.compared.names:
            self.begins = f"{running_here()}: {name}"

    @contextmanager
    def noting(self) -> Iterator[None]:
        """A context in which operands are left as they are, and functions are noted."""
        before, self.only_notes = self.only_notes, True
        try:
            yield
        finally:
            self.only_notes = before

    @contextmanager
    def noting_one(self, name: str) -> Iterator[None]:
        """A context in which all that is called is noted as one function."""
        self.note(name, ())
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def paused(self) -> _Paused:
        """A context in which operands are left as they are, and functions are not noted: for code of this package.
        Without effect if this is not the innermost mode."""
        return _Paused(self)

    def _cut(self, name: str, args: Any, kwargs: Any) -> Any:
        joins = name in JOINS
        operands = [*(args[0] if joins and args else args)]
        tensors = [value for value in operands if isinstance(value, Tensor)]
        if joins and name != "stack":
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            if not tensors or dim in (0, -tensors[0].dim()):
                return args, kwargs
        most = max((t.dim() for t in tensors), default=0)
        # A vector's rows are the columns of a matrix, and a single row is broadcast unless it is a node's.
        of_rows = [t for t in tensors if t.dim() == most and most > 0]
        sizes = {t.size(0) for t in of_rows if joins or t.size(0) != 1}
        if self._single and any(t.size(0) == 1 and self._is_node_of(t, sizes) for t in of_rows):
            sizes.add(1)
        if len(sizes) < 2 or not self.hops.are_rows(sizes):
            return args, kwargs
        rows = min(sizes)
        cut = [
            v[:rows] if isinstance(v, Tensor) and v.dim() == most and v.size(0) in sizes and v.size(0) > rows else v
            for v in operands
        ]
        return ((cut, *args[1:]), kwargs) if joins else (tuple(cut), kwargs)

    def _is_node_of(self, single: Tensor, sizes: Iterable[int]) -> bool:
        """Whether a single row is that of a node of a type of which each size is the number of some first nodes."""
        nodes = self._single.get(single)
        return nodes is not None and nodes.has(sizes)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among values, and in lists and tuples of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


class _Paused:
    def __init__(self, mode: CommonRows) -> None:
        self.mode = mode
        self.left = False

    def __enter__(self) -> None:
        self.left = current_function_mode() is self.mode
        if self.left:
            self.mode.__exit__(None, None, None)

    def __exit__(self, *_: Any) -> None:
        if self.left:
            self.mode.__enter__()
