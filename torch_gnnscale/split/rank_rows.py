"""The rows that a rank of a split reads: its own, in tiers by a plan's counts, and those of its halo."""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from typing_extensions import override

from ..comm.exchange import Exchange
from ..comm.memory_transport import MemoryTransport
from ..comm.mesh import Grid
from ..comm.peer_memory import memories_on
from ..comm.rendezvous import Rendezvous, rank_and_world
from ..comm.row_transport import RowTransport
from ..comm.steps import Steps
from ..distributed.own_rows import opened_once
from ..feature import FeatureStore, TieredFeatureStore
from ..feature.contract import CollectiveReads
from ..feature.feature_store import KIND
from ..feature.tier_builder import Source, attributes_of
from ..feature.tier_overlay import own_view
from ..feature.tiered_rows import FileRows, sent
from ..loader.fields import EdgeLayout, EdgeLayouts
from ..loader.row_source import Bounds, CollectiveSource, RowSource
from ..memory import Budget
from ..ops.rows import row_bytes
from ..sampler.minibatch import MiniBatch, SampledEdges
from .shuffle_index import Moves, ShuffleIndex

FetchedRows: TypeAlias = tuple[Any, Tensor | None, Tensor | None]
"""All rows of own nodes and edges; their features, on the device of batches; those of the halo."""
X = "x"
"""The attribute of nodes whose rows a batch also has of its halo."""
HALO = "x_halo"
"""The field that holds them, in the order of the halo."""


@dataclass
class HaloNeeds:
    """What one batch has and exchanges."""

    rows: Any
    """The rows of own nodes and edges."""
    index: ShuffleIndex
    moves: Moves
    """All rows that travel, of all levels."""
    x: Tensor | None
    """The features of own nodes: on a GPU if they were read there, else on the device of the sample."""
    balance: int
    """:attr:`ShuffleIndex.balance`."""
    alike: dict[str, int]
    """Numbers, by name, that are equal on all ranks of a batch."""
    halo: Tensor | None = None
    """The features of the halo, once they have come."""


class SplitRows(CollectiveSource, CollectiveReads):
    """Reads the rows of a rank's part of a batch; those of its halo come from their owners, in one round.

    Args:
        rows: reads the rows of own nodes and of the edges into them; several threads may read at once.
    """

    def __init__(self, rows: RowSource) -> None:
        self.inner = rows
        self._transports: dict[Exchange, RowTransport] = {}  # of rows on GPUs

    @property
    def reads(self) -> SplitRows:
        """This source itself."""
        return self

    @override
    def versions(self) -> Any:
        return self.inner.versions()

    @override
    def changed(self, versions: Any) -> list[Any]:
        return self.inner.changed(versions)

    @override
    def learned(self) -> list[Any]:
        return self.inner.learned()

    def renew(self, batch: Data | HeteroData, sampled: MiniBatch, bounds: Bounds, keys: Collection[Any]) -> None:
        """See :meth:`RowSource.renew`. If the features have changed, those of the halo are removed: layers exchange
        them then, as they do what other layers return."""
        self.inner.renew(batch, sampled, bounds, keys)
        if HALO in batch and any(name == X for _, name in keys):
            del batch[HALO]

    def fetch(self, sampled: MiniBatch, bounds: Bounds, versions: Any = None) -> FetchedRows:
        """See :meth:`RowSource.fetch`. Raises RuntimeError if the batch is cut over several ranks, whose rows come in a
        step."""
        needs = self.needs(sampled, bounds, versions)
        if needs.index.parts > 1:
            raise RuntimeError("split: expected to read in steps that all ranks take together; iterate over the loader")
        return needs.rows, needs.x, None if needs.x is None else needs.x[:0]

    def in_step(self, sampled: MiniBatch, inputs: int) -> None:
        """See :meth:`CollectiveSource.in_step`: a loss is a mean over the seeds of all columns of ranks."""
        if sampled.whole is not None:  # else :meth:`needs` refuses it
            sampled.fields["global_batch_size"] = inputs

    def needs(self, sampled: MiniBatch, bounds: Bounds, versions: Any) -> HaloNeeds:
        """See :meth:`CollectiveSource.needs`: reads the rows of own nodes and edges."""
        if sampled.whole is None:
            found = type(sampled.out).__name__
            raise ValueError(f"transform_sampler_output: expected the sampler's own output with split=, found {found}")
        rows = self.inner.fetch(sampled, bounds, versions)
        x = self.inner.node_rows(rows, X)
        x = x if isinstance(x, Tensor) and x.layout == torch.strided else None
        size = -1 if x is None else row_bytes(x)
        index: ShuffleIndex = sampled.fields["shuffle_index"]
        if x is not None and x.device.type == "cpu":
            x = sent(x, index.sent.device)
        moves = Moves(index if x is None else index.to(x.device), len(index.num_sent[0]))
        if x is not None:
            moves.once(len(x))  # here, where an error is told to the others, and on another thread than the steps
        return HaloNeeds(rows, index, moves, x, index.balance, {**sampled.whole, "bytes of a row of x": size})

    @property
    def counted(self) -> int:
        """See :meth:`CollectiveReads.counted`: :meth:`read` tells how many rows are exchanged."""
        return 0

    @override
    def counts(self, needs: HaloNeeds, steps: Steps) -> Tensor:
        return torch.empty(needs.index.parts, 0, dtype=torch.int64)

    def read(self, needs: HaloNeeds, asked: Tensor, steps: Steps) -> None:
        """See :meth:`CollectiveReads.read`.

        Raises:
            ValueError: on all ranks, if they have parts of different batches, features of different sizes, or expect
                other rows of each other.
        """
        with steps.rows.awaited():
            on_gpu = needs.x is not None and needs.x.device.type == "cuda"
            said = torch.tensor([needs.balance, on_gpu, *needs.alike.values()]).expand(needs.index.parts, -1)
        balances, on_gpus, *alike = steps.rows.numbers(said, "counts").t().tolist()
        for (name, own), found in zip(needs.alike.items(), alike, strict=True):
            if any(value != own for value in found):
                raise ValueError(f"{name}: expected the same on all ranks of a batch, found {found}")
        needs.index.check_balances(balances, steps.rows, range(needs.index.parts))
        if needs.x is not None:
            transport = self._of_gpus(steps.rows, needs.x.device) if any(on_gpus) else steps.transport
            with steps.rows.awaited():
                x = needs.x.contiguous()
            needs.halo = transport.pull(x, needs.moves, "rows")

    def _of_gpus(self, exchange: Exchange, device: torch.device) -> RowTransport:
        """How ranks exchange rows of which some are on GPUs."""
        if exchange not in self._transports:
            with exchange.awaited():
                found = MemoryTransport.connect(exchange, memories_on(device), tells=True)
            by_gloo = RowTransport(exchange, tells=True)
            self._transports[exchange] = by_gloo if isinstance(found, str) else found
        return self._transports[exchange]

    @override
    def rows(self, needs: HaloNeeds) -> FetchedRows:
        return needs.rows, needs.x, needs.halo

    @override
    def batch(self, sampled: MiniBatch, rows: FetchedRows, layouts: EdgeLayouts | None) -> Data | HeteroData:
        own, x, halo = rows
        batch = self.inner.batch(sampled, own, layouts)
        if halo is not None:
            batch[X], batch[HALO] = x, halo
            fields = sampled.fields
            fields["shuffle_index"] = fields["shuffle_index"].with_halo_of(batch[X])
        return batch

    @override
    def edges(
        self, rows: FetchedRows, edge_type: Any, edges: SampledEdges, layout: EdgeLayout
    ) -> tuple[SampledEdges, Tensor | None]:
        return self.inner.edges(rows[0], edge_type, edges, layout)

    @override
    def node_rows(self, rows: FetchedRows, name: str) -> Any:
        return self.inner.node_rows(rows[0], name)


# Own rows in tiers ####################################################################################################


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
