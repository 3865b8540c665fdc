"""What BatchNorm of a split model keeps."""

from types import SimpleNamespace

import pytest
import torch
from helpers.waits import NoWaits
from torch import nn

from torch_gnnscale.comm.exchange import Exchange
from torch_gnnscale.comm.row_transport import RowTransport
from torch_gnnscale.split.local_rows import OwnNodeRows
from torch_gnnscale.split.split_layer import SplitNorms, _normalize, _track

NO_EDGES = torch.empty(2, 0, dtype=torch.int64)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_are_those_of_torch(momentum):
    ours, theirs = (nn.BatchNorm1d(3, momentum=momentum).double() for _ in range(2))
    for x in torch.arange(45.0, dtype=torch.float64).square().view(3, 5, 3):
        theirs(x)
        _track(ours, x.mean(0), x.var(0, correction=0), torch.tensor(5.0))
    for name, value in theirs.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), value, rtol=1e-12, atol=1e-12)


def test_a_single_row_over_all_ranks_has_no_variance():
    arguments = RowTransport(Exchange(None, 1, 0)), OwnNodeRows(SimpleNamespace(edge_index=NO_EDGES), None)
    text = r"^Expected more than 1 value per channel when training, got 1 rows over all ranks$"
    with pytest.raises(ValueError, match=text):
        _normalize("norm", nn.BatchNorm1d(3), None, *arguments, torch.ones(1, 3))


def test_two_rows_over_all_ranks_are_enough():
    arguments = RowTransport(Exchange(None, 1, 0)), OwnNodeRows(SimpleNamespace(edge_index=NO_EDGES), None)
    x = torch.tensor([[1.0, 2.0], [4.0, 0.0]], dtype=torch.float64)
    ours, theirs = (nn.BatchNorm1d(2).double() for _ in range(2))
    torch.testing.assert_close(_normalize("norm", ours, None, *arguments, x), theirs(x), rtol=1e-12, atol=1e-12)
    for name, value in theirs.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_norm_without_statistics_has_those_of_its_rows(training, keeps):
    """One that ``keeps`` them from before does not change them."""
    arguments = RowTransport(Exchange(None, 1, 0)), OwnNodeRows(SimpleNamespace(edge_index=NO_EDGES), None)
    x = torch.tensor([[1.0, 2.0], [4.0, 0.0], [3.0, 5.0]], dtype=torch.float64)
    module = nn.BatchNorm1d(2, track_running_stats=keeps).double().train(training)
    module.track_running_stats = False
    torch.testing.assert_close(
        _normalize("norm", module, module.forward, *arguments, x), module(x), rtol=1e-12, atol=1e-12
    )
    if keeps:
        assert torch.equal(module.running_mean, torch.zeros(2).double())


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_host_waits_for_no_number_of_rows(dtype, momentum):
    """And the statistics are those of the numbers that it would read, bit for bit."""
    arguments = RowTransport(Exchange(None, 1, 0)), OwnNodeRows(SimpleNamespace(edge_index=NO_EDGES), None)
    module = nn.BatchNorm1d(5, momentum=momentum).to(dtype)
    mean, variance = module.running_mean.clone(), module.running_var.clone()
    for number in range(1, 9):
        x = torch.randn(2 + 13 * number, 5).mul(3).to(dtype)
        with NoWaits():
            _normalize("norm", module, None, *arguments, x)
        wide = x.to(torch.promote_types(dtype, torch.float32))
        center = wide.sum(0) / len(x)
        spread = (wide - center).square().sum(0) / len(x)
        weight = 1.0 / number if momentum is None else momentum
        mean.lerp_(center.to(dtype), weight)
        variance.lerp_((spread * (len(x) / (len(x) - 1))).to(dtype), weight)
        assert torch.equal(module.running_mean, mean)
        assert torch.equal(module.running_var, variance)


def test_norms_are_what_they_were_after_each_forward_pass():
    """A forward that is set on a module itself, too."""
    arguments = RowTransport(Exchange(None, 1, 0)), OwnNodeRows(SimpleNamespace(edge_index=NO_EDGES), None)
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    model[2].forward = model[0].forward
    before = [dict(vars(module)) for module in model]
    norms = SplitNorms(model)
    for _ in range(2):
        norms.enter(*arguments)
        assert [vars(module).get("forward") == of.get("forward") for module, of in zip(model, before, strict=True)] == [
            False, True, False
        ]  # fmt: skip
        norms.leave()
        assert [dict(vars(module)) for module in model] == before
