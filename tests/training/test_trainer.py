"""The loop that all tasks share: what an epoch reports, which epoch is tested, and what a resumed run knows."""

from types import SimpleNamespace

import pytest
import torch
from helpers.data import silent

from torch_gnnscale.comm.mesh import Ranks
from torch_gnnscale.datasets import NodeTask, planted
from torch_gnnscale.tasks import NodeConfig, NodeTrainer
from torch_gnnscale.training import RankGroup
from torch_gnnscale.training.clock import Clock


@pytest.fixture(scope="module")
def task():
    return NodeTask.from_data("small", planted(600, num_classes=4, num_features=16, seed=0))


class Scripted(NodeTrainer):
    """Scores given numbers on ``val``, one per epoch; keeps each epoch's weights and each batch's loss."""

    def __init__(self, task, scores, folder=None, **changes):
        config = NodeConfig(**{"hidden": 8, "fanouts": [3], "batch_size": 64, "epochs": len(scores), **changes})
        super().__init__(task, config, folder, quiet=True)
        self.scores_of_val, self.after_epoch, self.losses = scores, [], []

    def loss(self, batch):
        loss, seeds = super().loss(batch)
        self.losses.append((float(loss.detach()), seeds))
        return loss, seeds

    def evaluate(self, part):
        if part != "val":
            return super().evaluate(part)
        self.after_epoch.append({name: value.clone() for name, value in self.model.state_dict().items()})
        return self.scores_of_val[len(self.history)]


def equal(weights, others):
    return all(torch.equal(value, others[name]) for name, value in weights.items())


@pytest.mark.parametrize(("scores", "best"), [([0.5, 0.7, 0.6], 1), ([0.5, 0.5, 0.4], 0), ([0.4, 0.6, 0.6], 1)])
def test_the_first_of_the_best_epochs_is_tested(task, scores, best):
    trainer = Scripted(task, scores)
    summary = trainer.run(silent)
    assert summary["val"] == scores[best]
    assert equal(trainer.after_epoch[best], trainer.model.state_dict())
    assert not equal(trainer.after_epoch[best], trainer.after_epoch[2])


def test_a_finished_run_that_is_resumed_tests_the_same_epoch(task, tmp_path):
    finished = Scripted(task, [0.9, 0.2], tmp_path)
    summary = finished.run(silent)
    resumed = Scripted(task, [0.9, 0.2], tmp_path)
    assert resumed.resume()
    assert equal(finished.after_epoch[1], resumed.model.state_dict())  # the last epoch's, until the run is over
    again = resumed.run(silent)
    assert (again["val"], again["test"], again["history"]) == (0.9, summary["test"], summary["history"])
    assert equal(finished.after_epoch[0], resumed.model.state_dict())


@pytest.mark.slow
def test_further_epochs_are_compared_with_the_best_so_far(task, tmp_path):
    first = Scripted(task, [0.9, 0.2], tmp_path)
    first.run(silent)
    longer = Scripted(task, [0.9, 0.2, 0.8], tmp_path)
    assert longer.resume()
    assert longer.run(silent)["val"] == 0.9
    assert equal(first.after_epoch[0], longer.model.state_dict())


def test_a_batch_may_have_no_seeds(task):
    class Empty(Scripted):
        def loss(self, batch):
            loss, seeds = super().loss(batch)
            return (loss, seeds) if len(self.losses) > 2 else (loss * 0, 0)

    trainer = Empty(task, [0.1])
    (entry,) = trainer.run(silent)["history"]
    losses = trainer.losses[2:]
    assert entry["loss"] == pytest.approx(sum(a * b for a, b in losses) / sum(seeds for _, seeds in losses))


def test_only_in_training_ranks_call_the_model_together(task):
    trainer, batch = Scripted(task, [0.1]), object()
    trainer._trained, trainer._called = lambda given: ("together", given), lambda given: ("alone", given)
    trainer.model.train()
    assert trainer.forward(batch) == ("together", batch)
    trainer.model.eval()
    assert trainer.forward(batch) == ("alone", batch)


def test_the_loss_of_an_epoch_is_the_mean_over_its_own_seeds(task):
    trainer = Scripted(task, [0.1, 0.2, 0.3])
    history = trainer.run(silent)["history"]
    batches = len(trainer.train_loader)
    assert len(trainer.losses) == 3 * batches
    for epoch, entry in enumerate(history):
        losses = trainer.losses[epoch * batches : (epoch + 1) * batches]
        assert sum(seeds for _, seeds in losses) == int(task.masks["train"].sum())
        mean = sum(loss * seeds for loss, seeds in losses) / sum(seeds for _, seeds in losses)
        assert entry["loss"] == pytest.approx(mean, rel=1e-13)


def test_an_epoch_counts_its_own_edges_and_nodes(task):
    trainer, counted = Scripted(task, [0.1, 0.2]), []
    plain = trainer.loss
    trainer.loss = lambda batch: counted.append((batch.num_edges, batch.num_nodes)) or plain(batch)
    history = trainer.run(silent)["history"]
    batches = len(trainer.train_loader)
    for epoch, entry in enumerate(history):
        edges, nodes = (sum(column) for column in zip(*counted[epoch * batches : (epoch + 1) * batches], strict=True))
        assert entry["edges/s"] * entry["seconds"] == pytest.approx(edges)
        assert entry["nodes/s"] * entry["seconds"] == pytest.approx(nodes)


@pytest.mark.parametrize("every", [2, 3, 0])
def test_checkpoints_within_an_epoch_and_after_it(task, every, tmp_path):
    trainer, written = Scripted(task, [0.1, 0.2], tmp_path), []
    trainer.checkpoint_every = every
    trainer.save_checkpoint = lambda: written.append((len(trainer.history), len(trainer.losses)))
    trainer.run(silent)
    batches = len(trainer.train_loader)
    assert batches == 5
    within = [at for at in range(1, batches + 1) if every and at % every == 0]
    assert written == [
        entry
        for epoch in range(2)
        for entry in [*((epoch, epoch * batches + at) for at in within), (epoch + 1, (epoch + 1) * batches)]
    ]


def test_times_of_an_epoch_add_up(task):
    trainer = Scripted(task, [0.1, 0.2])
    history = trainer.run(silent)["history"]
    spent = trainer.seconds["train"] + trainer.seconds["wait"]
    assert spent == pytest.approx(sum(entry["seconds"] for entry in history))


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**64])
def test_seeds_beyond_64_bits_are_refused(seed):
    with pytest.raises(ValueError, match=rf"^seed: expected -2\^63 <= seed < 2\^64, found {seed}$"):
        NodeConfig(seed=seed)


@pytest.mark.parametrize("seed", [-(2**63), 2**64 - 1])
def test_the_largest_seeds_train(task, seed):
    assert Scripted(task, [0.1], seed=seed).run(silent)["history"]


class Told(RankGroup):
    """A rank whose group is not there: rank 0 always says -1."""

    def parallel(self, module, unused):
        return module

    def first(self, make):
        make()
        return -1.0


def test_ranks_drop_out_by_random_numbers_of_their_own(task):
    seeds = []
    for rank in range(3):
        NodeTrainer(task, NodeConfig(seed=5), quiet=True, ranks=Told(Ranks(rank, 3)))
        seeds.append(torch.initial_seed())
    assert seeds[0] == 5
    assert len(set(seeds)) == 3


def test_all_ranks_have_the_score_of_rank_0(task):
    trainer = NodeTrainer(task, NodeConfig(hidden=8), quiet=True, ranks=Told(Ranks(1, 2)))
    trainer.score = lambda subset: 0.7
    assert trainer.evaluate("val") == -1


def test_a_loader_for_evaluation_begins_with_its_first_epoch(task):
    trainer = NodeTrainer(task, NodeConfig(hidden=8), quiet=True)
    loader = trainer.kept_loader("some", trainer.training_batches)
    first = [batch.n_id.tolist() for batch in loader]
    assert trainer.kept_loader("some", pytest.fail) is loader
    assert [batch.n_id.tolist() for batch in loader] == first
    assert [batch.n_id.tolist() for batch in trainer.training_batches()] == first  # as one that is made anew


def test_what_a_loader_counts_is_added_once():
    counted = SimpleNamespace(seconds={"sample": 1.0, "gather": 2.0})
    clock = Clock(counted)
    clock.collect()
    counted.seconds = {"sample": 1.5, "gather": 2.0}
    clock.collect()
    assert (clock.seconds["sample"], clock.seconds["gather"]) == (1.5, 2.0)


@pytest.mark.parametrize(
    ("seconds", "waits", "says"),
    [
        (None, "wait", None),
        ({"sample": 1.0, "gather": 2.0}, "wait", "(sample and gather run in threads"),
        ({"sample": 1.0, "stall": 0.5}, "train", "(sample and gather are the host's share"),
    ],
    ids=["another loader", "on a CPU", "on a GPU"],
)
def test_who_waits_for_a_batch(seconds, waits, says):
    """The host, whose wait is counted, or the GPU, whose stalls the loader counts: the host's time is then training."""
    clock = Clock(None if seconds is None else SimpleNamespace(seconds=seconds))
    clock.skip()
    clock.waited()
    assert [name for name, spent in clock.seconds.items() if spent] == [waits]
    clock.collect()
    assert clock.seconds.get("wait") >= (seconds or {}).get("stall", 0.0)
    assert ("stall" in clock.seconds, len(clock.report())) == (False, 1 + (says is not None))
    assert says is None or clock.report()[1].startswith(says)
