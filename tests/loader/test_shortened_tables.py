"""Tables that become shorter while a loader reads them are named, with what was expected and what was found."""

import pytest
from helpers.data import loader_of, make_data, our_stores
from helpers.modes import MODES


def shorter(data):
    data.x = data.x[:50]


def shorter_in_place(data):
    data.edge_attr.resize_(50, *data.edge_attr.shape[1:])


@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize(
    ("shorten", "text"),
    [
        (shorter, r"^data\.x: expected a row for each of 200 nodes, found 50 rows: index"),
        (shorter_in_place, r"^data\.edge_attr: expected a row for each of 1500 edges, found 50 rows: index"),
    ],
)
def test_a_table_that_is_shortened_is_named(options, shorten, text):
    data = make_data()
    iterator = iter(loader_of(data, **options))
    next(iterator)
    shorten(data)
    with pytest.raises(IndexError, match=text):
        list(iterator)


def test_a_stored_table_that_is_shortened_is_named():
    data = make_data()
    features, graph = our_stores(data)
    iterator = iter(loader_of((features, graph), prefetch=2))
    next(iterator)
    features.put_tensor(data.x[:50], group_name=None, attr_name="x", index=None)
    with pytest.raises(
        IndexError, match=r"^\(None, 'x'\): index\[\d+\] = \d+ is out of range: expected rows in \[0, 50"
    ):
        list(iterator)
