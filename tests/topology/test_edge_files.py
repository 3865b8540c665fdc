"""Edges from files: read in full, or refused by file and line; and the command ``gnnscale convert``."""

import gzip
import re

import numpy as np
import pytest
import torch
from helpers.edge_files import write
from helpers.edges import assert_same_csc, random_edges

from torch_gnnscale import CSC, GraphStore
from torch_gnnscale.cli import main
from torch_gnnscale.topology import EdgeFiles, build_on_disk
from torch_gnnscale.topology.edge_text import OF_WORDS


@pytest.mark.slow
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
    assert_same_csc(store.relation(), CSC.from_edge_index(edges, 100))


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6])
def test_every_chunk_of_two_vectors_is_read(tmp_path, count):
    edges = random_edges(9, 9, count)
    pair = tuple(tmp_path / f"{end}.npy" for end in ("src", "dst"))
    for path, ids in zip(pair, edges, strict=True):
        write(path, ids)
    found = list(EdgeFiles([pair]).chunks(2))
    assert [part.size(1) for part in found] == [2] * (count // 2) + [1] * (count % 2)
    assert torch.equal(torch.cat([edges[:, :0], *found], 1), edges)


@pytest.mark.parametrize(
    ("lines", "columns", "expected"),
    [
        (",src,dst\n7,1,2", None, [1, 2]), ("Dst;SRC\n1;2", None, [2, 1]), ("id,from,to\n7,1,2", None, [1, 2]),
        ("a,b,c\n7,1,2", ("c", "b"), [2, 1]), ("a,w,w,b\n1,8,9,2", ("a", "b"), [1, 2]),
        ('"src", dst\n1, 2', None, [1, 2]),
        ("src,dst,source,target\n1,2,3,4", None, "expected two columns, or some named as .*, found .*'target'"),
        ("a,b\n1,2", ("a", "c"), r"expected columns \['a', 'c'\], found \['a', 'b'\] without \['c'\]"),
        ("src,dst,src\n1,2,3", None, r"expected one column named 'src', found 2 in \['src', 'dst', 'src'\]"),
        ("src,dst,SRC\n1,2,3", None, "expected one column named 'src', found 2 in"),
        ("a,b,b\n1,2,3", ("a", "b"), "expected one column named 'b', found 2 in"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_by_name(tmp_path, kind, lines, columns, expected):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / f"x.{kind}"
    if kind == "csv":
        path.write_text(lines + "\n")
    else:
        names, ids = (line.replace(";", ",").replace('"', "").split(",") for line in lines.split("\n"))
        columns_of = [pa.array([int(one)]) for one in ids]
        pq.write_table(pa.Table.from_arrays(columns_of, names=[name.strip() for name in names]), path)
    files = EdgeFiles([path], columns)
    if isinstance(expected, list):
        assert torch.cat(list(files.chunks()), 1).flatten().tolist() == expected
    else:
        with pytest.raises(ValueError, match=f"^{path}: {expected}"):
            list(files.chunks())


def test_any_two_columns_of_parquet_are_edges(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "two.parquet")
    assert torch.cat(list(EdgeFiles([tmp_path / "two.parquet"]).chunks()), 1).tolist() == [[1], [2]]
    pq.write_table(pa.table({"a": [1], "b": [2], "c": [3]}), tmp_path / "three.parquet")
    assert torch.cat(list(EdgeFiles([tmp_path / "three.parquet"], (2, "a")).chunks()), 1).tolist() == [[3], [1]]
    with pytest.raises(ValueError, match=r"three\.parquet: expected two columns, or some named .*'c'\]; name them by"):
        list(EdgeFiles([tmp_path / "three.parquet"]).chunks())


def test_shapes_of_arrays(tmp_path):
    edges = random_edges(100, 100, 300)
    np.save(tmp_path / "rows.npy", edges.t().contiguous().numpy().astype(np.uint16))
    for name, ids in zip(("src", "dst"), edges, strict=True):
        np.save(tmp_path / f"{name}.npy", ids.numpy().astype(np.int32))
    files = EdgeFiles([tmp_path / "rows.npy", (tmp_path / "src.npy", tmp_path / "dst.npy")])
    assert files.count() == 600
    assert torch.equal(torch.cat(list(files.chunks(77)), 1), torch.cat([edges, edges], 1))


def test_a_square_array_has_sources_in_its_first_row(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[1, 2], [3, 4]]))
    assert torch.cat(list(EdgeFiles([tmp_path / "x.npy"]).chunks()), 1).tolist() == [[1, 2], [3, 4]]


def test_bad_arguments(tmp_path):
    with pytest.raises(TypeError, match=r"^sources: expected a list of files, found '/a.npy'$"):
        EdgeFiles("/a.npy")
    for columns in ("ab", ("a", "a"), ("a", "b", "c")):
        with pytest.raises(ValueError, match=r"^columns: expected two different names or positions, found "):
            EdgeFiles([], columns)
    with pytest.raises(TypeError, match=r"^columns: expected names or positions, found \(0, 1.5\)$"):
        EdgeFiles([], (0, 1.5))
    np.save(tmp_path / "x.npy", np.array([[0, 1], [1, 2]]))
    for options, message in (
        ({"columns": (0, 1)}, r"columns: expected a file among \('.parquet', '.csv', .* beside it, found \['.npy'\]"),
        ({"header": "yes"}, r"header: expected a file among \('.csv', .* beside it, found \['.npy'\]"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            EdgeFiles([tmp_path / "x.npy"], **options)
    with pytest.raises(ValueError, match=r"^header: expected one of \('auto', 'yes', 'no'\), found True$"):
        EdgeFiles([], header=True)
    with pytest.raises(FileNotFoundError, match=r"no.npy: not found"):
        EdgeFiles([tmp_path / "no.npy"])
    with pytest.raises(ValueError, match=f"^{tmp_path}: expected a file of edges, found a folder$"):
        EdgeFiles([tmp_path])
    (tmp_path / "x.doc").touch()
    with pytest.raises(ValueError, match=r"x.doc: expected a file of edges .* found '.doc'"):
        EdgeFiles([tmp_path / "x.doc"])
    (tmp_path / "x.csv").touch()
    with pytest.raises(ValueError, match=r"x.csv: expected a header that names the columns .*, found header='no'$"):
        EdgeFiles([tmp_path / "x.csv"], ("a", "b"), header="no")


def test_ids_of_63_bits(tmp_path):
    most = (1 << 63) - 1
    np.save(tmp_path / "x.npy", np.array([[0, most], [most, 1]], dtype=np.uint64))
    (found,) = EdgeFiles([tmp_path / "x.npy"]).chunks()
    assert found.tolist() == [[0, most], [most, 1]]


def test_bad_arrays(tmp_path):
    np.save(tmp_path / "float.npy", np.zeros((2, 3)))
    np.save(tmp_path / "wide.npy", np.zeros((3, 3), dtype=int))
    np.save(tmp_path / "scalar.npy", np.array(3))
    np.save(tmp_path / "words.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "objects.npy", np.array([[1, "a"]], dtype=object))
    np.save(tmp_path / "large.npy", np.full((2, 2), 2**63, dtype=np.uint64))
    np.save(tmp_path / "cut.npy", np.zeros((2, 300), dtype=int))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-1])
    (tmp_path / "text.npy").write_bytes(b"none")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "gzip.npy").write_bytes(gzip.compress((tmp_path / "wide.npy").read_bytes()))
    np.savez(tmp_path / "archive", edges=np.zeros((2, 3), dtype=int))
    (tmp_path / "archive.npz").rename(tmp_path / "archive.npy")
    for name, message in (
        ("text", "expected a .npy file"), ("empty", "expected a .npy file"), ("gzip", "expected a .npy file"),
        ("archive", "expected a .npy file"), ("cut", "expected a .npy file"), ("objects", "expected a .npy file"),
        ("words", f"expected integers, found <U1; {re.escape(OF_WORDS)}$"),
        ("float", "expected integers, found float64$"), ("wide", r"expected shape \(2, edges\)"),
        ("scalar", r"expected shape \(2, edges\)"), ("large", "expected ids below 2"),
    ):  # fmt: skip
        files = EdgeFiles([tmp_path / f"{name}.npy"])
        with pytest.raises(ValueError, match=rf"^{tmp_path}/{name}.npy: {message}"):
            list(files.chunks())
    np.save(tmp_path / "ids.npy", np.arange(3))
    for pair in (("ids", "scalar"), ("scalar", "scalar"), ("ids", "wide")):
        files = EdgeFiles([tuple(tmp_path / f"{name}.npy" for name in pair)])
        for read in (files.count, files.num_nodes):
            with pytest.raises(ValueError, match=r"npy: expected vectors of one length, found shapes "):
                read()


def test_bad_parquet(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    for values, message in (
        ([1.0, 2.0], ": expected integers, found double"),
        (["a", "2"], f", row 0: expected an integer id, found 'a'; {re.escape(OF_WORDS)}"),
        ([1, None], ", row 1: expected an id, found an empty cell"), ([True, False], ": expected integers, found bool"),
        ([*range(6), None], ", row 6: expected an id, found an empty cell"),
    ):  # fmt: skip
        pq.write_table(pa.table({"src": range(len(values)), "dst": values}), path)
        with pytest.raises(ValueError, match=rf"^{path}{message}$"):
            list(EdgeFiles([path]).chunks(4))
    pq.write_table(pa.table({"src": np.arange(5000), "dst": np.arange(5000)}), path)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[100:3000] = bytes(2900)
    for content in (whole[:-1], whole[:100], b"", gzip.compress(whole), b"1,2\n", bytes(damaged)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"^{path}: expected a parquet file, found something else \("):
            list(EdgeFiles([path]).chunks())


@pytest.mark.slow
def test_command(tmp_path, capsys):
    edges = random_edges(100, 100, 1000)
    sources = [str(write(tmp_path / f"{i}.npy", part)) for i, part in enumerate(edges.split(400, dim=1))]
    main(["convert", *sources, "--out", str(tmp_path / "graph")])
    assert "1,000 edges" in capsys.readouterr().out
    num_nodes = int(edges.max()) + 1
    assert_same_csc(GraphStore.open(tmp_path / "graph").relation(), CSC.from_edge_index(edges, num_nodes))
    main(["convert", *sources, "--out", str(tmp_path / "other"), "--nodes", "120", "--no-edge-ids", "--memory", "0.5"])
    assert_same_csc(GraphStore.open(tmp_path / "other").relation(), CSC.from_edge_index(edges, 120), edge_ids=False)
    few = int(edges[:, :400].max()) + 1  # enough for the first file
    edges[0, 500] = few
    sources[1] = str(write(tmp_path / "1.npy", edges[:, 400:800]))
    largest = int(edges[:, 400:800].max())
    for nodes, message in (
        (few, f"--nodes: expected more than {largest} nodes, an id in {sources[1]}, found {few}"),
        (-1, "--nodes: expected at least 0, found -1"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["convert", *sources, "--out", str(tmp_path / "small"), "--nodes", str(nodes)])
        assert stop.value.code == 2
        assert capsys.readouterr().err == f"gnnscale: {message}\n"
    assert not (tmp_path / "small").exists()
    for memory in ("nan", "inf", "0", "-1"):
        with pytest.raises(SystemExit):
            main(["convert", *sources, "--out", str(tmp_path / "none"), "--memory", memory])
        message = f"--memory: expected a finite number of GiB above 0, found {float(memory)}"
        assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_command_with_a_header(tmp_path, capsys):
    pytest.importorskip("pyarrow")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    arguments = ["convert", str(tmp_path / "x.csv"), "--out", str(tmp_path / "graph")]
    with pytest.raises(SystemExit):
        main(arguments)
    assert "x.csv, line 1: expected two integer ids, found 'a,b'; is it a header?" in capsys.readouterr().err
    main([*arguments, "--header", "yes"])
    assert GraphStore.open(tmp_path / "graph").relation().num_edges == 1
