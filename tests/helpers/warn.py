"""Warnings of the package, apart from those of other packages."""

import contextlib
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def recorded() -> Iterator[list[warnings.WarningMessage]]:
    """A list that gets each UserWarning: this package's. What torch and PyG say of coming versions is left out."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        yield found
