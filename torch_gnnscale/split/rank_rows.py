"""The rows that a rank of a split reads: its own, in tiers by a plan's counts, and those of its halo."""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from typing_extensions import override

from ..comm.exchange import Exchange
from ..comm.memory_transport import MemoryTransport
from ..comm.mesh import Grid
from ..comm.peer_memory import memories_on
from ..comm.rendezvous import Rendezvous, rank_and_world
from ..comm.row_transport import RowMoves, RowTransport
from ..distributed.own_rows import opened_once, own_view
from ..feature import FeatureStore, TieredFeatureStore
from ..feature.feature_store import KIND
from ..feature.tier_builder import Source, attributes_of
from ..feature.tiered_rows import FileRows, sent
from ..loader.fields import EdgeLayouts
from ..loader.row_source import Bounds, CollectiveSource, RowSource
from ..memory import Budget
from ..nn.aggregate import sort_edges
from ..random import digest
from ..sampler.minibatch import MiniBatch


class Shuffled(NamedTuple):
    """The rows that travel before a layer."""

    sent: Tensor
    """Own rows, for rank 0, then 1, ...: int64, shape [s]."""
    num_sent: list[int]
    """How many of them go to each rank; 0 to this one."""
    halo: Tensor
    """Positions in the whole halo of the rows that come from rank 0, then 1, ...: int64, shape [t]."""
    num_received: list[int]
    """How many rows come from each rank; 0 from this one."""


@dataclass(frozen=True)
class ShuffleIndex:
    """The rows that ranks exchange for one batch; a field of it, ``shuffle_index``.

    Rows and levels are those of :class:`torch_gnnscale.ops.Cut`. A layer that computes the nodes of groups 0..g-1 needs
    the rows of levels 1..g, which are the first rows of each rank's block of the halo.
    """

    parts: int
    """How many ranks the batch is cut over."""
    part: int
    """The number of this one."""
    sent: Tensor
    """As :class:`torch_gnnscale.ops.Cut` says, and so are the next two."""
    num_sent: list[list[int]]
    num_received: list[list[int]]
    x: Tensor | None = None
    """The tensor ``batch.x`` whose rows of the halo ``batch.x_halo`` has; None if the batch has no ``x_halo``."""
    x_version: int = 0
    """The ``_version`` of ``x`` when ``x_halo`` was made."""

    def knows_halo_of(self, x: Tensor | None) -> bool:
        """Whether ``x_halo`` has rows of x: False if x was changed or replaced since ``x_halo`` was made."""
        return x is not None and x is self.x and x._version == self.x_version

    def with_halo_of(self, x: Tensor) -> ShuffleIndex:
        """The index of a batch that has ``x_halo``, the halo's rows of x. An inference tensor has no version that would
        tell of changes: its halo is exchanged again."""
        return self if x.is_inference() else replace(self, x=x, x_version=x._version)

    @property
    def balance(self) -> int:
        """The sum over ranks p of hash(part, p, num_sent[p]) - hash(p, part, num_received[p]): 64 bits, signed. The
        balances of a batch's ranks add up to 0 modulo 2^64, unless two ranks expect different numbers of rows."""
        total = 0
        for peer, (given, awaited) in enumerate(zip(self.num_sent, self.num_received, strict=True)):
            total += digest(repr((self.part, peer, given)).encode()) - digest(repr((peer, self.part, awaited)).encode())
        return (total + (1 << 63)) % (1 << 64) - (1 << 63)

    def check_balances(self, balances: Sequence[int], exchange: Exchange, column: Sequence[int]) -> None:
        """Compares the balances of a batch's ranks. All ranks of ``exchange`` call it with equal arguments.

        Args:
            balances: of the ranks of a batch, by part.
            exchange: between these ranks; it may have others, too.
            column: the numbers that these ranks have in ``exchange``, by part.

        Raises:
            ValueError: on all ranks, for the first two ranks that expect different numbers of rows.
        """
        if sum(balances) % (1 << 64) == 0:
            return
        said = exchange.objects((self.num_sent, self.num_received))
        for reader, rank in enumerate(column):
            for sender, levels in enumerate(said[rank][1]):
                if said[column[sender]][0][reader] != levels:
                    raise ValueError(
                        f"split: batch: expected {levels} rows by level from part {sender} for part {reader}, found "
                        f"others"
                    )
        raise AssertionError("the hashes of equal numbers differ")

    @property
    def num_halo(self) -> int:
        """The number of nodes of the whole halo."""
        return sum(map(sum, self.num_received))

    def before_layer(self, groups: int) -> Shuffled:
        """The rows that travel before a layer that computes the nodes of groups 0..groups-1."""
        if groups >= len(self.num_sent[0]):
            num_sent, num_received = list(map(sum, self.num_sent)), list(map(sum, self.num_received))
            halo = torch.arange(sum(num_received), device=self.sent.device)
            return Shuffled(self.sent, num_sent, halo, num_received)
        of_sent, num_sent = _prefixes(self.num_sent, groups)
        of_halo, num_received = _prefixes(self.num_received, groups)
        halo = torch.cat([torch.arange(begin, end, device=self.sent.device) for begin, end in of_halo])
        return Shuffled(torch.cat([self.sent[begin:end] for begin, end in of_sent]), num_sent, halo, num_received)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> ShuffleIndex:
        """The index on a device; ``Data.to`` calls it. ``x_halo`` stays valid only if ``x`` is on that device
        already."""
        sent = self.sent.to(device, non_blocking=non_blocking)
        if sent is self.sent:
            return self
        return replace(self, sent=sent, x=self.x if self.x is not None and self.x.device == sent.device else None)


def _prefixes(counts: list[list[int]], groups: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Where the rows of each block's first ``groups`` levels begin and end, and how many each block has of them."""
    begins = accumulate((sum(block) for block in counts), initial=0)
    sizes = [sum(block[:groups]) for block in counts]
    return [(begin, begin + size) for begin, size in zip(begins, sizes, strict=False)], sizes


class Moves(RowMoves):
    """The rows that travel before layers that compute the nodes of a batch's first ``groups`` groups.

    Args:
        index: the batch's.
        groups: of the nodes that are computed.
    """

    def __init__(self, index: ShuffleIndex, groups: int) -> None:
        self.sent, self.num_sent, self.halo, self.num_received = index.before_layer(groups)
        self.distinct = (self.sent, None) if sum(count > 0 for count in self.num_sent) <= 1 else None
        self._added: tuple[Tensor, Tensor, Tensor] | None = None

    def added(self, num_own: int) -> tuple[Tensor, Tensor, Tensor]:
        """``ptr``, ``part`` and ``row`` of :func:`torch_gnnscale.ops.shuffle_rows`: the gradients that ranks send back
        for each own row, in the order of ranks."""
        if self._added is None or len(self._added[0]) != num_own + 1:
            edges, order = sort_edges(torch.stack([self.sent, self.sent]), num_own, num_own)
            begins = sent(torch.tensor([*accumulate(self.num_sent, initial=0)]), order.device)
            part = torch.bucketize(order, begins[1:], right=True)
            self._added = edges.forward.ptr, part, order - begins[part]
        return self._added


# Rows of batches ######################################################################################################

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
    """The features of own nodes: on a GPU if they were read there, else on the device of the sample; contiguous."""
    said: Tensor
    """What each rank is told: :attr:`ShuffleIndex.balance`, whether ``x`` is on a GPU, and ``alike``."""
    alike: dict[str, int]
    """Numbers, by name, that are equal on all ranks of a batch."""
    halo: Tensor | None = None
    """The features of the halo, once they have come."""


class SplitRows(CollectiveSource):
    """Reads the rows of a rank's part of a batch; those of its halo come from their owners, in one round.

    Args:
        rows: reads the rows of own nodes and of the edges into them; several threads may read at once.
    """

    counts_inputs = True  # a loss is a mean over the seeds of all columns of ranks

    def __init__(self, rows: RowSource) -> None:
        self.own = rows
        self._transports: dict[Exchange, RowTransport] = {}  # of rows on GPUs

    def renew(self, batch: Data | HeteroData, sampled: MiniBatch, bounds: Bounds, keys: Collection[Any]) -> None:
        """Reads changed rows again. If the features have changed, those of the halo are removed: layers exchange
        them then, as they do what other layers return."""
        self.own.renew(batch, sampled, bounds, keys)
        if HALO in batch and any(name == X for _, name in keys):
            del batch[HALO]

    def fetch(self, sampled: MiniBatch, bounds: Bounds, versions: Any = None) -> HaloNeeds:
        """The rows of a batch of one rank. Raises RuntimeError if the batch is cut over several ranks, whose rows come
        in a step."""
        needs = self.needs(sampled, bounds, versions)
        if needs.index.parts > 1:
            raise RuntimeError("split: expected to read in steps that all ranks take together; iterate over the loader")
        needs.halo = None if needs.x is None else needs.x[:0]
        return needs

    def needs(self, sampled: MiniBatch, bounds: Bounds, versions: Any) -> HaloNeeds:
        """What the batch needs of other ranks; reads the rows of own nodes and edges."""
        if sampled.whole is None:
            found = type(sampled.out).__name__
            raise ValueError(f"transform_sampler_output: expected the sampler's own output with split=, found {found}")
        rows = self.own.fetch(sampled, bounds, versions)
        x = self.own.node_rows(rows, X)
        x = x if isinstance(x, Tensor) and x.layout == torch.strided else None
        size = -1 if x is None else x.shape[1:].numel() * x.element_size()
        index: ShuffleIndex = sampled.fields["shuffle_index"]
        if x is not None and x.device != index.sent.device:
            x, index = (sent(x, index.sent.device), index) if x.device.type == "cpu" else (x, index.to(x.device))
        moves = Moves(index, len(index.num_sent[0]))
        if x is not None and x.device.type == "cpu" and moves.distinct is None:
            moves.find_distinct(len(x))  # here, where an error is told to the others, and off the thread of the steps
        alike = {**sampled.whole, "bytes of a row of x": size}
        said = torch.tensor([index.balance, x is not None and x.is_cuda, *alike.values()]).expand(index.parts, -1)
        return HaloNeeds(rows, index, moves, None if x is None else x.contiguous(), said, alike)

    def read(self, needs: HaloNeeds, asked: Tensor) -> None:
        """Reads the rows of the halo, together with the other ranks.

        Raises:
            ValueError: on all ranks, if they have parts of different batches, features of different sizes, or expect
                other rows of each other.
        """
        steps = self.steps
        balances, on_gpus, *alike = steps.rows.numbers(needs.said, "counts").t().tolist()
        for (name, own), found in zip(needs.alike.items(), alike, strict=True):
            if found.count(own) != len(found):
                raise ValueError(f"{name}: expected the same on all ranks of a batch, found {found}")
        needs.index.check_balances(balances, steps.rows, range(needs.index.parts))
        if needs.x is not None:
            transport = self._of_gpus(steps.rows, needs.x.device) if any(on_gpus) else steps.transport
            needs.halo = transport.pull(needs.x, needs.moves, "rows")

    def _of_gpus(self, exchange: Exchange, device: torch.device) -> RowTransport:
        """How ranks exchange rows of which some are on GPUs."""
        if exchange not in self._transports:
            with exchange.awaited():
                found = MemoryTransport.connect(exchange, memories_on(device), tells=True)
            by_gloo = RowTransport(exchange, tells=True)
            self._transports[exchange] = by_gloo if isinstance(found, str) else found
        return self._transports[exchange]

    @override
    def batch(self, sampled: MiniBatch, rows: HaloNeeds, layouts: EdgeLayouts | None) -> Data | HeteroData:
        x, halo, fields = rows.x, rows.halo, sampled.fields
        if x is None or halo is None:
            return self.own.batch(sampled, rows.rows, layouts)
        fields["shuffle_index"] = fields["shuffle_index"].with_halo_of(x)
        batch = self.own.batch(sampled, rows.rows, layouts)
        batch[X], batch[HALO] = x, halo
        return batch


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
