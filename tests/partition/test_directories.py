"""Directories that are unfinished, damaged, mixed or shared by machines; what is refused."""

import pickle
import re
import shutil

import pytest
import torch
from helpers.data import make_data
from helpers.hetero import AUTHOR, PAPER, make_hetero
from helpers.refused import refuses
from torch_geometric.data import Data

from torch_gnnscale import CSC, FeatureStore, GraphStore, files
from torch_gnnscale.partition import PartitionBook, directory, open_parts, write


def content(path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def report_left_out(written: dict[str, bytes]) -> dict[str, bytes]:
    """Without the book's manifest, which says how long it took to choose the parts."""
    return {name: data for name, data in written.items() if name != "book/gnnscale.json"}


@pytest.mark.slow
def test_machines_share_the_work(tmp_path):
    """Calls with only=, the first of which writes the book, leave what one call leaves."""
    data = make_hetero()
    arguments = {"method": "random", "seed": 3, "topology": "partitioned", "splits": {"a": ("paper", torch.arange(9))}}
    assert write(data, tmp_path / "one", 4, **arguments) == []
    path = tmp_path / "many"
    assert write(data, path, 4, only=[2], **arguments) == [0, 1, 3]
    with pytest.raises(ValueError, match=rf"^{path}: expected all parts, found it unfinished: .*only=\[0, 1, 3\]\)"):
        open_parts(path)
    assert write(data, path, only=[0, 3, 0], **arguments) == [1]
    written = (path / "part-00003" / "rows_0.npy").stat().st_mtime_ns
    assert write(data, path, only=(3, 1), **arguments) == []
    assert (path / "part-00003" / "rows_0.npy").stat().st_mtime_ns == written
    assert report_left_out(content(tmp_path / "one")) == report_left_out(content(path))
    assert open_parts(path).fingerprint == open_parts(tmp_path / "one").fingerprint
    assert write(data, path, only=[], **arguments) == []  # complete already


@pytest.mark.slow
def test_the_last_call_marks_what_is_complete(tmp_path):
    data, path = make_data(), tmp_path / "parts"
    write(data, path, 2, method="random")
    shutil.rmtree(path / "complete")
    with pytest.raises(ValueError, match=rf"^{path}: expected a complete directory, found it unfinished: .*only=\[\]"):
        open_parts(path)
    (path / "part-00001" / "user_ids_0.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=rf"^{path}/part-00001/user_ids_0.npy: expected a .npy file"):
        write(data, path, only=[], method="random")
    shutil.rmtree(path / "part-00001")
    assert write(data, path, only=[1], method="random") == []
    open_parts(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": 4}, "parts, 3, found 4"),
        ({"seed": 1}, "seed, 0, found 1"),
        ({"topology": "partitioned"}, "topology, replicated, found partitioned"),
        ({"method": "ranges"}, "method, random, found ranges"),
        ({"owners": torch.zeros(200)}, None),
        ({"owners": torch.zeros(200, dtype=torch.int8)}, "method, random, found owners"),
        ({"splits": {"a": [1]}}, "splits, [], found [[None, 'a', 1]]"),
        ({"graph_attrs": ["y"]}, "graph_attrs, [], found ['y']"),
        ({"data": make_data(num_edges=1400)}, "relations, [{"),
    ],
)
def test_later_calls_are_given_the_same(tmp_path, change, message):
    path = tmp_path / "parts"
    write(make_data(), path, 3, only=[0], method="random")
    arguments = {"data": make_data(), "method": "random", "only": [1], **change}
    if message is None:
        with pytest.raises(TypeError, match=r"^owners: expected integers, found torch.float32$"):
            write(arguments.pop("data"), path, **arguments)
        return
    with pytest.raises(ValueError, match="^" + re.escape(f"{path}/book: expected the first call's {message}")):
        write(arguments.pop("data"), path, **arguments)


def other_edges(data: Data, what: str) -> Data:
    """The data with as many edges, which are others, or have other ids."""
    edges = data.edge_index
    if what == "flipped":
        data.edge_index = edges.flip(0)
    elif what == "one source":
        edges[0, 5] = (edges[0, 5] + 1) % data.num_nodes
    else:
        data.edge_index = edges[:, edges[1].argsort(stable=True)]
    return data


@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
@pytest.mark.parametrize("what", ["flipped", "one source", "ids"])
def test_other_edges_are_found(tmp_path, what, topology):
    path, arguments = tmp_path / "parts", {"method": "random", "topology": topology}
    write(make_data(), path, 2, only=[0], **arguments)
    message = rf"^{path}/book: expected the first call's edge_checksums, \[\d+\], found \[\d+\]$"
    with pytest.raises(ValueError, match=message):
        write(other_edges(make_data(), what), path, only=[1], **arguments)
    assert not (path / "part-00001").exists()
    assert write(make_data(), path, only=[1], **arguments) == []


def test_equal_edges_of_another_integer_type_are_the_same(tmp_path):
    """Also where they were saved and are mapped."""
    csc = GraphStore.from_data(make_data()).relation()
    wide = CSC(csc.colptr, csc.row.long(), csc.edge_id.long(), csc.num_src)
    narrow = CSC(csc.colptr, csc.row.int(), csc.edge_id.int(), csc.num_src)
    GraphStore.from_csc(narrow).save(tmp_path / "graph")
    write((FeatureStore(), GraphStore.from_csc(wide)), tmp_path / "parts", 2, only=[0], method="random")
    stores = FeatureStore(), GraphStore.open(tmp_path / "graph")
    assert write(stores, tmp_path / "parts", only=[1], method="random") == []


@pytest.mark.parametrize("topology", ["everywhere", "", None, 0])
def test_a_topology_that_does_not_exist_is_refused(tmp_path, topology):
    """As by a later version: its checksums are right."""
    path = tmp_path / "parts"
    write(make_data(), path, 2, method="random", topology="partitioned")
    arrays, meta = files.load(path / "book", directory.BOOK)
    meta["given"]["topology"] = topology
    arrays = {name: array.clone() for name, array in arrays.items()}
    shutil.rmtree(path / "book")
    files.save(path / "book", directory.BOOK, arrays, meta)
    with pytest.raises(ValueError, match=f"^{path}/book.*topology {topology!r} and folders "):
        open_parts(path)


def test_a_directory_begun_without_checksums_of_edges_is_refused(tmp_path):
    """As by a version that did not keep them."""
    path = tmp_path / "parts"
    write(make_data(), path, 2, only=[0], method="random")
    arrays, meta = files.load(path / "book", directory.BOOK)
    del meta["given"]["edge_checksums"]
    arrays = {name: array.clone() for name, array in arrays.items()}
    shutil.rmtree(path / "book")
    files.save(path / "book", directory.BOOK, arrays, meta)
    with refuses(ValueError, f"{path}/book: expected edge_checksums, found none: an earlier version began the "
                             "directory; write a new one"):  # fmt: skip
        write(make_data(), path, only=[1], method="random")


def test_other_owners_are_found(tmp_path):
    owners = torch.arange(200) % 3
    write(make_data(), tmp_path / "parts", 3, only=[0], owners=owners)
    write(make_data(), tmp_path / "parts", only=[1], owners=owners.numpy())
    owners[7] = 2
    with pytest.raises(ValueError, match=r"/book: expected the first call's owners, found others$"):
        write(make_data(), tmp_path / "parts", only=[2], owners=owners)


@pytest.mark.slow
@pytest.mark.parametrize("moved", [PAPER, AUTHOR])
def test_other_owners_of_any_type_are_found(tmp_path, moved):
    data = make_hetero()
    owners = {node_type: torch.arange(data[node_type].num_nodes) % 2 for node_type in data.node_types}
    write(data, tmp_path / "parts", 2, only=[0], owners=owners)
    owners[moved][0] = 1
    with pytest.raises(ValueError, match=r"/book: expected the first call's owners, found others$"):
        write(data, tmp_path / "parts", only=[1], owners=owners)


def test_a_used_directory_is_refused(tmp_path):
    path = tmp_path / "parts"
    path.mkdir()
    (path / "notes.txt").write_text("mine")
    for only in (None, [0]):
        with pytest.raises(FileExistsError, match=r"expected a new or an empty directory, found notes.txt in it$"):
            write(make_data(), path, 2, method="random", only=only)
    (path / "notes.txt").unlink()
    write(make_data(), path, 2, method="random")
    with pytest.raises(FileExistsError, match=r"found a book in it; say which parts: only= \(--only\)$"):
        write(make_data(), path, 2, method="random")
    with pytest.raises(FileNotFoundError, match=rf"^{tmp_path}: expected a directory of parts, found no book in it$"):
        open_parts(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
def test_damage_is_found_and_named(tmp_path, topology):
    """One bit of any array: by whoever opens what it lies in, and by nobody else."""
    data, path = make_data(), tmp_path / "parts"
    write(data, path, 2, method="random", topology=topology, splits={"a": [1, 2]}, graph_attrs=["y"])
    names = [name for name, data in content(path).items() if name.endswith(".npy") and len(data) > 128]
    assert {name.split("/")[0] for name in names} >= {"book", "ids", "attrs", "part-00000", "part-00001"}
    for name in names:
        intact = (path / name).read_bytes()
        (path / name).write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
        message = rf"^{path}/{name}: checksum of block 0 \(64 MiB each\) differs: the file is corrupt$"
        if name.startswith("part"):
            parts, number = open_parts(path), int(name[5:10])
            parts.part(1 - number)
            if re.search("colptr|user_ids|seeds|links", name):  # which are checked in any case
                with pytest.raises(ValueError, match=rf"^{path}/{name}: expected "):
                    parts.part(number, verify=False)
            else:
                parts.part(number, verify=False)
            with pytest.raises(ValueError, match=message):
                parts.part(number)
        else:
            with pytest.raises(ValueError, match=message):
                open_parts(path)
        (path / name).write_bytes(intact[:-1])
        with pytest.raises(ValueError, match=rf"^{path}/{name}: expected \d+ bytes, found \d+: the file is truncated"):
            open_parts(path, verify=False).part(int(name[5:10]) if name.startswith("part") else 0)
        (path / name).write_bytes(intact)
    open_parts(path).part(1)


def test_a_book_says_which_nodes_the_parts_have(tmp_path):
    ids = torch.arange(4)
    ring = Data(edge_index=torch.stack([ids, ids.roll(-1)]), num_nodes=4)
    for name, owners in (("halves", [0, 0, 1, 1]), ("in turn", [0, 1, 0, 1])):
        write(ring, tmp_path / name, 2, owners=torch.tensor(owners))
    first, second = (open_parts(tmp_path / name) for name in ("halves", "in turn"))
    assert torch.equal(first.book.edge_bounds[None], second.book.edge_bounds[None])
    assert directory.fingerprint_of_parts(tmp_path / "halves") != directory.fingerprint_of_parts(tmp_path / "in turn")


@pytest.mark.slow
def test_parts_of_another_partition_are_found(tmp_path):
    for number in range(2):
        write(make_data(), tmp_path / str(number), 3, method="random", seed=number)
    ours, theirs = tmp_path / "0", tmp_path / "1"
    parts, (book, other) = open_parts(ours), map(directory.fingerprint_of_parts, (ours, theirs))
    assert book != other
    assert parts.fingerprint != open_parts(theirs).fingerprint
    shutil.rmtree(ours / "part-00001")
    with pytest.raises(FileNotFoundError, match=r"part-00001/gnnscale.json: not found"):
        parts.part(1)
    shutil.copytree(theirs / "part-00001", ours / "part-00001")
    message = f"{ours}/part-00001: expected part 1 of the book {book}, found part 1 of {other}"
    with pytest.raises(ValueError, match=f"^{message}$"):
        parts.part(1)
    shutil.rmtree(ours / "part-00001")
    shutil.copytree(ours / "part-00002", ours / "part-00001")
    with pytest.raises(ValueError, match=r"expected part 1 of the book \d+, found part 2 of \d+$"):
        parts.part(1)
    for folder in ("ids", "graph"):
        shutil.rmtree(ours / folder)
        shutil.copytree(theirs / folder, ours / folder)
        with pytest.raises(
            ValueError, match=rf"^{ours}/{folder}/gnnscale.json: expected checksum \d+, found \d+: it was"
        ):
            open_parts(ours)
        shutil.rmtree(ours / folder)
        write(make_data(), tmp_path / f"again-{folder}", 3, method="random")
        shutil.copytree(tmp_path / f"again-{folder}" / folder, ours / folder)
    shutil.rmtree(ours / "book")
    shutil.copytree(theirs / "book", ours / "book")
    with pytest.raises(ValueError, match=rf"^{ours}/book: expected the book {book}, found {other}:"):
        open_parts(ours)


@pytest.mark.slow
def test_attributes_of_another_graph_are_found(tmp_path):
    data, ours, theirs = make_data(), tmp_path / "ours", tmp_path / "theirs"
    write(data, ours, 2, method="random", graph_attrs=["y"])
    data.y += 1
    write(data, theirs, 2, method="random", graph_attrs=["y"])
    shutil.rmtree(ours / "attrs")
    shutil.copytree(theirs / "attrs", ours / "attrs")
    with pytest.raises(ValueError, match=rf"^{ours}/attrs/gnnscale.json: expected checksum \d+, found \d+: it was"):
        open_parts(ours)


@pytest.mark.slow
def test_the_last_call_finds_a_part_of_another_partition(tmp_path):
    write(make_data(), tmp_path / "ours", 2, method="random", only=[0])
    write(make_data(), tmp_path / "theirs", 2, method="random", seed=1)
    shutil.copytree(tmp_path / "theirs" / "part-00001", tmp_path / "ours" / "part-00001")
    with pytest.raises(ValueError, match=r"/ours/part-00001: expected part 1 of the book \d+, found part 1 of \d+$"):
        write(make_data(), tmp_path / "ours", method="random", only=[])
    assert not (tmp_path / "ours" / "complete").exists()


@pytest.mark.slow
def test_a_part_of_other_rows_is_found(tmp_path):
    """The book does not say what the rows are; the mark of a complete directory does, and so the fingerprint."""
    data, ours, theirs = make_data(), tmp_path / "ours", tmp_path / "theirs"
    write(data, ours, 2, method="random")
    data.x += 1
    write(data, theirs, 2, method="random")
    assert directory.fingerprint_of_parts(ours) == directory.fingerprint_of_parts(theirs)
    assert open_parts(ours).fingerprint != open_parts(theirs).fingerprint
    shutil.rmtree(ours / "part-00001")
    shutil.copytree(theirs / "part-00001", ours / "part-00001")
    with pytest.raises(
        ValueError, match=rf"^{ours}/part-00001/gnnscale.json: expected checksum \d+, found \d+: it was"
    ):
        open_parts(ours).part(1)
    with pytest.raises(ValueError, match=rf"^{ours}/complete: expected the parts that are there, found others$"):
        write(data, ours, only=[], method="random")


def test_what_one_process_reads(tmp_path):
    """A rank opens the book, its own part, and what all ranks share: no other part's files."""
    write(make_data(), tmp_path / "parts", 3, method="random", topology="partitioned")
    for number in (0, 2):
        for file in (tmp_path / "parts" / f"part-{number:05d}").iterdir():
            file.unlink()
    part = open_parts(tmp_path / "parts").part(1)
    assert torch.equal(part.rows[None, "x"], make_data().x[part.user_ids[None]])


@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
def test_relations_are_pickled_by_their_names(tmp_path, topology):
    write(make_data(2000, 30_000), tmp_path / "parts", 2, method="random", topology=topology)
    csc = open_parts(tmp_path / "parts").part(1).relations[None]
    data = pickle.dumps(csc)
    assert len(data) < 1000
    again = pickle.loads(data)
    for name in ("colptr", "row", "edge_id"):
        assert torch.equal(getattr(again, name), getattr(csc, name))


def test_what_is_returned_outlives_the_parts(tmp_path):
    write(make_data(), tmp_path / "parts", 3, method="random")
    with open_parts(tmp_path / "parts") as parts:
        graph, ids = parts.graph(), parts.stored_ids()
    assert graph.relation().num_edges == 1500
    assert torch.equal(ids.sort().values, torch.arange(200))


@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
@pytest.mark.parametrize(
    "use",
    [
        lambda parts: parts.graph(),
        lambda parts: parts.stored_ids(),
        lambda parts: parts.stored_edges(),
        lambda parts: parts.input_nodes("train"),
        lambda parts: parts.links("train"),
        lambda parts: parts.part(0),
    ],
    ids=["graph", "stored_ids", "stored_edges", "input_nodes", "links", "part"],
)
def test_closed_parts_say_so(tmp_path, use, topology):
    data = make_data()
    given = {"splits": {"train": torch.arange(9)}, "links": {"train": data.edge_index[:, :9]}}
    write(data, tmp_path / "parts", 3, method="random", topology=topology, **given)
    with open_parts(tmp_path / "parts") as parts:
        pass
    with pytest.raises(ValueError, match="parts: expected parts that are open, found closed ones"):
        use(parts)


@pytest.mark.slow
def test_what_the_book_keeps(tmp_path):
    about = {"task": "nodes", "classes": 7, "metric": None}
    write(make_data(), tmp_path / "parts", 3, method="random", about=about)
    parts = open_parts(tmp_path / "parts")
    assert parts.about == about
    assert parts.assigned["method"] == "random"
    assert parts.report.num_edges == 1500
    assert parts.largest_degree == {None: int(torch.bincount(make_data().edge_index[1]).max())}
    assert sum(parts.report.edges) == 1500
    assert parts.report.halo == [len(parts.part(i).halo[None].ids) for i in range(3)]
    found = {(meta.attr_name, meta.dtype, meta.shape, meta.num_rows, meta.row_bytes) for meta in parts.attrs}
    assert found == {
        ("x", torch.float64, (3,), 200, 24), ("y", torch.int64, (), 200, 8),
        ("edge_attr", torch.float64, (2,), 1500, 16),
    }  # fmt: skip
    with pytest.raises(TypeError, match=r"^about: expected what JSON keeps, found Object of type Tensor is not JSON"):
        write(make_data(), tmp_path / "other", 3, method="random", about={"a": torch.ones(1)})


def test_a_digest_is_of_what_is_said_in_any_order():
    assert (
        directory.digest_of({"a": 1, "b": [2]})
        == directory.digest_of({"b": [2], "a": 1})
        != directory.digest_of({"a": 1, "b": [3]})
    )
    assert 0 <= directory.digest_of({}) < 1 << 63


def test_partition_book():
    book = PartitionBook({"a": torch.tensor([0, 0, 4, 4, 9])}, {("a", "to", "a"): torch.tensor([0, 0, 5, 5, 5])})
    assert book.num_parts == 4
    assert book.num_nodes("a") == 9
    assert book.num_edges(("a", "to", "a")) == 5
    assert book.part_of(torch.tensor([[0, 3], [4, 8]], dtype=torch.int32), "a").tolist() == [[1, 1], [3, 3]]
    assert [book.nodes(part, "a") for part in range(4)] == [range(0), range(4), range(4, 4), range(4, 9)]
    assert book.edges(1, ("a", "to", "a")) == range(5)
    for ids, found in (([0, 9], 9), ([1, -1], -1)):
        with pytest.raises(IndexError, match=rf"^ids\[1\] = {found} is out of range: expected nodes in \[0, 9\)$"):
            book.part_of(torch.tensor(ids), "a")
    with pytest.raises(IndexError, match=r"^ids\[0\] = 9 is out of range"):
        book.part_of(torch.tensor([9, 0]), "a")
    with pytest.raises(ValueError, match=r"^node type None: expected one of \['a'\]$"):
        book.part_of(torch.tensor([0]))
    with pytest.raises(IndexError, match=r"^part: expected a part in \[0, 4\), found 4$"):
        book.nodes(4, "a")
