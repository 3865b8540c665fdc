"""Seeds and links lie with their parts, in the user's ids and order."""

import re

import pytest
import torch
from helpers.data import make_data, our_stores
from helpers.hetero import AUTHOR, CITES, PAPER, VENUE, WRITES, make_hetero
from torch_geometric.data import Data

from torch_gnnscale import CSC, FeatureStore
from torch_gnnscale.partition import open_parts, write
from torch_gnnscale.partition.input_graph import InputGraph, InputRows, _given_links, input_graph_of
from torch_gnnscale.partition.part_writer import PartWriter, order_by_part, positions
from torch_gnnscale.topology.reorder import Order, reorder_relation


def masked(name: str, data: Data, share: float) -> Data:
    data[name] = torch.rand(data.num_nodes, generator=torch.Generator().manual_seed(3)) < share
    return data


def check_seeds(parts, node_type, split: str, expected: torch.Tensor) -> None:
    """The seeds of all parts are those expected; those of a part are the ones among them that lie in it, in order."""
    assert (node_type, split) in parts.splits
    assert torch.equal(parts.input_nodes(split, node_type), expected)
    part_of = parts.book.part_of(parts.stored_ids(node_type)[expected], node_type)
    for number in range(parts.book.num_parts):
        assert torch.equal(parts.part(number).seeds[node_type, split], expected[part_of == number])


@pytest.mark.slow
@pytest.mark.parametrize("stores", [False, True])
def test_masks_are_splits_and_rows(tmp_path, stores):
    data = masked("test_mask", masked("train_mask", make_data(), 0.3), 0.1)
    write(our_stores(data) if stores else data, tmp_path / "parts", 3, method="random")
    parts = open_parts(tmp_path / "parts")
    assert set(parts.splits) == {(None, "train"), (None, "test")}
    check_seeds(parts, None, "train", data.train_mask.nonzero().view(-1))
    check_seeds(parts, None, "test", data.test_mask.nonzero().view(-1))
    assert torch.equal(parts.input_nodes(None), torch.arange(200))
    part = parts.part(1)
    assert torch.equal(part.rows[None, "train_mask"], data.train_mask[part.user_ids[None]])
    assert torch.equal(part.rows[None, "y"], data.y[part.user_ids[None]])


def test_masks_of_edges_are_no_splits(tmp_path):
    data = make_data()
    data.train_mask = torch.arange(data.num_edges) % 2 == 0
    assert data.is_edge_attr("train_mask")
    write(data, tmp_path / "parts", 2, method="random")
    parts = open_parts(tmp_path / "parts")
    assert parts.splits == []
    assert ((None, None), "train_mask") in parts.part(0).rows


@pytest.mark.slow
def test_given_splits(tmp_path):
    """Ids keep their order and repetitions; a given split replaces the mask of its name."""
    data = masked("train_mask", make_data(), 0.5)
    ids, mask = torch.tensor([7, 3, 199, 7, 0], dtype=torch.int32), torch.zeros(200, dtype=torch.bool)
    mask[50:60] = True
    write(data, tmp_path / "parts", 4, method="random", splits={"train": ids, "mine": mask, "none": []})
    parts = open_parts(tmp_path / "parts")
    assert parts.splits == [(None, "train"), (None, "mine"), (None, "none")]
    check_seeds(parts, None, "train", ids.long())
    check_seeds(parts, None, "mine", torch.arange(50, 60))
    check_seeds(parts, None, "none", torch.empty(0, dtype=torch.int64))


@pytest.mark.slow
def test_splits_of_types(tmp_path):
    """Two types may have the same split; the order of splits is no order of types."""
    data = make_hetero()
    for name in ("train_mask", "val_mask"):
        data[PAPER][name] = torch.rand(40, generator=torch.Generator().manual_seed(4)) < 0.4
    data[AUTHOR].train_mask = torch.rand(25, generator=torch.Generator().manual_seed(5)) < 0.4
    splits = {"a": (AUTHOR, torch.arange(5)), "v": (VENUE, torch.arange(3)), "b": [AUTHOR, [2, 1]]}
    write(data, tmp_path / "parts", 3, method="random", splits=splits)
    parts = open_parts(tmp_path / "parts")
    assert len(parts.splits) == 6
    check_seeds(parts, AUTHOR, "a", torch.arange(5))
    check_seeds(parts, VENUE, "v", torch.arange(3))
    check_seeds(parts, AUTHOR, "b", torch.tensor([2, 1]))
    assert torch.equal(parts.input_nodes(None, AUTHOR), torch.arange(25))
    for node_type, split in ((PAPER, "train"), (PAPER, "val"), (AUTHOR, "train")):
        check_seeds(parts, node_type, split, data[node_type][f"{split}_mask"].nonzero().view(-1))
    with pytest.raises(ValueError, match=r"^split \('venue', 'train'\): expected one of \[\('author', 'a'\), "):
        parts.input_nodes("train", VENUE)


@pytest.mark.slow
def test_links_lie_with_their_destinations(tmp_path):
    data = make_hetero()
    links = {"train": (WRITES, data[WRITES].edge_index), "test": (CITES, torch.tensor([[1, 2, 3, 1], [39, 0, 5, 39]]))}
    write(data, tmp_path / "parts", 3, method="random", links=links)
    parts = open_parts(tmp_path / "parts")
    assert parts.link_splits == [(WRITES, "train"), (CITES, "test")]
    for split, (edge_type, ends) in links.items():
        assert torch.equal(parts.links(split, edge_type), ends)
        part_of = parts.book.part_of(parts.stored_ids(PAPER)[ends[1]], PAPER)
        for number in range(3):
            assert torch.equal(parts.part(number).links[edge_type, split], ends[:, part_of == number])


def test_links_of_a_graph_without_types(tmp_path):
    data = make_data()
    write(data, tmp_path / "parts", 2, method="random", links={"val": data.edge_index[:, :9].tolist()})
    parts = open_parts(tmp_path / "parts")
    assert torch.equal(parts.links("val"), data.edge_index[:, :9])
    assert sum(parts.part(i).links[None, "val"].size(1) for i in range(2)) == 9


def test_a_mask_of_several_data_splits_is_refused(tmp_path):
    data = make_data()
    data.train_mask = torch.zeros(200, 10, dtype=torch.bool)
    message = "train_mask: expected a mask of shape (200,), found bool (200, 10); pass splits={'train': ...}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        write(data, tmp_path / "parts", 2, method="random")
    write(data, tmp_path / "parts", 2, method="random", splits={"train": data.train_mask[:, 3]})


def test_training_nodes_are_those_given_or_destinations_of_training_links():
    links = {(CITES, "train"): torch.tensor([[1, 2], [7, 7]]), (CITES, "val"): torch.tensor([[1], [3]])}
    assert {t: ids.tolist() for t, ids in InputGraph({}, {}, [], {}, links).train().items()} == {PAPER: [7]}
    both = InputGraph({}, {}, [], {(PAPER, "train"): torch.tensor([4]), (PAPER, "val"): torch.tensor([5])}, links)
    assert {t: ids.tolist() for t, ids in both.train().items()} == {PAPER: [4]}


def test_ends_of_links_are_nodes_of_their_types():
    wide = {WRITES: CSC.from_edge_index(torch.tensor([[6], [1]]), (7, 2))}
    ends = torch.tensor([[6, 0], [1, 1]])
    assert torch.equal(_given_links({"train": (WRITES, ends)}, wide)[0][WRITES, "train"], ends)
    with pytest.raises(IndexError, match=r"^links\['train'\]: expected nodes in \[0, 2\), found 6$"):
        _given_links({"train": (WRITES, ends.flip(0).flip(1))}, wide)


def test_rows_beyond_the_nodes_are_left_out():
    store = FeatureStore()
    store.put_tensor(torch.arange(5), group_name=None, attr_name="y", index=None)
    (attr,) = store.all_attrs()
    assert InputRows.of(store, attr, 3).meta.num_rows == 3
    with pytest.raises(ValueError, match=r"^data: expected 6 rows of \(None, 'y'\), found 5$"):
        InputRows.of(store, attr, 6)


def test_stores_are_asked_by_int64():
    class Asked(FeatureStore):
        def _get_tensor(self, attr):
            dtypes.append(attr.index.dtype)
            return super()._get_tensor(attr)

    dtypes, store = [], Asked()
    store.put_tensor(torch.arange(5), group_name=None, attr_name="y", index=None)
    (attr,) = store.all_attrs()
    rows = InputRows.of(store, attr, 5)
    assert rows.read(torch.tensor([3, 1], dtype=torch.int32)).tolist() == [3, 1]
    assert [piece.tolist() for piece in rows.pieces([torch.arange(3), torch.tensor([4])], 32)] == [[0, 1], [2], [4]]
    assert set(dtypes) == {torch.int64}


def test_edges_into_no_nodes_have_no_positions():
    none = CSC.from_edge_index(torch.empty(2, 0, dtype=torch.int64), (5, 0))
    assert list(positions(none, torch.empty(0, dtype=torch.int32), 4)) == []


@pytest.mark.parametrize("memory", [16 * 150, 16 * 599, 16 * 600, 16 * 601])
def test_positions_of_edges_are_found_a_range_of_ids_at_a_time(tmp_path, memory):
    """Memory for 150 to 601 of 600 entries: ranges that end with the last id, before it, and after it."""
    data = make_data(50, 600)
    csc, owner = CSC.from_data(data), torch.arange(50, dtype=torch.int32) * 7 % 3
    writer = PartWriter(tmp_path, input_graph_of(data), memory)
    writer.order = {None: order_by_part(owner, 3, 64)[0]}
    order = Order.from_permutation(torch.sort(owner, stable=True).indices, 50)
    expected = torch.empty(600, dtype=torch.int64)
    expected[reorder_relation(csc, order, order).edge_id.long()] = torch.arange(600)
    assert torch.equal(torch.cat([piece.clone() for piece in writer._positions(None, csc)]), expected)
