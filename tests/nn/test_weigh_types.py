"""Models of typed graphs whose messages are multiplied by weights per relation, whole and narrowed."""

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.narrow_types import FEATURES, GRAPH, HIDDEN, RELATIONS, ByRelation, batch_of, call, made
from torch import nn
from torch_geometric.nn import to_hetero_with_bases

from torch_gnnscale.nn import narrow, weigh

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")
KINDS = [
    lambda: pyg_nn.SAGEConv((HIDDEN, HIDDEN), HIDDEN),
    lambda: pyg_nn.GraphConv((HIDDEN, HIDDEN), HIDDEN, aggr="mean"),
    lambda: pyg_nn.GINConv(nn.Linear(HIDDEN, HIDDEN)),
    lambda: pyg_nn.ResGatedGraphConv((HIDDEN, HIDDEN), HIDDEN),
]


def weighed_batch(seed=0):
    batch = batch_of("b", (4, 1, 4), (2, 2, 2))
    generator = torch.Generator().manual_seed(seed)
    for relation in batch.edge_types:
        count = batch[relation].edge_index.size(1)
        batch[relation].edge_weight = torch.rand(count, dtype=torch.float64, generator=generator)
    return batch


class Summed(nn.Module):
    """A layer of GraphConv per relation, which multiplies messages by weights itself."""

    def __init__(self):
        super().__init__()
        self.conv = pyg_nn.HeteroConv({r: pyg_nn.GraphConv((FEATURES, FEATURES), HIDDEN) for r in RELATIONS})

    def forward(self, batch, weights=None):
        given = {} if weights is None else {"edge_weight_dict": weights}
        return self.conv(batch.x_dict, batch.edge_index_dict, **given)


def test_messages_times_weights():
    torch.manual_seed(0)
    model, batch = Summed().double(), weighed_batch()
    expected = model(batch, batch.edge_weight_dict)
    found = weigh(model, lambda model, batch: model(batch))(batch)
    for node_type, rows in expected.items():
        torch.testing.assert_close(found[node_type], rows, rtol=1e-12, atol=1e-12)


def test_a_weight_is_as_many_edges_of_relations_that_are_merged():
    model, batch = made("bases", GRAPH), weighed_batch()
    for convs in (model.model.first.convs, model.model.second.convs):
        for conv in convs:
            conv.aggr_module = pyg_nn.SumAggregation()
    repeated = batch.clone()
    for relation in batch.edge_types:
        index = batch[relation].edge_index
        count = torch.arange(index.size(1)) % 3
        batch[relation].edge_weight = count.double()
        repeated[relation].edge_index = index.repeat_interleave(count, 1)
    found = weigh(model, call)(batch)
    for node_type, rows in call(model, repeated).items():
        torch.testing.assert_close(found[node_type], rows, rtol=1e-12, atol=1e-12)


class InTurn(nn.Module):
    """Two models, each with its own order of types and relations, of which one is called again after the other."""

    def __init__(self):
        super().__init__()
        layer = lambda: pyg_nn.Sequential("x, edge_index", [(KINDS[0](), "x, edge_index -> x")])  # noqa: E731
        types = GRAPH.node_types
        self.encode = nn.ModuleDict({t: nn.Linear(FEATURES, HIDDEN) for t in types})
        self.one = to_hetero_with_bases(layer(), (types, RELATIONS), num_bases=1)
        self.other = to_hetero_with_bases(layer(), (types[::-1], RELATIONS[:0:-1]), num_bases=3)

    def forward(self, x, edges):
        x = self.one({t: self.encode[t](rows) for t, rows in x.items()}, edges)
        return self.one(self.other(x, edges), edges)


MADE = {
    "in turn": lambda: InTurn().double(),
    "by relation": lambda: ByRelation(GRAPH, lambda _, number: KINDS[number % len(KINDS)](), skip=True).double(),
    "bases": lambda: made("bases", GRAPH),
    "bases, attributes": lambda: made("bases, attributes", GRAPH),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("by_hand", [False, True])
def test_narrowed(by_hand, kind):
    torch.manual_seed(0)
    model = MADE[kind]()
    weighed = weigh(model, call)
    narrowed = narrow(weighed) if by_hand else narrow(weigh(model, call), check=False)
    for seed in range(3):
        batch = weighed_batch(seed)
        expected, found = weighed(batch)["b"][:3], narrowed(batch)["b"]
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        ours, theirs = (
            torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True)
            for out in (found, expected)
        )
        for one, other in zip(ours, theirs, strict=True):
            one, other = (torch.zeros(()) if grad is None else grad for grad in (one, other))
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_a_relation_of_merged_ones_that_a_batch_lacks_has_no_weights():
    def run(model, batch):
        none = dict.fromkeys(RELATIONS, torch.empty(2, 0, dtype=torch.int64))
        return model.model(batch.x_dict, {**none, **batch.edge_index_dict})["b"]

    model, batch = made("bases", GRAPH), weighed_batch()
    weighed = weigh(model, run)
    expected = weighed(batch)
    assert not batch[RELATIONS[3]].edge_index.numel()
    for name in ("edge_index", "edge_weight"):
        batch[RELATIONS[3]].pop(name)
    batch[RELATIONS[3]].num_sampled_edges = [0, 0, 0]
    assert torch.equal(weighed(batch), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda store: store.pop("edge_weight"), r"batch\[\('a', 'r0', 'b'\)\]: expected weights of edges named"),
        (lambda store: store.update({"edge_weight": torch.ones(2, 2)}),
         r"batch\[\('a', 'r0', 'b'\)\].edge_weight: expected shape \(\d+,\), found \(2, 2\)$"),
    ],
)  # fmt: skip
def test_weights_that_a_relation_lacks(change, message):
    batch = weighed_batch()
    change(batch["a", "b"])
    for wrap in (lambda model: model, narrow):
        with pytest.raises(ValueError, match=f"^{message}"):
            wrap(weigh(Summed().double(), lambda model, batch: model(batch)))(batch)


def test_layers_that_cannot_be_weighed():
    with pytest.raises(ValueError, match=r"^conv \(HGTConv\): expected a layer that sums messages, each of one edge"):
        weigh(nn.ModuleDict({"conv": pyg_nn.HGTConv(FEATURES, HIDDEN, GRAPH.metadata())}), call)
