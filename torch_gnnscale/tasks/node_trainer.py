"""Trainers that classify nodes: batches of nodes, cross entropy, accuracy; in a homogeneous graph here, by ranks that
compute every batch together (split parallelism), too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
import torch_geometric.loader
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

from .. import split
from ..comm.mesh import TransportName
from ..datasets import NodeTask, load
from ..feature import FeatureStore
from ..loader import NeighborLoader
from ..loader.epochs import SharedOrder
from ..nn import narrow, weigh
from ..ops.arguments import checked_device
from ..sampler.methods import METHODS, NEIGHBOR
from ..training import Config, RankGroup, Trainer
from .metrics import METRICS

_ALL_NEIGHBORS_UP_TO = 20_000_000


def fanouts_of_tests(fanouts: list[int], num_edges: int) -> list[int]:
    """Fanouts of evaluation: -1 (all neighbors) in a graph of up to 20 M edges, else those of training."""
    return [-1] * len(fanouts) if num_edges <= _ALL_NEIGHBORS_UP_TO else fanouts


@dataclass
class ClassifierConfig(Config):
    """Settings of a node classifier."""

    loader: str = field(
        default="gnnscale", metadata={"help": "the package whose loader is used", "choices": ("gnnscale", "pyg")}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
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


MODELS = {"sage": pyg_nn.GraphSAGE, "gcn": pyg_nn.GCN, "gat": pyg_nn.GAT, "mlp": pyg_nn.MLP}


@dataclass
class NodeConfig(ClassifierConfig):
    """Settings of a classifier of nodes of one type. ``method``: of :class:`torch_gnnscale.NeighborLoader`; with a
    layer-wise one, ``fanouts`` are numbers of nodes per hop."""

    model: str = field(default="sage", metadata={"help": "the layers", "choices": sorted(MODELS)})
    method: str = field(default=NEIGHBOR, metadata={"help": "how neighborhoods are drawn", "choices": METHODS})
    residual: bool = field(default=False, metadata={"help": "layers with normalization and residuals"})
    device: str = field(
        default="cpu", metadata={"help": "where batches are made and the model is trained: cpu, cuda, cuda:1, ..."}
    )

    def __post_init__(self) -> None:
        if self.method != NEIGHBOR and self.method in METHODS and self.loader == "pyg":
            raise ValueError(f"method={self.method!r}: expected loader='gnnscale', found 'pyg'")
        super().__post_init__()
        checked_device(self.device)
        if self.residual and self.model == "mlp":
            raise ValueError("residual: expected a model with convolutions (sage, gcn, gat), found 'mlp'")


class ResidualGNN(nn.Module):
    """x += dropout(conv(norm(x))).relu() per layer, between two linear layers; after Platonov et al. (ICLR 2023)."""

    def __init__(self, conv: str, in_channels: int, hidden: int, layers: int, out_channels: int, dropout: float):
        super().__init__()
        kinds = {"sage": pyg_nn.SAGEConv, "gcn": pyg_nn.GCNConv, "gat": pyg_nn.GATConv}
        self.encode = nn.Linear(in_channels, hidden)
        self.convs = nn.ModuleList(kinds[conv](hidden, hidden) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers + 1))
        self.dropout = nn.Dropout(dropout)
        self.decode = nn.Linear(hidden, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Class scores of every node: [N, out_channels]."""
        x = self.dropout(self.encode(x)).relu()
        for conv, norm in zip(self.convs, self.norms, strict=False):
            x = x + self.dropout(conv(norm(x), edge_index)).relu()
        return self.decode(self.norms[-1](x))


def build_model(config: NodeConfig, task: NodeTask) -> nn.Module:
    """The model that the configuration names."""
    layers, sizes = len(config.fanouts), (task.num_features, config.hidden)
    if config.model == "mlp":
        channels = [task.num_features, *[config.hidden] * (layers - 1), task.num_classes]
        return pyg_nn.MLP(channels, dropout=config.dropout)
    if config.residual:
        return ResidualGNN(config.model, *sizes, layers, task.num_classes, config.dropout)
    return MODELS[config.model](*sizes, layers, task.num_classes, dropout=config.dropout)


def call_model(model: nn.Module, batch: Any) -> Tensor:
    """model(batch): features are converted to float32 first. An MLP is applied to the seeds only."""
    if isinstance(model, pyg_nn.MLP):
        return model(batch.x[: batch.batch_size].float())
    return model(batch.x.float(), batch.edge_index)


class SeedScores(nn.Module):
    """Class scores of a batch's seeds by a model, which computes only what they need, if model and batch allow that.

    Args:
        model: one of :data:`MODELS`.
        weighed: whether batches may have weights of edges; its messages are then multiplied by them.
        wrap: ``wrap(model, call)`` is called with a batch and returns the rows of its seeds.
    """

    def __init__(
        self, model: nn.Module, weighed: bool, wrap: Callable[[nn.Module, Callable], nn.Module] = narrow
    ) -> None:
        super().__init__()
        mlp = isinstance(model, pyg_nn.MLP)
        self.model = model
        self.module = model if mlp else wrap(model, call_model)
        self.weighed = wrap(weigh(model, call_model), call_model) if weighed and not mlp else None

    def forward(self, batch: Any) -> Tensor:
        """[batch_size, classes]."""
        if self.weighed is not None and "edge_weight" in batch:
            return self.weighed(batch)
        if isinstance(self.module, pyg_nn.MLP):
            return call_model(self.module, batch)
        if "num_sampled_nodes" not in batch:  # of PyG's loader with torch-sparse
            return call_model(self.model, batch)[: batch.batch_size]
        return self.module(batch)


def with_rows_on(data: Any, device: torch.device) -> Any:
    """A copy of a Data or a pair of stores with its tensors of node rows on ``device``; edges are not moved."""
    if isinstance(data, Data):
        names = [name for name in data.node_attrs() if isinstance(data[name], Tensor)]
        return copy.copy(data).to(device, *names)
    features, graph = data
    moved = FeatureStore()
    for attr in features.all_attrs():
        where = {"group_name": attr.group_name, "attr_name": attr.attr_name, "index": None}
        moved.put_tensor(features.get_tensor(**where).to(device), **where)
    return moved, graph


class NodeTrainer(ClassTrainer):
    """Trains a model to predict the classes of nodes in a homogeneous graph."""

    config_type = NodeConfig
    load = staticmethod(load)

    @property
    def device(self) -> torch.device:
        """The device of the configuration."""
        return checked_device(self.config.device)

    @cached_property
    def data(self) -> Any:  # type: ignore[override]
        """The task's graph with its nodes' features and labels on the model's device."""
        return self.task.data if self.device.type == "cpu" else with_rows_on(self.task.data, self.device)

    def build_model(self) -> nn.Module:
        """The model that the configuration names."""
        return build_model(self.config, self.task)

    def inference(self) -> tuple[nn.Module, Callable[[nn.Module, Any], Any]]:
        """Class scores of all nodes."""
        return self.model, call_model

    def called_module(self) -> nn.Module:
        """The model, narrowed where that is possible, and weighed if batches have weights."""
        return SeedScores(self.model, self.config.method != NEIGHBOR)

    def drawing(self, fanouts: list[int], training: bool) -> dict[str, Any]:
        """How neighbors are drawn. If all are taken, edges have no weights."""
        return {} if -1 in fanouts else {"method": self.config.method}


class SplitRanks(RankGroup):
    """Ranks whose model itself exchanges rows and sums gradients."""

    def parallel(self, module: nn.Module, unused: bool) -> nn.Module:
        """The module as it is; backward leaves the sums of gradients."""
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
        """How many ranks make a batch: one for each part, or one alone."""
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
        """The rank's share of the mean loss over the whole batch."""
        return loss * (seeds / batch.global_batch_size) if seeds else loss
