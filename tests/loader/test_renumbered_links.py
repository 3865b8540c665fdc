"""LinkNeighborLoader over renumbered stores: the batches of the renumbered graph, in the user's ids."""

import copy
import re

import pytest
import torch
from helpers.data import plain, processes
from helpers.hetero import WRITES, make_hetero
from helpers.links import homogeneous, pairs_of
from helpers.slow import SLOW
from torch_geometric.sampler import NegativeSampling

from torch_gnnscale import FeatureStore, GraphStore, LinkNeighborLoader
from torch_gnnscale import TieredFeatureStore as Tiered
from torch_gnnscale.topology.reorder import Order, TypedOrder, reorder_data

NODES = 60


def weight(seed: int) -> torch.Tensor:
    """Weights of nodes, every fifth one 0."""
    found = torch.rand(NODES, generator=torch.Generator().manual_seed(seed)) + 0.1
    return found * (torch.arange(NODES) % 5 > 0)


LINKS = torch.randint(NODES, (2, 100), generator=torch.Generator().manual_seed(4))
NEGATIVES = {
    "none": None,
    "binary": NegativeSampling("binary", 1.5),
    "weighted": NegativeSampling("binary", 1.5, weight(1), weight(2)),
    "triplets": NegativeSampling("triplet", 2, None, weight(3)),
}


@pytest.fixture
def stores():
    """A tiered store in an order of its own, the graph beside it, and the data in that order and in the user's."""
    data = homogeneous(NODES)
    edge_attr = data.edge_attr
    del data.edge_attr
    score = torch.rand(NODES, generator=torch.Generator().manual_seed(9))
    with Tiered.from_data(data, hotness=score, renumbered=True) as store:
        data.edge_attr = edge_attr
        yield store, GraphStore.from_data(data, order=store.order), reorder_data(data, store.order), data


@pytest.mark.parametrize("links", [SLOW(None), LINKS, SLOW(LINKS.int())], ids=["all edges", "links", "int32"])
@pytest.mark.parametrize("negatives", NEGATIVES)
@pytest.mark.parametrize("strict", [False, True, LINKS.flip(0)], ids=["", "strict", "strict with links"])
@pytest.mark.parametrize("temporal", [False, True])
def test_batches(stores, links, negatives, strict, temporal):
    store, graph, moved, data = stores
    new, old = store.order.new, store.order.old
    given = copy.copy(NEGATIVES[negatives])
    options = {"batch_size": 32, "shuffle": True, "seed": 5, "exclude_seed_edges": True}
    if temporal:
        count = data.num_edges if links is None else links.size(1)
        options |= {"time_attr": "time", "edge_label_time": torch.full((count,), 20)}
    loader = LinkNeighborLoader((store, graph), [3, 2], links, neg_sampling=given, strict_negatives=strict, **options)
    theirs = copy.copy(given)
    for name in ("src_weight", "dst_weight"):
        if getattr(theirs, name, None) is not None:
            setattr(theirs, name, getattr(theirs, name)[old])
    expected = LinkNeighborLoader(
        (FeatureStore.from_data(moved), GraphStore.from_data(moved)), [3, 2],
        None if links is None else new[links.long()],
        neg_sampling=theirs, strict_negatives=new[strict] if isinstance(strict, torch.Tensor) else strict, **options,
    )  # fmt: skip
    assert given is None or (given.dst_weight is NEGATIVES[negatives].dst_weight)  # the user's is left alone
    asked = data.edge_index if links is None else links
    forbidden = pairs_of(data.edge_index) | pairs_of(asked)
    forbidden |= pairs_of(strict) if isinstance(strict, torch.Tensor) else set()
    for ours, batch in zip(loader, expected, strict=True):
        batch.n_id = old[batch.n_id]
        del batch.edge_attr
        assert plain(ours) == plain(batch)
        assert torch.equal(ours.x, data.x[ours.n_id])
        sampled = ours.n_id[ours.edge_index]
        assert torch.equal(sampled, data.edge_index[:, ours.e_id])
        count = len(ours.input_id)
        if negatives == "triplets":
            found = ours.n_id[torch.stack([ours.src_index, ours.dst_pos_index])]
            drawn = ours.n_id[torch.stack([ours.src_index[:, None].expand(-1, 2), ours.dst_neg_index])].flatten(1)
        else:
            found = ours.n_id[ours.edge_label_index[:, :count]]
            drawn = ours.n_id[ours.edge_label_index[:, count:]]
        assert torch.equal(found, asked[:, ours.input_id])
        assert not pairs_of(found) & pairs_of(sampled)
        assert strict is False or not pairs_of(drawn) & forbidden
        if negatives in ("weighted", "triplets"):
            assert bool((drawn[1] % 5 > 0).all())


@pytest.mark.slow
def test_workers(stores):
    store, graph, _, _ = stores
    options = {"neg_sampling": NEGATIVES["weighted"], "batch_size": 32, "shuffle": True, "seed": 5}
    first, second = (LinkNeighborLoader((store, graph), [3, 2], LINKS, **processes(n), **options) for n in (0, 2))
    assert [plain(batch) for batch in first] == [plain(batch) for batch in second]


def wrong_weight() -> NegativeSampling:
    return NegativeSampling("binary", 1, None, weight(1).index_fill(0, torch.tensor(7), torch.nan))


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (IndexError, "edge_label_index[1, 2] = 60 is out of range: expected nodes in [0, 60)",
         {"edge_label_index": torch.tensor([[0, 1, 2], [3, 4, 60]])}),
        (IndexError, "strict_negatives[0, 1] = -1 is out of range: expected nodes in [0, 60)",
         {"strict_negatives": torch.tensor([[0, -1], [3, 4]])}),
        (ValueError, "neg_sampling: dst_weight: weight[7] = nan: expected a finite number that is not negative",
         {"neg_sampling": wrong_weight()}),
        (ValueError, "neg_sampling: src_weight: weight: expected shape (60,), found (59,)",
         {"neg_sampling": NegativeSampling("binary", 1, torch.ones(59))}),
        (ValueError, "neg_sampling: dst_weight: weight: expected shape (60,), found (61,)",
         {"neg_sampling": NegativeSampling("triplet", 1, None, torch.ones(61))}),
    ],
)  # fmt: skip
def test_errors_name_the_users_ids(stores, error, message, options):
    store, graph, _, _ = stores
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        LinkNeighborLoader((store, graph), [2], **{"edge_label_index": LINKS, **options})


def test_all_edges_of_a_type_between_renumbered_types():
    data, edge_type = make_hetero(), WRITES
    sizes = {node_type: data[node_type].num_nodes for node_type in (edge_type[0], edge_type[-1])}
    order = TypedOrder({t: Order.from_permutation(torch.arange(size).roll(3), size) for t, size in sizes.items()})
    stores = FeatureStore.from_data(data, order=order), GraphStore.from_data(data, order=order)
    loader = LinkNeighborLoader(stores, [2], edge_type, batch_size=500)
    links = torch.stack([loader.input_data.row, loader.input_data.col])
    users = [order.to_user(ids, t) for ids, t in zip(links, (edge_type[0], edge_type[-1]), strict=True)]
    assert sorted(zip(*torch.stack(users).tolist(), strict=True)) == sorted(
        zip(*data[edge_type].edge_index.tolist(), strict=True)
    )


def test_strict_negatives_between_renumbered_types():
    data = make_hetero()
    sizes = [data[node_type].num_nodes for node_type in (WRITES[0], WRITES[-1])]
    orders = [Order.from_permutation(torch.arange(size).roll(3), size) for size in sizes]
    order = TypedOrder(zip((WRITES[0], WRITES[-1]), orders, strict=True))
    stores = FeatureStore.from_data(data, order=order), GraphStore.from_data(data, order=order)
    links = data[WRITES].edge_index[:, :10]
    free = {(0, 1), (2, 0), (1, 3)}
    others = torch.cartesian_prod(*map(torch.arange, sizes)).t()
    known = torch.tensor([pair for pair in zip(*others.tolist(), strict=True) if pair not in free]).t()
    known = known[:, torch.randperm(known.size(1), generator=torch.Generator().manual_seed(1))]
    loader = LinkNeighborLoader(
        stores, [1], (WRITES, links), neg_sampling=("binary", 20), strict_negatives=known, batch_size=10
    )
    (batch,) = loader
    src, dst = batch[WRITES].edge_label_index[:, 10:]
    drawn = zip(batch[WRITES[0]].n_id[src].tolist(), batch[WRITES[-1]].n_id[dst].tolist(), strict=True)
    assert set(drawn) == free - pairs_of(data[WRITES].edge_index)
