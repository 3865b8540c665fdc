"""Cases of parametrized tests that `make quick` leaves out."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)
"""A case that only `make test` runs."""


def quick(cases: Mapping[str, Any] | Iterable[str], *names: str) -> list[Any]:
    """All cases, with their names as ids; a case is a value or a tuple of values, or its name. Those of other ``names``
    are SLOW."""
    cases = cases if isinstance(cases, Mapping) else {name: name for name in cases}
    assert set(names) <= set(cases), names
    values = {name: case if isinstance(case, tuple) else (case,) for name, case in cases.items()}
    return [(pytest.param if name in names else SLOW)(*values[name], id=name) for name in cases]
