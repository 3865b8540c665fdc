"""SAGEConv as one function, beside its definition."""

from itertools import product

import pytest
import torch
from helpers.graphs import random_ids
from torch.utils._python_dispatch import TorchDispatchMode

from torch_gnnscale.nn.aggregate import Apart, Bipartite
from torch_gnnscale.nn.convolutions import sage

SOURCES, DESTINATIONS, EDGES, WIDTH, CHANNELS = 40, 30, 200, 6, 5
NAMES = ["x", "of_neighbors", "bias", "of_root"]


def made(count, width, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, dtype=torch.float64, generator=generator)


def given(wanted):
    """The edges; and tensors of which those with wanted names need a gradient."""
    index = torch.stack([random_ids(limit, EDGES, seed=limit) for limit in (SOURCES, DESTINATIONS)])
    rows = [made(SOURCES, WIDTH, 1), made(CHANNELS, WIDTH, 2), made(1, CHANNELS, 3)[0], made(CHANNELS, WIDTH, 4)]
    tensors = dict(zip(NAMES, rows, strict=True))
    return Bipartite.from_coo(index, SOURCES, DESTINATIONS), {
        name: tensor.requires_grad_(name in wanted) for name, tensor in tensors.items()
    }


def defined(edges, tensors, weight, reduce):
    src, dst = edges.index
    messages = tensors["x"][src] if weight is None else tensors["x"][src] * weight.unsqueeze(1)
    to = dst.unsqueeze(1).expand_as(messages)
    how = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    found = messages.new_zeros(DESTINATIONS, WIDTH).scatter_reduce(0, to, messages, how, include_self=False)
    out = found @ tensors["of_neighbors"].t() + tensors["x"][:DESTINATIONS] @ tensors["of_root"].t()
    return out if tensors["bias"] is None else out + tensors["bias"]


def gradients(out, tensors, wanted):
    scale = torch.arange(1.0, out.numel() + 1, dtype=torch.float64).view(out.shape)
    return torch.autograd.grad((out * scale).sum(), [tensors[name] for name in wanted])


@pytest.mark.parametrize(
    ("reduce", "weighed"), [*product(["sum", "mean"], [False, True]), ("max", False), ("min", False)]
)
@pytest.mark.parametrize("wanted", [[], ["x"], ["of_root"], ["bias", "of_neighbors"], NAMES], ids=str)
def test_the_definition(reduce, weighed, wanted):
    edges, tensors = given(wanted)
    weight = made(EDGES, 1, 5)[:, 0] if weighed else None
    out = sage(tensors["x"], None, weight, *[tensors[name] for name in NAMES[1:]], edges, reduce, None)
    expected = defined(edges, tensors, weight, reduce)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    assert out.requires_grad == bool(wanted)
    if wanted:
        for ours, theirs in zip(gradients(out, tensors, wanted), gradients(expected, tensors, wanted), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize("wanted", [["x"], ["root"], ["of_root"], [*NAMES, "root"]], ids=str)
def test_rows_of_destinations_that_are_not_those_of_sources(wanted, reduce):
    edges, tensors = given(wanted)
    tensors["root"] = made(DESTINATIONS, WIDTH + 2, 6).requires_grad_("root" in wanted)
    tensors["of_root"] = made(CHANNELS, WIDTH + 2, 7).requires_grad_("of_root" in wanted)
    out = sage(tensors["x"], tensors["root"], None, *[tensors[name] for name in NAMES[1:]], edges, reduce, None)
    of_neighbors = defined(edges, {**tensors, "of_root": made(CHANNELS, WIDTH, 4) * 0}, None, reduce)
    expected = of_neighbors + tensors["root"] @ tensors["of_root"].t()
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(gradients(out, tensors, wanted), gradients(expected, tensors, wanted), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


class Products(TorchDispatchMode):
    """Notes matrix products in ``events``."""

    def __init__(self, events):
        super().__init__()
        self.events = events

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
            self.events.append("product")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("wanted", [["x"], NAMES], ids=str)
def test_rows_that_are_apart(wanted):
    """While they are on their way, a product is computed; while their gradient is, all other gradients are."""
    edges, tensors = given(wanted)
    expected = sage(tensors["x"], None, None, *[tensors[name] for name in NAMES[1:]], edges, "mean", None)
    of_all = gradients(expected, tensors, wanted)
    whole, events = tensors["x"].detach(), []
    own = whole[:33].clone().requires_grad_()

    def receive(meanwhile):
        events.append("sent")
        meanwhile()
        events.append("received")
        return whole[33:]

    def give_back(of_rows, of_x):
        torch.testing.assert_close(of_rows(), of_all[0][33:], rtol=1e-12, atol=1e-12)
        events.append("gave back")
        found = of_x().add_(1)
        events.append("received")
        return found

    apart = Apart(receive, give_back)
    with Products(events):
        out = sage(own, None, None, *[tensors[name] for name in NAMES[1:]], edges, "mean", apart)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    assert events == ["sent", "product", "received", "product"]
    events.clear()
    with Products(events):
        of_own, *others = gradients(out, {**tensors, "x": own}, wanted)
    meanwhile = ["product"] * (3 if wanted == NAMES else 1)
    assert events == ["product", "gave back", *meanwhile, "received"]
    torch.testing.assert_close(of_own, of_all[0][:33] + 1, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(others, of_all[1:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        (["x"], ["of_neighbors", "of_root"]),
        (["of_neighbors"], ["aggregate"]),
        (["of_root"], ["x"]),
        (["bias"], []),
        (NAMES, ["x", "aggregate", "of_neighbors", "of_root"]),
    ],
    ids=str,
)
def test_what_is_kept_for_the_backward_pass(wanted, kept, reduce):
    """What no gradient needs is not; an extreme is a gradient's of x."""
    edges, tensors = given(wanted)
    out = sage(tensors["x"], None, None, *[tensors[name] for name in NAMES[1:]], edges, reduce, None)
    names = ["x", "root", "weight", "aggregate", "of_neighbors", "of_root"]
    saved = dict(zip(names, out.grad_fn.saved_tensors, strict=True))
    extreme = {"x", "aggregate"} if reduce == "max" and "x" in wanted else set()
    assert {name for name, tensor in saved.items() if tensor is not None} == {*kept} | extreme


def test_a_backward_pass_within_autocast():
    edges, tensors = given(NAMES)
    out = sage(tensors["x"], None, None, *[tensors[name] for name in NAMES[1:]], edges, "mean", None)
    expected = gradients(defined(edges, tensors, None, "mean"), tensors, NAMES)
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(out, tensors, NAMES)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_without_gradients_nothing_is_kept():
    edges, tensors = given(NAMES)
    with torch.no_grad():
        out = sage(tensors["x"], None, None, *[tensors[name] for name in NAMES[1:]], edges, "mean", None)
    assert not out.requires_grad
    assert edges._wanted is None
    torch.testing.assert_close(out, defined(edges, tensors, None, "mean").detach(), rtol=1e-12, atol=1e-12)


def test_no_bias():
    edges, tensors = given(NAMES)
    tensors["bias"] = None
    out = sage(tensors["x"], None, None, *[tensors[name] for name in NAMES[1:]], edges, "sum", None)
    torch.testing.assert_close(out, defined(edges, tensors, None, "sum"), rtol=1e-12, atol=1e-12)
    wanted = [name for name in NAMES if name != "bias"]
    for ours, theirs in zip(
        gradients(out, tensors, wanted), gradients(defined(edges, tensors, None, "sum"), tensors, wanted), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
