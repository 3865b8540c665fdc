"""The training job and the command line."""

import pytest
import torch

from torch_gnnscale import FeatureStore, GraphStore, TieredFeatureStore
from torch_gnnscale.datasets import NodeTask, planted
from torch_gnnscale.tasks import NodeConfig, NodeTrainer
from torch_gnnscale.tasks.metrics import roc_auc
from torch_gnnscale.tasks.node_trainer import with_rows_on
from torch_gnnscale.training import CHECKPOINT


@pytest.fixture(scope="module")
def task():
    return NodeTask.from_data("small", planted(3000, num_classes=8, num_features=32, seed=0))


def run(task, **changes):
    config = NodeConfig(**{"hidden": 64, "fanouts": [8, 8], "batch_size": 256, "epochs": 4, "lr": 0.01, **changes})
    return NodeTrainer(task, config, quiet=True).run(lambda _: None)


@pytest.mark.slow
def test_a_gnn_clearly_beats_an_mlp(task):
    assert run(task)["test"] > run(task, model="mlp")["test"] + 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"model": "gcn"}, {"model": "gat"}, {"residual": True}, {"model": "gcn", "residual": True}]
)
def test_other_models_learn(task, changes):
    assert run(task, **changes)["test"] > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ladies", "fastgcn", "labor"])
def test_layer_wise_methods_learn(task, method):
    trained = run(task, method=method, fanouts=[8, 8] if method == "labor" else [512, 512])
    assert trained["test"] > run(task, model="mlp")["test"] + 0.2


def test_a_model_without_weighed_messages_is_named(task):
    with pytest.raises(ValueError, match=r"^convs\.0 \(GCNConv\): expected normalize=False, found True"):
        run(task, model="gcn", method="ladies")


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [16, 2048])
def test_the_report_says_where_batches_were_made(task, batch_size):
    lines, config = [], NodeConfig(hidden=8, fanouts=[8, 8], batch_size=batch_size, epochs=1)
    NodeTrainer(task, config, quiet=True).run(lines.append)
    assert "(sample and gather run in threads while train goes on, or in the loop, as a part of wait)" in lines


@pytest.mark.slow
def test_a_seed_decides_the_run(task, one_thread):
    first, second = run(task, epochs=2), run(task, epochs=2)
    assert [entry["loss"] for entry in first["history"]] == [entry["loss"] for entry in second["history"]]
    assert first["test"] == second["test"]


@pytest.mark.slow
def test_unlabelled_nodes_are_left_out_of_the_loss(task):
    data = task.data.clone()
    data.y = torch.where(torch.arange(3000) % 3 == 0, -1, data.y)
    assert run(NodeTask.from_data("some labels", data), epochs=1)["history"][0]["loss"] < 3


def test_roc_auc_is_the_mann_whitney_statistic():
    generator = torch.Generator().manual_seed(0)
    score = torch.randint(20, (500,), generator=generator).float()  # with ties
    positive = torch.rand(500, generator=generator) < 0.3
    above = score[positive][:, None] - score[~positive]  # of each pair: won, lost or shared
    expected = ((above > 0).double() + (above == 0).double() / 2).mean()
    assert roc_auc(score, positive) == pytest.approx(float(expected), abs=1e-12)


def test_a_damaged_checkpoint_is_named(tmp_path, task):
    trainer = NodeTrainer(task, NodeConfig(epochs=1), tmp_path, quiet=True)
    trainer.save_checkpoint()
    file = tmp_path / CHECKPOINT
    whole = file.read_bytes()
    for damaged in (whole[:100], whole[: len(whole) // 2], b"no checkpoint", b""):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"{CHECKPOINT}: expected a checkpoint, found another or a damaged file"):
            trainer.resume()


def test_rows_in_tiers_are_put_where_the_model_is(task):
    with TieredFeatureStore.from_data(task.data, hotness="out_degree", names=["x"]) as store:
        moved, _ = with_rows_on((store, GraphStore.from_data(task.data)), torch.device("cpu"))
    assert torch.equal(moved[None, "x", None], task.data.x)


@pytest.mark.parametrize("of_stores", [False, True])
def test_rows_of_nodes_are_put_where_the_model_is(task, of_stores):
    data = (FeatureStore.from_data(task.data), GraphStore.from_data(task.data)) if of_stores else task.data
    moved = with_rows_on(data, torch.device("meta"))
    if of_stores:
        assert {value.device.type for value in moved[0]._tensors.values()} == {"meta"}
        assert set(moved[0]._tensors) == set(data[0]._tensors)
        assert moved[1] is data[1]
    else:
        assert {moved[name].device.type for name in ("x", "y", "train_mask")} == {"meta"}
        assert moved.edge_index is data.edge_index
        assert data.x.device.type == "cpu"


def test_what_a_gpu_stood_still_for_counts_as_waiting(task):
    trainer = NodeTrainer(task, NodeConfig(batch_size=256, fanouts=[3]), quiet=True)
    trainer.train_loader._seconds["stall"], plain = 0.0, trainer.loss

    def loss(batch):
        trainer.train_loader._seconds["stall"] += 10
        return plain(batch)

    trainer.loss = loss
    trainer.train_epoch()
    batches = len(trainer.train_loader)
    assert set(trainer.seconds) == {"sample", "gather", "train", "wait"}
    assert trainer.seconds["wait"] == pytest.approx(10 * batches)
    assert trainer.seconds["train"] + trainer.seconds["wait"] < 10 * batches


@pytest.mark.slow
def test_a_checkpoint_of_another_device_is_taken_up(task, tmp_path):
    config = NodeConfig(batch_size=256, fanouts=[3], epochs=1)
    NodeTrainer(task, config, tmp_path, quiet=True).run(lambda _: None)
    file = tmp_path / "checkpoint.pt"
    state = torch.load(file, weights_only=True)
    assert state["run"]["device"] == "cpu"
    state["run"]["device"] = "cuda:1"
    torch.save(state, file)
    trainer = NodeTrainer(task, config, tmp_path, quiet=True)
    assert trainer.resume()
    assert len(trainer.history) == 1


@pytest.mark.cuda
@pytest.mark.parametrize("changes", [{}, {"model": "gcn"}, {"model": "gat"}, {"residual": True}, {"model": "mlp"}])
def test_training_on_a_gpu(task, tmp_path, changes):
    here = run(task, **changes)
    there = run(task, device="cuda", **changes)
    assert there["test"] == pytest.approx(here["test"], abs=0.1)
    assert set(there["seconds"]) == {"sample", "gather", "train", "wait"}


@pytest.mark.cuda
def test_stopping_and_going_on_on_a_gpu(task, tmp_path):
    config = NodeConfig(hidden=64, fanouts=[8, 8], batch_size=64, epochs=2, lr=0.01, device="cuda")
    expected = NodeTrainer(task, config, quiet=True).run(lambda _: None)
    first = NodeTrainer(task, config, tmp_path, quiet=True, checkpoint_every=5)
    first.loss, plain, losses = (lambda batch: losses.append(1) or plain(batch)), first.loss, []
    first.save_checkpoint, save = (lambda: save() or (_ for _ in ()).throw(KeyboardInterrupt)), first.save_checkpoint
    with pytest.raises(KeyboardInterrupt):
        first.run(lambda _: None)
    assert len(losses) == 5
    second = NodeTrainer(task, config, tmp_path, quiet=True)
    assert second.resume()
    found = second.run(lambda _: None)
    for one, other in zip(found["history"], expected["history"], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=0.02)  # scatters of a GPU add in no fixed order


@pytest.mark.slow
@pytest.mark.cuda
def test_pygs_loader_beside_a_model_on_a_gpu(task):
    pytest.importorskip("pyg_lib")
    assert run(task, device="cuda", loader="pyg")["test"] > 0.5


@pytest.mark.slow
def test_all_neighbors_are_drawn_without_weights(task):
    trainer = NodeTrainer(task, NodeConfig(hidden=8, fanouts=[20], method="ladies"), quiet=True)
    assert trainer.drawing([20], training=True) == {"method": "ladies"}
    assert trainer.drawing([-1], training=False) == {}
