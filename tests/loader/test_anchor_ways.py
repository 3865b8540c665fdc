"""Loaders of anchors make the same batches in every way: threads, bulks, processes, ranks, stores, resumed."""

import pytest
import torch
from helpers.anchors import (
    OPTIONS,
    USERS,
    lists_of,
    loader_of,
)
from helpers.cluster import cluster
from helpers.data import our_stores, plain, processes, stop_workers
from helpers.links import RATES, SIZES, heterogeneous, pairs_of
from helpers.parts import as_plain, stores_of
from helpers.slow import SLOW
from torch_geometric.sampler import NegativeSampling

from torch_gnnscale import partition
from torch_gnnscale.distributed import open_part

WAYS = {"prefetch": {"prefetch": 4}, "bulk": {"bulk": 3, "prefetch": 2}, "processes": processes(2)}


@pytest.mark.parametrize("way", ["prefetch", "bulk", SLOW("processes")])
def test_every_way_makes_the_same_batches(way):
    expected = plain(list(loader_of(prefetch=0, **OPTIONS)))
    iterator = iter(loader_of(**OPTIONS, **WAYS[way]))
    assert plain(list(iterator)) == expected
    stop_workers(iterator)
    shares = [plain(list(loader_of(shard=(rank, 2), uneven="serve", **OPTIONS))) for rank in range(2)]
    assert shares == [expected[0::2], expected[1::2]]


def test_stores_and_renumbered_stores_give_the_same_ids(tmp_path):
    data = heterogeneous()
    partition.write(data, tmp_path / "parts", parts=2, method="random")
    for stores in (our_stores(data), stores_of(data, str(tmp_path / "parts"))):
        for ours, theirs in zip(loader_of(stores, num_positives=-1), loader_of(data, num_positives=-1), strict=True):
            for batch in (ours, theirs):
                assert torch.equal(batch["user"].n_id[batch["user"].src_index], USERS[batch["user"].input_id])
            of_both = [
                pairs_of(
                    torch.stack([batch[end].n_id[at] for end, at in zip(SIZES, batch["user"].label_index, strict=True)])
                )
                for batch in (ours, theirs)
            ]
            assert of_both[0] == of_both[1]


def test_weights_of_negatives_over_renumbered_stores(tmp_path):
    data = heterogeneous()
    partition.write(data, tmp_path / "parts", parts=2, method="random")
    weight = torch.zeros(50).index_fill_(0, torch.tensor([3, 7]), 1.0)
    stores = stores_of(data, str(tmp_path / "parts"))
    for batch in loader_of(stores, neg_sampling=NegativeSampling("triplet", 2, dst_weight=weight)):
        assert set(batch["item"].n_id[batch["item"].dst_neg_index].view(-1).tolist()) <= {3, 7}


def test_a_state_goes_on_and_knows_the_lists():
    loader, other = loader_of(**OPTIONS), loader_of(**OPTIONS)
    iterator = iter(loader)
    next(iterator)
    other.load_state_dict(loader.state_dict())
    assert plain(list(other)) == plain(list(iterator))
    for name, value in {"positives": (RATES, *lists_of(5)), "num_positives": 1, "negatives": None}.items():
        said = "own_negatives" if name == "negatives" else name
        with pytest.raises(ValueError, match=rf"^state: expected a loader with {said}="):
            loader_of(**{**OPTIONS, name: value}).load_state_dict(loader.state_dict())


def batches_of_part(path):
    with open_part(path) as part:
        anchors = part.input_nodes(None, node_type="user")
        loader = loader_of((part.features, part.graph), anchors=anchors, uneven="serve", **OPTIONS)
        return anchors[1].tolist(), [as_plain(batch) for batch in loader]


@pytest.mark.slow
def test_ranks_over_parts_make_the_batches_of_one_process(tmp_path):
    data, path = heterogeneous(), str(tmp_path / "parts")
    partition.write(data, path, parts=2, method="random")
    stores = stores_of(data, path)
    for rank, (anchors, batches) in enumerate(cluster(2).run(batches_of_part, path)):
        loader = loader_of(stores, anchors=("user", torch.tensor(anchors)), **OPTIONS)
        loader.sampler.part = rank
        whole = list(loader._seed_order.numbered(loader.batch_sampler, 0))
        for k, batch in enumerate(whole):
            batch.number = 2 * k + rank
        assert batches == [as_plain(loader.collate_fn(batch)) for batch in whole]
        assert batches
