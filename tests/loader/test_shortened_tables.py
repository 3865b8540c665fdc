"""Tables that become shorter while a loader reads them are named, with what was expected and what was found."""

import warnings

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


@pytest.mark.parametrize("options", MODES, ids=str)
def test_a_table_that_has_no_longer_a_row_for_each_node_is_named(options):
    """Once, at the next batch, whether or not its rows were read before."""
    data = make_data()
    data.num_nodes = 200  # else x says how many nodes there are
    iterator = iter(loader_of(data, **options))
    next(iterator)
    shorter(data)
    text = r"^data\.x has 50 rows beside 200 nodes and 1500 edges: each batch has all of it$"
    with pytest.warns(UserWarning, match=text) as warned:
        assert len(next(iterator).x) == 50
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert all(len(batch.x) == 50 for batch in iterator)


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
