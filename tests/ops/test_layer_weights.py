"""The weights of drawn edges by their formulas, edge by edge."""

import pickle

import numpy as np
import pytest
import torch
from helpers.graphs import graph_of_degrees

from torch_gnnscale import ops
from torch_gnnscale.ops.layer_drawing import AGGREGATIONS, WEIGHTS
from torch_gnnscale.ops.layer_weights import layer_weights

STORED = [[2, 0, 3], [], [1], [3, 3, 2, 0]]
"""The sources of the edges into each row."""
DEGREE_OF = [4, 1, 2, 0]
"""Of sources."""
DRAWN = [(0, 1, 1.5), (0, 2, 1.0), (2, 0, 3.0), (3, 0, 2.0), (3, 1, 1.0), (3, 2, 0.25)]
"""(row, which of its edges, correction) of the drawn edges."""


def factor(aggregation: str, row: int, source: int) -> float:
    """a_e."""
    if aggregation == "gcn":
        product = len(STORED[row]) * DEGREE_OF[source]
        return 1 / product**0.5 if product else 0.0
    return 1.0 if aggregation == "sum" else 1 / len(STORED[row])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_weights_of_edges(aggregation, weights):
    expected = [factor(aggregation, row, STORED[row][at]) * correction for row, at, correction in DRAWN]
    if weights == "self_normalized":
        sums = [sum(value for value, drawn in zip(expected, DRAWN, strict=True) if drawn[0] == row) for row in range(4)]
        whole = [sum(factor(aggregation, row, source) for source in STORED[row]) for row in range(4)]
        expected = [
            value * whole[row] / sums[row] if sums[row] else 0.0
            for value, (row, _, _) in zip(expected, DRAWN, strict=True)
        ]
    degree = np.array([len(sources) for sources in STORED])
    row, of_row, correction = map(np.array, zip(*DRAWN, strict=True))
    of_gcn = {}
    if aggregation == "gcn":
        sources = [STORED[at][which] for at, which in zip(row, of_row, strict=True)]
        of_gcn["of_source"] = np.array(DEGREE_OF)[sources]
        of_gcn["of_stored"] = np.array([DEGREE_OF[source] for sources in STORED for source in sources])
    found = layer_weights(aggregation, weights, degree, row, correction, **of_gcn)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_rows_without_weight_have_none():
    """Such as those all of whose sources have no edges, by ``gcn``."""
    row, drawn, stored = np.zeros(60, np.int64), np.zeros(60, np.int64), np.ones(90, np.int64)
    found = layer_weights("gcn", "self_normalized", np.array([90]), row, np.ones(60), drawn, stored)
    assert not found.any()


def test_a_prepared_graph_is_pickled_after_it_was_used():
    graph = graph_of_degrees([3, 2, 4, 0, 5])
    prepared = ops.PreparedLayers(graph.relations(), [2, 2], ops.LayerDrawing("ladies"))
    expected = prepared.sample(torch.tensor([2, 4]), 5)
    again = pickle.loads(pickle.dumps(prepared))
    assert again._held is None
    assert torch.equal(again.sample(torch.tensor([2, 4]), 5).node[0], expected.node[0])
