"""The users' ids of nodes, both ways."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from helpers import crafted
from helpers.tables import put
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import files, tables
from torch_gnnscale.tables import Ids
from torch_gnnscale.tables.id_map import IdWriter


def written(folder, keys, strings=True):
    """The ids of sorted keys, written in three pieces of one array, as far as there are as many; without keys, of
    ``strings`` or integers."""
    strings = isinstance(keys[0], str) if keys else strings
    kind = pa.string() if strings else pa.int64()
    writer = IdWriter(folder / "tables")
    size = sum(len(key.encode()) for key in keys) if strings else None
    with writer.writing("user", "string" if strings else "integer", len(keys), size) as put_keys:
        array, cuts = pa.array(keys, kind), [len(keys) * number // 3 for number in range(4)]
        for begin, end in pairwise(cuts):
            assert begin == end or put_keys(array[begin:end]) is None
    writer.close({})
    return tables.ids(folder, "user")


@pytest.mark.slow
@given(st.sets(st.text(st.characters(codec="utf-8"), max_size=5), min_size=1, max_size=40), st.data())
def test_strings(tmp_path_factory, keys, data):
    keys = sorted(keys, key=str.encode)
    ids = written(tmp_path_factory.mktemp("ids"), keys)
    asked = data.draw(st.lists(st.sampled_from([*keys, "no", "", "\0"])))
    expected = [keys.index(key) if key in keys else -7 for key in asked]
    assert ids.of(asked, missing=-7).tolist() == expected
    known = [number for number in expected if number >= 0]
    assert ids.names(known).to_pylist() == [keys[number] for number in known]
    assert len(ids) == len(keys)


@pytest.mark.slow
@given(st.sets(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), min_size=1, max_size=40), st.data())
def test_integers(tmp_path_factory, keys, data):
    keys = sorted(keys)
    ids = written(tmp_path_factory.mktemp("ids"), keys)
    asked = data.draw(st.lists(st.sampled_from([*keys, 17, -(2**63)]), min_size=1))
    expected = [keys.index(key) if key in keys else -7 for key in asked]
    for given_as in (asked, torch.tensor(asked), np.array(asked), pa.array(asked)):
        assert ids.of(given_as, missing=-7).tolist() == expected
    known = [number for number in expected if number >= 0]
    assert ids.names(torch.tensor(known, dtype=torch.int32)).to_pylist() == [keys[number] for number in known]


@pytest.mark.parametrize(
    "keys", [[-(2**63), -1, 0, 1, 2**63 - 1], [0], [1], ["", "\0", "a", "aa", "b", "é"], [""], ["b"]], ids=repr
)
def test_ids_at_both_ends(tmp_path, keys):
    """Each of one to all of the ids is found, and none of those that lie before, between and after them."""
    others = ["!", "ab", "\U0010ffff"] if isinstance(keys[0], str) else [-(2**63) + 1, -2, 2, 2**63 - 2]
    for count in range(1, len(keys) + 1):
        (folder := tmp_path / str(count)).mkdir()
        ids = written(folder, keys[:count])
        expected = [*range(count), *[-1] * (len(keys) - count + len(others))]
        assert ids.of([*keys, *others], missing=-1).tolist() == expected
        assert ids.names(list(range(count))).to_pylist() == keys[:count]


def test_forms_of_strings(tmp_path):
    ids = written(tmp_path, ["a", "bc", "é"])
    for asked in (["é", "a"], np.array(["é", "a"]), pa.array(["é", "a"]), pa.chunked_array([["é"], ["a"]]),
                  pa.array(["é", "a"]).dictionary_encode(), pa.array(["x", "é", "a"])[1:]):  # fmt: skip
        assert ids.of(asked).tolist() == [2, 0]
    assert ids.of([]).tolist() == []
    assert ids.names([]).to_pylist() == []
    assert ids.names(np.array([[1], [0]])).to_pylist() == ["bc", "a"]


@pytest.mark.parametrize(
    ("pieces", "again"),
    [
        ([["a"], ["ab", "b"]], None),
        ([["a"], ["b", "b"]], "b"),
        ([["a", "b"], ["b", "c"]], "b"),
        ([["a"], ["b"], ["b"]], "b"),
        ([[1, 2], [2, 3]], 2),
        ([[-1], [-1]], -1),
    ],
)
def test_ids_that_stand_there_twice(tmp_path, pieces, again):
    """Within a piece, or at the end of one and the start of the next."""
    kind, size = ("string", 9) if isinstance(pieces[0][0], str) else ("integer", None)
    with IdWriter(tmp_path / "tables").writing("user", kind, 4, size) as put_keys:
        *before, found = [put_keys(pa.array(piece)) for piece in pieces]
    assert found == again
    assert not any(before)


def test_no_ids(tmp_path):
    ids = written(tmp_path, [])
    assert len(ids) == 0
    assert ids.of(["a"], missing=-1).tolist() == [-1]
    with pytest.raises(ValueError, match=r"keys\[0\]: expected an id of user, found 'a'"):
        ids.of(["a"])


def test_no_integers(tmp_path):
    ids = written(tmp_path, [], strings=False)
    assert ids.of(torch.tensor([3, -1, 0]), missing=-7).tolist() == [-7, -7, -7]
    with pytest.raises(ValueError, match=r"keys\[0\]: expected an id of user, found 3"):
        ids.of([3])


def test_large_unsigned_numbers_are_no_ids(tmp_path):
    ids = written(tmp_path, [-1, 5])
    asked = pa.array([5, 2**64 - 1], pa.uint64())
    assert ids.of(asked, missing=-9).tolist() == [1, -9]
    with pytest.raises(ValueError, match=r"keys\[1\]: expected an id of user, found 18446744073709551615"):
        ids.of(asked)


def test_errors(tmp_path):
    ids = written(tmp_path, ["a", "bc"])
    numbers = Ids("item", None, torch.tensor([3, 8]))
    with pytest.raises(ValueError, match=r"keys\[2\]: expected an id of user, found 'B'"):
        ids.of(["a", "bc", "B", "C"])
    with pytest.raises(ValueError, match=r"keys\[0\]: expected an id of item, found 4"):
        numbers.of([4])
    with pytest.raises(IndexError, match=r"nodes\[1\] = 2: expected nodes of user in \[0, 2\)"):
        ids.names([1, 2])
    with pytest.raises(IndexError, match=r"nodes\[0\] = -1: expected nodes of item in \[0, 2\)"):
        numbers.names([-1])
    with pytest.raises(TypeError, match="keys: expected strings, found int64"):
        ids.of([1])
    with pytest.raises(TypeError, match="keys: expected integers, found string"):
        numbers.of(["3"])
    with pytest.raises(TypeError, match="keys: expected several strings, found str"):
        ids.of("a")
    with pytest.raises(TypeError, match="keys: expected strings, found nothing"):
        ids.of(["a", None])
    with pytest.raises(ValueError, match=r"node_type: expected one of \['user'\], found 'item'"):
        tables.ids(tmp_path, "item")


def test_damaged_ids_are_found(tmp_path):
    written(tmp_path, ["a", "bc"])
    file = tmp_path / "tables" / "0_keys.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"0_keys.npy: checksum of block 0"):
        tables.ids(tmp_path, "user")
    tables.ids(tmp_path, "user", verify=False)
    with pytest.raises(FileNotFoundError, match=files.MANIFEST):
        tables.ids(tmp_path / "no", "user")


@pytest.mark.parametrize("offsets", [[0, 1 << 45, 3], [0, 3, 1], [-1, 1, 3], [0, 1, 4]])
def test_offsets_that_lead_outside(tmp_path, offsets):
    """With a checksum that is right: an error, also without verification, and no memory elsewhere is read."""
    written(tmp_path, ["a", "bc"])
    crafted.put(tmp_path / "tables", "0_offsets", torch.tensor(offsets))
    ids = tables.ids(tmp_path, "user", verify=False)
    for call in (lambda: ids.names([0, 1]), lambda: ids.of(["a", "bc"])):
        with pytest.raises(ValueError, match=r"^ids of user: expected offsets that rise from 0 to 3, found others$"):
            call()


@pytest.mark.parametrize(
    ("name", "array", "found"),
    [
        ("0_keys", None, "no entry '0_keys'"),
        ("0_keys", torch.zeros(1, 3, dtype=torch.uint8), r"torch.uint8 of shape \(1, 3\)"),
        ("0_keys", torch.zeros(3, dtype=torch.int32), r"torch.int32 of shape \(3,\)"),
        ("0_offsets", torch.zeros(3, dtype=torch.int32), r"torch.int32 of shape \(3,\)"),
        ("0_offsets", torch.zeros(0, dtype=torch.int64), "offsets without an entry"),
        ("0_offsets", None, r"torch.uint8 of shape \(3,\)"),
    ],
)
def test_arrays_that_hold_no_ids(tmp_path, name, array, found):
    written(tmp_path, ["a", "bc"])
    crafted.put(tmp_path / "tables", name, array)
    with pytest.raises(ValueError, match=rf"tables/{files.MANIFEST}: expected the ids of 'user', found {found}$"):
        tables.ids(tmp_path, "user")


@pytest.mark.slow
def test_ids_take_less_than_16_bytes_of_memory_per_node(tmp_path):
    """Their files do not count, whose pages the system takes back. All ids are 38 bytes each, with where they begin."""
    count = 1_000_000
    writer = IdWriter(tmp_path / "tables")
    with writer.writing("user", "string", count, 30 * count) as put_keys:
        for begin in range(0, count, 100_000):
            put_keys(pa.array(f"{number:030d}" for number in range(begin, begin + 100_000)))
    writer.close({})
    before = anonymous()
    ids = tables.ids(tmp_path, "user")
    asked = [f"{number:030d}" for number in range(0, count, 1000)]
    assert ids.names(ids.of(asked)).to_pylist() == asked
    assert anonymous() - before < 16 * count


def anonymous():
    """The bytes of memory of this process that are not those of files."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024


@pytest.mark.slow
def test_strings_are_not_normalised(tmp_path):
    names = ["é", "e\u0301", "z", "ﬁ", "Z", "", "a\0b", "a"]
    put(tmp_path / "u.parquet", pa.table({"id": names}))
    tables.build(tables.Schema.parse({"nodes": {"u": {"files": "u.parquet", "key": "id"}}}, tmp_path), tmp_path / "g")
    ids = tables.ids(tmp_path / "g", "u")
    assert ids.names(range(8)).to_pylist() == sorted(names, key=str.encode)
    assert ids.of(names).tolist() == [sorted(names, key=str.encode).index(name) for name in names]
