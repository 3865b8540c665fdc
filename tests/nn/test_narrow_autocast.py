"""Training under autocast: narrowed models compute what the model does on the whole batch under the same autocast."""

import copy
from collections import Counter

import pytest
import torch
from helpers.narrow import CLASSES, MODELS, batches, weighed_batches
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.nn import GraphSAGE

from torch_gnnscale.nn import narrow, weigh

pytestmark = pytest.mark.usefixtures("every_batch_is_narrowed")


def check_steps(ours, theirs, whole, given):
    """Three steps with a scaled loss: outputs, gradients and weights, which bfloat16 rounds to three digits."""
    optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in (ours, theirs)]
    scalers = [torch.amp.GradScaler("cpu", init_scale=256.0) for _ in optimizers]
    for batch in given:
        batch.x, outs = batch.x.float(), []
        for run, optimizer, scaler in zip((ours, whole), optimizers, scalers, strict=True):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                out = run(batch)[: batch.batch_size]
                loss = torch.nn.functional.cross_entropy(out, batch.n_id[: batch.batch_size] % CLASSES)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            outs.append(out)
        assert outs[0].dtype == outs[1].dtype
        torch.testing.assert_close(*outs, rtol=2e-2, atol=2e-2)
        for first, second in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(first.grad, second.grad, rtol=5e-2, atol=2e-2)
        for optimizer, scaler in zip(optimizers, scalers, strict=True):
            scaler.step(optimizer)
            scaler.update()


@pytest.mark.parametrize("name", ["sage", "sage max", "jumping, cat", "gcn", "gin", "gat"])
def test_narrowed_models_under_autocast(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    other = copy.deepcopy(model)
    check_steps(narrow(model), other, lambda batch: other(batch.x, batch.edge_index), batches())


def test_weighed_models_under_autocast():
    torch.manual_seed(0)
    model = GraphSAGE(3, 8, 3, CLASSES)
    other = copy.deepcopy(model)
    check_steps(narrow(weigh(model, weight_name="edge_weight")), other, weigh(other), weighed_batches())


class Counting(TorchDispatchMode):
    """Counts the calls of operators by their names."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


OF_16_BITS = ["sage", "sage max", "gcn", "gin", "gat", "jumping, cat"]


@pytest.mark.parametrize("name", OF_16_BITS)
def test_every_layer_under_autocast_aggregates_over_the_csc(name):
    torch.manual_seed(0)
    model, batch = MODELS[name](), next(iter(batches()))
    batch.x = batch.x.float()
    narrowed = narrow(model.float())
    with torch.autocast("cpu", torch.bfloat16):
        narrowed(batch)
        with Counting() as counting:
            narrowed(batch)
    assert counting.calls["gnnscale::aggregate"] == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OF_16_BITS)
def test_models_of_16_bits(name, dtype):
    """Outputs and gradients are hardly farther from those of float64 than PyG's are."""
    torch.manual_seed(0)
    exact = MODELS[name]().double()
    theirs = copy.deepcopy(exact).to(dtype)
    ours = narrow(copy.deepcopy(exact).to(dtype))
    errors = []
    for batch in batches():
        expected = exact(batch.x.double(), batch.edge_index)[: batch.batch_size]
        batch.x = batch.x.to(dtype)
        outs = theirs(batch.x, batch.edge_index)[: batch.batch_size], ours(batch)
        assert outs[1].dtype == dtype
        errors.append([float((out.detach() - expected.detach()).abs().max()) for out in outs])
        for out in (expected, *outs):
            out.float().square().sum().backward()
    worst = torch.tensor(errors).amax(0)
    assert worst[1] <= 1.5 * worst[0]
    for first, *others in zip(*(model.parameters() for model in (exact, theirs, ours)), strict=True):
        found = [float((other.grad - first.grad).norm() / first.grad.norm().clamp(min=1e-3)) for other in others]
        assert found[1] <= 1.5 * found[0] + 0.005
