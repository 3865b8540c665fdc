"""Edges from files: read in full, or refused by file and line; and the command ``gnnscale convert``."""

import gzip
import re

import numpy as np
import pytest
import torch
from helpers.edges import assert_same_csc, random_edges

from torch_gnnscale import CSC, GraphStore
from torch_gnnscale.cli import main
from torch_gnnscale.topology import EdgeFiles, build_on_disk
from torch_gnnscale.topology.edge_files import Ends
from torch_gnnscale.topology.edge_text import OF_WORDS, TextFormat, first_refused

WORDS = re.escape(OF_WORDS)


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


def test_the_first_file_of_those_with_the_largest_id_is_named(tmp_path):
    parts = [[], [[3, 9], [7, 2]], [], [[9, 1], [2, 7]]]
    sources = [write(tmp_path / f"{i}.npy", torch.tensor(part).view(2, -1).long()) for i, part in enumerate(parts)]
    for chunk in (1, 2):
        assert EdgeFiles(sources).ends(chunk) == (Ends(1, 9, sources[1]), Ends(2, 7, sources[1]), 4)
    assert EdgeFiles(sources[::-1]).ends() == (Ends(1, 9, sources[3]), Ends(2, 7, sources[3]), 4)
    assert EdgeFiles(sources[::2]).ends() == (Ends(0, -1, ""), Ends(0, -1, ""), 0)


def test_only_the_first_line_is_taken_for_a_header(tmp_path):
    (tmp_path / "x.csv").write_text("1,2\nsrc,dst\n")
    hint = "; is it a header? Then say so (header='yes', --header yes)"
    for read in (0, 1):
        found = first_refused(tmp_path / "x.csv", TextFormat(0, ",", 2, (0, 1), True), read)
        assert found == f"{tmp_path}/x.csv, line 2: expected two integer ids, found 'src,dst'; {OF_WORDS}"
    (tmp_path / "x.csv").write_text("src,dst\n")
    found = first_refused(tmp_path / "x.csv", TextFormat(0, ",", 2, (0, 1), True), 0)
    assert found == f"{tmp_path}/x.csv, line 1: expected two integer ids, found 'src,dst'{hint}; {OF_WORDS}"


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


BOM = b"\xef\xbb\xbf"
READ = {
    "plain": b"1,2\n3,4\n",
    "no line end": b"1,2\n3,4",
    "byte order mark": BOM + b"1,2\n3,4\n",
    "byte order mark and header": BOM + b"src,dst\n1,2\n3,4\n",
    "byte order mark and comment": BOM + b"# a\n1,2\n3,4\n",
    "blank first": b"\n1,2\n3,4\n",
    "blanks of spaces": b"  \n\t\n1,2\n3,4\n",
    "blank after comments": b"# a\n#\n\n1,2\n\n\n3,4\n\n",
    "comment after blank": b"\n# a\n1,2\n3,4\n",
    "comment in Latin 1": b"# Gr\xf6\xdfe\n1,2\n3,4\n",
    "quoted": b'"1","2"\n"3",4\n',
    "hexadecimal": b"0x1,0X2\n0x3,4\n",
    "leading zeros": b"01,002\n3,4\n",
    "spaces": b" 1, 2\n3 ,4 \n",
    "CR LF": b"# a\r\n\r\n1,2\r\n3,4\r\n",
    "CR": b"# a\r\r1,2\r3,4\r",
    "third column": b"1,2,0.5\n3,4,\n",
    "comment with a comma": b"# a,b\n1\t2\n3\t4\n",
    "header after comment and blank": b"# a\n\n u, v\n1,2\n3,4\n",
}


@pytest.mark.parametrize("name", READ)
def test_no_line_of_text_is_lost(tmp_path, name):
    pytest.importorskip("pyarrow")
    (tmp_path / "x.csv").write_bytes(READ[name])
    assert torch.cat(list(EdgeFiles([tmp_path / "x.csv"]).chunks()), 1).tolist() == [[1, 3], [2, 4]]


REFUSED = {
    "empty cell": (b",1\n2,3\n", 1, "expected two integer ids, found ',1'$"),
    "empty cell and name": (b",dst\n2,3\n", 1, "expected two integer ids, found ',dst'$"),
    "two spaces": (b"0  1\n2  3\n", 1, "expected two integer ids, found '0  1'$"),
    "other comment": (b"% c\n2 3\n", 1, "expected two integer ids, found '% c'$"),
    "like numbers": (b"nan,1e5\n2,3\n", 1, "expected two integer ids, found 'nan,1e5'$"),
    "hexadecimal and name": (b"0xA,dst\n2,3\n", 1, "expected two integer ids, found '0xA,dst'$"),
    "zero bytes": (b"s\0,d\0\n2,3\n", 1, r"expected two integer ids, found 's\\x00,d\\x00'$"),
    "floats": (b"0.0,1.0\n2,3\n", 1, "expected two integer ids, found '0.0,1.0'$"),
    "negative first": (b"1,-2\n2,3\n", 1, "expected two integer ids, found '1,-2'$"),
    "letter": (b"O,1\n2,3\n", 1, "expected two integer ids, found 'O,1'$"),
    "names that say nothing": (
        b"a,b\n1,2\n",
        1,
        r"expected two integer ids, found 'a,b'; is it a header\? Then say so",
    ),
    "one known name": (b"src,x\n1,2\n", 1, "expected two integer ids, found 'src,x'; is it a header"),
    "name and number": (b"# a\n\nid,1\n1,2\n", 3, "expected two integer ids, found 'id,1'$"),
    "negative": (b"1,2\n\n-1,2\n", 3, "expected two integer ids, found '-1,2'$"),
    "2^63": (b"1,2\n9223372036854775808,2\n", 2, "expected two integer ids, found '9223372036854775808,2'$"),
    "hexadecimal 2^63": (b"1,2\n2,0x8000000000000000\n", 2, "expected two integer ids, found '2,0x8000000000000000'$"),
    "hexadecimal before": (b"1,2\n3,0X4\nO,1\n", 3, "expected two integer ids, found 'O,1'$"),
    "missing value": (b"1,2\nNA,2\n", 2, "expected two integer ids, found 'NA,2'$"),
    "second header": (b"src,dst\n1,2\nsrc,dst\n", 3, "expected two integer ids, found 'src,dst'; for words"),
    "comment in the middle": (b"1,2\n# a\n", 2, "expected 2 columns, found 1: '# a'$"),
    "short": (b"1,2\n3\n", 2, "expected 2 columns, found 1: '3'$"),
    "long": (b"1,2\n1,2,3\n", 2, "expected 2 columns, found 3: '1,2,3'$"),
    "spaces in the middle": (b"1,2\n  \n", 2, "expected 2 columns, found 1: '  '$"),
    "one column": (b"#\n1\n2\n", 2, "expected two columns, found '1'$"),
    "header of one column": (b"#\nsrc\n2\n", 2, "expected two columns, found 'src'$"),
    "open quote": (b'1,2\n"3,4\n5,6\n', 2, "expected 2 columns, found 1: "),
    "underscores": (b"1,2\n1_0,2\n", 2, "expected two integer ids, found '1_0,2'$"),
    "other digits": ("1,2\n１,2\n".encode(), 2, "expected two integer ids, found '１,2'$"),
    "zero byte": (b"1,2\n3,4\x00\n", 2, r"expected two integer ids, found '3,4\\x00'$"),
    "UTF-16 without a mark": ("1,2\n".encode("utf-16-le"), 1, "expected two integer ids, found "),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("before", [0, 6000])
def test_a_line_that_is_no_edge_is_named(tmp_path, name, before):
    pytest.importorskip("pyarrow")
    text, line, message = REFUSED[name]
    if before and line > 1 and text.startswith(b"1,2\n"):  # further on, in a later batch
        text, line = (b"1," + b" " * 200 + b"2\n\n") * before + text, line + 2 * before
    path = tmp_path / "x.csv"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=rf"^{path}, line {line}: {message}"):
        list(EdgeFiles([path]).chunks(1000))


@pytest.mark.parametrize(
    ("text", "header", "expected"),
    [
        ("a,b\n1,2\n", "yes", [[1], [2]]), ("1,2\n3,4\n", "yes", [[3], [4]]), ("1,2\n3,4\n", "no", [[1, 3], [2, 4]]),
        ("dst,src\n1,2\n", "yes", [[2], [1]]), ("a,b,c\n1,2,3\n", "yes", "expected two columns, or some named"),
        ("src,dst\n1,2\n", "no", "line 1: expected two integer ids, found 'src,dst'; for words as ids, number"),
        ("a,a\n1,2\n", "yes", "expected one column named 'a', found 2"),
    ],
)  # fmt: skip
def test_header_as_asked_for(tmp_path, text, header, expected):
    pytest.importorskip("pyarrow")
    (tmp_path / "x.txt").write_text(text)
    files = EdgeFiles([tmp_path / "x.txt"], header=header)
    if isinstance(expected, list):
        assert torch.cat(list(files.chunks()), 1).tolist() == expected
    else:
        with pytest.raises(ValueError, match=rf"x\.txt[:,] {expected}"):
            list(files.chunks())


POSITIONS = [
    ("0,9,2\n3,9,4\n", ("0", "2"), "auto", "line 1: '0,9,2' may be an edge or the names of columns; say which"),
    ("0,9,2\n3,9,4\n", (0, 2), "auto", "line 1: '0,9,2' may be an edge or the names of columns; say which"),
    ("0,9,2\n3,9,4\n", ("0", "2"), "no", [[0, 3], [2, 4]]),
    ("0,9,2\n3,9,4\n", ("0", "2"), "yes", [[3], [4]]),
    ("0,9,1\n3,9,4\n", ("0", "2"), "auto", [[0, 3], [1, 4]]),
    ("0,0.5,2\n3,,4\n", ("0", "2"), "auto", [[0, 3], [2, 4]]),
    ("5,6,7\n", (2, 0), "auto", [[7], [5]]),
    (",0,1\n0,5,6\n", ("1", "2"), "auto", "line 1: ',0,1' may be an edge or the names of columns; say which"),
    (",0,1\n0,5,6\n", ("1", "0"), "yes", [[6], [5]]),
    ("w,src,dst\n9,1,2\n", ("1", "2"), "auto", [[1], [2]]),
    ("w,a,b\n9,1,2\n", ("1", "2"), "auto", "line 1: expected two integer ids, found 'w,a,b'; is it a header?"),
    ("w,a,b\n9,1,2\n", ("1", "b"), "auto", [[1], [2]]),
    ("w,a,b\n9,1,2\n", ("a", "2"), "yes", [[1], [2]]),
    ("w,a,b\n9,1,2\n", ("b", 2), "auto", "expected two different columns, found ['b', 2]"),
    ("1,2\n", ("0", "2"), "auto", "expected columns ['0', '2'], counted from 0, found 2 columns"),
    ("1,2\n", (0, -1), "no", "expected columns [0, -1], counted from 0, found 2 columns"),
    ("U,I,rating\n1,2,3\n", None, "auto", [[1], [2]]),
    ("citing,cited\n1,2\n", None, "auto", [[1], [2]]),
    ("item,user\n1,2\n", None, "auto", [[2], [1]]),
]


@pytest.mark.parametrize(("text", "columns", "header", "expected"), POSITIONS)
def test_columns_by_position_lose_no_edge(tmp_path, text, columns, header, expected):
    pytest.importorskip("pyarrow")
    (tmp_path / "x.csv").write_text(text)
    files = EdgeFiles([tmp_path / "x.csv"], columns, header)
    if isinstance(expected, list):
        assert torch.cat(list(files.chunks()), 1).tolist() == expected
    else:
        with pytest.raises(ValueError, match=rf"^{tmp_path}/x\.csv[:,] {re.escape(expected)}"):
            list(files.chunks())


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "# nothing\n\n", "src,dst\n"])
def test_text_without_edges(tmp_path, text):
    pytest.importorskip("pyarrow")
    (tmp_path / "x.csv").write_text(text)
    assert EdgeFiles([tmp_path / "x.csv"]).num_nodes() == 0


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


@pytest.mark.parametrize("header", ["auto", "yes"])
def test_a_line_below_a_header_is_taken_for_none(tmp_path, header):
    (tmp_path / "x.csv").write_text("src,dst\na,b\n1,2\n")
    message = (
        f"{tmp_path}/x.csv, line 2: expected two integer ids, found 'a,b'; for words as ids, number the nodes first: "
        f"numpy.unique(words, return_inverse=True)"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        list(EdgeFiles([tmp_path / "x.csv"], header=header).chunks())


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
        ("words", f"expected integers, found <U1; {WORDS}$"),
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
        (["a", "2"], f", row 0: expected an integer id, found 'a'; {WORDS}"),
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


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (gzip.compress(b"1,2\n3,4\n"), "gzip: unpack it first"), ("1,2\n".encode("utf-16"), "UTF-16"),
        (b"\xfe\xff" + "1,2\n".encode("utf-16-be"), "UTF-16"), (b"PK\x03\x04", "a zip archive"), (b"PAR1", "parquet"),
    ],
    ids=["gzip", "utf-16-le", "utf-16-be", "zip", "parquet"],
)  # fmt: skip
def test_text_that_is_none(tmp_path, content, found):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(ValueError, match=rf"x\.csv: expected UTF-8 text, found {found}$"):
        list(EdgeFiles([tmp_path / "x.csv"]).chunks())


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


def test_a_line_that_is_refused_after_the_first_block(tmp_path):
    path, line = tmp_path / "edges.txt", "1234567 1234567\n"
    block = (1 << 20) // len(line)  # lines that are read at once
    path.write_text(line * block + "12345O7 1234567\n" + line)
    with pytest.raises(ValueError, match=rf"edges.txt, line {block + 1}: expected two integer ids, found"):
        list(EdgeFiles([path]).chunks(1))


def test_of_a_long_line_the_beginning_is_shown(tmp_path):
    (tmp_path / "x.csv").write_text("1,2\n" + "x" * 90 + ",1\n")
    found = first_refused(tmp_path / "x.csv", TextFormat(0, ",", 2, (0, 1), False), 0)
    assert found == f"{tmp_path}/x.csv, line 2: expected two integer ids, found '{'x' * 80}'"
