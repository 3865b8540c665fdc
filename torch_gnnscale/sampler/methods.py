"""Samplers by the name of their method."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from torch_geometric.sampler import BaseSampler

from .._user import warn
from ..ops.arguments import check_choice
from ..ops.layer_drawing import METHODS as LAYERWISE
from .base import KeyedSampler, keyed
from .fanouts import SamplingOptions
from .layerwise import LayerSampler
from .neighbor import NeighborSampler

NEIGHBOR = "neighbor"
"""The method of :class:`NeighborSampler`."""


@dataclass(frozen=True)
class Method:
    """How the sampler of a method is made; fields as the arguments of :func:`register_method`."""

    make: Callable[..., KeyedSampler]
    takes: Collection[str]


METHODS: dict[str, Method] = {NEIGHBOR: Method(NeighborSampler, [entry.name for entry in fields(SamplingOptions)])}
"""By the values of ``method``."""


def register_method(name: str, make: Callable[..., KeyedSampler], takes: Collection[str] = ()) -> None:
    """Gives a sampler a name, which loaders then take as ``method``.

    Args:
        name: of the method.
        make: ``make(data, num_neighbors, **options)`` returns the sampler of a loader: data and num_neighbors are the
            loader's arguments, and options those of ``takes`` that are not the loader's defaults.
        takes: which arguments of sampling it takes. Of the others, such as ``replace``, a loader refuses values that
            are not their defaults.

    Raises:
        TypeError, ValueError: no name, one that is there, or an unknown argument of sampling.
    """
    if not isinstance(name, str):
        raise TypeError(f"name: expected a str, found {type(name).__name__}")
    if not name or name in METHODS:
        raise ValueError(f"name: expected one that no method has, unlike {[*METHODS]}, found {name!r}")
    if unknown := [option for option in takes if option not in METHODS[NEIGHBOR].takes]:
        raise ValueError(f"takes: expected names of {[*METHODS[NEIGHBOR].takes]}, found {unknown}")
    METHODS[name] = Method(make, tuple(takes))


def _layer_sampler(method: str, data: Any, num_nodes: Any, **options: Any) -> LayerSampler:
    return LayerSampler(data, num_nodes, method, **options)


for _name in LAYERWISE:
    _takes = ("is_sorted", "layers", "strict_negatives", "device", "graph_on_gpu", "graph_on_peers")
    register_method(_name, partial(_layer_sampler, _name), _takes)


def make_sampler(method: str, data: Any, num_neighbors: Any, options: SamplingOptions) -> KeyedSampler:
    """A sampler of a method, with the sampler's defaults for all other options.

    Args:
        method: one that is registered.
        data: the graph.
        num_neighbors: for each hop, the fanout, or the number of nodes.
        options: the loader's.

    Raises:
        TypeError: what was registered returns no sampler.
        ValueError: an unknown method, or an option that the method does not have.
    """
    check_choice("method", method, tuple(METHODS))
    changed, known = options.changed(), METHODS[method]
    for name, value in changed.items():
        if name not in known.takes:
            default, value = getattr(SamplingOptions, name), getattr(value, "value", value)
            layerwise = name == "replace" and method in LAYERWISE
            instead = "; use neighbor_sampler=LayerSampler(..., scheme='replace')" if layerwise else ""
            raise ValueError(f"{name}={value!r}: expected {default!r} with method={method!r}{instead}")
    sampler = known.make(data, num_neighbors, **changed)
    if not _is_sampler(sampler):
        raise TypeError(
            f"method={method!r}: expected what was registered to return a KeyedSampler, found {type(sampler).__name__}"
        )
    return keyed(sampler)


def _is_sampler(value: Any) -> bool:
    return any(hasattr(value, name) for name in ("sample_from_nodes", "sample_from_edges"))


_REFUSED = ("device", "graph_on_gpu", "graph_on_peers", "exclude_seed_edges", "strict_negatives")
"""Options that a sampler of the user's cannot be given by its loader."""


def chosen_sampler(
    data: Any, num_neighbors: Any, given: BaseSampler | None, method: str, options: SamplingOptions, timed: bool
) -> KeyedSampler:
    """The sampler of a loader: the one that is ``given`` or, without one, that of the method.

    Warns of fanouts and options that have no effect beside the one that is given. With times of seeds (``timed``), a
    ``time_attr`` is no reason to warn: PyG's loaders require it then.

    Raises:
        TypeError: what is given is no sampler, or as :func:`make_sampler`.
        ValueError: as :func:`make_sampler`; a method, or an option that only a new sampler can have, beside one.
    """
    if given is None:
        return make_sampler(method, data, num_neighbors, options)
    if method != NEIGHBOR:
        raise ValueError(f"method={method!r}: expected none beside a neighbor_sampler")
    if not _is_sampler(given):
        raise TypeError(f"neighbor_sampler: expected a BaseSampler, found {type(given).__name__}")
    sampler, changed = keyed(given), options.changed()
    if refused := [name for name in _REFUSED if name in changed]:
        raise ValueError(f"{', '.join(refused)}: expected none beside a neighbor_sampler; pass it to the sampler")
    if changed.pop("layers", False) and not sampler.layers:
        raise ValueError("layers=True: expected a neighbor_sampler with layers=True, found one without")
    if timed:
        changed.pop("time_attr", None)
    if changed:
        verb = "has" if len(changed) == 1 else "have"
        warn(f"{', '.join(changed)} {verb} no effect beside neighbor_sampler, which has options of its own")
    own = None
    if isinstance(sampler, LayerSampler):
        own = sampler.num_nodes_of_hops
    elif isinstance(sampler, NeighborSampler):
        own = getattr(sampler.num_neighbors, "values", None)
    fanouts = [*num_neighbors] if isinstance(num_neighbors, Sequence) else None
    if fanouts and isinstance(own, list) and fanouts != own:
        warn(f"num_neighbors={fanouts} has no effect beside neighbor_sampler, which has {own}")
    return sampler
