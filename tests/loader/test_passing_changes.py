"""What the loop changes and puts back while a batch is made ahead leaves no trace in the batch."""

import pytest
import torch
from helpers.data import loader_of, make_data, our_stores, plain
from helpers.hetero import PAPER, WRITES, make_hetero
from torch_geometric.data import Data


def whole_attribute(data):
    data.h = 1
    yield
    del data.h


def rows(data):
    data.h = data.x + 1
    yield
    del data.h


def renamed(data):
    data.h, data.y = data.y, None
    yield
    data.y, data.h = data.h, None


def other_values(data):
    x, data.x = data.x, data.x + 1
    yield
    data.x = x


def other_number_of_nodes(data):
    """Of which ``y`` has no row for each."""
    x, data.x = data.x, data.x[:100]
    yield
    data.x = x


def of_all_types(data):
    data.level = 3
    data[PAPER].h = data[PAPER].x + 1
    yield
    del data.level, data[PAPER].h


def a_type(data):
    data["city"].x = torch.ones(3, 2)
    data["city", "near", "city"].edge_index = torch.zeros(2, 1, dtype=torch.int64)
    yield
    del data["city"], data["city", "near", "city"]


def without_a_type(data):
    store = data._edge_store_dict.pop(WRITES)
    yield
    data._edge_store_dict[WRITES] = store


def other_values_of_edges(data):
    before = data.adj_t
    data.adj_t = torch.sparse_csr_tensor(before.crow_indices(), before.col_indices(), before.values() * 2, before.shape)
    yield
    data.adj_t = before


def of_the_store(features):
    features.put_tensor(torch.arange(200.0), group_name=None, attr_name="h", index=None)
    yield
    features.remove_tensor(group_name=None, attr_name="h", index=None)


def lost_of_the_store(features):
    y = features._tensors.pop((None, "y"))
    yield
    features._tensors[None, "y"] = y


def of_weights():
    data = make_data()
    values = torch.arange(1.0, data.edge_index.size(1) + 1)
    coo = torch.sparse_coo_tensor(data.edge_index.flip(0), values, (200, 200)).coalesce()
    return Data(x=data.x, adj_t=coo.to_sparse_csr())


CASES = [(make, change) for make, *changes in (
    (make_data, whole_attribute, rows, renamed, other_values, other_number_of_nodes),
    (make_hetero, of_all_types, a_type, without_a_type),
    (of_weights, other_values_of_edges),
    (lambda: our_stores(make_data()), of_the_store, lost_of_the_store),
) for change in changes]  # fmt: skip
IDS = [change.__name__ for _, change in CASES]


def loader_and_changed(make):
    """A loader, and what a change of its data is made to."""
    source = make()
    loader = loader_of(source, input_nodes=PAPER) if make is make_hetero else loader_of(source)
    return loader, source[0] if isinstance(source, tuple) else source


def batch_of(line, sample, collate=None):
    made = line.fetch(sample)
    return sorted(map(str, plain(line.deliver((collate or line.collate)(made)))))  # in any order


@pytest.mark.parametrize(("make", "change"), CASES, ids=IDS)
def test_while_rows_are_read(make, change, monkeypatch):
    loader, changed_data = loader_and_changed(make)
    line = loader._line
    expected, passing = batch_of(line, line.sample([1, 2])), change(changed_data)
    source = line.collator.source
    versions, start = source.versions, source.start

    def then_changed():
        monkeypatch.setattr(source, "versions", versions)
        found = versions()
        next(passing)
        return found

    def put_back_after(*arguments):
        monkeypatch.setattr(source, "start", start)
        try:
            rows = start(*arguments)()
        finally:
            next(passing, None)
        return lambda: rows

    monkeypatch.setattr(source, "versions", then_changed)
    monkeypatch.setattr(source, "start", put_back_after)
    assert batch_of(line, line.sample([1, 2])) == expected


@pytest.mark.parametrize(("make", "change"), CASES, ids=IDS)
def test_while_a_batch_is_made_of_them(make, change):
    loader, changed_data = loader_and_changed(make)
    line = loader._line
    expected, passing = batch_of(line, line.sample([1, 2])), change(changed_data)

    def collate(fetched):
        next(passing)
        made = line.collate(fetched)
        next(passing, None)
        return made

    assert batch_of(line, line.sample([1, 2]), collate) == expected


@pytest.mark.parametrize("layers", [False, True])
def test_a_type_that_is_removed_after_a_batch_was_made(layers):
    data = make_hetero()
    line = loader_of(data, input_nodes=PAPER, layers=layers)._line
    made = line.collate(line.fetch(line.sample([1, 2])))
    del data["venue"]
    batch = line.deliver(made)
    assert "n_id" in batch["venue"]
    assert "x" not in batch["venue"]
    assert torch.equal(batch[PAPER].x, data[PAPER].x[batch[PAPER].n_id])
