"""Classification of nodes by ranks that compute every batch together: split parallelism."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from .. import split
from ..comm.mesh import TransportName
from ..loader.share import SharedOrder
from ..sampler.methods import NEIGHBOR
from ..training import RankGroup
from .node_trainer import NodeTrainer, SeedScores


class SplitRanks(RankGroup):
    """Ranks whose model itself exchanges rows and sums gradients."""

    def parallel(self, module: nn.Module, unused: bool) -> nn.Module:
        """See :meth:`RankGroup.parallel`: the module as it is; backward leaves the sums of gradients."""
        return module


class SplitNodeTrainer(NodeTrainer):
    """Trains a model to predict the classes of nodes; each rank computes its part of every batch.

    Scores and weights are those of one process. ``batch_size`` is that of the whole batch.

    Args:
        plan: which rank computes which nodes.
        order: of the seeds of training (:class:`torch_gnnscale.NeighborLoader`).
        options, others: as of :class:`Trainer`; ``ranks`` are :class:`SplitRanks`, a multiple of the plan's parts, or
            one.

    Raises:
        ValueError: settings or a plan that do not go together.
    """

    def __init__(
        self,
        task: Any,
        config: Any,
        *options: Any,
        plan: split.Plan,
        order: SharedOrder = "global",
        transport: TransportName = "auto",
        **others: Any,
    ) -> None:
        if config.loader != "gnnscale":
            raise ValueError(f"loader: expected 'gnnscale' with a split plan, found {config.loader!r}")
        if config.model == "mlp":
            raise ValueError("model: expected one with messages to be split, found 'mlp'")
        self.plan, self.order, self.transport = plan, order, transport
        super().__init__(task, config, *options, **others)

    @property
    def ranks_per_batch(self) -> int:
        """See :attr:`Trainer.ranks_per_batch`: one for each part, or one alone."""
        return min(self.plan.parts, self.ranks.world)

    def called_module(self) -> nn.Module:
        """The model, split, and weighed if batches have weights."""
        parallelize = partial(split.parallelize, transport=self.transport)
        return SeedScores(self.model, self.config.method != NEIGHBOR, parallelize)

    def drawing(self, fanouts: list[int], training: bool) -> dict[str, Any]:
        """How batches are drawn, as :meth:`ClassTrainer.drawing` says, and which seeds they have."""
        shared = {"seed_order": self.order} if training else {"uneven": "serve"}
        return {**super().drawing(fanouts, training), "split": self.plan, **shared}

    def loss(self, batch: Any) -> tuple[Tensor, int]:
        """(sum of the cross entropies of this rank's seeds that have a class / its seeds, their number); (0, 0) without
        seeds."""
        target, scores = batch.y[: batch.batch_size].long(), self.scores(batch)
        total = nn.functional.cross_entropy(scores, target, ignore_index=-1, reduction="sum")
        return total / max(batch.batch_size, 1), batch.batch_size

    def objective(self, loss: Tensor, seeds: int, batch: Any) -> Tensor:
        """See :meth:`Trainer.objective`: the ranks' share of the mean over the whole batch."""
        return loss * (seeds / batch.global_batch_size) if seeds else loss
