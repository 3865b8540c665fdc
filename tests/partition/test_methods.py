"""Owners by permutation and by ranges, and what a report counts."""

import json

import pytest
import torch
from helpers.graphs import random_graph

from torch_gnnscale import CSC
from torch_gnnscale.partition import whole
from torch_gnnscale.partition.assignment import assign, report
from torch_gnnscale.partition.whole import Whole

TYPED = {("user", "likes", "item"): (60, 25), ("item", "of", "user"): (25, 60), ("user", "knows", "user"): (60, 60)}
SIZES = {"user": 60, "item": 25, "empty": 0}


def csc(num_nodes: int = 300, degree: int = 6, seed: int = 1) -> CSC:
    graph = random_graph(num_nodes, degree, seed)
    return CSC(graph.colptr, graph.row, None, num_nodes)


def typed_relations() -> dict:
    generator = torch.Generator().manual_seed(1)
    found = {}
    for relation, (src, dst) in TYPED.items():
        ends = torch.stack([torch.randint(count, (150,), generator=generator) for count in (src, dst)])
        found[relation] = CSC.from_edge_index(ends, (src, dst))
    return found


@pytest.mark.parametrize("method", ["random", "ranges"])
@pytest.mark.parametrize("parts", [1, 3, 7, 400])
def test_equal_numbers_of_nodes(method, parts):
    found = assign({None: csc()}, {None: 300}, parts, method=method)
    owner = found.owner[None]
    assert (found.method, owner.dtype, owner.shape) == (method, torch.int32, (300,))
    counts = torch.bincount(owner, minlength=parts)
    assert len(counts) == parts
    assert counts.max() - counts.min() <= 1
    if method == "ranges":
        assert torch.equal(owner, torch.sort(owner).values)


def test_random_owners_follow_from_the_seed():
    given = ({None: csc()}, {None: 300}, 4)
    one, same, other = (assign(*given, method="random", seed=seed).owner[None] for seed in (5, 5, 6))
    assert torch.equal(one, same)
    assert (one == other).double().mean() < 0.5
    together = torch.bincount(4 * one + assign(*given, method="ranges").owner[None], minlength=16)
    assert together.max() < 40  # 18.75 of each pair on average


def test_types_have_parts_of_their_own():
    found = assign(typed_relations(), SIZES, 4, method="random").owner
    assert {t: len(owner) for t, owner in found.items()} == SIZES
    assert torch.bincount(found["user"]).tolist() == [15] * 4
    assert sorted(torch.bincount(found["item"]).tolist()) == [6, 6, 6, 7]
    alike = {"a": 60, "b": 60}
    found = assign({("a", "to", "b"): csc(60)}, alike, 4, method="random").owner
    assert not torch.equal(found["a"], found["b"])


def test_edges_of_all_relations_into_a_type_count():
    relations = typed_relations()
    whole = Whole.of(relations, SIZES, {}, ["edges"])
    expected = dict.fromkeys(SIZES, 0)
    for (_, _, dst), csc in relations.items():
        expected[dst] = expected[dst] + csc.colptr.diff()
    found = whole.by_type(whole.weight[:, 0])
    assert all(torch.equal(found[node_type], expected[node_type]) for node_type in ("user", "item"))


def test_nodes_of_each_type_are_counted_by_themselves():
    whole = Whole.of(typed_relations(), SIZES, {"item": torch.tensor([3, 0])})
    found = {name: whole.by_type(column) for name, column in zip(whole.names, whole.weight.unbind(1), strict=True)}
    assert set(found) == {"nodes user", "nodes item", "edges", "train"}
    for node_type in ("user", "item"):
        counted = {of: int(values.sum()) for of, values in found[f"nodes {node_type}"].items()}
        assert counted == {**dict.fromkeys(SIZES, 0), node_type: SIZES[node_type]}
    assert {of: values.nonzero().view(-1).tolist() for of, values in found["train"].items()} == {
        **{of: [] for of in SIZES}, "item": [0, 3],
    }  # fmt: skip


def test_each_of_as_many_parts_as_nodes_has_one():
    assert assign({None: csc(6, 2)}, {None: 6}, 6, method="metis").owner[None].tolist() == list(range(6))


@pytest.mark.parametrize("chunk", [1, 7, 1 << 22])
def test_a_report_counts_edge_by_edge(monkeypatch, chunk):
    monkeypatch.setattr(whole, "CHUNK", chunk)
    relations, parts = typed_relations(), 5
    owner = assign(relations, SIZES, parts, method="random", seed=3).owner
    train = {"user": torch.tensor([3, 9, 3, 50]), "item": torch.tensor([24])}
    found = report(relations, owner, parts, train)
    cut, edges, halo = 0, [0] * parts, [set() for _ in range(parts)]
    for (src, _, dst), relation in relations.items():
        for node in range(relation.num_dst):
            part = int(owner[dst][node])
            for source in relation.row[relation.colptr[node] : relation.colptr[node + 1]].tolist():
                edges[part] += 1
                if owner[src][source] != part:
                    cut += 1
                    halo[part].add((src, source))
    trained = [int(owner["user"][node]) for node in (3, 9, 50)] + [int(owner["item"][24])]
    assert (found.num_edges, found.cut_edges, found.cut) == (450, cut, cut / 450)
    assert (found.edges, found.halo) == (edges, [len(nodes) for nodes in halo])
    assert found.train == [trained.count(part) for part in range(parts)]
    assert found.nodes == {
        f"nodes {t}": [int((parts_of == part).sum()) for part in range(parts)] for t, parts_of in owner.items()
    }
    balance = found.balance()
    assert balance["edges"] == max(edges) / 90
    assert balance["nodes user"] == 1
    assert balance["nodes empty"] == 1


def test_a_report_as_text_and_json():
    chain = CSC.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 3]]), 4)
    found = report({None: chain}, {None: torch.tensor([0, 0, 1, 1], dtype=torch.int32)}, 2, {None: torch.tensor([0])})
    assert json.loads(json.dumps(found.to_dict())) == {
        "num_edges": 3, "cut_edges": 1, "cut": 1 / 3, "nodes": {"nodes": [2, 2]}, "edges": [1, 2], "train": [1, 0],
        "halo": [0, 1], "balance": {"nodes": 1.0, "edges": 4 / 3, "train": 2.0},
    }  # fmt: skip
    assert str(found).splitlines() == [
        "      part  nodes  edges  train  halo",
        "         0      2      1      1     0",
        "         1      2      2      0     1",
        "max / mean  1.000  1.333  2.000      ",
        "cut: 1 of 3 edges (33.33%)",
    ]
    empty = report({None: CSC.from_edge_index(torch.empty(2, 0, dtype=torch.int64), 3)},
                   {None: torch.zeros(3, dtype=torch.int32)}, 2)  # fmt: skip
    assert (empty.cut, empty.balance()) == (0, {"nodes": 2.0, "edges": 1.0, "train": 1.0})
