"""Which changes of a Data are seen, by what is noted of its attributes."""

import weakref

import pytest
import torch
from helpers.data import loader_of, make_data, our_stores
from helpers.hetero import PAPER, make_hetero
from torch_geometric.data import Data, HeteroData

from torch_gnnscale.feature.attributes import DataVersions
from torch_gnnscale.sampler.minibatch import MiniBatch


@pytest.mark.parametrize(("make", "x_of"), [
    (make_data, lambda data: data.x), (make_hetero, lambda data: data[PAPER].x),
    (lambda: our_stores(make_data()), lambda stores: stores[0]._tensors[None, "x"]),
], ids=["data", "types", "stores"])  # fmt: skip
def test_what_attributes_there_are_is_noted_again_where_one_has_changed(make, x_of, monkeypatch):
    """Not for each batch."""
    given, count = make(), []
    loader = loader_of(given, input_nodes=PAPER if make is make_hetero else None, batch_size=8, prefetch=2)
    collator = loader._line.collator
    source = collator.source
    versions = source.versions
    with monkeypatch.context() as patched:
        patched.setattr(source, "versions", lambda: count.append(1) or versions())
        patched.setattr(source, "changed", lambda versions: [])
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        iterator.close()
    assert len(count) == 1
    batches = [MiniBatch(), MiniBatch()]
    noted = collator.begin(batches[0]).versions
    assert source.changed(noted) == []
    assert collator.begin(batches[1]).versions is noted
    x_of(given).add_(1)
    assert [name for _, name in source.changed(noted)] == ["x"]
    renewed = []
    with monkeypatch.context() as patched:
        patched.setattr(source, "renew", lambda data, batch, bounds, keys: renewed.append(keys))
        batches[0].data = Data()
        collator.deliver(batches[0])
    assert [[name for _, name in keys] for keys in renewed] == [["x"]]
    assert collator.begin(batches[1]).versions is not noted
    gone = weakref.ref(noted)
    del noted, batches
    assert gone() is None  # and so are values that were replaced meanwhile


def a_type_more(data):
    data["city"].x = torch.ones(3, 2)


def a_type_less(data):
    del data["author"]


def to_a_type_without_attributes(data):
    """The next one, so that names and values have the same order as before."""
    data["venue"].h = data["author"].h
    del data["author"].h


def another_name(data):
    data["author"].g = data["author"].h
    del data["author"].h


def another_value(data):
    data["author"].h = data["author"].h.clone()


def other_numbers(data):
    data["author"].h += 1


def learning(data):
    data["author"].h.requires_grad_()


@pytest.mark.parametrize("change", [
    a_type_more, a_type_less, to_a_type_without_attributes, another_name, another_value, other_numbers, learning,
])  # fmt: skip
def test_each_kind_of_change_is_seen(change):
    data = HeteroData({PAPER: {"x": torch.rand(9, 2)}, "author": {"h": torch.rand(4, 2)}, "venue": {}})
    data["author", "writes", PAPER].edge_index = torch.tensor([[0, 1], [2, 3]])
    versions = DataVersions(data, typed=True)
    assert versions.hold()
    change(data)
    assert not versions.hold()


@pytest.mark.parametrize("learns", [False, True])
def test_what_learns_has_another_version_without_gradients(learns):
    data = Data(x=torch.rand(4, 2, requires_grad=learns))
    with torch.no_grad():
        versions = DataVersions(data, typed=False)
        assert versions.hold()
    assert versions.learned == []
    assert versions.hold() != learns
