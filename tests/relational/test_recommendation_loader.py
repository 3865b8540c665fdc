"""The loader for recommendation with RelBench's arguments and batches."""

import re

import pytest
import torch
from torch_geometric.data import HeteroData

from torch_gnnscale.relational import LinkNeighborLoader

USERS, ITEMS, SOURCES = 40, 60, 30
BOUGHT = ("user", "buys", "item")


@pytest.fixture(scope="module")
def data():
    """Rows are their ids, items and edges have times."""
    draws = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["user"].x, data["item"].x = torch.arange(USERS)[:, None], torch.arange(ITEMS)[:, None]
    data["item"].time = torch.randint(100, (ITEMS,), generator=draws)
    ends = torch.stack([torch.randint(n, (500,), generator=draws) for n in (USERS, ITEMS)])
    data[BOUGHT].edge_index = ends
    data["item", "rev_buys", "user"].edge_index = ends.flip(0)
    return data


@pytest.fixture(scope="module")
def given():
    """(sources, lists of positives, times); a source has between one and four positives."""
    draws = torch.Generator().manual_seed(1)
    sources = torch.randint(USERS, (SOURCES,), generator=draws)
    counts = 1 + torch.arange(SOURCES) % 4
    rowptr = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
    col = torch.cat([torch.randperm(ITEMS, generator=draws)[:count].sort().values for count in counts.tolist()])
    lists = torch.sparse_csr_tensor(rowptr, col, torch.ones(len(col)), size=(SOURCES, ITEMS))
    return sources, lists, 50 + 50 * (torch.arange(SOURCES) % 3)


def make(data, given, **kwargs):
    sources, lists, time = given
    options = {"time_attr": "time", "batch_size": 4, "seed": 5, "src_time": time} | kwargs
    return LinkNeighborLoader(data, [3, 3], ("user", sources), ("item", lists), ITEMS, **options)


def seeds_of(triples):
    """[sources, positives, negatives, times] of an epoch."""
    ids, times = [[], [], []], []
    for triple in triples:
        for of, batch, found in zip(("user", "item", "item"), triple, ids, strict=True):
            found += batch[of].input_id.tolist()
            assert torch.equal(batch[of].n_id[: batch[of].batch_size], batch[of].input_id)
        times += triple[0]["user"].seed_time.tolist()
    return [*ids, times]


@pytest.mark.parametrize(("shuffle", "prefetch"), [(False, 0), (True, 0), (True, 3)])
def test_triples(data, given, shuffle, prefetch):
    sources, lists, time = given
    loader = make(data, given, shuffle=shuffle, prefetch=prefetch)
    assert len(loader) == 8
    known = {(int(u), int(t)): set() for u, t in zip(sources, time, strict=True)}
    for u, t, row in zip(sources.tolist(), time.tolist(), lists.to_dense(), strict=True):
        known[u, t] |= set(row.nonzero().view(-1).tolist())
    epochs = []
    for _ in range(2):
        triples = [*loader]
        assert len(triples) == 8
        for triple in triples:
            times = triple[0]["user"].seed_time
            for of, batch in zip(("user", "item", "item"), triple, strict=True):
                assert torch.equal(batch[of].seed_time, times)
                for each in ("user", "item"):
                    assert torch.equal(batch[each].x.view(-1), batch[each].n_id)
                late = batch["item"].time > times[batch["item"].batch]
                assert not late[batch["item"].batch_size if of == "item" else 0 :].any()
        of_epoch = seeds_of(triples)
        assert sorted(of_epoch[0]) == sorted(sources.tolist())
        assert (of_epoch[0] == sources.tolist()) != shuffle
        assert all(p in known[u, t] for u, p, t in zip(of_epoch[0], of_epoch[1], of_epoch[3], strict=True))
        epochs.append(of_epoch)
    assert epochs[0][1] != epochs[1][1]
    assert epochs[0][2] != epochs[1][2]
    again = make(data, given, shuffle=shuffle)
    again.set_epoch(1)
    assert seeds_of(again) == epochs[1]


def test_lists_with_numbers_of_32_bits(data, given):
    sources, lists, time = given
    narrow = torch.sparse_csr_tensor(lists.crow_indices().int(), lists.col_indices().int(), lists.values(), lists.shape)
    assert seeds_of(make(data, (sources, narrow, time))) == seeds_of(make(data, given))


def test_samples_are_those_of_neighbor_loaders(data, given):
    from torch_gnnscale import NeighborLoader
    from torch_gnnscale.random import Purpose, batch_key

    sources, _, time = given
    seed = batch_key(5, purpose=Purpose.SAMPLE) & (1 << 62) - 1
    one = NeighborLoader(
        data, [3, 3], ("user", sources), time, time_attr="time", batch_size=4, seed=seed, disjoint=True
    )
    found, drawn = make(data, given), []
    for _ in range(2):
        for (batch, _, _), expected in zip(found, one, strict=True):
            assert torch.equal(batch["item"].n_id, expected["item"].n_id)
            assert torch.equal(batch[BOUGHT].e_id, expected[BOUGHT].e_id)
            drawn.append(batch["item"].n_id.tolist())
    assert drawn[: len(found)] != drawn[len(found) :], "each epoch draws anew"


def test_positives_and_negatives_are_uniform(data, given):
    """By chi-square, over epochs: draws of one epoch are one per source."""
    from scipy.stats import chisquare

    loader = make(data, given, src_time=None, time_attr=None, batch_size=SOURCES, prefetch=0)
    drawn = [seeds_of_untimed(loader) for _ in range(200)]
    column = given[1].to_dense()[3].nonzero().view(-1)  # of a source with four positives
    counts = (torch.tensor([positives[3] for positives, _ in drawn])[:, None] == column).sum(0)
    assert int(counts.sum()) == 200
    assert chisquare(counts.numpy()).pvalue > 1e-4
    negatives = torch.bincount(torch.tensor([node for _, found in drawn for node in found]), minlength=ITEMS)
    assert chisquare(negatives.numpy()).pvalue > 1e-4


def seeds_of_untimed(loader):
    ((_, positives, negatives),) = [*loader]
    return positives["item"].input_id.tolist(), negatives["item"].input_id.tolist()


def test_one_time_per_batch(data, given):
    loader = make(data, given, share_same_time=True)
    triples = [*loader]
    assert len(triples) == len(loader) == 6  # ten sources of each of three times
    times = [triple[0]["user"].seed_time for triple in triples]
    assert all(len(time) == 4 and time.unique().numel() == 1 for time in times)
    order = [int(time[0]) for time in times]
    assert sorted(order) == [50, 50, 100, 100, 150, 150]
    assert order != sorted(order)  # batches are shuffled
    assert len(make(data, given, drop_last=True)) == len([*make(data, given, drop_last=True)]) == 7


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"share_same_time": True}], ids=str)
def test_batches_of_sizes_around_those_that_divide_the_sources(data, given, options):
    groups = [10, 10, 10] if "share_same_time" in options else [30]  # of sources of one time
    for batch_size in (1, 9, 10, 11, 14, 15, 16, 29, 30, 31, 32):
        loader = make(data, given, batch_size=batch_size, **options)
        whole = sum(size // batch_size for size in groups)
        assert len(loader) == len(loader._batches(0)) == (whole if options else len(range(0, 30, batch_size)))


def test_no_sources_have_no_batches(data):
    none = torch.empty(0, dtype=torch.long)
    lists = torch.sparse_csr_tensor(torch.zeros(1, dtype=torch.long), none, torch.empty(0), size=(0, ITEMS))
    assert [*make(data, (none, lists, none))] == []


@pytest.mark.slow  # relbench takes seconds to import
def test_samples_equal_those_of_relbench(data, given):
    """All neighbors of the same seeds: the same rows, from RelBench's loader with our operators under PyG."""
    pytest.importorskip("relbench")
    from relbench.modeling import loader as relbench

    import torch_gnnscale

    sources, _, time = given
    rowptr, col = torch.arange(SOURCES + 1), torch.arange(SOURCES)
    first = torch.sparse_csr_tensor(rowptr, col, torch.ones(SOURCES), (SOURCES, ITEMS))
    ours = LinkNeighborLoader(
        data, [-1, -1], ("user", sources), ("item", first), ITEMS, time, time_attr="time", batch_size=4
    )
    with torch_gnnscale.patch_pyg():
        theirs = relbench.LinkNeighborLoader(
            data, [-1, -1], ("user", sources), ("item", first), ITEMS, time, time_attr="time", batch_size=4
        )
        expected = [*theirs]
    for triple, others in zip(ours, expected, strict=True):
        for batch, other in zip(triple[:2], others[:2], strict=True):  # negatives are drawn otherwise
            for of in ("user", "item"):
                rows, places = batch[of].n_id, batch[of].batch
                assert sorted(zip(places.tolist(), rows.tolist(), strict=True)) == sorted(
                    zip(other[of].batch.tolist(), other[of].n_id.tolist(), strict=True)
                )
                if "input_id" in other[of]:
                    for name in ("input_id", "seed_time", "batch_size"):
                        assert torch.equal(torch.as_tensor(batch[of][name]), torch.as_tensor(other[of][name]))


def errors(given):
    _, lists, time = given
    row = torch.sparse_csr_tensor(torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1), (1, ITEMS))
    none = torch.sparse_csr_tensor(torch.zeros(SOURCES + 1).long(), torch.empty(0).long(), torch.empty(0), lists.shape)
    return {
        "dense": ({"dst_nodes": ("item", lists.to_dense())}, TypeError,
                  "dst_nodes: expected a sparse CSR tensor, found torch.strided"),
        "rows": ({"dst_nodes": ("item", row)}, ValueError,
                 f"dst_nodes: expected {SOURCES} rows, as many as sources, found 1"),
        "empty": ({"dst_nodes": ("item", none)}, ValueError,
                  "dst_nodes: expected a positive of each source, found none in row 0"),
        "ids": ({"num_dst_nodes": 5}, IndexError, "dst_nodes: expected ids in [0, 5), found "),
        "last id": ({"num_dst_nodes": (last := int(lists.col_indices().max()))}, IndexError,
                    f"dst_nodes: expected ids in [0, {last}), found "),
        "times": ({"src_time": time[1:]}, ValueError,
                  f"src_time: expected shape [{SOURCES}], a time for each source, found [{SOURCES - 1}]"),
        "shared": ({"src_time": None, "share_same_time": True}, ValueError,
                   "share_same_time=True: expected src_time, found None"),
        "sampler": ({"batch_sampler": [[0]]}, TypeError,
                    "batch_sampler: expected none, because the order is this loader's own"),
    }  # fmt: skip


@pytest.mark.parametrize("case", ["dense", "rows", "empty", "ids", "last id", "times", "shared", "sampler"])
def test_errors(data, given, case):
    changed, error, text = errors(given)[case]
    sources, lists, time = given
    arguments = {"src_nodes": ("user", sources), "dst_nodes": ("item", lists), "num_dst_nodes": ITEMS, "src_time": time}
    with pytest.raises(error, match="^" + re.escape(text)):
        LinkNeighborLoader(data, [3, 3], **(arguments | {"time_attr": "time"} | changed))
