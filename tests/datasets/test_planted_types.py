"""Generated graphs of several node types, links and events."""

import zlib

import numpy as np
import pytest
import torch
from helpers.refused import refuses
from torch_geometric.data import HeteroData

from torch_gnnscale.datasets import load_events, planted, planted_events, planted_links, planted_types
from torch_gnnscale.datasets.planted import with_reverses


@pytest.mark.parametrize("make", [planted_types, lambda **kw: planted_links(**kw)[0], planted_events])
def test_generated_graphs_are_functions_of_their_seed(make):
    first, second, other = make(seed=3), make(seed=3), make(seed=4)
    for store in first.stores:
        for name, value in store.items():
            again = second[store._key][name]
            assert torch.equal(value, again) if isinstance(value, torch.Tensor) else value == again
    for src, rel, dst in first.edge_types:
        assert not torch.equal(first[src, rel, dst].edge_index, other[src, rel, dst].edge_index)
        if not rel.startswith("rev_"):
            reverse = first[dst, f"rev_{rel}", src].edge_index
            assert torch.equal(first[src, rel, dst].edge_index, reverse.flip(0))


def test_a_reverse_that_is_there_is_kept_and_gets_none():
    data = HeteroData()
    data["u"].num_nodes = data["i"].num_nodes = 3
    own = {("u", "r", "i"): [[0], [1]], ("i", "rev_r", "u"): [[2], [2]], ("u", "s", "i"): [[1], [0]]}
    own["u", "rev_alone", "i"] = [[0], [2]]
    for edge_type, edges in own.items():
        data[edge_type].edge_index = torch.tensor(edges)
    found = {edge_type: edges.tolist() for edge_type, edges in with_reverses(data).edge_index_dict.items()}
    assert found == {**own, ("i", "rev_s", "u"): [[0], [1]], ("i", "rev_rev_alone", "u"): [[2], [0]]}


def test_planted_types_has_what_it_promises():
    data = planted_types(2000, 6000, 40, 8, homophily=0.7, seed=1)
    papers, authors = data["paper", "written_by", "author"].edge_index
    assert papers.tolist() == torch.arange(6000).repeat_interleave(3).tolist()
    classes = data["author"].y[authors].view(-1, 3)
    together = (classes[:, 0] == classes[:, 1]).float().mean()
    assert abs(together - (0.7**2 + (1 - 0.7**2) / 8)) < 0.03
    masks = torch.stack([data["author"][f"{part}_mask"] for part in ("train", "val", "test")])
    assert masks.sum(1).tolist() == [400, 400, 1200]


def test_planted_links_are_no_repeats_in_three_parts():
    data, links = planted_links(500, 300, 9000, 10, seed=1)
    pairs = torch.cat([part[0] * 300 + part[1] for part in links.values()])
    assert pairs.unique().numel() == pairs.numel()
    assert torch.equal(data["user", "chooses", "item"].edge_index, links["train"])
    assert [name for name in links] == ["train", "val", "test"]
    bounds = [int(pairs.numel() * share) for share in (0.7, 0.7 + 0.1)]
    assert [links["train"].size(1), links["val"].size(1)] == [bounds[0], bounds[1] - bounds[0]]


def test_planted_events_repeat_themselves():
    data = planted_events(200, 1000, 20_000, 10, loyalty=0.5, seed=1)
    users, pages = data["user", "visits", "page"].edge_index
    time = data["user", "visits", "page"].time
    assert (time.diff() >= 0).all()
    seen, repeats, among = set(), 0, 0
    last = {}
    for user, page in zip(users.tolist(), pages.tolist(), strict=True):
        if user in last:
            among += 1
            repeats += last[user] == page
        last[user] = page
        seen.add((user, page))
    assert 0.25 < repeats / among < 0.45  # half of a half, what longer chains lead to, and chance
    assert len(seen) < 0.8 * len(time)


def test_users_repeat_their_own_events_alone():
    events = planted_events(50, 200, 2000, 10, homophily=1.0, loyalty=1.0, seed=1)["user", "visits", "page"]
    users, pages = events.edge_index
    communities = [set((pages[users == user] % 10).tolist()) for user in range(50)]
    assert max(map(len, communities)) == 1
    assert len(set.union(*communities)) > 5


def test_events_are_divided_in_time():
    """70 % for training, 15 % for validation, and the rest."""
    events = load_events().events
    assert {name: (int(ids[0]), len(ids)) for name, ids in events.items()} == {
        "train": (0, 21_000), "val": (21_000, 4_500), "test": (25_500, 4_500),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: planted_types(num_venues=3), "num_venues: expected at least one per community .8., found 3"),
        (lambda: planted_links(num_items=3), "num_items: expected at least one per community .20., found 3"),
        (lambda: planted_events(num_pages=3), "num_pages: expected at least one per community .10., found 3"),
        (lambda: planted_links(split=(0.5, 0.5)), "split: expected two positive fractions"),
    ],
)
def test_generators_refuse(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_community_may_have_a_single_member():
    assert planted_types(50, 60, 8, 8)["venue"].num_nodes == 8
    assert planted_links(50, 20, 300)[0]["item"].num_nodes == 20
    assert planted_events(50, 10, 300)["page"].num_nodes == 10


@pytest.mark.parametrize("count", range(1, 9))
def test_papers_of_a_community_without_authors_have_authors_of_all(count):
    data = planted_types(count, 60, 8, 8, homophily=1.0, seed=count)
    papers, authors = data["paper", "written_by", "author"].edge_index
    assert papers.tolist() == torch.arange(60).repeat_interleave(3).tolist()
    assert set(authors.tolist()) == set(range(count))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (planted, "num_nodes"), (planted, "num_classes"), (planted_types, "num_authors"),
        (planted_types, "num_classes"), (planted_links, "num_users"), (planted_links, "num_communities"),
        (planted_events, "num_users"), (planted_events, "num_communities"),
    ],
)  # fmt: skip
def test_counts_of_none_are_refused_by_name(make, name):
    with refuses(ValueError, f"{name}: expected 1 <= {name} <= {2**62}, found 0"):
        make(**{name: 0})


SMALL_GRAPHS = {
    "planted": lambda seed: planted(300, 6, 4, 5, seed=seed),
    "planted_types": lambda seed: planted_types(60, 80, 9, 4, 5, seed=seed),
    "planted_links": lambda seed: planted_links(60, 50, 400, 5, seed=seed)[0],
    "planted_events": lambda seed: planted_events(40, 30, 500, 5, seed=seed),
}
DIGESTS = {
    "planted": 3316423788, "planted_types": 2217646757, "planted_links": 1154303839, "planted_events": 2490152013,
}  # fmt: skip


@pytest.mark.parametrize("seed", [7, np.int64(7), np.uint8(7)])
@pytest.mark.parametrize("name", SMALL_GRAPHS)
def test_generated_graphs_stay_the_same(name, seed):
    """Figures of several versions are then of one graph."""
    found = 0
    for store in SMALL_GRAPHS[name](seed).stores:
        for value in store.values():
            if isinstance(value, torch.Tensor):
                found = zlib.crc32(value.contiguous().numpy().tobytes(), found)
    assert found == DIGESTS[name]


@pytest.mark.parametrize("seed", [1.5, True, "1"])
@pytest.mark.parametrize("name", SMALL_GRAPHS)
def test_seeds_that_are_no_integers_are_refused(name, seed):
    with refuses(TypeError, f"seed: expected an int, found {type(seed).__name__}"):
        SMALL_GRAPHS[name](seed)
