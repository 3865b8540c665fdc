"""Text files of edges: headers, columns, and lines that are no edges."""

import gzip
import re

import pytest
import torch
from helpers.edge_files import write

from torch_gnnscale.topology import EdgeFiles
from torch_gnnscale.topology.edge_sources import Ends
from torch_gnnscale.topology.edge_text import OF_WORDS, TextFormat, first_refused

WORDS = re.escape(OF_WORDS)


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


def test_lines_that_are_known_to_be_right_are_not_looked_at_again(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n" * 4)
    for read in range(6):
        found = first_refused(tmp_path / "x.csv", TextFormat(0, ",", 2, (0, 1), False), read)
        line = f"{tmp_path}/x.csv, line {read + 1}: expected two integer ids, found 'a,b'; {OF_WORDS}"
        assert found == (line if read < 4 else None)


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


@pytest.mark.parametrize("header", ["auto", "yes"])
def test_a_line_below_a_header_is_taken_for_none(tmp_path, header):
    (tmp_path / "x.csv").write_text("src,dst\na,b\n1,2\n")
    message = (
        f"{tmp_path}/x.csv, line 2: expected two integer ids, found 'a,b'; for words as ids, number the nodes first: "
        f"numpy.unique(words, return_inverse=True)"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        list(EdgeFiles([tmp_path / "x.csv"], header=header).chunks())


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
