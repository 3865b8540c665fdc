"""Models and batches that cannot be narrowed are refused by their exact error."""

import re

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.data import make_data
from helpers.narrow import (
    CLASSES,
    FEATURES,
    HIDDEN,
    DegreesOfSources,
    Loops,
    OtherRows,
    Sized,
    basic,
    batches,
    sequence,
)
from helpers.split_models import Begins, ByHand, BySparse, with_norm
from torch import nn
from torch_geometric.data import Data

from torch_gnnscale import LinkNeighborLoader, NeighborLoader
from torch_gnnscale.nn import forward_pass, narrow
from torch_gnnscale.nn.hops import BatchHops
from torch_gnnscale.nn.narrow import Narrowed

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")


REFUSED = [
    (lambda: nn.Linear(3, 4), "model: expected one with MessagePassing layers, found none in Linear"),
    (basic(pyg_nn.GraphSAGE, norm="LayerNorm"), r"norms.0 \(LayerNorm\): expected the seeds' rows to be those of"),
    (sequence(*[DegreesOfSources] * 3), r"module_\d \(DegreesOfSources\): expected the seeds' rows to be"),
    (sequence(*[lambda: pyg_nn.SGConv(FEATURES, FEATURES, K=2)] * 2), r"module_\d \(SGConv\): expected the seeds'"),
    (lambda: pyg_nn.GraphSAGE(FEATURES, HIDDEN, 4, CLASSES), r"convs.3 \(SAGEConv\): expected one hop a layer, found "),
    (basic(pyg_nn.GCN, cached=True), r"convs.0 \(GCNConv\): expected cached=False"),
    (basic(pyg_nn.GraphSAGE, flow="target_to_source"), "expected flow='source_to_target', found 'target_to_source'"),
    (ByHand, r"mean \(Mean\): expected a model that reads edges in MessagePassing layers alone, found rows of nodes"),
    (
        lambda: BySparse("csc"),
        r"the model \(BySparse\): expected a model that reads edges in MessagePassing layers",
    ),
    (Loops, r"conv \(GraphConv\): expected the batch's edge_index itself, found other edges"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_cannot_be_narrowed_is_refused(make, message):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=message):
        narrow(make().double())(next(iter(batches())))


def test_functions_that_a_model_calls_from_a_later_batch_on_are_compared():
    batch = next(iter(batches()))
    for model in (with_norm(Begins()), with_norm(Begins()).eval()):
        narrowed = narrow(model.double())
        for _ in range(3):
            narrowed(batch)
        with pytest.raises(ValueError, match=r"^norms\.0 \(Begins\): expected the seeds' rows to be those of the"):
            narrowed(batch)
    narrowed = narrow(with_norm(Begins(alone=True)).double().eval())
    for _ in range(3):
        narrowed(batch)
    text = r"^norms\.0 \(Begins\): mean: expected a function that is called again where the batch is computed a second"
    with pytest.warns(UserWarning, match=text):
        narrowed(batch)


def test_a_model_that_is_the_layer():
    with pytest.raises(ValueError, match=r"^the model \(GCNConv\): expected cached=False"):
        narrow(pyg_nn.GCNConv(FEATURES, CLASSES, cached=True).double())(next(iter(batches())))


def test_edges_that_are_read_before_the_first_layer():
    """Its rows are those of the whole batch."""
    torch.manual_seed(0)
    model, batch = ByHand(first=True).double(), next(iter(batches()))
    expected = model(batch.x, batch.edge_index)[: batch.batch_size]
    torch.testing.assert_close(narrow(model)(batch), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("least", [0, 1 << 62])
def test_scores_of_links_are_not_rows_of_nodes(least, monkeypatch):
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", least)

    def score(model, batch):
        rows, (src, dst) = model(batch.x, batch.edge_index), batch.edge_label_index
        return (rows[src] * rows[dst]).sum(-1)

    batch = next(iter(LinkNeighborLoader(make_data(), [3], neg_sampling="binary", batch_size=60)))
    text = r"rows of the nodes of whole hops, \[\d+, \d+\], found 120; let it return rows of nodes, and compute scores"
    with pytest.raises(ValueError, match=f"^model: expected {text} of links from the rows of the seeds$"):
        narrow(pyg_nn.SAGEConv(FEATURES, CLASSES).double(), score)(batch)


def test_an_index_out_of_range_that_is_the_models_own():
    model = basic(pyg_nn.GraphSAGE)().double()
    with pytest.raises(IndexError, match=r"^index 1000 is out of bounds"):
        narrow(model, lambda model, batch: model(batch.x[[1000]], batch.edge_index))(next(iter(batches())))


def chain(seed):
    """A batch of two hops in the graph 0 -> 1 -> 2: a seed k has edges in the first k."""
    data = Data(x=torch.randn(3, FEATURES), edge_index=torch.tensor([[0, 1], [1, 2]]))
    return next(iter(NeighborLoader(data, [1, 1], torch.tensor([seed]))))


@pytest.mark.slow
@pytest.mark.parametrize("layer", [pyg_nn.SGConv, pyg_nn.TAGConv, pyg_nn.ARMAConv])
def test_batches_without_edges_do_not_end_the_search_for_layers_that_are_refused(layer):
    torch.manual_seed(0)
    options = {} if layer is pyg_nn.ARMAConv else {"K": 3}
    narrowed = narrow(sequence(*[lambda: layer(FEATURES, FEATURES, **options)] * 2)())
    for seed in (0, 1):
        narrowed(chain(seed))
    with pytest.raises(ValueError, match=rf"module_\d \({layer.__name__}\): expected the seeds' rows to be those of"):
        narrowed(chain(2))


def test_batches_are_compared_until_one_has_edges_in_every_hop(monkeypatch):
    compared = []
    monkeypatch.setattr(Narrowed, "_check", lambda self, batch, hops: compared.append(batch.num_sampled_edges))
    narrowed = narrow(pyg_nn.GraphSAGE(FEATURES, HIDDEN, 2, CLASSES))
    for seed in (0, 0, 1, 0, 1, 2, 2, 1):
        narrowed(chain(seed))
    assert compared == [[0, 0], [1, 0], [1, 1]]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Sized((5, 5)), r"expected no size, found \(5, 5\); narrowing decides it"),
        (OtherRows(lambda x: x[:-1]), r"expected input rows of whole hops \[\d+, \d+, \d+, \d+\], found \d+ rows"),
        (OtherRows(lambda x: None), r"expected input rows of whole hops \[\d+, \d+, \d+, \d+\], found no tensor"),
    ],
)
@pytest.mark.parametrize("check", [False, True])
def test_calls_that_are_refused_by_the_layer(model, message, check):
    """Also if the first batch is compared with the whole, of which PyG's errors name no layer."""
    with pytest.raises(ValueError, match=rf"^conv \(SAGEConv\): {message}$"):
        narrow(model.double(), check=check)(next(iter(batches())))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batch: batch.pop("num_sampled_nodes"), "batch: expected one of NeighborLoader with num_sampled_nodes"),
        (lambda batch: batch.update({"edge_index": batch.edge_index.flip(1)}), "batch.edge_index: dst: expected edges"),
        (lambda batch: batch.update({"edge_index": batch.edge_index[:, 1:]}), "edges and .* as its hops say, found"),
        (
            lambda batch: batch.edge_index[1, -1:].fill_(1 << 40),
            rf"batch.edge_index: dst\[\d+\] = {1 << 40} is out of range: expected ids in \[0, \d+\)",
        ),
        (
            lambda batch: batch.edge_index[1, -1:].fill_(batch.num_nodes),
            r"batch.edge_index: dst\[\d+\] = (\d+) is out of range: expected ids in \[0, \1\)$",
        ),
        (lambda batch: batch.edge_index[1, :1].fill_(-7), r"batch.edge_index: dst\[0\] = -7 is out of range"),
        (lambda batch: batch.num_sampled_edges.reverse(), "batch: expected .* edges into its hops' nodes, found"),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_bad_batches(change, message, check):
    """On a CPU, edges are looked at in every batch."""
    batch = next(iter(batches()))
    change(batch)
    with pytest.raises(ValueError, match=message):
        narrow(pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double(), check=check)(batch)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("batch", [None, torch.zeros(3), {"x": torch.zeros(3)}])
def test_what_is_no_batch(batch, check):
    message = rf"^batch: expected a Data or a HeteroData of a loader, found {type(batch).__name__}$"
    with pytest.raises(TypeError, match=message):
        narrow(pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES), check=check)(batch)


@pytest.mark.parametrize("check", [True, False])
def test_a_batch_without_hops(check):
    data = Data(x=torch.randn(3, FEATURES), edge_index=torch.tensor([[0, 1], [1, 2]]))
    batch = next(iter(NeighborLoader(data, [])))
    text = r"^batch: expected one with hops to narrow to, found none \(num_sampled_edges=\[\]\)$"
    with pytest.raises(ValueError, match=text):
        narrow(pyg_nn.GraphSAGE(FEATURES, HIDDEN, 2, CLASSES), check=check)(batch)


def test_a_batch_of_other_nodes_than_its_hops():
    batch = next(iter(batches()))
    nodes = batch.num_nodes
    batch.x = torch.cat([batch.x, batch.x[:1]])
    with pytest.raises(ValueError, match=rf" edges and {nodes} nodes as its hops say, found \d+ and {nodes + 1}$"):
        narrow(pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double())(batch)


def test_rows_that_no_number_of_hops_has():
    hops = BatchHops(next(iter(batches()))).nodes[None]
    assert [hops.groups(rows) for rows in hops.rows] == list(range(1, len(hops.rows) + 1))
    assert {hops.groups(rows) for rows in range(hops.rows[-1] + 2)} == set(range(len(hops.rows) + 1))
    assert hops.groups(0) == hops.groups(hops.rows[-1] + 1) == 0


COMPILED = {
    "around": lambda model: torch.compile(narrow(model), backend="eager"),
    "model": lambda model: narrow(torch.compile(model, backend="eager")),
    "its layer": lambda model: (model.convs[1].compile(backend="eager"), narrow(model))[1],
}
NOT_COMPILED = {"around": "narrow", "model": "_orig_mod.convs.0 (SAGEConv)", "its layer": "convs.1 (SAGEConv)"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.parametrize("what", COMPILED)
def test_compiled_models(what):
    text = f"{NOT_COMPILED[what]}: expected a model that is not compiled, found it within torch.compile"
    batch = next(iter(batches()))
    with pytest.raises(NotImplementedError, match=f"^{re.escape(text)}$"):
        COMPILED[what](pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double())(batch)


@pytest.mark.slow
def test_modules_between_layers_may_be_compiled():
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES, norm=torch.nn.LayerNorm(HIDDEN)).double()
    narrowed = narrow(model)
    for batch in batches():
        expected = narrowed(batch)
        for norm in model.norms:
            norm.compile(backend="eager")
        torch.testing.assert_close(narrowed(batch), expected, rtol=0, atol=1e-12)
