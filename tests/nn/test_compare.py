"""What is compared of two runs of a model."""

import torch
from torch import nn

from torch_gnnscale.nn.compare import agree, outputs


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
