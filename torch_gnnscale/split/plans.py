"""Split plans: which part computes which node, and the counts by which that was decided."""

from __future__ import annotations

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

from .. import files, ops
from ..feature import FeatureStore, TieredFeatureStore
from ..memory import Budget
from ..ops.arguments import check_int
from ..partition.report import of_parts
from ..text import table
from .loader_split import SplitByOwners
from .own_store import own_store

KIND = "split plan"
"""The kind of a saved plan's directory (:mod:`torch_gnnscale.files`)."""


@dataclass(frozen=True, eq=False, repr=False)
class Plan(SplitByOwners):
    """Which part computes which node of a homogeneous graph: made by :func:`torch_gnnscale.split.plan`, and given to a
    loader as ``split``.

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
    def fingerprint(self) -> str:  # type: ignore[override]
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
