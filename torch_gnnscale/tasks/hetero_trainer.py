"""Classification of the nodes of one type in a heterogeneous graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn

from ..datasets import NodeTask, load_types
from ..nn import narrow
from .metrics import Accuracy
from .models import Categories, HeteroSAGE, call_model
from .node_trainer import ClassifierConfig, ClassTrainer


@dataclass
class HeteroConfig(ClassifierConfig):
    """Settings of a classifier of one node type."""

    hidden: int = 64
    batch_size: int = 64
    epochs: int = 15
    weight_decay: float = 5e-4
    dropout: float = 0.5


class HeteroClassifier(nn.Module):
    """GraphSAGE over all relations, then a linear layer to the class scores of one node type."""

    def __init__(self, task: NodeTask, config: HeteroConfig) -> None:
        super().__init__()
        self.node_type: Any = task.node_type
        self.gnn = HeteroSAGE(task.sizes, config.hidden, len(config.fanouts), config.dropout, scale=1.0)
        self.classes = nn.Linear(config.hidden, task.num_classes)

    def forward(self, batch: Any) -> Tensor:
        """Class scores of the batch's seeds: [batch_size, classes]."""
        return self.classes(self.gnn(batch)[self.node_type][: batch[self.node_type].batch_size])


class _OwnFeatures(nn.Module):
    """An MLP of a node's own features, whose last columns are codes of categories (:meth:`NodeTask.labelled`)."""

    def __init__(self, task: NodeTask, config: HeteroConfig) -> None:
        super().__init__()
        self.numbers, coded = task.num_features, "category" in task.sizes[task.node_type]
        self.codes = Categories(task.sizes[task.node_type].category, config.hidden) if coded else None
        width = self.numbers + (config.hidden if coded else 0)
        self.mlp = pyg_nn.MLP([width, config.hidden, task.num_classes], dropout=config.dropout, norm=None)

    def forward(self, rows: Tensor) -> Tensor:
        """Class scores of the nodes: [m, classes]."""
        if self.codes is None:
            return self.mlp(rows)
        x, codes = rows.split([self.numbers, rows.size(1) - self.numbers], dim=1)
        return self.mlp(torch.cat([x, self.codes(codes.long())], dim=1))


class HeteroTrainer(ClassTrainer):
    """Trains a model to predict the classes of one node type's nodes. Baseline: an MLP without the graph."""

    config_type = HeteroConfig
    load = staticmethod(load_types)

    def build_model(self) -> nn.Module:
        """GraphSAGE over all relations."""
        return HeteroClassifier(self.task, self.config)

    def inference(self) -> tuple[nn.Module, Callable[[nn.Module, Any], Any]]:
        """See :meth:`Trainer.inference`: class scores of the labelled type."""
        return self.model, lambda model, batch: {self.task.node_type: model(batch)}

    def called_module(self) -> nn.Module:
        """The model, which computes what the seeds need."""
        return narrow(self.model, call_model)

    @property
    def leaves_parameters_out(self) -> bool:
        """True: of the last layer's relations, the loss depends only on those into the labelled type."""
        return True

    def baseline(self) -> tuple[str, float]:
        """(name, test accuracy) of an MLP on the nodes' own features: 100 full-batch steps; the step that is best on
        ``val`` counts."""
        task, config, ranks = self.task, self.config, self.ranks
        own = {subset: task.labelled(subset) for subset in ("train", "val", "test")}
        x, y = own["train"]
        labels = int(ranks.total((y != -1).sum()))
        model = _OwnFeatures(task, config)
        trained = ranks.parallel(model, unused=False)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
        best = (-1.0, 0.0)
        for _ in range(100):
            model.train()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(trained(x), y, ignore_index=-1, reduction="sum") / labels
            (loss * ranks.world).backward()  # the ranks take the mean of their gradients
            optimizer.step()
            model.eval()
            with torch.no_grad():
                val, test = (self._accuracy(model, *own[subset]) for subset in ("val", "test"))
            best = (val, test) if val > best[0] else best
        return "MLP on features alone", best[1]

    def _accuracy(self, model: nn.Module, x: Tensor, y: Tensor) -> float:
        metric = Accuracy()
        metric.add(model(x), y)
        return metric.value(self.ranks)
