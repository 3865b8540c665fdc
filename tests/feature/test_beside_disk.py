"""Rows on disk beside a device that does not read files: split, gathered in two places, put together."""

import re
from contextlib import contextmanager, nullcontext
from copy import copy
from types import SimpleNamespace

import pytest
import reference
import torch
from helpers.cpu_as_gpu import OnTheCPU
from helpers.tiers import BUDGETS, NODES, cut, make, node_data, own_ids, tables
from hypothesis import HealthCheck, given, settings
from torch_geometric.data import TensorAttr

from torch_gnnscale import TieredFeatureStore as Tiered
from torch_gnnscale import ops
from torch_gnnscale.feature import tiered_rows
from torch_gnnscale.feature.tiered_rows import Attribute, StreamTime, TieredRows

WAYS = ["from_data", "open"]


@pytest.fixture
def measurements(monkeypatch):
    """The shares of the GPU's time that attributes were given, call after call."""
    seen = []

    @contextmanager
    def measured(shares, device):
        seen.append([share for _, share in shares])
        yield

    monkeypatch.setattr(tiered_rows, "measured", measured)
    return seen


def beside_disk(rows: TieredRows, index: torch.Tensor, counts: torch.Tensor, device: str) -> torch.Tensor:
    """What an attribute of a store with a disk would gather on a GPU."""
    there = copy(rows)
    *memory, disk = rows.segments
    there.segments = [*(segment.to(device) for segment in memory), disk]
    there.place = None if rows.place is None else rows.place.to(device)
    there.device, there._device_counts = torch.device(device), counts
    return tiered_rows.gather_together([(there, index, True)])[0]


@pytest.mark.slow
@given(tables())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_equals_the_twin(measurements, given_tables):
    table, sizes, spread, place, index = given_tables
    spread = [*spread[:-1], 1]
    rows = TieredRows.__new__(TieredRows)
    tiers = (*("gpu", "peers", "host")[: len(sizes) - 1], "disk")
    rows.counts, rows._time = torch.zeros(len(sizes), 2, dtype=torch.int64), StreamTime()
    rows.shape = (len(table) if place is None else len(place), *table.shape[1:])
    rows.attribute = Attribute(
        (None, "x"), rows.shape, table.dtype, table.dtype, tiers, tuple(spread), (), None, rows.counts
    )
    rows.segments, rows.place, rows._memory = cut(table, sizes, spread), place, SimpleNamespace(reading=nullcontext)
    counts = torch.zeros(len(sizes), 2, dtype=torch.int64)
    found = beside_disk(rows, index, counts, "cpu")
    assert torch.equal(found, reference.gather_tiers(rows.segments, index, spread=spread, place=place))
    expected = torch.zeros_like(counts)
    ops.gather_tiers(rows.segments, index, spread=spread, place=place, disk=True, counts=expected)
    assert torch.equal(counts[:, 0], expected[:, 0])
    assert measurements.pop() == [1.0 if found.numel() else 0.0]
    assert rows.counts[-1, 0] == expected[-1, 0]


@pytest.mark.parametrize("budgets", [name for name in BUDGETS if "disk" in name or "file" in name])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("measurements")
def test_rows_of_a_store(way, budgets, device, tmp_path):
    data = node_data()
    index = torch.randint(NODES, (500,), generator=torch.Generator().manual_seed(0))
    with make(way, budgets, tmp_path) as store:
        for name in ("x", "y", "train_mask"):
            rows = store._tensors[None, name]
            if not rows.attribute.disk:
                continue
            counts = torch.zeros(rows.counts.shape, dtype=torch.int64, device=device)
            found = beside_disk(rows, own_ids(store, index), counts, device)
            assert found.device.type == device
            assert torch.equal(found.cpu(), data[name][index])
            on_disk = int(counts[-1, 0])
            assert on_disk > 0
            assert int(counts[:, 0].sum()) == 500
            assert rows.counts[-1, 0] == on_disk
            assert rows.counts[-1, 1] > 0
            assert not rows.counts[:-1].any()
            rows.device, rows._device_counts = torch.device("cuda"), counts  # as they are there
            assert rows.total()[:, 0].tolist() == [500 - on_disk, on_disk][-len(counts) :]
            assert torch.equal(beside_disk(rows, index[:0], counts, device).cpu(), data[name][:0])


def on_a_gpu(store: Tiered) -> None:
    """From now on the store takes its GPU's part for done there; within OnTheCPU it is done here."""
    store.__dict__["_device"] = torch.device("cuda")
    for rows in store._tensors.values():
        rows.device, rows._device_counts = store.device, torch.zeros_like(rows.counts)


@pytest.mark.parametrize("way", WAYS)
def test_a_store_gathers_all_attributes_together(way, measurements, monkeypatch, tmp_path):
    """What a store on a GPU passes on, its maps from ids to places among it."""
    data = node_data()
    index = torch.randint(NODES, (500,), generator=torch.Generator().manual_seed(0))
    calls = []
    gather = ops.gather_tables
    monkeypatch.setattr(ops, "gather_tables", lambda tables, *args, **given: calls.append(len(tables)) or gather(
        tables, *args, **given))  # fmt: skip
    with make(way, "memory and disk", tmp_path) as store:
        assert store._tensors[None, "x"].place is not None
        on_a_gpu(store)
        attrs, ids = store.all_attrs(), own_ids(store, index)
        for attr in attrs:
            attr.index = ids
        with OnTheCPU():
            found = store.multi_get_tensor([*attrs, TensorAttr(None, "x", 7), TensorAttr(None, "x", slice(3))])
            assert torch.equal(store[None, "x", ids], data.x[index])
            assert store._multi_get_tensor([TensorAttr(None, "none", ids)]) == [None]
        assert calls == [len(attrs) + 2, 1]
        for attr, rows in zip(attrs, found, strict=False):
            assert torch.equal(rows, data[attr.attr_name][index])
        assert [tuple(rows.shape) for rows in found[-2:]] == [data.x.shape[1:], (3, *data.x.shape[1:])]
        sizes = [data[attr.attr_name][index].nbytes for attr in attrs] + [data.x[0].nbytes, data.x[:3].nbytes]
        assert measurements[0] == pytest.approx([size / sum(sizes) for size in sizes])
        assert measurements[1:] == [[1.0]]


@pytest.mark.usefixtures("measurements")
def test_16_bits_are_widened_behind_the_copy(device, tmp_path):
    data = node_data(torch.float32)
    index = torch.arange(NODES).flip(0)
    options = {"hotness": "out_degree", "host": "40%", "disk": tmp_path, "storage": torch.bfloat16}
    with Tiered.from_data(data, **options) as store:
        rows = store._tensors[None, "x"]
        found = beside_disk(rows, index, torch.zeros(2, 2, dtype=torch.int64, device=device), device)
        assert torch.equal(found.cpu(), data.x[index].bfloat16().float())


@pytest.mark.usefixtures("measurements")
def test_ids_out_of_range(tmp_path):
    counts = torch.zeros(2, 2, dtype=torch.int64)
    with make("from_data", "memory and disk", tmp_path) as store:
        message = f"index[1] = {NODES} is out of range: expected rows in [0, {NODES})"
        with pytest.raises(IndexError, match=f"^{re.escape(message)}$"):
            beside_disk(store._tensors[None, "x"], torch.tensor([0, NODES]), counts, "cpu")
    assert not counts.any()


def test_which_segments_a_tier_has():
    rows = TieredRows.__new__(TieredRows)
    rows.attribute = SimpleNamespace(tiers=("gpu", "peers", "host"), spread=(1, 3, 1))
    assert [rows.segments_of(tier) for tier in ("gpu", "peers", "host", "disk")] == [[0], [1, 2, 3], [4], []]


@pytest.mark.cuda
@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize("budgets", [{"gpu": "30%", "host": "30%"}, {"gpu": "30%", "host": 0}], ids=str)
def test_a_store_on_a_gpu(budgets, renumbered, tmp_path):
    data = node_data()
    with Tiered.from_data(data, hotness="out_degree", disk=tmp_path, renumbered=renumbered, **budgets) as store:
        index = torch.randint(NODES, (300,))
        found = store[None, "x", own_ids(store, index)]
        assert found.device.type == "cuda"
        assert torch.equal(found.cpu(), data.x[index])
        use = store.stats()
        assert sum(tier.rows for tier in use.values()) == 300
        assert use["disk"].rows > 0
        assert use["disk"].seconds > 0
