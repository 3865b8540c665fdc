"""Tasks in parts: scores are one process's, and a stopped run goes on to the same weights."""

import functools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.cluster import cluster
from helpers.data import silent
from helpers.parts import stores_of
from helpers.slow import NIGHTLY

from torch_gnnscale import partition
from torch_gnnscale.comm.mesh import Grid
from torch_gnnscale.datasets import LinkTask, NodeTask, about_task, planted, planted_links, planted_types, task_of_part
from torch_gnnscale.datasets.part_tasks import kind_of_parts
from torch_gnnscale.distributed import open_part
from torch_gnnscale.tasks import TASKS
from torch_gnnscale.tasks import node_trainer as classes
from torch_gnnscale.training import RankGroup

CONFIGS = {
    "nodes": {"fanouts": [4, 3], "batch_size": 32},
    "auc": {"fanouts": [4, 3], "batch_size": 32},
    "hetero": {"fanouts": [4, 3], "batch_size": 16},
    "links": {"fanouts": [3, 3], "batch_size": 128, "negatives": 2},
}


@functools.cache
def whole_task(kind):
    if kind in ("nodes", "auc"):
        task = NodeTask.from_data("small", planted(600, num_classes=2 if kind == "auc" else 4, num_features=8, seed=0))
        task.metric = "roc_auc" if kind == "auc" else "accuracy"
        return task
    if kind == "hetero":
        return NodeTask.from_types("small", planted_types(300, 500, 12, 4, split=(0.5, 0.2), seed=0), "author")
    data, links = planted_links(150, 90, 2500, 5, seed=0)
    return LinkTask("small", data, ("user", "chooses", "item"), links)


def kind_of(kind):
    return "nodes" if kind == "auc" else kind


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """path(kind, parts): a directory of parts with the task of this kind."""

    @functools.cache
    def path(kind, parts=2, topology="replicated"):
        out, task = tmp_path_factory.mktemp(kind) / "parts", whole_task(kind)
        links = None
        if kind == "links":
            links = {subset: (task.edge_type, ends) for subset, ends in task.links.items()}
        about = about_task(kind_of(kind), "small", task)
        partition.write(
            task.data, out, parts=parts, method="random", links=links, about=about, topology=topology, memory="1GiB"
        )
        return str(out)

    return path


def trainer_over(task, kind, ranks, folder=None, baseline=False, **changes):
    trainer = TASKS[kind_of(kind)]
    config = trainer.config_type(**{**CONFIGS[kind], "hidden": 16, "epochs": 2, "lr": 0.02, **changes})
    made = trainer(task, config, folder, quiet=True, checkpoint_every=3, ranks=ranks)
    if not baseline:
        made.baseline = lambda: None
    return made


def trainer_of(part, kind, order="owned", folder=None, **changes):
    ranks = RankGroup(part.ranks)
    return trainer_over(task_of_part(part, order, ranks.everyone), kind, ranks, folder, **changes)


def trained(path, kind, order, kept, fanouts_up_to=None):
    """(weights, score of each subset, summary) on this rank."""
    usual = classes._ALL_NEIGHBORS_UP_TO
    classes._ALL_NEIGHBORS_UP_TO = usual if fanouts_up_to is None else fanouts_up_to
    try:
        with open_part(path, **kept) as part:
            trainer = trainer_of(part, kind, order, epochs=1)
            summary = trainer.run(silent)
            scores = [trainer.evaluate(subset) for subset in ("train", "val", "test")]
            return trainer.model.state_dict(), scores, summary
    finally:
        classes._ALL_NEIGHBORS_UP_TO = usual


def scores_of_one_process(task, kind, weights):
    trainer = trainer_over(task, kind, RankGroup())
    assert list(trainer.model.state_dict()) == list(weights)
    trainer.model.load_state_dict(weights)
    return [trainer.evaluate(subset) for subset in ("train", "val", "test")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "order", "kept", "world"),
    [
        ("nodes", "owned", {}, 2), ("auc", "owned", {"buffer": 0.3}, 2), ("hetero", "owned", {}, 2),
        NIGHTLY("links", "owned", {}, 2), ("links", "global", {}, 2), NIGHTLY("hetero", "global", {}, 4),
        ("links", "owned", {"buffer": 0.3, "policy": "lookahead"}, 4), NIGHTLY("auc", "global", {}, 4),
    ],
)  # fmt: skip
def test_scores_are_those_of_one_process(written, kind, order, kept, world):
    found = cluster(world).run(trained, written(kind), kind, order, kept)
    weights, scores, summary = found[0]
    for others, of_rank, told in found[1:]:
        assert of_rank == scores
        assert all(torch.equal(value, weights[name]) for name, value in others.items())
        assert (told["val"], told["test"]) == (summary["val"], summary["test"])
        assert told["history"][0]["loss"] == summary["history"][0]["loss"]
    assert scores == pytest.approx(scores_of_one_process(whole_task(kind), kind, weights), rel=0, abs=1e-12)
    assert len(set(scores)) == 3
    assert summary["test"] == scores[2]


@pytest.mark.slow
def test_training_over_edges_in_parts_has_the_same_losses(written):
    whole, in_parts = (
        cluster(2).run(trained, written("hetero", 2, topology), "hetero", "owned", {})
        for topology in ("replicated", "partitioned")
    )
    for (weights, scores, summary), (expected, as_expected, told) in zip(in_parts, whole, strict=True):
        assert [entry["loss"] for entry in summary["history"]] == [entry["loss"] for entry in told["history"]]
        assert scores == as_expected
        assert all(torch.equal(value, expected[name]) for name, value in weights.items())


@pytest.mark.slow
def test_the_global_order_draws_what_one_process_draws(written):
    path, task = written("nodes"), whole_task("nodes")
    stored = NodeTask("small", stores_of(task.data, path), task.y, task.masks, task.num_features, task.num_nodes, 10**9)
    found = cluster(2).run(trained, path, "nodes", "global", {}, 0)
    assert found[0][1] == found[1][1] == scores_of_one_process(stored, "nodes", found[0][0])
    assert found[0][1] != scores_of_one_process(task, "nodes", found[0][0])


def baselines(path, kind):
    with open_part(path) as part:
        trainer = trainer_of(part, kind, dropout=0.0, baseline=True)
        torch.manual_seed(0)
        return trainer.baseline()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hetero", "links"])
def test_baselines_are_those_of_one_process(written, kind):
    trainer = trainer_over(whole_task(kind), kind, RankGroup(), dropout=0.0, baseline=True)
    torch.manual_seed(0)
    name, expected = trainer.baseline()
    found = cluster(2).run(baselines, written(kind), kind)
    assert found[0] == found[1]
    assert found[0][0] == name
    assert found[0][1] == pytest.approx(expected, abs=0.02 if kind == "hetero" else 1e-12)  # which floats decide


class Stopped(Exception):
    pass


def stop_at(trainer, step):
    """Raises before the given step ends."""
    taken = iter(range(1, 1000))

    def hook(*_):
        if next(taken) == step:
            raise Stopped

    trainer.optimizer.register_step_post_hook(hook)


def unbroken_and_resumed(path, kind, order, folder, step):
    """(weights of a run, of one that was stopped after ``step`` steps and resumed, their scores)."""
    with open_part(path) as part:
        whole = trainer_of(part, kind, order)
        expected = whole.run(silent)
    try:
        with open_part(path) as part:
            stopped = trainer_of(part, kind, order, folder)
            stop_at(stopped, step)
            stopped.run(silent)
    except Stopped:
        pass
    torch.manual_seed(1)
    with open_part(path) as part:
        resumed = trainer_of(part, kind, order, folder)
        assert resumed.resume()
        found = resumed.run(silent)
    losses = [[entry["loss"] for entry in summary["history"]] for summary in (expected, found)]
    weights = [trainer.model.state_dict() for trainer in (whole, resumed)]
    return weights, losses, [(summary["val"], summary["test"]) for summary in (expected, found)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "order", "world", "step"),
    [
        ("nodes", "owned", 2, 4), ("links", "global", 2, 4), NIGHTLY("hetero", "owned", 2, 8),
        NIGHTLY("nodes", "owned", 4, 4), NIGHTLY("hetero", "global", 4, 5),
    ],
)  # fmt: skip
def test_a_stopped_run_goes_on_to_the_same_weights(written, tmp_path, kind, order, world, step):
    found = cluster(world).run(unbroken_and_resumed, written(kind), kind, order, str(tmp_path), step)
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".pt"] == ["checkpoint.pt"]
    for (expected, weights), losses, scores in found:
        assert all(torch.equal(value, weights[name]) for name, value in expected.items())
        assert losses[0] == losses[1]
        assert scores[0] == scores[1]


def stops(path, order, folder):
    try:
        with open_part(path) as part:
            trainer = trainer_of(part, "nodes", order, folder)
            stop_at(trainer, 4)
            trainer.run(silent)
    except Stopped:
        return True
    return False


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_with_the_global_order_only(written, tmp_path):
    path = written("nodes", 1)
    for order in ("global", "owned"):
        assert cluster(2).run(stops, path, order, str(tmp_path / order)) == [True] * 2
    with open_part(path) as part:
        trainer = trainer_of(part, "nodes", "owned", tmp_path / "owned")
        with pytest.raises(ValueError, match=r"^state: expected a loader with ranks=2, found ranks=1$"):
            trainer.resume()
    with open_part(path) as part:
        trainer, made = trainer_of(part, "nodes", "global", tmp_path / "global", epochs=1), []
        plain = trainer.loss
        trainer.loss = lambda batch: made.append(batch.input_id) or plain(batch)
        assert trainer.resume()
        saved = torch.load(tmp_path / "global" / "checkpoint.pt", weights_only=True)
        sums = {name: sum(entry["epoch"][name] for entry in saved["ranks"]) for name in ("loss", "seeds", "edges")}
        assert {name: trainer._epoch[name] for name in sums} == sums
        trainer.run(silent)
        batches = len(trainer.train_loader.batch_sampler)
    assert len(made) == batches - 3 * 2  # after three steps of two ranks
    assert sum(map(len, made)) + sums["seeds"] == int(whole_task("nodes").masks["train"].sum())


def sampled_part(path):
    with open_part(path) as part:
        return trainer_of(part, "nodes", epochs=1).run(silent)["history"][0]["loss"]


@pytest.mark.slow
def test_topology_in_parts(written):
    expected, found = (
        cluster(2).run(sampled_part, written("nodes", 2, topology)) for topology in ("replicated", "partitioned")
    )
    assert found == expected


def drawn(path):
    with open_part(path) as part:
        trainer_of(part, "nodes")
        return torch.rand(3).tolist()


def test_ranks_drop_out_other_entries(written):
    first, second = cluster(2).run(drawn, written("nodes"))
    assert first != second
    trainer_over(whole_task("nodes"), "nodes", RankGroup())
    assert torch.rand(3).tolist() == first, "rank 0 draws what one process draws"


# What parts say ######################################################################################################


def without_about(task, path, **options):
    partition.write(task.data, path, parts=1, method="random", **options)
    return open_part(path)


def test_parts_that_say_nothing_of_their_task(tmp_path):
    task = whole_task("nodes")
    with without_about(task, tmp_path / "nodes") as part:
        found = task_of_part(part)
        assert kind_of_parts(part.parts) == "nodes"
        assert (found.name, found.metric, found.node_type) == ("nodes", "accuracy", None)
        assert (found.num_classes, found.num_features, found.num_edges) == (4, 8, task.num_edges)
        assert str(found) == str(task).replace("small", "nodes") + "; part 0 of 1"
    task = whole_task("hetero")
    with without_about(task, tmp_path / "hetero") as part:
        found = task_of_part(part)
        assert (kind_of_parts(part.parts), found.node_type, found.num_classes) == ("hetero", "author", 4)
        for subset in ("train", "val", "test"):
            for mine, expected in zip(found.labelled(subset), task.labelled(subset), strict=True):
                assert torch.equal(mine[torch.argsort(part.stored.seeds["author", subset])], expected)
    task = whole_task("links")
    links = {subset: (task.edge_type, ends) for subset, ends in task.links.items()}
    with without_about(task, tmp_path / "links", links=links) as part:
        found = task_of_part(part)
        assert (kind_of_parts(part.parts), found.edge_type) == ("links", task.edge_type)
        assert str(found) == str(task).replace("small", "links") + "; part 0 of 1"
        assert {name: ends.tolist() for name, ends in found.links.items()} == {
            name: ends.tolist() for name, ends in task.links.items()
        }


def test_classes_are_those_of_all_ranks(tmp_path):
    with without_about(whole_task("nodes"), tmp_path / "parts") as part:
        for others, expected in ((6, 7), (2, 4)):
            assert task_of_part(part, everyone=lambda own, others=others: [others, own]).num_classes == expected


@pytest.mark.parametrize("copies", [1, 3])
def test_ranks_of_a_part_share_its_labelled_nodes(tmp_path, copies):
    task = whole_task("hetero")
    data = task.data.clone()
    data["author"].x = data["author"].x.double()
    partition.write(data, tmp_path / "parts", parts=2, method="random")
    with partition.open_parts(tmp_path / "parts") as parts:
        stored = [parts.part(number) for number in range(2)]
        found = []
        for rank in range(2 * copies):
            ranks = Grid(2 * copies, 2).ranks_of(rank)
            part = SimpleNamespace(parts=parts, stored=stored[ranks.part], ranks=ranks, features=None, graph=None)
            found.append(task_of_part(part).labelled("train"))
    x, y = (torch.cat(column) for column in zip(*found, strict=True))
    expected = task.labelled("train")
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert max(len(own) for _, own in found) <= -(-len(expected[1]) // copies)
    order, as_expected = torch.argsort(x[:, 0]), torch.argsort(expected[0][:, 0])
    assert torch.equal(x[order], expected[0][as_expected])
    assert torch.equal(y[order], expected[1][as_expected])


@pytest.mark.parametrize("rank", [0, 1])
def test_labelled_nodes_of_another_part(tmp_path, rank):
    """As a damaged directory has them: the node after the last of a part, the one before its first."""
    partition.write(whole_task("hetero").data, tmp_path / "parts", parts=2, method="random")
    with partition.open_parts(tmp_path / "parts") as parts:
        last, first = parts.book.nodes(0, "author")[-1], parts.book.nodes(1, "author")[0]
        wrong = parts.stored_ids("author").argsort()[[first if rank == 0 else last]]
        stored = SimpleNamespace(seeds={("author", "train"): wrong}, rows=parts.part(rank).rows)
        ranks = Grid(2, 2).ranks_of(rank)
        part = SimpleNamespace(parts=parts, stored=stored, ranks=ranks, features=None, graph=None)
        with pytest.raises(IndexError, match=r"^seeds of 'train'.0. = \S+ is out of range: expected rows of"):
            task_of_part(part).labelled("train")


def test_parts_of_an_unknown_task(tmp_path):
    with without_about(whole_task("nodes"), tmp_path / "parts", about={"task": "notes"}) as part:
        message = r"parts: expected parts of a task of \('nodes', 'hetero', 'links'\), found 'notes'$"
        for asked in (kind_of_parts, task_of_part):
            with pytest.raises(ValueError, match=message):
                asked(part.parts if asked is kind_of_parts else part)


ROWS = r"expected rows x of shape \[F\] and y, classes, of the nodes to be classified, found "


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("val_mask", None, r"expected data splits \('train', 'val', 'test'\) of nodes of one type, found \["),
        ("x", None, ROWS + r"\[None, '\[\] torch.int64'\]$"),
        ("y", None, ROWS + r"\['\[8\] torch.float32', None\]$"),
        ("x", torch.zeros(600), ROWS + r"\['\[\] torch.float32', '\[\] torch.int64'\]$"),
        ("x", torch.zeros(600, 2, 4), ROWS + r"\['\[2, 4\] torch.float32', '\[\] torch.int64'\]$"),
        ("y", torch.zeros(600, 2, dtype=torch.int64), ROWS + r"\['\[8\] torch.float32', '\[2\] torch.int64'\]$"),
        ("y", torch.zeros(600), ROWS + r"\['\[8\] torch.float32', '\[\] torch.float32'\]$"),
    ],
)
def test_parts_that_hold_no_task(tmp_path, name, value, message):
    data = whole_task("nodes").data.clone()
    data.num_nodes = 600
    data[name] = value
    partition.write(data, tmp_path / "parts", parts=1, method="random")
    with open_part(tmp_path / "parts") as part, pytest.raises(ValueError, match=message) as error:
        task_of_part(part)
    assert str(error.value).startswith(str(Path(tmp_path) / "parts"))
