"""A narrowed model is saved, loaded, copied and trained by others under the model's own names."""

import copy
import io
import pickle
import random
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict as checkpoint
import torch_geometric.nn as pyg_nn
from helpers.data import make_data
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from torch_gnnscale import NeighborLoader
from torch_gnnscale.datasets import NodeTask, planted
from torch_gnnscale.nn import narrow
from torch_gnnscale.nn.trial import trial
from torch_gnnscale.tasks.node_trainer import NodeConfig, NodeTrainer
from torch_gnnscale.training import CHECKPOINT


class Scaled(nn.Module):
    """A model with a parameter and a buffer of its own, and BatchNorm's."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(()))
        self.register_buffer("shift", torch.rand(()))
        self.gnn = pyg_nn.GCN(3, 8, 2, 4, norm="BatchNorm")

    def forward(self, x, edge_index):
        return self.gnn(x, edge_index) * self.scale + self.shift


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Scaled().double()


@pytest.fixture
def batch():
    return next(iter(NeighborLoader(make_data(), [4, 3], torch.arange(20), batch_size=20, seed=1)))


def same_state(ours: dict, theirs: dict) -> bool:
    return list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in theirs)


def other(model: nn.Module) -> nn.Module:
    """The same with other numbers."""
    changed = copy.deepcopy(model)
    for tensor in changed.state_dict().values():
        tensor += 1
    return changed


def test_names_are_those_of_the_model(model):
    narrowed = narrow(model)
    assert same_state(narrowed.state_dict(), model.state_dict())
    assert narrowed.state_dict()._metadata == model.state_dict()._metadata
    assert list(narrowed.state_dict(prefix="a.")) == list(model.state_dict(prefix="a."))
    for members in ("named_parameters", "named_buffers"):
        assert list(getattr(narrowed, members)()) == list(getattr(model, members)())
        assert not list(getattr(narrowed, members)(recurse=False))
    assert list(narrowed.named_modules()) == [("", narrowed), *model.named_modules()]
    assert set(narrowed.modules()) == {narrowed, *model.modules()}
    for name, module in model.named_modules():
        assert narrowed.get_submodule(name) is (module if name else narrowed)
    for name, parameter in model.named_parameters():
        assert narrowed.get_parameter(name) is parameter
    assert narrowed.gnn is model.gnn
    with pytest.raises(AttributeError, match="'Scaled' object has no attribute 'nothing'"):
        _ = narrowed.nothing


def test_each_loads_what_the_other_saves(model, batch):
    for source, target in (
        (narrow(other(model)), model),
        (other(model), narrow(model)),
        (narrow(other(model)), narrow(model)),
    ):
        stream = io.BytesIO()
        torch.save(source.state_dict(), stream)
        stream.seek(0)
        assert str(target.load_state_dict(torch.load(stream, weights_only=True))) == "<All keys matched successfully>"
        assert same_state(target.state_dict(), source.state_dict())
    short = model.state_dict()
    del short["scale"]
    assert narrow(model).load_state_dict(short, strict=False).missing_keys == ["scale"]
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "module.scale"'):
        narrow(model).load_state_dict({**model.state_dict(), "module.scale": torch.ones(())})


@pytest.mark.parametrize("assign", [False, True])
def test_inside_of_another_module(model, assign):
    plain, narrowed = nn.ModuleDict({"encoder": other(model)}), nn.ModuleDict({"encoder": narrow(model)})
    assert list(narrowed.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in narrowed.named_parameters()] == [name for name, _ in plain.named_parameters()]
    narrowed.load_state_dict(plain.state_dict(), assign=assign)
    assert same_state(narrowed.state_dict(), plain.state_dict())
    plain.load_state_dict(narrowed.state_dict(), assign=assign)


@pytest.mark.slow
def test_copies_and_pickles(model, batch):
    narrowed = narrow(model).eval()
    expected = narrowed(batch)
    for made in (copy.deepcopy(narrowed), pickle.loads(pickle.dumps(narrowed))):
        assert made.module is not model
        assert same_state(made.state_dict(), model.state_dict())
        assert torch.equal(made(batch), expected)


def test_what_is_done_to_all_modules(model, batch):
    narrowed, seen = narrow(model), []
    narrowed.apply(seen.append)
    assert len(seen) == len(set(seen)) == 1 + len(list(model.modules()))
    assert all(module.training is False for module in narrowed.eval().modules())
    assert model.training is False
    assert all(module.training for module in narrowed.train().modules())
    assert model.training
    assert {tensor.dtype for tensor in narrowed.float().parameters()} == {torch.float32}
    assert model.scale.dtype == torch.float32
    assert narrowed.double() is narrowed
    optimizer = torch.optim.Adam(narrowed.named_parameters())
    narrowed(batch).sum().backward()
    before = copy.deepcopy(model.state_dict())
    optimizer.step()
    assert not torch.equal(before["scale"], model.scale)
    narrowed.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_functional_call(model, batch):
    narrowed, changed = narrow(model.gnn).eval(), other(model.gnn).eval()
    found = torch.func.functional_call(narrowed, changed.state_dict(), (batch,))
    torch.testing.assert_close(found, changed(batch.x, batch.edge_index)[:20], rtol=0, atol=1e-12)


def test_checkpoints_of_torch_distributed(model):
    narrowed = narrow(model)
    assert same_state(checkpoint.get_model_state_dict(narrowed), model.state_dict())
    changed = other(model)
    checkpoint.set_model_state_dict(narrowed, changed.state_dict())
    assert same_state(model.state_dict(), changed.state_dict())


def check_data_parallel(model, batch):
    expected = copy.deepcopy(model)
    parallel = DistributedDataParallel(narrow(model))
    assert list(parallel.state_dict()) == [f"module.{name}" for name in expected.state_dict()]
    assert [name for name, _ in parallel.named_parameters()] == [f"module.{n}" for n, _ in model.named_parameters()]
    parallel(batch).square().sum().backward()
    narrow(expected)(batch).square().sum().backward()
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    parallel.load_state_dict(DistributedDataParallel(other(model)).state_dict())
    inside = narrow(DistributedDataParallel(other(model)), check=False)
    inside(batch).sum().backward()
    assert inside.module.module.scale.grad is not None


def test_data_parallel(model, batch):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        check_data_parallel(model, batch)  # its models must end before the group: they would wait for its threads
    finally:
        dist.destroy_process_group()


def test_checkpoints_of_gnnscale_train(tmp_path):
    task = NodeTask.from_data("small", planted(300, num_classes=4, num_features=3, seed=0))
    trainer = NodeTrainer(task, NodeConfig(model="gcn", hidden=8, fanouts=[3, 2], epochs=1), tmp_path, quiet=True)
    trainer.save_checkpoint()
    state = torch.load(tmp_path / CHECKPOINT, weights_only=True)["model"]
    changed = narrow(other(trainer.model))
    changed.load_state_dict(state)
    assert same_state(changed.state_dict(), trainer.model.state_dict())


class Counting(nn.Module):
    """Counts its calls in every way that forward may, and draws from every generator."""

    def __init__(self):
        super().__init__()
        self.gnn = pyg_nn.GCN(3, 8, 2, 4)
        self.beside = [nn.Identity()]  # no child
        self.calls, self.seen, self.named = 0, [], {"calls": {"inner": [0]}}
        self.of_class, self.space, self.recent = Counted(), SimpleNamespace(calls=0), deque(maxlen=3)
        self.sums, self.array, self.keys = (torch.zeros(3), torch.zeros(3)), np.zeros(2), set()
        self.generator = torch.Generator().manual_seed(1)
        self.of_python, self.of_numpy = random.Random(1), np.random.default_rng(1)

    def forward(self, x, edge_index):
        self.calls += 1
        self.seen.append(self.calls)
        self.named["calls"]["inner"][0] += 1
        self.named[f"call {self.calls}"] = x.size(0)
        self.of_class.calls, self.space.calls = self.of_class.calls + 1, self.space.calls + 1
        self.recent.append(self.calls)
        self.sums[0].add_(1)
        self.sums[1].data += 1
        self.array += 1
        self.keys.add(self.calls)
        self.last = x
        self.gnn.calls = self.beside[0].calls = self.calls
        draws = torch.rand(1, generator=self.generator), torch.rand(1), self.of_python.random(), self.of_numpy.random()
        self.drawn = *map(float, draws), random.random(), np.random.random()
        return self.gnn(x, edge_index)

    def state(self):
        fields = {name: value for name, value in vars(self).items() if not isinstance(value, OBJECTS)}
        fields = {name: value for name, value in fields.items() if not name.startswith("_")}
        return repr({**fields, "of child": self.gnn.calls, "beside": self.beside[0].calls})


OBJECTS = (torch.Generator, random.Random, np.random.Generator, nn.Module, Tensor)


@dataclass
class Counted:
    calls: int = 0


def test_the_trial_of_the_first_batch_leaves_no_trace(batch):
    """Of the model on the whole batch and of the narrowed one, the states are the same after their first batch."""

    def after(make):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        model = Counting().double()
        made = make(model)
        made(batch.x, batch.edge_index) if made is model else made(batch)
        return model.state(), torch.rand(1), random.random(), np.random.random()

    expected = after(lambda model: model)
    assert "'calls': 1, 'seen': [1]" in expected[0]
    assert after(narrow) == expected


def test_a_large_tensor_that_is_changed_in_place_is_named(batch):
    model = Counting().double()
    model.gnn.table = torch.zeros(2**20 + 1)

    def add(module, *_):
        module.table += 1

    model.gnn.register_forward_hook(add)
    with pytest.warns(UserWarning, match=r"^Counting\.gnn\.table: expected a buffer, found a tensor that the model "):
        narrow(model)(batch)


def test_a_trial_leaves_no_buffer_behind(model):
    """Neither those that it changes, adds or takes away are otherwise than before."""
    before, norm = {name: value.clone() for name, value in model.named_buffers()}, model.gnn.norms[0].module
    assert norm.training
    with trial(model, (nn.BatchNorm1d,), torch.device("cpu")):
        assert not norm.training
        assert model.gnn.training
        model.register_buffer("seen", torch.ones(3))
        model.shift.add_(1)
        del norm.running_mean
    assert norm.training
    assert same_state(dict(model.named_buffers()), before)
