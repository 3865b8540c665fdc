"""Splits of nodes and edges: shares, order in time, shares of classes."""

import pytest
import torch
from helpers.warn import recorded
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import FeatureStore, GraphStore, splits

SHARES = st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.3]), st.sampled_from([0.0, 0.1, 0.25, 0.6]))


def sizes(masks):
    total = sum(mask.long() for mask in masks.values())
    assert int(total.max() if len(total) else 0) <= 1, "a split has what no other has"
    return [int(masks[subset].sum()) for subset in splits.SUBSETS]


@given(st.lists(st.integers(-4, 9), max_size=40), SHARES, st.booleans())
def test_by_time(times, shares, as_floats):
    time = torch.tensor(times, dtype=torch.float32 if as_floats else torch.int64)
    val, test = shares
    with recorded() as caught:
        masks = splits.by_time(Data(time=time), None, val=val, test=test)
    ranked, n = sorted(times), len(times)
    assert [str(warning.message) for warning in caught] == [
        f"time: nothing is left for {subset}, because equal times are in one split"
        for subset, asked in (("train", n), ("val", int(n * val))) if asked and not masks[subset].any()
    ]  # fmt: skip
    at_val, at_test = n - int(n * test) - int(n * val), n - int(n * test)
    expected = ["test" if at_test < n and t >= ranked[at_test] else "val" if at_val < n and t >= ranked[at_val] else
                "train" for t in times]  # fmt: skip
    assert [next(s for s in splits.SUBSETS if masks[s][at]) for at in range(n)] == expected
    assert sum(sizes(masks)) == n


def test_by_time_of_types_and_of_stores():
    data = HeteroData()
    data["user", "buys", "item"].t = torch.tensor([5, 1, 3, 4])
    data["user"].x = torch.ones(1, 1)
    found = splits.by_time(data, ("user", "buys", "item"), "t", val=0.25, test=0.25)
    assert {subset: mask.nonzero().view(-1).tolist() for subset, mask in found.items()} == {
        "train": [1, 2], "val": [3], "test": [0]
    }  # fmt: skip
    stores = FeatureStore(), GraphStore()
    stores[0].put_tensor(torch.tensor([5, 1, 3, 4]), group_name=("user", "buys", "item"), attr_name="t", index=None)
    again = splits.by_time(stores, ("user", "buys", "item"), "t", val=0.25, test=0.25)
    assert all(torch.equal(again[subset], found[subset]) for subset in splits.SUBSETS)


@given(st.lists(st.integers(-1, 3), max_size=60), SHARES, st.integers(0, 3))
def test_of_each_class_the_same_shares(classes, shares, seed):
    y, (val, test) = torch.tensor(classes, dtype=torch.int64), shares
    masks = splits.stratified(y, val, test, seed)
    n = sum(c >= 0 for c in classes)
    assert sizes(masks) == [n - int(n * val) - int(n * test), int(n * val), int(n * test)]
    assert not any(bool(mask[y < 0].any()) for mask in masks.values())
    for c in set(classes) - {-1}:
        for subset, count in (("val", int(n * val)), ("test", int(n * test))):
            assert abs(int(masks[subset][y == c].sum()) - count * classes.count(c) / n) < 2


def test_a_seed_draws_its_split():
    first, same, other = (splits.random(1000, 0.2, 0.1, seed) for seed in (3, 3, 4))
    assert sizes(first) == [700, 200, 100]
    assert torch.equal(first["val"], same["val"])
    assert 20 < int((first["val"] & other["val"]).sum()) < 80  # 40 by chance


def test_a_tenth_each_is_validated_and_tested_by_default():
    assert sizes(splits.random(1000)) == [800, 100, 100]
    of_default, given = splits.stratified(CLASSES, seed=3), splits.stratified(CLASSES, 0.1, 0.1, seed=3)
    assert all(torch.equal(of_default[subset], given[subset]) for subset in given)


EDGE = ("a", "b", "c")
CLASSES = torch.arange(200) % 3


@pytest.mark.parametrize(
    ("error", "said", "call"),
    [
        (ValueError, "val: expected a share of 0 to 1, found -0.1", lambda: splits.random(5, -0.1)),
        (TypeError, "val: expected a number, found str",
         lambda: splits.by_time(Data(time=torch.ones(2)), None, val="a")),
        (TypeError, "test: expected a number, found NoneType", lambda: splits.random(5, test=None)),
        (ValueError, "val, test: expected shares below 1 together, found 1", lambda: splits.random(5, 0.5, 0.5)),
        (ValueError, "y: expected shape [N], found [2, 1]", lambda: splits.stratified(torch.ones(2, 1).long())),
        (TypeError, "y: expected integers, found float32", lambda: splits.stratified(torch.ones(2))),
        (ValueError, "at: expected an attribute with times, found none", lambda: splits.by_time(Data(), None, "at")),
        (ValueError, f"{EDGE}.time: expected an attribute with times, found none",
         lambda: splits.by_time((FeatureStore(), GraphStore()), EDGE)),
        (ValueError, "time: expected a time everywhere, found NaN at 1",
         lambda: splits.by_time(Data(time=torch.tensor([0.0, float("nan")])), None)),
        (ValueError, "time: expected shape [n], found [1, 2]",
         lambda: splits.by_time(Data(time=torch.ones(1, 2)), None)),
    ],
)  # fmt: skip
def test_what_cannot_be_split(error, said, call):
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value) == said
