"""The processes of the tests in this folder."""

import pytest
from helpers.cluster import close_clusters


@pytest.fixture(scope="session", autouse=True)
def clusters_end():
    """Processes that tests shared end with them."""
    yield
    close_clusters()
