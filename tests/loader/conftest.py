import pytest
from helpers.data import make_data, no_loader_threads


@pytest.fixture(scope="module")
def data():
    return make_data()


@pytest.fixture
def threads_end():
    """Fails a test after which threads of a loader are left."""
    yield
    assert no_loader_threads()
