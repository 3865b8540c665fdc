"""A part's own rows in tiers: they change no batch, the hottest are in memory, and a machine's ranks share it."""

import functools
import os
import re
from types import SimpleNamespace

import pytest
import torch
from helpers.boundary import boundary_graph, owners_of
from helpers.cluster import cluster
from helpers.data import DTYPES
from helpers.parts import batches_of_rank, check_batches, expected_batches, homogeneous, loader_of_part, stores_of
from helpers.slow import SLOW, examples, quick
from helpers.tiers import scores_by_part
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

from torch_gnnscale import CSC, TieredFeatureStore, memory, partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed.own_rows import MappedRows, _within, joined_there, opened_once
from torch_gnnscale.feature import hotness
from torch_gnnscale.loader import accesses
from torch_gnnscale.ops.rows import as_words


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """parts(K, topology): (data, directory of K parts), written once."""

    @functools.cache
    def of(count, topology="replicated"):
        data, path = boundary_graph(), tmp_path_factory.mktemp("parts") / "parts"
        links = {"train": data.edge_index[:, ::7]} if topology == "replicated" else {}
        partition.write(data, path, parts=count, owners=owners_of(count), links=links, topology=topology)
        return data, str(path)

    return of


SCORES = torch.arange(200).flip(0)
TIERS = {
    "memory": {},
    "memory and files": {"host": "40%"},
    "files": {"host": 900},
    "out-degrees": {"host": 0.7, "hotness": "out_degree"},
    "scores": {"host": "5KB", "hotness": SCORES},
}
CASES = {
    "nodes": ("nodes", {}, {}),
    "serve": ("nodes", {"uneven": "serve", "batch_size": 7, "prefetch": 0}, {}),
    "global links": ("links", {"seed_order": "global"}, {}),
    "with a buffer": ("nodes", {}, {"buffer": 0.3, "policy": "lookahead"}),
}


@pytest.mark.parametrize(("kind", "options", "kept"), quick(CASES, "with a buffer"))
@pytest.mark.parametrize("tiers", quick(TIERS, "memory"))
def test_batches_are_those_of_one_process(parts, tiers, kind, options, kept):
    data, path = parts(3)
    found = cluster(3).run(batches_of_rank, path, kind, 1, options, {"tiers": tiers, **kept})
    check_batches(found, expected_batches(data, path, kind, 1, options, 3))


@pytest.mark.slow
@pytest.mark.parametrize(("world", "count"), [(2, 1), (4, 2), (4, 4)])
def test_with_copies(parts, world, count):
    data, path = parts(count)
    found = cluster(world).run(batches_of_rank, path, "nodes", 2, {}, {"tiers": {"host": "40%"}})
    check_batches(found, expected_batches(data, path, "nodes", 2, {}, world))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TIERS))
def test_partitioned_topology(parts, name):
    data, path = parts(2, "partitioned")
    found = cluster(2).run(batches_of_rank, path, "nodes", 1, {}, {"tiers": TIERS[name]})
    check_batches(found, expected_batches(data, path, "nodes", 1, {}, 2))


@pytest.mark.parametrize("name", ["memory and files", SLOW("files")])
@pytest.mark.parametrize(("kind", "options", "_"), CASES.values(), ids=CASES)
def test_one_part_on_one_rank(parts, name, kind, options, _):
    data, path = parts(1)
    found = [batches_of_rank(path, kind, 1, options, {"tiers": TIERS[name]})]
    check_batches(found, expected_batches(data, path, kind, 1, options, 1))


def test_whole_attributes_and_after_close(parts):
    data, path = parts(1)
    with open_part(path, tiers={"host": "40%"}) as part:
        tiers = part.features.tiers
        assert torch.equal(part.features[None, "x", None], data.x)
        loader = loader_of_part(part, prefetch=0)
        kept = next(iter(loader)).x.clone()
        delivered = next(iter(loader_of_part(part)))
    assert tiers.closed
    assert torch.equal(delivered.x, kept)
    with pytest.raises(RuntimeError, match=r"^expected the stores of an open part, found that it was closed$"):
        list(loader)


# What is read, and from where #########################################################################################


def read_of(path, tiers):
    """(rows that were read from each tier, own rows in this rank's batches, rows that it asked others for)."""
    with open_part(path, tiers=tiers) as part:
        nodes, own, others = part.parts.book.nodes(part.ranks.part), 0, 0
        for batch in loader_of_part(part):
            stored = part.parts.stored_ids()[batch.n_id]
            is_own = (stored >= nodes.start) & (stored < nodes.stop)
            own, others = own + int(is_own.sum()), others + len(stored[~is_own].unique())
        dist.barrier()  # all have read
        found = {name: use.rows for name, use in part.features.tiers.stats().items()}
        dist.barrier()  # before the next epoch of a rank that shares them
        cut = sum(attr.attr_name not in part.features.tiers.plan.whole for attr in part.features.tiers.all_attrs())
        return found, cut * own, cut * others


@pytest.mark.slow
def test_requests_are_answered_from_the_tiers(parts):
    (first, *own), (second, *other) = cluster(2).run(read_of, parts(2)[1], TIERS["memory and files"])
    for found, rows, asked in ((first, own[0], other[1]), (second, other[0], own[1])):
        assert asked > 0
        assert sum(found.values()) == rows + asked
        assert min(found.values()) > 0


@pytest.mark.slow
def test_ranks_of_a_part_count_together(parts):
    first, second = cluster(2).run(read_of, parts(1)[1], TIERS["memory and files"])
    assert first[0] == second[0]
    assert sum(first[0].values()) == first[1] + second[1]


def memory_of(path):
    """The memory of this rank's tiers, and its rows when rank 0 has closed its own."""
    with open_part(path, tiers={"host": "40%"}) as part:
        found, nodes = os.fstat(part.features.tiers._memory._descriptor), part.parts.book.nodes(part.ranks.part)
        dist.barrier()
        if dist.get_rank() == 0:
            part.features.tiers.close()
        dist.barrier()
        rows = None if dist.get_rank() == 0 else part.features[None, "x", torch.arange(nodes.start, nodes.stop)]
        return (found.st_dev, found.st_ino), rows


@pytest.mark.slow
def test_ranks_of_a_part_share_memory(parts):
    (data, path), (_, apart) = parts(1), parts(2)
    first, second = cluster(2).run(memory_of, path)
    assert first[0] == second[0]
    assert torch.equal(second[1], data.x)
    first, second = cluster(2).run(memory_of, apart)
    assert first[0] != second[0]


def test_ranks_of_other_machines_share_nothing():
    rendezvous = SimpleNamespace(rank=0, gather=lambda value: [value, "other"], all_made=lambda make: make())
    sharers = []
    assert (
        opened_once("own", ["here", "there"], rendezvous, lambda count: sharers.append(count) or "store", None)
        == "store"
    )
    assert sharers == [1]


# Scores ###############################################################################################################


@pytest.mark.parametrize(
    "labelled",
    [None, torch.arange(0, 200, 9), torch.arange(200) % 4 == 0, torch.arange(200) // 40, torch.arange(5).int()],
    ids=["by default", "ids", "mask", "as many ids as nodes", "int32"],
)
def test_scores_from_labelled_nodes(parts, labelled):
    data, path = parts(2)
    with partition.open_parts(path) as opened:
        stored = opened.stored_ids()[torch.arange(200)[data.train_mask if labelled is None else labelled]]
    expected = hotness.reverse_pagerank(stores_of(data, path)[1].relation(), stored)
    assert torch.equal(torch.cat(scores_by_part(path, labelled=labelled)), expected)


@pytest.mark.parametrize("name", ["out_degree", "reverse_pagerank"])
def test_scores_of_the_whole_graph(parts, name):
    data, path = parts(2)
    expected = getattr(hotness, name)(stores_of(data, path)[1].relation())
    assert torch.equal(torch.cat(scores_by_part(path, hotness=name)), expected)


@pytest.mark.parametrize("name", quick(hotness.NAMES, "weighted_reverse_pagerank"))
def test_scores_of_edges_within_the_part(parts, name):
    data, path = parts(2, "partitioned")
    found = scores_by_part(path, hotness=name)
    for number, scores in enumerate(found):
        with partition.open_parts(path) as opened:
            ids = opened.part(number).user_ids[None]
        within = data.subgraph(ids)
        assert torch.equal(scores, hotness.scores_of(within, name)[None])


def test_edges_from_the_nodes_beside_the_part_are_not_within_it():
    csc = CSC.from_csc(torch.tensor([0, 3, 5]), torch.tensor([9, 10, 12, 11, 13]), num_src=20)
    found = _within(csc, range(10, 12))
    assert (found.colptr.tolist(), found.row.tolist(), found.num_src) == ([0, 1, 2], [0, 1], 2)


def test_scores_by_the_users_ids(parts):
    path = parts(2)[1]
    with partition.open_parts(path) as opened:
        for number, scores in enumerate(scores_by_part(path, hotness=SCORES)):
            assert torch.equal(scores, SCORES[opened.part(number).user_ids[None]])


def counted(path):
    """What the batches of all ranks read of each node in the first epoch: counted beforehand, and then; and the share
    of it that tiers by these counts, of a third of the rows, have in memory."""
    with open_part(path) as part:
        before = accesses(loader_of_part(part), [0])
    dist.all_reduce(before)
    with open_part(path, tiers={"host": "40%", "hotness": before}) as part:
        loader = loader_of_part(part)
        read = sum(batch.n_id.bincount(minlength=200) for batch in loader)
        dist.all_reduce(read)
        return before, read, part.features.tiers.plan.tiers[0].hit_rate


@pytest.mark.slow
def test_scores_that_ranks_count_together(parts):
    for before, read, share in cluster(2).run(counted, parts(2)[1]):
        assert torch.equal(before, read)
        assert share > 0.5


def test_the_hottest_rows_are_in_memory(parts):
    with open_part(parts(1)[1], tiers=TIERS["scores"]) as part:
        tiers = part.features.tiers
        count = tiers.plan.rows("host")
        assert 0 < count < 200
        part.features[None, "x", torch.arange(count)]
        assert (tiers.stats()["host"].rows, tiers.stats()["disk"].rows) == (count, 0)


# Rows #################################################################################################################


@examples(40)
@given(st.data())
def test_rows_joined_on_another_device(data):
    """What a GPU does with rows that it has gathered and rows that came from other parts."""
    dtype, count = data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(0, 12))
    shape = data.draw(st.sampled_from([(), (3,), (2, 2), (0,)]))
    bytes_ = torch.Size((20, *shape)).numel() * dtype.itemsize
    table = torch.arange(bytes_).remainder(2 if dtype == torch.bool else 120).to(torch.uint8).view(dtype)
    table = table.view(20, *shape)
    own, other = table[:8], table[8:].contiguous()
    row = other[:1].nbytes
    place = torch.tensor(data.draw(st.lists(st.integers(-12, 7), min_size=count, max_size=count)), dtype=torch.int64)
    at = torch.arange(12) * row
    expected = MappedRows(own).join(place, other.view(-1).view(torch.uint8), at)
    is_own = place >= 0
    found = joined_there(own[place[is_own]], is_own, other.view(-1).view(torch.uint8), at, place)
    assert found.dtype == dtype
    assert torch.equal(as_words(found), as_words(expected))


@pytest.mark.slow
def test_every_dtype(tmp_path):
    data = homogeneous()
    for number, dtype in enumerate(DTYPES):
        data[f"d{number}"] = (torch.arange(200)[:, None] % (2 if dtype == torch.bool else 50) + torch.zeros(3)).to(
            dtype
        )
    path = str(tmp_path / "parts")
    partition.write(data, path, parts=1, method="random")
    with open_part(path, tiers={"host": "40%"}) as part:
        ids = torch.randperm(200)
        for number in range(len(DTYPES)):
            expected = as_words(data[f"d{number}"])[ids]
            assert torch.equal(as_words(part.features[None, f"d{number}", ids]), expected)


# What is refused ######################################################################################################


def opened_with(path, of_ranks):
    with open_part(path, tiers=of_ranks[dist.get_rank()]):
        pass


ALIKE = {
    "tiers: expected them on all ranks or on none, found [True, False]": ({}, None),
    "rank 0: ValueError: tiers: expected equal budgets on ranks that share them, found [\"{'gpu': 0, 'peers': [], "
    "'host': 100}\", \"{'gpu': 0, 'peers': [], 'host': None}\"]": ({"host": 100}, {}),
    "rank 0: ValueError: host: expected room for the map of 200 nodes, 800 bytes, found 700": 2 * ({"host": 700},),
    "rank 1: ValueError: tiers: expected entries among ['gpu', 'peers', 'host', 'hotness', 'labelled', 'device'], "
    "found 'disk'": ({}, {"disk": "/tmp"}),
}


@pytest.mark.parametrize(("text", "given"), ALIKE.items())
def test_all_ranks_raise_alike(parts, text, given):
    assert cluster(2).results(opened_with, parts(1)[1], given) == [(False, f"ValueError: {text}")] * 2


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"labelled": torch.tensor([200])},
            "IndexError: labelled[0] = 200 is out of range: expected nodes in [0, 200)",
        ),
        ({"host": "much"}, "ValueError: host: expected a number and a unit such as '8GiB', '500MB' or '25%', found"),
        ({"gpu": "much"}, "ValueError: gpu: expected a number and a unit such as '8GiB', '500MB' or '25%', found"),
        ({"hotness": torch.ones(3)}, "ValueError: hotness: expected 200 scores, found shape (3,)"),
    ],
    ids=["labelled", "host", "gpu", "hotness"],
)
def test_what_one_rank_is_given_is_checked_also_where_another_one_fills_them(parts, given, text):
    results = cluster(2).results(opened_with, parts(1)[1], [{}, given])
    assert [returned for returned, _ in results] == [False, False]
    assert results[0][1].startswith(f"ValueError: rank 1: {text}")
    assert text in results[1][1]


def short_of_memory(path):
    available = memory.available_memory
    memory.available_memory = lambda: 100
    try:
        with open_part(path, tiers={}):
            pass
    finally:
        memory.available_memory = available


def test_too_little_memory_on_the_rank_that_fills_them(parts):
    for returned, text in cluster(2).results(short_of_memory, parts(1)[1]):
        assert not returned
        assert re.match(r"ValueError: rank 0: MemoryError: host: expected \d+ bytes of memory, found 200 avail", text)


@pytest.mark.parametrize(
    ("tiers", "error", "message"),
    [
        ("50%", TypeError, "tiers: expected a mapping, such as {'host': '4GiB'}, found str"),
        ({"host": "much"}, ValueError, "host: expected a number and a unit such as '8GiB', '500MB' or '25%', found 'm"),
        ({"gpu": None}, TypeError, "gpu: expected bytes, a share or a string such as '8GiB', found NoneType"),
        ({"hotness": "pagerank"}, ValueError, "hotness: expected scores or one of ('out_degree', 'reverse_pagerank'"),
        ({"hotness": torch.ones(3)}, ValueError, "hotness: expected 200 scores, found shape (3,)"),
        ({"labelled": torch.tensor([200])}, IndexError, "labelled[0] = 200 is out of range: expected nodes in [0, "),
    ],
)  # fmt: skip
def test_what_is_refused(parts, tiers, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        open_part(parts(1)[1], tiers=tiers)


def test_a_graph_without_training_nodes(tmp_path):
    data, path = homogeneous(), str(tmp_path / "parts")
    del data.train_mask
    partition.write(data, path, parts=1, method="random")
    text = "labelled: expected the nodes that training starts from, found no split 'train' either"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        open_part(path, tiers={})
    with open_part(path, tiers={"labelled": torch.arange(9)}) as part:
        assert isinstance(part.features.tiers, TieredFeatureStore)


def test_scores_by_type_of_a_graph_without_types(parts):
    with pytest.raises(TypeError, match=r"^hotness: expected scores as a tensor, or a name, found dict$"):
        open_part(parts(1)[1], tiers={"hotness": {"paper": torch.ones(200)}})
