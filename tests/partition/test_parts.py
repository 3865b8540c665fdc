"""The parts put together are the renumbered graph, and each row lies where its node or edge does."""

import pytest
import torch
from helpers import boundary
from helpers.data import ForeignFeatureStore, ForeignGraphStore, edges_of, make_data, our_stores
from helpers.hetero import AUTHOR, CITES, PAPER, REV_WRITES, foreign_stores, make_hetero
from helpers.slow import SLOW, examples
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import CSC, FeatureStore, GraphStore
from torch_gnnscale.partition import open_parts, write
from torch_gnnscale.topology.reorder import Order, reorder_relation

TOPOLOGIES = ("replicated", "partitioned")


def owners_of(count: int, parts: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(parts, (count,), generator=torch.Generator().manual_seed(seed))


def together(parts, edge_type=None) -> CSC:
    """The relation that the parts' columns make, one after the other."""
    found = [parts.part(i).relations[edge_type] for i in range(parts.book.num_parts)]
    degrees = torch.cat([csc.colptr.diff() for csc in found])
    assert all(int(csc.colptr[0]) == 0 and int(csc.colptr[-1]) == csc.num_edges for csc in found)
    return CSC(
        torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)]),
        torch.cat([csc.row for csc in found]),
        torch.cat([csc.edge_id for csc in found]),
        found[0].num_src,
    )


def assert_relations(parts, relations: dict, owners: dict) -> None:
    """Every relation is the oracle's, and the ids lead there and back."""
    orders = {}
    for node_type, owner in owners.items():
        old = torch.sort(owner, stable=True).indices  # by part; within one, the user's order
        orders[node_type] = Order.from_permutation(old, len(owner))
        assert torch.equal(parts.stored_ids(node_type), orders[node_type].new)
        assert torch.equal(parts.book.part_of(parts.stored_ids(node_type), node_type), owner)
        found = torch.cat([parts.part(i).user_ids[node_type] for i in range(parts.book.num_parts)])
        assert torch.equal(found, old)
    for edge_type, csc in relations.items():
        src, dst = (edge_type[0], edge_type[-1]) if edge_type else (None, None)
        expected = reorder_relation(csc, orders[src], orders[dst])
        for found in [together(parts, edge_type)] + (
            [parts.graph().relation(edge_type)] if parts.topology == "replicated" else []
        ):
            assert torch.equal(found.colptr, expected.colptr)
            assert torch.equal(found.row, expected.row)
            assert torch.equal(found.edge_id.long(), expected.edge_id.long())
            assert found.num_src == expected.num_src


def assert_rows(parts, features: FeatureStore) -> None:
    """Every row is that of the user's node or edge."""
    keys = {(attr.group_name, attr.attr_name) for attr in features.all_attrs()}
    assert {(meta.group_name, meta.attr_name) for meta in parts.attrs} == keys
    for number in range(parts.book.num_parts):
        part = parts.part(number)
        assert part.rows.keys() == keys
        for (group, name), rows in part.rows.items():
            if isinstance(group, tuple):
                edge_type = None if group == (None, None) else group
                ids = part.relations[edge_type].edge_id.long()
                at = parts.book.edges(number, edge_type)
                assert torch.equal(parts.stored_edges(edge_type)[ids], torch.arange(at.start, at.stop))
            else:
                ids = part.user_ids[group]
                assert len(ids) == len(parts.book.nodes(number, group))
            whole = features.get_tensor(group_name=group, attr_name=name, index=None)
            assert rows.dtype == whole.dtype
            assert torch.equal(rows, whole[ids])


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("memory", [None, SLOW(1000)])
def test_a_homogeneous_graph(tmp_path, topology, memory):
    data, owner = boundary.boundary_graph(), boundary.owners_of(4)
    assert write(data, tmp_path / "parts", 4, owners=owner, topology=topology, memory=memory) == []
    with open_parts(tmp_path / "parts") as parts:
        assert not parts.hetero
        assert parts.book.num_parts == 4
        assert parts.book.num_nodes() == 200
        assert parts.book.num_edges() == data.num_edges
        assert_relations(parts, {None: CSC.from_data(data)}, {None: owner})
        assert_rows(parts, FeatureStore.from_data(data))
        stored = parts.stored_ids()
        src, part_of_dst = stored[data.edge_index[0]], owner[data.edge_index[1]]
        for number in range(4):
            expected = src[(part_of_dst == number) & (owner[data.edge_index[0]] != number)].unique()
            assert torch.equal(parts.part(number).halo[None].ids, expected)
            assert torch.equal(parts.part(number).halo[None].degree, torch.bincount(src)[expected])


@pytest.mark.slow
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_graph_with_types(tmp_path, topology):
    data = make_hetero()
    owners = {t: owners_of(data[t].num_nodes, 3, seed) for seed, t in enumerate(data.node_types)}
    write(data, tmp_path / "parts", 3, owners=owners, topology=topology)
    parts = open_parts(tmp_path / "parts")
    assert parts.hetero
    graph = GraphStore.from_data(data)
    assert_relations(parts, {t: graph.relation(t) for t in data.edge_types}, owners)
    assert_rows(parts, FeatureStore.from_data(data))
    with pytest.raises(ValueError, match=r"^edge type \('paper', 'rev_writes', 'author'\): expected one whose edges"):
        parts.stored_edges(REV_WRITES)


@pytest.mark.slow
def test_stores_give_the_same_parts(tmp_path):
    """Ours, opened or in memory, and foreign ones."""
    data = make_data()
    features, graph = our_stores(data)
    features.save(tmp_path / "features")
    graph.save(tmp_path / "graph")
    opened = FeatureStore.open(tmp_path / "features"), GraphStore.open(tmp_path / "graph")
    foreign = ForeignFeatureStore(), ForeignGraphStore()
    for attr in features.all_attrs():
        key = {"group_name": attr.group_name, "attr_name": attr.attr_name, "index": None}
        foreign[0].put_tensor(features.get_tensor(**key), **key)
    foreign[1].put_edge_index(tuple(data.edge_index), None, "coo", size=(200, 200))
    found = []
    for number, given_data in enumerate((data, (features, graph), opened, foreign)):
        write(given_data, tmp_path / str(number), 3, method="random", memory=5000)
        found.append(open_parts(tmp_path / str(number)))
    assert len({parts.fingerprint for parts in found}) == 1
    hetero = make_hetero()
    write(hetero, tmp_path / "ours", 3, method="random")
    write(foreign_stores(hetero), tmp_path / "theirs", 3, method="random")
    assert_rows(open_parts(tmp_path / "theirs"), FeatureStore.from_data(hetero))


@pytest.mark.slow
@examples(25)
@given(
    number=st.integers(0, 1 << 30), nodes=st.integers(1, 30), edges=st.integers(0, 80), parts=st.integers(1, 6),
    memory=st.sampled_from([1, 64, 640, 1 << 20]), topology=st.sampled_from(TOPOLOGIES), stored=st.booleans(),
)  # fmt: skip
def test_any_graph_in_pieces_of_any_size(tmp_path_factory, number, nodes, edges, parts, memory, topology, stored):
    path = tmp_path_factory.mktemp("any") / "parts"
    data = Data(edge_index=edges_of(nodes, edges, number), x=torch.arange(nodes), e=torch.rand(edges, 2))
    if stored:  # an edge's id is its position
        data.edge_index = data.edge_index[:, data.edge_index[1].argsort(stable=True)]
        csc = CSC.from_data(data, is_sorted=True)
        given_data = FeatureStore.from_data(data), GraphStore.from_csc(csc)
    else:
        csc, given_data = CSC.from_data(data), data
    owner = owners_of(nodes, parts, number)
    write(given_data, path, parts, owners=owner, topology=topology, memory=memory)
    opened = open_parts(path)
    assert_relations(opened, {None: csc}, {None: owner})
    if edges != nodes:
        assert_rows(opened, FeatureStore.from_data(data))
    for part in range(parts):  # the halo by its definition
        nodes_of, halo = opened.book.nodes(part), opened.part(part).halo[None]
        sources = opened.part(part).relations[None].row.long().unique()
        assert torch.equal(halo.ids, sources[(sources < nodes_of.start) | (sources >= nodes_of.stop)])
        degree = torch.bincount(together(opened).row, minlength=nodes)
        assert torch.equal(halo.degree, degree[halo.ids])


@pytest.mark.slow
def test_halo_of_a_graph_with_types(tmp_path):
    """Out-degrees count the edges of all relations."""
    data = make_hetero()
    write(data, tmp_path / "parts", 3, method="random")
    parts = open_parts(tmp_path / "parts")
    stored = parts.stored_ids(PAPER)
    for number in range(3):
        part, expected, degree = parts.part(number), set(), torch.zeros(40, dtype=torch.int64)
        for edge_type in data.edge_types:
            if edge_type[0] == PAPER:
                degree += torch.bincount(stored[data[edge_type].edge_index[0]], minlength=40)
                expected |= set(part.relations[edge_type].row.tolist())
        halo = part.halo[PAPER]
        assert halo.ids.tolist() == sorted(expected - set(parts.book.nodes(number, PAPER)))
        assert torch.equal(halo.degree, degree[halo.ids])
        assert part.halo[AUTHOR].degree.min() > 0


@pytest.mark.slow
def test_attributes_of_the_whole_graph(tmp_path):
    data = make_hetero()
    data[PAPER].time = torch.arange(40) * 3
    data[CITES].weight = torch.rand(data[CITES].num_edges)
    write(data, tmp_path / "parts", 3, method="random", graph_attrs=["time", "weight"])
    parts = open_parts(tmp_path / "parts")
    assert parts.graph_attrs.keys() == {(PAPER, "time"), (CITES, "weight")}
    assert torch.equal(parts.graph_attrs[PAPER, "time"][parts.stored_ids(PAPER)], data[PAPER].time)
    assert torch.equal(parts.graph_attrs[CITES, "weight"][parts.stored_edges(CITES)], data[CITES].weight)
    ids = parts.graph().relation(CITES).edge_id.long()
    assert torch.equal(parts.graph_attrs[CITES, "weight"], data[CITES].weight[ids])


def test_a_type_without_edges_or_features(tmp_path):
    data = HeteroData()
    data["a"].x = torch.arange(10)
    data["b"].num_nodes = 7
    data["b", "to", "b"].edge_index = torch.tensor([[0, 1, 6], [6, 6, 0]])
    write(data, tmp_path / "parts", 2, method="ranges")
    parts = open_parts(tmp_path / "parts")
    assert [parts.part(i).rows["a", "x"].tolist() for i in range(2)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert parts.part(1).halo["b"].ids.tolist() == [0, 1]
    assert parts.part(1).halo["b"].degree.tolist() == [1, 1]
    assert parts.part(0).halo["a"].ids.tolist() == []


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_relation_into_a_type_without_nodes(tmp_path, topology):
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 4, 0
    data["a", "to", "a"].edge_index = torch.tensor([[0, 1, 2], [1, 2, 3]])
    data["a", "to", "b"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    owners = {"a": torch.tensor([0, 1, 1, 0]), "b": torch.empty(0, dtype=torch.int64)}
    write(data, tmp_path / "parts", owners=owners, parts=2, topology=topology)
    with open_parts(tmp_path / "parts") as parts:
        assert parts.book.num_nodes("b") == 0
        stored = parts.graph() if topology == "replicated" else None
        found = together(parts, ("a", "to", "b")) if stored is None else stored.relation(("a", "to", "b"))
        assert (found.num_src, found.num_dst, found.num_edges) == (4, 0, 0)
