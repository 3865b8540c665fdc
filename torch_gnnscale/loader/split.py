"""The contract of split plans: what a loader asks of its argument ``split``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch_geometric.sampler.base import SubgraphType

from ..comm.mesh import Ranks
from ..comm.steps import Steps
from ..sampler.base import Inputs, KeyedSampler
from .row_source import CollectiveSource, RowSource


def check_modes(subgraph: SubgraphType | str, others: Mapping[str, bool]) -> None:
    """Raises NotImplementedError by name for the first mode of sampling in use that split batches do not have.

    Args:
        subgraph: which edges a sample has.
        others: other modes that they do not have, by name, and whether each is in use.
    """
    subgraph = SubgraphType(subgraph)
    modes = {**others, f"subgraph_type={str(subgraph.value)!r}": subgraph != SubgraphType.directional}
    for name, asked in modes.items():
        if asked:
            raise NotImplementedError(f"{name} with split parallelism is not implemented")


class SplitBatches(ABC):
    """One loader's share of batches that several ranks make together, each a part of every batch."""

    sampler: KeyedSampler
    """Samples this rank's part of a batch."""
    ranks: Ranks
    """``rank``: the number of this rank's group; ``world``: the number of groups. A group makes one batch together."""
    parts: int
    """K, the number of parts of the plan; it does not depend on the number of ranks."""

    @abstractmethod
    def owners_of(self, nodes: Tensor) -> Tensor:
        """The part of each node: integers, shape [nodes]. ``nodes``: stored ids, all in range."""

    @abstractmethod
    def source(self, rows: RowSource) -> CollectiveSource:
        """A source that reads the rows that this rank has of a batch. ``rows``: the source for whole batches."""

    @abstractmethod
    def open_steps(self) -> Steps:
        """The loader's steps, which end with it. Called once, by all ranks.

        Raises:
            ValueError: on all ranks: their splits differ, or do not fit the stores.
        """


class Split(ABC):
    """Which rank computes which nodes of a batch."""

    @abstractmethod
    def of_loader(
        self, sampler: KeyedSampler, inputs: type[Inputs], data: Any, timeout: float | None
    ) -> SplitBatches:  # fmt: skip
        """What a new loader uses instead of ``sampler``. Needs no other rank.

        Args:
            sampler: samples whole batches.
            inputs: what batches are sampled from.
            data: of the loader.
            timeout: seconds after which a rank that does not answer is an error; None or 0 for the default. With the
                stores of a part, the part's timeout counts instead.

        Raises:
            ValueError: batches that cannot be split, or not over these ranks.
            NotImplementedError: a sampler whose batches cannot be split.
        """

    @abstractmethod
    def refuse(self, data: Any, timeout: float | None, why: str) -> None:
        """Called in place of :meth:`SplitBatches.open_steps` on a rank that does not make its loader; see
        :meth:`torch_gnnscale.feature.contract.RowStore.refuse`. Other arguments as of :meth:`of_loader`."""
