"""What wrapped models have in common."""

import gc
import weakref

from torch import nn

from torch_gnnscale.nn.wrapper import modules_of


def test_modules_are_those_of_torch_in_its_order():
    shared = nn.Linear(2, 2)
    inner = nn.Sequential(nn.ReLU(), shared, nn.Sequential(nn.Tanh()))
    model = nn.ModuleDict({"first": inner, "second": shared, "third": nn.ModuleList([inner, nn.Linear(2, 3)])})
    model.register_module("none", None)
    inner.add_module("cycle", inner)
    assert modules_of(model) == list(model.modules())


def test_modules_are_not_kept():
    model = nn.Sequential(nn.Linear(2, 2))
    gc.disable()
    try:
        assert len(modules_of(model)) == 2
        last = weakref.ref(model)
        del model
        assert last() is None
    finally:
        gc.enable()
