"""What one process reads of tiers that it shares: its hottest rows before all others, and its own counts."""

import os
import re

import pytest
import torch
from helpers.tiers import NODES, node_data

from torch_gnnscale import TieredFeatureStore as Tiered
from torch_gnnscale import ops
from torch_gnnscale.distributed.own_rows import _on_top, own_view, view_on

OWN = torch.arange(1, NODES, 3)
SCORE = (OWN * 37) % 50
CPU = torch.device("cpu")


def shared(tmp_path, **budgets) -> Tiered:
    return Tiered.from_data(node_data(), hotness=torch.arange(NODES), disk=tmp_path, **budgets)


@pytest.mark.parametrize("budgets", [{}, {"host": "40%"}, {"host": "2%"}], ids=str)
@pytest.mark.parametrize("rows", [0, 1, 20, 1000])
def test_rows_and_hit_rates_are_those_expected(tmp_path, budgets, rows):
    data, base = node_data(), shared(tmp_path, **budgets)
    room = 0 if rows == 0 else 4 * NODES + rows * base.plan.row_bytes
    with view_on(base, OWN, SCORE, room, CPU, NODES) as store:
        for ids in (torch.arange(NODES), OWN.flip(0), OWN[:0]):
            assert torch.equal(store[None, "x", ids], data.x[ids])
        assert torch.equal(store[None, "y", None], data.y) if "y" in data else True
        kept = store.plan.rows("gpu")
        assert kept == min(rows, len(OWN))
        before = {name: use.rows for name, use in store.stats().items()}
        read = OWN.repeat_interleave(SCORE)
        assert torch.equal(store[None, "x", read], data.x[read])
        for tier in store.plan.tiers:
            found = store.stats()[tier.name].rows - before[tier.name]
            assert found == round(tier.hit_rate * len(read))
            assert tier.hit_rate == pytest.approx(found / len(read))
        if rows:
            hottest = SCORE.sort(descending=True).values[:kept].sum()
            assert store.plan.tiers[0].hit_rate == pytest.approx(int(hottest) / int(SCORE.sum()))
    assert base.closed
    assert os.listdir(tmp_path) == []  # what the base wrote


def test_views_of_one_store_count_apart(tmp_path):
    base, other = shared(tmp_path, host="40%"), torch.arange(0, NODES, 3)
    views = [view_on(base, own, torch.ones_like(own), 4000, CPU, NODES) for own in (OWN, other)]
    views[0][None, "x", OWN]
    assert sum(use.rows for use in views[0].stats().values()) == len(OWN)
    assert sum(use.rows for use in views[1].stats().values()) == 0
    assert set(base.stats()) == {"host", "disk"}
    base.close()


def test_another_gpu_has_the_rows_of_gpu_and_shares_all_others(tmp_path):
    with shared(tmp_path, host="40%") as base:
        rows = view_on(base, OWN, SCORE, 4000, CPU, NODES)._tensors[None, "x"]
        there, place = torch.device("meta"), torch.empty(NODES, device="meta")
        found = rows.on(there, place)
        assert (found.tiers, found.place) == (("gpu", "host", "disk"), place)
        assert (found.segments[0].device, found.segments[0].shape) == (there, rows.segments[0].shape)
        assert found.segments[1:] == rows.attribute.segments[1:]


@pytest.mark.parametrize("budgets", [{}, {"host": "40%"}], ids=str)
def test_without_rows_of_its_own_a_gpu_has_the_map_that_the_store_has(tmp_path, budgets):
    with shared(tmp_path, **budgets) as base:
        rows, there, nothing = base._tensors[None, "x"], torch.empty(NODES, device="meta"), torch.empty(0).long()
        on_gpu = _on_top(rows, nothing, there, torch.device("meta"))
        on_cpu = _on_top(rows, nothing, torch.arange(NODES), CPU)
        assert (on_gpu.tiers, on_cpu.tiers) == (rows.attribute.tiers,) * 2
        assert on_cpu.place is rows.attribute.place
        assert on_gpu.place is (None if rows.place is None else there)


def test_scores_of_zero_count_rows(tmp_path):
    base = shared(tmp_path, host="40%")
    view = own_view(base, OWN, torch.zeros_like(OWN))
    at = base._tensors[None, "x"].place[OWN] < base.plan.rows("host")
    assert view.plan.tiers[0].hit_rate == pytest.approx(float(at.double().mean()))
    assert [tier.name for tier in view.plan.tiers] == ["host", "disk"]
    view.close()


def test_a_budget_below_the_map_is_refused(tmp_path):
    with shared(tmp_path) as base:
        message = f"gpu: expected room for the map of {NODES} nodes, {4 * NODES} bytes, found 7"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            view_on(base, OWN, SCORE, 7, CPU, NODES)
        with pytest.raises(ValueError, match=r"expected room for the map of 200 nodes, 800 bytes, found 799$"):
            view_on(base, OWN, SCORE, 799, CPU, NODES)
        for room, rows in ((800, 0), (800 + 191, 0), (800 + 192, 1)):
            assert view_on(base, OWN, SCORE, room, CPU, NODES).plan.rows("gpu") == rows
        with pytest.raises(ValueError, match=r"^device: expected a GPU for gpu=100, peers=\[\], found cpu$"):
            own_view(base, OWN, SCORE, 100, "cpu")


def test_places_are_as_wide_as_three_tiers_of_all_nodes_need(tmp_path, monkeypatch):
    monkeypatch.setattr(ops, "place_dtype", lambda count: torch.int64 if count >= 3 * NODES else torch.int32)
    with shared(tmp_path, host="40%") as base:
        assert base._tensors[None, "x"].place.dtype == torch.int32
        with pytest.raises(ValueError, match=r"expected room for the map of 200 nodes, 1600 bytes, found 1599$"):
            view_on(base, OWN, SCORE, 1599, CPU, NODES)
        view = view_on(base, OWN, SCORE, 1600 + 192, CPU, NODES)
        assert view._tensors[None, "x"].place.dtype == torch.int64
        assert torch.equal(view[None, "x", OWN], node_data().x[OWN])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_its_rows_go_to_the_next_tier(tmp_path):
    with shared(tmp_path) as base, pytest.warns(UserWarning, match=r"^gpu=100, peers=\(\)|^gpu=100"):
        assert [tier.name for tier in own_view(base, OWN, SCORE, 100).plan.tiers] == ["host"]
