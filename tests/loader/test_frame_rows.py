"""Rows of torch_frame's TensorFrames reach batches, whatever their semantic types."""

import pytest
import torch
from torch_geometric.data import HeteroData

import torch_gnnscale
from torch_gnnscale.loader.data_rows import Ids, rows_at

torch_frame = pytest.importorskip("torch_frame")  # PyG has imported it already, where it is installed


def nested(rows, columns, dtype=torch.int64):
    """Cell (i, j) has (2 i + j) mod 4 entries."""
    sizes = (2 * torch.arange(rows)[:, None] + torch.arange(columns)).view(-1) % 4
    offset = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    values = torch.arange(int(offset[-1])).to(dtype)
    return torch_frame.data.MultiNestedTensor(rows, columns, values, offset)


def make_frame(rows=40, target=True):
    kinds = torch_frame.stype
    features = {
        kinds.numerical: torch.randn(rows, 3),
        kinds.categorical: torch.randint(5, (rows, 2)),
        kinds.timestamp: torch.randint(9, (rows, 1, 7)),
        kinds.multicategorical: nested(rows, 2),
        kinds.sequence_numerical: nested(rows, 1, torch.float32),
        kinds.embedding: torch_frame.data.MultiEmbeddingTensor(rows, 2, torch.randn(rows, 5), torch.tensor([0, 2, 5])),
        kinds.text_tokenized: {"input_ids": nested(rows, 1), "attention_mask": nested(rows, 1)},
    }
    widths = {kinds.numerical: 3, kinds.categorical: 2, kinds.multicategorical: 2, kinds.embedding: 2}
    names = {kind: [f"{kind.value}_{i}" for i in range(widths.get(kind, 1))] for kind in features}
    return torch_frame.TensorFrame(features, names, torch.randn(rows) if target else None)


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


def test_no_rows():
    found = rows_at(make_frame(), Ids(torch.empty(0, dtype=torch.int64)), 0, 40)
    found.validate()
    assert found.num_rows == 0
    assert found.feat_dict[torch_frame.embedding].values.shape == (0, 5)


def test_a_row_out_of_range():
    with pytest.raises(IndexError):
        rows_at(make_frame(), Ids(torch.tensor([40])), 0)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_have_the_frames_of_their_nodes(prefetch):
    data = HeteroData()
    data["a"].tf, data["b"].tf = make_frame(40), make_frame(30, target=False)
    data["a", "to", "b"].edge_index = torch.stack([torch.randint(40, (200,)), torch.randint(30, (200,))])
    data["b", "to", "a"].edge_index = torch.stack([torch.randint(30, (200,)), torch.randint(40, (200,))])
    loader = torch_gnnscale.NeighborLoader(data, [3, 2], "a", batch_size=8, seed=0, prefetch=prefetch)
    for batch in loader:
        for of in ("a", "b"):
            assert_equal(batch[of].tf, data[of].tf[batch[of].n_id])
