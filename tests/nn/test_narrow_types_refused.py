"""Models and batches of typed graphs that cannot be narrowed are refused by their exact error."""

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.narrow_types import (
    FEATURES,
    GRAPH,
    HIDDEN,
    RELATIONS,
    ByRelation,
    Dictionaries,
    batch_of,
    call,
    check,
    made,
    make_types,
)
from torch import nn
from torch_geometric.data import HeteroData

from torch_gnnscale import LinkNeighborLoader, NeighborLoader
from torch_gnnscale.nn import forward_pass, narrow
from torch_gnnscale.nn.narrow import Narrowed

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")


class ScaledSources(pyg_nn.MessagePassing):
    """Reads the degrees of sources."""

    def forward(self, x, edge_index):
        src, dst = x if isinstance(x, tuple) else (x, x)
        scale = torch.bincount(edge_index[0], minlength=len(src)) + 1
        return dst + self.propagate(edge_index, x=(src / scale[:, None], dst), size=(len(src), len(dst)))


class ByHand(nn.Module):
    """Calls layers itself, with rows as one pair or as two arguments."""

    def __init__(self, conv, in_pairs=True):
        super().__init__()
        self.conv, self.in_pairs = conv, in_pairs

    def forward(self, x, edges):
        relation = RELATIONS[0]
        rows = x["a"], x["b"]
        return {"b": self.conv(*([rows] if self.in_pairs else rows), edges[relation])}


def with_loops(kind):
    return lambda: ByHand(kind((FEATURES, FEATURES), FEATURES))


class Apart(pyg_nn.MessagePassing):
    """Takes the rows of sources and of destinations as two arguments."""

    def forward(self, x_src, x_dst, edge_index):
        return x_dst + self.propagate(edge_index, x=(x_src, x_dst), size=(len(x_src), len(x_dst)))


class OfFeatures(pyg_nn.MessagePassing):
    """Names its rows otherwise than PyG's layers of dictionaries."""

    def forward(self, features, edge_index_dict):
        return features


class AllRelations(nn.Module):
    """Merges relations into one graph by itself."""

    def __init__(self):
        super().__init__()
        self.conv = pyg_nn.SAGEConv(FEATURES, FEATURES)

    def forward(self, x, edges):
        index = torch.cat([edges[RELATIONS[1]], edges[RELATIONS[5]]], 1)
        return {"a": self.conv((x["b"], x["a"]), index)}


REFUSED = [
    (lambda: Dictionaries(GRAPH, pyg_nn.HANConv), r"convs.0 \(HANConv\): expected at most one relation into each type"),
    (lambda: ByRelation(GRAPH, lambda *_: ScaledSources()), r"convs.\d.*\): expected the seeds' rows to be those of"),
    (AllRelations, r"conv \(SAGEConv\): expected the batch's edge_index itself, found other edges"),
    (lambda: ByRelation(GRAPH, lambda *_: pyg_nn.SAGEConv((HIDDEN, HIDDEN), HIDDEN), layers=3),
     r"convs.2.convs.<a___r0___b> \(SAGEConv\): expected one hop a layer, found that earlier layers used up"),
    (lambda: Dictionaries(GRAPH, pyg_nn.HGTConv, layers=3), r"convs.2 \(HGTConv\): expected one hop a layer, found"),
    (lambda: ByRelation(GRAPH, lambda *_: pyg_nn.SAGEConv((HIDDEN, HIDDEN), HIDDEN, flow="target_to_source")),
     r"convs.0.convs.<a___r0___b> \(SAGEConv\): expected flow='source_to_target', found 'target_to_source'"),
    (with_loops(pyg_nn.GATConv),
     r"conv \(GATConv\): expected add_self_loops=False between two types, found True for \('a', 'r0', 'b'\)"),
    (with_loops(pyg_nn.GATv2Conv),
     r"conv \(GATv2Conv\): expected add_self_loops=False between two types, found True for \('a', 'r0', 'b'\)"),
    (lambda: Dictionaries(GRAPH, lambda *_, **__: OfFeatures()),
     r"convs.0 \(OfFeatures\): expected an argument x_dict with rows by type, found \['features', 'edge_index_dict'\]"),
    (lambda: ByHand(Apart(), in_pairs=False),
     r"conv \(Apart\): expected rows of nodes of two types as one argument, a pair, found x_src of \d+ rows alone"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_cannot_be_narrowed_is_refused(make, message):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=f"^{message}"):
        narrow(make().double(), call)(batch_of("a", (1, 2, 3, 4)))


def test_why_han_with_several_relations_cannot_be_narrowed():
    """One layer on a batch of two hops: rows of seeds change with those of every node of the second hop that a relation
    leads from, though no edge leads from it to a seed or to one of its neighbors."""
    torch.manual_seed(0)
    conv, batch = pyg_nn.HANConv(FEATURES, HIDDEN, GRAPH.metadata(), heads=2).double(), batch_of("a", (1, 2, 3, 4))
    x = {t: rows.requires_grad_() for t, rows in batch.x_dict.items()}
    seeds = conv(x, batch.edge_index_dict)["a"][: batch["a"].batch_size]
    of_b = torch.autograd.grad(seeds.square().sum(), x["b"])[0]
    reached = sum(batch["b"].num_sampled_nodes[:2])
    assert reached < len(of_b)
    assert of_b[reached:].ne(0).any(1).all()


def test_edges_that_are_changed_before_relations_are_merged():
    def without_one(model, batch):
        edges = batch.edge_index_dict
        return model(batch.x_dict, {**edges, RELATIONS[1]: edges[RELATIONS[1]][:, 1:]})

    text = r"GraphModule: expected the batch's edge_index of \('b', 'r1', 'a'\) itself, or a row for each of its edges"
    with pytest.raises(ValueError, match=f"^{text}"):
        narrow(made("bases", GRAPH), without_one)(batch_of())


@pytest.mark.parametrize("relation", [("a", "r", "b"), ("b", "r", "a"), ("b", "r", "b")])
def test_one_relation_that_pyg_merges_with_ids_of_the_wrong_type(relation):
    data = make_types({"a": 5, "b": 9}, [relation], 2, 0)
    batch = next(iter(NeighborLoader(data, [2, 2], (relation[-1], torch.arange(3)), batch_size=3)))
    text = rf"GraphModule: expected several relations, or one within the first type, 'a'; found \('{relation[0]}', "
    with pytest.raises(ValueError, match=f"^{text}"):
        narrow(made("bases", data), call, check=False)(batch)
    data = make_types({"a": 5, "b": 9}, [("a", "r", "a")], 2, 0)
    model = made("bases", data)
    check(model, narrow(model, call), next(iter(NeighborLoader(data, [2, 2], ("a", torch.arange(3)), batch_size=3))))


def test_relations_that_a_batch_of_merged_ones_lacks():
    def run(model, batch):
        return model(batch.x_dict, {**batch.edge_index_dict, RELATIONS[3]: torch.empty(2, 0, dtype=torch.int64)})

    batch = batch_of()
    del batch[RELATIONS[3]].edge_index
    batch[RELATIONS[3]].num_sampled_edges = [0, 0]
    text = r"GraphModule: expected a batch with edges of \[\('a', .*\], found none of \('a', 'r3', 'c'\)$"
    with pytest.raises(ValueError, match=f"^{text}"):
        narrow(made("bases", GRAPH), run)(batch)


@pytest.mark.parametrize("name", ["to_hetero SAGE", "bases"])
def test_later_batches_of_unequal_hops(name):
    narrowed, batch = narrow(made(name, GRAPH), call), batch_of()
    narrowed(batch)
    batch["c", "b"].num_sampled_edges = batch["c", "b"].num_sampled_edges[:1]
    with pytest.raises(ValueError, match=r"^batch: expected as many hops of all types of nodes and edges, found 2 of"):
        narrowed(batch)


def test_batches_are_compared_until_all_relations_have_had_edges(monkeypatch):
    data, relations = HeteroData(), [("b", "r", "a"), ("a", "s", "a")]
    data["a"].x, data["b"].x = torch.randn(3, FEATURES), torch.randn(2, FEATURES)
    data[relations[0]].edge_index, data[relations[1]].edge_index = torch.tensor([[0], [0]]), torch.tensor([[2], [1]])
    conv = pyg_nn.HeteroConv({edge_type: pyg_nn.SAGEConv((FEATURES, FEATURES), FEATURES) for edge_type in relations})
    compared = []
    monkeypatch.setattr(Narrowed, "_check", lambda self, batch, hops: compared.append(hops.with_edges))
    narrowed = narrow(conv, lambda model, batch: model(batch.x_dict, batch.edge_index_dict))
    for seed in (0, 0, 2, 1, 1, 0):
        narrowed(next(iter(NeighborLoader(data, [1], ("a", torch.tensor([seed]))))))
    assert compared == [{0, relations[0]}, {0, relations[1]}]


ROWS = r"rows of the nodes of whole hops, \[\d+, \d+, \d+\]"
OUTPUTS = [
    (
        lambda rows: rows["b"],
        rf"{ROWS} of 'a', found \d+; let it return rows of nodes, and compute scores of links from",
    ),
    (lambda rows: rows["a"].sum(), f"{ROWS} of 'a', found none;"),
    (lambda rows: {"a": rows["a"][1:]}, rf"{ROWS} of 'a', found \d+;"),
    (lambda rows: {"b": rows["b"], "c": rows["c"]}, r"rows of 'a', the seeds, found \['b', 'c'\]$"),
]


@pytest.mark.parametrize("least", [0, 1 << 62])
def test_as_many_rows_of_another_type_as_a_hop_has(least, monkeypatch):
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", least)
    batch = batch_of("a", (3, 1, 4, 5))
    found = sum(batch["a"].num_sampled_nodes[:2])

    def of_other_type(model, batch):
        rows = call(model, batch)["b"]
        return rows.sum(0).expand(found, -1)

    with pytest.raises(
        ValueError, match=rf"^model: expected \d+ rows of nodes of 'a', as its layers return, found {found};"
    ):
        narrow(made("SAGE", GRAPH), of_other_type, check=False)(batch)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("least", [0, 1 << 62])
@pytest.mark.parametrize(("choose", "message"), OUTPUTS)
def test_outputs_without_the_rows_of_the_seeds(choose, message, least, check, monkeypatch):
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", least)
    narrowed = narrow(made("SAGE", GRAPH), lambda model, batch: choose(call(model, batch)), check)
    with pytest.raises(ValueError, match=f"^model: expected {message}"):
        narrowed(batch_of("a", (3, 1, 4, 5)))


def test_an_output_that_is_none_is_left_out():
    """As HGTConv gives for a type that no relation leads into."""
    narrowed = narrow(made("SAGE", GRAPH), lambda model, batch: {**call(model, batch), "a": None})
    assert narrowed(batch_of()) == {}


@pytest.mark.slow
@pytest.mark.parametrize("least", [0, 1 << 62])
def test_scores_of_links_of_one_type(least, monkeypatch):
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", least)
    relation = RELATIONS[2]

    def score(model, batch):
        rows, (src, dst) = call(model, batch)["a"], batch[relation].edge_label_index
        return (rows[src] * rows[dst]).sum(-1)

    links = LinkNeighborLoader(GRAPH, [2, 2], edge_label_index=(relation, None), neg_sampling="binary", batch_size=40)
    with pytest.raises(ValueError, match=rf"^model: expected {ROWS} of 'a', found 80; let it return rows of nodes"):
        narrow(made("SAGE", GRAPH), score)(next(iter(links)))


def test_rows_where_several_types_have_seeds():
    """Only some of them would be computed."""
    links = LinkNeighborLoader(GRAPH, [2, 2], edge_label_index=(RELATIONS[0], None), batch_size=4)
    narrowed = narrow(made("SAGE", GRAPH), lambda model, batch: call(model, batch)["a"])
    text = r"as many rows as for the whole batch, \d+, found \d; where several types have seeds, let it return a dict"
    with pytest.raises(ValueError, match=f"^model: expected {text}"):
        narrowed(next(iter(links)))


def test_outputs_that_are_neither_tensors_nor_dictionaries():
    narrowed = narrow(made("SAGE", GRAPH), lambda model, batch: [call(model, batch)], check=False)
    with pytest.raises(TypeError, match=r"^model: expected a tensor, or a dictionary by node type, found list$"):
        narrowed(batch_of())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b["a"].pop("num_sampled_nodes"),
         r"batch: expected one of NeighborLoader with num_sampled_nodes of 'a', found none"),
        (lambda b: b["a", "b"].pop("num_sampled_edges"),
         r"batch: expected one of NeighborLoader with num_sampled_edges of \('a', 'r0', 'b'\), found none"),
        (lambda b: b["a", "b"].update({"edge_index": b["a", "b"].edge_index.flip(1)}),
         r"batch\[\('a', 'r0', 'b'\)\].edge_index: dst: expected edges sorted by destination"),
        (lambda b: b["a", "b"].update({"edge_index": b["a", "b"].edge_index[:, 1:]}),
         r"batch\[\('a', 'r0', 'b'\)\]: expected \d+ edges and \d+ nodes as its hops say, found"),
        (lambda b: b["a", "b"].num_sampled_edges.append(0),
         r"batch: expected as many hops of all types of nodes and edges, found 3 of edges of \('a', 'r0', 'b'\) and 2 "
         r"of edges of \('b', 'r1', 'a'\)$"),
        (lambda b: b["c"].num_sampled_nodes.pop(),
         r"batch: expected as many hops .*, found 2 of edges of \('a', 'r0', 'b'\) and 1 of nodes of 'c'$"),
    ],
)  # fmt: skip
def test_bad_batches(change, message):
    batch = batch_of()
    change(batch)
    with pytest.raises(ValueError, match=f"^{message}"):
        narrow(made("SAGE", GRAPH), call)(batch)
