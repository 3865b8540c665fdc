"""What all tests share. Torch is imported in functions, for the process that hands out tests to others needs none."""

import gc
import os
import re
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

# Read when torch is loaded: threads that spin while they wait take the cores from another process of the same tests.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from hypothesis import settings

FOLDER = Path(__file__).parent

gc.disable()  # until all tests are collected, which makes millions of objects and next to no garbage

settings.register_profile("nightly", derandomize=True, deadline=None, database=None, max_examples=100)
settings.register_profile("repeatable", settings.get_profile("nightly"), max_examples=25)
settings.register_profile("fresh", settings.get_profile("nightly"), derandomize=False)  # of --hypothesis-seed
settings.load_profile("repeatable")


def pytest_sessionstart(session) -> None:
    """Each of several test processes starts its fork server now: it imports torch while tests are collected."""
    if hasattr(session.config, "workerinput"):
        from multiprocessing import forkserver

        import helpers.forked  # noqa: F401, what the server imports

        forkserver.ensure_running()


def pytest_collection_finish() -> None:
    gc.freeze()  # what was collected lives as long as the tests: no collection looks at it again
    gc.enable()


FEW = 4
"""A fast test with at most so many cases keeps all of them."""


def take_turns(cases: list[pytest.Function], rounds: int) -> None:
    """Marks cases of one test as nightly, and leaves some in which every value of every parameter occurs.

    Parameter i has n_i values, and n is the largest n_i. For t < n and r < ``rounds``, the cases stay in which each
    parameter i has the value number (t + r * i) modulo n_i; so does a case with a value that none of these has.
    """
    ids = [case.callspec._idlist for case in cases]  # one of each decorator, or fixture, with parameters
    values = [list(dict.fromkeys(of_one)) for of_one in zip(*ids, strict=True)]
    turns = {
        tuple(of[(t + r * i) % len(of)] for i, of in enumerate(values))
        for r in range(rounds)
        for t in range(max(map(len, values)))
    }
    seen = {pair for of_case in ids if tuple(of_case) in turns for pair in enumerate(of_case)}
    for case, of_case in zip(cases, ids, strict=True):
        if tuple(of_case) not in turns and seen.issuperset(enumerate(of_case)):
            case.add_marker(pytest.mark.nightly)
        seen.update(enumerate(of_case))


LEFT_OUT = pytest.StashKey[int]()
"""How many tests marked nightly -m has left out."""


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items) -> None:
    import torch

    tests = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and not item.get_closest_marker("nightly"):
            slow, cuda = (item.get_closest_marker(name) is not None for name in ("slow", "cuda"))
            tests[item.parent, item.originalname, slow, cuda].append(item)
    for (_, _, slow, _), cases in tests.items():
        if slow or len(cases) > FEW:
            take_turns(cases, 1 if slow else max(1, len(cases[0].callspec._idlist) - 1))
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.slow)
    # First the files of this folder, whose tests take longest: at the end, one process would wait for another.
    items.sort(key=lambda item: item.path.parent != FOLDER)
    covered = set()
    for item in items:
        if item.get_closest_marker("cuda") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="torch sees no CUDA device"))
        # Tracing makes a test take twice as long: it is for the first case of each fast one.
        if item.get_closest_marker("slow") or (item.parent, getattr(item, "originalname", None)) in covered:
            item.add_marker(pytest.mark.no_cover)
        else:
            covered.add((item.parent, getattr(item, "originalname", None)))


def pytest_deselected(items) -> None:
    if items and items[0].config.option.markexpr:
        config, number = items[0].config, sum(item.get_closest_marker("nightly") is not None for item in items)
        config.stash[LEFT_OUT] = config.stash.get(LEFT_OUT, 0) + number
        if hasattr(config, "workeroutput"):
            config.workeroutput["left_out"] = config.stash[LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    """Every process of pytest-xdist collects the same tests."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter, config) -> None:
    if number := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{number} tests marked nightly were left out: `make nightly` runs them")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Leaves out what PyG 2.6 cannot do itself beside torch from 2.11 on."""
    try:
        return (yield)
    except AttributeError as error:
        said = re.fullmatch(r"module 'torch\.fx\._symbolic_trace' has no attribute '(List|Union)'", str(error))
        if said and version("torch_geometric").startswith("2.6."):
            pytest.skip("to_hetero of PyG 2.6 does not run with this torch")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """After an error that CUDA does not recover from, no test runs in this process: each would fail, by no fault of its
    own. The test that made it is named; xdist takes a new process for the next ones."""
    done = yield
    torch = sys.modules.get("torch")
    if item.get_closest_marker("cuda") is None or torch is None or not torch.cuda.is_initialized():
        return done
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        said = f"{item.nodeid} left CUDA in a state in which nothing can run: {error}"
        if not hasattr(item.config, "workerinput"):
            pytest.exit(said, returncode=1)
        with item.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(said, file=sys.stderr, flush=True)
        os._exit(1)  # before xdist hears that the test has ended, for it would blame the next one
    return done


@pytest.fixture(scope="session", autouse=True)
def clusters_end():
    """Processes that tests shared end with them."""
    yield
    from helpers.cluster import close_clusters

    close_clusters()


@pytest.fixture(scope="session", autouse=True)
def first_layer():
    """The first layer of a PyG class decides for the whole process whether that class multiplies by sparse matrices."""
    from torch_geometric.nn import SAGEConv

    SAGEConv(1, 1)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request) -> str:
    return request.param


@pytest.fixture
def recorded_cuda(monkeypatch):
    """Records what is asked of CUDA, in place of CUDA."""
    from helpers.recorded_cuda import Recorded

    return Recorded(monkeypatch)


@pytest.fixture
def features(tmp_path):
    """A folder with saved features."""
    import torch
    from helpers.data import node_rows

    from torch_gnnscale import FeatureStore

    store = FeatureStore()
    store.put_tensor(node_rows(torch.arange(100)), group_name="paper", attr_name="x", index=None)
    store.put_tensor(torch.arange(100), group_name=None, attr_name="y", index=None)
    store.save(tmp_path / "features")
    return tmp_path / "features"


@pytest.fixture
def graph(tmp_path):
    """A folder with a saved graph."""
    from helpers.data import edges_of

    from torch_gnnscale import GraphStore

    GraphStore.from_edge_index(edges_of(100, 900), 100).save(tmp_path / "graph")
    return tmp_path / "graph"


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """The folder of a generated database, a shop."""
    from torch_gnnscale.datasets import planted_shop

    return planted_shop(tmp_path_factory.mktemp("shop") / "shop", customers=60)


@pytest.fixture
def one_thread():
    """A run is then repeatable to the bit."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
