"""A part's own rows of several types in tiers: one budget for all types, and scores by type."""

import functools
import re

import pytest
import torch
from helpers.cluster import cluster
from helpers.hetero import AUTHOR, PAPER, VENUE, make_hetero
from helpers.parts import batches_of_rank, check_batches, expected_batches
from helpers.slow import quick
from helpers.tiers import scores_by_part

from torch_gnnscale import partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.feature import hotness


@pytest.fixture(scope="module")
def typed_parts(tmp_path_factory):
    """typed_parts(K, topology): (data, directory of K random parts of a graph with types), written once."""

    @functools.cache
    def of(count, topology="replicated"):
        data, path = make_hetero(), tmp_path_factory.mktemp("parts") / "parts"
        data[AUTHOR].x = data[AUTHOR].x.repeat(1, 20)
        splits = {"train": (PAPER, torch.arange(0, 40, 2))}
        partition.write(data, path, parts=count, method="random", splits=splits, topology=topology)
        return data, str(path)

    return of


TYPED_SCORES = {PAPER: torch.arange(40), AUTHOR: torch.arange(25) * 2, VENUE: torch.ones(5)}
TYPED_TIERS = {
    "memory": {},
    "memory and files": {"host": "40%"},
    "out-degrees": {"host": 2000, "hotness": "out_degree"},
    "scores": {"host": "50%", "hotness": TYPED_SCORES},
    "labelled": {"host": "40%", "labelled": {AUTHOR: torch.arange(3), PAPER: torch.arange(40) < 5}},
}


@pytest.mark.parametrize("tiers", quick(TYPED_TIERS, "memory and files"))
def test_batches_of_types_are_those_of_one_process(typed_parts, tiers):
    data, path = typed_parts(2)
    found = cluster(2).run(batches_of_rank, path, "nodes", 1, {}, {"tiers": tiers})
    check_batches(found, expected_batches(data, path, "nodes", 1, {}, 2))


@pytest.mark.slow
def test_types_of_one_part_share_one_budget(typed_parts):
    path = typed_parts(1)[1]
    with open_part(path, tiers={"host": 3000, "hotness": TYPED_SCORES}) as part:
        tiers = part.features.tiers
        assert {*tiers.plan} == {PAPER, AUTHOR, VENUE}
        assert {tier.name for tier in tiers.plan.tiers} == {"host", "disk"}
        assert sum(tiers.plan[t].rows("host") * tiers.plan[t].row_bytes for t in tiers.plan) <= 3000
        for node_type in tiers.plan:
            hottest = TYPED_SCORES[node_type].argsort(descending=True, stable=True)
            before = tiers.stats_by_type()[node_type]
            part.features[node_type, "x", hottest[: tiers.plan[node_type].rows("host")]]
            after = tiers.stats_by_type()[node_type]
            assert "disk" not in after or after["disk"].rows == before["disk"].rows
        assert [key for key in tiers.rows_by_attribute() if isinstance(key[0], tuple)] == []


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
@pytest.mark.parametrize("name", hotness.NAMES)
def test_scores_of_types(typed_parts, name, topology):
    data, path = typed_parts(2, topology)
    with partition.open_parts(path) as opened:
        users = [opened.part(number).user_ids for number in range(2)]
    data[PAPER].train_mask = torch.zeros(40, dtype=torch.bool)
    data[PAPER].train_mask[::2] = True
    for number, of_part in enumerate(users):
        within = data if topology == "replicated" else data.subgraph(of_part)
        expected = hotness.scores_of(within, name)
        for node_type, ids in of_part.items():
            found = scores_by_part(path, node_type, hotness=name)[number]
            of_type = expected[node_type]
            torch.testing.assert_close(found, of_type[ids] if topology == "replicated" else of_type)


@pytest.mark.parametrize(
    ("tiers", "error", "message"),
    [
        ({"hotness": torch.ones(3)}, TypeError, "hotness: expected scores by node type, or a name, found Tensor"),
        ({"hotness": {"zz": torch.ones(3)}}, ValueError, "hotness: expected types among ['paper', 'author', 'venue']"),
        ({"hotness": {PAPER: torch.ones(40)}}, ValueError, "hotness: expected scores of the nodes of 'author', found"),
        ({"hotness": TYPED_SCORES | {VENUE: torch.ones(3)}}, ValueError,
         "hotness: expected 5 scores of the nodes of 'venue', found shape (3,)"),
        ({"hotness": TYPED_SCORES | {VENUE: 3}}, ValueError,
         "hotness: expected 5 scores of the nodes of 'venue', found int"),
        ({"labelled": torch.arange(3)}, TypeError, "labelled: expected a mapping by node type, found Tensor"),
        ({"labelled": {"zz": torch.arange(3)}}, ValueError, "labelled: expected types among ['paper', 'author', "),
        ({"labelled": {VENUE: torch.tensor([5])}}, IndexError, "labelled[0] = 5 is out of range: expected nodes in [0"),
    ],
)  # fmt: skip
def test_what_is_refused_of_types(typed_parts, tiers, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        open_part(typed_parts(1)[1], tiers=tiers)
