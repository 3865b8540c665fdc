"""Training under autocast: narrowed models compute what the model does on the whole batch under the same autocast."""

import copy

import pytest
import torch
from helpers.narrow import CLASSES, MODELS, batches, weighed_batches
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
