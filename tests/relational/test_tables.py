"""Wrong keys and times are errors that name table, column and row."""

import re
from types import SimpleNamespace

import pytest
import torch

from torch_gnnscale.relational import loaders
from torch_gnnscale.relational.database_graph import check_keys, check_tables

pd = pytest.importorskip("pandas")


def database(**changed):
    """Two tables, of which columns can be changed, as of RelBench."""
    people = {"id": [0, 1, 2], "born": pd.to_datetime([1, 2, 3], unit="s")}
    calls = {"from": [0.0, 2.0, None, 1.0], "at": pd.to_datetime([1, 2, 3, 4], unit="s")}
    tables = {"people": ("id", "born", people, {}), "calls": (None, "at", calls, {"from": "people"})}
    found = {}
    for name, (pkey, time, columns, fkeys) in tables.items():
        frame = pd.DataFrame({**columns, **{key: value for key, value in changed.items() if key in columns}})
        found[name] = SimpleTable(df=frame, pkey_col=pkey, time_col=time, fkey_col_to_pkey_table=fkeys)
    return SimpleNamespace(table_dict=found)


class SimpleTable(SimpleNamespace):
    def __len__(self):
        return len(self.df)


def test_right_tables():
    check_tables(database())


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"id": [0, 2, 1]}, ValueError, "people.id: expected keys from 0 to 2 in the order of rows, found 2 in row 1"),
        ({"id": [0, 1, 1]}, ValueError,
         "people.id: expected keys from 0 to 2 in the order of rows, found 1 in row 2, as in row 1"),
        ({"id": ["a", "b", "c"]}, ValueError,
         "people.id: expected keys from 0 to 2 in the order of rows, found a in row 0"),
        ({"from": [0.0, 3.0, None, 9.0]}, ValueError,
         "calls.from: expected keys of people, from 0 to 2, or none, found 3.0 in row 1"),
        ({"from": [0, 1, 2, -1]}, ValueError,
         "calls.from: expected keys of people, from 0 to 2, or none, found -1 in row 3"),
        ({"from": [0, 1.5, 2, 1]}, ValueError,
         "calls.from: expected keys of people, from 0 to 2, or none, found 1.5 in row 1"),
        ({"from": ["a", "b", None, "c"]}, TypeError, "calls.from: expected integers, the keys of people, found "),
        ({"at": [1, 2, 3, 4]}, TypeError,
         "calls.at: expected datetimes, found int64; convert them by pandas.to_datetime(column, unit=...)"),
    ],
)  # fmt: skip
def test_wrong_tables(changed, error, text):
    with pytest.raises(error, match=re.escape(text)):
        check_tables(database(**changed))


def test_seeds_need_keys():
    with pytest.raises(
        ValueError, match=re.escape("task: id: expected keys of people, from 0 to 2, found nan in row 1")
    ):
        check_keys(pd.Series([0, None]), "task: id", "people", 3, missing=False)


def test_rows_of_a_split_are_not_earlier_than_its_time():
    """They may be at it."""
    task = SimpleNamespace(dataset=SimpleNamespace(val_timestamp=pd.Timestamp(60, unit="s")))
    assert loaders._moment(task, "val", torch.tensor([61, 60]), "task, val") == 60
    with pytest.raises(ValueError, match=r"^task, val: expected times from .*, found 59 seconds since 1970 in row 1$"):
        loaders._moment(task, "val", torch.tensor([60, 59]), "task, val")


@pytest.mark.parametrize("wrong", [3, -1])
def test_lists_have_keys_of_rows(wrong):
    rows = {"people": SimpleNamespace(num_nodes=3)}
    rowptr, col = loaders._lists(rows, pd.Series([[0, 2], [], [1]]), "task: ids", "people")
    assert (rowptr.tolist(), col.tolist()) == ([0, 2, 2, 3], [0, 2, 1])
    text = f"task: ids: expected keys of people, from 0 to 2, found {wrong} in row 2"
    for last in ([1, wrong], [wrong, 1], [wrong]):
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            loaders._lists(rows, pd.Series([[0, 2], [], last]), "task: ids", "people")
