"""What a user gets who does not say: the defaults of everything public, and the constants beside them.

A change of one of them is a change for users. This writes the list anew: ::

    PYTHONPATH=tests python tests/test_defaults.py > tests/defaults.txt
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import reference

import torch_gnnscale
from torch_gnnscale import ops

LISTED = Path(__file__).parent / "defaults.txt"


def public_modules() -> Iterator[ModuleType]:
    yield torch_gnnscale
    for found in pkgutil.iter_modules(torch_gnnscale.__path__, "torch_gnnscale."):
        if not found.name.startswith("torch_gnnscale._"):
            module = importlib.import_module(found.name)
            if hasattr(module, "__all__"):
                yield module


def defaults_of(function: Any) -> dict[str, Any]:
    """The parameters that may be left out, but for those of which None says so."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default not in (inspect.Parameter.empty, None)}


def called(value: Any) -> Iterator[tuple[str, Any]]:
    """What of a public name is called: the function, or a class and its own methods."""
    if inspect.isclass(value):
        methods = {name: entry for name, entry in vars(value).items() if not name.startswith("_") or name == "__init__"}
        for name, entry in methods.items():
            entry = entry.__func__ if isinstance(entry, (classmethod, staticmethod)) else entry
            if inspect.isfunction(entry):
                yield "" if name == "__init__" else f".{name}", entry
    elif inspect.isroutine(value):
        yield "", value


def lines() -> Iterator[str]:
    """One for each function with defaults, and for each constant; under the first name that it has."""
    seen = set()
    for package in public_modules():
        for name in getattr(package, "__all__", []):
            value = getattr(package, name)
            if id(value) in seen or inspect.ismodule(value):
                continue
            full = f"{package.__name__.removeprefix('torch_gnnscale').removeprefix('.') or 'torch_gnnscale'}.{name}"
            if isinstance(value, (int, float, str, tuple)):
                yield f"{full} = {value!r}"
                continue
            seen.add(id(value))
            for method, function in called(value):
                if defaults := defaults_of(function):
                    pairs = (f"{key}={getattr(each, '__name__', repr(each))}" for key, each in defaults.items())
                    yield f"{full}{method}: {', '.join(pairs)}"


def test_defaults():
    assert [*lines()] == LISTED.read_text().splitlines()


def test_twins_have_the_defaults_of_their_operators():
    compared = 0
    for name in {*ops.__all__} & {*reference.__all__}:
        if inspect.isfunction(twin := getattr(reference, name)):
            ours, theirs = (inspect.signature(function).parameters for function in (getattr(ops, name), twin))
            for both in ours.keys() & theirs.keys():
                assert ours[both].default == theirs[both].default, (name, both)
                compared += 1
    assert compared > 50


if __name__ == "__main__":
    print(*lines(), sep="\n")
