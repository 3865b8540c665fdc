"""A generated database for the tests of this folder. relbench is imported when a test needs it: that takes a second."""

import pytest


@pytest.fixture(scope="session")
def graph_of(shop):
    """A function that opens a task of the shop, once."""
    from torch_gnnscale import relational

    opened = {}

    def of(task):
        if task not in opened:
            opened[task] = relational.open_task(shop, task)
        return opened[task]

    return of
