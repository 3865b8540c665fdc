"""Batches of links are narrowed to the rows of the links' ends."""

from itertools import product

import pytest
import torch
from helpers.data import make_data
from helpers.narrow import MODELS
from helpers.slow import SLOW
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling

from torch_gnnscale import LayerSampler, LinkNeighborLoader
from torch_gnnscale.nn import forward_pass, narrow, weigh

OPTIONS = {
    "links": {},
    "negatives": {"neg_sampling": "binary"},
    "triplets": {"neg_sampling": NegativeSampling("triplet", 2)},
    "disjoint": {"disjoint": True, "neg_sampling": "binary"},
}


def links_of(data: Data) -> torch.Tensor:
    """Links of which some have ends in common."""
    return data.edge_index[:, :: data.num_edges // 40]


def ends(batch: Data) -> list[torch.Tensor]:
    """Where the rows of the ends of a batch's links are."""
    if "edge_label_index" in batch:
        return list(batch.edge_label_index)
    return [batch.src_index, batch.dst_pos_index, batch.dst_neg_index]


def scores(batch: Data, rows: torch.Tensor) -> torch.Tensor:
    """A score of each link, of rows of the ends."""
    first, *others = ends(batch)
    source = rows[first]
    return torch.cat([(rows[end] * (source if end.dim() == 1 else source[:, None])).sum(-1).view(-1) for end in others])


@pytest.mark.parametrize(
    ("options", "name", "least"),
    [
        ("negatives", "sage", 0),
        ("triplets", "gat", 0),
        ("disjoint", "gin", 0),
        ("links", "sage", forward_pass.LEAST_SAVED),  # computes whole batches
        *(SLOW(*case, 0) for case in product(OPTIONS, ["sage max", "gcn2", "residual"])),
    ],
)
def test_rows_of_ends_and_gradients(options, name, least, monkeypatch):
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", least)
    data = make_data()
    data.x = data.x / 200
    torch.manual_seed(0)
    model = MODELS[name]().double().eval()
    narrowed = narrow(model)
    parameters = list(model.parameters())
    made = 0
    for batch in LinkNeighborLoader(data, [4, 3, 2], links_of(data), batch_size=8, **OPTIONS[options]):
        found, expected = narrowed(batch), model(batch.x, batch.edge_index)
        assert (
            len(found) == batch.num_sampled_nodes[0] == len(torch.cat([end.view(-1) for end in ends(batch)]).unique())
        )
        assert len(found) < len(expected)
        torch.testing.assert_close(found, expected[: len(found)], rtol=0, atol=1e-12)
        ours, theirs = (
            torch.autograd.grad(scores(batch, out).sum(), parameters, allow_unused=True) for out in (found, expected)
        )
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        made += 1
    assert made > 4


@pytest.mark.parametrize("weighed", [False, True])
def test_links_of_layer_wise_samples(weighed, monkeypatch):
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", 0)
    data = make_data()
    data.x = data.x / 200
    model = MODELS["sage"]().double().eval()
    whole, narrowed = weigh(model), narrow(weigh(model))
    sampler = LayerSampler(data, [30, 25, 20], "ladies")
    for batch in LinkNeighborLoader(data, [30, 25, 20], links_of(data), neighbor_sampler=sampler, batch_size=8):
        batch.edge_weight = batch.edge_weight.double()
        found = narrowed(batch) if weighed else narrow(model)(batch)
        expected = whole(batch) if weighed else model(batch.x, batch.edge_index)
        torch.testing.assert_close(found, expected[: batch.num_sampled_nodes[0]], rtol=0, atol=1e-12)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("least", [0, 1 << 62])
def test_scores_of_as_many_links_as_a_hop_has_nodes_are_no_rows(least, check, monkeypatch):
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", least)
    batch = next(iter(LinkNeighborLoader(make_data(), [4, 3, 2], links_of(make_data()), batch_size=8)))
    seeds, found = batch.num_sampled_nodes[0], sum(batch.num_sampled_nodes[:2])
    expected = seeds if check or least == 0 else batch.num_nodes

    def call(model, batch):
        return model(batch.x, batch.edge_index)[torch.arange(found) % seeds].sum(1)

    text = (
        rf"^model: expected {expected} rows of nodes, as its layers return, found {found}; let it return rows of nodes"
    )
    with pytest.raises(ValueError, match=text):
        narrow(MODELS["sage"]().double(), call, check)(batch)
