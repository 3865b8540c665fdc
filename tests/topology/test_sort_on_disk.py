"""Graphs built on disk, chunk by chunk, and files of edges."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import CSC, GraphStore, NeighborLoader
from torch_gnnscale.cli import main
from torch_gnnscale.datasets import planted
from torch_gnnscale.feature import FeatureStore
from torch_gnnscale.topology import EdgeFiles, build_on_disk, rmat, rmat_chunks, sort_on_disk

EDGE = sort_on_disk._SORT_BYTES


def random_edges(num_src, num_dst, count, seed=0, hub=0):
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(num_src, (count,), generator=generator)
    dst = torch.randint(num_dst, (count,), generator=generator)
    dst[: count * hub // 10] = num_dst // 2
    return torch.stack([src, dst])[:, torch.randperm(count, generator=generator)]


def assert_same(found: CSC, expected: CSC, edge_ids: bool = True) -> None:
    assert torch.equal(found.colptr, expected.colptr)
    assert found.row.dtype == expected.row.dtype
    assert torch.equal(found.row, expected.row)
    assert (found.num_src, found.num_dst) == (expected.num_src, expected.num_dst)
    if edge_ids:
        assert found.edge_id.dtype == expected.edge_id.dtype
        assert torch.equal(found.edge_id, expected.edge_id)
    else:
        assert found.edge_id is None


@pytest.mark.parametrize("edge_ids", [False, True])
@pytest.mark.parametrize("memory", [EDGE, 50 * EDGE, 1 << 30])
@pytest.mark.parametrize("hub", [0, 9])
def test_the_graph_is_that_of_all_edges_at_once(tmp_path, edge_ids, memory, hub):
    edges = random_edges(300, 170, 3000, hub=hub)
    options = {"edge_ids": edge_ids, "memory": memory}
    for number, num_edges in enumerate((None, 3000)):
        path = tmp_path / str(number)
        store = build_on_disk(path, edges.split(700, dim=1), (300, 170), num_edges=num_edges, **options)
        assert_same(store.relation(), CSC.from_edge_index(edges, (300, 170)), edge_ids)
        assert {file.suffix for file in path.iterdir()} == {".npy", ".json"}
        GraphStore.open(path, verify=True)


@given(st.integers(1, 40), st.integers(0, 200), st.integers(1, 60), st.integers(1, 300), st.booleans())
def test_any_graph(tmp_path_factory, num_nodes, count, chunk, fits, edge_ids):
    edges = random_edges(num_nodes, num_nodes, count, seed=chunk).to(torch.int32 if count % 2 else torch.int64)
    path = tmp_path_factory.mktemp("graph")
    chunks = edges.split(chunk, dim=1) if count else []
    store = build_on_disk(path / "x", chunks, num_nodes, edge_ids=edge_ids, memory=fits * EDGE)
    assert_same(store.relation(), CSC.from_edge_index(edges, num_nodes), edge_ids)


def test_above_two_to_the_31st_node(tmp_path):
    edges = random_edges(50, 9, 100)
    edges[0] += 1 << 40
    store = build_on_disk(tmp_path / "x", [edges], ((1 << 40) + 50, 9), memory=40 * EDGE)
    assert_same(store.relation(), CSC.from_edge_index(edges, ((1 << 40) + 50, 9)))
    assert store.relation().row.dtype == torch.int64


def test_edge_ids_above_two_to_the_31st(tmp_path, monkeypatch):
    monkeypatch.setattr(sort_on_disk, "_INT32_MAX", 200)  # stands for more edges than fit on a test machine
    edges = random_edges(60, 60, 500)
    csc = build_on_disk(tmp_path / "x", [edges], 60).relation()
    expected = CSC.from_edge_index(edges, 60)
    assert torch.equal(csc.row, expected.row)
    assert csc.edge_id.dtype == torch.int64
    assert csc.edge_id.is_contiguous()
    assert torch.equal(csc.edge_id, expected.edge_id.long())


def test_rmat_in_chunks_is_rmat(tmp_path):
    expected = rmat(1000, 5000, seed=3)
    for chunk in (1, 999, 5000, 9999):
        assert torch.equal(torch.cat(list(rmat_chunks(1000, 5000, seed=3, chunk=chunk)), 1), expected)
    assert torch.cat(list(rmat_chunks(10, 0)), 1).shape == (2, 0)
    store = build_on_disk(tmp_path / "x", rmat_chunks(1000, 5000, seed=3, chunk=600), 1000, memory=800 * EDGE)
    assert_same(store.relation(), CSC.from_edge_index(expected, 1000))


def test_it_is_sampled_from(tmp_path):
    data = planted(2000, num_classes=4, num_features=8)
    FeatureStore.from_data(data).save(tmp_path / "features")
    build_on_disk(tmp_path / "graph", data.edge_index.split(999, dim=1), 2000)
    stores = FeatureStore.open(tmp_path / "features"), GraphStore.open(tmp_path / "graph")
    ours, theirs = (
        NeighborLoader(source, [4, 3], torch.arange(500), batch_size=100, seed=1) for source in (stores, data)
    )
    for left, right in zip(ours, theirs, strict=True):
        assert torch.equal(left.edge_index, right.edge_index)
        assert torch.equal(left.e_id, right.e_id)
        assert torch.equal(left.x, right.x)


@pytest.mark.parametrize(
    ("chunks", "error", "message"),
    [
        ([torch.tensor([[0, 5], [1, 9]]), torch.tensor([[10], [0]])], IndexError, "edge 2: source 10 is out of range"),
        ([torch.tensor([[0, 5], [1, -9]])], IndexError, r"edge 1: destination -9 is out of range: expected nodes"),
        ([torch.zeros(2, 3)], TypeError, "chunks: expected int32 or int64 tensors, found torch.float32"),
        ([torch.zeros(3, 2, dtype=torch.int64)], ValueError, r"chunks: expected shape \(2, edges\), found \(3, 2\)"),
        ([[1, 2]], TypeError, "chunks: expected int32 or int64 tensors, found list"),
    ],
)  # fmt: skip
def test_bad_edges(tmp_path, chunks, error, message):
    with pytest.raises(error, match=message):
        build_on_disk(tmp_path / "x", chunks, 10)
    assert not list(tmp_path.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(FileExistsError, match="expected a new or an empty directory"):
        build_on_disk(tmp_path / "full", [], 10)


# Files ###############################################################################################################


def write(path, edges):
    """The edges as a file of the path's kind."""
    array = edges.numpy()
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"weight": array[0] * 0.5, "dst": array[1], "src": array[0]}), path)
    else:
        pytest.importorskip("pyarrow")
        mark = {".csv": ",", ".tsv": "\t", ".txt": " ", ".edges": ";"}[path.suffix]
        lines = [f"{a}{mark}{b}" for a, b in array.T]
        head = {".csv": [f"src{mark}dst"], ".txt": ["# from somewhere", "# 100 nodes"]}.get(path.suffix, [])
        path.write_text("\n".join(head + lines) + "\n")
    return path


@pytest.mark.parametrize("kind", [".npy", ".parquet", ".csv", ".tsv", ".txt", ".edges"])
def test_files_of_every_kind(tmp_path, kind):
    edges = random_edges(100, 100, 1000)
    sources = [write(tmp_path / f"{i}{kind}", part) for i, part in enumerate(edges.split(400, dim=1))]
    files = EdgeFiles(sources)
    assert files.count() == (1000 if kind in (".npy", ".parquet") else None)
    assert files.num_nodes() == int(edges.max()) + 1
    for chunk in (64, 10_000):
        assert torch.equal(torch.cat(list(files.chunks(chunk)), 1), edges)
    store = build_on_disk(tmp_path / "graph", files.chunks(128), 100, num_edges=files.count())
    assert_same(store.relation(), CSC.from_edge_index(edges, 100))


@pytest.mark.parametrize(
    ("lines", "columns", "expected"),
    [
        (",src,dst\n7,1,2", None, [1, 2]), ("Dst;SRC\n1;2", None, [2, 1]), ("a,b\n1,2", None, [1, 2]),
        ("id,from,to\n7,1,2", None, [1, 2]), ("1,2,0.5", None, [1, 2]), ("a,b,c\n7,1,2", ("c", "b"), [2, 1]),
        ("a,b,c\n7,1,2", None, "expected two columns, or some named as sources and destinations are .*'a', 'b', 'c'"),
        ("src,dst,source,target\n1,2,3,4", None, "expected two columns, or some named"),
        ("1,2", ("a", "b"), r"expected columns \['a', 'b'\], found columns without names"),
        ("a,b\n1,2", ("a", "c"), r"expected columns \['a', 'c'\], found \['a', 'b'\] without \['c'\]"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_by_name(tmp_path, kind, lines, columns, expected):
    csv, pq = pytest.importorskip("pyarrow.csv"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / f"x.{kind}"
    (tmp_path / "x.csv").write_text(lines + "\n")
    if kind == "parquet":
        if lines[0].isdigit():
            pytest.skip("columns of parquet have names")
        options = csv.ParseOptions(delimiter=";" if ";" in lines else ",")
        pq.write_table(csv.read_csv(tmp_path / "x.csv", parse_options=options), path)
    files = EdgeFiles([path], columns)
    if isinstance(expected, list):
        assert torch.cat(list(files.chunks()), 1).flatten().tolist() == expected
    else:
        with pytest.raises(ValueError, match=f"x.{kind}: {expected}"):
            list(files.chunks())


def test_shapes_of_arrays(tmp_path):
    edges = random_edges(100, 100, 300)
    np.save(tmp_path / "rows.npy", edges.t().contiguous().numpy().astype(np.uint16))
    for name, ids in zip(("src", "dst"), edges, strict=True):
        np.save(tmp_path / f"{name}.npy", ids.numpy().astype(np.int32))
    files = EdgeFiles([tmp_path / "rows.npy", (tmp_path / "src.npy", tmp_path / "dst.npy")])
    assert files.count() == 600
    assert torch.equal(torch.cat(list(files.chunks(77)), 1), torch.cat([edges, edges], 1))


def test_bad_files(tmp_path):
    with pytest.raises(TypeError, match=r"^sources: expected a list of files, found '/a.npy'$"):
        EdgeFiles("/a.npy")
    with pytest.raises(ValueError, match=r"^columns: expected the names of two, found 'ab'$"):
        EdgeFiles([], "ab")
    with pytest.raises(FileNotFoundError, match=r"no.npy: not found"):
        EdgeFiles([tmp_path / "no.npy"])
    (tmp_path / "x.doc").touch()
    with pytest.raises(ValueError, match=r"x.doc: expected a file of edges .* found '.doc'"):
        EdgeFiles([tmp_path / "x.doc"])
    (tmp_path / "x.npy").write_bytes(b"none")
    np.save(tmp_path / "float.npy", np.zeros((2, 3)))
    np.save(tmp_path / "wide.npy", np.zeros((3, 3), dtype=int))
    np.save(tmp_path / "large.npy", np.full((2, 2), 2**63, dtype=np.uint64))
    for name, message in (("x", "expected a .npy file"), ("float", "expected integers, found float64"),
                          ("wide", r"expected shape \(2, edges\)"), ("large", "expected ids below 2")):  # fmt: skip
        with pytest.raises(ValueError, match=rf"{name}.npy: {message}"):
            list(EdgeFiles([tmp_path / f"{name}.npy"]).chunks())
    pytest.importorskip("pyarrow")
    for text, message in (("1,2\n3,x\n", "integers"), ("1,2\n3\n", "two integers"), ("1\n2\n", "two columns"),
                          ("1,2\n3,\n", "expected ids, found 1 empty"), ("1,2\n1,2.5\n", "integers")):  # fmt: skip
        (tmp_path / "x.csv").write_text(text)
        with pytest.raises(ValueError, match=rf"x.csv: expected .*{message}|x.csv: {message}"):
            list(EdgeFiles([tmp_path / "x.csv"]).chunks())
    for text in ("", "# nothing\n"):
        (tmp_path / "x.csv").write_text(text)
        assert list(EdgeFiles([tmp_path / "x.csv"]).chunks()) == []


def test_command(tmp_path, capsys):
    edges = random_edges(100, 100, 1000)
    sources = [str(write(tmp_path / f"{i}.npy", part)) for i, part in enumerate(edges.split(400, dim=1))]
    main(["convert", *sources, "--out", str(tmp_path / "graph")])
    assert "1,000 edges" in capsys.readouterr().out
    num_nodes = int(edges.max()) + 1
    assert_same(GraphStore.open(tmp_path / "graph").relation(), CSC.from_edge_index(edges, num_nodes))
    main(["convert", *sources, "--out", str(tmp_path / "other"), "--nodes", "120", "--no-edge-ids", "--memory", "0.5"])
    assert_same(GraphStore.open(tmp_path / "other").relation(), CSC.from_edge_index(edges, 120), edge_ids=False)
    with pytest.raises(SystemExit) as stop:
        main(["convert", *sources, "--out", str(tmp_path / "small"), "--nodes", "5"])
    assert stop.value.code == 2
    assert "is out of range: expected nodes in [0, 5)" in capsys.readouterr().err
    assert not (tmp_path / "small").exists()
    with pytest.raises(SystemExit):
        main(["convert", *sources, "--out", str(tmp_path / "none"), "--memory", "nan"])
    assert "--memory: expected more than 0, found nan" in capsys.readouterr().err
