"""Batches that are made of positions at once, by calling the loader."""

import numpy as np
import pytest
import torch
from helpers.data import check_batch, loader_of, plain


def test_ad_hoc_batches(data):
    loader = loader_of(data, input_nodes=torch.arange(100, 200))
    for index in ([3, 1], torch.tensor([3, 1]), np.array([3, 1])):
        batch = loader(index)
        check_batch(data, batch, torch.tensor([103, 101]), [3, 2])
        assert batch.input_id.tolist() == [3, 1]
        assert plain(loader(index)) == plain(batch)
    assert plain(loader([3, 1])) != plain(loader([1, 3]))
    next(iter(loader))
    assert plain(loader([3, 1])) == plain(batch)


@pytest.mark.parametrize(
    "index", [[1.5], [1j], 3, torch.ones(200).bool(), [[1, 2]], [[1], [2, 3]], None, "ab", [None]], ids=str
)
def test_an_ad_hoc_batch_of_what_is_no_position(data, index):
    with pytest.raises(TypeError, match=r"^index: expected a list of positions of the loader's inputs, found "):
        loader_of(data)(index)


def test_positions_out_of_range(data):
    text = "^index: expected positions of the loader's inputs: index 9 is out of bounds for dimension 0 with size 9$"
    for seeds in (torch.arange(9), torch.arange(9) + 100):
        with pytest.raises(IndexError, match=text):
            loader_of(data, input_nodes=seeds)([3, 9])
        with pytest.raises(IndexError, match=text):
            list(loader_of(data, input_nodes=seeds, sampler=[3, 9]))


@pytest.mark.parametrize("index", [[], (), np.empty(0), torch.empty(0, dtype=torch.int64)], ids=str)
def test_an_ad_hoc_batch_of_nothing(data, index):
    batch = loader_of(data)(index)
    assert (batch.batch_size, batch.num_nodes, batch.input_id.numel(), batch.edge_index.shape) == (0, 0, 0, (2, 0))
    assert batch.x.shape == (0, 3)
    assert (batch.num_sampled_nodes, batch.num_sampled_edges) == ([0, 0, 0], [0, 0])
