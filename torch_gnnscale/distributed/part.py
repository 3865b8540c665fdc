"""Opens a part of a graph: the stores that loaders take, and what a training script asks."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import distributed as dist
from torch_geometric.typing import EdgeType, NodeType

from ..feature.contract import Ranks
from ..memory import Budget
from ..partition import StoredParts, open_parts
from ..topology import GraphStore
from ..version import __version__
from .buffer import Kept
from .exchange import Traffic
from .executor import not_implemented
from .feature_store import PartitionedFeatureStore
from .graph_store import PartitionedGraphStore
from .grid import Grid
from .meeting import Meeting
from .numbering import PartNumbering, numbering_of
from .part_rows import PartRows
from .places import is_first, places, staged, warn_of_network
from .steps import RankSteps

Of = Literal["part", "all"]
"""Whose seeds: this part's, or those of all parts."""
AT_EXIT = 5.0
"""Seconds that the end of a program, or an error, waits for ranks that have not left a loop: they may wait for this one
elsewhere, in the sum of their gradients."""
_open: weakref.WeakSet[Part] = weakref.WeakSet()


class Part:
    """One part of a partitioned graph, opened by the ranks that train on it. A context manager.

    Args:
        parts: the opened directory.
        ranks: of the run; this one holds the part ``ranks.part``.
        verify: whether this rank compares the checksums of its part.
        meeting: of the run's ranks; closed with the part.
        kept: which rows of other parts its loaders keep.
    """

    def __init__(self, parts: StoredParts, ranks: Ranks, verify: bool, meeting: Meeting, kept: Kept) -> None:
        self.parts, self.ranks, self._meeting = parts, ranks, meeting
        self._steps: list[RankSteps] = []
        self.stored = parts.part(ranks.part, verify)
        self.features: PartRows
        """The rows."""
        if ranks.world == 1 and parts.topology == "replicated":  # nobody to meet
            self.features = PartRows(parts, self.stored, ranks)
        else:
            self.features = PartitionedFeatureStore(parts, self.stored, ranks, self._open_steps, kept)
        self.graph: GraphStore | PartitionedGraphStore
        """The edges, in stored ids."""
        if parts.topology == "replicated":
            self.graph = _with_order(parts.graph(), numbering_of(parts))
        elif kept.policy == "lookahead":
            raise not_implemented("policy='lookahead'")
        else:
            self.graph = PartitionedGraphStore(parts, self.stored)
        _open.add(self)

    def input_nodes(self, split: str, of: Of = "part", node_type: NodeType | None = None) -> Any:
        """Seeds as a loader's ``input_nodes`` takes them: the user's ids, or a pair of a node type and ids.

        Args:
            split: such as "train".
            of: "part" for the order of seeds ``owned``, "all" for ``global``.
            node_type: in a heterogeneous graph, by default the only type that has this split.

        Raises:
            ValueError: there is no such split.
        """
        node_type = _type_of("split", split, node_type, self.parts.splits)
        ids = self.stored.seeds[node_type, split] if _is_own(of) else self.parts.input_nodes(split, node_type)
        return ids if node_type is None else (node_type, ids)

    def links(self, split: str, of: Of = "part", edge_type: EdgeType | None = None) -> Any:
        """Links as ``edge_label_index`` takes them; one belongs to its destination's part. See :meth:`input_nodes`."""
        edge_type = _type_of("split", split, edge_type, self.parts.link_splits)
        links = self.stored.links[edge_type, split] if _is_own(of) else self.parts.links(split, edge_type)
        return links if edge_type is None else (edge_type, links)

    def stats(self) -> dict[str, dict[str, Any]]:
        """What the loaders of this part exchanged so far, by purpose (``headers``, ``counts``, ``ids``, ``rows`` and,
        with a partitioned topology, ``requests`` and ``picks``): the entries of :class:`Traffic`."""
        total: dict[str, Traffic] = {}
        for steps in self._steps:
            for exchange in {id(e): e for e in (steps.headers, steps.rows)}.values():
                for purpose, traffic in exchange.traffic.items():
                    total[purpose] = total.get(purpose, Traffic()) + traffic
        return {purpose: asdict(traffic) for purpose, traffic in total.items()}

    def _open_steps(self) -> RankSteps:
        ranks = self.ranks
        identity = {"version": __version__, "partition book": self.parts.fingerprint}
        steps = RankSteps(self._meeting, Grid(ranks.world, ranks.parts), identity)
        self._steps.append(steps)
        return steps

    def close(self, timeout: float | None = None) -> None:
        """Ends the groups of its loaders, within ``timeout`` seconds for each; rows that were delivered stay valid."""
        self.features.close()
        for steps in self._steps:
            steps.close(timeout)
        self._meeting.close()
        self.parts.close()

    def __enter__(self) -> Part:
        return self

    def __exit__(self, error: Any, *_: Any) -> None:
        self.close(None if error is None else AT_EXIT)


def open_part(
    path: str | os.PathLike, *, buffer: Budget | None = None, policy: str | None = None,
    policy_options: Mapping[str, Any] | None = None, stage: str | os.PathLike | None = None, verify: bool = True,
    timeout: float = 600.0,
) -> Part:  # fmt: skip
    """Opens this rank's part of a directory that :func:`torch_gnnscale.partition.write` made.

    With torch.distributed, P ranks hold K parts, P a multiple of K: rank r holds part r // (P / K). One part needs no
    process group. A rank opens the book, its own part and, mapped, what all ranks share.

    Args:
        path: the directory.
        buffer: how many rows of other parts' nodes each loader keeps: a share of the part's halo (0.25), or bytes
            ("2GiB"). None: none. A buffer changes no batch.
        policy: which rows: ``massivegnn`` (scores; MassiveGNN, section 3; the default), ``static`` (those with the
            largest out-degrees, for ever) or ``lookahead`` (those that are needed next, for batches are sampled ahead).
        policy_options: of the policy: ``gamma`` and ``delta`` of massivegnn, ``window`` of lookahead: a number of
            batches or "epoch".
        stage: a folder on a disk of this machine, to which one of its processes first copies what the machine's ranks
            open, unless an equal copy is there. None: ``path`` itself is opened; a warning if it lies on a network
            file system. All ranks have one, or none.
        verify: read all files once and compare checksums, by one process of each machine.
        timeout: seconds after which a rank that does not answer is an error.

    Raises:
        ValueError: on all ranks: the number of ranks is not a multiple of that of parts; the directory is unfinished; a
            file is missing or damaged; a rank cannot connect to others (open files, network interface), or has another
            ``stage``. One rank alone raises FileNotFoundError or OSError for files that it cannot read.
        RuntimeError: a rank does not come, or ends in the meantime; names it.
    """
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)
    meeting = Meeting(rank, world, timeout)
    try:
        kept = partial(Kept, buffer, policy, policy_options)
        return _opened(Path(path), None if stage is None else Path(stage), meeting, verify, kept)
    except BaseException:
        meeting.close()
        raise


def _opened(path: Path, stage: Path | None, meeting: Meeting, verify: bool, kept: Callable[[], Kept]) -> Part:
    if len(set(given := meeting.gather(stage is not None))) > 1:
        raise ValueError(f"stage: expected a folder on all ranks or on none, found {given}")
    if stage is not None:
        path, verify = staged(path, stage, meeting, verify), False  # the copy is verified
    where, rank = places(path / "book", meeting), meeting.rank
    warn_of_network(path, where, meeting)

    def opened() -> Part:
        parts = open_parts(path, verify and is_first(where, rank))
        grid = Grid(meeting.world, parts.book.num_parts)
        holds = [(of, grid.part(other)) for other, of in enumerate(where)]
        ranks = Ranks(rank, meeting.world, grid.part(rank), grid.parts)
        return Part(parts, ranks, verify and is_first(holds, rank), meeting, kept())

    return meeting.all_made(opened)


def _is_own(of: str) -> bool:
    if of not in ("part", "all"):
        raise ValueError(f"of: expected 'part' or 'all', found {of!r}")
    return of == "part"


def _type_of(what: str, name: str, type_name: Any, known: list[tuple[Any, str]]) -> Any:
    """The type whose split of this name is meant."""
    types = [found for found, of_name in known if of_name == name]
    if type_name is not None or (None in types):
        types = [found for found in types if found == type_name]
    if len(types) != 1:
        wanted = name if type_name is None else (type_name, name)
        raise ValueError(f"{what}: expected one of {known}, found {wanted!r}")
    return types[0]


def _with_order(graph: GraphStore, order: PartNumbering | None) -> GraphStore:
    store = GraphStore()
    store._relations.update(graph._relations)
    store.__dict__["order"] = order
    return store


@atexit.register
def _close_all() -> None:
    """A group that is still there when the interpreter ends may abort it."""
    for part in list(_open):
        part.close(AT_EXIT)
