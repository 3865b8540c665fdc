"""The loop that all tasks share: train a model on a loader's batches, validate, test, checkpoint, resume."""

from __future__ import annotations

import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from tqdm import tqdm

from ..loader.keyed_loader import KeyedLoader
from ..ops.arguments import check_choice
from ..random import Purpose, batch_key
from . import checkpoint
from .clock import Clock
from .rank_group import RankGroup

SUMMED = ("loss", "seeds", "edges", "nodes")
"""The names of the sums over the batches of an epoch, and over the ranks."""
SHOWN_EVERY = 0.5
"""Seconds between two reads of the loss from a GPU for the progress bar; a read waits for the GPU."""


@dataclass
class Config:
    """Settings that all tasks have. Each field of a task's configuration is an option of ``gnnscale train``, with the
    field's type and what its metadata has as ``help`` and ``choices``; other values than those are refused."""

    hidden: int = field(default=128, metadata={"help": "width of the model"})
    fanouts: list[int] = field(
        default_factory=lambda: [10, 10],
        metadata={"help": "neighbors per hop, or nodes (--method), one number per layer"},
    )
    batch_size: int = field(default=1024, metadata={"help": "nodes, links or events per batch"})
    epochs: int = 5
    lr: float = 0.005
    weight_decay: float = 0.0
    dropout: float = 0.3
    seed: int = 0
    num_workers: int = 0

    def __post_init__(self) -> None:
        for entry in fields(self):
            if choices := entry.metadata.get("choices"):
                check_choice(entry.name, getattr(self, entry.name), tuple(choices))
        if not -(2**63) <= self.seed < 2**64:  # what torch.manual_seed takes
            raise ValueError(f"seed: expected -2^63 <= seed < 2^64, found {self.seed}")
        for name in ("lr", "weight_decay"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name}: expected a finite number of at least 0, found {value}")
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout: expected a probability from 0 to 1, found {self.dropout}")
        if not self.fanouts or min(self.fanouts) < -1:
            raise ValueError(f"fanouts: expected -1 (all) or at least 0, one per layer, found {self.fanouts}")
        if self.num_workers < 0:
            raise ValueError(f"num_workers: expected at least 0, found {self.num_workers}")


class Trainer(ABC):
    """Trains a model on a task and keeps the run's history, checkpoint and plot in ``folder``.

    A checkpoint is written after every epoch and, within an epoch, after every ``checkpoint_every`` batches (0: only
    after epochs). With this package's loaders, :meth:`resume` continues after the checkpoint's last batch; on one
    thread it reaches the same weights as a run that was not stopped, bit for bit.

    A subclass defines the task, its configuration, the model, the training batches, their loss and the score. The model
    of the epoch with the highest score on ``val``, the first of equals, is tested.

    Several ranks may train one model, each on its own batches, with the mean of their gradients. They make their
    trainers with equal arguments, and have the same weights, scores and history; rank 0 alone prints and writes.

    Args:
        task: what is learned.
        config: settings.
        folder: for checkpoint and summary; None: nothing is written.
        quiet: show no progress bars.
        checkpoint_every: batches between checkpoints within an epoch.
        ranks: that train together; by default this process alone.
    """

    config_type: ClassVar[type[Config]]
    load: ClassVar[Callable[..., Any]]
    """Reads the task, by the data set's name, root and split."""

    def __init__(
        self,
        task: Any,
        config: Config,
        folder: str | os.PathLike | None = None,
        quiet: bool = False,
        checkpoint_every: int = 100,
        ranks: RankGroup | None = None,
    ) -> None:
        torch.manual_seed(config.seed)
        self.ranks = RankGroup() if ranks is None else ranks
        self.task, self.quiet = task, quiet or not self.ranks.is_first
        self.config: Any = config
        self.folder = None if folder is None else Path(folder)
        self.checkpoint_every = checkpoint_every
        self.model = self.build_model().to(self.device)
        self._called = self.called_module()
        self._trained = self.ranks.parallel(self._called, self.leaves_parameters_out)
        if not self.ranks.is_first:  # else dropout would have the same masks on all ranks
            torch.manual_seed(batch_key(config.seed, batch=self.ranks.rank, purpose=Purpose.TRAIN))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
        self.train_loader = self.training_batches()
        self._loaders: dict[Hashable, Any] = {}
        self.history: list[dict[str, float]] = []
        self.best = -math.inf
        self.best_model: dict[str, Tensor] | None = None
        ours = isinstance(self.train_loader, KeyedLoader) and config.num_workers == 0
        self.clock = Clock(self.train_loader if ours else None)
        self._epoch = dict.fromkeys(("batches", *SUMMED, "seconds"), 0.0)
        self._random_states: tuple[Tensor, Tensor | None] | None = None  # restored when the loop continues
        self.between_batches: Callable[[], None] = _nothing
        """Called after each batch of training and evaluation, and after each epoch."""

    # What is learned #################################################################################################

    @property
    @abstractmethod
    def metric(self) -> str:
        """The name of the score."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """The model, with weights from torch's generator."""

    def called_module(self) -> nn.Module:
        """What :meth:`forward` calls: the model, or a module around it with the same parameters."""
        return self.model

    @property
    def leaves_parameters_out(self) -> bool:
        """Whether the loss of a batch may not depend on some of the model's parameters."""
        return False

    @abstractmethod
    def training_batches(self) -> Any:
        """The loader of the training batches."""

    @abstractmethod
    def loss(self, batch: Any) -> tuple[Tensor, int]:
        """The mean loss over a batch's seeds, and the number of these seeds. Calls :meth:`forward` once."""

    def objective(self, loss: Tensor, seeds: int, batch: Any) -> Tensor:
        """The scalar from which the backward pass starts, given what :meth:`loss` returned: by default its loss."""
        return loss

    @abstractmethod
    def score(self, subset: str) -> float:
        """The metric on ``train``, ``val`` or ``test``, over all ranks; larger is better. Called with the model in
        evaluation mode."""

    @property
    def ranks_per_batch(self) -> int:
        """How many ranks compute one batch together."""
        return 1

    @property
    def device(self) -> torch.device:
        """The device of the model, on which this package's loaders make their batches."""
        return torch.device("cpu")

    def inference(self) -> tuple[nn.Module, Callable[[nn.Module, Any], Any]]:
        """``(model, call)`` of :func:`torch_gnnscale.infer.infer`: what the task is for, of every node."""
        raise NotImplementedError(
            f"{type(self).__name__}: expected a task with rows of nodes, found one that scores pairs at their times"
        )

    def baseline(self) -> tuple[str, float] | None:
        """A simple method to compare with: its name and its score on ``test``; None: there is none."""
        return None

    # How #############################################################################################################

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of training so far, by what they were spent on (see :class:`.clock.Clock`)."""
        return self.clock.seconds

    def forward(self, batch: Any) -> Any:
        """The model's output for a batch. In training all ranks call this together, in evaluation each by itself."""
        return (self._trained if self.model.training else self._called)(batch)

    def evaluate(self, subset: str) -> float:
        """The metric on ``train``, ``val`` or ``test``. All ranks get the value of rank 0, by which they decide."""
        self.model.eval()
        with torch.no_grad():
            score = self.score(subset)
        return self.ranks.first(lambda: score)

    def kept_loader(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """A loader for evaluation: made when it is first asked for, and each time at its first epoch."""
        if name not in self._loaders:
            self._loaders[name] = make()
        loader = self._loaders[name]
        if isinstance(loader, KeyedLoader):
            loader.set_epoch(0)
        return loader

    def progress(self, batches: Any, title: str, total: int, done: int = 0) -> Any:
        """The batches with a progress bar, as a context manager that removes the bar at its end.

        Nothing is shown if the trainer is quiet or stderr is no terminal.
        """
        disable = True if self.quiet else None  # None: unless stderr is a terminal
        return tqdm(self._each(batches), title, total, initial=done, unit="batch", leave=False, disable=disable)

    def _each(self, batches: Any) -> Iterator[Any]:
        for batch in batches:
            yield batch
            self.between_batches()

    def train_epoch(self) -> dict[str, float]:
        """Trains the rest of the epoch; returns the epoch's mean loss, edges and nodes per second of all ranks, and
        seconds."""
        self.model.train()
        so_far = self._epoch
        batches = iter(self.train_loader)
        if self._random_states is not None:  # not earlier: making an iterator of worker processes draws from the first
            torch.set_rng_state(self._random_states[0])
            if self.device.type == "cuda" and self._random_states[1] is not None:
                torch.cuda.set_rng_state(self._random_states[1], self.device)
            self._random_states = None
        total = torch.tensor(so_far["loss"], dtype=torch.float64, device=self.device)
        shown = time.perf_counter()
        self.clock.skip()
        title = f"epoch {len(self.history) + 1}"
        with self.progress(batches, title, len(self.train_loader), int(so_far["batches"])) as bar:
            for batch in bar:
                so_far["seconds"] += self.clock.waited()
                self.optimizer.zero_grad()
                loss, seeds = self.loss(batch)
                self.objective(loss, seeds, batch).backward()
                self.optimizer.step()
                so_far["batches"] += 1
                total += loss.detach().to(torch.float64).sum() * seeds
                so_far["seeds"] += seeds
                so_far["edges"] += batch.num_edges
                so_far["nodes"] += batch.num_nodes
                due = self.checkpoint_every and so_far["batches"] % self.checkpoint_every == 0
                if due or self.device.type == "cpu" or time.perf_counter() - shown > SHOWN_EVERY:
                    so_far["loss"], shown = float(total), time.perf_counter()  # float() waits for a GPU
                    if so_far["seeds"]:  # a rank may have none of a batch that is cut over ranks
                        bar.set_postfix(loss=f"{so_far['loss'] / so_far['seeds']:.4f}")
                so_far["seconds"] += self.clock.trained()
                if due:
                    self.clock.collect()
                    self.save_checkpoint()
                    self.clock.skip()
        self.clock.skip()
        so_far["loss"] = float(total)
        so_far["seconds"] += self.clock.trained()
        self.clock.collect()
        self._epoch = dict.fromkeys(so_far, 0.0)
        sums = self.ranks.total(torch.tensor([so_far[name] for name in SUMMED], dtype=torch.float64))
        loss, seeds, edges, nodes = sums.tolist()
        seconds = so_far["seconds"]
        return {"loss": loss / seeds, "edges/s": edges / seconds, "nodes/s": nodes / seconds, "seconds": seconds}

    def run(self, report: Callable[[str], None] = tqdm.write) -> dict[str, Any]:
        """Trains the remaining epochs and tests the model with the best validation score; returns the run's summary.

        ``report`` is called on rank 0 only.
        """
        if not self.ranks.is_first:
            report = _say_nothing
        while len(self.history) < self.config.epochs:
            entry = {"epoch": len(self.history) + 1, **self.train_epoch(), "val": self.evaluate("val")}
            self.history.append(entry)
            if entry["val"] > self.best:
                self.best = entry["val"]
                self.best_model = {name: value.clone() for name, value in self.model.state_dict().items()}
            self.save_checkpoint()
            report(
                f"epoch {entry['epoch']:3d}  loss {entry['loss']:.4f}  val {self.metric} {entry['val']:.4f}  "
                f"{entry['edges/s'] / 1e6:.2f} M edges/s  {entry['nodes/s'] / 1e6:.2f} M nodes/s  "
                f"{entry['seconds']:.1f} s"
            )
            self.between_batches()
        if self.best_model is not None:
            self.model.load_state_dict(self.best_model)
        summary = {
            "task": self.task.name,
            "metric": self.metric,
            "model": type(self.model).__name__,
            "config": asdict(self.config),
            "val": self.best,
            "test": self.evaluate("test"),
            "seconds": self.seconds,
            "history": self.history,
        }
        beside = ""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            if (baseline := self.baseline()) is not None:
                summary["baseline"] = dict(zip(("name", "test"), baseline, strict=True))
                beside = f"; {baseline[0]}: {baseline[1]:.4f}"
        report(f"test {self.metric} {summary['test']:.4f} (best validation {self.best:.4f}){beside}")
        for line in self.clock.report():
            report(line)
        if self.folder is not None and self.ranks.is_first:
            (self.folder / "summary.json").write_text(json.dumps(summary, indent=1))
        return summary

    def _settings(self) -> dict[str, Any]:
        """The settings that a resumed run must have in common with the stopped one, except for
        :data:`.checkpoint.MAY_DIFFER`."""
        run = {"format": checkpoint.FORMAT, "trainer": type(self).__name__, "task": self.task.name}
        target = getattr(self.task, "target", None)
        return {**run, **({} if target is None else {"target": target}), **asdict(self.config)}

    def save_checkpoint(self) -> None:
        """Writes the run's state to ``folder``, if there is one (see :mod:`.checkpoint`): rank 0, for all ranks."""
        if self.folder is None:
            return
        folder, ours, on_gpu = self.folder, isinstance(self.train_loader, KeyedLoader), self.device.type == "cuda"
        of_rank = {
            "random_state": torch.get_rng_state(),
            "device_random_state": torch.cuda.get_rng_state(self.device) if on_gpu else None,
            "epoch": dict(self._epoch),
        }
        state = {
            "run": self._settings(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.train_loader.state_dict() if ours else None,
            "ranks": self.ranks.everyone(of_rank),
            "history": self.history,
            "best": self.best,
            "best_model": self.best_model,
            "seconds": dict(self.seconds),
        }
        self.ranks.first(lambda: checkpoint.write(folder, state))

    def resume(self) -> bool:
        """Restores the state of the checkpoint in ``folder``, which rank 0 reads; returns False if there is none.

        With another number of ranks, a loader in the order ``global`` goes on, and one in the order ``owned`` refuses.

        Raises:
            ValueError: the checkpoint is damaged, of another task or configuration (``epochs`` and ``device`` may
                differ), or of a run with PyG's loader.
        """
        if (folder := self.folder) is None:
            return False
        state = self.ranks.first(lambda: checkpoint.read(folder, self._settings()))
        if state is None:
            return False
        if state["loader"] is None:
            raise ValueError(
                f"{self.folder}: expected a run with loader='gnnscale', found one with PyG's loader, which cannot "
                f"continue within an epoch"
            )
        self.train_loader.load_state_dict(state["loader"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        of_rank = checkpoint.state_of_rank(state["ranks"], self.ranks.rank, self.ranks.world)
        if of_rank["random_state"] is not None:
            self._random_states = of_rank["random_state"], of_rank["device_random_state"]
        self._epoch, self.history = of_rank["epoch"], state["history"]
        self.seconds.update(state["seconds"])
        self.best, self.best_model = state["best"], state["best_model"]
        return True


def _nothing() -> None:
    """What happens between batches unless somebody asks for something."""


def _say_nothing(_: str) -> None:
    """The ``report`` of ranks other than 0."""
