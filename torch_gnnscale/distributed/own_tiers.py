"""The rows of a part's own nodes in tiers, which the ranks of one machine that hold the part open together."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch_geometric.typing import NodeType

from .. import ops
from ..comm.rendezvous import Rendezvous
from ..feature import TieredFeatureStore
from ..feature.hotness import by_type_of, check_hotness, check_types, labelled_ids, named_scores, relations_of
from ..feature.tier_builder import Source
from ..feature.tiered_rows import FileRows
from ..memory import Budget, budget_bytes, peer_budgets
from ..ops.arguments import checked_device
from ..partition import StoredPart, StoredParts
from ..topology import CSC


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
