"""Arguments of aggregation that are refused."""

import pytest
import torch

from torch_gnnscale import ops

PTR, NODE, X = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), torch.ones(2, 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ops.aggregate(PTR.int(), NODE, X), TypeError, "ptr: expected a contiguous int64 vector, found torch"),
        (lambda: ops.aggregate([0, 1], NODE, X), TypeError, "ptr: expected a tensor, found list"),
        (lambda: ops.aggregate(PTR, NODE.float(), X), TypeError, "node: expected int32 or int64 ids, found torch.flo"),
        (lambda: ops.aggregate(PTR, NODE, X.int()), TypeError, "x: expected float32, float64, .* found torch.int32"),
        (lambda: ops.aggregate(PTR, NODE, X[0]), ValueError, r"x: expected a matrix, found shape \(4,\)"),
        (lambda: ops.aggregate(PTR, NODE, X, more=X[:, :1]), ValueError, "more: expected torch.float32 of width 4"),
        (lambda: ops.aggregate(PTR, NODE + 3, X, more=X), RuntimeError, "entry 1: expected a node below 4 .* found 4"),
        (lambda: ops.aggregate(PTR, NODE, X.to("meta")), ValueError, "ptr: expected it on meta, where x is, fo"),
        (lambda: ops.aggregate(PTR, NODE, X, more=X.to("meta")), ValueError, "more: expected it on cpu, where x is, f"),
        (lambda: ops.edge_dot(PTR, NODE, X, X.to("meta")), ValueError, "y: expected it on cpu, where x is, found"),
        (lambda: ops.aggregate(PTR, NODE, X, "median"), ValueError, "reduce: expected one of .* found 'median'"),
        (lambda: ops.aggregate(PTR, NODE, X, edge=NODE.int()), ValueError, r"edge: expected torch.int64 \[3\] like"),
        (lambda: ops.aggregate(PTR, NODE, X, num_edges=4), ValueError, "num_edges: expected 0 <= num_edges <= 3"),
        (lambda: ops.aggregate(PTR, NODE, X, "max", weight=X), ValueError, "weight: expected none with reduce='max'"),
        (lambda: ops.aggregate(PTR, NODE, X, weight=X.half()), ValueError, "weight: expected torch.float32"),
        (lambda: ops.edge_dot(PTR, NODE, X, X.half()), ValueError, "y: expected torch.float32 of width 4, found torch"),
        (lambda: ops.edge_dot(PTR, NODE, X.half(), X.double()), ValueError,
         "y: expected torch.float16 or torch.float32 of width 4, found torch.float64"),
        (lambda: ops.aggregate(PTR, NODE, X.half(), weight=torch.ones(3, 1, dtype=torch.float64)), ValueError,
         r"weight: expected torch.float16 or torch.float32 \[at least 3, heads\], found torch.float64 \(3, 1\)"),
        (lambda: ops.aggregate(PTR, NODE, X, weight=torch.ones(2, 1)), ValueError, r"weight: .*\[at least 3, heads\]"),
        (lambda: ops.aggregate(PTR, NODE, X, weight=torch.ones(3, 3)), ValueError, "weight: expected heads that divid"),
        (lambda: ops.aggregate(PTR, NODE + 1, X), RuntimeError, "entry 1: expected a node below 2 .* found 2"),
        (lambda: ops.aggregate(PTR, NODE, X, edge=NODE - 1), RuntimeError, "an edge below 3, found 0 and -1"),
        (lambda: ops.aggregate(PTR.flip(0), NODE, X), RuntimeError, "ptr"),
        (lambda: ops.aggregate(PTR + 1, NODE, X), RuntimeError, r"ptr: expected entries in \[0, 3\], found 1 to 4"),
        (lambda: ops.aggregate(torch.tensor([0, 2, 1]), NODE, X), RuntimeError, r"ptr\[2\] = 1 is less than ptr\[1\]"),
        (lambda: ops.edge_dot(PTR, NODE, X, X[:1]), ValueError, "y: expected 2 rows, found 1"),
        (lambda: ops.edge_dot(PTR, NODE, X, X, 3), ValueError, "heads: expected a divisor of x's width 4, found 3"),
        (lambda: ops.edge_dot(PTR[:2], NODE, X, X[:1]), RuntimeError, "ptr: expected 0 to 3, found 0 to 2"),
        (lambda: ops.edge_dot(PTR, NODE, X, X, edge=NODE + 2), RuntimeError, "an edge below 3, found 1 and 3"),
        (lambda: ops.edge_attention(PTR, NODE, X.half()), ValueError, "of_sources: expected float32 or float64"),
        (lambda: ops.edge_attention(PTR, NODE, X[:, :0]), ValueError, "found torch.float32 of width 0"),
        (lambda: ops.edge_attention(PTR, NODE, X, X[:1]), ValueError, "of_columns: expected 2 rows, found 1"),
        (lambda: ops.edge_attention(PTR, NODE, X, None, X), ValueError, "of_entries: expected 3 rows, found 2"),
        (lambda: ops.edge_attention(PTR, NODE, X, X.double()), ValueError, "of_columns: expected torch.float32 of wid"),
        (lambda: ops.edge_attention(PTR, NODE, X, X.to("meta")), ValueError, "of_columns: expected it on cpu, where o"),
        (lambda: ops.edge_attention(PTR[:2], NODE, X), RuntimeError, "ptr: expected 0 to 3, found 0 to 2"),
        (lambda: ops.edge_attention(PTR, NODE + 1, X), RuntimeError, "entry 1: expected a node below 2 .* found 2"),
        (lambda: ops.edge_attention_backward(PTR, NODE, X, None, None, X, X), ValueError, "weight: expected 3 rows, f"),
        (lambda: ops.share_of_extremes(PTR, NODE, X, X.double(), X), ValueError, "extreme: expected torch.float32 of"),
        (lambda: ops.extreme_backward(PTR, NODE, X[:1], X, X), ValueError, "x: expected 2 rows, found 1"),
        (lambda: ops.extreme_backward(PTR, NODE, X, X, X[:1]), ValueError, "share: expected 2 rows, found 1"),
        (lambda: ops.extreme_backward(PTR, NODE + 1, X, X, X), RuntimeError, "expected a node below 2"),
    ],
)  # fmt: skip
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
