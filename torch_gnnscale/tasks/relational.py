"""Tasks of relational databases: RelBench's own model on this package's batches, evaluated by RelBench."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..loader import NeighborLoader
from ..relational import NEVER, TaskGraph, open_task
from ..training import Config, RankGroup, Trainer
from .metrics import Accuracy, mean_roc_auc

_CLIPPED = 0.02, 0.98
"""Quantiles of the training labels between which the predictions of a regression lie, as in RelBench's examples."""


@dataclass
class RelationalConfig(Config):
    """Settings of a task of a database."""

    hidden: int = 64
    fanouts: list[int] = field(default_factory=lambda: [16, 16])
    batch_size: int = 512
    dropout: float = 0.0
    blocks: int = field(default=2, metadata={"help": "blocks of the network that encodes a table's rows"})


class RelationalModel(nn.Module):
    """RelBench's model: torch_frame encoders of rows and of the time since each, then GraphSAGE over all relations.

    Args:
        graph: a task's.
        config: settings.
        out: numbers per seed; None: the seeds' embeddings.
        own: a table whose rows have an embedding of their own each, beside what their columns say.
    """

    def __init__(self, graph: TaskGraph, config: RelationalConfig, out: int | None, own: str | None = None) -> None:
        super().__init__()
        import torch_frame
        from relbench.modeling import nn as relbench_nn
        from relbench.modeling.nn import HeteroEncoder, HeteroGraphSAGE, HeteroTemporalEncoder
        from torch_frame import NAStrategy

        data, hidden = graph.data, config.hidden
        if hidden % 2:
            raise ValueError(f"hidden: expected an even number, which encodings of times have, found {hidden}")
        # Without a strategy, a missing number makes the gradients of its column's weights nan.
        numbers = (torch_frame.nn.LinearEncoder, {"na_strategy": NAStrategy.MEAN})
        encoders = {**relbench_nn._DEFAULT_STYPE_ENCODER_CLS_KWARGS, torch_frame.numerical: numbers}
        columns = {of: data[of].tf.col_names_dict for of in data.node_types}
        self.encode = HeteroEncoder(
            hidden, columns, graph.col_stats,
            torch_frame_model_kwargs={"channels": hidden, "num_layers": config.blocks, "dropout_prob": config.dropout},
            default_stype_encoder_cls_kwargs=encoders,
        )  # fmt: skip
        self.encode_times = HeteroTemporalEncoder([of for of in data.node_types if "time" in data[of]], hidden)
        self.convolve = HeteroGraphSAGE(
            data.node_types, data.edge_types, hidden, aggr="sum", num_layers=len(config.fanouts)
        )
        self.own = own
        self.embed = None if own is None else nn.Embedding(data[own].num_nodes, hidden)
        if self.embed is not None:
            nn.init.normal_(self.embed.weight, std=0.1)
        self.decide = nn.Linear(hidden, hidden if out is None else out)

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """By table, the numbers of all rows of a batch: [n, out]."""
        x = self.encode(batch.tf_dict)
        for time in batch.collect("seed_time", allow_empty=True).values():
            for of, since in self.encode_times(time, batch.time_dict, batch.batch_dict).items():
                x[of] = x[of] + since
        if self.embed is not None and self.own in x:
            x[self.own] = x[self.own] + self.embed(batch[self.own].n_id)
        return {of: self.decide(rows) for of, rows in self.convolve(x, batch.edge_index_dict).items()}


def label_loss(kind: str, scores: Tensor, y: Tensor) -> Tensor:
    """The mean loss of labels, by RelBench's type of the task.

    Args:
        kind: ``"multiclass_classification"``: cross entropy; ``"regression"``: the mean absolute difference;
            else binary cross entropy.
        scores: float, shape [n, classes or labels].
        y: classes, shape [n], or labels, [n] or [n, labels].
    """
    if kind == "multiclass_classification":
        return functional.cross_entropy(scores, y.long())
    target = y.to(scores.dtype).view_as(scores)
    if kind == "regression":
        return functional.l1_loss(scores, target)
    return functional.binary_cross_entropy_with_logits(scores, target)


def pair_loss(sources: Tensor, rows: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """The mean BPR loss, -log sigmoid(s . p - s . n), of the pairs that are there; 0 if there are none.

    Args:
        sources: a row s per source: float, shape [n, F].
        rows: of destinations: float, shape [m, F].
        positive: the rows p of each source: int64, shape [n, P]; -1: there is none.
        negative: likewise n, of the same shape.
    """
    products = [(sources.unsqueeze(1) * rows[index.clamp(min=0)]).sum(-1) for index in (positive, negative)]
    there = (positive >= 0) & (negative >= 0)
    each = -functional.logsigmoid(products[0] - products[1])
    return each[there].mean() if bool(there.any()) else each.sum() * 0


def best_rows(sources: Tensor, targets: Tensor, k: int) -> Tensor:
    """For each source the k targets with the largest product, best first: int64, shape [n, k]; -1 where there are no
    more targets."""
    count = min(k, len(targets))
    best = [(some @ targets.t()).topk(count).indices for some in sources.split(1024)]
    found = torch.cat([torch.empty(0, count, dtype=torch.int64), *best])
    return functional.pad(found, (0, k - count), value=-1)


def most_popular(chosen: Any, k: int) -> np.ndarray:
    """The k values that are most often in a pandas Series of lists, best first: int64, shape [k]; -1 where there are no
    more."""
    values = chosen.explode().value_counts().index[:k]
    best = np.full(k, -1)
    best[: len(values)] = values
    return best


def row_times(rows: Any, moment: int, own: bool) -> Tensor:
    """When each row of a table is asked about: at ``moment``, or at its ``own`` time, where it has one: int64, shape
    [num_nodes]."""
    time = torch.full((rows.num_nodes,), moment)
    return torch.where(rows.time == NEVER, time, rows.time) if own and "time" in rows else time


class RelationalTrainer(Trainer):
    """Trains a model on a task of a database; ``task`` is a :class:`torch_gnnscale.relational.TaskGraph`.

    Losses are RelBench's: binary cross entropy, the mean absolute difference, cross entropy, and of a recommendation
    the BPR loss of each anchor's positive and negative. The score is what RelBench evaluates, if it is something:
    ``roc_auc``, ``map``, and of a regression the negative of ``nmae``. Of several classes it is the accuracy, and of
    several labels the mean of their ROC AUCs. The classes are 0 to the largest of the training labels: a row for
    validation or testing of another one counts as a wrong prediction.
    """

    config_type = RelationalConfig

    @staticmethod
    def load(source: str | os.PathLike, task: str, **kwargs: Any) -> TaskGraph:
        """:func:`torch_gnnscale.relational.open_task`."""
        return open_task(source, task, **kwargs)

    @property
    def kind(self) -> str:
        """RelBench's type of the task."""
        return self.task.task.task_type.value

    @property
    def recommends(self) -> bool:
        """Whether destinations are recommended to sources."""
        return self.kind == "recommendation"

    @property
    def entity(self) -> str:
        """The table whose rows are seeds."""
        return self.task.task.src_entity_table if self.recommends else self.task.task.entity_table

    @property
    def metric(self) -> str:
        """See the class."""
        names = {"binary_classification": "roc_auc", "regression": "-nmae", "recommendation": "map",
                 "multilabel_classification": "mean roc_auc"}  # fmt: skip
        return names.get(self.kind, "accuracy")

    def build_model(self) -> nn.Module:
        """A :class:`RelationalModel`."""
        of = self.task.task
        self._tables: dict[str, Any] = {split: of.get_table(split, mask_input_cols=False) for split in
                                        ("train", "val", "test")}  # fmt: skip
        if self.recommends:
            return RelationalModel(self.task, self.config, None, of.dst_entity_table)
        labels = self._labels("train")
        if self.kind == "multiclass_classification":
            out = int(labels.max()) + 1
        else:
            out = labels.size(1) if labels.dim() > 1 else 1
        model = RelationalModel(self.task, self.config, out)
        if self.kind == "regression":
            low, high = torch.quantile(labels, torch.tensor(_CLIPPED, dtype=labels.dtype)).tolist()
            self._range = low, high
            with torch.no_grad():
                model.decide.bias.fill_(float(labels.median()))
        return model

    def _labels(self, split: str) -> Tensor:
        """The labels of a split, in the order of its table: float64, [n] or [n, labels]."""
        column = self._tables[split].df[self.task.task.target_col]
        return torch.from_numpy(np.stack([np.asarray(value) for value in column]).astype(np.float64))

    @property
    def leaves_parameters_out(self) -> bool:
        """True: batches need not have rows of all tables."""
        return True

    def training_batches(self) -> Any:
        """The loader of the split ``train``, shuffled."""
        return self._loaders_of("train")["train"]

    def _loaders_of(self, split: str) -> dict[str, Any]:
        config = self.config
        size = config.batch_size if split == "train" else 4 * config.batch_size  # evaluation keeps no gradients
        seed, ranks = config.seed if split == "train" else 0, self.ranks
        shared = {"shard": (ranks.rank, ranks.world)} if split == "train" and ranks.world > 1 else {}
        return self.task.loaders(
            config.fanouts, splits=(split,), batch_size=size, seed=seed, num_workers=config.num_workers, **shared
        )

    def loss(self, batch: Any) -> tuple[Tensor, int]:
        """(mean loss over a batch's seeds, their number)."""
        out, seeds = self.forward(batch), batch[self.entity]
        if self.recommends:
            of = self.task.task.dst_entity_table
            source, found = out[self.entity][seeds.src_index], batch[of]
            return pair_loss(source, out[of], found.dst_pos_index, found.dst_neg_index), len(source)
        scores = out[self.entity][: seeds.batch_size]
        return label_loss(self.kind, scores, seeds.y), len(scores)

    def predictions(self, split: str) -> Tensor:
        """What RelBench evaluates, one row for each of a split's table, in its order. Of a recommendation, the best
        ``eval_k`` destinations: int64, shape [n, eval_k]; else float: [n] or [n, labels or classes]."""
        if not self.recommends:
            out = self._rows(split, split)
            if self.kind == "regression":
                out = out.clamp(*self._range)
            return out.view(-1) if out.size(1) == 1 else out
        return best_rows(self._rows(split, split), self._rows(split, f"{split}_targets"), self.task.task.eval_k)

    def embeddings(self) -> dict[str, Tensor]:
        """What the model makes of every row of the table that is asked about, and of a recommendation's destinations,
        too: at RelBench's test time, or of an autocomplete task at the row's own. By table, [n, out]."""
        from relbench.base import AutoCompleteTask

        of, data = self.task.task, self.task.data
        moment = int(of.dataset.test_timestamp.timestamp())
        found = {}
        for table in [self.entity, *([of.dst_entity_table] if self.recommends else [])]:
            time = row_times(data[table], moment, isinstance(of, AutoCompleteTask))
            times: dict[str, Any] = {} if of.time_col is None else {"input_time": time, "time_attr": "time"}
            size = 4 * self.config.batch_size
            loader = NeighborLoader(data, self.config.fanouts, table, batch_size=size, seed=0, **times)
            with torch.no_grad():
                found[table] = self._of_seeds(loader, f"embed {table}")
        return found

    def _rows(self, split: str, name: str) -> Tensor:
        """What the model makes of the seeds of a loader, in their order."""
        return self._of_seeds(self.kept_loader(name, lambda: self._loaders_of(split)[name]), f"evaluate {name}")

    def _of_seeds(self, loader: Any, title: str) -> Tensor:
        of = loader.input_data.input_type
        found = []
        with self.progress(loader, title, len(loader)) as batches:
            for batch in batches:
                found.append(self.forward(batch)[of][: batch[of].batch_size])
        return torch.cat(found)

    def score(self, subset: str) -> float:
        """The metric on ``val`` or ``test``; see the class."""
        predicted = self.predictions(subset)
        if self.metric == "accuracy":
            found = Accuracy()
            found.add(predicted, self._labels(subset))
            return found.value(RankGroup())
        if self.metric == "mean roc_auc":
            return mean_roc_auc(predicted, self._labels(subset) > 0)
        return self._evaluated(predicted.numpy(), subset)

    def _evaluated(self, predicted: Any, subset: str) -> float:
        (value,) = self.task.task.evaluate(predicted, self._tables[subset]).values()
        return -float(value) if self.kind == "regression" else float(value)

    def baseline(self) -> tuple[str, float] | None:
        """(name, score on ``test``) of what RelBench calls the global median of a regression, and of the most popular
        destinations of a recommendation; None for classes and labels, where a constant has no ROC AUC."""
        of, count = self.task.task, len(self._tables["test"].df)
        if self.kind == "regression":
            value = float(self._labels("train").median())
            return "median", self._evaluated(np.full(count, value), "test")
        if not self.recommends:
            return None
        best = most_popular(self._tables["train"].df[of.dst_entity_col], of.eval_k)
        return "most popular", self._evaluated(np.tile(best, (count, 1)), "test")
