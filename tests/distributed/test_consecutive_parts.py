"""Columns of consecutive ranks, such as those of a machine: every batch is the one that a single process makes."""

import functools

import pytest
from helpers.cluster import cluster
from helpers.parts import HERE, batches_of_rank, check_batches, expected_batches, homogeneous, loader_of_part
from torch import distributed as dist

from torch_gnnscale import partition
from torch_gnnscale.distributed import open_part

PARTS = {"consecutive": "parts"}
LADIES = {"method": "ladies", "num_neighbors": [12, 9]}
MODES = {
    "owned": ("replicated", {}, {}),
    "drop": ("replicated", {"uneven": "drop"}, {}),
    "serve": ("replicated", {"uneven": "serve", "batch_size": 7}, {}),
    "global": ("replicated", {"seed_order": "global"}, {}),
    "here": ("replicated", {}, HERE),
    "buffer": ("replicated", {}, {"buffer": 0.5}),
    "tiers": ("replicated", {}, {"tiers": {"host": "50%"}}),
    "edges in parts": ("partitioned", {}, {}),
    "edges in parts, global": ("partitioned", {"seed_order": "global", "bulk": 2}, {}),
    "ladies": ("partitioned", LADIES, {}),
    "ladies, global": ("partitioned", {**LADIES, "seed_order": "global", "bulk": 2}, {}),
    "fastgcn": ("partitioned", {"method": "fastgcn", "num_neighbors": [40, 30]}, {}),
}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Of a topology: (data, a directory of two parts)."""

    @functools.cache
    def of(topology):
        data, path = homogeneous(), tmp_path_factory.mktemp("parts") / "parts"
        partition.write(data, path, parts=2, method="random", topology=topology)
        return data, str(path)

    return of


@pytest.mark.slow
@pytest.mark.parametrize(("topology", "options", "kept"), MODES.values(), ids=MODES)
def test_batches_are_those_of_one_process(parts, topology, options, kept):
    data, path = parts(topology)
    expected = expected_batches(data, path, "nodes", 2, options, 4, "parts")
    assert expected != expected_batches(data, path, "nodes", 2, options, 4) or options.get("seed_order") == "global"
    check_batches(cluster(4).run(batches_of_rank, path, "nodes", 2, options, {**kept, **PARTS}), expected)


def seeds_of_rank(path):
    with open_part(path, **PARTS) as part:
        loader = loader_of_part(part, uneven="serve")
        return [node for batch in loader for node in batch.n_id[: batch.batch_size].tolist()]


def test_the_ranks_of_a_part_share_its_seeds(parts):
    data, path = parts("replicated")
    found = cluster(4).run(seeds_of_rank, path)
    assert sorted(node for of_rank in found for node in of_rank) == data.train_mask.nonzero().view(-1).tolist()
    assert all(found)


@pytest.mark.slow
def test_a_stage_has_what_its_ranks_open(parts, tmp_path):
    data, path = parts("replicated")
    kept = {"stage": str(tmp_path / "stage"), **PARTS}
    found = cluster(4).run(batches_of_rank, path, "nodes", 1, {}, kept)
    check_batches(found, expected_batches(data, path, "nodes", 1, {}, 4, "parts"))


def outcome(path, layouts, states):
    """The parts of the ranks, and what a loader over them says of its state, or of one of ``states``; or the error."""
    rank = dist.get_rank()
    try:
        with open_part(path, consecutive=layouts[rank % len(layouts)]) as part:
            loader = loader_of_part(part)
            if states is not None:
                loader.load_state_dict(states[rank])
            return part.ranks.part, loader.state_dict()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.slow
def test_states_of_another_layout_are_refused(parts):
    path = parts("replicated")[1]
    found = {layout: cluster(4).run(outcome, path, [layout], None) for layout in ("copies", "parts")}
    assert [part for part, _ in found["copies"]] == [0, 0, 1, 1]
    assert [part for part, _ in found["parts"]] == [0, 1, 0, 1]
    states = [state for _, state in found["parts"]]
    assert all(state == states[0] for state in states)
    assert cluster(4).run(outcome, path, ["parts"], states) == found["parts"]
    text = "ValueError: state: expected a loader with consecutive='parts', found consecutive='copies'"
    assert cluster(4).run(outcome, path, ["copies"], states) == [text] * 4


@pytest.mark.parametrize(
    ("layouts", "text"),
    [
        (["copies", "parts"], "expected the same on all ranks, found ['copies', 'parts']"),
        (["rows"], "expected one of ('copies', 'parts'), found 'rows'"),
    ],
)
def test_what_is_refused(parts, layouts, text):
    assert cluster(2).run(outcome, parts("replicated")[1], layouts, None) == [f"ValueError: consecutive: {text}"] * 2
