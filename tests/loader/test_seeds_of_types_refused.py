"""Seeds of several node types that loaders refuse."""

import pytest
import torch
from helpers.hetero import AUTHOR, PAPER, VENUE, make_hetero
from helpers.typed_seeds import AUTHORS, PAPERS, SEEDS, TIMES, VENUES, loader_of
from torch_geometric.sampler import BaseSampler

from torch_gnnscale import FeatureStore, GraphStore, NeighborLoader
from torch_gnnscale.sampler import KeyedSampler


class Foreign(BaseSampler):
    sample_from_nodes = sample_from_edges = None


class Plain(KeyedSampler):
    """Takes seeds of one type."""


@pytest.mark.parametrize(
    ("seeds", "options", "error", "text"),
    [
        ({}, {}, ValueError, "input_nodes: expected seeds of at least one node type, found an empty dictionary"),
        ({"book": None, PAPER: None}, {}, ValueError,
         "input_nodes: expected a node type of ['paper', 'author', 'venue'], found 'book'"),
        ({PAPER: [0], AUTHOR: [0, 25]}, {}, IndexError,
         "input_nodes['author'][1] = 25 is out of range: expected nodes in [0, 25)"),
        ({PAPER: torch.ones(39).bool(), AUTHOR: [0]}, {}, IndexError,
         "input_nodes['paper']: expected a mask of 40 nodes, found one of 39"),
        ({PAPER: [0], AUTHOR: [0.5]}, {}, TypeError, "input_nodes['author']: expected integers, found torch.float32"),
        ({PAPER: torch.ones(41).bool(), AUTHOR: [0]}, {}, IndexError,
         "input_nodes['paper'][40] is set: expected a mask of 40 nodes, found one of 41"),
        (SEEDS, {"batch_size": {PAPER: 3, AUTHOR: 1}}, ValueError,
         "batch_size: expected a number for each of ['paper', 'author', 'venue'], found none for ['venue']"),
        (SEEDS, {"batch_size": {PAPER: 3, AUTHOR: 1, VENUE: 1, "book": 1}}, ValueError,
         "batch_size: expected types of ['paper', 'author', 'venue'], found ['book']"),
        (SEEDS, {"batch_size": {PAPER: 3, AUTHOR: 0, VENUE: 1}}, ValueError,
         "batch_size['author']: expected 1 <= batch_size['author'] <= 4611686018427387904, found 0"),
        ((PAPER, None), {"batch_size": {PAPER: 3}}, TypeError,
         "batch_size: expected a number, because input_nodes is no dictionary, found a dict"),
        (SEEDS, {"batch_size": {PAPER: 3, AUTHOR: 1, VENUE: 1}, "shuffle": False, "sampler": [1, 2]}, ValueError,
         "batch_size={'paper': 3, 'author': 1, 'venue': 1}: expected neither sampler nor batch_sampler beside it, "
         "found one"),
        (SEEDS, {"time_attr": "time", "input_time": TIMES[PAPER]}, TypeError,
         "input_time: expected a dictionary by type, as input_nodes, found Tensor"),
        (SEEDS, {"input_time": TIMES}, ValueError, "input_time: expected none without time_attr, found some"),
        (SEEDS, {"time_attr": "time", "input_time": {AUTHOR: torch.arange(8), VENUE: torch.arange(2)}}, ValueError,
         "input_time['author']: expected 9 times, found shape (8,)"),
        (SEEDS, {"time_attr": "time", "input_end_time": {AUTHOR: torch.arange(8), VENUE: torch.arange(2)}}, ValueError,
         "input_end_time['author']: expected 9 times, found shape (8,)"),
        (SEEDS, {"input_id": {PAPER: PAPERS}}, ValueError,
         "input_id: expected ids of the seeds of all types, found none of ['author', 'venue']"),
        (SEEDS, {"input_id": {PAPER: PAPERS, AUTHOR: PAPERS, VENUE: VENUES}}, ValueError,
         "input_id['author']: expected 9 ids, one per input, found shape (10,)"),
        (SEEDS, {"neighbor_sampler": Foreign()}, ValueError,
         "input_nodes: expected seeds of one type with a Foreign, which is no KeyedSampler that takes several "
         "(takes_types), found a dictionary"),
        (SEEDS, {"neighbor_sampler": Plain()}, ValueError,
         "input_nodes: expected seeds of one type with a Plain, which is no KeyedSampler that takes several "
         "(takes_types), found a dictionary"),
    ],
)  # fmt: skip
def test_bad_arguments(seeds, options, error, text):
    with pytest.raises(error) as found:
        loader_of(seeds=seeds, **options)
    assert str(found.value) == text


def test_a_graph_without_types_has_no_dictionary():
    data = make_hetero().to_homogeneous()
    stores = FeatureStore.from_data(data), GraphStore.from_data(data)
    for source in (data, stores):
        with pytest.raises(TypeError) as found:
            NeighborLoader(source, [2], {PAPER: PAPERS, AUTHOR: AUTHORS})
        assert str(found.value) == "input_nodes: expected nodes of a graph without node types, found a dictionary"


def test_a_dataloader_of_others_has_no_fixed_numbers():
    loader = loader_of(batch_size={PAPER: 2, AUTHOR: 3, VENUE: 1})
    other = torch.utils.data.DataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn
    )
    with (
        pytest.warns(UserWarning, match=r"^another DataLoader"),
        pytest.raises(ValueError, match=r"^batch_size={'paper': 2, 'author': 3, 'venue': 1}: e"),
    ):
        next(iter(other))
