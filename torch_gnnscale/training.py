"""The main job: an ordinary PyG model, trained and evaluated with a loader."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch_geometric.loader
import torch_geometric.nn as pyg_nn
from torch import Tensor, nn
from tqdm import tqdm

from .datasets import NodeTask
from .loader import NeighborLoader
from .nn import narrow

MODELS = {"sage": pyg_nn.GraphSAGE, "gcn": pyg_nn.GCN, "gat": pyg_nn.GAT, "mlp": pyg_nn.MLP}
_ALL_NEIGHBORS_UP_TO = 20_000_000
"""Edges of a graph up to which evaluation takes all neighbors; above, as many as training does."""


@dataclass
class Config:
    """What is trained, and how."""

    model: str = "sage"
    residual: bool = False
    hidden: int = 128
    fanouts: list[int] = field(default_factory=lambda: [10, 10])
    batch_size: int = 1024
    epochs: int = 5
    lr: float = 0.005
    weight_decay: float = 0.0
    dropout: float = 0.3
    seed: int = 0
    loader: str = "gnnscale"
    num_workers: int = 0

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"model: expected one of {sorted(MODELS)}, found {self.model!r}")
        if self.residual and self.model == "mlp":
            raise ValueError("residual: expected a model with convolutions (sage, gcn, gat), found 'mlp'")
        if self.loader not in ("gnnscale", "pyg"):
            raise ValueError(f"loader: expected 'gnnscale' or 'pyg', found {self.loader!r}")


class ResidualGNN(nn.Module):
    """Pre-normalized convolutions with residuals, after the models of Platonov et al. (ICLR 2023)."""

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


def build_model(config: Config, task: NodeTask) -> nn.Module:
    """The model of a configuration."""
    layers, sizes = len(config.fanouts), (task.num_features, config.hidden)
    if config.model == "mlp":
        channels = [task.num_features, *[config.hidden] * (layers - 1), task.num_classes]
        return pyg_nn.MLP(channels, dropout=config.dropout)
    if config.residual:
        return ResidualGNN(config.model, *sizes, layers, task.num_classes, config.dropout)
    return MODELS[config.model](*sizes, layers, task.num_classes, dropout=config.dropout)


def call_model(model: nn.Module, batch: Any) -> Tensor:
    """The model on a batch: features as floats, whatever type they are kept in."""
    if isinstance(model, pyg_nn.MLP):
        return model(batch.x[: batch.batch_size].float())
    return model(batch.x.float(), batch.edge_index)


def roc_auc(score: Tensor, positive: Tensor) -> float:
    """Area under the ROC curve: the share of (positive, negative) pairs in order, ties counted half."""
    _, place, count = torch.unique(score, return_inverse=True, return_counts=True)
    rank = (count.cumsum(0) - (count - 1).double() / 2)[place]  # the mean rank of equal scores
    positives = int(positive.sum())
    negatives = len(score) - positives
    wins = float(rank[positive].sum()) - positives * (positives + 1) / 2
    return wins / (positives * negatives)


class Trainer:
    """Trains a model on a task and keeps the run's history, checkpoint and plot in ``folder``."""

    def __init__(self, task: NodeTask, config: Config, folder: str | os.PathLike | None = None, quiet: bool = False):
        torch.manual_seed(config.seed)
        self.task, self.config, self.quiet = task, config, quiet
        self.folder = None if folder is None else Path(folder)
        self.model = build_model(config, task)
        self.narrowed = None if config.model == "mlp" else narrow(self.model, call_model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
        self.train_loader = self._loader("train", config.fanouts, config.seed, shuffle=True)
        exact = task.num_edges <= _ALL_NEIGHBORS_UP_TO
        self.eval_fanouts = [-1] * len(config.fanouts) if exact else config.fanouts
        self.history: list[dict[str, float]] = []
        self.seconds = {"sample": 0.0, "gather": 0.0, "train": 0.0, "wait": 0.0}

    def _loader(self, part: str, fanouts: list[int], seed: int, shuffle: bool = False) -> Any:
        config, seeds = self.config, self.task.masks[part].nonzero().view(-1)
        size = config.batch_size if shuffle else 10 * config.batch_size  # evaluation keeps no gradients
        options: dict[str, Any] = {"batch_size": size, "shuffle": shuffle, "num_workers": config.num_workers}
        if config.loader == "gnnscale":
            return NeighborLoader(self.task.data, fanouts, seeds, seed=seed, **options)
        return torch_geometric.loader.NeighborLoader(self.task.data, fanouts, seeds, **options)

    def scores(self, batch: Any) -> Tensor:
        """Class scores of a batch's seeds: [batch_size, classes]."""
        if self.narrowed is not None and "num_sampled_nodes" in batch:  # PyG's loader on torch-sparse has no hops
            return self.narrowed(batch)
        return call_model(self.model, batch)[: batch.batch_size]

    def _progress(self, loader: Any, title: str) -> Any:
        return tqdm(loader, desc=title, unit="batch", leave=False, disable=self.quiet)

    def train_epoch(self, epoch: int) -> dict[str, float]:
        """One epoch; returns its mean loss, edges and nodes a second, and seconds."""
        self.model.train()
        loss_sum, seeds, edges, nodes = 0.0, 0, 0, 0
        bar = self._progress(self.train_loader, f"epoch {epoch}")
        start = mark = time.perf_counter()
        for batch in bar:
            now = time.perf_counter()
            self.seconds["wait"] += now - mark
            self.optimizer.zero_grad()
            target = batch.y[: batch.batch_size].long()
            loss = nn.functional.cross_entropy(self.scores(batch), target, ignore_index=-1)
            loss.backward()
            self.optimizer.step()
            loss_sum += float(loss.detach()) * batch.batch_size
            seeds += batch.batch_size
            edges += sum(batch.num_sampled_edges)
            nodes += batch.num_nodes
            bar.set_postfix(loss=f"{loss_sum / seeds:.4f}")
            mark = time.perf_counter()
            self.seconds["train"] += mark - now
        wall = time.perf_counter() - start
        return {"loss": loss_sum / seeds, "edges/s": edges / wall, "nodes/s": nodes / wall, "seconds": wall}

    @torch.no_grad()
    def evaluate(self, part: str) -> float:
        """The task's metric on ``train``, ``val`` or ``test``, with all neighbors (see ``eval_fanouts``)."""
        self.model.eval()
        loader = self._loader(part, self.eval_fanouts, seed=0)
        outs, targets = [], []
        for batch in self._progress(loader, f"evaluate {part}"):
            outs.append(self.scores(batch))
            targets.append(batch.y[: batch.batch_size])
        out, target = torch.cat(outs), torch.cat(targets)
        if self.task.metric == "roc_auc":
            return roc_auc(out[:, 1] - out[:, 0], target == 1)
        return float((out.argmax(1) == target).float().mean())

    def run(self, report: Callable[[str], None] = tqdm.write) -> dict[str, Any]:
        """All epochs; the model with the best validation score is tested. Returns the run's summary."""
        best, best_state = -1.0, None
        for epoch in range(1, self.config.epochs + 1):
            entry = {"epoch": epoch, **self.train_epoch(epoch), "val": self.evaluate("val")}
            self.history.append(entry)
            if entry["val"] > best:
                best, best_state = entry["val"], {k: v.clone() for k, v in self.model.state_dict().items()}
            self._save_checkpoint(epoch, best_state)
            report(
                f"epoch {epoch:3d}  loss {entry['loss']:.4f}  val {self.task.metric} {entry['val']:.4f}  "
                f"{entry['edges/s'] / 1e6:.2f} M edges/s  {entry['nodes/s'] / 1e6:.2f} M nodes/s  "
                f"{entry['seconds']:.1f} s"
            )
        if best_state is not None:
            self.model.load_state_dict(best_state)
        if isinstance(self.train_loader, NeighborLoader):
            self.seconds.update(self.train_loader.seconds)
        summary = {
            "task": self.task.name,
            "metric": self.task.metric,
            "config": asdict(self.config),
            "val": best,
            "test": self.evaluate("test"),
            "seconds": self.seconds,
            "history": self.history,
        }
        report(f"test {self.task.metric} {summary['test']:.4f} (best validation {best:.4f})")
        report("where the time of training went: " + ", ".join(f"{k} {v:.2f} s" for k, v in self.seconds.items()))
        if isinstance(self.train_loader, NeighborLoader):
            report("(sample and gather run in the loader's threads beside train; wait is what they cost the loop)")
        if self.folder is not None:
            (self.folder / "summary.json").write_text(json.dumps(summary, indent=1))
        return summary

    def _save_checkpoint(self, epoch: int, best_state: Any) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / "checkpoint.pt.partial"
        torch.save(
            {
                "epoch": epoch,
                "config": asdict(self.config),
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "best_model": best_state,
                "history": self.history,
            },
            partial,
        )
        partial.replace(self.folder / "checkpoint.pt")


def plot_run(summary: dict[str, Any], file: str | os.PathLike) -> None:
    """Loss, validation score and where the time went, as an image."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    epochs = [entry["epoch"] for entry in summary["history"]]
    left.plot(epochs, [entry["loss"] for entry in summary["history"]], marker="o")
    left.set(xlabel="epoch", ylabel="training loss")
    middle.plot(epochs, [entry["val"] for entry in summary["history"]], marker="o", label="validation")
    middle.axhline(summary["test"], linestyle="--", color="gray", label="test, best epoch")
    middle.set(xlabel="epoch", ylabel=summary["metric"])
    middle.legend()
    right.barh(list(summary["seconds"]), list(summary["seconds"].values()))
    right.set(xlabel="seconds")
    figure.suptitle(f"{summary['config']['model']} on {summary['task']}")
    figure.savefig(file, dpi=120)
