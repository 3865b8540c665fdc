"""What tiered stores refuse, and what they announce."""

import os
import re
import shutil
import warnings
from types import SimpleNamespace

import pytest
import torch
from helpers.data import edges_of, make_data
from helpers.tiers import NODES, node_data, score_of
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader, files
from torch_gnnscale import TieredFeatureStore as Tiered
from torch_gnnscale import memory as host_memory
from torch_gnnscale.topology import reorder
from torch_gnnscale.topology.reorder import by_score


def test_a_gpu_that_is_not_there_is_announced(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    message = r"^gpu='8GiB', peers=\[\]: the CUDA library is not .*, so their rows go to the next tier"
    with pytest.warns(UserWarning, match=message), Tiered.from_data(node_data(), gpu="8GiB") as store:
        assert [tier.name for tier in store.plan.tiers] == ["host"]
    with pytest.warns(UserWarning, match=r"^gpu=0, peers=\[1000, 1000\]: the CUDA library is not"):
        Tiered.from_data(node_data(), peers=[1000, 1000]).close()
    FeatureStore.from_data(node_data()).save(tmp_path / "features")
    with pytest.warns(UserWarning, match=r"^gpu=0, peers=\['10%'\]: the CUDA library is not"):
        Tiered.open(tmp_path / "features", torch.arange(NODES), peers=["10%"]).close()
    with pytest.raises(ValueError, match=r"^device: expected one that torch sees \(it sees 0 CUDA devices\), found"):
        Tiered.from_data(node_data(), device="cuda:0")
    with pytest.raises(ValueError, match=r"^gpu: expected a number and a unit such as '8GiB', .*, found '8gib'$"):
        Tiered.from_data(node_data(), gpu="8gib")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        Tiered.from_data(node_data(), gpu="0%", device="cpu", host="100%").close()


@pytest.mark.parametrize("budgets", [{"gpu": "8GiB"}, {"peers": [500, 500]}], ids=str)
def test_a_cpu_has_no_room_for_a_gpus_rows(budgets):
    given = {"gpu": 0, "peers": []} | budgets
    message = f"device: expected a GPU for gpu={given['gpu']!r}, peers={given['peers']}, found cpu"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Tiered.from_data(node_data(), device="cpu", **budgets)


@pytest.mark.parametrize("budgets", [{}, {"host": "30%"}], ids=str)
@pytest.mark.parametrize(("storage", "largest"), [(torch.float16, 7e4), (torch.bfloat16, 1e39)])
def test_numbers_that_16_bits_cannot_hold(storage, largest, budgets, tmp_path):
    data = node_data()
    coldest, hottest = by_score(score_of(data)).old[[-1, 0]].tolist()
    data.x[coldest, 3], data.x[hottest, 3] = -largest, torch.inf
    message = rf"^storage: expected numbers of at most [\d.e+]+ for {storage}, found {largest:g}$".replace("e+", r"e\+")
    with pytest.raises(ValueError, match=message):
        Tiered.from_data(data, storage=storage, names=["x"], disk=tmp_path if budgets else None, **budgets)
    assert os.listdir(tmp_path) == []
    data.x[coldest, 3] = -torch.inf
    with Tiered.from_data(data, storage=storage, names=["x"]) as store:
        assert store[None, "x", coldest][3] == -torch.inf


def test_memory_that_is_not_there_is_missed_before_anything_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr(host_memory, "available_memory", lambda: 100)
    monkeypatch.setattr(files.ArrayWriter, "append", None)
    with pytest.raises(
        MemoryError,
        match=r"^host: expected \d+ bytes of memory, found 100 available; less as host= ",
    ):
        Tiered.from_data(node_data(), host="40%", disk=tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("host", [1 << 20, "1MiB"])
def test_bytes_of_host_memory_are_taken_although_less_is_available(host, monkeypatch):
    monkeypatch.setattr(host_memory, "available_memory", lambda: 100)
    data = node_data()
    found = r"^host: expected \d+ bytes of memory, found 100 available"
    asked = "they are taken, as asked, and the process is killed if the machine does not have them$"
    with pytest.warns(UserWarning, match=f"{found}: {asked}"), Tiered.from_data(data, host=host) as store:
        assert torch.equal(store[None, "x", None], data.x)
    with pytest.raises(MemoryError, match=f"{found}; less as host= "):
        Tiered.from_data(data)


@pytest.mark.parametrize("free", [0, 22_271])
def test_a_disk_that_is_full(free, monkeypatch, tmp_path):
    # the budget holds labels, mask and map, 2600 bytes, and 84 of 200 rows of 192 bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    message = (
        f"{tmp_path}: expected room for 22272 bytes of rows on disk, found {free} free; raise host= or give another "
        f"disk="
    )
    with pytest.raises(OSError, match=f"^{re.escape(message)}$"):
        Tiered.from_data(node_data(), hotness="out_degree", host=2600 + 84 * 192, disk=tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_disk_that_has_just_enough_room(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=22_272))
    with Tiered.from_data(node_data(), hotness="out_degree", host=2600 + 84 * 192, disk=tmp_path) as store:
        assert store.plan.rows("disk") == NODES - 84


def test_scores_are_sorted_once(monkeypatch):
    sorts = []
    keys = reorder._rising_where_falling
    monkeypatch.setattr(reorder, "_rising_where_falling", lambda score: sorts.append(1) or keys(score))
    Tiered.from_data(node_data(), hotness=torch.rand(NODES)).close()
    assert len(sorts) == 1


DATA = node_data()


def typed() -> HeteroData:
    data = HeteroData()
    data["paper"].x = torch.ones(3, 2)
    return data


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (TypeError, "hotness: expected scores by type, or a name, found Tensor",
         lambda _: Tiered.from_data(typed(), hotness=torch.ones(3))),
        (ValueError, "hotness: expected scores of the nodes of 'paper', which have ['x'], found those of []",
         lambda _: Tiered.from_data(typed(), hotness={})),
        (ValueError, "hotness: expected 3 scores for ('paper', 'x'), found 4",
         lambda _: Tiered.from_data(typed(), hotness={"paper": torch.ones(4)})),
        (ValueError, "labelled: expected the nodes that training starts from, found none and no type with a train_mask",
         lambda _: Tiered.from_data(typed())),
        (TypeError, "labelled: expected a mapping by node type, found Tensor",
         lambda _: Tiered.from_data(typed(), labelled=torch.arange(2))),
        (TypeError, "labelled: expected ids or a mask of a graph without types, found a mapping by type",
         lambda _: Tiered.from_data(DATA, labelled={"paper": torch.arange(2)})),
        (ValueError, "hotness: expected scores of types among ['paper'], found 'zz'",
         lambda _: Tiered.from_data(typed(), hotness={"paper": torch.ones(3), "zz": torch.ones(3)})),
        (ValueError, "labelled: expected types among ['paper'], found 'author'",
         lambda _: Tiered.from_data(typed(), labelled={"author": torch.arange(2)})),
        (ValueError, "hotness: expected scores of types among [None, (None, None)], found 'paper'",
         lambda _: Tiered.from_data(DATA, hotness={"paper": torch.ones(3)})),
        (ValueError, "hotness: expected scores of the edges of (None, None), which have ['edge_attr'], found those of "
         "[None]", lambda _: Tiered.from_data(make_data(), hotness=torch.ones(make_data().num_nodes))),
        (ValueError, "names: expected some of ['x', 'y', 'train_mask'], found ['z']",
         lambda _: Tiered.from_data(DATA, names=["x", "z"])),
        (ValueError, "data.x: expected a plain tensor in host memory, found Tensor, torch.strided, meta",
         lambda _: Tiered.from_data(Data(x=torch.ones(3, 2, device="meta")), hotness=torch.ones(3))),
        (TypeError, "storage: expected torch.float16 or torch.bfloat16, found torch.int8",
         lambda _: Tiered.from_data(DATA, storage=torch.int8)),
        (TypeError, "storage: expected torch.float16 or torch.bfloat16, found torch.float32",
         lambda _: Tiered.from_data(DATA, storage=torch.float32)),
        (ValueError, "hotness: expected scores or one of ('out_degree', 'reverse_pagerank', "
         "'weighted_reverse_pagerank'), found 'heat'", lambda _: Tiered.from_data(DATA, hotness="heat")),
        (ValueError, "hotness: expected 200 scores for (None, 'x'), found 3",
         lambda _: Tiered.from_data(DATA, hotness=torch.rand(3))),
        (ValueError, "hotness: expected scores in host memory, found meta",
         lambda _: Tiered.from_data(DATA, hotness=torch.ones(NODES, device="meta"))),
        (ValueError, "hotness: expected 200 scores for (None, 'x'), found 203",
         lambda _: Tiered.from_data(DATA, hotness=torch.rand(NODES + 3))),
        (ValueError, "labelled: expected the nodes that training starts from, found neither it nor data.train_mask",
         lambda _: Tiered.from_data(Data(x=torch.ones(3, 2), edge_index=torch.ones(2, 1).long()))),
        (ValueError, "budgets: expected room for 200 rows of 192 bytes, found 23040 bytes too little; raise host= or "
         "give disk=", lambda _: Tiered.from_data(DATA, hotness="out_degree", host=800 + 1600 + 200 + 80 * 192)),
        (ValueError, "hotness: expected scores of the nodes of 'paper', which have ['x'], found those of [None]",
         lambda path: (FeatureStore.from_data(typed()).save(path / "a"), Tiered.open(path / "a", torch.rand(3)))),
        (ValueError, "labelled: expected hotness='weighted_reverse_pagerank', which alone uses it, found another",
         lambda _: Tiered.from_data(DATA, hotness="out_degree", labelled=torch.ones(3))),
        (TypeError, "labelled: expected int32 or int64 ids, found torch.float32",
         lambda _: Tiered.from_data(DATA, labelled=torch.ones(3))),
        (TypeError, "hotness: expected a score of each node, found the name 'out_degree', which needs edges: ",
         lambda path: Tiered.open(path / "a", "out_degree")),
        (TypeError, "hotness: expected scores as a tensor or by type, or a name, found ndarray",
         lambda _: Tiered.from_data(DATA, hotness=DATA.y.numpy())),
        (ValueError, "hotness: expected finite numbers, found inf",
         lambda _: Tiered.from_data(DATA, hotness=torch.full((NODES,), torch.inf))),
        (TypeError, "names: expected a list of attributes' names, found 'x'",
         lambda _: Tiered.from_data(DATA, names="x")),
        (TypeError, "peers: expected a budget for each GPU, found 0.25", lambda _: Tiered.from_data(DATA, peers=0.25)),
        (ValueError, "peers: expected equal budgets, for rows are interleaved, found [1, 2]",
         lambda _: Tiered.from_data(DATA, peers=[1, 2])),
        (ValueError, "peers: expected at most 29 GPUs, found 30", lambda _: Tiered.from_data(DATA, peers=[1] * 30)),
        (NotImplementedError, "tiers of lists, and of tensors with a column for each node, are not implemented, found "
         "['title']", lambda _: Tiered.from_data(Data(x=torch.ones(2, 2), title=["a", "b"]))),
        (TypeError, "(None, 'x'): expected torch.strided or torch.sparse_coo, of which rows are taken, found "
         "torch.sparse_csr", lambda _: Tiered.from_data(Data(x=torch.ones(2, 2).to_sparse_csr()))),
        (ValueError, "device: expected one that torch sees (it sees ", lambda _: Tiered.from_data(DATA, device=77)),
        (FileNotFoundError, "disk: expected a directory, found 'nowhere', which is none",
         lambda _: Tiered.from_data(DATA, host=0, disk="nowhere")),
        (ValueError, "names: expected some of ['x', 'y', 'train_mask'], found ['z']",
         lambda path: (FeatureStore.from_data(DATA).save(path / "a"),
                       Tiered.open(path / "a", torch.rand(NODES), names=["z"]))),
        (TypeError, "names: expected a list of attributes' names, found 'x'",
         lambda path: (FeatureStore.from_data(DATA).save(path / "a"),
                       Tiered.open(path / "a", torch.rand(NODES), names="x"))),
        (FileNotFoundError, "", lambda path: Tiered.open(path / "b", torch.rand(3))),
    ],
)  # fmt: skip
def test_bad_input(error, message, call, tmp_path):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        call(tmp_path)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("rows in tiers cannot be changed: make another store",
         lambda store: store.put_tensor(torch.ones(3), group_name=None, attr_name="x", index=None)),
        ("attributes in tiers cannot be removed: make another store, with names=",
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


def test_a_graph_of_more_nodes_is_refused():
    graph = GraphStore.from_edge_index(edges_of(NODES + 1, 30), NODES + 1)
    message = f"data: expected a row of (None, 'x') for each of {NODES + 1} nodes, found {NODES}"
    with Tiered.from_data(DATA) as store, pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        NeighborLoader((store, graph), [2], torch.arange(3))


def test_parameters():
    weight = torch.nn.Parameter(torch.arange(12.0).view(6, 2))
    with pytest.warns(UserWarning, match=r"^data\.x requires grad: tiers hold a copy, which does not learn; use"):
        store = Tiered.from_data(Data(x=weight), hotness=torch.ones(6))
    with store:
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
    assert 0 < host_memory.available_memory() < 1 << 50


def test_a_dtype_of_storage_that_no_attribute_takes_is_warned_of():
    data = node_data()
    message = "storage=torch.float16 has no effect: expected attributes of float32 or float64, found y of torch.int64"
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        Tiered.from_data(data, storage=torch.float16, names=["y"]).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        Tiered.from_data(data, storage=torch.float16, names=["x", "y"]).close()
