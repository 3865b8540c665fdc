"""What is measured of a plan is what its batches hold, edge by edge."""

import pytest
import torch
from helpers.data import make_data
from helpers.figures import check_seen, kept
from torch_geometric.data import Data

from torch_gnnscale import CSC, NeighborLoader, split
from torch_gnnscale.split.planning import Measured, Presampled, presample


def loader_of(data, fanouts=(3, 2), seeds=None, **options):
    seeds = torch.arange(0, 200, 3) if seeds is None else seeds
    return NeighborLoader(data, list(fanouts), seeds, batch_size=16, shuffle=True, seed=5, **options)


def test_measured_is_counted_by_layer():
    data = make_data()
    plan = split.plan(data, torch.arange(200), [2], 3, weights=torch.arange(200) % 3, epochs=0)
    loader = loader_of(data, (3, 2, 2))
    found = split.measure(plan, loader, [0, 4])
    outs = [out for epoch in (0, 4) for out in loader.samples(epoch)]
    assert (found.edges.shape, found.cross.shape, found.rows.shape) == ((10, 3, 3), (10, 3), (10, 3))
    for k, out in enumerate(outs):
        owner = plan.owners[out.node].tolist()
        for layer in range(3):
            edges, cross = [0, 0, 0], 0
            for src, dst in zip(out.row.tolist(), out.col.tolist(), strict=True):
                if dst < sum(out.num_sampled_nodes[: 3 - layer]):
                    edges[owner[dst]] += 1
                    cross += owner[src] != owner[dst]
            assert (found.edges[k, layer].tolist(), int(found.cross[k, layer])) == (edges, cross)
            assert float(found.imbalance[k, layer]) == pytest.approx(max(edges) * 3 / sum(edges))
        assert found.rows[k].tolist() == [owner.count(part) for part in range(3)]
        assert float(found.cross_share[k]) == int(found.cross[k].sum()) / int(found.edges[k].sum())
    lines = found.table().splitlines()
    assert lines[0].split("  ")[0] == "layer"
    assert len(lines) == 4
    assert f"{100 * int(found.cross[:, 0].sum()) / int(found.edges[:, 0].sum()):.2f} %" in lines[1]


def test_layers_without_edges_are_even():
    data = Data(edge_index=torch.zeros(2, 0, dtype=torch.int64), num_nodes=4)
    plan = split.plan(data, torch.arange(4), [1, 1], 2, weights=[0, 0, 0, 0], epochs=1)
    found = split.measure(plan, loader_of(data, (1, 1), torch.arange(4)), [0])
    assert (found.imbalance.tolist(), found.cross_share.tolist()) == ([[1.0, 1.0]], [0.0])
    assert found.rows.tolist() == [[4, 0]]
    assert "0.00 %" in found.table()


def test_another_graph_is_refused():
    data = make_data()
    plan = split.plan(data, torch.arange(200), [2], 3, weights="random", epochs=0)
    with pytest.raises(ValueError, match=r"^loader: expected one of 200 nodes, found \{None: 30\}$"):
        split.measure(plan, loader_of(make_data(30, 50), seeds=torch.arange(30)), [0])
    with pytest.raises(NotImplementedError, match=r"^disjoint=True with split parallelism is not implemented$"):
        split.measure(plan, loader_of(data, disjoint=True), [0])


@pytest.mark.slow
def test_the_plot_shows_each_load_as_a_share_of_the_mean(tmp_path, monkeypatch):
    drawn = kept(monkeypatch)
    data = make_data()
    plan = split.plan(data, torch.arange(200), [2], 3, weights=torch.arange(200) % 3, epochs=1)
    measured = split.measure(plan, loader_of(data, (2,)), [0])
    split.plot(plan, measured, str(tmp_path / "plan.png"))
    heights = [bar.get_height() for bar in drawn[0].axes[0].patches]
    assert heights == pytest.approx([3 * load / sum(plan.loads) for load in plan.loads])
    assert [line.get_ydata() for line in drawn[0].axes[0].lines] == [[1, 1]]
    (points,) = drawn[0].axes[1].collections
    percent, imbalance = zip(*points.get_offsets().tolist(), strict=True)
    assert percent == pytest.approx([100 * share for share in measured.cross_share.tolist()])
    assert imbalance == pytest.approx(measured.imbalance[:, 0].tolist())


@pytest.mark.slow
def test_all_layers_of_a_plot_are_seen(tmp_path, monkeypatch):
    drawn = kept(monkeypatch)
    plan = split.plan(make_data(), torch.arange(200), [2, 2], 2, weights="random", epochs=0)
    batches = torch.arange(1, 51)
    edges = torch.stack([batches, 51 - batches], 1).unsqueeze(1).expand(-1, 3, -1)  # the same in all layers
    measured = Measured(edges, batches.unsqueeze(1).expand(-1, 3), torch.ones(50, 2))
    split.plot(plan, measured, str(tmp_path / "plan.png"))
    check_seen(drawn[0])


@pytest.mark.parametrize("edge_id", [None, torch.tensor([2, 0, 3, 1])])
def test_counts_of_edges_in_stored_order(edge_id):
    csc = CSC(torch.tensor([0, 1, 4]), torch.tensor([1, 0, 1, 1]), edge_id, 2)
    counts = torch.tensor([1, 2, 4, 8])
    found = Presampled(torch.tensor([10, 20]), torch.tensor([30, 40]), counts)
    place = counts if edge_id is None else counts[edge_id]
    assert torch.equal(found.by_place(csc), place)
    of_nodes = [int(place[0]), int(place[1:].sum())]
    assert found.node_load(csc, "layers").tolist() == [40, 60]
    assert found.node_load(csc, "edges").tolist() == [30 + of_nodes[0], 40 + of_nodes[1]]
    assert found.expected(csc).tolist() == [of_nodes[0], *[of_nodes[1] / 3] * 3]


def test_a_single_edge_that_crosses():
    found = Measured(torch.tensor([[[1, 0]]]), torch.tensor([[1]]), torch.tensor([[1, 1]]))
    assert (found.cross_share.tolist(), found.imbalance.tolist()) == ([1.0], [[2.0]])


def test_the_bar_of_presampling_ends_with_the_last_batch(monkeypatch):
    shown = []

    def tqdm(samples, title, total, unit, disable):
        shown.append((title, total, unit, disable))
        return samples

    monkeypatch.setattr("torch_gnnscale.split.planning.tqdm", tqdm)
    loader = loader_of(make_data())
    presample(loader, range(3), progress=True)
    presample(loader, range(1))
    assert shown == [
        ("presampling", 3 * len(loader), " batches", None), ("presampling", len(loader), " batches", True),
    ]  # fmt: skip
