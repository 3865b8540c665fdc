"""Time windows where seeds or links have types."""

import re

import pytest
import torch
from helpers.data import plain
from helpers.hetero import AUTHOR, PAPER, VENUE, make_hetero, with_times
from helpers.links import FRIENDS, RATES, heterogeneous

from torch_gnnscale import LinkNeighborLoader, NeighborLoader

LEAST = torch.iinfo(torch.int64).min


@pytest.mark.parametrize("typed", [False, True])
def test_types(typed):
    """Types without times are not limited; of a dictionary, each type has its own windows, or none."""
    data = with_times(make_hetero())
    ids = {PAPER: torch.arange(30), AUTHOR: torch.arange(20)}
    ends = {PAPER: torch.arange(30) % 9, AUTHOR: torch.arange(20) % 9}
    starts = {PAPER: ends[PAPER] - 2}
    given = (ids, ends, starts) if typed else ((PAPER, ids[PAPER]), ends[PAPER], starts[PAPER])
    options = dict(zip(("input_nodes", "input_time", "input_start_time"), given, strict=True))
    drawn = 0
    for batch in NeighborLoader(data, [4, 3], **options, time_attr="time", batch_size=8, shuffle=True, seed=1):
        limits = [torch.cat([batch[of].seed_time for of in ids if "seed_time" in batch[of]])]
        first = batch[PAPER].seed_time - 2
        limits.append(torch.cat([first, torch.full((len(limits[0]) - len(first),), LEAST)]))
        for edge_type in batch.edge_types:
            store, src = batch[edge_type], edge_type[0]
            if src not in (PAPER, AUTHOR) or not store.edge_index.size(1):
                continue
            tree = batch[edge_type[2]].batch[store.edge_index[1]]
            time = batch[src].time[store.edge_index[0]]
            assert ((time <= limits[0][tree]) & (time >= limits[1][tree])).all()
            drawn += len(time)
    assert drawn > 30
    assert VENUE in data.node_types


def test_links_of_several_relations():
    data = heterogeneous()
    links = {RATES: data[RATES].edge_index[:, :20], FRIENDS: data[FRIENDS].edge_index[:, :20]}
    ends = {RATES: torch.arange(20) % 6 + 4, FRIENDS: torch.arange(20) % 5 + 5}
    for store in data.edge_stores:
        store.when = torch.arange(store.num_edges) % 10
    options = {"edge_label_time": ends, "time_attr": "when", "neg_sampling": "binary", "seed": 3, "batch_size": 8}
    loader = LinkNeighborLoader(data, [3, 2], links, **options, time_window=3)
    expected = LinkNeighborLoader(
        data, [3, 2], links, **options, edge_label_start_time={of: end - 3 for of, end in ends.items()}
    )
    for batch, same in zip(loader, expected, strict=True):
        assert plain(batch) == plain(same)
        of_links = torch.cat([batch[of].edge_label_time[: len(batch[of].input_id)] for of in links])
        for edge_type in batch.edge_types:
            store = batch[edge_type]
            limit = of_links[batch[edge_type[2]].batch[store.edge_index[1]]]
            assert ((store.when <= limit) & (store.when >= limit - 3)).all()


def test_refused_of_several_types():
    data = with_times(make_hetero())
    seeds = {PAPER: torch.arange(4), AUTHOR: torch.arange(4)}
    options = {"input_nodes": seeds, "time_attr": "time", "input_time": {PAPER: torch.arange(4)}}
    for more, message in (
        ({"time_window": 2}, "time_window: expected input_time['author'], where windows end, beside it, found none"),
        ({"input_start_time": {VENUE: torch.arange(4)}}, "input_start_time: expected types of ['paper', 'author']"),
        ({"input_start_time": {PAPER: torch.arange(4) + 1}},
         "input_start_time['paper'][0] = 1: expected at most input_time['paper'][0] = 0"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            NeighborLoader(data, [2], **options, **more)
