"""What BatchNorm of a split model keeps."""

import pytest
import torch
from torch import nn

from torch_gnnscale.split.norms import _track


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_those_of_torch(momentum):
    ours, theirs = (nn.BatchNorm1d(3, momentum=momentum).double() for _ in range(2))
    for x in torch.arange(45.0, dtype=torch.float64).square().view(3, 5, 3):
        theirs(x)
        _track(ours, x.mean(0), x.var(0, correction=0), 5.0)
    for name, value in theirs.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), value)
