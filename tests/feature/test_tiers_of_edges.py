"""Rows of edges in tiers, beside those of nodes: one budget, batches of the untiered loader, counts by relation."""

import pickle
import re

import pytest
import torch
from helpers.data import make_data, plain
from helpers.hetero import CITES, LIKES, PAPER, WRITES, make_hetero
from helpers.slow import SLOW
from torch_geometric.data import HeteroData

from torch_gnnscale import FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader
from torch_gnnscale import TieredFeatureStore as Tiered
from torch_gnnscale.feature import hotness
from torch_gnnscale.feature.tier_plan import TypedTierPlan, plan_types
from torch_gnnscale.loader import accesses

EDGES = (None, None)
SAMPLED = {"num_neighbors": [4, 3], "batch_size": 8, "shuffle": True, "seed": 5}


def homogeneous():
    """Rows of nodes and edges of several widths and dtypes, each a function of the id."""
    data = make_data(200)
    ids = torch.arange(data.num_edges)
    data.edge_attr = ids[:, None] + torch.arange(24) / 64
    data.kind = (ids % 100).to(torch.int8)
    data.wide = (ids[:, None, None] + torch.arange(4).view(2, 2)).double()
    data.train_mask = torch.arange(200) % 3 == 0
    return data


def typed():
    data = make_hetero()
    data[PAPER].train_mask = torch.arange(40) % 3 == 0
    data[WRITES].edge_attr = torch.arange(data[WRITES].num_edges)[:, None] + torch.arange(40).double() / 64
    data[LIKES].stars = (torch.arange(data[LIKES].num_edges) % 5).to(torch.uint8)
    return data


def sorted_plain(batch):
    if isinstance(batch, HeteroData):
        return sorted((str(key), sorted(dict(entries).items())) for key, entries in plain(batch))
    return sorted(plain(batch))


def seeds_of(data):
    return (PAPER, torch.arange(30)) if isinstance(data, HeteroData) else torch.arange(30)


def check_batches(data, store, **options):
    """The batches over a store are those over the untiered one; returns how many there are."""
    graph = GraphStore.from_data(data, order=store.order)
    ours = NeighborLoader((store, graph), input_nodes=seeds_of(data), **SAMPLED, **options)
    rows = FeatureStore.from_data(data, order=store.order)
    expected = list(NeighborLoader((rows, graph), input_nodes=seeds_of(data), **SAMPLED))
    assert [sorted_plain(batch) for batch in ours] == [sorted_plain(batch) for batch in expected]
    return len(expected)


BUDGETS = [{}, {"host": "40%"}, {"host": "40%", "renumbered": True}, SLOW({"host": "2%"})]


@pytest.mark.parametrize("kwargs", [{}, SLOW({"num_workers": 2, "multiprocessing_context": "fork"})], ids=str)
@pytest.mark.parametrize("budgets", [*BUDGETS, SLOW({"host": 3000, "hotness": "out_degree"})], ids=str)
@pytest.mark.parametrize("make", [homogeneous, typed])
def test_batches_are_those_of_the_untiered_loader(make, budgets, kwargs, tmp_path):
    data = make()
    with Tiered.from_data(data, disk=tmp_path if "host" in budgets else None, **budgets) as store:
        assert check_batches(data, store, **kwargs) == 4
        groups = [*data.node_types, CITES, WRITES] if isinstance(data, HeteroData) else [None, EDGES]
        assert {*groups} <= {*store.plan}


@pytest.mark.slow
def test_links_and_weights_are_those_of_the_untiered_loader(tmp_path):
    data = homogeneous()
    data.weight = torch.rand(data.num_edges, generator=torch.Generator().manual_seed(1))
    options = {"edge_label_index": data.edge_index[:, ::20], "neg_sampling": "binary", "weight_attr": "weight"}
    with Tiered.from_data(data, host="40%", disk=tmp_path) as store:
        graph = GraphStore.from_data(data)
        ours = LinkNeighborLoader((store, graph), **SAMPLED, **options)
        expected = LinkNeighborLoader((FeatureStore.from_data(data), graph), **SAMPLED, **options)
        assert [sorted_plain(batch) for batch in ours] == [sorted_plain(batch) for batch in expected]


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize("make", [homogeneous, typed])
def test_saved_rows_are_opened(make, renumbered, tmp_path):
    data = make()
    graph = GraphStore.from_data(data)
    labelled = {PAPER: torch.arange(12)} if isinstance(data, HeteroData) else torch.arange(12)
    scores = hotness.graph_scores(graph, "weighted_reverse_pagerank", labelled, edges=True)
    order = None
    if renumbered:
        with Tiered.from_data(data, hotness=scores, renumbered=True) as store:
            order = store.order
    FeatureStore.from_data(data, order=order).save(tmp_path / "saved")
    with Tiered.open(tmp_path / "saved", scores, host="40%", renumbered=renumbered) as store:
        assert any(tier.name == "disk" for tier in store.plan.tiers)
        check_batches(data, store)
        again = pickle.loads(pickle.dumps(store))
        check_batches(data, again)
        assert str(again.plan) == str(store.plan)
        assert again.stats_by_type() == store.stats_by_type()  # of both processes


def test_rows_in_16_bits(tmp_path):
    data = homogeneous()
    with Tiered.from_data(data, storage=torch.bfloat16, host="40%", disk=tmp_path) as store:
        ids = torch.arange(0, data.num_edges, 3)
        for name in ("edge_attr", "wide", "kind"):
            rows, found = data[name][ids], store[EDGES, name, ids]
            as_stored = rows.bfloat16().to(rows.dtype) if name != "kind" else rows
            assert torch.equal(found, as_stored)


@pytest.mark.parametrize("make", [homogeneous, typed])
def test_expected_and_found_hit_rates_of_exact_scores_agree(make, tmp_path):
    data = make()
    graph = GraphStore.from_data(data)
    loader = NeighborLoader((FeatureStore.from_data(data), graph), input_nodes=seeds_of(data), **SAMPLED)
    exact = accesses(loader, [0], edges=True)
    with Tiered.from_data(data, hotness=exact, host="15%", disk=tmp_path) as store:
        for _ in NeighborLoader((store, graph), input_nodes=seeds_of(data), **SAMPLED):
            pass
        assert isinstance(store.plan, TypedTierPlan)
        of_all = {name: use.hit_rate for name, use in store.stats().items()}
        assert of_all == pytest.approx({tier.name: tier.hit_rate for tier in store.plan.tiers})
        assert 0 < of_all["host"] < 1
        for group, uses in store.stats_by_type().items():
            expected = {tier.name: tier.hit_rate for tier in store.plan[group].tiers}
            assert {name: use.hit_rate for name, use in uses.items()} == pytest.approx(expected)
            cut = sum(key[0] == group and key[1] not in store.plan[group].whole for key in store.rows_by_attribute())
            assert sum(use.rows for use in uses.values()) == cut * int(exact[group].sum())
        for name, use in store.stats().items():
            of_types = [uses[name] for uses in store.stats_by_type().values() if name in uses]
            assert use.rows == sum(of_type.rows for of_type in of_types)
            assert use.num_bytes == sum(of_type.num_bytes for of_type in of_types)


def test_a_table_for_nodes_and_for_edges():
    with Tiered.from_data(homogeneous()) as store:
        head, _, edges = str(store.plan).partition("\n\n")
        assert head.startswith("nodes:\ntier")
        assert edges.startswith("edges:\ntier")
        assert store.plan[None].whole.keys() == {"train_mask"}  # rows of 1 byte beside 16
        assert store.plan[EDGES].whole.keys() == {"kind"}


def test_nodes_or_edges_alone():
    data = homogeneous()
    with Tiered.from_data(data, names=["x", "y"]) as store:
        assert not isinstance(store.plan, TypedTierPlan)
    with Tiered.from_data(data, names=["edge_attr"], renumbered=True) as store:
        assert (list(store.plan), store.order) == ([EDGES], None)
        check = torch.tensor([7, 3])
        assert torch.equal(store[EDGES, "edge_attr", check], data.edge_attr[check])


def test_a_map_that_takes_more_than_the_rows_it_lets_into_memory():
    scores = {None: torch.arange(100.0, 0, -1), EDGES: torch.full((10_000,), 0.01)}
    options = {"gpu": 0, "peers": (), "disk": True, "renumbered": (), "on_gpu": False}
    sizes = {None: {"x": 16}, EDGES: {"edge_attr": 4}}
    plans = plan_types(scores, sizes, host=30_000, **options)
    assert (plans[None].rows("host"), plans[EDGES].rows("disk"), plans[EDGES].map_bytes) == (100, 10_000, 0)
    plans = plan_types(scores, sizes, host=50_000, **options)  # room for all
    assert (plans[None].rows("host"), plans[EDGES].rows("host"), plans[EDGES].map_bytes) == (100, 10_000, 0)
    sizes[EDGES]["edge_attr"] = 400
    plans = plan_types(scores, sizes, host=1_000_000, **options)
    assert (plans[EDGES].map_bytes, plans[EDGES].rows("host")) == (40_000, (1_000_000 - 40_000 - 1600) // 400)
    message = "host: expected room for the map of 100 nodes, 400 bytes, found 300"  # that of the edges was given up
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        plan_types(scores, sizes, host=300, **options)
    message = "host: expected room for the map of 10100 nodes and edges, 40400 bytes, found 8000"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        plan_types(scores, {of: {"x": 400} for of in sizes}, host=8000, **options | {"disk": False})
    message = "host: expected room for the map of 10000 edges, 40000 bytes, found 8000"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        plan_types(scores, sizes, host=8000, **options | {"disk": False})


# Scores of edges ######################################################################################################


@pytest.mark.slow
def test_reads_of_edges_are_expected():
    """By counting what uniform draws find: fanout / degree for each expansion of the destination."""
    data = make_data(60)
    graph = GraphStore.from_data(data)
    csc = graph.relation()
    degree = torch.bincount(data.edge_index[1], minlength=60)
    expansions = torch.arange(60)
    for fanout in (-1, 2):
        drawn = degree if fanout == -1 else degree.clamp(max=fanout)
        expected = (expansions * drawn / degree.clamp(min=1))[data.edge_index[1]]
        torch.testing.assert_close(hotness.edge_reads(csc, expansions, fanout), expected.double())
    loader = NeighborLoader((FeatureStore.from_data(data), graph), [2], batch_size=60, seed=1)
    counted = accesses(loader, range(400), edges=True)[EDGES] / 400
    assert float((counted - hotness.edge_reads(csc, torch.ones(60), 2)).abs().max()) < 0.1


@pytest.mark.parametrize("name", hotness.NAMES)
@pytest.mark.parametrize("make", [homogeneous, typed])
def test_scores_of_edges_add_up_to_those_of_their_sources(make, name):
    data = make()
    graph = GraphStore.from_data(data)
    is_typed = isinstance(data, HeteroData)
    labelled = ({PAPER: torch.arange(9)} if is_typed else torch.arange(9)) if name.startswith("weighted") else None
    scores = hotness.graph_scores(graph, name, labelled, edges=True)
    for given in (scores, hotness.scores_of(data, name, labelled, edges=True)):
        assert given.keys() == scores.keys()
        assert all(torch.equal(given[of], score) for of, score in scores.items())
    without = hotness.graph_scores(graph, name, labelled)
    without = without if is_typed else {None: without}
    assert all(torch.equal(without[of], scores[of]) for of in without)
    # the last iteration of PageRank has the scores before it: those of edges are one iteration further
    relations = hotness.relations_of(graph)
    ends = data.edge_index_dict if is_typed else {None: data.edge_index}
    for of, index in ends.items():
        dst = scores[None if of is None else of[-1]].double()
        degree = torch.bincount(index[1], minlength=len(dst)).clamp(min=1)
        expected = torch.ones(index.size(1)).double() if name == "out_degree" else (0.85 * dst / degree)[index[1]]
        torch.testing.assert_close(scores[EDGES if of is None else of], expected)
    if name == "out_degree":
        for node_type in without:
            sums = torch.zeros(len(without[node_type]), dtype=torch.float64)
            for of in relations:
                if (None if of is None else of[0]) == node_type:
                    sums.index_add_(0, ends[of][0], scores[EDGES if of is None else of])
            assert torch.equal(sums, without[node_type].double())


@pytest.mark.parametrize("make", [homogeneous, typed])
def test_scores_of_a_renumbered_graph_are_by_the_users_ids(make, tmp_path):
    data = make()
    with Tiered.from_data(data, hotness="out_degree", renumbered=True) as store:
        GraphStore.from_data(data, order=store.order).save(tmp_path / "graph")
    labelled = {PAPER: torch.arange(40) < 9} if isinstance(data, HeteroData) else torch.arange(200) < 9
    expected = hotness.graph_scores(GraphStore.from_data(data), labelled=labelled, edges=True)
    found = hotness.graph_scores(GraphStore.open(tmp_path / "graph"), labelled=labelled, edges=True)
    assert found.keys() == expected.keys()
    for of, score in expected.items():
        torch.testing.assert_close(found[of], score)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (TypeError, "graph: expected a GraphStore, found HeteroData", lambda data, graph: hotness.graph_scores(data)),
        (TypeError, "name: expected one of ('out_degree', ", lambda data, graph: hotness.graph_scores(graph, 3)),
        (ValueError, "hotness: expected scores or one of ('out_degree', 'reverse_pagerank', "
         "'weighted_reverse_pagerank'), found 'heat'", lambda data, graph: hotness.graph_scores(graph, "heat")),
        (ValueError, "labelled: expected the nodes that training starts from, found None",
         lambda data, graph: hotness.graph_scores(graph)),
        (ValueError, "labelled: expected hotness='weighted_reverse_pagerank', which alone uses it, found another",
         lambda data, graph: hotness.graph_scores(graph, "out_degree", {PAPER: torch.arange(3)})),
        (TypeError, "labelled: expected a mapping by node type, found Tensor",
         lambda data, graph: hotness.graph_scores(graph, labelled=torch.arange(3))),
        (TypeError, "labelled: expected ids or a mask of a graph without types, found a mapping by type",
         lambda data, graph: hotness.graph_scores(GraphStore.from_data(make_data(9)), labelled={PAPER: 3})),
        (ValueError, "labelled: expected types among ['paper', 'author', 'venue'], found 'zz'",
         lambda data, graph: hotness.graph_scores(graph, labelled={"zz": torch.arange(3)})),
        (ValueError, "fanout: expected -1 <= fanout", lambda data, graph: hotness.edge_reads(
            graph.relation(CITES), torch.ones(40), -2)),
        (ValueError, "expansions: expected shape (40,), found (25,)", lambda data, graph: hotness.edge_reads(
            graph.relation(CITES), torch.ones(25), 3)),
        (ValueError, "hotness: expected scores of the edges of ('paper', 'cites', 'paper'), which have ['edge_attr'], "
         "found those of ['paper', 'author', 'venue']",
         lambda data, graph: Tiered.from_data(
             data, hotness={t: torch.ones(data[t].num_nodes) for t in data.node_types})),
        (ValueError, "hotness: expected 240 scores for (('paper', 'cites', 'paper'), 'edge_attr'), found 3",
         lambda data, graph: Tiered.from_data(
             data, hotness=hotness.graph_scores(graph, "out_degree", edges=True) | {CITES: torch.ones(3)})),
        (NotImplementedError, "tiers of lists, and of tensors with a column for each edge, are not implemented, found "
         "['words']", lambda data, graph: (data[CITES].update({"words": ["a"] * 240}), Tiered.from_data(data))),
    ],
)  # fmt: skip
def test_bad_input(error, message, call):
    data = typed()
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        call(data, GraphStore.from_data(data))
