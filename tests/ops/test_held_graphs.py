"""Graphs that are handed to the operator once and held for many calls."""

import copy
import pickle

import pytest
import torch
from helpers.graphs import assert_same, random_graph, random_ids

from torch_gnnscale import ops


def test_a_held_graph_follows_its_tensors():
    graph, seeds = random_graph(100, 6, seed=1), [random_ids(100, 9)]
    relations = graph.relations()
    prepared = ops.PreparedNeighbors(relations, [3, 2])
    expected = prepared.sample(seeds, 5)
    for tensor in (*relations.colptr, *relations.row):
        before = tensor.data_ptr()
        tensor.share_memory_()  # as torch does when it sends a tensor to a process
        assert tensor.data_ptr() != before
    assert_same(prepared.sample(seeds, 5), expected)


def test_a_prepared_call_that_is_pickled_holds_its_graph_anew():
    graph, seeds = random_graph(100, 6, seed=1), [random_ids(100, 9)]
    prepared = ops.PreparedNeighbors(graph.relations(), [3, 2])
    expected = prepared.sample(seeds, 5)
    for again in (pickle.loads(pickle.dumps(prepared)), copy.deepcopy(prepared)):
        assert_same(again.sample(seeds, 5), expected)
        assert not torch.equal(again._held, prepared._held)


def test_the_number_of_a_held_graph():
    graph, seeds = random_graph(100, 6, seed=1), [random_ids(100, 9)]
    held = torch.ops.gnnscale.hold_relations(*graph.relations()[:-1])
    number, fanouts = held.clone(), torch.tensor([[3]])
    assert len(torch.ops.gnnscale.sample_neighbors(number, fanouts, seeds, [], [5], 0, 1)) == 4
    del held
    for other in (number, number.float(), torch.zeros(2, dtype=torch.int64)):
        with pytest.raises(RuntimeError, match="graph: expected what hold_relations returned"):
            torch.ops.gnnscale.sample_neighbors(other, fanouts, seeds, [], [5], 0, 1)
