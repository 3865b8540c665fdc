"""Opens a part of a graph: the stores that loaders take, and what a training script asks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor
from torch_geometric.typing import EdgeType, NodeType

from .. import ops
from .._library import __version__
from .._user import warn
from ..comm.exchange import Traffic
from ..comm.liveness import AT_EXIT, close_at_exit
from ..comm.mesh import Consecutive, Grid, RowGroup, Transport, check_one_machine, transport_of
from ..comm.rendezvous import Rendezvous, rank_and_world
from ..comm.steps import Steps
from ..feature import TieredFeatureStore
from ..memory import Budget
from ..ops.arguments import check_choice
from ..partition import StoredPart, StoredParts, open_parts
from ..remote import is_url, without_secrets
from ..topology import GraphStore
from .buffer import Kept
from .own_rows import OwnTiers, open_together
from .partitioned_features import PartitionedFeatureStore, PartRows, numbering_of
from .partitioned_graph import PartitionedGraphStore
from .staging import is_first, places, staged, warn_of_network

Of = Literal["part", "all"]
"""Whose seeds: this part's, or those of all parts."""


class Part:
    """One part of a partitioned graph, opened by the ranks that train on it. A context manager.

    Args:
        parts: the opened directory.
        stored: the part of it that this rank holds.
        grid: of the run's ranks.
        rendezvous: of the run's ranks; closed with the part.
        kept: which rows of other parts its loaders keep.
        tiers: the rows of the part's own nodes, if they are in tiers; closed with the part.
        transport: how the threads of steps exchange rows, or over what the threads that iterate do.
    """

    def __init__(
        self, parts: StoredParts, stored: StoredPart, grid: Grid, rendezvous: Rendezvous, kept: Kept,
        tiers: TieredFeatureStore | None, transport: Transport,
    ) -> None:  # fmt: skip
        ranks = grid.ranks_of(rendezvous.rank)
        self.parts, self.stored, self.ranks, self._grid, self._rendezvous = parts, stored, ranks, grid, rendezvous
        self._transport = transport
        self._steps: list[Steps] = []  # of the loaders that are there
        self._earlier: dict[str, Traffic] = {}  # of loaders that are gone
        self._counting = threading.Lock()
        self.features: PartRows
        """The rows. ``features.tiers`` has the tier plan and counts what is read, if the part was opened with tiers."""
        if ranks.world == 1 and parts.topology == "replicated":  # nobody to meet
            self.features = PartRows(parts, stored, ranks, rendezvous.refuse, self._open_steps, tiers)
        else:
            self.features = PartitionedFeatureStore(
                parts,
                stored,
                ranks,
                tiers,
                rendezvous.refuse,
                self._open_steps,
                kept,
                transport if isinstance(transport, RowGroup) else None,
            )
        self.graph: GraphStore | PartitionedGraphStore
        """The edges, in stored ids."""
        if parts.topology == "replicated":
            self.graph = parts.graph().numbered_by(numbering_of(parts))
        else:
            self.graph = PartitionedGraphStore(parts, stored)
        close_at_exit(self)

    def input_nodes(
        self, split: str | tuple[NodeType | None, str] | None, of: Of = "part", node_type: NodeType | None = None
    ) -> Any:
        """Seeds as a loader's ``input_nodes`` takes them: the user's ids, or a pair of a node type and ids.

        Args:
            split: such as "train", or ("user", "train"). None: all nodes.
            of: "part" for the order of seeds ``owned``, "all" for ``global``.
            node_type: in a heterogeneous graph, by default the only type that has this split.

        Raises:
            ValueError: there is no such split.
        """
        if split is None:
            return self._all_nodes(of, node_type)
        split, node_type = _named("split", split, node_type, self.parts.splits, "splits")
        ids = self.stored.seeds[node_type, split] if _is_own(of) else self.parts.input_nodes(split, node_type)
        return ids if node_type is None else (node_type, ids)

    def _all_nodes(self, of: Of, node_type: NodeType | None) -> Any:
        known = list(self.parts.book.bounds)
        if node_type is None and len(known) == 1:
            node_type = known[0]
        check_choice("node_type", node_type, known)
        ids = self.stored.user_ids[node_type] if _is_own(of) else self.parts.input_nodes(None, node_type)
        return ids if node_type is None else (node_type, ids)

    def links(
        self, split: str | tuple[EdgeType | None, str], of: Of = "part", edge_type: EdgeType | None = None,
        attrs: Sequence[str] = (),
    ) -> Any:  # fmt: skip
        """Links as ``edge_label_index`` takes them; one belongs to its destination's part.

        Args:
            split, of, edge_type: as of :meth:`input_nodes`.
            attrs: names of attributes of edges, such as a time, or "e_id". The links must have been written by ids of
                edges; with ``of="all"`` an attribute must be one of all edges (``write(..., graph_attrs=)``).

        Returns:
            The links; with ``attrs`` a pair of these and a dict of the attributes, [m, ...] each, by name.

        Raises:
            ValueError: there is no such split or attribute.
        """
        split, edge_type = _named("split", split, edge_type, self.parts.link_splits, "links")
        own, key = _is_own(of), (edge_type, split)
        links = self.stored.links[key] if own else self.parts.links(split, edge_type)
        found = links if edge_type is None else (edge_type, links)
        if isinstance(attrs, str):
            raise TypeError(f"attrs: expected a list of names, found the str {attrs!r}")
        if not attrs:
            return found
        ids = self.stored.link_ids.get(key) if own else self.parts.link_ids(split, edge_type)
        if ids is None:
            raise ValueError(
                f"attrs: expected links that were written by ids of edges, found ends alone; use "
                f"partition.write(..., links={{{split!r}: ids}})"
            )
        return found, {name: self._of_edges(name, ids, edge_type, own) for name in attrs}

    def _of_edges(self, name: str, ids: Tensor, edge_type: EdgeType | None, own: bool) -> Tensor:
        """An attribute of edges, by the user's ids."""
        if name == "e_id":
            return ids
        key = ((None, None) if edge_type is None else edge_type, name)
        table = (self.stored.rows if own else self.parts.graph_attrs).get(key)
        if table is None:
            held = self.stored.rows if own else self.parts.graph_attrs
            known = [of_key[1] for of_key in held if of_key[0] == key[0]]
            kind = "edges" if own else "all edges (graph_attrs=)"
            raise ValueError(f"attrs: expected attributes of {kind} among {['e_id', *known]}, found {name!r}")
        first = self.parts.book.edges(self.stored.number, edge_type).start if own else 0
        return ops.gather_rows(table, self.parts.to_positions(ids, edge_type) - first)

    def stats(self) -> dict[str, dict[str, Any]]:
        """What the loaders of this part exchanged so far, by purpose: the entries of :class:`Traffic`.

        - All loaders: ``headers``, which have the counts of ids, ``ids`` and ``rows``; ``counts``, other numbers of a
          fixed size within a step, where there are any.
        - With a partitioned topology: ``requests``, the nodes whose edges a rank asks for, and ``picks``, the drawn
          edges. With ``split=``, in place of both, ``frontiers``, the nodes that a rank is asked to draw for.
        - With LADIES and FastGCN over a partitioned topology: ``requests`` and ``edges``, all stored edges of the
          nodes; between the ranks of one part, ``seeds``, ``scores`` and ``drawn`` edges; and ``tables``, which are
          summed over all parts when a loader is made.
        """
        with self._counting:
            total = dict(self._earlier)
            for steps in self._steps:
                _count(total, steps)
        return {purpose: asdict(traffic) for purpose, traffic in total.items()}

    def _open_steps(
        self, identity: Mapping[str, Any] | None = None, *, by_column: bool = False, grid: Grid | None = None
    ) -> Steps:
        """The steps of a loader. ``identity`` and ``by_column``, as in :class:`Steps`, are given for a loader of
        split batches; ``grid`` where each rank holds its share of its part alone."""
        alike = {"version": __version__, "partition book": self.parts.fingerprint, **(identity or {})}
        steps = Steps(
            self._rendezvous, grid or self._grid, alike, self._dropped, by_column=by_column, transport=self._transport
        )
        self._steps.append(steps)
        return steps

    def _dropped(self, steps: Steps) -> None:
        """Keeps what the steps of a loader that is gone have counted, and nothing else of them."""
        with self._counting:
            _count(self._earlier, steps)
            self._steps.remove(steps)

    def close(self, timeout: float | None = None) -> None:
        """Ends the groups of its loaders, within ``timeout`` seconds for each; rows that were delivered stay valid."""
        self.features.close()
        for steps in list(self._steps):
            steps.close(timeout)
        if self.features.tiers is not None:
            self.features.tiers.close()
        self._rendezvous.close()
        self.parts.close()

    def __enter__(self) -> Part:
        return self

    def __exit__(self, kind: Any, error: Any, *_: Any) -> None:
        if kind is not None:
            self._rendezvous.leave(f"{kind.__name__}: {error}")
        self.close(None if kind is None else AT_EXIT)


def open_part(
    path: str | os.PathLike, *, buffer: Budget | None = None, policy: str | None = None,
    policy_options: Mapping[str, Any] | None = None, tiers: Mapping[str, Any] | None = None,
    stage: str | os.PathLike | None = None, verify: bool = True, transport: Transport = "auto",
    consecutive: Consecutive = "copies", timeout: float = 600.0, backend: Transport | None = None,
) -> Part:  # fmt: skip
    """Opens this rank's part of a directory that :func:`torch_gnnscale.partition.write` made.

    With torch.distributed, P ranks hold K parts, P a multiple of K: ``consecutive`` says which. One part needs no
    process group. A rank opens the book, its own part and, mapped, what all ranks share.

    Args:
        path: the directory; with ``stage`` also a URL of one that fsspec reads, such as ``s3://bucket/parts``.
        buffer: how many rows of other parts' nodes each loader keeps: a share of the part's halo (0.25), or bytes
            ("2GiB"). None: none. A buffer changes no batch.
        policy: which rows: ``massivegnn`` (scores; MassiveGNN, section 3; the default), ``static`` (those with the
            largest out-degrees, for ever) or ``lookahead`` (those that are needed next: batches are sampled ahead).
        policy_options: of the policy: ``gamma`` and ``delta`` of massivegnn, ``window`` of lookahead: a number of
            batches or "epoch".
        tiers: where the rows of the part's own nodes lie: arguments of :meth:`TieredFeatureStore.from_data`, of which
            ``gpu``, ``peers``, ``host``, ``hotness``, ``labelled`` and ``device`` are known. {"host": "25%"}: a quarter
            of the part's rows, the hottest, are copied to memory that the machine's ranks of the part share; the others
            are read ahead from the part's files. {}: all rows are copied. None: all are mapped. No batch changes.
        stage: a folder on a disk of this machine, to which one of its processes first copies what the machine's ranks
            open, unless an equal copy is there. None: ``path`` itself is opened; a warning if it lies on a network
            file system. All ranks have one, or none.
        verify: read all files once and compare checksums, by one process of each machine.
        transport: how rows, and edges drawn for other ranks, travel. "memory": the ranks that together hold all parts
            are on one machine; the rank that has a row writes it into memory of the one that asks for it. "gloo": over
            Gloo. Both are in host memory, and a thread of each loader exchanges. "auto": memory where these ranks
            can read each other's, which they try, else Gloo. "nccl": from the current GPU of a rank to another one's,
            exchanged by the thread that iterates, once per batch; all rows of batches and of the buffer are on that
            GPU. A :class:`RowGroup`: as with "nccl", by any backend of torch.distributed and on any device; edges then
            travel over Gloo. Headers and counts take memory of one machine or Gloo, whatever rows take. All ranks have
            the same. No batch changes, nor what :meth:`Part.stats` counts. The only rank of one part exchanges nothing,
            and its rows are where its tiers are.
        consecutive: which ranks have consecutive numbers. "copies": rank r holds part r // (P / K), so that the ranks
            of one part share a machine's memory. "parts": rank r holds part r mod K, so that a machine of K ranks has
            all parts, and they exchange rows within it. All ranks have the same.
        timeout: seconds after which a rank that does not answer, or is busy elsewhere, is an error. It does not bound
            what DDP waits for, whose process group has a timeout of its own.
        backend: the earlier name of ``transport``, with a FutureWarning.

    Raises:
        ValueError: on all ranks: the number of ranks is not a multiple of that of parts; the directory is unfinished; a
            file is missing or damaged; a rank cannot connect to others (open files, network interface), cannot fill
            its tiers, has no GPU or NCCL for ``transport="nccl"``, or has another ``stage``, ``transport``,
            ``consecutive`` or other budgets; with ``transport="memory"``, ranks that exchange rows are on several
            machines or, when a loader is made, cannot read each other's memory. One rank alone raises FileNotFoundError
            or OSError for files that it cannot read, MemoryError where its tiers do not fit.
        RuntimeError: a rank does not come, or ends in the meantime; names it.
    """
    if backend is not None:
        warn("open_part(backend=) is now transport=, and will be removed in the next version", FutureWarning)
        transport = backend
    rank, world = rank_and_world()
    rendezvous = Rendezvous(rank, world, timeout)
    try:
        kept = partial(Kept, buffer, policy, policy_options)
        to = None if stage is None else Path(stage)
        if is_url(path) and to is None:
            raise ValueError(f"path: expected a folder, or stage= beside a URL, found {without_secrets(str(path))!r}")
        return _opened(
            path if is_url(path) else Path(path), to, rendezvous, verify, kept, tiers, transport, consecutive
        )
    except BaseException:
        rendezvous.close()
        raise


def _opened(
    given_path: str | os.PathLike, stage: Path | None, rendezvous: Rendezvous, verify: bool, kept: Callable[[], Kept],
    tiers: Mapping[str, Any] | None, transport: Transport, consecutive: Consecutive,
) -> Part:  # fmt: skip
    by = f"{transport.backend} on {transport.device}" if isinstance(transport, RowGroup) else str(transport)
    given = rendezvous.gather((stage is not None, tiers is not None, by, consecutive))
    stages, with_tiers, transports, layouts = (list(found) for found in zip(*given, strict=True))
    if len(set(stages)) > 1:
        raise ValueError(f"stage: expected a folder on all ranks or on none, found {stages}")
    if len(set(with_tiers)) > 1:
        raise ValueError(f"tiers: expected them on all ranks or on none, found {with_tiers}")
    if len(set(transports)) > 1:
        raise ValueError(f"transport: expected the same on all ranks, found {transports}")
    if len(set(layouts)) > 1:
        raise ValueError(f"consecutive: expected the same on all ranks, found {layouts}")
    check_choice("consecutive", consecutive, get_args(Consecutive))
    by_transport = rendezvous.all_made(lambda: transport_of(transport))
    path = Path(given_path)
    if stage is not None:
        path, verify = staged(str(given_path), stage, rendezvous, verify, consecutive), False  # the copy is verified
    where, rank = places(path / "book", rendezvous), rendezvous.rank
    warn_of_network(path, where, rendezvous)

    def opened() -> tuple[StoredParts, StoredPart, Grid, list[Hashable], Kept, OwnTiers | None]:
        parts = open_parts(path, verify and is_first(where, rank))
        if rendezvous.world == 1 < (count := parts.book.num_parts):
            hint = "partition.open_parts(path).stores() has all parts"
            raise ValueError(f"ranks: expected a multiple of {count} parts, found 1 rank; {hint}")
        grid = Grid(rendezvous.world, parts.book.num_parts, consecutive)
        if by_transport == "memory":
            check_one_machine(grid, rendezvous.machines)
        holds: list[Hashable] = [(of, grid.part(other)) for other, of in enumerate(where)]
        stored = parts.part(grid.part(rank), verify and is_first(holds, rank))
        return parts, stored, grid, holds, kept(), None if tiers is None else OwnTiers.of(tiers, parts)

    parts, stored, grid, holds, keeping, own = rendezvous.all_made(opened)
    store = None if own is None else open_together(own, parts, stored, holds, rendezvous)
    return rendezvous.all_made(lambda: Part(parts, stored, grid, rendezvous, keeping, store, by_transport))


def _count(total: dict[str, Traffic], steps: Steps) -> None:
    """Adds what steps have exchanged."""
    for exchange in steps.exchanges:
        for purpose, traffic in exchange.traffic.items():
            total[purpose] = total.get(purpose, Traffic()) + traffic


def _is_own(of: str) -> bool:
    if of not in ("part", "all"):
        raise ValueError(f"of: expected 'part' or 'all', found {of!r}")
    return of == "part"


def _named(what: str, split: Any, type_name: Any, known: list[tuple[Any, str]], option: str) -> tuple[str, Any]:
    """(name, type) of the split that is meant. ``split``: a name, or one of the pairs that are ``known``; ``option``:
    of ``partition.write``, that writes such splits."""
    if isinstance(split, tuple) and len(split) == 2 and type_name is None:
        type_name, name = split
        return name, _type_of(what, name, type_name, known, option)
    return split, _type_of(what, split, type_name, known, option)


def _type_of(what: str, name: str, type_name: Any, known: list[tuple[Any, str]], option: str) -> Any:
    """The type whose split of this name is meant."""
    types = [found for found, of_name in known if of_name == name]
    if type_name is not None or (None in types):
        types = [found for found in types if found == type_name]
    if not known:
        raise ValueError(
            f"{what}: expected one that was written, found none; partition.write(..., {option}={{{name!r}: ...}}) "
            f"writes it"
        )
    if len(types) != 1:
        wanted = name if type_name is None else (type_name, name)
        raise ValueError(f"{what}: expected one of {known}, found {wanted!r}")
    return types[0]
