"""The rows of a part's own nodes: mapped, or in tiers, which the ranks of one machine that hold the part open together,
and which a process may have on top of tiers that it shares with others: its GPU's."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch_geometric.typing import NodeType
from typing_extensions import override

from .. import ops
from ..comm.rendezvous import Rendezvous
from ..feature.hotness import by_type_of, check_hotness, check_types, labelled_ids, named_scores, relations_of
from ..feature.tier_builder import Source, check_room, devices_of
from ..feature.tier_plan import Tier, TierPlan
from ..feature.tiered_rows import Attribute, FileRows, TieredRows, sent
from ..feature.tiered_store import TieredFeatureStore
from ..memory import Budget, budget_bytes, peer_budgets
from ..ops.arguments import checked_device
from ..ops.rows import as_words
from ..partition import StoredPart, StoredParts
from ..topology import CSC
from ..topology.reorder import by_score


class OwnRows(ABC):
    """One attribute's rows of a part's own nodes or edges. Several threads may read at once.

    Ids are row numbers in the part: int64, in host memory.
    """

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def gather(self, ids: Tensor) -> Tensor:
        """The rows of ``ids``, on the device where batches have them; shape [n, ...]. Ids are not checked."""

    @abstractmethod
    def table(self, ids: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """The rows that other ranks ask for.

        Args:
            ids: for each other rank, the rows that it asks for.

        Returns:
            A tensor in host memory, shape [m, ...], and for each entry of ``ids`` the positions of its rows in this
            tensor. Ids are checked here, or when the positions are used.
        """

    @abstractmethod
    def join(self, place: Tensor, other: Tensor, at: Tensor) -> Tensor:
        """The rows of a batch, on the device of :meth:`gather`: row i is the part's row ``place[i]`` if ``place[i] >=
        0``, else the row whose bytes begin at ``other[at[-1 - place[i]]]``. Arguments as in
        :func:`torch_gnnscale.ops.join_rows`."""


class MappedRows(OwnRows):
    """Rows in a tensor.

    Args:
        rows: shape [n, ...], in host memory or mapped, with contiguous rows.
    """

    def __init__(self, rows: Tensor) -> None:
        self.tensor = rows

    def __len__(self) -> int:
        return len(self.tensor)

    @override
    def gather(self, ids: Tensor) -> Tensor:
        return ops.gather_rows(self.tensor, ids, check=False)

    def table(self, ids: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """All rows, and the ids; see :meth:`OwnRows.table`."""
        return self.tensor, ids

    @override
    def join(self, place: Tensor, other: Tensor, at: Tensor) -> Tensor:
        return ops.join_rows(self.tensor, other, at, place, check=False)


class TierRows(OwnRows):
    """Rows in tiers, on a GPU if one gathers them."""

    def __init__(self, rows: TieredRows) -> None:
        self._rows = rows
        # Answers to other ranks do not wait for the training: rows never change, so any stream may read them.
        self._stream = None if rows.device.type == "cpu" else torch.cuda.Stream(rows.device)

    def __len__(self) -> int:
        return self._rows.shape[0]

    @override
    def gather(self, ids: Tensor) -> Tensor:
        return self._rows.gather(ids, check=False)

    def table(self, ids: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        """The rows that are asked for, one after another; see :meth:`OwnRows.table`."""
        with torch.cuda.stream(self._stream):
            rows = self._rows.gather(torch.cat(list(ids))).cpu()
        return rows, torch.arange(len(rows)).split([len(some) for some in ids])

    @override
    def join(self, place: Tensor, other: Tensor, at: Tensor) -> Tensor:
        is_own = place >= 0
        own = self.gather(place[is_own])
        if len(own) == len(place):
            return own
        if own.device.type == "cpu":
            return ops.join_rows(own, other, at, place.masked_scatter(is_own, torch.arange(len(own))), check=False)
        return joined_there(own, is_own, other, at, place)


def joined_there(own: Tensor, is_own: Tensor, other: Tensor, at: Tensor, place: Tensor) -> Tensor:
    """The rows of a batch on the device of ``own``, to which those of other parts are copied through pinned memory.

    Args:
        own: those of this part, shape [m, ...].
        is_own: which rows of the batch they are: bool, shape [n].
        other, at, place: as in :meth:`OwnRows.join`.

    Returns:
        Shape [n, ...].
    """
    none = torch.empty(0, *own.shape[1:], dtype=own.dtype)
    came = sent(ops.join_rows(none, other, at, place[~is_own], check=False), own.device)
    return merged(own, came, is_own)


def merged(own: Tensor, came: Tensor, is_own: Tensor) -> Tensor:
    """The rows of a batch: those of this part where ``is_own``, of shape [n] in host memory, else those that came, in
    their order; all on one device. Shape [n, ...]."""
    out = own.new_empty(len(is_own), *own.shape[1:])
    for rows, chosen in ((own, is_own), (came, ~is_own)):
        as_words(out).index_copy_(0, sent(chosen.nonzero().view(-1), own.device), as_words(rows))
    return out


@dataclass(frozen=True)
class OwnTiers:
    """Where the rows of a part's own nodes lie: the entries of the argument ``tiers`` of ``open_part``.

    Rows that no budget holds stay in the part's files. Of a part that is opened several times on one machine, the first
    rank fills the tiers, and the others open them.
    """

    gpu: Budget = 0
    """All entries are as in :meth:`TieredFeatureStore.from_data`; shares are of the rows of the part's own nodes."""
    peers: Sequence[Budget] = ()
    host: Budget | None = None
    hotness: str | Tensor | Mapping[NodeType, Tensor] = "weighted_reverse_pagerank"
    """A score of each node of the graph by the user's ids, with types a mapping of them by type, or a name. With a
    partitioned topology, a named score is computed from the edges within the part alone."""
    labelled: Tensor | Mapping[NodeType, Tensor] | None = None
    """The user's ids of nodes, or a mask of all nodes, with types by type; by default the seeds of the split ``train``
    in all parts."""
    device: torch.device | str | int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any], parts: StoredParts) -> OwnTiers:
        """The value for the user's argument.

        Raises:
            TypeError, ValueError, IndexError: not a mapping, unknown entries, or wrong budgets, scores or nodes.
        """
        known = [field.name for field in fields(cls)]
        if not isinstance(given, Mapping):
            raise TypeError(f"tiers: expected a mapping, such as {{'host': '4GiB'}}, found {type(given).__name__}")
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"tiers: expected entries among {known}, found {unknown[0]!r}")
        tiers = cls(**given)
        weighted = check_hotness(tiers.hotness, tiers.labelled)
        for name, budget in (("gpu", tiers.gpu), ("host", tiers.host)):
            if budget is not None:
                budget_bytes(name, budget, 0)
        peer_budgets("peers", tiers.peers, 0)
        if not isinstance(tiers.hotness, str):
            tiers._given(parts)
        if weighted:
            tiers._labelled(parts)
        return tiers

    @property
    def budgets(self) -> str:
        """Equal texts for equal budgets."""
        return str({"gpu": self.gpu, "peers": list(self.peers), "host": self.host})

    def _given(self, parts: StoredParts) -> dict[NodeType | None, Tensor]:
        """The scores that were given, by node type: one for each node of a type with rows."""
        assert not isinstance(self.hotness, str)
        if isinstance(self.hotness, Tensor) == parts.hetero:
            expected = "scores by node type" if parts.hetero else "scores as a tensor"
            raise TypeError(f"hotness: expected {expected}, or a name, found {type(self.hotness).__name__}")
        scores = {None: self.hotness} if isinstance(self.hotness, Tensor) else dict(self.hotness)
        check_types("hotness", scores, parts.book.bounds)
        for node_type in _types_with_rows(parts):
            of = "" if node_type is None else f" of the nodes of {node_type!r}"
            if node_type not in scores:
                raise ValueError(f"hotness: expected scores{of}, found those of {list(scores)}")
            count, found = parts.book.num_nodes(node_type), scores[node_type]
            if not isinstance(found, Tensor) or found.shape != (count,):
                shape = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
                raise ValueError(f"hotness: expected {count} scores{of}, found {shape}")
        return scores

    def _labelled(self, parts: StoredParts) -> dict[NodeType | None, Tensor]:
        """The stored ids of ``labelled`` by node type: int64."""
        given = by_type_of(self.labelled, parts.hetero)
        if given is None:
            given = {t: parts.input_nodes(name, t) for t, name in parts.splits if name == "train"}
            if not given:
                raise ValueError(
                    "labelled: expected the nodes that training starts from, found no split 'train' either"
                )
        check_types("labelled", given, parts.book.bounds)
        return {
            t: parts.to_stored(labelled_ids(ids, parts.book.num_nodes(t)).to(torch.int64), t)
            for t, ids in given.items()
        }

    def scores(self, parts: StoredParts, part: StoredPart) -> dict[NodeType | None, Tensor]:
        """The scores of the part's own nodes by node type, shape [m] each."""
        if not isinstance(self.hotness, str):
            given = self._given(parts)
            return {t: given[t][part.user_ids[t]] for t in _types_with_rows(parts)}
        nodes = {t: parts.book.nodes(part.number, t) for t in parts.book.bounds}
        labelled = self._labelled(parts) if self.hotness == "weighted_reverse_pagerank" else None
        if parts.topology == "replicated":
            counts = {t: parts.book.num_nodes(t) for t in nodes}
            scores = named_scores(self.hotness, relations_of(parts.graph()), counts, labelled)
            return {t: scores[t][own.start : own.stop] for t, own in nodes.items()}
        relations = {t: _within(csc, nodes[None if t is None else t[0]]) for t, csc in part.relations.items()}
        if labelled is not None:
            labelled = {
                t: ids[(ids >= nodes[t].start) & (ids < nodes[t].stop)] - nodes[t].start for t, ids in labelled.items()
            }
        return named_scores(self.hotness, relations, {t: len(own) for t, own in nodes.items()}, labelled)

    def filled(self, parts: StoredParts, part: StoredPart, sharers: int) -> TieredFeatureStore:
        """The tiers of the part's own nodes; ``sharers``: how many ranks of this machine open them."""
        of_nodes = {key: rows for key, rows in part.rows.items() if not isinstance(key[0], tuple)}
        sources = [Source(key, rows, rows.dtype, FileRows(*part.origins[key], 0)) for key, rows in of_nodes.items()]
        scores = self.scores(parts, part)
        return TieredFeatureStore.of_sources(
            sources, scores, False, self.gpu, self.peers, self.host, parts.path, self.device, sharers
        )

    def opened(self, sent: bytes) -> TieredFeatureStore:
        """Tiers that another process of this machine has filled, with the rows of ``gpu`` on this one's GPU."""
        store: TieredFeatureStore = pickle.loads(sent)
        if store.device.type == "cpu":
            return store
        return store.on(checked_device("cuda" if self.device is None else self.device))


def _types_with_rows(parts: StoredParts) -> list[NodeType | None]:
    """The node types that have attributes."""
    return list(dict.fromkeys(meta.group_name for meta in parts.attrs if not meta.of_edges))


def _within(csc: CSC, sources: range) -> CSC:
    """The edges of a part's relation that begin at its own nodes, ``sources``, too, by row numbers in the part."""
    ops.check_colptr(csc.colptr, csc.num_edges)
    kept = (csc.row >= sources.start) & (csc.row < sources.stop)
    before = torch.cat([torch.zeros(1, dtype=torch.int64), kept.cumsum(0)])
    return CSC(before[csc.colptr], csc.row[kept] - sources.start, None, len(sources))


def open_together(
    tiers: OwnTiers, parts: StoredParts, part: StoredPart, holds: Sequence[Hashable], rendezvous: Rendezvous
) -> TieredFeatureStore:
    """The tiers of this rank's part, filled by the first rank that holds an equal value.

    Args:
        tiers: what this rank's user has said.
        parts, part: as this rank has opened them.
        holds: by rank, (where its directory is, its part), equal for ranks that share memory.
        rendezvous: of all ranks.

    Raises:
        ValueError: on all ranks, if one of them cannot fill or open its tiers, or ranks that share them have been given
            different budgets.
    """
    return opened_once(
        tiers.budgets, holds, rendezvous, lambda sharers: tiers.filled(parts, part, sharers), tiers.opened
    )


def opened_once(
    budgets: str,
    holds: Sequence[Hashable],
    rendezvous: Rendezvous,
    make_store: Callable[[int], TieredFeatureStore],
    opened: Callable[[bytes], TieredFeatureStore],
) -> TieredFeatureStore:
    """A store that ranks of one machine share: of the ranks with equal ``holds``, the first one makes it, and the
    others open it.

    Args:
        budgets: equal texts for equal budgets.
        holds: by rank, a value that is equal for ranks that share memory.
        rendezvous: of all ranks.
        make_store: makes the store; called with the number of ranks that share it.
        opened: opens what ForkingPickler made of the store of another process of this machine.

    Raises:
        ValueError: as of :func:`open_together`.
    """
    own = holds[rendezvous.rank]
    given = [text for of, text in zip(holds, rendezvous.gather(budgets), strict=True) if of == own]
    first, filled = holds.index(own), []

    def make() -> bytes:
        if len(set(given)) > 1:
            raise ValueError(f"tiers: expected equal budgets on ranks that share them, found {given}")
        if rendezvous.rank != first:
            return b""
        filled.append(make_store(len(given)))
        return bytes(ForkingPickler.dumps(filled[0])) if len(given) > 1 else b""

    sent = rendezvous.gather(rendezvous.all_made(make))
    # The first rank keeps them open until all have opened them.
    return rendezvous.all_made(lambda: filled[0] if filled else opened(sent[first]))


def own_view(
    store: TieredFeatureStore, own: Tensor, score: Tensor, gpu: Budget = 0,
    device: torch.device | str | int | None = None,
) -> TieredFeatureStore:  # fmt: skip
    """The rows of a store in host memory and files, which other processes may share, as one process reads them.

    The hottest of its own rows lie on its GPU too. Its tier plan expects, and its ``stats()`` count, its own reads
    alone. Closing it closes the store.

    Args:
        store: opened by this process; ids are not renumbered.
        own: ids of the nodes whose rows this process reads: int64, shape [m].
        score: how often it reads each of them: int64, shape [m].
        gpu: the budget on this process's GPU, with the map from ids to places; a share is one of the own rows.
        device: the GPU that gathers; by default the current one if ``gpu`` is above 0, else the CPU.

    Raises:
        TypeError, ValueError: a wrong budget or device, or a budget that is smaller than the map.
        MemoryError: too little memory is free on the GPU.
    """
    assert isinstance(store.plan, TierPlan)
    row_bytes, (num_nodes,) = store.plan.row_bytes, {rows.shape[0] for rows in store._tensors.values()}
    gpu, _, where = devices_of(gpu, (), device, row_bytes * len(own))
    return view_on(store, own, score, budget_bytes("gpu", gpu, row_bytes * len(own)), where, num_nodes)


def view_on(
    store: TieredFeatureStore, own: Tensor, score: Tensor, room: int, device: torch.device, num_nodes: int
) -> TieredFeatureStore:
    """:func:`own_view` with ``room`` bytes on a device that was checked, which may be the CPU."""
    assert isinstance(store.plan, TierPlan)
    cut: list[TieredRows] = [rows for rows in store._tensors.values() if rows.key[1] not in store.plan.whole]
    below = next((rows.place for rows in cut if rows.place is not None), None)
    below = torch.arange(num_nodes) if below is None else below.to(torch.int64)
    count, map_bytes = 0, num_nodes * ops.place_dtype(3 * num_nodes).itemsize
    if room and cut:
        if room < map_bytes:
            raise ValueError(f"gpu: expected room for the map of {num_nodes} nodes, {map_bytes} bytes, found {room}")
        count = min(len(own), (room - map_bytes) // max(store.plan.row_bytes, 1))
    hot = own[by_score(score).old[:count]]
    place = (below + count).to(ops.place_dtype(3 * num_nodes))
    place[hot] = torch.arange(count, dtype=place.dtype)
    tiers = [Tier("gpu", count, count * store.plan.row_bytes, 0.0)] * (count > 0) + list(store.plan.tiers)
    plan = TierPlan(
        _expected(tiers, place[own], score), store.plan.whole, store.plan.row_bytes,
        place.nbytes if count else store.plan.map_bytes, "host" if device.type == "cpu" else "gpu",
    )  # fmt: skip
    check_room(plan, device, 0, 0)
    place = place.to(device)
    attributes = [
        _on_top(rows, hot, place, device) if rows.key[1] not in plan.whole else rows.attribute
        for rows in store._tensors.values()
    ]
    view = TieredFeatureStore(plan, None, attributes, store._memory, device)
    view.__dict__["_origin"] = store  # kept open: rows that it wrote to disk are deleted with it
    return view


def _expected(tiers: list[Tier], places: Tensor, score: Tensor) -> tuple[Tier, ...]:
    """The tiers with the share of the score of the rows at ``places`` that each has."""
    ends = torch.tensor([tier.rows for tier in tiers[:-1]], dtype=torch.int64).cumsum(0)
    tier_of = torch.searchsorted(ends, places.to(torch.int64), right=True)
    score = score if bool(score.any()) else torch.ones_like(score)
    sums = torch.zeros(len(tiers), dtype=torch.int64).index_add_(0, tier_of, score.to(torch.int64))
    shares = (sums / sums.sum().clamp(min=1).to(torch.float64)).tolist()
    return tuple(replace(tier, hit_rate=share) for tier, share in zip(tiers, shares, strict=True))


def _on_top(rows: TieredRows, hot: Tensor, place: Tensor, device: torch.device) -> Attribute:
    """An attribute with the rows of ``hot`` on a device, before all others, and counts of its own."""
    entry = rows.attribute
    if len(hot) == 0:
        mapped = entry.place if rows.place is None or device.type == "cpu" else place  # the one that all share
        return replace(entry, place=mapped, counts=torch.zeros(len(entry.tiers), 2, dtype=torch.int64))
    first = rows.gather(hot).to(entry.storage).to(device)
    return replace(
        entry, tiers=("gpu", *entry.tiers), spread=(1, *entry.spread), segments=(first, *entry.segments), place=place,
        counts=torch.zeros(len(entry.tiers) + 1, 2, dtype=torch.int64),
    )  # fmt: skip
