"""The common base of trainers that classify nodes: batches of nodes, cross entropy, accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch_geometric.loader
from torch import Tensor, nn
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

from ..loader import NeighborLoader
from ..training import Config, Trainer
from .metrics import METRICS

_ALL_NEIGHBORS_UP_TO = 20_000_000


def fanouts_of_tests(fanouts: list[int], num_edges: int) -> list[int]:
    """Fanouts of evaluation: -1 (all neighbors) in a graph of up to 20 M edges, else those of training."""
    return [-1] * len(fanouts) if num_edges <= _ALL_NEIGHBORS_UP_TO else fanouts


@dataclass
class ClassifierConfig(Config):
    """Settings of a node classifier. ``loader``: ``gnnscale`` or ``pyg``, the package whose loader is used."""

    loader: str = "gnnscale"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loader not in ("gnnscale", "pyg"):
            raise ValueError(f"loader: expected 'gnnscale' or 'pyg', found {self.loader!r}")
        if self.loader == "pyg" and not (WITH_PYG_LIB or WITH_TORCH_SPARSE):
            raise ImportError(
                "loader='pyg': expected the package pyg-lib or torch-sparse, which PyG's loader needs, found neither "
                "(loader='gnnscale' needs none)"
            )


class ClassTrainer(Trainer):
    """Trains a model to predict the classes of the nodes of a :class:`NodeTask`."""

    @property
    def metric(self) -> str:
        """``accuracy`` or ``roc_auc``, as the task says."""
        return self.task.metric

    def scores(self, batch: Any) -> Tensor:
        """Class scores of a batch's seeds: [batch_size, classes]."""
        return self.forward(batch)

    def training_batches(self) -> Any:
        """Batches of training nodes, shuffled."""
        return self._loader("train", self.config.fanouts, self.config.seed, training=True)

    def _loader(self, subset: str, fanouts: list[int], seed: int, training: bool = False) -> Any:
        config, seeds = self.config, self.task.seeds(subset)
        size = config.batch_size if training else 10 * config.batch_size  # evaluation keeps no gradients
        options: dict[str, Any] = {"batch_size": size, "shuffle": training, "num_workers": config.num_workers}
        if config.loader == "gnnscale":
            options |= {**self.task.loader_options(training), **self.drawing(fanouts, training)}
            return NeighborLoader(self.data, fanouts, seeds, seed=seed, device=self.device, **options)
        return torch_geometric.loader.NeighborLoader(self.task.data, fanouts, seeds, **options)

    def drawing(self, fanouts: list[int], training: bool) -> dict[str, Any]:
        """Arguments of this package's loader that say how these fanouts are drawn, and which batches a rank makes."""
        return {}

    @property
    def data(self) -> Any:
        """The graph that is passed to this package's loader."""
        return self.task.data

    def _there(self, batch: Any) -> Any:
        """The batch on the model's device. PyG's loader makes it in host memory; ours makes it there."""
        return batch.to(self.device) if self.config.loader == "pyg" else batch

    def seeds(self, batch: Any) -> Any:
        """The storage of a batch that has ``y`` and ``batch_size``: the labelled node type's."""
        return batch if self.task.node_type is None else batch[self.task.node_type]

    def loss(self, batch: Any) -> tuple[Tensor, int]:
        """(mean cross entropy over the seeds that have a class, number of seeds)."""
        batch = self._there(batch)
        seeds = self.seeds(batch)
        target = seeds.y[: seeds.batch_size].long()
        return nn.functional.cross_entropy(self.scores(batch), target, ignore_index=-1), seeds.batch_size

    def score(self, subset: str) -> float:
        """The task's metric on the nodes of ``train``, ``val`` or ``test``, with :func:`fanouts_of_tests`."""
        fanouts = fanouts_of_tests(self.config.fanouts, self.task.num_edges)
        loader, metric = self.kept_loader(subset, lambda: self._loader(subset, fanouts, seed=0)), METRICS[self.metric]()
        with self.progress(loader, f"evaluate {subset}", len(loader)) as batches:
            for made in batches:
                batch = self._there(made)
                seeds = self.seeds(batch)
                metric.add(self.scores(batch), seeds.y[: seeds.batch_size])
        return metric.value(self.ranks)
