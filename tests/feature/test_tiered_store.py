"""Tiered stores: the rows of the untiered one, given to every loader, and errors that name what was found."""

import os
import pickle
import re
import shutil

import pytest
import torch
from helpers import forked
from helpers.boundary import ENDS
from helpers.data import DTYPES, make_data, no_loader_threads, plain, processes, status_of_fork
from helpers.slow import SLOW
from helpers.tiers import BUDGETS, NODES, WIDE, make, node_data, own_ids, score_of
from torch_geometric.data import Data, TensorAttr
from torch_geometric.loader import NodeLoader

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, NeighborSampler
from torch_gnnscale import TieredFeatureStore as Tiered
from torch_gnnscale.feature import hotness
from torch_gnnscale.loader import accesses
from torch_gnnscale.topology.reorder import by_score, reorder_data


@pytest.fixture(params=BUDGETS)
def budgets(request):
    return request.param


@pytest.fixture(params=["from_data", "open"])
def store(request, budgets, tmp_path):
    with make(request.param, budgets, tmp_path) as made:
        yield made


def test_rows(store):
    data = node_data()
    index = torch.cat([ENDS, torch.randint(NODES, (500,), generator=torch.Generator().manual_seed(0)), ENDS[-1:]])
    for name in ("x", "y", "train_mask"):
        found = store[None, name, own_ids(store, index)]
        assert found.dtype == data[name].dtype
        assert torch.equal(found, data[name][index])
        assert store.get_tensor_size(group_name=None, attr_name=name) == tuple(data[name].shape)
        every = data[name] if store.order is None else data[name][store.order.old]
        assert torch.equal(store[None, name, None], every)
        assert torch.equal(store[None, name, 5], every[5])
        assert torch.equal(store[None, name, slice(-5, None)], every[-5:])
        mask = torch.arange(NODES) % 7 == 2
        assert torch.equal(store[None, name, mask], every[mask])
    assert store[None, "z", index] is None
    attrs = {attr.attr_name for attr in store.get_all_tensor_attrs()}
    assert attrs == {"x", "y", "train_mask"}
    x, y = store.multi_get_tensor([TensorAttr(None, name, own_ids(store, index)) for name in ("x", "y")])
    assert torch.equal(x[:, 0].long(), index)
    assert torch.equal(y, data.y[index])


@pytest.mark.parametrize("kwargs", [{}, {"prefetch": 0}, SLOW(processes(2))], ids=str)
def test_batches_are_those_of_the_untiered_loader(store, kwargs):
    data = node_data()
    order = torch.randperm(NODES, generator=torch.Generator().manual_seed(1))
    seeds = torch.cat([ENDS, order[~torch.isin(order, ENDS)]])[:81]  # a last batch of one
    options = {"num_neighbors": [4, 3], "batch_size": 16, "shuffle": True, "seed": 5}
    graph = GraphStore.from_data(data, order=store.order)
    loader = NeighborLoader((store, graph), input_nodes=seeds, **options, **kwargs)
    if store.order is None:
        expected = NeighborLoader((FeatureStore.from_data(data), graph), input_nodes=seeds, **options)
        assert [plain(batch) for batch in loader] == [plain(batch) for batch in expected]
        return
    # Draws are keyed by stored ids: the oracle is the loader over the same renumbered graph, in its own ids.
    moved = reorder_data(data, store.order)
    stores = FeatureStore.from_data(moved), GraphStore.from_data(moved)
    expected = NeighborLoader(stores, input_nodes=store.order.new[seeds], **options)
    for ours, theirs in zip(loader, expected, strict=True):
        theirs.n_id = store.order.old[theirs.n_id]
        assert plain(ours) == plain(theirs)
        assert torch.equal(ours.x, data.x[ours.n_id])
        assert torch.equal(ours.n_id[: ours.batch_size], seeds[ours.input_id])
        assert torch.equal(ours.n_id[ours.edge_index], data.edge_index[:, ours.e_id])
    assert no_loader_threads()


def test_every_id_that_pyg_gives_is_a_stored_one(store):
    """Samplers and stores agree under PyG's own loader, too, in the ids of the stores."""
    data = node_data()
    graph = GraphStore.from_data(data, order=store.order)
    sampler = NeighborSampler((store, graph), [4, 3])
    for batch in NodeLoader((store, graph), sampler, own_ids(store, torch.arange(40)), batch_size=20):
        ids = batch.n_id if store.order is None else store.order.old[batch.n_id]
        assert torch.equal(batch.x, data.x[ids])


@pytest.mark.slow
def test_stats(tmp_path):
    data = node_data()
    with Tiered.from_data(data, hotness="out_degree", host="40%", disk=tmp_path) as store:
        assert all(use == (0, 0, 0.0, 0.0, 0.0) for use in store.stats().values())
        graph = GraphStore.from_data(data)
        for workers in (0, 2):
            before = {name: use.rows for name, use in store.stats().items()}
            loader = NeighborLoader(
                (store, graph), [4, 3], torch.arange(60), batch_size=20, seed=1, **processes(workers)
            )
            nodes = torch.cat([batch.n_id for batch in loader])
            hot = by_score(score_of(data)).new[nodes] < store.plan.rows("host")
            after = store.stats()
            assert after["host"].rows - before["host"] == int(hot.sum())
            assert after["disk"].rows - before["disk"] == int((~hot).sum())
        for use in after.values():
            assert use.num_bytes == use.rows * WIDE * 8
            assert use.seconds > 0
            assert use.gb_per_s == pytest.approx(use.num_bytes / use.seconds / 1e9)
        assert sum(use.hit_rate for use in after.values()) == pytest.approx(1.0)


def test_stats_of_two_attributes_that_are_cut(tmp_path):
    data = node_data()
    data.z = data.x[:, : WIDE // 2].to(torch.float32)
    with Tiered.from_data(data, hotness="out_degree", host="40%", disk=tmp_path) as store:
        assert set(store.plan.whole) == {"y", "train_mask"}
        hottest = by_score(score_of(data)).old
        in_memory = store.plan.rows("host")
        store.get_tensor(group_name=None, attr_name="x", index=hottest[in_memory - 5 : in_memory + 3])
        store.get_tensor(group_name=None, attr_name="z", index=hottest[in_memory - 2 : in_memory + 7])
        use = store.stats()
        assert (use["host"].rows, use["disk"].rows) == (5 + 2, 3 + 7)
        assert use["host"].num_bytes == 5 * WIDE * 8 + 2 * WIDE * 2
        assert use["disk"].num_bytes == 3 * WIDE * 8 + 7 * WIDE * 2
        assert use["host"].hit_rate == pytest.approx(7 / 17)


def test_stats_count_the_bytes_that_are_stored(tmp_path):
    with Tiered.from_data(
        node_data(), hotness="out_degree", host="40%", disk=tmp_path, storage=torch.bfloat16
    ) as store:
        store.get_tensor(group_name=None, attr_name="x", index=torch.arange(NODES))
        use = store.stats()
        assert min(entry.rows for entry in use.values()) > 0
        assert all(entry.num_bytes == entry.rows * WIDE * 2 for entry in use.values())


def test_one_row(store):
    x = node_data().x
    for index in (0, 7, NODES - 1, -1, -NODES):
        found = store.get_tensor(group_name=None, attr_name="x", index=index)
        row = index % NODES
        assert torch.equal(found, x[row if store.order is None else store.order.old[row]])
    for index in (NODES, -NODES - 1):
        with pytest.raises(IndexError, match=rf"^index: expected a row in \[-{NODES}, {NODES}\), found {index}$"):
            store.get_tensor(group_name=None, attr_name="x", index=index)


def test_expected_and_found_hit_rates_agree_if_scores_are_accesses(tmp_path):
    data = node_data()
    graph = GraphStore.from_data(data)
    loader = NeighborLoader((FeatureStore.from_data(data), graph), [4, 3], torch.arange(60), batch_size=20, seed=1)
    exact = accesses(loader, [0])
    with Tiered.from_data(data, hotness=exact, host="30%", disk=tmp_path) as store:
        for _ in NeighborLoader((store, graph), [4, 3], torch.arange(60), batch_size=20, seed=1):
            pass
        found = {name: use.hit_rate for name, use in store.stats().items()}
        assert found == pytest.approx({tier.name: tier.hit_rate for tier in store.plan.tiers})


def test_accesses_of_renumbered_stores_are_by_the_users_ids():
    data = node_data()
    with Tiered.from_data(data, hotness="out_degree", renumbered=True) as store:
        loader = NeighborLoader(
            (store, GraphStore.from_data(data, order=store.order)), [4, 3], torch.arange(60), seed=1
        )
        expected = torch.bincount(torch.cat([batch.n_id for batch in loader]), minlength=NODES)
        assert torch.equal(accesses(loader, [0]), expected)


@pytest.mark.parametrize("storage", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_storage_in_16_bits(storage, dtype, tmp_path):
    data = node_data(dtype)
    with Tiered.from_data(data, hotness="out_degree", host="40%", disk=tmp_path, storage=storage) as store:
        index = torch.arange(NODES).flip(0)
        assert torch.equal(store[None, "x", index], data.x[index].to(storage).to(dtype))
        assert torch.equal(store[None, "y", index], data.y[index])
        assert store.plan.row_bytes == 2 * WIDE + data.y.element_size()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)], ids=str)
def test_every_dtype_on_every_tier(dtype, shape, tmp_path):
    rows = torch.arange(40).view(-1, *[1] * len(shape)).expand(40, *shape).contiguous().to(dtype)
    data, index = Data(x=rows), torch.tensor([39, 0, 7, 7])
    for renumbered in (False, True):
        options = {"host": "60%" if renumbered else 0, "renumbered": renumbered}
        falling = torch.arange(40).flip(0)
        with Tiered.from_data(data, hotness=falling, disk=tmp_path, **options) as store:
            assert torch.equal(store[None, "x", own_ids(store, index)], rows[index])
            tiers = {tier.name for tier in store.plan.tiers}
            assert tiers == {*(["host"] if renumbered or not rows.numel() else []), *(["disk"] if rows.numel() else [])}
        given = data if not renumbered else reorder_data(data, by_score(falling))
        FeatureStore.from_data(given).save(tmp_path / str(renumbered))
        with Tiered.open(tmp_path / str(renumbered), falling, **options) as store:
            assert torch.equal(store[None, "x", own_ids(store, index)], rows[index])


def test_some_attributes_of_a_saved_store(tmp_path):
    """Those of edges among the others."""
    data = make_data()
    FeatureStore.from_data(data).save(tmp_path / "saved")
    score = torch.arange(data.num_nodes)
    for names in (None, ["edge_attr"]):
        with pytest.raises(ValueError, match=r"^hotness: expected scores of the edges of \(None, None\), which have"):
            Tiered.open(tmp_path / "saved", score, names=names)
    with Tiered.open(tmp_path / "saved", score, names=["x"], host="40%") as store:
        assert [attr.attr_name for attr in store.get_all_tensor_attrs()] == ["x"]
        assert torch.equal(store[None, "x", torch.tensor([7, 199])], data.x[[7, 199]])


def test_names_are_no_paths(tmp_path):
    names = [str(tmp_path / "elsewhere"), "..", "x" * 300, ""]
    data = Data(edge_index=torch.zeros(2, 1, dtype=torch.int64), num_nodes=9)
    for number, name in enumerate(names):
        data[name] = torch.arange(9.0)[:, None] + number
    (tmp_path / "disk").mkdir()
    with Tiered.from_data(data, hotness="out_degree", host=0, disk=tmp_path / "disk") as store:
        assert store.plan.map_bytes == 0
        for name in names:
            assert torch.equal(store[None, name, torch.tensor([8, 3])], data[name][[8, 3]])
        assert [file.name for file in tmp_path.iterdir()] == ["disk"]
    assert not any((tmp_path / "disk").iterdir())


def test_other_hotness(tmp_path):
    data = node_data()
    csc = GraphStore.from_data(data).relation()
    expected = {
        "weighted_reverse_pagerank": hotness.reverse_pagerank(csc, data.train_mask),
        "reverse_pagerank": hotness.reverse_pagerank(csc),
        "out_degree": hotness.out_degree(csc),
    }
    for name in expected:
        with Tiered.from_data(data, hotness=name, renumbered=True) as store:
            assert torch.equal(store.order.old, by_score(expected[name]).old)
    labelled = torch.arange(5)
    with Tiered.from_data(data, labelled=labelled, renumbered=True) as store:
        assert torch.equal(store.order.old, by_score(hotness.reverse_pagerank(csc, labelled)).old)
    with Tiered.from_data(data, hotness=torch.rand(NODES), names=["y"]) as store:
        assert [attr.attr_name for attr in store.get_all_tensor_attrs()] == ["y"]
    data.edge_attr, data.titles = torch.zeros(data.num_edges, 2), [""] * NODES  # which tiers do not hold
    with Tiered.from_data(data, hotness=torch.rand(NODES), names=["y"]) as store:
        assert [attr.attr_name for attr in store.get_all_tensor_attrs()] == ["y"]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "name"), [("from_data", "renumbered memory and disk"), ("open", "memory and disk")])
def test_pickled_stores_share_memory_with_another_process(way, name, tmp_path):
    store = make(way, name, tmp_path)
    (tmp_path / "store.pickle").write_bytes(pickle.dumps(store))
    assert (tmp_path / "store.pickle").stat().st_size < 20_000 + (0 if store.order is None else 16 * NODES)
    code = (
        "import pickle, sys, torch; store = pickle.load(open(sys.argv[1], 'rb'));"
        "print(store[None, 'x', torch.tensor([3, 150])][:, 0].tolist()); print(store.order is None);"
    )
    run = forked.run(code, str(tmp_path / "store.pickle"))
    assert run.returncode == 0, run.stderr
    ids = [3, 150] if store.order is None else store.order.old[[3, 150]].tolist()
    assert run.stdout.splitlines() == [str([float(i) for i in ids]), str(store.order is None)]
    assert sum(use.rows for use in store.stats().values()) == 2  # the other process's
    store.close()


def test_a_pickle_of_a_store_that_was_closed():
    store = Tiered.from_data(node_data())
    pickled = pickle.dumps(store)
    store.close()
    with pytest.raises(OSError, match=r"^/proc/\d+/fd/\d+: expected host memory that process"):
        pickle.loads(pickled)
    with pytest.raises(ValueError, match=r"^the store is closed$"):
        pickle.dumps(store)


def test_a_closed_store(tmp_path):
    store = Tiered.from_data(node_data(), host="40%", disk=tmp_path)
    kept = store[None, "x", torch.tensor([7])]
    assert len(os.listdir(tmp_path)) == 1
    store.close()
    store.close()
    assert os.listdir(tmp_path) == []
    assert store.closed
    assert kept[0, 0] == 7
    assert repr(store).startswith("TieredFeatureStore(closed")
    x = {"group_name": None, "attr_name": "x", "index": None}
    for call in (
        store.stats, store.all_attrs, store.get_all_tensor_attrs, lambda: store.get_tensor_size(**x),
        lambda: store.get_tensor(**x), lambda: store[None, "x", torch.tensor([0])], lambda: store[None, "x", 0],
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"^the store is closed$"):
            call()


def test_a_dropped_store_leaves_no_files(tmp_path):
    store = Tiered.from_data(node_data(), host="40%", disk=tmp_path)
    del store
    assert os.listdir(tmp_path) == []


def test_files_that_somebody_else_deleted_are_not_missed(tmp_path):
    store = Tiered.from_data(node_data(), host="40%", disk=tmp_path)
    shutil.rmtree(tmp_path)
    store.close()


def test_a_forked_process_deletes_nothing(tmp_path):
    store = Tiered.from_data(node_data(), host="40%", disk=tmp_path)
    assert status_of_fork(store.close) == 0
    assert len(os.listdir(tmp_path)) == 1
    assert torch.equal(store[None, "x", None], node_data().x)
    store.close()


def test_graphs_in_another_order_are_refused():
    data = node_data()
    plain_graph = GraphStore.from_data(data)
    with Tiered.from_data(data, hotness="out_degree", renumbered=True) as store:
        other = GraphStore.from_data(data, order=store.order.inverse())
        for graph, found in ((plain_graph, "another and the user's"), (other, "another and another")):
            message = f"data: expected features and graph in one order of nodes, found {found}; "
            with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
                NeighborLoader((store, graph), [2], torch.arange(3))
        graph = GraphStore.from_data(data, order=store.order)
        with pytest.raises(ValueError, match="found the user's and another"):
            NeighborLoader((FeatureStore.from_data(data), graph), [2], torch.arange(3))
        assert torch.equal(pickle.loads(pickle.dumps(graph)).order.old, store.order.old)


def test_saved_graphs_keep_their_order(tmp_path):
    data = node_data()
    order = by_score(score_of(data))
    GraphStore.from_data(data, order=order).save(tmp_path / "graph")
    found = GraphStore.open(tmp_path / "graph").order
    assert torch.equal(found.old, order.old)
    assert torch.equal(found.new, order.new)


@pytest.mark.parametrize("prefetch", [0, 4])
def test_a_store_that_is_closed_while_a_loader_reads_it(prefetch):
    data = node_data()
    store = Tiered.from_data(data)
    loader = NeighborLoader((store, GraphStore.from_data(data)), [3], batch_size=10, prefetch=prefetch)
    batches = iter(loader)
    next(batches)
    store.close()
    with pytest.raises(ValueError, match=r"^the store is closed$"):
        list(batches)


def test_another_place_to_gather(store):
    assert store.on("cpu") is store
    store.close()
    with pytest.raises(ValueError, match=r"^the store is closed$"):
        store.on("cpu")


def test_a_relative_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Tiered.from_data(node_data(), host="40%", disk=".") as store:
        monkeypatch.chdir("/")
        assert torch.equal(pickle.loads(pickle.dumps(store))[None, "x", None], node_data().x)
    assert os.listdir(tmp_path) == []


@pytest.mark.cuda
@pytest.mark.parametrize("budgets", [{"gpu": "30%"}, {"gpu": "100%"}, {"gpu": "30%", "renumbered": True}], ids=str)
def test_rows_on_a_gpu(budgets):
    data = node_data()
    with Tiered.from_data(data, hotness="out_degree", **budgets) as store:
        index = torch.randint(NODES, (300,))
        found = store[None, "x", own_ids(store, index)]
        assert found.device.type == "cuda"
        assert torch.equal(found.cpu(), data.x[index])
        assert sum(use.rows for use in store.stats().values()) == 300
