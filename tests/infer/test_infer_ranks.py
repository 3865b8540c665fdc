"""Inference over the parts of several ranks gives the rows of the model on the whole graph."""

import functools

import pytest
import torch
from helpers import boundary, narrow_types
from helpers.cluster import cluster
from helpers.inference import check as check_rows
from helpers.inference import inferred, model_and_call, sorted_data, whole
from helpers.narrow import MODELS
from helpers.narrow_types import MODELS as TYPED
from helpers.slow import NIGHTLY, SLOW
from helpers.warn import recorded

from torch_gnnscale import partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.infer import infer, open_results

DATA, GRAPH = sorted_data(), narrow_types.GRAPH
CASES = [name for name in MODELS if name != "sage lstm"] + ["attributes of edges", "ids"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Of (number of parts, how their edges lie): the directory of random parts of DATA, or of GRAPH where that is
    "typed"."""

    @functools.cache
    def of(count, topology):
        path = tmp_path_factory.mktemp("parts") / "parts"
        typed = topology == "typed"
        options = {"method": "random", "topology": "replicated" if typed else topology}
        partition.write(GRAPH if typed else DATA, path, parts=count, **options)
        return str(path)

    return of


def expected_of(name: str, typed: bool = False, data=None) -> dict:
    model, call = model_and_call(name, typed)
    data = (GRAPH if typed else DATA) if data is None else data
    if name == "ids":
        data = data.clone()
        data.n_id, data.e_id = torch.arange(data.num_nodes), torch.arange(data.num_edges)
    with torch.no_grad():
        out = call(model, data)
    return out if typed else {None: out}


def check(of_ranks: list, expected: dict) -> None:
    check_rows(whole(of_ranks, {t: len(rows) for t, rows in expected.items()}), expected)


def found_by(world: int, path: str, names: list[str], options: dict, opening: dict | None = None) -> list:
    """found[model][rank]."""
    of_ranks = cluster(world).run(inferred, path, names, options, opening, timeout=300)
    return [list(of_model) for of_model in zip(*of_ranks, strict=True)]


PLACEMENTS = [(2, "partitioned"), NIGHTLY(4, "replicated")]


@pytest.mark.parametrize(
    ("count", "topology"), [(2, "partitioned"), SLOW(2, "replicated"), SLOW(3, "partitioned"), SLOW(4, "replicated")]
)
def test_a_model_at_the_ends_of_parts(tmp_path, count, topology):
    data, path = sorted_data(boundary.boundary_graph()), tmp_path / "parts"
    partition.write(data, path, parts=count, owners=boundary.owners_of(count), topology=topology)
    (found,) = found_by(count, str(path), ["gcn"], {})
    check(found, expected := expected_of("gcn", data=data))
    ends = boundary.ends_of(boundary.owners_of(count))
    (found,) = found_by(count, str(path), ["gcn"], {"nodes": ends})
    assert sorted(torch.cat([of[None][0] for of in found]).tolist()) == sorted(set(ends.tolist()))
    for ids, rows in (of[None] for of in found):
        torch.testing.assert_close(rows, expected[None][ids], rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "topology"), PLACEMENTS)
@pytest.mark.parametrize("names", [pytest.param(list(CASES)[::2], id="some"), NIGHTLY(list(CASES), id="all")])
def test_models(parts, names, count, topology):
    for name, found in zip(names, found_by(count, parts(count, topology), names, {}), strict=True):
        check(found, expected_of(name))


@pytest.mark.parametrize("names", [SLOW(list(TYPED)[::3], id="some"), NIGHTLY(list(TYPED), id="all")])
def test_typed_models(parts, names):
    for name, found in zip(names, found_by(3, parts(3, "typed"), names, {"batch_size": 7}), strict=True):
        check(found, expected_of(name, typed=True))


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["replicated", NIGHTLY("partitioned")])
def test_hubs_are_computed_in_pieces(parts, topology, tmp_path):
    """Nodes of as many pieces as there are edges, by some ranks more than by others."""
    for name, out in {"sage max": None, "gcn": tmp_path / "rows", "gcn2": None}.items():
        (found,) = found_by(2, parts(2, topology), [name], {"memory": 2500, "out": out})
        check(found, expected_of(name))


@pytest.mark.slow
def test_a_hub_is_refused_on_all_ranks(tmp_path):
    data = sorted_data()
    data.edge_index[1, -100:] = 7
    partition.write(data, tmp_path / "parts", parts=2, method="random", owners=(torch.arange(200) % 2).roll(1))
    text = (
        "convs.0 (GATConv): expected a layer that takes the sum, mean, max or min of messages, found GATConv, which "
        "needs all of a node's edges at once; node 7 has more neighbors than memory= holds, which must be larger for "
        "this layer"
    )
    options = {"memory": 90 * (48 + 2 * 3 * 8), "out": tmp_path / "rows"}
    answers = cluster(2).results(inferred, str(tmp_path / "parts"), ["gat"], options)
    assert answers == [(False, f"ValueError: {text}"), (False, f"RuntimeError: rank 0: ValueError: {text}")]
    assert not (tmp_path / "rows").exists()


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
@pytest.mark.parametrize("nodes", [[3, 150, 3, 0], [], (torch.arange(200) % 7 == 0).nonzero().view(-1).tolist()])
def test_only_what_nodes_depend_on_is_computed(parts, tmp_path, topology, nodes):
    data = sorted_data(num_edges=300)
    partition.write(data, tmp_path / "parts", parts=2, method="random", topology=topology)
    near = torch.zeros(200).bool()
    near[nodes] = True
    for _ in range(3):
        near[data.edge_index[0, near[data.edge_index[1]]]] = True
    for name in ("gcn2", "jumping, cat"):
        rows = expected_of(name, data=data)[None]
        for out in (None, tmp_path / name):
            options = {"nodes": torch.tensor(nodes, dtype=torch.int64), "out": out, "batch_size": 5}
            (found,) = found_by(2, str(tmp_path / "parts"), [name], options)
            assert sorted(id_ for ids, _ in (of[None] for of in found) for id_ in ids.tolist()) == sorted(set(nodes))
            for ids, of_rank in (of[None] for of in found):
                torch.testing.assert_close(of_rank, rows[ids], rtol=0, atol=1e-12)
        if nodes:
            results = open_results(tmp_path / name)
            assert results.ids.tolist() == sorted(set(nodes))
            torch.testing.assert_close(results[nodes], rows[nodes], rtol=0, atol=1e-12)


def far_away(path: str, near: torch.Tensor, node: int) -> list:
    """The rows of nodes that no result depends on are NaN, and none is read."""
    with open_part(path) as part:
        ids, rows = part.stored.user_ids[None], part.stored.rows[None, "x"]
        rows[~near[ids]] = float("nan")
        model, call = model_and_call("sage", False)
        return infer(model, (part.features, part.graph), call, nodes=[node], batch_size=3).tolist()


@pytest.mark.slow
def test_rows_of_nodes_far_away_are_not_read(tmp_path):
    data = sorted_data(num_edges=200)
    partition.write(data, tmp_path / "parts", parts=2, method="random", topology="partitioned")
    near, node = torch.zeros(200).bool(), int(data.edge_index[1].bincount().argmax())
    near[node] = True
    for _ in range(3):
        near[data.edge_index[0, near[data.edge_index[1]]]] = True
    assert 5 < int(near.sum()) < 100
    rows = [row for of_rank in cluster(2).run(far_away, str(tmp_path / "parts"), near, node) for row in of_rank]
    expected = expected_of("sage", data=data)[None][[node]]
    torch.testing.assert_close(torch.tensor(rows, dtype=torch.float64), expected, rtol=0, atol=1e-12)


def owners_of(*of_nodes: int) -> torch.Tensor:
    """Part 2 has all nodes but these, of which the parts 0, 1, ... have one each."""
    return torch.full((200,), 2).index_copy_(0, torch.tensor(of_nodes), torch.arange(len(of_nodes)))


OWNERS = {"a part without nodes": torch.arange(200) % 2 * 2, "parts of one node": owners_of(7, 100)}


@pytest.mark.slow
@pytest.mark.parametrize("which", OWNERS)
@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
def test_parts_of_no_or_of_one_node(tmp_path, which, topology):
    owners = OWNERS[which]
    partition.write(DATA, tmp_path / "parts", parts=3, method="random", topology=topology, owners=owners)
    names = ["gcn", "jumping, cat"]
    for out in (None, tmp_path):
        for name in names:
            options = {"out": None if out is None else out / name}
            (found,) = found_by(3, str(tmp_path / "parts"), [name], options)
            assert sorted(len(of[None][0]) for of in found) == sorted(owners.bincount(minlength=3).tolist())
            check(found, expected_of(name))
    expected = expected_of("gcn")[None]
    torch.testing.assert_close(open_results(tmp_path / "gcn")[torch.arange(200)], expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_typed_parts_without_nodes(tmp_path):
    owners = {"a": torch.arange(30) % 2 * 2, "b": torch.arange(20) % 3, "c": torch.ones(10, dtype=torch.int64)}
    partition.write(GRAPH, tmp_path / "parts", parts=3, method="random", owners=owners)
    for name in ("mixed", "HGT", "relational"):
        (found,) = found_by(3, str(tmp_path / "parts"), [name], {"batch_size": 7, "out": tmp_path / name})
        check(found, expected_of(name, typed=True))
        for node_type, rows in expected_of(name, typed=True).items():
            of_type = open_results(tmp_path / name)[node_type]
            torch.testing.assert_close(of_type[torch.arange(len(rows))], rows, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("world", "count", "topology"),
    [(2, 1, "replicated"), SLOW(2, 1, "partitioned"), SLOW(4, 2, "partitioned"), SLOW(4, 2, "replicated")],
)
def test_several_ranks_of_a_part(parts, tmp_path, world, count, topology):
    """Each computes its share of the part's nodes; the files have all of them."""
    names = ["gcn", "attributes of edges", "ids"]
    for name, found in zip(names, found_by(world, parts(count, topology), names, {}), strict=True):
        assert [len(of[None][0]) for of in found] == [200 // world] * world
        check(found, expected_of(name))
    nodes = torch.tensor([3, 150, 3, 0])
    (found,) = found_by(world, parts(count, topology), ["gcn"], {"out": tmp_path / "rows", "nodes": nodes})
    results, expected = open_results(tmp_path / "rows"), expected_of("gcn")[None]
    assert len(results.parts) == world
    torch.testing.assert_close(results[nodes], expected[nodes], rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["partitioned", "replicated"])
def test_ranks_of_a_part_that_are_not_consecutive(parts, tmp_path, topology):
    """They compute the same shares, each rank another one: the same bits."""
    found = {}
    for consecutive in ("copies", "parts"):
        opening, out = {"consecutive": consecutive}, tmp_path / consecutive
        (of_ranks,) = found_by(4, parts(2, topology), ["gcn"], {"out": out}, opening)
        check(of_ranks, expected_of("gcn"))
        results = open_results(out)
        assert [ids.tolist() for ids, _ in results.parts] == [of[None][0].tolist() for of in of_ranks]
        found[consecutive] = results[torch.arange(200)]
        nodes = {"nodes": torch.tensor([3, 150, 3, 0]), "out": tmp_path / f"{consecutive} of some"}
        found_by(4, parts(2, topology), ["gcn"], nodes, opening)
        some = open_results(nodes["out"])[nodes["nodes"]]
        torch.testing.assert_close(some, found[consecutive][nodes["nodes"]], rtol=0, atol=1e-12)
    assert torch.equal(found["copies"], found["parts"])


@pytest.mark.slow
def test_ranks_of_typed_parts_that_are_not_consecutive(parts):
    for name, found in zip(
        names := ["mixed", "HGT"], found_by(4, parts(2, "typed"), names, {}, {"consecutive": "parts"}), strict=True
    ):
        check(found, expected_of(name, typed=True))


def warned(path: str, opening: dict) -> list[str]:
    """The warnings of an inference over a part that is opened so."""
    with open_part(path, **opening) as part, recorded() as caught:
        infer(model_and_call("gcn", False)[0], (part.features, part.graph))
        return [str(warning.message) for warning in caught]


def test_tiers_of_a_part_of_several_ranks_have_no_effect(parts):
    text = "tiers of the part have no effect in inference by 2 ranks per part, which read its rows from its files"
    tiers = {"host": "50%", "hotness": "out_degree"}
    found = cluster(2).run(warned, parts(1, "replicated"), {"tiers": tiers})
    assert found == [[text]] * 2


@pytest.mark.slow
def test_a_buffer_has_no_effect(parts):
    text = "open_part(buffer='50%') has no effect in inference, which reads rows in one pass"
    found = cluster(2).run(warned, parts(2, "replicated"), {"buffer": "50%"})
    assert found == [[text]] * 2


@pytest.mark.slow
def test_several_ranks_of_typed_parts_with_few_nodes(tmp_path):
    owners = {"a": torch.arange(30) % 2, "b": torch.zeros(20, dtype=torch.int64), "c": (torch.arange(10) > 0).long()}
    for topology in ("replicated", "partitioned"):
        path = str(tmp_path / topology)
        partition.write(GRAPH, path, parts=2, method="random", owners=owners, topology=topology)
        opening = {"tiers": {"host": "50%", "hotness": "out_degree"}}
        for name, found in zip(names := ["mixed", "HGT"], found_by(4, path, names, {}, opening), strict=True):
            check(found, expected_of(name, typed=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "opening", [{"buffer": 0.3, "policy": "lookahead"}, {"tiers": {"host": "25%", "hotness": "out_degree"}}]
)
def test_how_the_part_was_opened(parts, opening):
    names = ["gcn", "sage"]
    for name, found in zip(names, found_by(2, parts(2, "replicated"), names, {}, opening), strict=True):
        check(found, expected_of(name))


@pytest.mark.slow
def test_one_part_of_edges_needs_no_other_rank(parts):
    (found,) = inferred(parts(1, "partitioned"), ["gcn"], {})
    check([found], expected_of("gcn"))


def traffic(path: str) -> dict:
    """What this rank exchanges for an inference."""
    with open_part(path) as part:
        model, call = model_and_call("sage", False)
        infer(model, (part.features, part.graph), call, batch_size=30)
        return part.stats()


@pytest.mark.slow
def test_a_batch_takes_two_rounds(parts):
    """Rows of 100 nodes per part in batches of 30, in three stages; and those of the small graph."""
    for stats in cluster(2).run(traffic, parts(2, "replicated")):
        assert {purpose for purpose, of in stats.items() if of["rounds"]} == {"ids", "rows"}
        assert stats["ids"]["rounds"] == stats["rows"]["rounds"] == 3 * 4 + 1
