"""The file that a run is resumed from, and what a resumed run knows of the epoch in which it was stopped."""

import errno
import io
import os
import re
import time
from contextlib import contextmanager

import pytest
import torch
from helpers.data import silent
from tqdm import tqdm

from torch_gnnscale.datasets import NodeTask, planted
from torch_gnnscale.tasks import NodeConfig, NodeTrainer
from torch_gnnscale.training import CHECKPOINT, checkpoint


@pytest.fixture(scope="module")
def task():
    return NodeTask.from_data("small", planted(600, num_classes=4, num_features=16, seed=0))


class Stopped(Exception):
    pass


class Observed(NodeTrainer):
    """Keeps its progress bars, takes a second per loss, and stops before the given loss of a run."""

    def __init__(self, task, folder=None, stop_at=None, now=None, **changes):
        config = NodeConfig(**{"hidden": 8, "fanouts": [3], "batch_size": 64, "epochs": 1, "dropout": 0.0, **changes})
        super().__init__(task, config, folder, quiet=True, checkpoint_every=2)
        self.bars, self.losses, self.stop_at, self.now = [], [], stop_at, [0.0] if now is None else now

    def progress(self, batches, title, total, done=0):
        bar = tqdm(batches, title, total, initial=done, file=io.StringIO(), disable=False, leave=False)
        self.bars.append((bar, bar.n))
        return bar

    def loss(self, batch):
        if len(self.losses) == self.stop_at:
            raise Stopped
        self.now[0] += 1
        loss, seeds = super().loss(batch)
        self.losses.append((float(loss.detach()), seeds))
        return loss, seeds


@pytest.mark.slow
def test_a_resumed_epoch_goes_on_with_its_loss_its_seconds_and_its_bar(task, tmp_path, one_thread):
    whole = Observed(task)
    expected = whole.train_epoch()
    stopped = Observed(task, tmp_path, stop_at=3)
    with pytest.raises(Stopped):
        stopped.train_epoch()
    saved = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    (of_rank,) = saved["ranks"]
    assert of_rank["epoch"]["batches"] == 2
    resumed = Observed(task, tmp_path)
    assert resumed.resume()
    assert resumed.seconds == saved["seconds"]
    assert all(value > 0 for value in saved["seconds"].values())
    found = resumed.train_epoch()
    assert found["loss"] == expected["loss"]
    assert found["seconds"] > of_rank["epoch"]["seconds"] > 0
    assert [begin for _, begin in whole.bars + resumed.bars] == [0, 2]
    assert resumed.losses == whole.losses[2:]
    assert resumed.bars[0][0].postfix == f"loss={expected['loss']:.4f}"


def test_what_ranks_take_up_where_there_were_others():
    saved = [
        {
            "random_state": f"of rank {rank}",
            "device_random_state": None,
            "epoch": {"seconds": 5.0 + rank, "batches": 6.0 + rank, "loss": 10.0 * (rank + 1)},
        }
        for rank in range(3)
    ]
    for world in (1, 2, 4):
        found = [checkpoint.state_of_rank(saved, rank, world) for rank in range(world)]
        assert [entry["random_state"] for entry in found] == ["of rank 0", "of rank 1", "of rank 2", None][:world]
        # Batches are counted by each rank: those of an epoch are shared by fewer or more from now on.
        assert [entry["epoch"]["batches"] for entry in found] == [21 // world] * world
        assert [entry["epoch"]["loss"] for entry in found] == [60.0] + [0.0] * (world - 1)
        assert [entry["epoch"]["seconds"] for entry in found] == [5.0] * world
    assert [checkpoint.state_of_rank(saved, rank, 3) for rank in range(3)] == saved


def test_the_time_that_a_checkpoint_takes_is_nobody_s(task, tmp_path, monkeypatch):
    now, counted = [0.0], []
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    trainer = Observed(task, tmp_path, now=now)
    trainer.train_loader._seconds["sample"] = 0.0
    trainer.train_loader.prefetch = 0  # else threads count while this compares

    def save():
        now[0] += 100
        counted.append((trainer.seconds["sample"], trainer.train_loader.seconds["sample"]))

    def sample(index):
        trainer.train_loader._seconds["sample"] += 10
        return plain(index)

    trainer.save_checkpoint = save
    line = trainer.train_loader._line
    plain, line.sample = line.sample, sample
    batches = len(trainer.train_loader)
    entry = trainer.train_epoch()
    assert entry["seconds"] == trainer.seconds["train"] + trainer.seconds["wait"] == batches
    assert len(counted) == batches // 2
    assert all(mine == loaders >= 10 for mine, loaders in counted), "what the loader counted is in the checkpoint"
    assert trainer.seconds["sample"] == 10 * batches, "and is counted once"


def test_a_write_that_fails_leaves_the_checkpoint_before_it(tmp_path, monkeypatch):
    checkpoint.write(tmp_path, {"run": {}, "step": 1})

    def save(state, stream):
        stream.write(b"the beginning")
        raise OSError(errno.ENOSPC, "the disk is full")

    class Full:
        def write(self, data):
            raise OSError(errno.ENOSPC, "the disk is full")

    plain = torch.save

    def save_to_full_disk(state, stream):
        plain(state, Full())

    def interrupted(state, stream):
        stream.write(b"the beginning")
        raise KeyboardInterrupt

    def unable(state, stream):
        stream.write(b"the beginning")
        raise RuntimeError("no such state")  # which is no fault of the file

    wrong = pytest.raises(RuntimeError, match=r"^no such state$")
    full = pytest.raises(OSError, match=f"the disk is full: '{tmp_path}/{CHECKPOINT}'$")
    stopped = pytest.raises(KeyboardInterrupt)
    files = len(os.listdir("/proc/self/fd"))
    for fault, raised in ((save, full), (save_to_full_disk, full), (interrupted, stopped), (unable, wrong)):
        with monkeypatch.context() as patched:
            patched.setattr(checkpoint.torch, "save", fault)
            with raised:
                checkpoint.write(tmp_path, {"run": {}, "step": 2})
        assert [file.name for file in tmp_path.iterdir()] == [CHECKPOINT], "what was begun is removed"
    assert checkpoint.read(tmp_path, {}) == {"run": {}, "step": 1}
    checkpoint.write(tmp_path, {"run": {}, "step": 3})
    assert checkpoint.read(tmp_path, {}) == {"run": {}, "step": 3}
    assert len(os.listdir("/proc/self/fd")) == files, "none stays open"


@pytest.mark.parametrize("state", [torch.zeros(2), {"lin.weight": torch.zeros(2)}, {"run": 3}])
def test_a_file_that_is_no_checkpoint(tmp_path, state):
    torch.save(state, tmp_path / CHECKPOINT)
    with pytest.raises(ValueError, match=rf"^{tmp_path / CHECKPOINT}: expected a checkpoint, found another file$"):
        checkpoint.read(tmp_path, {})


@pytest.mark.parametrize(
    ("saved", "run", "message"),
    [
        ({"lr": 0.1}, {"lr": 0.2}, "expected lr=0.2, found 0.1"),
        ({"lr": 0.1}, {}, "expected lr=None, found 0.1"),
        ({}, {"lr": 0.1}, "expected lr=0.1, found None"),
        ({"epochs": 3, "device": "cuda"}, {"epochs": 5, "device": "cpu"}, None),
    ],
)
def test_settings_of_the_run_before(tmp_path, saved, run, message):
    checkpoint.write(tmp_path, {"run": saved})
    if message is None:
        assert checkpoint.read(tmp_path, run) == {"run": saved}
        return
    with pytest.raises(ValueError, match=f"{CHECKPOINT}: {message}$"):
        checkpoint.read(tmp_path, run)


def test_a_checkpoint_of_other_data_is_refused(task, tmp_path):
    Observed(task, tmp_path).save_checkpoint()
    other = NodeTask.from_data("other", task.data)
    with pytest.raises(ValueError, match=f"{CHECKPOINT}: expected task='other', found 'small'$"):
        Observed(other, tmp_path).resume()


def test_a_checkpoint_of_another_trainer_is_refused(task, tmp_path):
    class Other(Observed):
        pass

    Observed(task, tmp_path).save_checkpoint()
    with pytest.raises(ValueError, match=f"{CHECKPOINT}: expected trainer='Other', found 'Observed'$"):
        Other(task, tmp_path).resume()


def test_the_baseline_leaves_the_random_state_alone(task):
    class WithBaseline(Observed):
        def baseline(self):
            return "random", float(torch.rand(()))

    trainer = WithBaseline(task)
    trainer.evaluate = lambda part: 0.5
    trainer.train_epoch()
    before = torch.get_rng_state()
    trainer.config.epochs = 0
    first = trainer.run(silent)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert trainer.run(silent)["baseline"] == first["baseline"]


def test_the_time_in_which_an_epoch_ends_is_nobody_s(task, monkeypatch):
    """Such as that of threads that end."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    trainer = Observed(task, now=now)

    @contextmanager
    def progress(batches, title, total, done=0):
        with Observed.progress(trainer, batches, title, total, done) as bar:
            yield bar
        now[0] += 100

    trainer.progress = progress
    assert trainer.train_epoch()["seconds"] == len(trainer.train_loader)


def test_a_flipped_bit_is_found_or_means_nothing(tmp_path):
    torch.manual_seed(0)
    state = {"run": {"lr": 0.1}, "model": torch.nn.Linear(3, 2).state_dict(), "best": 0.5, "loader": {"epoch": 1}}
    checkpoint.write(tmp_path, state)
    file = tmp_path / CHECKPOINT
    whole, errors = file.read_bytes(), []
    entries = [found.start() for found in re.finditer(b"PK\x01\x02", whole)]
    directories = [8 * (entry + 38) + 4 for entry in entries]  # MS-DOS's attribute of directories in each entry
    assert len(directories) > 5
    for bit in (*directories, *range(3, 8 * len(whole), 401)):  # in every byte's turn another bit
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        try:
            found = checkpoint.read(tmp_path, {"lr": 0.1})
        except ValueError as error:
            errors.append(str(error))
            continue
        assert found is not None
        model = found.pop("model")
        assert found == {name: value for name, value in state.items() if name != "model"}
        assert all(torch.equal(model[name], value) for name, value in state["model"].items())
    assert len(errors) > 15
    assert all(
        error.startswith(f"{file}: expected a checkpoint, found another or a damaged file (") for error in errors
    )
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=rf"^{file}: expected a checkpoint, found another or a damaged file \("):
            checkpoint.read(tmp_path, {"lr": 0.1})


@pytest.mark.parametrize("links", [True, False])
def test_one_backup_is_kept(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(1, "Operation not permitted")))
    assert checkpoint.keep_backup(tmp_path) is None
    for step in range(3):
        checkpoint.write(tmp_path, {"run": {}, "step": step})
        for _ in range(2):  # a run between them has ended before its first checkpoint
            assert checkpoint.keep_backup(tmp_path) == tmp_path / checkpoint.BACKUP
        assert checkpoint.read(tmp_path, {}) == {"run": {}, "step": step}
        checkpoint.write(tmp_path, {"run": {}, "step": -1})
        assert torch.load(tmp_path / checkpoint.BACKUP, weights_only=True) == {"run": {}, "step": step}
    assert {file.name for file in tmp_path.iterdir()} == {CHECKPOINT, checkpoint.BACKUP}
