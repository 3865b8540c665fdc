"""Tiered stores: the rows of the untiered one, behind every loader, and errors that name what was found."""

import os
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from datasets_for_tests import environment, make_data, no_loader_threads, plain
from torch_geometric.data import Data, HeteroData, TensorAttr
from torch_geometric.loader import NodeLoader

from torch_gnnscale import FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader, NeighborSampler
from torch_gnnscale import TieredFeatureStore as Tiered
from torch_gnnscale.feature import hotness
from torch_gnnscale.feature import tier_memory as memory_of
from torch_gnnscale.topology.reorder import by_score, reorder_data

NODES = 200
WIDE = 24


def node_data(dtype: torch.dtype = torch.float64) -> Data:
    """Rows that tell which node's they are; narrow labels beside them."""
    data = make_data(NODES)
    del data.edge_attr
    data.x = torch.arange(NODES)[:, None].to(dtype) + torch.arange(WIDE) / 64
    data.train_mask = torch.arange(NODES) % 3 == 0
    return data


def score_of(data: Data) -> torch.Tensor:
    return hotness.out_degree(GraphStore.from_data(data).relation())


BUDGETS = {
    "memory": {},
    "memory and disk": {"host": "40%"},
    "a file": {"host": "2%"},
    "renumbered memory": {"renumbered": True},
    "renumbered memory and disk": {"host": "40%", "renumbered": True},
}


def make(way: str, name: str, folder: Path) -> Tiered:
    """A store of all of ``node_data()``'s attributes, made in one of two ways from one kind of budget."""
    data, budgets = node_data(), dict(BUDGETS[name])
    if way == "from_data":
        if "host" in budgets:
            budgets["disk"] = folder
        return Tiered.from_data(data, hotness="out_degree", **budgets)
    score = score_of(data)
    given = reorder_data(data, by_score(score)) if budgets.get("renumbered") else data
    FeatureStore.from_data(given).save(folder / "saved")
    return Tiered.open(folder / "saved", score, **budgets)


@pytest.fixture(params=BUDGETS)
def budgets(request):
    return request.param


@pytest.fixture(params=["from_data", "open"])
def store(request, budgets, tmp_path):
    with make(request.param, budgets, tmp_path) as made:
        yield made


def own_ids(store: Tiered, index: torch.Tensor) -> torch.Tensor:
    return index if store.order is None else store.order.new[index]


def test_rows(store):
    data = node_data()
    index = torch.randint(NODES, (500,), generator=torch.Generator().manual_seed(0))
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


@pytest.mark.parametrize("kwargs", [{}, {"prefetch": 0}, {"num_workers": 2}], ids=str)
def test_batches_are_those_of_the_untiered_loader(store, kwargs):
    data = node_data()
    seeds = torch.randperm(NODES, generator=torch.Generator().manual_seed(1))[:80]
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
    """Samplers and stores agree behind PyG's own loader, too, in the ids of the stores."""
    data = node_data()
    graph = GraphStore.from_data(data, order=store.order)
    sampler = NeighborSampler((store, graph), [4, 3])
    for batch in NodeLoader((store, graph), sampler, own_ids(store, torch.arange(40)), batch_size=20):
        ids = batch.n_id if store.order is None else store.order.old[batch.n_id]
        assert torch.equal(batch.x, data.x[ids])


def test_stats(tmp_path):
    data = node_data()
    with Tiered.from_data(data, hotness="out_degree", host="40%", disk=tmp_path) as store:
        assert all(use == (0, 0, 0.0, 0.0, 0.0) for use in store.stats().values())
        graph = GraphStore.from_data(data)
        for workers in (0, 2):
            before = {name: use.rows for name, use in store.stats().items()}
            loader = NeighborLoader(
                (store, graph), [4, 3], torch.arange(60), batch_size=20, seed=1, num_workers=workers
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


def test_expected_and_found_hit_rates_agree_if_scores_are_accesses(tmp_path):
    data = node_data()
    graph = GraphStore.from_data(data)
    loader = NeighborLoader((FeatureStore.from_data(data), graph), [4, 3], torch.arange(60), batch_size=20, seed=1)
    exact = hotness.accesses(loader, [0])
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
        assert torch.equal(hotness.accesses(loader, [0]), expected)


@pytest.mark.parametrize("storage", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_storage_in_16_bits(storage, dtype, tmp_path):
    data = node_data(dtype)
    with Tiered.from_data(data, hotness="out_degree", host="40%", disk=tmp_path, storage=storage) as store:
        index = torch.arange(NODES).flip(0)
        assert torch.equal(store[None, "x", index], data.x[index].to(storage).to(dtype))
        assert torch.equal(store[None, "y", index], data.y[index])
        assert store.plan.row_bytes == 2 * WIDE + data.y.element_size()


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


@pytest.mark.parametrize(("way", "name"), [("from_data", "renumbered memory and disk"), ("open", "memory and disk")])
def test_pickled_stores_share_memory_with_another_process(way, name, tmp_path):
    store = make(way, name, tmp_path)
    (tmp_path / "store.pickle").write_bytes(pickle.dumps(store))
    assert (tmp_path / "store.pickle").stat().st_size < 20_000 + (0 if store.order is None else 16 * NODES)
    code = (
        "import pickle, sys, torch; store = pickle.load(open(sys.argv[1], 'rb'));"
        "print(store[None, 'x', torch.tensor([3, 150])][:, 0].tolist()); print(store.order is None);"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "store.pickle")]
    run = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=120)
    ids = [3, 150] if store.order is None else store.order.old[[3, 150]].tolist()
    assert run.stdout.splitlines() == [str([float(i) for i in ids]), str(store.order is None)]
    assert sum(use.rows for use in store.stats().values()) == 2  # the other process's
    store.close()


def test_a_pickle_of_a_store_that_was_closed():
    store = Tiered.from_data(node_data())
    pickled = pickle.dumps(store)
    store.close()
    with pytest.raises(OSError, match=r"^/proc/\d+/fd/\d+: expected the host memory of a store"):
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
    for call in (store.stats, lambda: store[None, "x", torch.tensor([0])]):
        with pytest.raises(ValueError, match=r"^the store is closed$"):
            call()


def test_a_dropped_store_leaves_no_files(tmp_path):
    store = Tiered.from_data(node_data(), host="40%", disk=tmp_path)
    del store
    assert os.listdir(tmp_path) == []


def test_a_forked_process_deletes_nothing(tmp_path):
    store = Tiered.from_data(node_data(), host="40%", disk=tmp_path)
    child = os.fork()
    if child == 0:
        try:
            store.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(os.listdir(tmp_path)) == 1
    assert torch.equal(store[None, "x", None], node_data().x)
    store.close()


def test_a_store_that_fails_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_of, "available_memory", lambda: 100)
    with pytest.raises(MemoryError, match=r"^host: expected \d+ bytes of memory, found 100 available; lower host=$"):
        Tiered.from_data(node_data(), host="40%", disk=tmp_path)
    assert os.listdir(tmp_path) == []


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
        with pytest.raises(NotImplementedError, match=r"^links of renumbered stores are not implemented"):
            LinkNeighborLoader((store, graph), [2], data.edge_index[:, :4])
        assert torch.equal(pickle.loads(pickle.dumps(graph)).order.old, store.order.old)


def test_saved_graphs_keep_their_order(tmp_path):
    data = node_data()
    order = by_score(score_of(data))
    GraphStore.from_data(data, order=order).save(tmp_path / "graph")
    found = GraphStore.open(tmp_path / "graph").order
    assert torch.equal(found.old, order.old)
    assert torch.equal(found.new, order.new)


def test_a_gpu_that_is_not_there_is_announced():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    message = r"^gpu='8GiB', peers=\[\]: their rows are left to the next tier, for the CUDA library is not"
    with pytest.warns(UserWarning, match=message), Tiered.from_data(node_data(), gpu="8GiB") as store:
        assert [tier.name for tier in store.plan.tiers] == ["host"]
    with pytest.warns(UserWarning, match=r"^gpu=0, peers=\[1000, 1000\]: their rows"):
        Tiered.from_data(node_data(), peers=[1000, 1000]).close()
    with pytest.raises(ValueError, match=r"^device: expected one that torch sees \(it sees 0 CUDA devices\), found"):
        Tiered.from_data(node_data(), device="cuda:0")
    with pytest.raises(ValueError, match=r"^gpu: expected a number and a unit such as '8GiB', .*, found '8gib'$"):
        Tiered.from_data(node_data(), gpu="8gib")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Tiered.from_data(node_data(), gpu="0%", device="cpu", host="100%").close()


@pytest.mark.parametrize("budgets", [{"gpu": "8GiB"}, {"peers": [500, 500]}], ids=str)
def test_a_cpu_has_no_room_for_a_gpus_rows(budgets):
    given = {"gpu": 0, "peers": []} | budgets
    message = f"device: expected a GPU for gpu={given['gpu']!r}, peers={given['peers']}, found cpu"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Tiered.from_data(node_data(), device="cpu", **budgets)


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


@pytest.mark.parametrize("budgets", [{}, {"host": "30%"}], ids=str)
@pytest.mark.parametrize(("storage", "largest"), [(torch.float16, 7e4), (torch.bfloat16, 1e39)])
def test_numbers_that_16_bits_cannot_hold(storage, largest, budgets, tmp_path):
    data = node_data()
    data.x[7, 3] = -largest
    message = rf"^storage: expected numbers of at most [\d.e+]+ for {storage}, found {largest:g}$".replace("e+", r"e\+")
    with pytest.raises(ValueError, match=message):
        Tiered.from_data(data, storage=storage, names=["x"], disk=tmp_path if budgets else None, **budgets)
    assert os.listdir(tmp_path) == []
    data.x[7, 3] = -torch.inf
    with Tiered.from_data(data, storage=storage, names=["x"]) as store:
        assert store[None, "x", 7][3] == -torch.inf


def test_a_relative_disk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Tiered.from_data(node_data(), host="40%", disk=".") as store:
        monkeypatch.chdir("/")
        assert torch.equal(pickle.loads(pickle.dumps(store))[None, "x", None], node_data().x)
    assert os.listdir(tmp_path) == []


def test_an_order_of_another_kind_is_left_alone():
    data = node_data()
    features = FeatureStore.from_data(data)
    features.__dict__["order"] = torch.arange(NODES)
    stores = NeighborLoader((features, GraphStore.from_data(data)), [3], batch_size=10, seed=1)
    for batch, expected in zip(stores, NeighborLoader(data, [3], batch_size=10, seed=1), strict=True):
        assert torch.equal(batch.n_id, expected.n_id)


@pytest.mark.cuda
@pytest.mark.parametrize("budgets", [{"gpu": "30%"}, {"gpu": "100%"}, {"gpu": "30%", "renumbered": True}], ids=str)
def test_rows_on_a_gpu(budgets):
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    data = node_data()
    with Tiered.from_data(data, hotness="out_degree", **budgets) as store:
        index = torch.randint(NODES, (300,))
        found = store[None, "x", own_ids(store, index)]
        assert found.device.type == "cuda"
        assert torch.equal(found.cpu(), data.x[index])
        assert sum(use.rows for use in store.stats().values()) == 300


DATA = node_data()


def typed() -> HeteroData:
    data = HeteroData()
    data["paper"].x = torch.ones(3, 2)
    return data


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (NotImplementedError, "tiers of a HeteroData are not implemented: use a Data, or FeatureStore.from_data",
         lambda _: Tiered.from_data(typed())),
        (NotImplementedError, "tiers of edges' attributes are not implemented, found ['edge_attr']; name the nodes' by "
         "names=", lambda _: Tiered.from_data(make_data())),
        (ValueError, "names: expected some of ['x', 'y', 'train_mask'], found ['z']",
         lambda _: Tiered.from_data(DATA, names=["x", "z"])),
        (ValueError, "data.x: expected a plain tensor in host memory, found Tensor, torch.strided, meta",
         lambda _: Tiered.from_data(Data(x=torch.ones(3, 2, device="meta")), hotness=torch.ones(3))),
        (TypeError, "storage: expected torch.float16 or torch.bfloat16, found torch.int8",
         lambda _: Tiered.from_data(DATA, storage=torch.int8)),
        (ValueError, "hotness: expected scores or one of ('out_degree', 'reverse_pagerank', "
         "'weighted_reverse_pagerank'), found 'heat'", lambda _: Tiered.from_data(DATA, hotness="heat")),
        (ValueError, "hotness: expected 200 scores for (None, 'x'), found 3",
         lambda _: Tiered.from_data(DATA, hotness=torch.rand(3))),
        (ValueError, "labelled: expected the nodes that training starts from, found neither it nor data.train_mask",
         lambda _: Tiered.from_data(Data(x=torch.ones(3, 2), edge_index=torch.ones(2, 1).long()))),
        (ValueError, "budgets: expected room for 200 rows of 192 bytes, found 23040 bytes too little; raise host= or "
         "give disk=", lambda _: Tiered.from_data(DATA, hotness="out_degree", host=800 + 1600 + 200 + 80 * 192)),
        (NotImplementedError, "tiers of typed nodes or of edges are not implemented, found [('paper', 'x')] in ",
         lambda path: (FeatureStore.from_data(typed()).save(path / "a"), Tiered.open(path / "a", torch.rand(3)))),
        (FileNotFoundError, "", lambda path: Tiered.open(path / "b", torch.rand(3))),
    ],
)  # fmt: skip
def test_bad_input(error, message, call, tmp_path):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        call(tmp_path)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("rows in tiers are not changed: make the store anew",
         lambda store: store.put_tensor(torch.ones(3), group_name=None, attr_name="x", index=None)),
        ("attributes in tiers are not removed: make the store anew, with names=",
         lambda store: store.remove_tensor(group_name=None, attr_name="x", index=None)),
        ("save of tiers is not implemented: save FeatureStore.from_data(data)", lambda store: store.save("x")),
    ],
)  # fmt: skip
def test_what_a_store_does_not_do(message, call):
    with (
        Tiered.from_data(DATA) as store,
        pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"),
    ):
        call(store)


def test_parameters():
    weight = torch.nn.Parameter(torch.arange(12.0).view(6, 2))
    with Tiered.from_data(Data(x=weight), hotness=torch.ones(6)) as store:
        found = store[None, "x", torch.tensor([5, 0])]
        assert not found.requires_grad
        assert torch.equal(found, weight.detach()[[5, 0]])


def test_ids_out_of_range():
    with Tiered.from_data(DATA) as store:
        for index in (torch.tensor([0, NODES]), NODES, torch.tensor([-1])):
            with pytest.raises(IndexError):
                store[None, "x", index]


def test_no_nodes():
    data = Data(x=torch.ones(0, 3), edge_index=torch.empty(2, 0, dtype=torch.int64))
    with Tiered.from_data(data, hotness=torch.empty(0)) as store:
        assert store[None, "x", torch.empty(0, dtype=torch.int64)].shape == (0, 3)


def test_memory_that_is_there():
    assert 0 < memory_of.available_memory() < 1 << 50
