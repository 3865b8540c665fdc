"""What ranks of split batches do when one of them fails, leaves, differs or ends: all raise, and none waits."""

import contextlib
import gc
import os
import re
import signal
from dataclasses import replace
from unittest import mock

import pytest
import torch
from helpers.cluster import answers_without_one, cluster
from helpers.data import make_data, wait_for
from helpers.slow import NIGHTLY, SLOW
from helpers.split import (
    GivenPlan,
    comparable,
    expected_batches,
    first_batches,
    loader_of,
    outcomes_of,
    random_owners,
    rest_of,
    without_peers,
)
from torch import distributed as dist
from torch_geometric.sampler import NodeSamplerInput

from torch_gnnscale import LayerSampler, NeighborLoader, NeighborSampler
from torch_gnnscale.comm.memory_transport import MemoryTransport
from torch_gnnscale.split.cut_sampler import SplitSampler

PLAN = GivenPlan(random_owners(200, 2), 2)


# Positions and states ################################################################################################


def keys_of(batches):
    return [batch["batch_key"] for batch in batches]


@pytest.mark.parametrize("world", [2, SLOW(3)])
@pytest.mark.parametrize("options", [{}, SLOW({"stores": True})])
def test_a_state_goes_on_with_other_ranks_and_another_plan(options, world):
    left = cluster(2).run(first_batches, PLAN, 3, options)
    (_, state), (_, of_other) = left
    assert state == of_other
    assert state["batch"] == 3
    whole = expected_batches(PLAN, 1, 1, options)[0][0]
    assert [rest_of(PLAN, state, options)] == [whole[3:]]
    plain = loader_of(None, options)
    assert plain.state_dict().keys() == state.keys()  # also one that is not split
    plain.load_state_dict(state)
    assert [batch.n_id[: batch.batch_size].tolist() for batch in plain] == [
        batch["n_id"][1][: batch["batch_size"]] for batch in whole[3:]
    ]
    other = GivenPlan(random_owners(200, world, seed=5), world, "other")
    found = cluster(world).run(rest_of, other, state, options)
    assert found == [epochs[0][3:] for epochs in expected_batches(other, 1, world, options)]


@pytest.mark.slow
def test_a_state_goes_on_with_groups_of_ranks():
    (_, state), *_ = cluster(4).run(first_batches, PLAN, 2, {})
    assert state["batch"] == 4
    found = cluster(2).run(rest_of, PLAN, state, {})
    assert found == [epochs[0][4:] for epochs in expected_batches(PLAN, 1, 2, {})]


def leaves_and_goes_on(count):
    loader = loader_of(PLAN, {})
    for number, _ in enumerate(loader, 1):
        if number == count:
            break
    return [keys_of(map(comparable, loader)) for _ in range(2)]


@pytest.mark.slow
def test_ranks_leave_together():
    found = cluster(2).run(leaves_and_goes_on, 3)
    epochs = expected_batches(PLAN, 3, 2, {})[0]
    assert found == [[keys_of(epochs[1]), keys_of(epochs[2])]] * 2


def one_leaves():
    iterator = iter(loader_of(PLAN, {"prefetch": 0}))
    next(iterator)
    if dist.get_rank() == 0:
        iterator.close()
        return None
    try:
        for _ in iterator:
            pass
    except RuntimeError as error:
        return str(error)
    return None


@pytest.mark.slow
def test_a_rank_that_leaves_alone():
    text = "rank 0 left the loop of epoch 0: all ranks must leave it after the same batch"
    assert cluster(2).run(one_leaves) == [None, text]


# Errors ##############################################################################################################


def outcomes(at):
    """What each batch of this rank came to; sampling fails on rank 1 at batch ``at``."""
    loader = loader_of(PLAN, {"prefetch": 1})
    draw, calls = loader._sampler.sampler.draw, iter(range(1000))

    def fails(batch):
        if dist.get_rank() == 1 and next(calls) == at:
            raise KeyError("no luck")
        draw(batch)

    loader._sampler.sampler.draw = fails
    return outcomes_of(loader)


@pytest.mark.slow
def test_an_error_of_one_rank_is_raised_on_all_and_the_next_batches_follow():
    first, second = cluster(2).run(outcomes, 2)
    assert second[2] == "KeyError: 'no luck'"
    assert first[2] == "RuntimeError: rank 1 failed to make batch 2: KeyError: 'no luck'"
    keys = keys_of(expected_batches(PLAN, 1, 2, {})[0][0])
    assert [*first[:2], *first[3:]] == [*second[:2], *second[3:]] == [*keys[:2], *keys[3:]]


def unsendable_rows(by_peers):
    """What the first three batches came to; rank 1 cannot send the rows of the second one."""
    with contextlib.nullcontext() if by_peers else without_peers():
        loader = loader_of(PLAN, {"prefetch": 0})
    source = loader._line.collator.source
    needs = source.needs

    def changed(*given):
        found = needs(*given)
        if dist.get_rank() == 1 and next(numbers) == 1:
            found.moves.sent[0] = 1 << 40
        return found

    source.needs, numbers = changed, iter(range(1000))
    return outcomes_of(loader)


@pytest.mark.parametrize("by_peers", [True, False])
def test_rows_that_their_owner_cannot_send(by_peers):
    first, second = cluster(2).run(unsendable_rows, by_peers)
    how = "write" if by_peers else "read"
    told = f"RuntimeError: rows: expected those of rank 1, found that it could not {how} them"
    assert first[1] == f"{told}: {second[1]}"
    assert second[1].startswith("IndexError: ")
    keys = keys_of(expected_batches(PLAN, 1, 2, {})[0][0])
    assert [first[0], *first[2:]] == [second[0], *second[2:]] == [keys[0], *keys[2:]]


def unconnected():
    """What the loader came to; rank 1 fails after the first of the exchanges by which ranks connect."""

    def connect(exchange, *_, **__):
        exchange.objects(("this machine", "cpu"))
        raise KeyError("no luck")

    fails = mock.patch.object(MemoryTransport, "connect", connect) if dist.get_rank() == 1 else contextlib.nullcontext()
    with fails, pytest.raises((KeyError, RuntimeError)) as error:
        loader_of(PLAN, {"prefetch": 0, "timeout": 60})
    return f"{error.type.__name__}: {error.value}"


def test_a_rank_that_cannot_connect_is_named():
    assert cluster(2).run(unconnected) == ["RuntimeError: rank 1: KeyError: 'no luck'", "KeyError: 'no luck'"]


def falsified(plan, at, levels):
    """What each batch of this rank came to; a transform says that rank 1 sends rank 0 other rows of batch ``at``."""

    def transform(out):
        if dist.get_rank() == 1 and next(calls) == at:
            index = out.fields["shuffle_index"]
            sent = [[count + more for count, more in zip(index.num_sent[0], levels, strict=True)], *index.num_sent[1:]]
            out.fields["shuffle_index"] = replace(index, num_sent=sent)
        return out

    calls = iter(range(1000))
    return outcomes_of(loader_of(plan, {"prefetch": 1, "timeout": 20, "transform_sampler_output": transform}))


@pytest.mark.parametrize("levels", [SLOW((0, -1)), (1, -1)], ids=["fewer", "other levels"])
@pytest.mark.parametrize("world", [SLOW(2), 3, SLOW(4)])
def test_rows_of_a_halo_that_two_ranks_do_not_expect_alike(world, levels):
    """In the last case, the other two ranks make another batch."""
    parts = min(world, 3) if world < 4 else 2
    plan = GivenPlan(random_owners(200, parts), parts)
    expected = cluster(world).run(falsified, plan, -1, levels)
    found = cluster(world).run(falsified, plan, 2, levels)
    assert [entry[:2] + entry[3:] for entry in found] == [entry[:2] + entry[3:] for entry in expected]
    own = [entry[2] for entry in found[:parts]]
    assert len(set(own)) == 1
    assert re.fullmatch(
        r"ValueError: split: batch: expected \[\d+, \d+\] rows by level from part 1 for part 0, found others", own[0]
    )
    assert all(entry[2].startswith("RuntimeError: rank 0 failed to make batch") for entry in found[parts:])


def differing(what):
    """The error of a loader for which rank 1 has another ``what``."""
    second, plan, options = dist.get_rank() == 1, PLAN, {"batch_size": 10}
    data = make_data()
    if second and what == "plan":
        plan = GivenPlan(random_owners(200, 2, seed=9), 2, "other")
    if second and what == "batch_size":
        options["batch_size"] = 12
    if second and what == "parts":
        plan = GivenPlan(torch.zeros(200, dtype=torch.int32), 1)
    if second and what == "nodes":
        plan = GivenPlan(random_owners(150, 2), 2)
    if second and what == "too many parts":
        plan = GivenPlan(random_owners(200, 3), 3)
    if second and what == "layers":
        options["layers"] = True
    if second and what == "edges":
        data.edge_index = data.edge_index.flip(1)[:, torch.randperm(1500)]
    if second and what == "features":
        data.x = data.x.float()
    try:
        next(iter(NeighborLoader(data, [3, 2], torch.arange(60), seed=1, split=plan, **options)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


DIFFERENCES = {
    "plan": "ValueError: split plan: expected the same on all ranks, found ['given', 'other']",
    "parts": "ValueError: parts of the split plan: expected the same on all ranks, found [2, 1]",
    "batch_size": "ValueError: batch_size: expected the same on all ranks, found [10, 12]",
    "features": "ValueError: bytes of a row of x: expected the same on all ranks of a batch, found [24, 12]",
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_ranks_that_differ(what):
    assert cluster(2).run(differing, what) == [DIFFERENCES[what]] * 2


REFUSED = {
    "nodes": "ValueError: split: expected a plan of 200 nodes, found one of 150",
    "too many parts": "ValueError: ranks: expected a multiple of 3 parts, found 2 ranks",
    "layers": "NotImplementedError: layers=True with split parallelism is not implemented",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_one_rank_refuses_is_told_to_all(what):
    assert cluster(2).run(differing, what) == [f"ValueError: rank 1: {REFUSED[what]}", REFUSED[what]]


def seeds_out_of_range():
    """The error of a loader whose seeds are out of range on rank 1."""
    seeds = torch.tensor([200 if dist.get_rank() == 1 else 199])
    try:
        NeighborLoader(make_data(), [3, 2], seeds, seed=1, split=PLAN)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    gc.collect()
    return text


def test_a_rank_that_makes_no_loader_is_named():
    found = cluster(2).run(seeds_out_of_range)
    text = "IndexError: input_nodes[0] = 200 is out of range: expected nodes in [0, 200)"
    assert found == [f"ValueError: rank 1: {text}", text]


@pytest.mark.slow
def test_ranks_with_other_edges():
    found = cluster(2).run(differing, "edges")
    assert len(set(found)) == 1
    assert re.fullmatch(r"ValueError: (number|sum) of \w+: expected the same on all ranks of a batch, found \[.*\]",
                        found[0])  # fmt: skip


def iterates(plan):
    loader = loader_of(plan, {"timeout": 20})
    for _ in range(100_000):
        for _ in loader:
            pass


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, NIGHTLY(signal.SIGSTOP)])
def test_a_rank_that_is_killed_or_stopped_ends_the_others(number):
    [(returned, text)] = answers_without_one(2, number, (first_batches, PLAN, 1, {}), (iterates, PLAN), 3)
    assert not returned
    assert "rank 1 is gone or does not answer" in text


# Fields and options ##################################################################################################


def test_weights_have_the_name_that_the_sampler_says():
    sampler = LayerSampler(make_data(), [9, 9], method="ladies", weight_name="share")
    loader = NeighborLoader(make_data(), [9, 9], batch_size=50, seed=1, split=PLAN, neighbor_sampler=sampler)
    assert "share" in next(iter(loader))


class Marking(NeighborSampler):
    """Its samples have a field of their own."""

    def sample_from_nodes(self, inputs, key=None):
        out = super().sample_from_nodes(inputs, key)
        out.fields["mark"] = len(out.node)
        return out


def test_fields_of_the_sampler_are_those_of_each_part():
    sampler = Marking(make_data(), [3, 2])
    inputs = NodeSamplerInput(None, torch.arange(9))
    whole = sampler.sample_from_nodes(inputs, 5)
    for part in range(2):
        out = SplitSampler(sampler, PLAN.owners, 2, part).sample_from_nodes(inputs, 5)
        assert (out.fields["mark"], out.fields["global_batch_size"]) == (len(whole.node), 9)


def three_parts_for_two_ranks():
    try:
        loader_of(GivenPlan(random_owners(200, 3), 3), {})
    except ValueError as error:
        return str(error)
    return None


def test_parts_that_do_not_fit_the_ranks():
    found = cluster(2).run(three_parts_for_two_ranks)
    assert found == ["ranks: expected a multiple of 3 parts, found 2 ranks"] * 2


def test_workers_mean_threads():
    with pytest.warns(UserWarning, match="num_workers=2: threads prepare the batches"):
        loader = NeighborLoader(make_data(), [3, 2], batch_size=50, seed=1, split=PLAN, num_workers=2)
    assert len(list(loader)) == 4


def drop_loaders(count):
    """Drops so many loaders, each in its first epoch."""
    for _ in range(count):
        next(iter(loader_of(PLAN, {})))
        gc.collect()


def open_files():
    return len(os.listdir("/proc/self/fd"))


def drops():
    drop_loaders(2)
    few = open_files()
    drop_loaders(8)
    wait_for(lambda: open_files() <= few + 2)  # threads take a moment to end


@pytest.mark.slow
def test_dropped_loaders_leave_no_files_open():
    cluster(2).run(drops)
