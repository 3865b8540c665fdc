"""What is refused, by its whole message."""

import re

import pytest


def refuses(error: type[Exception], message: str):
    """A context in which an error of this class is raised, with this whole message."""
    return pytest.raises(error, match=f"^{re.escape(message)}$")
