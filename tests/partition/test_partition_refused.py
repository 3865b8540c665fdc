"""What is refused when parts are written and opened, by its whole message."""

import numpy as np
import pytest
import torch
from helpers.data import make_data, our_stores
from helpers.hetero import PAPER, make_hetero
from helpers.refused import refuses

from torch_gnnscale import CSC, FeatureStore, GraphStore, files
from torch_gnnscale.partition import PartitionBook, assign, directory, open_parts, read_report, write
from torch_gnnscale.partition.part_writer import _Arrays
from torch_gnnscale.topology.reorder import by_score

MOST = 2**31 - 1
METHODS = "('auto', 'metis', 'coarse', 'random', 'ranges')"
TYPES = "['paper', 'author', 'venue']"


WRITE = [
    ({"parts": 0}, ValueError, "parts: expected 1 <= parts <= 4611686018427387904, found 0"),
    ({"parts": True}, TypeError, "parts: expected an int, found bool"),
    ({"parts": None}, ValueError, "parts: expected their number, found None"),
    ({"only": [2]}, IndexError, "only: expected a part in [0, 2), found 2"),
    ({"only": [-1]}, IndexError, "only: expected a part in [0, 2), found -1"),
    ({"only": 0}, TypeError, "only: expected a list of parts, found int"),
    ({"only": ["1"]}, TypeError, "only: expected an int, found str"),
    ({"seed": 1.5}, TypeError, "seed: expected an int, found float"),
    ({"topology": "both"}, ValueError, "topology: expected one of ('replicated', 'partitioned'), found 'both'"),
    ({"method": "best"}, ValueError, f"method: expected one of {METHODS}, found 'best'"),
    ({"method": "best", "owners": [0] * 200}, ValueError, f"method: expected one of {METHODS}, found 'best'"),
    ({"balance": "nodes"}, ValueError, "balance: expected some of ('nodes', 'edges', 'train'), found 'nodes'"),
    ({"graph_attrs": ["z"]}, ValueError, "graph_attrs: expected names of ['edge_attr', 'x', 'y'], found ['z']"),
    ({"memory": "much"}, ValueError,
     "memory: expected a number and a unit such as '8GiB', '500MB' or '25%', found 'much'"),
    ({"about": {"a": torch.ones(1)}}, TypeError,
     "about: expected what JSON keeps, found Object of type Tensor is not JSON serializable"),
    ({"owners": [0, 1]}, ValueError, "owners: expected the parts of 200 nodes, found shape (2,)"),
    ({"owners": {"a": [0]}}, ValueError, "owners: expected parts of nodes of [None], found ['a']"),
    ({"owners": torch.full((200,), 2)}, IndexError, "owners[0] = 2 is out of range: expected parts in [0, 2)"),
    ({"owners": torch.full((200,), -1)}, IndexError, "owners[0] = -1 is out of range: expected parts in [0, 2)"),
    ({"owners": torch.zeros(200)}, TypeError, "owners: expected integers, found torch.float32"),
    ({"splits": {"train": [200]}}, IndexError, "splits['train']: expected nodes in [0, 200), found 200"),
    ({"splits": {"train": [-1]}}, IndexError, "splits['train']: expected nodes in [0, 200), found -1"),
    ({"splits": {"train": [0.5]}}, TypeError, "splits['train']: expected integers, found torch.float32"),
    ({"splits": {"train": [[1, 2]]}}, ValueError, "splits['train']: expected a vector of ids, found shape (1, 2)"),
    ({"splits": {"train": [True]}}, ValueError, "splits['train']: expected a mask of 200 nodes, found (1,)"),
    ({"splits": {5: [1]}}, TypeError, "splits: expected names of splits, found 5"),
    ({"links": {5: [[1], [1]]}}, TypeError, "links: expected names of splits, found 5"),
    ({"links": {"val": [1, 20_000]}}, IndexError, "links['val']: expected edges in [0, 1500), found 20000"),
    ({"links": {"val": [True] + [False] * 1500}}, ValueError,
     "links['val']: expected a mask of 1500 edges, found one of 1501"),
    ({"links": {"val": [True] * 1499}}, ValueError, "links['val']: expected a mask of 1500 edges, found one of 1499"),
    ({"splits": {"train": [True] * 201}}, ValueError, "splits['train']: expected a mask of 200 nodes, found (201,)"),
    ({"links": {"val": [[1], [2], [3]]}}, ValueError,
     "links['val']: expected ids of edges, or shape (2, links), found (3, 1)"),
    ({"links": {"val": [[0.5], [1.0]]}}, TypeError, "links['val']: expected integers, found torch.float32"),
    ({"links": {"val": [[1], [-1]]}}, IndexError, "links['val']: expected nodes in [0, 200), found -1"),
    ({"links": {"val": [[200], [1]]}}, IndexError, "links['val']: expected nodes in [0, 200), found 200"),
    ({"data": make_data().edge_index}, TypeError,
     "data: expected a Data, a HeteroData or a (FeatureStore, GraphStore) pair, found Tensor"),
    ({"data": make_hetero(), "owners": [1]}, TypeError, f"owners: expected parts by type of {TYPES}, found list"),
    ({"data": make_hetero(), "owners": {"paper": [1]}}, ValueError,
     f"owners: expected parts of nodes of {TYPES}, found ['paper']"),
    ({"data": make_hetero(), "owners": {"paper": [0] * 39, "author": [], "venue": []}}, ValueError,
     "owners['paper']: expected the parts of 40 nodes, found shape (39,)"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "error", "message"), WRITE, ids=[message for *_, message in WRITE])
def test_what_is_not_written(tmp_path, given, error, message):
    given = {"data": make_data(), "parts": 2, "method": "random", **given}
    with refuses(error, message):
        write(given.pop("data"), tmp_path / "parts", **given)
    assert not (tmp_path / "parts").exists()


def test_the_last_that_is_written(tmp_path):
    """The values next to those that are refused."""
    data, last = make_data(), torch.tensor([0, 199])
    owners = torch.arange(200) % 2
    links = {"val": torch.stack([last, last])}
    write(data, tmp_path / "parts", 2, owners=owners, splits={"train": last}, links=links, only=[0, 1])
    with open_parts(tmp_path / "parts") as parts:
        assert parts.input_nodes("train").tolist() == [0, 199]
        assert parts.links("val").tolist() == [[0, 199], [0, 199]]
        assert parts.book.bounds[None].tolist() == [0, 100, 200]


def store_with(name: str, rows: torch.Tensor, group: str | None = None) -> tuple[FeatureStore, GraphStore]:
    features, graph = our_stores(make_data())
    features.put_tensor(rows, group_name=group, attr_name=name, index=None)
    return features, graph


def of_edge_ids(*ids: int) -> tuple[FeatureStore, GraphStore]:
    """Two edges of the first of two nodes to itself, with rows, and with these ids."""
    rows = FeatureStore()
    rows[(None, None), "e", None] = torch.ones(2)
    return rows, GraphStore.from_csc(CSC.from_csc(torch.tensor([0, 2, 2]), torch.tensor([0, 0]), torch.tensor(ids)))


def renumbered() -> tuple[FeatureStore, GraphStore]:
    data = make_data()
    return FeatureStore.from_data(data, order=by_score(data.y)), GraphStore.from_data(data)


STORES = [
    (renumbered, NotImplementedError,
     "data: a partition of renumbered stores is not implemented: pass them in user's ids"),
    (lambda: store_with("short", torch.ones(199)), ValueError, "data: expected 200 rows of (None, 'short'), found 199"),
    (lambda: store_with("s", torch.eye(200).to_sparse()), ValueError,
     "(None, 's'): expected a dense tensor, found torch.sparse_coo"),
    (lambda: store_with("z", torch.ones(200), "book"), ValueError,
     "data: expected rows of [None, (None, None)], found 'z' of 'book'"),
    (lambda: (FeatureStore(), of_edge_ids(2, 0)[1]), ValueError,
     "data: expected edge ids of None in [0, 2), found 2"),
    (lambda: (FeatureStore(), of_edge_ids(1, -1)[1]), ValueError,
     "data: expected edge ids of None in [0, 2), found -1"),
    (lambda: of_edge_ids(0, 0), ValueError, "data: expected every edge id of None once, found 1 not at all"),
    (lambda: of_edge_ids(1, 1), ValueError, "data: expected every edge id of None once, found 0 not at all"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "message"), STORES, ids=[message for *_, message in STORES])
def test_stores_that_are_not_written(tmp_path, make, error, message):
    with refuses(error, message):
        write(make(), tmp_path / "parts", 2, method="random")
    assert not (tmp_path / "parts").exists()


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([1, 2, 3], "list"),
        (("book", [1]), "'book'"),
        ([1, 2], "list"),
        ((PAPER, [1], 3), "tuple"),
        ("paper", "str"),
        (("paper",), "tuple"),
    ],
    ids=str,
)
@pytest.mark.parametrize(("what", "types"), [("splits", "nodes"), ("links", "edges")])
def test_splits_of_types_are_pairs(tmp_path, what, types, value, found):
    data = make_hetero()
    known = data.node_types if types == "nodes" else data.edge_types
    if types == "edges" and value == (PAPER, [1], 3):
        value = value[:1]
    with refuses(ValueError, f"{what}['train']: expected a pair of a type of {known} and ids, found {found}"):
        write(data, tmp_path / "parts", 2, method="random", **{what: {"train": value}})


# Directories #########################################################################################################


@pytest.fixture(scope="module", params=["replicated", "partitioned"])
def parts(request, tmp_path_factory):
    """An open directory of two parts, with a split of nodes and one of links, whose edges have no rows."""
    data, path = make_data(), tmp_path_factory.mktemp("refused") / "parts"
    del data.edge_attr
    given = {"splits": {"train": [1, 2]}, "links": {"val": [[1], [2]]}, "topology": request.param}
    write(data, path, 2, method="ranges", **given)
    with open_parts(path) as opened:
        yield opened


OPENED = [
    (lambda parts: parts.stored_ids("a"), ValueError, "node type 'a': expected one of [None]"),
    (lambda parts: parts.stored_edges(), ValueError, "edge type None: expected one whose edges have rows"),
    (lambda parts: parts.stored_edges("a"), ValueError, "edge type 'a': expected one of [None]"),
    (lambda parts: parts.input_nodes("lost"), ValueError, "split (None, 'lost'): expected one of [(None, 'train')]"),
    (lambda parts: parts.input_nodes("train", "a"), ValueError,
     "split ('a', 'train'): expected one of [(None, 'train')]"),
    (lambda parts: parts.input_nodes(None, "a"), ValueError, "node type 'a': expected one of [None]"),
    (lambda parts: parts.links("train"), ValueError, "link split (None, 'train'): expected one of [(None, 'val')]"),
    (lambda parts: parts.part(2), IndexError, "part: expected a part in [0, 2), found 2"),
    (lambda parts: parts.part(-1), IndexError, "part: expected a part in [0, 2), found -1"),
    (lambda parts: parts.part("0"), TypeError, "part: expected an int, found str"),
    (lambda parts: parts.book.nodes(2), IndexError, "part: expected a part in [0, 2), found 2"),
    (lambda parts: parts.book.edges(-1), IndexError, "part: expected a part in [0, 2), found -1"),
    (lambda parts: parts.book.num_nodes("a"), ValueError, "node type 'a': expected one of [None]"),
    (lambda parts: parts.book.num_edges("a"), ValueError, "edge type 'a': expected one of [None]"),
    (lambda parts: parts.book.edges(0, "a"), ValueError, "edge type 'a': expected one of [None]"),
    (lambda parts: parts.book.part_of(torch.tensor([[0, 199], [200, 0]])), IndexError,
     "ids[2] = 200 is out of range: expected nodes in [0, 200)"),
    (lambda parts: parts.book.part_of(torch.tensor([-1])), IndexError,
     "ids[0] = -1 is out of range: expected nodes in [0, 200)"),
    (lambda parts: parts.book.part_of(torch.tensor([0.0])), TypeError, "ids: expected integers, found torch.float32"),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "error", "message"), OPENED, ids=[message for *_, message in OPENED])
def test_what_open_parts_do_not_know(parts, ask, error, message):
    with refuses(error, message):
        ask(parts)


def test_the_last_that_open_parts_know(parts):
    assert [parts.part(number).number for number in (0, 1)] == [0, 1]
    assert parts.book.part_of(torch.tensor([0, 99, 100, 199])).tolist() == [0, 0, 1, 1]
    if parts.topology == "partitioned":
        with refuses(ValueError, f"{parts.path}: expected topology 'replicated', found 'partitioned'"):
            parts.graph()
    else:
        assert parts.graph().relation().num_edges == 1500


@pytest.mark.parametrize(
    ("meta", "found"),
    [
        ({}, "no entry 'given'"),
        ({"given": {}}, "no entry 'parts'"),
        ({"given": {"parts": 1, "num_nodes": 3}}, "'int' object is not iterable"),
    ],
)
def test_a_book_that_is_none(tmp_path, meta, found):
    files.save(tmp_path / "book", directory.BOOK, {}, meta)
    with refuses(ValueError, f"{tmp_path}/book/{files.MANIFEST}: expected a partition book, found {found}"):
        read_report(tmp_path)


def test_a_mark_that_cannot_be_made(tmp_path):
    path = tmp_path / "parts"
    write(make_data(), path, 2, method="random", only=[0])
    (path / "complete").write_text("not a folder")
    with refuses(FileExistsError, f"{path}/complete: expected a new or an empty directory, found a file"):
        write(make_data(), path, only=[1], method="random")


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    arrays = _Arrays(tmp_path / "gone")
    message = f"[Errno 2] No such file or directory, while ids was written: '{tmp_path}/gone'"
    with refuses(OSError, message):
        arrays.whole("ids", torch.arange(3))
    assert arrays.entries == {}


ASSIGN = [
    ({"parts": 0}, ValueError, f"parts: expected 1 <= parts <= {MOST}, found 0"),
    ({"parts": MOST + 1}, ValueError, f"parts: expected 1 <= parts <= {MOST}, found {MOST + 1}"),
    ({"parts": "2"}, TypeError, "parts: expected an int, found str"),
    ({"method": "best"}, ValueError, f"method: expected one of {METHODS}, found 'best'"),
    ({"seed": "1"}, TypeError, "seed: expected an int, found str"),
    ({"balance": ()}, ValueError, "balance: expected some of ('nodes', 'edges', 'train'), found ()"),
    ({"balance": ["size"]}, ValueError, "balance: expected some of ('nodes', 'edges', 'train'), found ['size']"),
    ({"num_nodes": {None: 2}}, ValueError,
     "relations[None]: expected 2 nodes of type None, found CSC(num_src=3, num_dst=3, num_edges=2, row=torch.int32)"),
    ({"num_nodes": {None: -1}}, ValueError, "num_nodes: expected 0 <= num_nodes <= 1099511627776, found -1"),
    ({"relations": {}, "num_nodes": {"a": 3}, "train": {None: torch.tensor([0])}}, ValueError,
     "train: expected node types among ['a'], found another"),
    ({"train": {"a": torch.tensor([0])}}, ValueError, "train['a']: expected node types among [None], found another"),
    ({"train": {None: torch.tensor([2, 3])}}, IndexError, "train[1] = 3 is out of range: expected nodes in [0, 3)"),
    ({"train": {None: torch.tensor([-1])}}, IndexError, "train[0] = -1 is out of range: expected nodes in [0, 3)"),
    ({"train": {None: torch.ones(3) > 0}}, TypeError, "train: expected integers, found torch.bool"),
    ({"method": "auto", "memory": "much"}, ValueError,
     "memory: expected a number and a unit such as '8GiB', '500MB' or '25%', found 'much'"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "error", "message"), ASSIGN, ids=[message for *_, message in ASSIGN])
def test_what_is_not_assigned(given, error, message):
    chain = CSC.from_edge_index(np.array([[0, 1], [1, 2]]), 3)
    with refuses(error, message):
        assign(**{"relations": {None: chain}, "num_nodes": {None: 3}, "parts": 2, "method": "ranges", **given})


def test_a_book_of_types_names_them():
    book = PartitionBook({"a": torch.tensor([0, 2]), "b": torch.tensor([0, 5])}, {("a", "to", "b"): torch.tensor([0])})
    with refuses(ValueError, "node type None: expected one of ['a', 'b']"):
        book.num_nodes()
    with refuses(ValueError, "edge type None: expected one of [('a', 'to', 'b')]"):
        book.num_edges()


def test_more_parts_than_nodes_are_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("torch_gnnscale.partition.writing.assign", None)
    with refuses(ValueError, "parts: expected at most 100, the number of nodes, found 101"):
        write(make_data(100), tmp_path / "parts", parts=101)
