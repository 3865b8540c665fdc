"""The seeds that a user gives to a loader, of one node type or of several by type, and the time windows of inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.loader.utils import get_input_nodes
from torch_geometric.sampler import NodeSamplerInput

from .. import ops
from ..ops.arguments import as_ids, as_tensor, check_int, check_tensor
from ..sampler.base import ByType, KeyedSampler, NodesByType, check_no_mask, each_type, name_of, windowed
from ..sampler.graph import check_exact, check_times, check_windows
from .checks import check_input_id
from .given_data import GivenData


class GivenWindows(NamedTuple):
    """Arguments of a loader. The window of an input is ``start <= t <= end``."""

    end_name: str
    """The name of the argument that gives the ends."""
    start_name: str
    """The name of the argument ``start``."""
    start: Any
    """Where windows begin, in the form of the ends; None without this argument."""
    length: Any
    """The argument ``time_window``: end - start of all windows; None without it."""

    @property
    def given(self) -> bool:
        """Whether there are windows."""
        return self.start is not None or self.length is not None

    def check(self, sampler: KeyedSampler) -> None:
        """Raises ValueError for both arguments at once, or for a loader's sampler that takes no windows."""
        if self.start is not None and self.length is not None:
            raise ValueError(f"{self.start_name}, time_window: expected one of them, found both")
        if not self.given:
            return
        if not sampler.keyed or not (sampler.takes_windows or not sampler.is_temporal):
            raise ValueError(
                f"{self._name}: expected a KeyedSampler that takes windows (takes_windows), found a {name_of(sampler)}"
            )
        if not sampler.is_temporal:
            raise ValueError(f"{self._name}: expected none without time_attr, found some")

    def of(self, inputs: Any, starts: Mapping[Any, Tensor], typed: bool) -> Any:
        """A loader's inputs with windows, if there are some.

        Args:
            inputs: with their times, of one type or of several.
            starts: ``start`` by type of inputs.
            typed: whether the user gave dictionaries, which errors then name with the type.

        Raises:
            TypeError, ValueError: what is no time, window or number of times; inputs without an end; a window that ends
                before it begins.
        """
        if not self.given:
            return inputs
        found = []
        for entry in each_type(inputs):
            of = f"[{entry.input_type!r}]" if typed else ""
            if self.length is None and entry.input_type not in starts:
                found.append(entry)
                continue
            if entry.time is None:
                raise ValueError(
                    f"{self._name}: expected {self.end_name}{of}, where windows end, beside it, found none"
                )
            check_times(f"{self.end_name}{of}", entry.time, entry.time.numel())
            start = starts[entry.input_type] if self.length is None else _before(self.end_name, entry.time, self.length)
            check_windows(f"{self._name}{of}", start.cpu(), f"{self.end_name}{of}", entry.time)
            found.append(windowed(entry, start.cpu()))
        return type(inputs)(found) if isinstance(inputs, ByType) else found[0]

    @property
    def _name(self) -> str:
        return self.start_name if self.length is None else "time_window"


def _before(name: str, end: Tensor, length: Any) -> Tensor:
    """``end - length``: int64 where both are whole numbers, and at least -2^63; else float64, of which an infinite
    length makes -inf. ``name``: of the ends."""
    if isinstance(length, bool) or not isinstance(length, Real):
        raise TypeError(f"time_window: expected a number, found {type(length).__name__}")
    number: Any = length
    if not number >= 0:
        raise ValueError(f"time_window: expected a number of at least 0, found {length}")
    left = int(min(number, 1 << 64))  # of a longer one, each start is before -2^63
    if end.is_floating_point() or left != min(number, 1 << 64):
        check_exact(name, end, f"windows of {length}")
        try:
            size = float(number)
        except OverflowError:
            size = math.inf
        return (
            torch.full(end.shape, -math.inf, dtype=torch.float64) if size == math.inf else end.to(torch.float64) - size
        )
    least, most = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    start = end.to(torch.int64)
    while left > 0:  # in steps that int64 has
        step = min(left, most)
        start = torch.where(start < least + step, least, start - step)
        left -= step
    return start


class OrderedSeeds(NamedTuple):
    """Seeds as the constructors of loaders take them."""

    first: Any
    """The seeds in PyG's form; of several types, those of the first."""
    time: Tensor | None
    """Their times."""
    input_id: Tensor | None
    """Their ids."""
    num_seeds: Callable[[], int]
    """Returns how many seeds there are."""
    by_type: NodesByType | None = None
    """The seeds of several types."""


class GivenSeeds(NamedTuple):
    """Arguments of a loader: ``nodes``, ``time``, ``start_time`` and ``input_id`` by node type if ``typed``."""

    nodes: Any
    time: Any
    start_time: Any
    """Where time windows begin."""
    input_id: Any
    sizes: dict[Any, int] | None
    """How many seeds of each type a batch has; None: as many as its part of the permutation has."""
    typed: bool
    name: str
    """The name of the argument with the seeds."""
    time_name: str
    """The name of the argument with their times."""

    @classmethod
    def of(
        cls, nodes: Any, time: Any, start_time: Any, input_id: Any, batch_size: Any, *, name: str = "input_nodes",
        time_name: str = "input_time",
    ) -> GivenSeeds:  # fmt: skip
        """A loader's arguments ``input_nodes`` (or ``name``), ``input_time`` (or ``time_name``), ``input_start_time``,
        ``input_id`` and ``batch_size``, checked for their form.

        Raises:
            TypeError, ValueError: a dictionary by type beside seeds of one type, or one of other types than the seeds.
        """
        if not isinstance(nodes, dict):
            for argument, value in ((time_name, time), ("input_start_time", start_time)):
                if value is not None:
                    check_tensor(argument, value)
            if isinstance(batch_size, dict):
                raise TypeError(f"batch_size: expected a number, because {name} is no dictionary, found a dict")
            return cls(nodes, time, start_time, input_id, None, False, name, time_name)
        if not nodes:
            raise ValueError(f"{name}: expected seeds of at least one node type, found an empty dictionary")
        fields = {time_name: time, "input_start_time": start_time, "input_id": input_id}
        for argument, value in fields.items():
            check_types(argument, value, nodes, name)
            for of, tensor in (value or {}).items():
                check_tensor(f"{argument}[{of!r}]", tensor)
        if input_id is not None and (missing := [of for of in nodes if of not in input_id]):
            raise ValueError(f"input_id: expected ids of the seeds of all types, found none of {missing}")
        sizes = sizes_by_type(batch_size, nodes, name)
        return cls(nodes, time or None, start_time, input_id, sizes, True, name, time_name)

    def in_order(self, data: GivenData, sampler: KeyedSampler) -> OrderedSeeds:
        """The seeds as constructors take them; None for all nodes becomes their ids.

        Args:
            data, sampler: of the loader.

        Raises:
            TypeError, ValueError, IndexError: unknown types; neither ids nor masks; times that no sampler asks for.
        """
        bounds = sampler.node_bounds()
        if self.time is not None and not sampler.is_temporal:
            raise ValueError(f"{self.time_name}: expected none without time_attr, found some")
        if not self.typed:
            nodes = _all_nodes(self.name, data, self.nodes, bounds, self.name)
            return OrderedSeeds(nodes, self.time, self.input_id, lambda: get_input_nodes(data.data, nodes)[1].numel())
        if not sampler.keyed or (len(self.nodes) > 1 and not sampler.takes_types):
            raise ValueError(
                f"{self.name}: expected seeds of one type with a {name_of(sampler)}, which is no KeyedSampler "
                f"that takes several (takes_types), found a dictionary"
            )
        if bounds is not None and None in bounds:
            raise TypeError(f"{self.name}: expected nodes of a graph without node types, found a dictionary")
        times, ids = self.time or {}, self.input_id or {}
        each = {
            of: _all_nodes(self.name, data, (of, nodes), bounds, f"{self.name}[{of!r}]")
            for of, nodes in self.nodes.items()
        }
        if len(each) == 1:
            ((of, pair),) = each.items()
            return OrderedSeeds(pair, times.get(of), ids.get(of), lambda: get_input_nodes(data.data, pair)[1].numel())
        found = []
        for of, pair in each.items():
            _, nodes, _ = get_input_nodes(data.data, pair)
            check_input_id(f"input_id[{of!r}]", ids.get(of), nodes.numel)
            found.append(NodeSamplerInput(ids.get(of), nodes, times.get(of), of))
        by_type = NodesByType(found)
        first, count = found[0], sum(len(entry.node) for entry in found)
        return OrderedSeeds((first.input_type, first.node), first.time, None, lambda: count, by_type)

    def starts(self, input_type: Any) -> dict[Any, Tensor]:
        """Where time windows begin, by type; ``input_type``: that of seeds of one type."""
        return (self.start_time or {}) if self.typed else {input_type: self.start_time}

    def check(self, inputs: Any, bounds: Mapping[Any, int] | None) -> None:
        """Raises ValueError unless there is a time for each of a loader's ``inputs``, and IndexError unless all are in
        range; the errors name the position in what was given."""
        for entry in each_type(inputs):
            of = f"[{entry.input_type!r}]" if self.typed else ""
            name, time_name = f"{self.name}{of}", f"{self.time_name}{of}"
            given = self.nodes[entry.input_type] if self.typed else self.nodes
            given = given[1] if _is_pair(given) else given
            size = None if bounds is None else bounds[entry.input_type]
            _check_seeds(name, time_name, entry.node, entry.time, given, size)


def check_types(name: str, value: Any, inputs: dict[Any, Any], of: str) -> None:
    """Raises TypeError or ValueError if there is a value and it is no dictionary, or has other types than ``inputs``,
    which are the argument ``of``."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise TypeError(f"{name}: expected a dictionary by type, as {of}, found {type(value).__name__}")
    if unknown := [key for key in value if key not in inputs]:
        raise ValueError(f"{name}: expected types of {list(inputs)}, found {unknown}")


def sizes_by_type(batch_size: Any, inputs: dict[Any, Any], of: str) -> dict[Any, int] | None:
    """A loader's ``batch_size`` if it is a dictionary, with a number for each type of ``inputs``, which are the
    argument ``of``; None if it is no dictionary.

    Raises:
        TypeError, ValueError: other types, a type that is missing, or a value that is no number of at least 1.
    """
    if not isinstance(batch_size, dict):
        return None
    check_types("batch_size", batch_size, inputs, of)
    if missing := [key for key in inputs if key not in batch_size]:
        raise ValueError(f"batch_size: expected a number for each of {list(inputs)}, found none for {missing}")
    return {key: check_int(f"batch_size[{key!r}]", batch_size[key], 1) for key in inputs}


def _check_seeds(
    name: str, time_name: str, nodes: Tensor, time: Tensor | None, given: Any, num_nodes: int | None
) -> None:  # fmt: skip
    if time is not None and time.shape != nodes.shape:
        raise ValueError(f"{time_name}: expected {len(nodes)} times, found shape {tuple(time.shape)}")
    if num_nodes is None or (at := ops.first_outside(nodes, num_nodes)) < 0:
        return
    if given is not None and as_tensor(name, given).dtype == torch.bool:
        raise IndexError(
            f"{name}[{int(nodes[at])}] is set: expected a mask of {num_nodes} nodes, found one of {len(given)}"
        )
    raise IndexError(f"{name}[{at}] = {int(nodes[at])} is out of range: expected nodes in [0, {num_nodes})")


def _all_nodes(name: str, data: GivenData, input_nodes: Any, bounds: Mapping[Any, int] | None, name_of_ids: str) -> Any:
    """``input_nodes``, the argument ``name``, checked and in PyG's form. None for all nodes becomes their ids, which
    errors call ``name_of_ids``."""
    if bounds is None:
        return input_nodes
    if None not in bounds:
        node_type, nodes = input_nodes if _is_pair(input_nodes) else (input_nodes, None)
        if not isinstance(node_type, str):
            found = type(input_nodes).__name__
            raise ValueError(f"{name}: expected a node type, or a pair of a node type and nodes, found {found}")
        if node_type not in bounds:
            raise ValueError(f"{name}: expected a node type of {list(bounds)}, found {node_type!r}")
        count = bounds[node_type]
        return node_type, torch.arange(count) if nodes is None else _as_nodes(name_of_ids, nodes, count)
    if _is_pair(input_nodes):
        found = f"type {input_nodes[0]!r}"
        raise ValueError(f"{name}: expected nodes of a graph without node types, found {found}")
    if input_nodes is None:
        return torch.arange(data.num_nodes(bounds))
    return _as_nodes(name_of_ids, input_nodes, bounds[None])


def _as_nodes(name: str, nodes: Any, num_nodes: int) -> Tensor:
    """Ids, or a mask of ``num_nodes`` nodes, as a tensor. Ids are not checked for range.

    Raises:
        TypeError: neither integers nor booleans.
        ValueError: not a vector.
        IndexError: a mask that is shorter than ``num_nodes``.
    """
    nodes = as_tensor(name, nodes)
    if nodes.dim() != 1:
        raise ValueError(f"{name}: expected a vector or a mask, found shape {tuple(nodes.shape)}")
    check_no_mask(name, nodes, num_nodes)
    if nodes.dtype != torch.bool:
        return as_ids(name, nodes)
    if len(nodes) < num_nodes:
        raise IndexError(f"{name}: expected a mask of {num_nodes} nodes, found one of {len(nodes)}")
    return nodes


def _is_pair(input_nodes: Any) -> bool:
    """Whether it is a pair of a node type, which may be None, and nodes."""
    pair = isinstance(input_nodes, (tuple, list)) and len(input_nodes) == 2
    return pair and (input_nodes[0] is None or isinstance(input_nodes[0], str))
