"""Ordinary PyG models, computing for each layer no more than a batch's seeds need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .hops import Hops, first_rows
from .layer import Normalized, narrow_layer

_JOINS = {"cat", "concat", "stack"}
_ELEMENTWISE = {"add", "sub", "mul", "div", "truediv", "true_divide", "pow", "maximum", "minimum", "where", "lerp",
                "addcmul", "addcdiv", "gt", "ge", "lt", "le", "eq", "ne", "and", "or", "xor", *_JOINS}  # fmt: skip
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""How far outputs may differ, relative to the largest, when a model is checked; 0.1 for smaller types."""


def default_call(model: nn.Module, batch: Any) -> Any:
    """``model(batch.x, batch.edge_index)``."""
    return model(batch.x, batch.edge_index)


class Narrowed(nn.Module):
    """What :func:`narrow` returns; ``module`` is the model itself, unchanged."""

    def __init__(self, module: nn.Module, call: Callable[[Any, Any], Any] = default_call, check: bool = True) -> None:
        super().__init__()
        self.module = module
        self.call = call
        self._to_check = check
        if not self._layers():
            raise ValueError(f"model: expected one with MessagePassing layers, found none in {type(module).__name__}")

    def forward(self, batch: Any) -> Tensor:
        """The model's output for the batch's seeds: [batch_size, ...].

        Raises:
            ValueError: the batch has no hops, or the model cannot be narrowed; the message says why.
        """
        hops = Hops(batch, self._to_check)
        if self._to_check:
            self._check(batch, hops)
            self._to_check = False
        return self._run(batch, hops)

    def _layers(self) -> dict[str, pyg_nn.MessagePassing]:
        return {name: m for name, m in self.module.named_modules() if isinstance(m, pyg_nn.MessagePassing)}

    def _run(self, batch: Any, hops: Hops) -> Tensor:
        with ExitStack() as stack:
            normalized: Normalized = {}
            for name, layer in self._layers().items():
                stack.enter_context(narrow_layer(name, layer, hops, normalized))
            stack.enter_context(_NarrowRows(hops))
            return first_rows(self.call(self.module, batch), batch.batch_size)

    @torch.no_grad()
    def _check(self, batch: Any, hops: Hops) -> None:
        """Compares with the model on the whole batch, both in evaluation mode; names the first module that differs."""
        training = {module: module.training for module in self.modules()}
        self.eval()
        try:
            with _outputs(self.module) as whole:
                expected = self.call(self.module, batch)[: batch.batch_size]
            with _outputs(self.module) as narrowed:
                found = self._run(batch, hops)
        finally:
            for module, mode in training.items():
                module.training = mode
        if _agree(expected, found):
            return
        name = next((n for n, out in narrowed.items() if n in whole and not _agree(whole[n], out)), "the model")
        kind = type(self.module.get_submodule(name)).__name__ if name != "the model" else type(self.module).__name__
        raise ValueError(
            f"{name} ({kind}): expected the seeds' rows to be those of the whole batch, found others; it reads more "
            f"than a node and its sampled neighbors (the degrees of sources, several hops, statistics of all rows), so "
            f"the model cannot be narrowed"
        )


def narrow(model: nn.Module, call: Callable[[Any, Any], Any] = default_call, check: bool = True) -> Narrowed:
    """Lets a PyG model compute only what the seeds of a mini-batch need.

    Nodes of a batch are numbered hop by hop, so what layer l needs is a prefix of the rows and edges: of L layers, the
    first computes rows for all but the last hop's nodes, the last for the seeds alone. Every MessagePassing layer gets
    its prefix and gives one that is a hop shorter; sums, means, extremes and attention are aggregated over the CSC
    without writing messages out where the layer's message is a (weighted) row. Outputs and gradients are those of the
    model on the whole batch. Residuals and JumpingKnowledge take the common prefix of their operands.

    On a GPU, layers are narrowed as well, and PyG's own messages and scatters aggregate there: the aggregation over the
    CSC is one of the CPU.

    Normalizations over the rows of a batch (BatchNorm in training) see fewer rows, as with PyG's ``trim_to_layer``.
    Layers that read more than a node and its neighbors are found by comparing the first batch with the model on the
    whole of it, and refused.

    Args:
        model: any module with MessagePassing layers that get the batch's ``edge_index``.
        call: how the model is called with a batch.
        check: compare the first batch; costs one forward pass of the model.

    Returns:
        A module to be called with a batch; it shares the model's parameters.

    Raises:
        ValueError: the model has no MessagePassing layers.
    """
    return Narrowed(model, call, check)


def _agree(expected: Tensor, found: Tensor) -> bool:
    rows = min(len(expected), len(found))
    expected, found = expected[:rows], found[:rows]
    if expected.shape != found.shape or not expected.numel():
        return expected.shape == found.shape
    tolerance = _TOLERANCE.get(expected.dtype, 0.1) * max(float(expected.abs().max()), 1e-30)
    return bool(((expected - found).abs() <= tolerance).all()) or torch.equal(expected, found)


@contextmanager
def _outputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The outputs of a model's modules, but of the inner ones of layers, in the order in which they are made."""
    found: dict[str, Tensor] = {}

    def keep(name: str, _module: nn.Module, _args: Any, out: Any) -> None:
        if isinstance(out, Tensor) and out.dim() > 0 and name not in found:
            found[name] = out

    with ExitStack() as stack:
        layers = tuple(f"{n}." for n, m in model.named_modules() if isinstance(m, pyg_nn.MessagePassing))
        for name, module in model.named_modules():
            if name and not name.startswith(layers):
                stack.callback(module.register_forward_hook(partial(keep, name)).remove)
        yield found


class _NarrowRows(TorchFunctionMode):
    """Operands of different hops, where torch would refuse them: the rows that all of them have."""

    def __init__(self, hops: Hops) -> None:
        super().__init__()
        self.hops = hops

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").strip("_")
        if name not in _ELEMENTWISE and name[:1] in ("i", "r"):
            name = name[1:]
        if name in _ELEMENTWISE:
            args, kwargs = self._narrow(name, args, kwargs)
        return func(*args, **kwargs)

    def _narrow(self, name: str, args: Any, kwargs: Any) -> Any:
        joins = name in _JOINS
        operands = [*(args[0] if joins and args else args)]
        tensors = [value for value in operands if isinstance(value, Tensor)]
        if joins and name != "stack":
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            if not tensors or dim in (0, -tensors[0].dim()):
                return args, kwargs
        most = max((t.dim() for t in tensors), default=0)
        # Rows of a vector meet columns of a matrix, and one row meets all.
        sizes = {t.size(0) for t in tensors if t.dim() == most and most > 0 and (joins or t.size(0) > 1)}
        if len(sizes) < 2 or not all(self.hops.groups(size) for size in sizes):
            return args, kwargs
        rows = min(sizes)
        cut = [
            v[:rows] if isinstance(v, Tensor) and v.dim() == most and v.size(0) in sizes and v.size(0) > rows else v
            for v in operands
        ]
        return ((cut, *args[1:]), kwargs) if joins else (tuple(cut), kwargs)
