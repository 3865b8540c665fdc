"""What tests of several ranks share."""

import pytest
from helpers.parts import homogeneous

from torch_gnnscale import partition


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A directory of two parts."""
    path = tmp_path_factory.mktemp("parts") / "parts"
    partition.write(homogeneous(), path, parts=2, method="random", graph_attrs=["time"])
    return str(path)
