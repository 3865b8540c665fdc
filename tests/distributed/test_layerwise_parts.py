"""Layer-wise samples over parts: every batch is the one that a single process makes."""

import functools
import re
import time
from types import SimpleNamespace

import pytest
import torch
from helpers.boundary import boundary_graph, owners_of
from helpers.cluster import cluster
from helpers.parts import (
    as_plain,
    batches_of_rank,
    check_batches,
    expected_batches,
    loader_over,
    stores_of,
    traffic_of_an_epoch,
    with_links,
)
from helpers.slow import NIGHTLY, SLOW, quick

from torch_gnnscale import LayerSampler, partition
from torch_gnnscale.comm.mesh import Grid, Ranks
from torch_gnnscale.comm.rendezvous import rank_and_world
from torch_gnnscale.comm.steps import Steps
from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed.layerwise_sampling import GridLayers
from torch_gnnscale.loader.epochs import Share
from torch_gnnscale.sampler.minibatch import MiniBatch

METHODS = {
    "ladies": {"method": "ladies", "num_neighbors": [12, 9]},
    "fastgcn": {"method": "fastgcn", "num_neighbors": [40, 30], "seed_order": "global"},
    "labor": {"method": "labor"},
    "bulk": {"method": "ladies", "num_neighbors": [12, 9], "bulk": 3},
    "bulk of neighbors, serve": {"bulk": 2, "uneven": "serve", "seed_order": "global", "batch_size": 5},
}


@pytest.fixture(scope="module")
def replicated(tmp_path_factory):
    """(data, directory of two parts of rows; every rank has all edges)."""
    return with_links(tmp_path_factory, 2)


@pytest.mark.parametrize("options", quick(METHODS, "labor"))
def test_where_every_rank_has_all_edges(replicated, options):
    data, path = replicated
    expected = expected_batches(data, path, "nodes", 1, options, 2)
    check_batches(cluster(2).run(batches_of_rank, path, "nodes", 1, options), expected)


@pytest.mark.slow
def test_where_every_rank_has_all_edges_sampling_takes_no_round(replicated):
    for steps, traffic in cluster(2).run(traffic_of_an_epoch, replicated[1], METHODS["ladies"]):
        rounds = {purpose: entry["rounds"] for purpose, entry in traffic.items()}
        assert rounds == {"headers": 0, "ids": steps, "rows": steps}


@pytest.mark.slow
def test_links(replicated):
    data, path = replicated
    options = {"method": "labor", "seed_order": "global", "batch_size": 100}
    expected = expected_batches(data, path, "links", 1, options, 2)
    check_batches(cluster(2).run(batches_of_rank, path, "links", 1, options), expected)


# Edges in parts #######################################################################################################


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """parts(K): (the boundary graph, directory of K parts of its edges), written once."""

    @functools.cache
    def of(count):
        data, path = boundary_graph(), tmp_path_factory.mktemp("parts") / "parts"
        partition.write(data, path, parts=count, owners=owners_of(count), topology="partitioned")
        return data, str(path)

    return of


def loader_of(stores, seeds, method, options, hops, **given):
    """A loader with a LayerSampler of these options."""
    sampler = LayerSampler(stores, hops, method, **options)
    return loader_over(stores, seeds, "nodes", {"neighbor_sampler": sampler, "layers": sampler.layers, **given})


def epoch_of_rank(path, cases, given):
    """The batches of an epoch by each case, and what was exchanged."""
    with open_part(path) as part:
        seeds = part.input_nodes("train", "all" if given.get("seed_order") == "global" else "part")
        stores = part.features, part.graph
        found = [[as_plain(batch) for batch in loader_of(stores, seeds, *case, **given)] for case in cases]
        return found, part.stats()


def by_one_process(data, path, cases, world, given):
    """found[rank][case]: the same by one process."""
    stores = stores_of(data, path)
    with partition.open_parts(path) as opened:
        count = opened.book.num_parts
        owned = given.get("seed_order") != "global"
        of_parts = [opened.part(k).seeds[None, "train"] if owned else opened.input_nodes("train") for k in range(count)]
    given = {name: value for name, value in given.items() if name not in ("seed_order", "bulk", "uneven")}
    found = []
    for rank in range(world):
        part = rank // (world // count)
        of_cases = []
        for case in cases:
            loaders = [loader_of(stores, seeds, *case, **given) for seeds in of_parts]
            share = Share(Ranks(rank, world, part, count), "owned" if owned else "global", "serve")
            share = share.with_counts([len(loader) for loader in loaders] if owned else [len(loaders[0])])
            loader = loaders[share.part]
            if hasattr(loader.sampler, "part"):
                loader.sampler.part = share.part
            positions = [index.positions for index in loader._seed_order.numbered(loader.batch_sampler, 0)]
            steps = [MiniBatch(0, step.number, positions[step.chunk % len(positions)]) for step in share.positions(0)]
            of_cases.append([as_plain(loader.collate_fn(index)) for index in steps])
        found.append(of_cases)
    return found


LABOR = {
    "default": ("labor", {}, [3, 2]),
    "poisson, gcn": ("labor", {"scheme": "poisson", "aggregation": "gcn", "layer_dependency": True}, [3, 2, 2]),
    "batch dependency": ("labor", {"batch_dependency": 2, "weights": "unbiased"}, [3, 2]),
    "layers": ("labor", {"layers": True, "aggregation": "sum"}, [2, -1]),
    "without destinations": ("labor", {"layers": True, "include_dst": False, "aggregation": "gcn"}, [3, 0, 2]),
    "no hop": ("labor", {}, []),
}
OF_NODES = {
    "ladies": ("ladies", {}, [12, 9]),
    "counts": ("ladies", {"scores": "counts", "scheme": "successive", "aggregation": "gcn"}, [6, 9, 4]),
    "poisson": ("ladies", {"scheme": "poisson", "weights": "unbiased", "keep_known": False}, [8, 9]),
    "layers": ("ladies", {"layers": True, "aggregation": "sum"}, [4, -1, 3]),
    "the matrix paper's": ("ladies", {"scores": "counts", "scheme": "successive", "layers": True, "include_dst": False},
                           [5, 4, 4]),
    "keep known": ("ladies", {"keep_known": True}, [5, 7]),
    "fastgcn": ("fastgcn", {}, [30, 40]),
    "fastgcn, keep known": ("fastgcn", {"keep_known": True}, [30, 40]),
    "fastgcn's own": ("fastgcn", {"scheme": "replace", "weights": "unbiased", "layers": True, "include_dst": False,
                                  "aggregation": "gcn"}, [50, 60]),
    "nothing": ("ladies", {}, [0, 3]),
    "no hop": ("fastgcn", {}, []),
}  # fmt: skip
GIVEN = {
    "owned": {},
    "global": {"seed_order": "global"},
    "bulk": {"bulk": 2, "seed_order": "global", "uneven": "serve", "batch_size": 5},
}
GRIDS = [(2, 2), (4, 4), (2, 4), (4, 8)]


def check(data, path, world, cases, given):
    expected = by_one_process(data, path, list(cases.values()), world, given)
    given = {"uneven": "serve", **given}
    for (found, _), theirs in zip(cluster(world).run(epoch_of_rank, path, list(cases.values()), given), expected,
                                  strict=True):  # fmt: skip
        for name, ours, of_case in zip(cases, found, theirs, strict=True):
            assert len(ours) == len(of_case), name
            for batch, other in zip(ours, of_case, strict=True):
                assert batch == other, name


@pytest.mark.slow
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize(("count", "world"), [*GRIDS[:3], NIGHTLY(*GRIDS[3])])
def test_batches_are_those_of_one_process(parts, count, world, given):
    """(p, c) is (world, world / count). Every grid meets every order, and both meet both methods."""
    number = GRIDS.index((count, world)) + (given == "bulk")
    check(*parts(count), world, (OF_NODES, LABOR)[number % 2], GIVEN[given])


def test_two_ranks_of_each_part(parts):
    check(*parts(2), 4, {"ladies": ("ladies", {}, [20, 9])}, {"seed_order": "global", "batch_size": 30})


FEW = {name: OF_NODES[name] for name in ("ladies", "keep known", "fastgcn's own")} | {
    name: LABOR[name] for name in ("default", "poisson, gcn")
}


@pytest.mark.slow
def test_batches_of_two_ranks_are_those_of_one_process(parts):
    check(*parts(2), 2, FEW, GIVEN["bulk"])


@pytest.mark.parametrize("case", [*OF_NODES.values(), *LABOR.values()], ids=[*OF_NODES, *LABOR])
def test_one_part_on_one_rank(parts, case):
    data, path = parts(1)
    expected = by_one_process(data, path, [case], 1, GIVEN["bulk"])
    found, _ = epoch_of_rank(path, [case], GIVEN["bulk"])
    assert [found] == expected


# What travels #########################################################################################################


@pytest.mark.slow
@pytest.mark.parametrize("hops", [1, 3])
@pytest.mark.parametrize("order", ["owned", "global"])
def test_rounds(parts, hops, order):
    """2L + 2 rounds of a batch become 2 of its rows, and 2L for a bulk; the first hop's are left out with own seeds."""
    given = {"seed_order": order, "bulk": 2, "batch_size": 20}
    for method, purpose in (("ladies", "edges"), ("labor", "picks")):
        for (batches,), traffic in cluster(2).run(epoch_of_rank, parts(2)[1], [(method, {}, [5] * hops)], given):
            steps = len(batches)
            rounds = {name: entry["rounds"] for name, entry in traffic.items() if entry["rounds"]}
            of_hops = -(-steps // 2) * (hops - (order == "owned"))
            expected = {"ids": steps, "rows": steps, "requests": of_hops, purpose: of_hops}
            assert rounds == {name: count for name, count in expected.items() if count}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "of_row"), [("ladies", ["scores", "drawn"]), ("fastgcn", ["drawn"])])
def test_rounds_with_copies(parts, method, of_row):
    """For a bulk, 2L rounds in the column, of own seeds, too; in the row 1 of seeds and as many per hop as it needs."""
    given, hops = {"bulk": 2, "batch_size": 5}, 3
    for (batches,), traffic in cluster(4).run(epoch_of_rank, parts(2)[1], [(method, {}, [5] * hops)], given):
        steps, bulks = len(batches), -(-len(batches) // 2)
        rounds = {name: entry["rounds"] for name, entry in traffic.items() if entry["rounds"] and name != "tables"}
        expected = {"ids": steps, "rows": steps, "seeds": bulks}
        assert rounds == expected | dict.fromkeys(["requests", "edges", *of_row], hops * bulks)


@pytest.mark.parametrize(("count", "world"), [(2, 2), SLOW(2, 4), SLOW(4, 4)])
def test_what_travels_in_the_first_hop(parts, count, world):
    """Of the rows of A, kbd nonzeros are asked for by all ranks, each once, by the rank of the row whose column has its
    part; kbd is the sum of the degrees of all seeds of a bulk."""
    data, path = parts(count)
    copies, size = world // count, 5
    with partition.open_parts(path) as opened:
        bounds = opened.book.bounds[None].tolist()
        degree = torch.zeros(data.num_nodes, dtype=torch.int64)
        degree.scatter_add_(0, opened.stored_ids()[data.edge_index[1]], torch.ones(data.num_edges, dtype=torch.int64))
        seeds = opened.stored_ids()[opened.input_nodes("train")]
    given = {"seed_order": "global", "bulk": 100, "batch_size": size, "shuffle": False, "uneven": "serve"}
    found = cluster(world).run(epoch_of_rank, path, [("ladies", {}, [6])], given)
    batches = seeds.split(size)
    each = [[batch for t, batch in enumerate(batches) if t % world // copies == i] for i in range(count)]
    of_rows = [torch.cat(of_row) for of_row in each]
    asked = 0
    for rank, (_, traffic) in enumerate(found):
        i, j = divmod(rank, copies)
        first, last = bounds[j * count // copies], bounds[(j + 1) * count // copies]
        node = of_rows[i][(of_rows[i] >= first) & (of_rows[i] < last)]
        own = (node >= bounds[i]) & (node < bounds[i + 1])
        assert traffic["requests"]["bytes_sent"] == 4 * int((~own).sum())
        assert traffic["edges"]["bytes_received"] == 4 * int((~own).sum() + 2 * degree[node[~own]].sum())
        asked += int(degree[node].sum())
        others = of_rows[i][(of_rows[i] < first) | (of_rows[i] >= last)]
        if copies > 1:
            assert 0 < traffic["scores"]["bytes_received"] <= 16 * int(degree[others].sum())
    assert asked == int(degree[seeds].sum())


@pytest.mark.parametrize("method", ["ladies", SLOW("fastgcn")])
def test_edges_come_once_for_all_hops_and_batches_of_a_bulk(parts, method):
    data, path = parts(2)
    with partition.open_parts(path) as opened:
        bounds, of_all = opened.book.bounds[None].tolist(), opened.stored_ids()
    degree = torch.zeros(data.num_nodes, dtype=torch.int64)
    degree.scatter_add_(0, of_all[data.edge_index[1]], torch.ones(data.num_edges, dtype=torch.int64))
    given = {"seed_order": "global", "bulk": 100, "batch_size": 9}
    cases = [(method, {"layers": True}, [8, 40, 40])]
    for rank, ((batches,), traffic) in enumerate(cluster(2).run(epoch_of_rank, path, cases, given)):
        expanded = []  # the nodes that hops of each batch expand, once for all hops
        for batch in map(dict, batches):
            expanded += batch["n_id"][2][: sum(batch["num_sampled_nodes"][:-1])]
        node = of_all[torch.tensor(expanded)].unique()
        others = node[(node < bounds[rank]) | (node >= bounds[rank + 1])]
        assert len(node) < len(expanded)
        assert traffic["requests"]["bytes_sent"] == 4 * len(others)
        assert traffic["edges"]["bytes_received"] == 4 * int(len(others) + 2 * degree[others].sum())


# Where the time goes ##################################################################################################


def seconds_of_rank(path, cases):
    """Of an epoch without threads, by case (None: neighbors): (its seconds, those that the loader counted)."""
    with open_part(path) as part:
        found = []
        given = {"prefetch": 0, "bulk": 4, "seed_order": "global"}
        stores, seeds = (part.features, part.graph), part.input_nodes("train", "all")
        for case in cases:
            if case is None:
                loader = loader_over(stores, seeds, "nodes", given)
            else:
                loader = loader_of(stores, seeds, *case, **given)
            begin = time.perf_counter()
            for _ in loader:
                pass
            took = time.perf_counter() - begin
            found.append((took, dict(loader.seconds)))
        return found


@pytest.mark.slow
def test_all_time_counts_once(parts):
    """``sample`` and ``gather`` are parts of the epoch."""
    cases = [None, LABOR["default"], OF_NODES["ladies"]]
    for of_rank in cluster(2).run(seconds_of_rank, parts(2)[1], cases):
        for took, counted in of_rank:
            assert min(counted["sample"], counted["gather"]) > 0
            assert counted["sample"] + counted["gather"] <= took


# Errors ###############################################################################################################


def outside(path):
    with open_part(path) as part:
        LayerSampler((part.features, part.graph), [2]).sample(torch.arange(3), None, key=1)


def refused(path, method):
    with open_part(path) as part:
        loader_of((part.features, part.graph), part.input_nodes("train"), method, {}, [2])


def test_a_call_outside_of_a_loader_is_refused(parts):
    text = (
        "RuntimeError: sample: expected an iteration of a torch_gnnscale.NeighborLoader over the stores of a part, in "
        "whose steps all ranks sample together, found a call outside of one"
    )
    assert cluster(2).results(outside, parts(2)[1]) == [(False, text)] * 2


@pytest.mark.slow
def test_copies_that_no_grid_has(parts):
    text = (
        "ValueError: method='ladies' with a partitioned topology: expected c copies of each part, 2 / c^2 being whole: "
        "c in [1], found 2"
    )
    assert cluster(2).results(refused, parts(1)[1], "ladies") == [(False, text)] * 2
    steps, executor = Steps.__new__(Steps), GridLayers.__new__(GridLayers)
    steps.grid, executor.options = Grid(36, 9), SimpleNamespace(drawing=SimpleNamespace(method="ladies"))
    with pytest.raises(ValueError, match=re.escape("36 / c^2 being whole: c in [1, 2, 3, 6], found 4")):
        executor.join(steps, True)
    assert all(returned for returned, _ in cluster(2).results(refused, parts(1)[1], "labor"))


def malformed(path, bad_rank, case):
    """One rank's edges lead to nodes that do not exist, from its second batch on; what every rank's loop comes to."""
    with open_part(path) as part:
        loader = loader_of((part.features, part.graph), part.input_nodes("train"), *case, prefetch=0)
        found, iterator = [], iter(loader)
        for number in range(len(loader)):
            if number == 1 and rank_and_world()[0] == bad_rank:
                row = loader._sampler.graph.stored.row
                row[0] = torch.full_like(row[0], 1 << 20)
            try:
                found.append(as_plain(next(iterator)))
            except Exception as error:
                found.append(f"{type(error).__name__}: {error}")
        return found


@pytest.mark.parametrize("case", [OF_NODES["ladies"], LABOR["default"]], ids=["ladies", "labor"])
@pytest.mark.parametrize(("count", "world"), [(2, 2), SLOW(2, 4)])
def test_an_error_at_one_rank_is_raised_on_all(parts, count, world, case):
    found = cluster(world).run(malformed, parts(count)[1], 0, case)
    ends = [of_rank[-1] for of_rank in found]
    assert ends[0].startswith("RuntimeError: the graph is malformed: row[")
    assert all("rank 0" in text for text in ends[1:])
