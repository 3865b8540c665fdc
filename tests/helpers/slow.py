"""Cases of parametrized tests, and examples of random ones, that `make quick` or `make test` leave out."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import settings

SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)
"""A case that `make quick` leaves out."""

NIGHTLY = functools.partial(pytest.param, marks=pytest.mark.nightly)
"""A case that only `make nightly` runs."""


def examples(number: int, **options: Any) -> settings:
    """Settings of a random test: so many examples in `make nightly`, else a quarter of them."""
    return settings(max_examples=max(3, number * settings.default.max_examples // 100), **options)


def quick(cases: Mapping[str, Any] | Iterable[str], *names: str, slow: Iterable[str] | None = None) -> list[Any]:
    """All cases, with their names as ids; a case is a value or a tuple of values, or its name. Those of other ``names``
    are SLOW; where ``slow`` names these, the rest is NIGHTLY."""
    cases = cases if isinstance(cases, Mapping) else {name: name for name in cases}
    slow = set(cases) if slow is None else set(slow)
    assert {*names, *slow} <= set(cases), (names, slow)
    values = {name: case if isinstance(case, tuple) else (case,) for name, case in cases.items()}
    return [
        (pytest.param if name in names else SLOW if name in slow else NIGHTLY)(*values[name], id=name) for name in cases
    ]


def in_turns(places: Sequence[tuple], cases: Mapping[str, Any], name: str, fast: int = 0) -> list[Any]:
    """The parameters (place, case): each case at one of the places, in turns; the case ``name`` at all of them, and
    that one at ``places[fast]`` is the only fast one. A case is a value or a tuple of values."""
    assert name in cases, name
    found = []
    for (i, (title, case)), (j, place) in product(enumerate(cases.items()), enumerate(places)):
        if title == name or i % len(places) == j:
            values = (*place, *(case if isinstance(case, tuple) else (case,)))
            mark = pytest.param if (title, j) == (name, fast) else SLOW
            found.append(mark(*values, id="-".join([*map(str, place), title])))
    return found
