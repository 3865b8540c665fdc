"""What headers of steps tell: ranks that came to differ after their loaders were made, and batches that failed after
their steps."""

import pytest
from helpers.cluster import cluster
from helpers.disturbed import results_of
from helpers.parts import HERE, as_plain, loader_of_part, traffic_of_an_epoch
from helpers.slow import SLOW, quick
from torch import distributed as dist

from torch_gnnscale.distributed import open_part

KEPT = [pytest.param({}, id=""), SLOW(HERE, id="here")]
NO_LUCK = "RuntimeError: rank 1 failed to make batch 1: KeyError: 'no luck'"


def of_another_seed(loader):
    loader.load_state_dict({**loader.state_dict(), "seed": 4})


def within_the_epoch(loader):
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "batch": 2})


def of_another_epoch(loader):
    loader.set_epoch(7)


def with_replacement(loader):
    loader._sampler.replace = True


ALONE = {
    of_another_seed: "seed: expected the same on all ranks, found [3, 4]",
    within_the_epoch: "loader: expected all ranks at the same epoch, found [1, 0]",
    of_another_epoch: "loader: expected all ranks at the same epoch, found [1, 7]",
    with_replacement: "replace: expected the same on all ranks, found [False, True]",
}


def changed_on_one_rank(path, change, kept):
    """The error of the epoch after rank 1 changed its loader by itself, and the batches after all did so."""
    with open_part(path, **kept) as part:
        loader = loader_of_part(part)
        list(loader)
        if dist.get_rank() == 1:
            change(loader)
        try:
            next(iter(loader))
        except ValueError as error:
            found = str(error)
        change(loader)
        loader.load_state_dict({**loader.state_dict(), "epoch": 1, "batch": 0})
        return found, [as_plain(batch) for batch in loader]


def changed_on_all(path, change):
    with open_part(path) as part:
        loader = loader_of_part(part)
        change(loader)
        loader.load_state_dict({**loader.state_dict(), "epoch": 1, "batch": 0})
        return [as_plain(batch) for batch in loader]


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize(
    "change", quick({change.__name__: change for change in ALONE}, "within_the_epoch", "with_replacement")
)
def test_a_loader_that_was_changed_on_one_rank_is_found_in_the_next_step(parts, change, kept):
    found = cluster(2).run(changed_on_one_rank, parts, change, kept)
    assert found == [(ALONE[change], batches) for batches in cluster(2).run(changed_on_all, parts, change)]


def resumed_on_one_rank(path):
    """Rank 1 goes back to the first batch of the epoch that all have left after the second one."""
    with open_part(path) as part:
        loader = loader_of_part(part)
        states = []
        iterator = iter(loader)
        for _ in range(2):
            states.append(loader.state_dict())
            next(iterator)
        del iterator
        loader.load_state_dict(states[1 - dist.get_rank()])
        next(iter(loader))


@pytest.mark.slow
def test_a_state_of_another_batch_is_found_in_the_next_step(parts):
    text = "ValueError: loader: expected all ranks at the same first batch, found [2, 0]"
    assert cluster(2).results(resumed_on_one_rank, parts) == [(False, text)] * 2


@pytest.mark.parametrize(("world", "each"), [(2, [64 + 2 * 8]), SLOW(4, [64 + 2 * 8, 16])])
def test_headers_of_a_step(parts, world, each):
    """One with the counts of nodes and of edges; with copies of parts, another one after the rows."""
    for steps, traffic in cluster(world).run(traffic_of_an_epoch, parts, {}):
        sizes = {name: (found["headers"], found["header_bytes"]) for name, found in traffic.items()}
        headers = steps * len(each), steps * (world - 1) * sum(each)
        assert sizes == {"headers": headers, "ids": (0, 0), "rows": (0, 0)}


# Batches that fail after their steps ##################################################################################


def fails(loader, where, at):
    """Makes the loader fail for its batch ``at``, whose rows have come by then."""

    def unlucky(run):
        def called(value):
            if next(calls) == at:
                raise KeyError("no luck")
            return run(value)

        return called

    calls = iter(range(1000))
    if where == "transform":
        loader.transform = unlucky(lambda batch: batch)
    elif where == "collate":
        collator = loader._line.collator
        collator.collate = unlucky(collator.collate)
    else:
        buffer = next(filter(None, loader._line.collator.source.buffers._buffers))
        buffer.take = unlucky(buffer.take)


def goes_on_after_an_error(path, where, bad_rank, prefetch, kept):
    with open_part(path, **kept) as part:
        loader = loader_of_part(part, prefetch=prefetch)
        if dist.get_rank() == bad_rank:
            fails(loader, where, 0)
        return results_of(loader)


@pytest.mark.parametrize("prefetch", [SLOW(0), 2])
@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("transform", {}),
        SLOW("collate", {}),
        SLOW("transform", HERE),
        SLOW("collate", HERE),
        SLOW("buffer", {"buffer": 0.5}),
        SLOW("buffer", {"buffer": 0.5, "policy": "static"}),
    ],
)
def test_an_error_after_a_step_is_raised_on_all_ranks_in_a_later_one_and_the_next_batches_follow(
    parts, where, prefetch, kept
):
    whole = cluster(2).run(goes_on_after_an_error, parts, where, -1, 0, {})
    found = cluster(2).run(goes_on_after_an_error, parts, where, 1, prefetch, kept)
    told = found[0].index(NO_LUCK)
    assert 1 <= told <= 1 + prefetch
    assert found[1][0] == "KeyError: 'no luck'"
    for rank in range(2):
        as_whole = list(whole[rank])
        as_whole[told] = NO_LUCK
        assert found[rank][rank:] == as_whole[rank:]


@pytest.mark.slow
def test_such_an_error_is_raised_in_all_columns(parts):
    whole = cluster(4).run(goes_on_after_an_error, parts, "transform", -1, 0, {})
    found = cluster(4).run(goes_on_after_an_error, parts, "transform", 1, 0, {})
    assert [of_rank[1] for of_rank in found] == [NO_LUCK] * 4
    assert [of_rank[2:] for of_rank in found] == [of_rank[2:] for of_rank in whole]


def leaves_after_an_error(path, bad_rank, at, prefetch):
    """How many batches came in each of two epochs, and the error after them."""
    found = []
    with open_part(path) as part:
        loader = loader_of_part(part, prefetch=prefetch)
        if dist.get_rank() == bad_rank:
            fails(loader, "transform", at)
        for _ in range(2):
            number, text = 0, None
            try:
                for _ in loader:
                    number += 1
            except (KeyError, RuntimeError, ValueError) as error:
                text = f"{type(error).__name__}: {error}"
            found.append((number, text))
    return found


@pytest.mark.slow
def test_if_such_an_error_ends_a_rank_s_loop_the_others_are_told_in_the_next_step(parts):
    left = "ValueError: loader: expected all ranks at the same batch after which they left the last iteration "
    first, second = cluster(2).run(leaves_after_an_error, parts, 1, 0, 0)
    assert first[0] == (1, NO_LUCK)
    assert second[0] == (0, "KeyError: 'no luck'")
    assert first[1] == second[1] == (0, f"{left}(-1: all), found [2, 1]")


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [0, 10])
def test_if_no_step_is_left_they_are_told_in_the_next_iteration(parts, prefetch):
    told = NO_LUCK.replace("batch 1", "batch 9")
    first, second = cluster(2).run(leaves_after_an_error, parts, 1, 4, prefetch)
    assert first[0] == (5, None)
    assert second[0] == (4, "KeyError: 'no luck'")
    assert first[1] == second[1] == (0, told)
