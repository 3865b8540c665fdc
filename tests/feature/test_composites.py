"""Rows of torch_frame's TensorFrames reach batches, whatever their semantic types and wherever they are stored."""

import pickle
import re

import pytest
import torch
from helpers.cluster import cluster
from torch_geometric.data import HeteroData, TensorAttr

import torch_gnnscale
from torch_gnnscale import FeatureStore, GraphStore, partition
from torch_gnnscale.distributed import open_part
from torch_gnnscale.feature import TieredFeatureStore
from torch_gnnscale.feature.composite import read_composites
from torch_gnnscale.loader.data_rows import rows_at
from torch_gnnscale.loader.row_source import Ids

torch_frame = pytest.importorskip("torch_frame")  # PyG has imported it already, where it is installed
from helpers.frames import framed, make_frame  # noqa: E402


def assert_equal(found, expected):
    found.validate()
    assert found == expected
    assert found.num_rows == expected.num_rows
    assert found.col_names_dict == expected.col_names_dict


@pytest.mark.parametrize("ids", [[3, 0, 39, 3, 17], [5], list(range(40))])
@pytest.mark.parametrize("target", [True, False])
def test_rows_are_those_of_torch_frame(ids, target):
    frame, ids = make_frame(target=target), torch.tensor(ids)
    assert_equal(rows_at(frame, Ids(ids), 0, 40), frame[ids])
    assert frame.num_rows == 40


@pytest.mark.parametrize("change", ["strided", "learned"])
def test_nested_values_that_one_call_does_not_gather(change):
    frame, ids = make_frame(target=False), torch.tensor([3, 0, 39, 3, 17])
    numbers = frame.feat_dict[torch_frame.stype.sequence_numerical]
    expected = frame[ids].feat_dict[torch_frame.stype.sequence_numerical]
    if change == "strided":
        numbers.values = numbers.values.repeat_interleave(2)[::2]
    else:
        numbers.values.requires_grad_()
    found = rows_at(frame, Ids(ids), 0, 40).feat_dict[torch_frame.stype.sequence_numerical]
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.offset, expected.offset)
    assert found.values.requires_grad == (change == "learned")


def test_no_rows():
    found = rows_at(make_frame(), Ids(torch.empty(0, dtype=torch.int64)), 0, 40)
    found.validate()
    assert found.num_rows == 0
    assert found.feat_dict[torch_frame.embedding].values.shape == (0, 5)


def test_a_row_out_of_range():
    with pytest.raises(IndexError):
        rows_at(make_frame(), Ids(torch.tensor([40])), 0)


def check_batches(data, loader):
    count = 0
    for batch in loader:
        for of in data.node_types:
            assert_equal(batch[of].tf, data[of].tf[batch[of].n_id])
            assert [name for name in batch[of] if name.startswith("tf")] == ["tf"]
        assert torch.equal(batch["b"].x, data["b"].x[batch["b"].n_id])
        count += 1
    assert count == len(loader)


def loader_of(data, **options):
    return torch_gnnscale.NeighborLoader(data, [3, 2], **{"input_nodes": "a", "batch_size": 8, "seed": 0, **options})


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_have_the_frames_of_their_nodes(prefetch):
    data = framed()
    check_batches(data, loader_of(data, prefetch=prefetch))


SCORES = {"a": torch.arange(40.0), "b": torch.arange(30.0).flip(0)}


def stored(how, data, folder):
    """A FeatureStore of the data, and the order of the graph beside it."""
    store = FeatureStore.from_data(data)
    if how in ("mapped", "tiers of files"):
        store.save(folder / "rows")
    if how == "mapped":
        return FeatureStore.open(folder / "rows")
    if how == "pickled":
        return pickle.loads(pickle.dumps(store))
    if how == "tiers of files":
        return TieredFeatureStore.open(folder / "rows", {**SCORES}, host=6000, names=["tf", "x"])
    if how.startswith("tiers"):
        return TieredFeatureStore.from_data(
            data, host=6000, disk=folder, hotness={**SCORES}, names=["tf", "x"], renumbered="renumbered" in how
        )
    return store


@pytest.mark.parametrize(
    "how", ["memory", "pickled", "mapped", "tiers", "renumbered tiers", "tiers of files"]
)  # fmt: skip
def test_stores_have_the_frames_of_their_nodes(how, tmp_path):
    data = framed()
    store = stored(how, data, tmp_path)
    if how.startswith("tiers"):
        assert {"host", "disk"} <= {tier.name for tier in store.plan["a"].tiers}
        with pickle.loads(pickle.dumps(store)) as again:
            assert_equal(again.get_tensor("b", "tf", torch.tensor([7, 3])), data["b"].tf[torch.tensor([7, 3])])
    for options in ({"prefetch": 0}, {"prefetch": 2, "shuffle": True}):
        check_batches(data, loader_of((store, GraphStore.from_data(data, order=store.order)), **options))
    if store.order is None:
        assert_equal(store.get_tensor("a", "tf", None), data["a"].tf)
        assert_equal(store.get_tensor("a", "tf", 3), data["a"].tf[3])


def batches_of_part(path, topology):
    """This rank's batches: the frames by type, and the users' ids of their rows."""
    with open_part(path) as part:
        loader = loader_of((part.features, part.graph), input_nodes=part.input_nodes("train", "all"),
                           seed_order="global", shuffle=True)  # fmt: skip
        return [{of: (batch[of].n_id, batch[of].tf) for of in batch.node_types} for batch in loader]


@pytest.mark.slow
def test_parts_have_the_frames_of_their_nodes(tmp_path):
    data = framed()
    partition.write(data, tmp_path / "parts", parts=2, method="random")
    found = cluster(2).run(batches_of_part, str(tmp_path / "parts"), "replicated")
    with partition.open_parts(tmp_path / "parts") as parts:
        check_batches(data, loader_of(parts.stores()))
    assert min(map(len, found)) > 0
    for batches in found:
        for batch in batches:
            for of, (ids, frame) in batch.items():
                assert_equal(frame, data[of].tf[ids])


def test_a_frame_that_is_put_again_reaches_later_batches():
    data = framed()
    store = FeatureStore.from_data(data)
    batches = iter(loader_of((store, GraphStore.from_data(data)), prefetch=2))
    next(batches)
    other = make_frame(40)
    store.put_tensor(other, group_name="a", attr_name="tf", index=None)
    for batch in batches:
        assert_equal(batch["a"].tf, other[batch["a"].n_id])
        assert_equal(batch["b"].tf, data["b"].tf[batch["b"].n_id])
    store.remove_tensor("a", "tf", None)
    assert [attr.attr_name for attr in store.all_attrs() if attr.group_name == "a"] == ["train_mask"]


def test_a_tensor_that_is_put_in_place_of_a_frame():
    store, rows = FeatureStore.from_data(framed()), torch.arange(40.0).view(40, 1)
    store.put_tensor(rows, group_name="a", attr_name="tf", index=None)
    assert torch.equal(store.get_tensor("a", "tf", torch.tensor([3, 0])), rows[[3, 0]])
    assert {attr.attr_name for attr in store.all_attrs() if attr.group_name == "a"} == {"tf", "train_mask"}


def test_a_part_that_learns_is_read_late():
    data = framed()
    values = data["a"].tf.feat_dict[torch_frame.numerical].requires_grad_()
    for batch in loader_of((FeatureStore.from_data(data), GraphStore.from_data(data)), prefetch=2):
        batch["a"].tf.feat_dict[torch_frame.numerical].sum().backward()
        assert torch.equal(values.grad.sum(1).nonzero().view(-1), batch["a"].n_id.unique())
        break


def test_what_is_refused():
    store, name = FeatureStore(), {"group_name": "a", "attr_name": "tf"}
    with pytest.raises(ValueError, match=r"tf: expected a TensorFrame with columns, found one of 3 rows without any"):
        store.put_tensor(torch_frame.TensorFrame({}, {}, num_rows=3), **name, index=None)
    store.put_tensor(torch_frame.TensorFrame({torch_frame.numerical: torch.ones(3, 1)},
                                             {torch_frame.numerical: ["x"]}), **name, index=None)  # fmt: skip
    with pytest.raises(ValueError, match=re.escape("whole (index=None); rows of its tensors, ['tf.numerical'], can")):
        store.put_tensor(store.get_tensor(TensorAttr("a", "tf", None)), **name, index=torch.tensor([0, 1, 2]))
    with pytest.raises(IndexError):
        store.get_tensor(**name, index=torch.tensor([3]))
    with pytest.raises(ValueError, match=r"'tf.numerical'\): expected the TensorFrame 'tf' to be removed, of which"):
        store.remove_tensor("a", "tf.numerical", None)
    part = {"group_name": "a", "attr_name": "tf.numerical", "index": None}
    store.put_tensor(torch.zeros(3, 1), **part)
    for rows in (torch.zeros(2, 1), torch.zeros(3, 2)):
        text = f"('a', 'tf.numerical'): expected shape [3, 1], as it is a part of 'tf', found {list(rows.shape)}"
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            store.put_tensor(rows, **part)
    (rows,) = store.get_tensor(**name, index=None).feat_dict.values()
    assert torch.equal(rows, torch.zeros(3, 1))
    with pytest.raises(ValueError, match=re.escape("composite 'tf' without 'tf.sizes'")):
        read_composites([{"group": "a", "name": "tf", "form": {"kind": "nested", "columns": 1}}], [("a", "tf")])


@pytest.mark.parametrize("names", [["tf", "tf.categorical"], ["tf.categorical", "tf"]])
def test_an_attribute_that_is_named_like_a_part_of_a_frame(names):
    values = {"tf": make_frame(), "tf.categorical": torch.zeros(40, 2)}
    text = re.escape("'tf.categorical'): expected an attribute of another name than the tensors of a TensorFrame")
    data, store = HeteroData(), FeatureStore()
    for name in names:
        data["a"][name] = values[name]
    with pytest.raises(ValueError, match=text):
        FeatureStore.from_data(data)
    store.put_tensor(values["tf.categorical"], group_name="a", attr_name="tf.categorical", index=None)
    with pytest.raises(ValueError, match=text):
        store.put_tensor(values["tf"], group_name="a", attr_name="tf", index=None)
    assert [attr.attr_name for attr in store.all_attrs()] == ["tf.categorical"]
    assert not store.composites


def test_a_frame_with_columns_of_unequal_lengths():
    frame = make_frame()
    frame.feat_dict[torch_frame.categorical] = torch.zeros(39, 2)
    with pytest.raises(ValueError, match=r"^tf: expected as many rows of all of a TensorFrame's columns.*39, 40\]$"):
        FeatureStore().put_tensor(frame, group_name="a", attr_name="tf", index=None)


def test_long_rows_are_warned_of(monkeypatch, recwarn):
    def put(rows):
        """A column of which the last row has 1000 values and all others none."""
        offset = torch.tensor([0] * rows + [1000])
        cells = torch_frame.data.MultiNestedTensor(rows, 1, torch.zeros(1000), offset)
        kind = torch_frame.multicategorical
        FeatureStore().put_tensor(
            torch_frame.TensorFrame({kind: cells}, {kind: ["of"]}), group_name=None, attr_name="tf", index=None
        )

    put(9)  # a few kilobytes
    monkeypatch.setattr("torch_gnnscale.feature.composite._MUCH", 0)
    put(8)  # eight times what the values take
    assert not recwarn.list
    with pytest.warns(UserWarning, match=r"tf\.multicategorical: rows of fixed width .* longest row has 1000 values"):
        put(9)
