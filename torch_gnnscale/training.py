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

CHECKPOINT = "checkpoint.pt"
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
    """Trains a model on a task and keeps the run's history, checkpoint and plot in ``folder``.

    A checkpoint is written after every epoch and, within one, after every ``checkpoint_every`` batches (0: never); it
    is whole or not there. With this package's loader, :meth:`resume` goes on behind its last batch as if nothing had
    happened: on one thread to the same weights, bit for bit.
    """

    def __init__(
        self,
        task: NodeTask,
        config: Config,
        folder: str | os.PathLike | None = None,
        quiet: bool = False,
        checkpoint_every: int = 100,
    ) -> None:
        torch.manual_seed(config.seed)
        self.task, self.config, self.quiet = task, config, quiet
        self.folder = None if folder is None else Path(folder)
        self.checkpoint_every = checkpoint_every
        self.model = build_model(config, task)
        self.narrowed = None if config.model == "mlp" else narrow(self.model, call_model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
        self.train_loader = self._loader("train", config.fanouts, config.seed, shuffle=True)
        exact = task.num_edges <= _ALL_NEIGHBORS_UP_TO
        self.eval_fanouts = [-1] * len(config.fanouts) if exact else config.fanouts
        self.history: list[dict[str, float]] = []
        self.best = -1.0
        self.best_model: dict[str, Tensor] | None = None
        self.seconds = {"train": 0.0, "wait": 0.0}
        """What the loop's time went to, and what the loader's threads did beside it, as far as they are ours."""
        if self._counts_seconds():
            self.seconds = {"sample": 0.0, "gather": 0.0, **self.seconds}
        self._epoch = dict.fromkeys(("batches", "loss", "seeds", "edges", "nodes", "seconds"), 0.0)
        self._random_state: Tensor | None = None  # to be restored when the loop goes on

    def _loader(self, part: str, fanouts: list[int], seed: int, shuffle: bool = False) -> Any:
        config, seeds = self.config, self.task.masks[part].nonzero().view(-1)
        size = config.batch_size if shuffle else 10 * config.batch_size  # evaluation keeps no gradients
        options: dict[str, Any] = {"batch_size": size, "shuffle": shuffle, "num_workers": config.num_workers}
        if config.loader == "gnnscale":
            return NeighborLoader(self.task.data, fanouts, seeds, seed=seed, **options)
        return torch_geometric.loader.NeighborLoader(self.task.data, fanouts, seeds, **options)

    def _counts_seconds(self) -> bool:
        """Whether the loader works in this process and counts its time."""
        return isinstance(self.train_loader, NeighborLoader) and self.config.num_workers == 0

    def scores(self, batch: Any) -> Tensor:
        """Class scores of a batch's seeds: [batch_size, classes]."""
        if self.narrowed is not None and "num_sampled_nodes" in batch:  # PyG's loader on torch-sparse has no hops
            return self.narrowed(batch)
        return call_model(self.model, batch)[: batch.batch_size]

    def _progress(self, batches: Any, title: str, total: int, done: int = 0) -> Any:
        return tqdm(batches, title, total, initial=done, unit="batch", leave=False, disable=self.quiet)

    def train_epoch(self) -> dict[str, float]:
        """What is left of the epoch; returns its mean loss, edges and nodes a second, and seconds."""
        self.model.train()
        so_far = self._epoch
        batches = iter(self.train_loader)
        if self._random_state is not None:  # only now, for iterators of worker processes draw from it
            torch.set_rng_state(self._random_state)
            self._random_state = None
        title = f"epoch {len(self.history) + 1}"
        bar = self._progress(batches, title, len(self.train_loader), int(so_far["batches"]))
        begin = mark = time.perf_counter()
        seconds_before, loader_before = so_far["seconds"], dict(getattr(self.train_loader, "seconds", {}))
        for batch in bar:
            now = time.perf_counter()
            self.seconds["wait"] += now - mark
            self.optimizer.zero_grad()
            target = batch.y[: batch.batch_size].long()
            loss = nn.functional.cross_entropy(self.scores(batch), target, ignore_index=-1)
            loss.backward()
            self.optimizer.step()
            so_far["batches"] += 1
            so_far["loss"] += float(loss.detach()) * batch.batch_size
            so_far["seeds"] += batch.batch_size
            so_far["edges"] += sum(batch.num_sampled_edges)
            so_far["nodes"] += batch.num_nodes
            bar.set_postfix(loss=f"{so_far['loss'] / so_far['seeds']:.4f}")
            mark = time.perf_counter()
            self.seconds["train"] += mark - now
            so_far["seconds"] = seconds_before + mark - begin
            if self.checkpoint_every and so_far["batches"] % self.checkpoint_every == 0:
                self.save_checkpoint()
                mark = time.perf_counter()
        if self._counts_seconds():
            for name, value in self.train_loader.seconds.items():
                self.seconds[name] += value - loader_before[name]
        wall = so_far["seconds"]
        self._epoch = dict.fromkeys(so_far, 0.0)
        return {
            "loss": so_far["loss"] / so_far["seeds"],
            "edges/s": so_far["edges"] / wall,
            "nodes/s": so_far["nodes"] / wall,
            "seconds": wall,
        }

    @torch.no_grad()
    def evaluate(self, part: str) -> float:
        """The task's metric on ``train``, ``val`` or ``test``, with all neighbors (see ``eval_fanouts``)."""
        self.model.eval()
        loader = self._loader(part, self.eval_fanouts, seed=0)
        outs, targets = [], []
        for batch in self._progress(loader, f"evaluate {part}", len(loader)):
            outs.append(self.scores(batch))
            targets.append(batch.y[: batch.batch_size])
        out, target = torch.cat(outs), torch.cat(targets)
        if self.task.metric == "roc_auc":
            return roc_auc(out[:, 1] - out[:, 0], target == 1)
        return float((out.argmax(1) == target).float().mean())

    def run(self, report: Callable[[str], None] = tqdm.write) -> dict[str, Any]:
        """All epochs that are left; the model with the best validation score is tested. Returns the run's summary."""
        while len(self.history) < self.config.epochs:
            entry = {"epoch": len(self.history) + 1, **self.train_epoch(), "val": self.evaluate("val")}
            self.history.append(entry)
            if entry["val"] > self.best:
                self.best = entry["val"]
                self.best_model = {name: value.clone() for name, value in self.model.state_dict().items()}
            self.save_checkpoint()
            report(
                f"epoch {entry['epoch']:3d}  loss {entry['loss']:.4f}  val {self.task.metric} {entry['val']:.4f}  "
                f"{entry['edges/s'] / 1e6:.2f} M edges/s  {entry['nodes/s'] / 1e6:.2f} M nodes/s  "
                f"{entry['seconds']:.1f} s"
            )
        if self.best_model is not None:
            self.model.load_state_dict(self.best_model)
        summary = {
            "task": self.task.name,
            "metric": self.task.metric,
            "config": asdict(self.config),
            "val": self.best,
            "test": self.evaluate("test"),
            "seconds": self.seconds,
            "history": self.history,
        }
        report(f"test {self.task.metric} {summary['test']:.4f} (best validation {self.best:.4f})")
        report("where the time of training went: " + ", ".join(f"{k} {v:.2f} s" for k, v in self.seconds.items()))
        if "sample" in self.seconds:
            report("(sample and gather run in the loader's threads beside train; wait is what they cost the loop)")
        if self.folder is not None:
            (self.folder / "summary.json").write_text(json.dumps(summary, indent=1))
        return summary

    def save_checkpoint(self) -> None:
        """Writes the run's state to ``folder``, where it takes the old one's place once it is on the disk."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        ours = isinstance(self.train_loader, NeighborLoader)
        partial = self.folder / f"{CHECKPOINT}.partial"
        with partial.open("wb") as stream:
            torch.save(
                {
                    "task": self.task.name,
                    "config": asdict(self.config),
                    "model": self.model.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "loader": self.train_loader.state_dict() if ours else None,
                    "random_state": torch.get_rng_state(),
                    "epoch": dict(self._epoch),
                    "history": self.history,
                    "best": self.best,
                    "best_model": self.best_model,
                    "seconds": dict(self.seconds),
                },
                stream,
            )
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(self.folder / CHECKPOINT)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def resume(self) -> bool:
        """Takes up the checkpoint in ``folder``; returns False if there is none.

        Raises:
            ValueError: it is of another task or configuration (``epochs`` may differ), or of PyG's loader.
        """
        if self.folder is None or not (self.folder / CHECKPOINT).exists():
            return False
        file = self.folder / CHECKPOINT
        state = torch.load(file, weights_only=True)
        ours = {"task": self.task.name, **asdict(self.config)}
        theirs = {"task": state["task"], **state["config"]}
        for name in ours.keys() | theirs.keys():
            if name != "epochs" and ours.get(name) != theirs.get(name):
                raise ValueError(f"{file}: expected {name}={ours.get(name)!r}, found {theirs.get(name)!r}")
        if state["loader"] is None:
            raise ValueError(f"{file}: expected a run with loader='gnnscale', for PyG's cannot go on within an epoch")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.train_loader.load_state_dict(state["loader"])
        self._random_state = state["random_state"]
        self._epoch, self.history, self.seconds = state["epoch"], state["history"], state["seconds"]
        self.best, self.best_model = state["best"], state["best_model"]
        return True


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
