"""Loaders of anchors: which positives and negatives are drawn from lists, and nothing later than the anchor."""

import pytest
import torch
from helpers.anchors import (
    NEGATIVES,
    POSITIVES,
    TRIPLETS,
    USERS,
    drawn_by_definition,
    entries,
    found_in,
    loader_of,
)
from helpers.links import RATED, RATES, SIZES, heterogeneous, homogeneous, pairs_of
from helpers.parts import stores_of
from torch_geometric.sampler import NegativeSampling

from torch_gnnscale import AnchorLoader, ops, partition
from torch_gnnscale.random import Purpose, batch_key


@pytest.mark.parametrize("count", [1, 3])
def test_positives_are_those_of_the_twin(count):
    for number, batch in enumerate(loader_of(num_positives=count)):
        users = USERS[4 * number : 4 * number + 4]
        assert torch.equal(batch["user"].n_id[batch["user"].src_index], users)
        assert torch.equal(batch["user"].input_id, torch.arange(4 * number, 4 * number + len(users)))
        found = found_in(batch, batch["item"].dst_pos_index, batch["item"].dst_pos_mask)
        assert found == drawn_by_definition(POSITIVES, users, count, number, Purpose.POSITIVE)
        for user, some in zip(users.tolist(), found, strict=True):
            assert len(some) == len(set(some)) == min(count, len(entries(POSITIVES, user)))
            assert set(some) <= set(entries(POSITIVES, user))
        assert batch["item"].dst_pos_index.shape == (len(users), count)
        assert "dst_neg_index" not in batch["item"]
        assert "batch_size" not in batch["user"]


def test_all_positives_are_pairs():
    for number, batch in enumerate(loader_of(num_positives=-1)):
        users = USERS[4 * number : 4 * number + 4].tolist()
        anchors, items = batch["user"].label_index
        found = list(zip(batch["user"].n_id[anchors].tolist(), batch["item"].n_id[items].tolist(), strict=True))
        assert found == [(user, item) for user in users for item in entries(POSITIVES, user)]
        assert "dst_pos_index" not in batch["item"]


@pytest.mark.parametrize("own", [False, True])
def test_own_negatives_come_first_and_others_fill_up(own):
    loader = loader_of(negatives=NEGATIVES if own else None, neg_sampling=TRIPLETS)
    for number, batch in enumerate(loader):
        users = USERS[4 * number : 4 * number + 4]
        key = batch_key(batch_key(3, 0, number), purpose=Purpose.NEGATIVE)
        drawn = ops.sample_negatives(3 * len(users), users.repeat_interleave(3), ops.candidates(50), key)[1]
        listed = [[]] * len(users)
        if own:
            listed = drawn_by_definition(NEGATIVES, users, 3, number, Purpose.OWN_NEGATIVE)
        expected = [mine + rest[len(mine) :] for mine, rest in zip(listed, drawn.view(-1, 3).tolist(), strict=True)]
        found = found_in(batch, batch["item"].dst_neg_index, batch["item"].dst_neg_mask)
        assert found == expected
        assert batch["item"].dst_neg_mask.all()


def test_own_negatives_alone_are_padded():
    for number, batch in enumerate(loader_of(negatives=NEGATIVES)):
        users = USERS[4 * number : 4 * number + 4].tolist()
        found = found_in(batch, batch["item"].dst_neg_index, batch["item"].dst_neg_mask)
        assert found == [entries(NEGATIVES, user) for user in users]
        assert batch["item"].dst_neg_index.size(1) == max(map(len, found))


@pytest.mark.parametrize("positives", [RATES, (RATES, None), ["user", "rates", "item"]])
def test_the_graph_s_edges_are_positives(positives):
    data = heterogeneous()
    loader = loader_of(data, positives=positives, num_positives=-1, empty="skip", anchors="user")
    edges = data[RATES].edge_index
    for batch in loader:
        anchors, items = batch["user"].label_index
        users = batch["user"].input_id
        found = torch.stack([batch["user"].n_id[anchors], batch["item"].n_id[items]])
        expected = torch.cat([edges[:, edges[0] == user] for user in users], dim=1)
        assert torch.equal(found, expected)
    has = edges[0].unique()
    assert torch.equal(loader.input_data.node, has)


def test_a_graph_without_types():
    data = homogeneous()
    loader = AnchorLoader(data, [3], None, num_positives=-1, empty="skip", batch_size=8, seed=1, negatives=None)
    pairs = set()
    for batch in loader:
        pairs |= pairs_of(batch.n_id[batch.label_index])
        assert torch.equal(batch.n_id[batch.src_index], batch.input_id)
    assert pairs == pairs_of(data.edge_index)


@pytest.mark.parametrize("method", ["ladies", "labor"])
def test_anchors_of_a_layer_wise_sampler(method):
    data = homogeneous()
    loader = AnchorLoader(
        data, [9, 9], None, num_positives=2, empty="skip", batch_size=8, seed=1, method=method, neg_sampling=TRIPLETS,
        strict_negatives=True,
    )  # fmt: skip
    edges = pairs_of(data.edge_index)
    for batch in loader:
        anchors, items = batch.n_id[batch.src_index], batch.n_id[batch.dst_pos_index]
        assert torch.equal(anchors, batch.input_id)
        mask = batch.dst_pos_mask
        pairs = torch.stack([anchors[:, None].expand_as(items)[mask], items[mask]])
        assert mask[:, 0].all()
        assert pairs_of(pairs) <= edges
        negatives = batch.n_id[batch.dst_neg_index]
        assert not pairs_of(torch.stack([anchors[:, None].expand_as(negatives), negatives]).view(2, -1)) & edges
        assert "edge_weight" in batch


@pytest.mark.parametrize("exclude", [False, True, "reverse"])
def test_the_edges_to_positives_are_left_out(exclude):
    data = heterogeneous()
    met = {RATES: 0, RATED: 0}
    for batch in loader_of(
        data,
        positives=RATES,
        anchors=("user", data[RATES].edge_index[0]),
        exclude_seed_edges=exclude,
        neg_sampling=NegativeSampling("triplet", 1),
    ):
        anchors = batch["user"].n_id[batch["user"].src_index]
        positives = batch["item"].n_id[batch["item"].dst_pos_index[:, 0]]
        for edge_type, pairs in {RATES: (anchors, positives), RATED: (positives, anchors)}.items():
            row, col = batch[edge_type].edge_index
            edges = torch.stack([batch[edge_type[0]].n_id[row], batch[edge_type[2]].n_id[col]])
            met[edge_type] += len(pairs_of(torch.stack(pairs)) & pairs_of(edges))
    assert bool(met[RATES]) == (exclude is False)
    assert bool(met[RATED]) == (exclude != "reverse")


def test_strict_negatives_are_no_positives_and_no_edges():
    data = heterogeneous()
    data[RATES].edge_index = data[RATES].edge_index[:, :60]
    for batch in loader_of(data, neg_sampling=NegativeSampling("triplet", 40), strict_negatives=True):
        anchors = batch["user"].n_id[batch["user"].src_index].tolist()
        drawn = batch["item"].n_id[batch["item"].dst_neg_index].tolist()
        edges = pairs_of(data[RATES].edge_index)
        for user, items in zip(anchors, drawn, strict=True):
            assert not {(user, item) for item in items} & edges
            assert not set(items) & set(entries(POSITIVES, user))


@pytest.mark.parametrize("given", [True, False])
def test_nothing_is_later_than_its_anchor(given):
    data = heterogeneous()
    time = torch.tensor([9, 8, 7, 9, 6, 9, 5, 8, 9, 9]) if given else None
    own = time if given else data["user"].time[USERS]
    times = data["item"].time
    loader = loader_of(
        data, time_attr="time", anchor_time=time, empty="skip", num_positives=2, neg_sampling=TRIPLETS,
        negatives=NEGATIVES,
    )  # fmt: skip
    kept = []
    for number, batch in enumerate(loader):
        at, src, items = batch["user"].input_id, batch["user"].src_index, batch["item"]
        limits = own[at]
        kept += at.tolist()
        if given:
            assert torch.equal(batch["user"].seed_time, limits)
        # One tree of each mention, which has the number of its anchor.
        assert torch.equal(batch["user"].batch[src], torch.arange(len(at)))
        for index, mask in ((items.dst_pos_index, items.dst_pos_mask), (items.dst_neg_index, items.dst_neg_mask)):
            numbers = torch.arange(len(at))[:, None].expand_as(index)[mask]
            assert torch.equal(items.batch[index[mask]], numbers)
            assert not (items.time[index[mask]] > limits[numbers]).any()
        for node_type in SIZES:
            later = batch[node_type].time > limits[batch[node_type].batch]
            assert not later[batch[node_type].num_sampled_nodes[0] :].any()
        users = USERS[at]
        rowptr = POSITIVES[0]
        by_user = [torch.tensor(entries(POSITIVES, user)) for user in range(40)]
        order = torch.cat([items_of[times[items_of].argsort(stable=True)] for items_of in by_user])
        expected = drawn_by_definition((rowptr, order), users, 2, number, Purpose.POSITIVE, limits, times[order])
        assert found_in(batch, items.dst_pos_index, items.dst_pos_mask) == expected
    early = [any(times[item] <= own[i] for item in entries(POSITIVES, user)) for i, user in enumerate(USERS.tolist())]
    assert kept == torch.tensor(early).nonzero().view(-1).tolist()


def test_times_of_entries_count_where_nodes_have_none():
    data = heterogeneous()
    del data["item"].time, data["user"].time
    data[RATES].time = torch.arange(200) % 10
    time = torch.arange(len(POSITIVES[1])) % 7
    loader = loader_of(
        data, positives=(RATES, *POSITIVES, time), time_attr="time", anchor_time=torch.full((10,), 3), empty="skip",
        num_positives=-1,
    )  # fmt: skip
    for batch in loader:
        anchors, items = batch["user"].label_index
        for user in batch["user"].n_id[anchors].unique().tolist():
            early = time[POSITIVES[0][user] : POSITIVES[0][user + 1]] <= 3
            mine = batch["item"].n_id[items[batch["user"].n_id[anchors] == user]]
            assert set(mine.tolist()) == set(torch.tensor(entries(POSITIVES, user))[early].tolist())
    edges = loader_of(
        data, positives=RATES, time_attr="time", anchor_time=torch.full((10,), 3), empty="skip", num_positives=-1
    )
    for batch in edges:
        found = torch.stack([batch[end].n_id[at] for end, at in zip(SIZES, batch["user"].label_index, strict=True)])
        early = data[RATES].edge_index[:, data[RATES].time <= 3]
        assert pairs_of(found) <= pairs_of(early)


def by_anchor(lists, users):
    """``lists`` of users as those of anchors: list i is that of users[i]."""
    found = [entries(lists, user) for user in users.tolist()]
    rowptr = torch.tensor([0, *(len(some) for some in found)]).cumsum(0)
    return rowptr, torch.tensor([item for some in found for item in some])


def test_lists_of_anchors():
    """A node may be an anchor twice, with other lists."""
    rowptr, col = by_anchor(POSITIVES, USERS)
    other = torch.tensor([40, 41])  # of the second of the two anchors that are user 3
    at, until = int(rowptr[3]), int(rowptr[4])
    col = torch.cat([col[:at], other, col[until:]])
    rowptr = torch.cat([rowptr[:4], rowptr[4:] + 2 - (until - at)])
    options = {"lists_of": "anchors", "negatives": by_anchor(NEGATIVES, USERS), "neg_sampling": TRIPLETS}
    loader = loader_of(positives=(RATES, rowptr, col), num_positives=4, strict_negatives=True, **options)
    pairs = {(int(user), int(item)) for at, user in enumerate(USERS) for item in col[rowptr[at] : rowptr[at + 1]]}
    for batch in loader:
        found = found_in(batch, batch["item"].dst_pos_index, batch["item"].dst_pos_mask)
        for place, number in enumerate(batch["user"].input_id.tolist()):
            assert sorted(found[place]) == sorted(col[rowptr[number] : rowptr[number + 1]].tolist())
            own = set(entries(NEGATIVES, int(USERS[number])))
            negatives = batch["item"].n_id[batch["item"].dst_neg_index[place]].tolist()
            assert len(own & set(negatives)) >= min(3, len(own))
            drawn = [item for item in negatives if item not in own]
            assert not {(int(USERS[number]), item) for item in drawn} & pairs
    one_each = AnchorLoader(heterogeneous(), [3], ("user", USERS[:3]), (RATES, torch.arange(4), col[:3]), batch_size=3,
                            lists_of="anchors", anchor_time=None, shuffle=True, seed=1)  # fmt: skip
    batch = next(iter(one_each))
    assert torch.equal(batch["item"].n_id[batch["item"].dst_pos_index[:, 0]], col[batch["user"].input_id])
    for input_id, kept in ((None, [0, 2]), (torch.tensor([7, 8, 9]), [7, 9])):
        skipped = loader_of(
            anchors=("user", USERS[:3]),
            positives=(RATES, torch.tensor([0, 1, 1, 2]), col[:2]),
            lists_of="anchors",
            empty="skip",
            input_id=input_id,
        )
        batch = next(iter(skipped))
        assert batch["user"].input_id.tolist() == kept
        assert batch["item"].n_id[batch["item"].dst_pos_index[:, 0]].tolist() == col[:2].tolist()


def test_lists_of_anchors_over_renumbered_stores(tmp_path):
    data = heterogeneous()
    partition.write(data, tmp_path / "parts", parts=2, method="random")
    options = {"positives": (RATES, *by_anchor(POSITIVES, USERS)), "num_positives": 4, "lists_of": "anchors"}
    stores = stores_of(data, str(tmp_path / "parts"))
    for batches in zip(loader_of(data, **options), loader_of(stores, **options), strict=True):
        of_both = [found_in(of, of["item"].dst_pos_index, of["item"].dst_pos_mask) for of in batches]
        users = USERS[batches[0]["user"].input_id].tolist()
        expected = [sorted(entries(POSITIVES, user)) for user in users]
        assert [[sorted(some) for some in found] for found in of_both] == [expected, expected]
