"""Of how many groups a layer gets rows in a call."""

import pytest
from helpers.narrow import batches

from torch_gnnscale.nn.forward_pass import ForwardPass, Given
from torch_gnnscale.nn.hops import BatchHops
from torch_gnnscale.nn.wrapper import Call


@pytest.mark.parametrize(
    ("given", "groups"),
    [
        pytest.param([(10, [4, 10, 20])], 2, id="those of the trial"),
        pytest.param([(12, [4, 10, 20])], 3, id="more rows"),
        pytest.param([(9, [4, 10, 20])], 3, id="fewer rows"),
        pytest.param([(12, [1, 1, 20])], 2, id="a single row, which was broadcast"),
        pytest.param([(0, [1, 1, 20])], 3, id="less than a single row"),
        pytest.param([(10, [4, 10, 20]), (15, [2, 7, 9])], 2, id="a type with rows of more groups"),
        pytest.param([(9, [4, 10, 20]), (15, [2, 7, 9])], 3, id="a type with fewer rows"),
    ],
)
def test_the_trial_counts_where_there_are_rows_enough(given, groups):
    forward_pass = ForwardPass(BatchHops(next(iter(batches()))), calls=[Call("conv", 2)])
    rows = [Given(number, of_groups) for number, of_groups in given]
    assert forward_pass.groups("conv", 3, (None,), rows) == groups
    assert (forward_pass.differs is None) == (groups == 2)
