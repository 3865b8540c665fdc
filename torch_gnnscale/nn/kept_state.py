"""The Python state of a model: what its modules have besides parameters and buffers, and random generators."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .._warn import warn

LARGE = 2**20
"""Tensors with more numbers than this, neither parameters nor buffers, are not copied; a change in place is named."""


@contextmanager
def kept_state(model: nn.Module) -> Iterator[None]:
    """A context after which a model's modules have the attributes that they had before, those within dictionaries,
    lists, sets, deques, dataclasses and namespaces too, and Python's, NumPy's and their own generators their states.

    Parameters, buffers and modules with parameters that are not initialized yet are left alone, and so are private
    attributes of modules that contain such modules. A warning names a large tensor that is neither parameter nor buffer
    and was changed in place, unless that was by ``.data``; a NumPy array as large is left alone, and so are objects of
    other classes.
    """
    found = _Kept()
    found.keep(model, type(model).__name__)
    try:
        yield
    finally:
        for put_back in found.puts:
            put_back()


class _Kept:
    """What puts back the state of objects."""

    def __init__(self) -> None:
        own, of_numpy = random.getstate(), np.random.get_state()
        self.puts: list[Callable[[], Any]] = [lambda: random.setstate(own), lambda: np.random.set_state(of_numpy)]
        self._seen: dict[int, Any] = {}  # by identity, so that no object ends and leaves its identity to another

    def keep(self, value: Any, name: str) -> None:
        """Keeps the state of an object and of what it contains. ``name``: for warnings."""
        if id(value) in self._seen or value is None or isinstance(value, (bool, int, float, str)):
            return
        self._seen[id(value)] = value
        if isinstance(value, nn.Module):
            self._keep_module(value, name)
        elif isinstance(value, Tensor):
            self._keep_tensor(value, name)
        elif isinstance(value, np.ndarray):
            self._keep_array(value)
        elif isinstance(value, dict):
            self._keep_dictionary(value, name)
        elif isinstance(value, (list, deque)):
            before = list(value)
            self.puts.append(lambda: None if _same(value, before) else (value.clear(), value.extend(before)))
            self._keep_all(before, name)
        elif isinstance(value, set):
            entries = value.copy()
            self.puts += [value.clear, lambda: value.update(entries)]
        elif isinstance(value, tuple):
            self._keep_all(value, name)
        elif isinstance(value, torch.Generator):
            state = value.get_state()
            self.puts.append(lambda: value.set_state(state))
        elif isinstance(value, random.Random):
            of_python = value.getstate()
            self.puts.append(lambda: value.setstate(of_python))
        elif isinstance(value, np.random.Generator):
            bits, of_bits = value.bit_generator, value.bit_generator.state
            self.puts.append(lambda: setattr(bits, "state", of_bits))
        elif isinstance(value, np.random.RandomState):
            of_legacy = value.get_state()
            self.puts.append(lambda: value.set_state(of_legacy))
        elif isinstance(value, SimpleNamespace) or (is_dataclass(type(value)) and hasattr(value, "__dict__")):
            self._keep_dictionary(vars(value), name)

    def _keep_module(self, module: nn.Module, name: str) -> None:
        for child_name, child in module._modules.items():
            self.keep(child, f"{name}.{child_name}")
        if any(map(is_lazy, module.parameters(recurse=False))):
            return
        for parameter in (*module._parameters.values(), *module._buffers.values()):
            if parameter is not None:
                self._seen[id(parameter)] = parameter
        for entries in (module._modules, module._parameters, module._buffers):
            self._seen[id(entries)] = entries
        if any(map(is_lazy, module.parameters())):  # the first call removes hooks by which it gives them their sizes
            self._keep_dictionary(module.__dict__, name, lambda key: not key.startswith("_"))
        else:
            self._keep_dictionary(module.__dict__, name)

    def _keep_dictionary(
        self, value: dict[Any, Any], name: str, is_kept: Callable[[Any], bool] = lambda _: True
    ) -> None:
        before = {key: entry for key, entry in value.items() if is_kept(key)}

        def put_back() -> None:
            now = {key: entry for key, entry in value.items() if is_kept(key)}
            if list(now) != list(before) or not _same(now.values(), before.values()):
                for key in now:
                    del value[key]
                value.update(before)

        self.puts.append(put_back)
        for key, entry in before.items():
            self.keep(entry, f"{name}.{key}")

    def _keep_all(self, values: Any, name: str) -> None:
        for value in values:
            self.keep(value, name)

    def _keep_tensor(self, tensor: Tensor, name: str) -> None:
        if tensor.is_inference() or tensor.layout != torch.strided:
            return
        version, copied = tensor._version, None
        if tensor.numel() <= LARGE:
            copied = tensor.detach().clone()

        def put_back() -> None:
            if tensor._version == version and (copied is None or _equal(tensor, copied)):  # by .data it has its version
                return
            if copied is None:
                warn(f"{name}: expected a buffer, found a tensor that the model changes in place: that it was tried on "
                     f"its first batch shows there; use register_buffer")  # fmt: skip
                return
            with torch.no_grad():
                tensor.copy_(copied)

        self.puts.append(put_back)

    def _keep_array(self, array: np.ndarray) -> None:
        if array.size <= LARGE and array.flags.writeable:
            copied = array.copy()
            self.puts.append(lambda: np.copyto(array, copied))


def _equal(tensor: Tensor, other: Tensor) -> bool:
    """Whether all numbers are equal, or both are NaN."""
    return bool(((tensor == other) | ((tensor != tensor) & (other != other))).all())


def _same(values: Any, before: Any) -> bool:
    return len(values) == len(before) and all(value is was for value, was in zip(values, before, strict=True))
