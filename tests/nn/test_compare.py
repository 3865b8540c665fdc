"""What is compared of two runs of a model."""

import pytest
import torch
from torch import nn

from torch_gnnscale.nn.trial import agree, first_difference, outputs


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.inner.weight, 2.0)

    def forward(self, x):
        return self.inner(self.inner(x))


def test_of_a_module_that_is_called_twice_the_first_output():
    model = Twice()
    with outputs(model) as found:
        assert model(torch.ones(3, 1)).tolist() == [[4.0]] * 3
    assert {name: out.tolist() for name, out in found.items()} == {"inner": [[2.0]] * 3}


def test_infinite_outputs_agree_where_they_are_equal():
    expected = torch.tensor([[1.0, torch.inf], [-torch.inf, 2.0]])
    assert agree(expected, expected.clone())
    assert agree(expected, expected + torch.tensor([[1e-4, 0.0], [0.0, -1e-4]]))
    assert not agree(expected, expected + torch.tensor([[0.1, 0.0], [0.0, 0.0]]))
    for other in (-torch.inf, torch.nan, 1e30):
        assert not agree(expected, torch.tensor([[1.0, other], [-torch.inf, 2.0]]))
    assert agree(torch.full((2, 1), torch.nan), torch.full((2, 1), torch.nan))


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-9), (torch.float32, 1e-3), (torch.float16, 0.1), (torch.bfloat16, 0.1)],
)
def test_outputs_agree_up_to_a_share_of_the_largest(dtype, tolerance):
    expected = torch.tensor([[50.0, 0.0], [-100.0, 1.0]], dtype=dtype)
    for share, found in ((0.5, True), (2.0, False)):
        other = expected.clone()
        other[0, 0] += 100 * tolerance * share
        assert agree(expected, other) == found
        assert agree(expected, other.double()) == found


def test_rows_that_both_have_are_compared():
    rows = torch.arange(6.0).view(3, 2)
    assert agree(rows, rows[:2])
    assert agree(rows[:1], rows)
    assert agree(rows[:0], rows)
    assert not agree(rows, rows[:, :1])
    assert not agree(rows[:0], rows[:, :1])
    assert not agree(rows.flip(0), rows[:1])
    assert agree(torch.zeros(2, 2), torch.zeros(2, 2))
    assert not agree(torch.zeros(2, 2), torch.full((2, 2), 1e-20))


def test_the_first_module_that_differs():
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    one, other = {"0": torch.ones(2, 1), "1": torch.ones(2, 1)}, {"0": torch.ones(2, 1), "1": torch.zeros(2, 1)}
    assert first_difference(model, one, other) == "1 (ReLU)"
    assert first_difference(model, one, {**other, "0": torch.zeros(2, 1)}) == "0 (Linear)"
    assert first_difference(model, one, one) == "the model (Sequential)"
    assert first_difference(model, {}, other) == "the model (Sequential)"
