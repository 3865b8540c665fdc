"""Running a model to look at what it computes, without a trace; on which batch; and whether two runs agree."""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import is_dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch_geometric import EdgeIndex

from .._user import warn
from .hops import NodeType, device_of, node_stores, relations_of
from .wrapper import modules_of, title_of

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


DROPOUTS = {"dropout", "dropout_"}
OTHER_DROPOUTS = {"alpha_dropout", "feature_alpha_dropout", "feature_dropout", "dropout1d", "dropout2d", "dropout3d"}
"""Functions that set random numbers of their first argument to 0, or scale or shift them."""


class _NothingDrops(TorchFunctionMode):
    """Within, dropout returns what it is given."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in DROPOUTS | OTHER_DROPOUTS:
            return args[0] if args else (kwargs or {})["input"]
        return func(*args, **(kwargs or {}))


@contextmanager
def trial(model: nn.Module, norms: tuple[type[nn.Module], ...], device: torch.device) -> Iterator[None]:
    """A context in which a model runs without gradients, in the modes of its modules, except that nothing is dropped,
    and that norms in training take their running statistics. Afterwards its buffers, the attributes of its modules and
    random generators are what they were (:func:`kept_state`).

    Args:
        model: the model.
        norms: the classes of norms.
        device: of what it computes with.
    """
    modules = modules_of(model)
    frozen = [module for module in modules if module.training and isinstance(module, norms)]
    buffers = [(module._buffers, dict(module._buffers)) for module in modules if module._buffers]
    generators = [device] if device.type == "cuda" else []
    with kept_state(model), torch.no_grad(), torch.random.fork_rng(generators), _NothingDrops():
        for module in frozen:
            module.training = False
        for current, before in buffers:
            current.update({n: b if b is None or is_lazy(b) else b.clone() for n, b in before.items()})
        try:
            yield
        finally:
            for current, before in buffers:
                current.clear()
                current.update(before)
            for module in frozen:
                module.training = True


def has_nodes_as_edges(batch: Any) -> bool:
    """Whether it has as many nodes as edges, so that the names of fields alone say which are nodes'; False for types,
    whose fields are apart."""
    return None in node_stores(batch) and sum(batch.num_sampled_nodes) == batch.edge_index.size(1)


def with_nodes_in_every_group(batch: Any, empty_types: bool = True) -> Any:
    """The batch, which has seeds, with more nodes: of each type at least one in each later group, and two in the first
    groups that have any, for a single row would be broadcast. No edge leads to such a node or from it; its row of every
    field is that of the type's first node, or zeros. Without ``empty_types``, a type of which the batch has no node
    gets none."""
    found, device = copy.copy(batch), device_of(batch)
    by_name = has_nodes_as_edges(batch)
    place: dict[NodeType, tuple[Tensor, int]] = {}
    stores = node_stores(found)
    for node_type, before in node_stores(batch).items():
        store = stores[node_type]
        sizes = before.num_sampled_nodes
        larger = _larger(sizes) if empty_types or any(sizes) else sizes
        num_nodes, origin, place[node_type] = sum(sizes), *_places(sizes, larger, device)
        for name, value in [*before.to_dict().items()]:
            of_nodes = isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == num_nodes
            if of_nodes and name != "edge_index" and not (by_name and ("edge" in name or name == "e_id")):
                rows = value if num_nodes else value.new_zeros(1, *value.shape[1:])
                store[name] = rows[origin.to(value.device)]
        store.num_sampled_nodes = larger
        store.num_nodes = len(origin)
    before_edges = relations_of(batch)
    for key, store in relations_of(found).items():
        (src, num_src), (dst, num_dst) = (place[None if key is None else key[end]] for end in (0, -1))
        index = before_edges[key].edge_index
        plain = index.as_tensor() if isinstance(index, EdgeIndex) else index
        numbered = torch.stack([src[plain[0]], dst[plain[1]]])
        if isinstance(index, EdgeIndex):
            numbered = EdgeIndex(numbered, sparse_size=(num_src, num_dst), sort_order=index.sort_order)
        store.edge_index = numbered
    return found


def _larger(sizes: list[int]) -> list[int]:
    """How many nodes the groups of a type have in the larger batch."""
    found = sizes[:1]
    for size in sizes[1:]:
        found.append(max(size, 1 if sum(found) else 2))
    return found


def _places(sizes: list[int], larger: list[int], device: torch.device) -> tuple[Tensor, tuple[Tensor, int]]:
    """For each node of the larger batch, the node whose rows it gets; where the nodes of the batch are in it, and how
    many it has."""
    origins, places, first, place = list[Tensor](), list[Tensor](), 0, 0
    for size, more in zip(sizes, larger, strict=True):
        origins += [torch.arange(first, first + size), torch.zeros(more - size, dtype=torch.int64)]
        places.append(torch.arange(place, place + size))
        first, place = first + size, place + more
    return torch.cat(origins).to(device), (torch.cat(places).to(device), place)


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
