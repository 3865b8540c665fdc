"""A loader, and a training run, that go on where another one stopped."""

import json
import os
import random
import time
from contextlib import nullcontext

import pytest
import torch
from helpers import forked
from helpers.data import make_data, processes, silent, stop_workers
from helpers.hetero import CITES, PAPER, make_hetero
from helpers.slow import NIGHTLY, SLOW
from torch.utils.data import BatchSampler, SequentialSampler

from torch_gnnscale import LinkNeighborLoader, NeighborLoader, NeighborSampler
from torch_gnnscale.datasets import NodeTask, planted
from torch_gnnscale.loader.order import SeedOrder
from torch_gnnscale.tasks import NodeConfig, NodeTrainer
from torch_gnnscale.training import CHECKPOINT


def loader_of(data, **options):
    return NeighborLoader(data, [3, 2], torch.arange(150), **{"batch_size": 16, "seed": 5, **options})


def ids(batches):
    return [(batch.n_id.tolist(), batch.e_id.tolist(), batch.input_id.tolist()) for batch in batches]


def take(iterator, count):
    return [next(iterator) for _ in range(count)]


@pytest.mark.parametrize("shuffle", [SLOW(False), True])
@pytest.mark.parametrize(("workers", "then"), [(0, 0), SLOW(0, 2), SLOW(2, 0), NIGHTLY(2, 2)])
def test_the_batches_that_would_have_come(shuffle, workers, then):
    data = make_data()
    whole = loader_of(data, shuffle=shuffle)
    expected = [ids(whole) for _ in range(3)]
    for delivered in (0, 1, 4, 9, 10):
        first = loader_of(data, shuffle=shuffle, **processes(workers))
        assert len(list(first)) == 10
        iterator = iter(first)
        found = ids(take(iterator, delivered))
        state = json.loads(json.dumps(first.state_dict()))
        assert (state["epoch"], state["batch"]) == (1, delivered)
        second = loader_of(data, shuffle=shuffle, **processes(then), seed=99, prefetch=2)
        second.load_state_dict(state)
        assert second.state_dict() == state
        assert found + ids(second) == expected[1]
        assert ids(second) == expected[2]


@pytest.mark.parametrize("seed", [5, SLOW(99)])
def test_persistent_workers_draw_by_the_seed_of_the_state(seed):
    data = make_data()
    whole = loader_of(data, shuffle=True)
    state = {**whole.state_dict(), "batch": 3}
    expected = ids(whole)
    loader = loader_of(data, shuffle=True, **processes(1), persistent_workers=True, seed=seed)
    list(loader)
    workers = loader._iterator._workers
    loader.load_state_dict(state)
    assert ids(loader) == expected[3:]
    assert (loader._iterator._workers is workers) == (seed == 5)
    stop_workers(loader._iterator)


RESUMED = """
import json, sys
from helpers.data import make_data, processes
from test_resume import ids, loader_of
loader = loader_of(make_data(), shuffle=True, seed=None, **processes(int(sys.argv[2])))
loader.load_state_dict(json.loads(sys.argv[1]))
print(json.dumps(ids(loader)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_in_another_process_with_a_seed_of_its_own(workers):
    loader = loader_of(make_data(), shuffle=True, seed=None)
    iterator = iter(loader)
    take(iterator, 3)
    state = json.dumps(loader.state_dict())
    rest = ids(iterator)
    done = forked.run(RESUMED, state, str(workers))
    assert done.returncode == 0, done.stderr
    assert [tuple(batch) for batch in json.loads(done.stdout)] == rest


@pytest.mark.parametrize(
    ("outcomes", "position"), [([1, None, 2], (1, 0)), ([1, None], (0, 2)), ([None, 1], (1, 0)), ([], (1, 0))]
)
def test_an_epoch_ends_unless_its_last_batch_failed(outcomes, position):
    """``outcomes``: batches, and None for one that fails."""

    class Iterator:
        def __next__(self):
            if not left:
                raise StopIteration
            if (batch := left.pop(0)) is None:
                raise ZeroDivisionError
            return batch

    left, order = [*outcomes], SeedOrder(5)
    order.begin()
    followed = order.follow(Iterator)
    for number, outcome in enumerate(outcomes, 1):
        with pytest.raises(ZeroDivisionError) if outcome is None else nullcontext():
            next(followed)
        assert (order.epoch, order.batch) == (0, number)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(followed)
        assert (order.epoch, order.batch) == position


def test_older_iterators_move_no_position():
    order = SeedOrder(seed=1)
    order.begin()
    older = order.follow(lambda: iter("ab"))
    next(older)
    assert (order.epoch, order.batch) == (0, 1)
    order.begin()
    assert list(older) == ["b"]
    assert (order.epoch, order.batch) == (1, 0)
    order.set_next(4, 2)
    assert next(older, None) is None
    assert (order.epoch, order.batch) == (4, 2)


@pytest.mark.slow
def test_the_position_follows_the_latest_iterator():
    loader = loader_of(make_data())
    first = iter(loader)
    take(first, 2)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (0, 2)
    second = iter(loader)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 0)
    take(first, 3)
    take(second, 1)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 1)
    assert len(list(second)) == 9
    for _ in range(2):
        assert next(second, None) is None
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (2, 0)
    loader.set_epoch(7)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (7, 0)
    assert next(second, None) is None
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (7, 0)


class Backwards(SequentialSampler):
    def __iter__(self):
        return reversed(range(len(self.data_source)))


@pytest.mark.parametrize("batches", [SLOW(False), True])
def test_a_sampler_of_the_users_is_asked_again(batches):
    data, order = make_data(), Backwards(range(150))
    options = {"batch_sampler": BatchSampler(order, 16, False), "batch_size": 1} if batches else {"sampler": order}
    whole = ids(loader_of(data, **options))
    assert whole[0][2] == list(range(149, 133, -1))
    loader = loader_of(data, **options)
    take(iter(loader), 4)
    other = loader_of(data, **options)
    other.load_state_dict(loader.state_dict())
    assert ids(other) == whole[4:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 8}, "state: expected a loader with batch_size=16, found batch_size=8"),
        ({"shuffle": True}, "state: expected a loader with order='input', found order='shuffled'"),
        ({"replace": True}, "state: expected a loader with replace=False, found replace=True"),
        ({"drop_last": True}, "state: expected a loader with drop_last=False, found drop_last=True"),
    ],
)
def test_another_loader_is_refused(change, message):
    data = make_data()
    with pytest.raises(ValueError, match=message):
        loader_of(data, **change).load_state_dict(loader_of(data).state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: None, "state: expected what state_dict.. returned .format 3., found NoneType"),
        (lambda state: {**state, "format": 2}, "format 3., found format 2"),
        (lambda state: {**state, "epoch": -1}, "state: expected a number as epoch, found -1"),
        (lambda state: {**state, "batch": -1}, "state: expected a number as batch, found -1"),
        (lambda state: {**state, "epoch": True}, "state: expected a number as epoch, found True"),
        (lambda state: {**state, "batch": "3"}, "state: expected a number as batch, found '3'"),
        (lambda state: {**state, "inputs": 3}, "state: expected a loader with inputs=3, found inputs=150"),
    ],
)
def test_what_is_no_state_is_refused(change, message):
    loader = loader_of(make_data())
    before = loader.state_dict()
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict(change(before))
    assert loader.state_dict() == before


def test_other_inputs_and_graphs_are_refused():
    state = loader_of(make_data()).state_dict()
    with pytest.raises(ValueError, match="state: expected a loader with key_of_inputs="):
        NeighborLoader(make_data(), [3, 2], torch.arange(1, 151), batch_size=16).load_state_dict(state)
    with pytest.raises(ValueError, match="state: expected a loader with edges="):
        loader_of(make_data(200, 900)).load_state_dict(state)


def test_inputs_of_another_type_are_refused():
    data = make_hetero()
    first, other = (NeighborLoader(data, [2], (kind, torch.arange(3))) for kind in (PAPER, "author"))
    assert first.state_dict()["key_of_inputs"] == other.state_dict()["key_of_inputs"]
    with pytest.raises(
        ValueError, match=r"^state: expected a loader with input_type='paper', found input_type='author'$"
    ):
        other.load_state_dict(first.state_dict())


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32])
@pytest.mark.parametrize("of_links", [False, True])
def test_other_times_of_inputs_are_refused(of_links, dtype):
    data = make_data()
    data.time = torch.arange(data.num_nodes, dtype=dtype)

    def loader_at(times):
        if of_links:
            links, options = data.edge_index[:, :3], {"edge_label_time": times}
            return LinkNeighborLoader(data, [2], edge_label_index=links, time_attr="time", **options)
        return NeighborLoader(data, [2], torch.arange(3), input_time=times, time_attr="time")

    state = loader_at(torch.tensor([1, 2, 3], dtype=dtype)).state_dict()
    loader_at(torch.tensor([1, 2, 3], dtype=dtype)).load_state_dict(state)
    for other in (4, 3.5)[: 1 + dtype.is_floating_point]:
        with pytest.raises(ValueError, match="state: expected a loader with key_of_inputs="):
            loader_at(torch.tensor([1, 2, other], dtype=dtype)).load_state_dict(state)


@pytest.mark.parametrize("other", [None, "worth"])
def test_weights_of_one_relation_are_told_from_none_and_from_others(other):
    data, options = make_hetero(), {"input_nodes": PAPER, "batch_size": 8, "seed": 1}
    data[CITES].part = torch.ones(data[CITES].num_edges)
    data[CITES].worth = torch.rand(data[CITES].num_edges)
    weighted = NeighborLoader(data, [2], weight_attr="part", **options)
    text = f"^state: expected a loader with weight_attr={other!r}, found weight_attr='part'$"
    with pytest.raises(ValueError, match=text):
        weighted.load_state_dict(NeighborLoader(data, [2], weight_attr=other, **options).state_dict())


def test_directions_are_told_apart():
    samplers = [NeighborSampler(make_data(), [2], sample_direction=way) for way in ("forward", "backward")]
    forward, backward = (
        NeighborLoader(make_data(), [2], torch.arange(150), batch_size=16, neighbor_sampler=sampler, seed=1)
        for sampler in samplers
    )
    text = "^state: expected a loader with sample_direction='forward', found sample_direction='backward'$"
    with pytest.raises(ValueError, match=text):
        backward.load_state_dict(forward.state_dict())


# Training ############################################################################################################


@pytest.fixture(scope="module")
def task():
    return NodeTask.from_data("small", planted(2000, num_classes=4, num_features=16, seed=0))


class Stopped(Exception):
    pass


def trainer_of(task, folder, **changes):
    config = NodeConfig(**{"hidden": 16, "fanouts": [4, 3], "batch_size": 64, "epochs": 3, **changes})
    return NodeTrainer(task, config, folder, quiet=True, checkpoint_every=3)


def weights(trainer):
    return trainer.model.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("after", [2, 3, 7, 16, 20])
def test_resumed_training_ends_with_the_same_weights(task, tmp_path, one_thread, workers, after):
    expected = trainer_of(task, None, num_workers=workers)
    summary = expected.run(silent)
    stopped = trainer_of(task, tmp_path, num_workers=workers)
    assert not stopped.resume()
    steps = 0

    def stop(*_):
        nonlocal steps
        steps += 1
        if steps == after:
            raise Stopped

    handle = stopped.optimizer.register_step_post_hook(stop)
    with pytest.raises(Stopped):
        stopped.run(silent)
    handle.remove()
    torch.manual_seed(after)
    resumed = trainer_of(task, tmp_path, num_workers=workers)
    assert resumed.resume() == (after > 3)
    found = resumed.run(silent)
    assert all(torch.equal(value, weights(expected)[name]) for name, value in weights(resumed).items())
    assert [entry["loss"] for entry in found["history"]] == [entry["loss"] for entry in summary["history"]]
    assert (found["val"], found["test"]) == (summary["val"], summary["test"])


@pytest.mark.slow
def test_a_finished_run_takes_more_epochs(task, tmp_path, one_thread):
    expected = trainer_of(task, None).run(silent)
    trainer_of(task, tmp_path, epochs=1).run(silent)
    longer = trainer_of(task, tmp_path)
    assert longer.resume()
    found = longer.run(silent)
    assert [entry["loss"] for entry in found["history"]] == [entry["loss"] for entry in expected["history"]]
    again = trainer_of(task, tmp_path)
    assert again.resume()
    assert again.run(silent)["test"] == found["test"]


@pytest.mark.slow
def test_another_run_is_refused(task, tmp_path):
    trainer_of(task, tmp_path, epochs=1).run(silent)
    with pytest.raises(ValueError, match=r"checkpoint.pt: expected lr=0.5, found 0.005"):
        trainer_of(task, tmp_path, lr=0.5).resume()


@pytest.mark.slow
def test_kill_at_any_moment(task, tmp_path):
    task.save(tmp_path / "task")
    code = "import sys, torch; torch.set_num_threads(1); from torch_gnnscale.cli import main; main(sys.argv[1:])"
    command = [code, "train", "--dataset", str(tmp_path / "task"), "--hidden", "16", "--fanouts", "4", "3",
               "--batch-size", "64", "--epochs", "4", "--checkpoint-every", "1", "--resume"]  # fmt: skip

    def to_its_end(folder):
        done = forked.run(*command, "--out", str(folder))
        assert done.returncode == 0, done.stderr

    to_its_end(tmp_path / "whole")
    generator, folder, killed = random.Random(0), tmp_path / "killed", 0
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for _ in range(20 if os.environ.get("GNNSCALE_SOAK") == "1" else 3):
        process = forked.start(*command, "--out", str(folder), out=nowhere, err=nowhere)
        start = time.time()
        file = folder / CHECKPOINT
        while process.is_alive() and not (file.exists() and file.stat().st_mtime > start):
            time.sleep(0.005)
        time.sleep(generator.uniform(0, 0.3))
        killed += process.is_alive()
        process.kill()
        process.join()
        torch.load(file, weights_only=True)
    assert killed > 0
    os.close(nowhere)
    to_its_end(folder)
    whole, other = (torch.load(tmp_path / name / CHECKPOINT, weights_only=True) for name in ("whole", "killed"))
    assert all(torch.equal(value, other["model"][name]) for name, value in whole["model"].items())
    assert [entry["loss"] for entry in whole["history"]] == [entry["loss"] for entry in other["history"]]


@pytest.mark.parametrize("options", [{}, {"prefetch": 0}, {"bulk": 3}, SLOW(processes(1))], ids=str)
def test_an_iterator_that_has_ended_no_longer_moves_the_position(options):
    loader = loader_of(make_data(), **options)
    iterator = iter(loader)
    list(iterator)
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 0)
    for _ in range(3):
        assert next(iterator, None) is None
        assert loader.state_dict() == state
