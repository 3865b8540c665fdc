"""Which GPUs hold rows, and what another GPU of a store has. Other devices stand for GPUs where there is none."""

import pytest
import torch
from helpers.tiers import NODES, node_data

from torch_gnnscale import TieredFeatureStore, _library
from torch_gnnscale.feature import tier_builder, tiered_store
from torch_gnnscale.feature.tier_builder import check_room, devices_of
from torch_gnnscale.feature.tier_plan import Tier, TierPlan
from torch_gnnscale.memory import unreadable_peer

GPU, OTHER, META = torch.device("cuda", 0), torch.device("cuda", 1), torch.device("meta")


@pytest.fixture
def gpus(monkeypatch):
    """Two GPUs; a list to which those are added that no other can read."""
    unreadable = []
    monkeypatch.setitem(_library.status, "_CUDA", "loaded")
    monkeypatch.setattr(
        tier_builder, "checked_device", lambda device: GPU if device == "cuda" else torch.device(device)
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: other not in unreadable)
    return unreadable


@pytest.mark.parametrize(
    ("gpu", "of_peers", "device", "expected"),
    [
        (0, (), None, (0, (), "cpu")),
        ("0%", [0], None, ("0%", (), "cpu")),
        (0, (), "cpu", (0, (), "cpu")),
        (1, (), None, (1, (), "cuda:0")),
        (0, [1, 1], None, (0, [1, 1], "cuda:0")),
        (0, (), "cuda:1", (0, (), "cuda:1")),
        ("50%", [1], "cuda:1", ("50%", [1], "cuda:1")),
    ],
)
def test_what_gathers(gpus, gpu, of_peers, device, expected):
    found = devices_of(gpu, of_peers, device, 1000)
    assert (*found[:2], str(found[2])) == expected


def test_a_peer_that_cannot_be_read_has_no_rows(gpus):
    gpus.append(1)
    message = r"^peers=\[5, 5\]: their rows are left to the next tier, for cuda:0 cannot read GPU 1$"
    with pytest.warns(UserWarning, match=message):
        assert devices_of(7, [5, 5], None, 1000) == (7, (), GPU)
    assert devices_of(7, [5], None, 1000) == (7, [5], GPU)
    assert unreadable_peer(GPU, 2) == 1


def plan_of(**rows: int) -> TierPlan:
    tiers = tuple(Tier(name, count, 10 * count, 0.0) for name, count in rows.items())
    return TierPlan(tiers, {}, 10, 400, "gpu")


@pytest.mark.parametrize(
    ("device", "num_peers", "rows", "wanted"),
    [
        (GPU, 0, {"host": 9}, {0: 400 + 3}),
        (GPU, 0, {"gpu": 7, "host": 9}, {0: 400 + 3 + 70}),
        (GPU, 2, {"gpu": 7, "peers": 8}, {0: 400 + 3 + 70 + 40, 1: 40}),
        (OTHER, 2, {"peers": 8}, {0: 40, 1: 400 + 3 + 40}),
    ],
)
def test_room_on_each_gpu(device, num_peers, rows, wanted, monkeypatch):
    free = {torch.device("cuda", number): count for number, count in wanted.items()}
    monkeypatch.setattr(tier_builder, "free_on_gpu", lambda gpu, wanted: free[gpu])
    check_room(plan_of(**rows), device, num_peers, 3)
    check_room(plan_of(**rows), torch.device("cpu"), num_peers, 1 << 60)
    for gpu, size in list(free.items()):
        free[gpu] -= 1
        message = rf"^{gpu}: expected {size} bytes of memory, found {size - 1} free; lower gpu= or peers=$"
        with pytest.raises(MemoryError, match=message):
            check_room(plan_of(**rows), device, num_peers, 3)
        free[gpu] += 1


@pytest.fixture
def moved(monkeypatch):
    """Stores may be moved to any device; the arguments of each check of room."""
    asked = []
    monkeypatch.setattr(tiered_store, "checked_device", torch.device)
    monkeypatch.setattr(tiered_store, "check_room", lambda *given: asked.append(given))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda gpu: None)
    return asked


@pytest.mark.parametrize("renumbered", [False, True])
def test_a_store_on_another_gpu(moved, renumbered, tmp_path):
    options = {"host": "40%", "disk": tmp_path, "renumbered": renumbered}
    with TieredFeatureStore.from_data(node_data(), hotness="out_degree", **options) as store:
        assert store.on("cpu") is store
        other = store.on("meta")
        assert (store.device, other.device, other.plan.map_tier) == (torch.device("cpu"), META, "gpu")
        assert other.order is store.order
        assert moved[1:] == [(store.plan, META, 0, 0)]
        assert {key: rows.attribute.tiers for key, rows in other._tensors.items()} == {
            key: rows.attribute.tiers for key, rows in store._tensors.items()
        }
        cut, whole = (other._tensors[None, name] for name in ("x", "y"))
        assert whole.place is None
        assert (cut.place is None) == renumbered
        if not renumbered:
            assert (cut.place.device, cut.place.shape) == (META, (NODES,))
        with pytest.raises(ValueError, match=r"^device: expected a GPU for a store of meta, found cpu$"):
            other.on("cpu")
    with pytest.raises(ValueError, match=r"^the store is closed$"):
        store.on("meta")


def test_a_store_without_attributes():
    message = r"^expected at least one attribute of nodes or edges, found none$"
    with pytest.raises(ValueError, match=message):
        TieredFeatureStore.of_sources([], torch.ones(3), False, 0, (), None, None, None)
