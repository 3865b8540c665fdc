"""Split plans: which part computes which node, by which counts that was decided, and what a plan gives to a loader: a
sampler of its rank's part, and the steps of all ranks."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput
from typing_extensions import override

from .. import files, ops
from .._library import __version__
from .._user import table, warn
from ..comm.liveness import close_at_exit
from ..comm.mesh import Grid, Ranks, check_alike
from ..comm.rendezvous import Rendezvous, rank_and_world
from ..comm.steps import Steps
from ..distributed.partitioned_features import PartRows
from ..feature import FeatureStore, TieredFeatureStore
from ..loader.given_data import given_data
from ..loader.row_source import CollectiveSource, RowSource, StoreRows
from ..loader.sharing import Split, SplitBatches
from ..memory import Budget
from ..ops.arguments import check_int
from ..partition.whole import of_parts
from ..sampler.base import Inputs, KeyedSampler
from ..topology.reorder import Numbering
from .cut_sampler import CooperativeSampler, RankSampler, SplitSampler, check_nodes
from .rank_rows import SplitRows, own_store

KIND = "split plan"
"""The kind of a saved plan's directory (:mod:`torch_gnnscale.files`)."""


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Split):
    """Which part computes which node of a homogeneous graph: made by :func:`torch_gnnscale.split.plan`, and given to a
    loader as ``split``.

    With torch.distributed, P ranks are P / K groups for K parts, P a multiple of K: rank r computes part r mod K of the
    batches of group r // K. A single process computes all parts as one: its batches are whole.

    Nodes and edges have the user's ids, also if the sampled stores are renumbered. Counts are sums over the presampled
    batches.
    """

    owners: Tensor
    """The part of each node: int32, shape [n]."""
    parts: int
    """How many parts there are; some may have no nodes."""
    node_load: Tensor
    """What each node adds to its part's load, N_v. int32, or int64 where a count needs it, shape [n]."""
    edge_load: Tensor
    """In how many layers each edge was computed, N_e. int32 or int64, shape [m]."""
    rows: Tensor
    """How often each node's features were read. int32 or int64, shape [n]."""
    cut: int
    """The sum of N_e over the edges between parts."""
    about: dict[str, Any]
    """How the plan was made, in plain values: weights, load, sampler, batch_size, epochs, seed."""

    @property
    def num_nodes(self) -> int:
        """The number of nodes, n."""
        return len(self.owners)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for plans that give all nodes to the same parts."""
        digest = hashlib.blake2b(self.owners.numpy().data, digest_size=16, salt=self.parts.to_bytes(8, "little"))
        return digest.hexdigest()

    @cached_property
    def loads(self) -> list[int]:
        """The sum of N_v over each part's nodes."""
        return self._sums(self.node_load)

    @property
    def cut_share(self) -> float:
        """The cut over the sum of N_e of all edges: the share of computed edges that cross; 0 without any."""
        total = int(self.edge_load.sum(dtype=torch.int64))
        return self.cut / total if total else 0.0

    @property
    def imbalance(self) -> float:
        """max / mean of the loads; 1 where all are 0."""
        return max(self.loads) * self.parts / sum(self.loads) if any(self.loads) else 1.0

    def _sums(self, count: Tensor) -> list[int]:
        sums = torch.zeros(self.parts, dtype=torch.int64)
        return sums.index_add_(0, self.owners.to(torch.int64), count.to(torch.int64)).tolist()

    def save(self, path: str | os.PathLike) -> None:
        """Writes the plan into the new directory ``path``, or nothing at all; ``owners.npy`` has the parts.

        Raises:
            FileExistsError: ``path`` exists and is not an empty directory.
            OSError: a file that cannot be written.
        """
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        files.save(path, KIND, arrays, {"parts": self.parts, "cut": self.cut, "about": self.about})

    @classmethod
    def open(cls, path: str | os.PathLike, verify: bool = True) -> Plan:
        """A saved plan, memory-mapped: the processes of a machine share its pages.

        Args:
            path: what :meth:`save` wrote.
            verify: read everything once and compare checksums.

        Raises:
            FileNotFoundError, ValueError: names the file that is missing, truncated, corrupt or foreign.
        """
        arrays, meta = files.load(path, KIND, verify)
        with files.described(Path(path) / files.MANIFEST, "a saved split plan"):
            read = {name: arrays[name] for name in _ARRAYS}
            parts, cut = check_int("parts", meta["parts"], 1), check_int("cut", meta["cut"])
            plan = cls(parts=parts, cut=cut, about=dict(meta["about"]), **read)
            for name, array in read.items():
                if array.dtype not in ops.ID_DTYPES or array.dim() != 1:
                    raise ValueError(f"{name} of {array.dtype} {tuple(array.shape)}")
            if {len(plan.node_load), len(plan.rows)} != {len(plan.owners)} or plan.owners.dtype != torch.int32:
                raise ValueError(f"owners {plan.owners.dtype} and counts of other numbers of nodes")
        if (at := ops.first_outside(plan.owners, plan.parts)) >= 0:
            file = Path(path) / "owners.npy"
            raise ValueError(f"{file}: expected parts in [0, {plan.parts}), found {int(plan.owners[at])}")
        return plan

    def store(
        self,
        data: Data | FeatureStore,
        *,
        gpu: Budget = 0,
        host: Budget | None = None,
        disk: str | os.PathLike | None = None,
        names: Sequence[str] | None = None,
        device: torch.device | str | int | None = None,
        timeout: float = 600.0,
    ) -> TieredFeatureStore:
        """The features in tiers by the plan's counts, for this rank, which reads the rows of its own nodes.

        Each machine has one copy of all rows, in host memory and files that its ranks share. The rows that these ranks
        read most are in memory. Besides, a rank's GPU has copies of the rank's own hottest rows. With a process group,
        all of its ranks call this together, rank r for part r mod ``parts``; without one, all nodes are the rank's own.
        ``store.plan`` predicts, and ``store.stats()`` counts, the reads of this rank alone.

        Args:
            data: a Data, or a FeatureStore; rows of the latter that no budget holds stay in its files.
            gpu: the budget of this rank's GPU, in bytes ("4GiB") or as a share of its own rows (0.25).
            host: the budget of a machine's memory, the same on its ranks; by default it holds all rows.
            disk, names, device: as of :meth:`torch_gnnscale.TieredFeatureStore.from_data`.
            timeout: seconds after which a rank that does not come is an error.

        Raises:
            TypeError, ValueError: wrong budgets or names, or rows of another graph. What fails on one rank is an error
                on all.
            NotImplementedError: other data, attributes of edges, renumbered stores.
            RuntimeError: a rank does not come, or ends in the meantime; the message names it.
        """
        return own_store(self.owners, self.parts, self.rows, data, gpu, host, disk, names, device, timeout)

    @override
    def of_loader(
        self, sampler: KeyedSampler, inputs: type[Inputs], data: Any, timeout: float | None
    ) -> SplitBatches:  # fmt: skip
        if inputs is not NodeSamplerInput:
            raise NotImplementedError("links with split= are not implemented; use NeighborLoader")
        features = data[0] if isinstance(data, (tuple, list)) else None
        if isinstance(features, PartRows):
            if timeout:
                warn(f"timeout={timeout} has no effect with the stores of a part: open_part(timeout=) decides")
            return PartBatches(sampler, features, self.owners, self.parts, self.fingerprint)
        if timeout is not None and timeout < 0:
            raise ValueError(f"timeout: expected at least 0, found {timeout}")
        order = given_data(data).numbering
        if order is not None:
            check_nodes(sampler, len(self.owners))
        return OwnedBatches(self, sampler, self.owners_in(order), timeout or TIMEOUT)

    @override
    def refuse(self, data: Any, timeout: float | None, why: str) -> None:
        features = data[0] if isinstance(data, (tuple, list)) and data else None
        if isinstance(features, PartRows):
            features.refuse(why)
            return
        rank, world = rank_and_world()
        if world == 1:
            return
        valid = isinstance(timeout, (int, float)) and timeout > 0
        with contextlib.suppress(RuntimeError, ValueError):  # they do not come, or cannot
            rendezvous = Rendezvous(rank, world, float(timeout) if valid else TIMEOUT)  # type: ignore[arg-type]
            rendezvous.refuse(why)
            rendezvous.close()

    def owners_in(self, order: Numbering | None) -> Tensor:
        """``owners`` by stored ids. ``order``: the numbering of the stores; None if they have the user's ids."""
        if order is None:
            return self.owners
        stored = order.to_stored(torch.arange(len(self.owners)))
        return torch.empty_like(self.owners).index_copy_(0, stored, self.owners)

    def __str__(self) -> str:
        """A table of the parts."""
        nodes, rows = of_parts(self.owners, self.parts).tolist(), self._sums(self.rows)
        lines: list[tuple[str, ...]] = [("part", "nodes", "load", "rows read")]
        counted = zip(nodes, self.loads, rows, strict=True)
        lines += [(str(part), *(f"{count:,}" for count in counts)) for part, counts in enumerate(counted)]
        share = f"{100 * self.cut_share:.2f} % of computed edges between parts"
        return "\n".join([*table(lines), f"max / mean of the loads {self.imbalance:.3f}, {share}"])

    def __repr__(self) -> str:
        return f"Plan({self.num_nodes} nodes in {self.parts} parts, {self.about})"


_ARRAYS = ("owners", "node_load", "edge_load", "rows")


# Batches of a loader ##################################################################################################

TIMEOUT = 600.0
"""Seconds after which a rank that does not answer is an error, unless the loader has a ``timeout``."""


class OwnedBatches(SplitBatches):
    """One loader's share of batches that are cut by a plan.

    Args:
        plan: of the loader.
        sampler: samples whole batches.
        owners: the plan's, by stored ids.
        timeout: seconds after which a rank that does not answer is an error.
    """

    def __init__(self, plan: Plan, sampler: KeyedSampler, owners: Tensor, timeout: float) -> None:
        rank, world = rank_and_world()
        self.grid = Grid(world, 1 if world == 1 else plan.parts, "parts")
        self.ranks = Ranks(self.grid.copy(rank), self.grid.copies)
        self.parts, self._owners = plan.parts, owners
        self.sampler: KeyedSampler = SplitSampler(sampler, owners, self.grid.parts, self.grid.part(rank))
        self._identity: dict[str, Any] = {"version": __version__}
        if world > 1:
            self._identity |= {"parts of the split plan": plan.parts, "split plan": plan.fingerprint}
        self._timeout = timeout

    @override
    def owners_of(self, nodes: Tensor) -> Tensor:
        return ops.gather_rows(self._owners, nodes)

    @override
    def source(self, rows: RowSource) -> CollectiveSource:
        if not rows.threads:
            raise ValueError("data: expected stores that threads may read (thread_safe) with split=, found others")
        return SplitRows(rows)

    @override
    def open_steps(self) -> Steps:
        rendezvous = Rendezvous(*rank_and_world(), self._timeout)
        try:
            rendezvous.all_made(lambda: True)  # here a rank refuses
            check_alike(rendezvous.gather(self._identity))  # before there are groups by the number of parts
            steps = Steps(rendezvous, self.grid, self._identity, lambda _: rendezvous.close(), by_column=True)
        except BaseException:
            rendezvous.close()
            raise
        close_at_exit(steps)
        return steps


class PartBatches(SplitBatches):
    """One loader's share of batches of a graph in parts: rank i of a column computes the nodes of part i.

    If edges are in parts, the ranks of a column draw a batch together; else each rank draws the whole batch.

    Args:
        sampler: of whole batches, over the stores of the part.
        features: the rows of the part.
        owners: the plan's: the part of each node, by the user's ids: int32 or int64, shape [nodes].
        parts: the plan's number of parts.
        fingerprint: the plan's.

    Raises:
        NotImplementedError: a sampler whose batches cannot be split, or a part that was opened for other loaders.
    """

    def __init__(self, sampler: KeyedSampler, features: PartRows, owners: Tensor, parts: int, fingerprint: str) -> None:
        features.check_splittable()
        self._features, self._owners, self._parts_of_plan, self._fingerprint = features, owners, parts, fingerprint
        ranks, book = features.ranks, features.parts.book
        self.parts, self.ranks = book.num_parts, Ranks(ranks.copy, ranks.copies)
        self.sampler: RankSampler
        if features.parts.topology == "partitioned":
            self.sampler = CooperativeSampler(sampler, book, ranks.part)
        else:
            self.sampler = SplitSampler(sampler, book, ranks.parts, ranks.part)

    @override
    def owners_of(self, nodes: Tensor) -> Tensor:
        return self._features.parts.book.part_of(nodes)

    def source(self, rows: RowSource) -> CollectiveSource:
        """A source of own rows, all in this part, so that they are read without other ranks."""
        assert isinstance(rows, StoreRows)
        return SplitRows(StoreRows(rows.features, rows.graph, rows.custom_cls))

    @override
    def open_steps(self) -> Steps:
        steps = self._features.open_split_steps(
            {"parts of the split plan": self._parts_of_plan, "split plan": self._fingerprint}
        )
        problems = [text for text in steps.gather(self._problem()) if text is not None]
        if problems:
            raise ValueError(problems[0])
        return steps

    def _problem(self) -> str | None:
        """What is wrong with the plan for this part, if anything."""
        book, number = self._features.parts.book, self._features.ranks.part
        if self._parts_of_plan != self.parts:
            return f"split: expected a plan of {self.parts} parts, as the graph has, found one of {self._parts_of_plan}"
        if len(self._owners) != book.num_nodes():
            return f"split: expected a plan of {book.num_nodes()} nodes, found one of {len(self._owners)}"
        ids = self._features.part.user_ids[None]
        found = self._owners[ids]
        others = (found != number).nonzero()
        if not len(others):
            return None
        at = int(others[0])
        return (
            f"split: expected parts that were written by the plan's owners, found node {int(ids[at])} of part "
            f"{int(found[at])} in part {number}; partition.write(..., owners=plan.owners) writes them"
        )
