"""Split batches that are drawn on a GPU, which two ranks share, and models on them: as on CPUs."""

import warnings
from contextlib import contextmanager
from functools import partial
from threading import local
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg_nn
from helpers.cluster import cluster
from helpers.slow import SLOW
from helpers.split import (
    GivenPlan,
    batches_of_rank,
    batches_over_gloo,
    check_batches,
    comparable,
    expected_batches,
    loader_of,
    random_owners,
)
from helpers.split_training import check_weights, saved_plan, trained
from torch import distributed as dist
from torch_geometric.data import Data

from torch_gnnscale.comm.memory_transport import MemoryTransport
from torch_gnnscale.loader.execution import Execution, tensors_of
from torch_gnnscale.split import parallelize
from torch_gnnscale.split.rank_rows import ShuffleIndex

PLAN = GivenPlan(random_owners(200, 2), 2)
EXACT = {"rtol": 1e-12, "atol": 1e-12}

# Batches #############################################################################################################


@pytest.mark.parametrize("options", [
    SLOW({}), {"bulk": 1}, SLOW({"prefetch": 0}), {"method": "ladies", "num_neighbors": [30, 20]},
    SLOW({"method": "labor"}), SLOW({"seed_order": "owned"}), SLOW({"replace": True}),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("rows_on", [SLOW("cpu"), "device"])
def test_batches_equal_the_cpu_s(device, rows_on, options):
    check_batches(2, PLAN, {**options, "device": device, "rows_on": device if rows_on == "device" else "cpu"})


@pytest.mark.slow
def test_ranks_that_cannot_read_each_other_s_memory(device):
    check_batches(2, PLAN, {"device": device, "rows_on": device}, of_rank=batches_over_gloo)


def places(options):
    """Where the tensors of batches are, and how the loader's ranks exchange features."""
    loader = loader_of(PLAN, options)
    found = [
        {name: value.device.type for name, value in batch if isinstance(value, torch.Tensor)}
        | {"sent": batch.shuffle_index.sent.device.type, "known": batch.shuffle_index.knows_halo_of(batch.x)}
        for batch in loader
    ]
    of_gpus = loader._line.collator.source._transports.values()
    return found, [type(way).__name__ for way in of_gpus or [loader._sharing.steps.transport]]


@pytest.mark.slow
def test_all_of_a_batch_is_on_the_device(device):
    for found, ways in cluster(2).run(places, {"device": device, "rows_on": device}):
        assert ways == ["MemoryTransport"]
        for batch in found:
            assert batch.pop("known")
            assert {*batch.values()} == {device}
            assert {"x_halo", "x", "n_id", "e_id", "edge_index", "input_id", "sent"} <= batch.keys()


def over_tiers(options):
    """The features of batches from tiers, and what was expected."""
    loader, same = loader_of(PLAN, options), []
    data = loader_of(None, {}).data
    for batch in loader:
        where = options["tiers"]["device"]
        assert {batch.x.device.type, batch.x_halo.device.type} == {where}
        index = batch.to(where).shuffle_index  # what the CPU drew is moved, x is there
        same.append((torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()]), index.knows_halo_of(batch.x)))
    return same


@pytest.mark.slow
@pytest.mark.parametrize("sampled_on", ["cpu", "device"])
def test_features_in_tiers(device, sampled_on):
    tiers = {"device": device, **({"gpu": "30%"} if device == "cuda" else {})}
    for same in cluster(2).run(over_tiers, {"tiers": tiers, "device": device if sampled_on == "device" else "cpu"}):
        assert same == [(True, True)] * len(same)
        assert len(same) == 7


class Stream:
    """Stands for a stream: knows which events it waits for."""

    current = local()

    def __init__(self, *_):
        self.awaited = []

    def wait_event(self, event):
        self.awaited.append(event)

    def record_event(self):
        return Event(self)

    def synchronize(self):
        pass


class Event:
    """A moment of a stream."""

    def __init__(self, stream=None, enable_timing=False):
        self.stream = stream

    def record(self, stream):
        self.stream = stream

    def synchronize(self):
        pass

    def query(self):
        return True

    def elapsed_time(self, later):
        return 1000.0


TRAINING = Stream()


@contextmanager
def on(stream):
    before = getattr(Stream.current, "value", TRAINING)
    Stream.current.value = stream
    yield
    Stream.current.value = before


def noted(used, run, *given):
    used.add(torch.cuda.current_stream())
    return run(*given)


def on_streams(options):
    """The batches of an epoch; how many streams made them; whether each was awaited by the one that trains before it
    came; how long that was said to be idle. There is no GPU, so streams are the above."""
    used, ready = set(), []
    here = mock.patch.multiple(
        torch.cuda, Stream=Stream, Event=Event, stream=on,
        current_stream=lambda *_: getattr(Stream.current, "value", TRAINING),
    )  # fmt: skip
    loader = loader_of(PLAN, options)
    loader._execution = Execution(loader.bulk, torch.device("cuda", 0))
    source = loader._line.collator.source
    for name in ("needs", "read", "batch"):
        setattr(source, name, partial(noted, used, getattr(source, name)))
    found = []
    with here:
        for batch in loader:
            found.append(comparable(batch))
            ready.append(TRAINING.awaited[-1].stream in used and len(TRAINING.awaited) == len(found))
        TRAINING.awaited.clear()
        seconds = loader.seconds["stall"]
    return found, len(used), TRAINING in used, ready, seconds


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"bulk": 3}, {"prefetch": 0}], ids=str)
def test_batches_are_made_on_one_stream_beside_the_training(options):
    expected = expected_batches(PLAN, 1, 2, options)
    for rank, (found, streams, of_training, ready, stall) in enumerate(cluster(2).run(on_streams, options)):
        assert found == expected[rank][0]
        assert (streams, of_training) == (1, False)
        assert ready == [True] * len(found)
        assert stall >= len(found)


def test_the_rows_that_travel_are_kept_for_the_stream_that_trains():
    index = ShuffleIndex(2, 0, torch.arange(3), [[0], [3]], [[0], [0]])
    with mock.patch.object(torch.Tensor, "is_cuda", True, create=True):
        assert [entry is index.sent for entry in tensors_of(Data(shuffle_index=index))] == [True]


# Models ##############################################################################################################


def model_of():
    torch.manual_seed(0)
    return pyg_nn.GraphSAGE(3, 8, 2, 4, dropout=0.5, norm="BatchNorm").double()


def step(device, transport):
    """This rank's outputs, the gradients, and the transport, of a step of training on a batch."""
    loader = loader_of(PLAN, {"device": device, "rows_on": device})
    loader.data.x = loader.data.x.double()
    model = parallelize(model_of().to(device), transport=transport)
    batch = next(iter(loader))
    with warnings.catch_warnings():
        out = model(batch)
    F.cross_entropy(out, batch.y[: batch.batch_size] % 4, reduction="sum").backward()
    (way,) = model._connection.transports.values()
    grads = [parameter.grad.cpu() for parameter in model.parameters()]
    model.close()
    return out.detach().cpu(), grads, type(way).__name__


@pytest.mark.parametrize(("transport", "ways"), [
    SLOW("auto", {"MemoryTransport"}), ("memory", {"MemoryTransport"}), SLOW("gloo", {"RowTransport"}),
])  # fmt: skip
def test_outputs_and_gradients_equal_one_process_s(device, transport, ways):
    out, grads, _ = step("cpu", None)
    found = cluster(2).run(step, device, transport)
    torch.testing.assert_close(torch.cat([of_rank[0] for of_rank in found]).sort(0)[0], out.sort(0)[0], **EXACT)
    for _, theirs, way in found:
        assert way in ways
        torch.testing.assert_close(theirs, grads, **EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["auto", "gloo"])
def test_weights_equal_one_process_s(device, transport, tmp_path):
    plan = saved_plan(tmp_path, 2)
    expected = trained(plan, 1)
    check_weights(cluster(2).run(trained, plan, 1, 1, {"device": device}, "batch_norm", transport), expected)


def grows(device):
    """How many rows came wrong by batch, of more bytes than the first memory has, and whether it grew."""
    loader = loader_of(PLAN, {"device": device, "rows_on": device})
    loader.data.x = torch.arange(200.0, device=device)[:, None].repeat(1, 40_000)
    wrong = [int((batch.x != batch.n_id[:, None]).sum()) for batch in loader]
    (peers,) = [*loader._line.collator.source._transports.values()] or [loader._sharing.steps.transport]
    assert isinstance(peers, MemoryTransport)
    return wrong, len(peers._memories[dist.get_rank()].bytes) > 2 << 20


@pytest.mark.slow
def test_memory_grows(device):
    for wrong, grew in cluster(2).run(grows, device):
        assert sum(wrong) == 0
        assert grew


def same_batches(device):
    return batches_of_rank(PLAN, 1, {"device": device, "rows_on": device})


@pytest.mark.cuda
def test_one_process_draws_on_a_gpu():
    assert [same_batches("cuda")] == expected_batches(PLAN, 1, 1, {})
