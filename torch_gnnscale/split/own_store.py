"""The features of a graph as one rank of a split reads them: its own rows, in tiers by a plan's counts."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from ..comm.mesh import Grid
from ..comm.rendezvous import Rendezvous, rank_and_world
from ..distributed.own_tiers import opened_once
from ..feature import FeatureStore, TieredFeatureStore
from ..feature.feature_store import KIND
from ..feature.tier_attributes import attributes_of
from ..feature.tier_builder import Source
from ..feature.tier_overlay import own_view
from ..feature.tiered_rows import FileRows
from ..memory import Budget


def own_store(
    owners: Tensor, parts: int, counts: Tensor, data: Any, gpu: Budget, host: Budget | None,
    disk: str | os.PathLike | None, names: Sequence[str] | None, device: torch.device | str | int | None,
    timeout: float,
) -> TieredFeatureStore:  # fmt: skip
    """What :meth:`torch_gnnscale.split.Plan.store` returns, given the plan's owners and counts of rows."""
    rank, world = rank_and_world()
    mine = torch.ones_like(owners, dtype=torch.bool)
    rendezvous = Rendezvous(rank, world, timeout)
    try:
        sources = rendezvous.all_made(lambda: _sources(data, names, len(owners)))
        machines: list[Hashable] = list(rendezvous.machines)
        here = mine
        if world > 1:
            grid = rendezvous.all_made(lambda: Grid(world, parts, "parts"))
            mine = owners == grid.part(rank)
            of_machine = [grid.part(other) for other, machine in enumerate(machines) if machine == machines[rank]]
            here = torch.isin(owners, torch.tensor(of_machine, dtype=owners.dtype))
        counts = counts.to(torch.int64)
        spill = os.curdir if disk is None and sources[0].origin is not None else disk  # rows in files stay there

        def make_store(sharers: int) -> TieredFeatureStore:
            score = torch.where(here, counts, 0)
            cpu = torch.device("cpu")
            return TieredFeatureStore.of_sources(sources, {None: score}, False, 0, (), host, spill, cpu, sharers)

        store = opened_once(str({"host": host}), machines, rendezvous, make_store, ForkingPickler.loads)
        own = mine.nonzero().view(-1)
        return rendezvous.all_made(lambda: own_view(store, own, counts[own], gpu, device))
    finally:
        rendezvous.close()


def _sources(data: Any, names: Sequence[str] | None, num_nodes: int) -> list[Source]:
    """The attributes of nodes that are put into tiers. Raises ValueError unless each has ``num_nodes`` rows."""
    found = _attributes(data, names)
    for source in found:
        if (rows := len(source.tensor)) != num_nodes:
            raise ValueError(f"data: expected a row of {source.key[1]!r} for each of {num_nodes} nodes, found {rows}")
    return found


def _attributes(data: Any, names: Sequence[str] | None) -> list[Source]:
    if isinstance(data, Data):
        chosen, composites = attributes_of(data, names, edges=False)
        if composites:
            raise NotImplementedError(f"split rows of TensorFrames are not implemented, found {list(composites)}; name "
                                      f"the other attributes by names=")  # fmt: skip
        return [Source(key, t.detach(), t.dtype) for key, t in chosen.items()]
    if not isinstance(data, FeatureStore) or isinstance(data, TieredFeatureStore) or data.order is not None:
        kind = f"{'' if getattr(data, 'order', None) is None else 'renumbered '}{type(data).__name__}"
        raise NotImplementedError(f"data: expected a Data, or a FeatureStore in the user's ids, found a {kind}")
    attrs = data.all_attrs()
    kept = {(attr.group_name, attr.attr_name): attr for attr in attrs if names is None or attr.attr_name in names}
    if wrong := [key for key in kept if key[0] is not None]:
        raise NotImplementedError(f"tiers of typed nodes or of edges are not implemented, found {wrong}; give names=")
    if (missing := [name for name in names or () if (None, name) not in kept]) or not kept:
        raise ValueError(f"names: expected some of {[attr.attr_name for attr in attrs]}, found {missing}")
    tensors = {key: data.get_tensor(group_name=key[0], attr_name=key[1], index=None) for key in kept}
    as_stored = type(data) is FeatureStore  # another class may return other rows than its files have
    files = [data.file_of(attr) if as_stored else None for attr in kept.values()]
    rows = [None if file is None or None in files else FileRows(file[0], KIND, file[1], 0) for file in files]
    return [Source(key, t, t.dtype, origin) for (key, t), origin in zip(tensors.items(), rows, strict=True)]
