"""Whether two runs of a model compute the same, and which module differs first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn

from .wrapper import title_of

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""The largest difference allowed, relative to the largest finite output; 0.1 for 16 bits, none for integers."""


def agree(expected: Any, found: Any) -> bool:
    """Whether the rows that both have agree, of tensors, or of all tensors that two dictionaries have in common. An
    infinity or NaN agrees only with an equal one."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return all(agree(expected[key], found[key]) for key in expected if key in found)
    if not isinstance(expected, Tensor) or not isinstance(found, Tensor):
        return type(expected) is type(found)
    rows = min(len(expected), len(found))
    expected, found = expected[:rows], found[:rows]
    if expected.shape != found.shape or not expected.numel():
        return expected.shape == found.shape
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(expected, found)
    finite = expected[expected.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    tolerance = _TOLERANCE.get(expected.dtype, 0.1) * max(largest, 1e-30)
    return torch.allclose(found.to(expected.dtype), expected, rtol=0, atol=tolerance, equal_nan=True)


@contextmanager
def outputs(model: nn.Module) -> Iterator[dict[str, Any]]:
    """The output of each module, a tensor or a dictionary, by name, in the order of the calls; without the modules
    within a layer. If a module is called several times, its first output."""
    found: dict[str, Any] = {}

    def keep(name: str, _module: nn.Module, _args: Any, out: Any) -> None:
        if name not in found and (isinstance(out, Mapping) or (isinstance(out, Tensor) and out.dim() > 0)):
            found[name] = dict(out) if isinstance(out, Mapping) else out

    with ExitStack() as stack:
        layers = tuple(f"{n}." for n, m in model.named_modules() if isinstance(m, pyg_nn.MessagePassing))
        for name, module in model.named_modules():
            if name and not name.startswith(layers):
                stack.callback(module.register_forward_hook(partial(keep, name)).remove)
        yield found


def first_difference(model: nn.Module, expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The name and kind of the first module whose outputs differ; the model's if none does."""
    name = next((n for n, out in found.items() if n in expected and not agree(expected[n], out)), "")
    return title_of(name, model.get_submodule(name))
