"""Rows on disk beside a device that does not read files: split, gathered in two places, put together."""

import re
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import reference
import torch
from helpers.cpu_as_gpu import OnTheCPU
from helpers.tiers import BUDGETS, NODES, cut, make, node_data, own_ids, tables
from hypothesis import given

from torch_gnnscale import TieredFeatureStore as Tiered
from torch_gnnscale import ops
from torch_gnnscale.feature.tiered_rows import TieredRows, gather_beside_disk

WAYS = ["from_data", "open"]


def beside_disk(rows: TieredRows, index: torch.Tensor, counts: torch.Tensor, device: str) -> torch.Tensor:
    """What an attribute of a store with a disk would gather on a GPU."""
    *memory, disk = rows.segments
    place = None if rows.place is None else rows.place.to(device)
    return gather_beside_disk(
        [*(segment.to(device) for segment in memory), disk], index.to(device), spread=rows.attribute.spread,
        place=place, dtype=rows.attribute.dtype, counts=counts, disk_counts=rows.counts[-1:], check=True,
        timed=nullcontext(),
    )  # fmt: skip


@pytest.mark.slow
@given(tables())
def test_equals_the_twin(given_tables):
    table, sizes, spread, place, index = given_tables
    spread = [*spread[:-1], 1]
    segments = cut(table, sizes, spread)
    counts, disk_counts = torch.zeros(len(sizes), 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64)
    rows_before_and_behind = []

    @contextmanager
    def timed():
        before = int(counts[:, 0].sum())
        yield
        rows_before_and_behind.append((before, int(counts[:, 0].sum())))

    found = gather_beside_disk(
        segments, index, spread=spread, place=place, dtype=table.dtype, counts=counts, disk_counts=disk_counts,
        check=True, timed=timed(),
    )  # fmt: skip
    assert torch.equal(found, reference.gather_tiers(segments, index, spread=spread, place=place))
    expected = torch.zeros_like(counts)
    ops.gather_tiers(segments, index, spread=spread, place=place, disk=True, counts=expected)
    assert torch.equal(counts[:, 0], expected[:, 0])
    assert rows_before_and_behind == [(0, int(expected[:, 0].sum()))]
    assert disk_counts[0, 0] == expected[-1, 0]


@pytest.mark.parametrize("budgets", [name for name in BUDGETS if "disk" in name or "file" in name])
@pytest.mark.parametrize("way", WAYS)
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


@pytest.mark.parametrize("way", WAYS)
def test_a_store_gathers_beside_its_disk(way, tmp_path):
    """What a store on a GPU passes on, its map from ids to places among it; the GPU's part is done here."""
    data = node_data()
    index = torch.randint(NODES, (500,), generator=torch.Generator().manual_seed(0))
    with make(way, "memory and disk", tmp_path) as store:
        rows = store._tensors[None, "x"]
        assert rows.place is not None
        rows.device, rows._time = torch.device("cuda"), SimpleNamespace(measure=lambda _: nullcontext())
        rows._device_counts = torch.zeros_like(rows.counts)
        with OnTheCPU():
            assert torch.equal(rows.gather(own_ids(store, index)), data.x[index])


def test_16_bits_are_widened_behind_the_copy(device, tmp_path):
    data = node_data(torch.float32)
    index = torch.arange(NODES).flip(0)
    options = {"hotness": "out_degree", "host": "40%", "disk": tmp_path, "storage": torch.bfloat16}
    with Tiered.from_data(data, **options) as store:
        rows = store._tensors[None, "x"]
        found = beside_disk(rows, index, torch.zeros(2, 2, dtype=torch.int64, device=device), device)
        assert torch.equal(found.cpu(), data.x[index].bfloat16().float())


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
