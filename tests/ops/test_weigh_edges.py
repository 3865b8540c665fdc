"""The weights of drawn edges by their formulas, edge by edge."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import layerwise as twin

from torch_gnnscale import ops
from torch_gnnscale.ops.layer_drawing import AGGREGATIONS, WEIGHTS

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
    degree = torch.tensor([len(sources) for sources in STORED])
    row, of_row, correction = map(torch.tensor, zip(*DRAWN, strict=True))
    of_gcn = {}
    if aggregation == "gcn":
        sources = [STORED[at][which] for at, which in zip(row, of_row, strict=True)]
        of_gcn["source_degree"] = torch.tensor([DEGREE_OF[source] for source in sources])
        of_gcn["stored_source_degree"] = torch.tensor([DEGREE_OF[source] for sources in STORED for source in sources])
    drawing = ops.LayerDrawing(aggregation=aggregation, weights=weights)
    found = ops.weigh_edges(drawing, degree, row, correction.double(), **of_gcn)
    assert torch.equal(found, torch.tensor(expected, dtype=torch.float64).float())


DRAWINGS = [ops.LayerDrawing(aggregation=one, weights=other) for one in AGGREGATIONS for other in WEIGHTS]
ROWS = st.lists(st.lists(st.tuples(st.integers(0, 1 << 40), st.booleans(), st.integers(1, 1 << 62)), max_size=6))
"""Of each stored edge of each row: its source's degree, whether it is drawn, and its correction times 2^20."""


@pytest.mark.slow
@given(st.sampled_from(DRAWINGS), ROWS)
def test_weights_equal_the_twins(drawing, rows):
    expected, drawn = [], []
    for number, edges in enumerate(rows):
        corrections = [
            (at, twin.Correction(above, 1 << 20)) for at, (_, is_drawn, above) in enumerate(edges) if is_drawn
        ]
        expected += twin.edge_weights(drawing, [degree for degree, _, _ in edges], corrections)
        drawn += [(number, edges[at][0], correction.rounded) for at, correction in corrections]
    row, source, correction = (torch.tensor([entry[k] for entry in drawn], dtype=dtype)
                               for k, dtype in enumerate((torch.int64, torch.int64, torch.float64)))  # fmt: skip
    stored = torch.tensor([degree for edges in rows for degree, _, _ in edges], dtype=torch.int64)
    degree = torch.tensor([len(edges) for edges in rows], dtype=torch.int64)
    found = ops.weigh_edges(drawing, degree, row, correction, source, stored)
    assert torch.equal(found, torch.tensor(expected, dtype=torch.float64).float())


GCN = ops.LayerDrawing(aggregation="gcn")


def test_rows_without_weight_have_none():
    """Such as those all of whose sources have no edges, by ``gcn``."""
    row, drawn, stored = torch.zeros(60).long(), torch.zeros(60).long(), torch.ones(90).long()
    found = ops.weigh_edges(GCN, torch.tensor([90]), row, torch.ones(60).double(), drawn, stored)
    assert not found.any()


def test_no_edges():
    none = torch.empty(0, dtype=torch.int64)
    for degree in (none, torch.tensor([2, 0])):
        of_gcn = none, torch.ones(int(degree.sum())).long()
        assert ops.weigh_edges(GCN, degree, none, none.double(), *of_gcn).shape == (0,)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"row": torch.tensor([1, 0])}, ValueError, "row: expected ascending numbers in [0, 2), found others"),
        ({"row": torch.tensor([0, 2])}, ValueError, "row: expected ascending numbers in [0, 2), found others"),
        ({"row": torch.tensor([-1, 0])}, ValueError, "row: expected ascending numbers in [0, 2), found others"),
        ({"degree": torch.tensor([2, -1])}, ValueError, "degree: expected numbers of at least 0, found -1"),
        ({"degree": torch.ones(2)}, TypeError, "degree: expected an int64 vector, found torch.float32"),
        ({"row": [0, 1]}, TypeError, "row: expected a tensor, found list"),
        ({"correction": torch.ones(2)}, TypeError, "correction: expected a float64 vector, found torch.float32"),
        ({"correction": torch.ones(3).double()}, ValueError, "correction: expected shape (2,), found (3,)"),
        ({"degree": torch.tensor([3, 0])}, ValueError,
         "degree: expected at least 1 for each row that has drawn edges, found 0"),
        ({"source_degree": torch.tensor([1, -2])}, ValueError,
         "source_degree: expected numbers of at least 0, found -2"),
        ({"stored_source_degree": torch.tensor([1, 1, -3])}, ValueError,
         "stored_source_degree: expected numbers of at least 0, found -3"),
        ({"drawing": GCN._replace(aggregation="gnc")}, ValueError,
         "aggregation: expected one of ('mean', 'sum', 'gcn'), found 'gnc'"),
        ({"drawing": GCN._replace(weights="biased")}, ValueError,
         "weights: expected one of ('self_normalized', 'unbiased'), found 'biased'"),
        ({"source_degree": None}, TypeError, "source_degree: expected an int64 vector, found NoneType"),
        ({"source_degree": torch.tensor([1])}, ValueError, "source_degree: expected shape (2,), found (1,)"),
        ({"stored_source_degree": torch.tensor([1])}, ValueError,
         "stored_source_degree: expected shape (3,), found (1,)"),
    ],
)  # fmt: skip
def test_edges_that_cannot_be_weighed(change, error, message):
    right = {"drawing": GCN, "degree": torch.tensor([2, 1]), "row": torch.tensor([0, 1]),
             "correction": torch.ones(2).double(), "source_degree": torch.tensor([3, 4]),
             "stored_source_degree": torch.tensor([3, 1, 4])}  # fmt: skip
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        ops.weigh_edges(**{**right, **change})
