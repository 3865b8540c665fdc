"""Arguments and files that nobody would write: an error that says what is wrong, or a right result, never a crash.

``GNNSCALE_FUZZ=100000 pytest tests/test_fuzz.py`` (``make fuzz``) tries as many cases; by default it is a sample.
"""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from helpers.data import edges_of, node_rows
from helpers.forked import run
from helpers.slow import NIGHTLY
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_gnnscale import FeatureStore, GraphStore, files, ops
from torch_gnnscale.ops.layer_drawing import AGGREGATIONS, METHODS, SCHEMES, SCORES, WEIGHTS

TOTAL = int(os.environ.get("GNNSCALE_FUZZ", "1000"))
FRIENDLY = (ValueError, TypeError, IndexError, NotImplementedError, OSError)
NATIVE = (*FRIENDLY, RuntimeError, MemoryError)  # what Python cannot know before: malformed graphs, no memory


@pytest.fixture(scope="module", autouse=True)
def little_memory():
    """A graph of 2^31 nodes may be asked for: no memory for it is an answer, the machine's last page is none."""
    resource = pytest.importorskip("resource")
    status = Path("/proc/self/status")
    if not status.exists():
        yield
        return
    used = next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmSize")) << 10
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


numbers = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([-(1 << 63), -(1 << 31), 1 << 31, (1 << 31) - 1, 1 << 62, (1 << 63) - 1, True, None, 1.5, "3"]),
)
dtypes = st.sampled_from(
    [torch.int64, torch.int32, torch.int64, torch.int32, torch.float32, torch.float64, torch.int16, torch.bool]
)


@st.composite
def tensors(draw, least=-3, most=12):
    """Small tensors of any shape and stride, most of them vectors of small ids; or no tensors."""
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return draw(st.sampled_from([None, [1, 2], 3, "x", torch.ones(2, 2).to_sparse(), torch.tensor(1)]))
    shape = draw(st.one_of(st.tuples(st.integers(0, 12)), st.lists(st.integers(0, 5), max_size=3).map(tuple)))
    count = max(1, torch.Size(shape).numel())
    values = torch.tensor(draw(st.lists(st.integers(least, most), min_size=count, max_size=count)))
    if kind == 1:
        values[draw(st.integers(0, count - 1))] = draw(st.sampled_from([1 << 62, -(1 << 63), (1 << 31), 1 << 40]))
    value = values[: torch.Size(shape).numel()].view(shape).to(draw(dtypes))
    if kind == 2 and value.dim() > 0:
        value = value.flip(0)[::2] if draw(st.booleans()) else value.transpose(0, -1)
    if kind == 3 and value.dim() > 0 and len(value) > 0:
        value = value[:1].expand(4, *value.shape[1:])
    return value


@st.composite
def graphs(draw):
    """A CSC that is right, or nearly."""
    degrees = draw(st.lists(st.integers(0, 6), max_size=8))
    colptr = torch.tensor([0, *torch.tensor(degrees, dtype=torch.int64).cumsum(0).tolist()])
    count, last = sum(degrees), max(len(degrees) - 1, 0)
    row = torch.tensor(draw(st.lists(st.integers(0, last), min_size=count, max_size=count)), dtype=torch.int64)
    row = row.to(draw(st.sampled_from([torch.int32, torch.int64])))
    for values in (colptr, row):
        if len(values) and draw(st.integers(0, 4)) == 0:
            values[draw(st.integers(0, len(values) - 1))] = draw(
                st.sampled_from([-1, 99, -(1 << 31), (1 << 31) - 1, 0, 3])
            )
    if draw(st.integers(0, 9)) == 0:
        colptr = draw(tensors())
    if draw(st.integers(0, 9)) == 0:
        row = draw(tensors())
    return colptr, row


def sample(colptr, row, seeds, fanouts, key, edge_id=None, time=None, **options):
    options |= {name: [options[name]] for name in ("seed_time", "seed_start_time") if name in options}
    graph = ops.relations([colptr], [row], edge_id=[edge_id], time=[time])
    return ops.sample_neighbors(graph, [seeds], fanouts, key, **options)


def layers(colptr, row, seeds, num_nodes, key, drawing, edge_id=None, **options):
    return ops.sample_layers(
        ops.relations([colptr], [row], edge_id=[edge_id]), seeds, num_nodes, key, drawing, **options
    )


def layer_bulk(colptr, row, seeds, num_nodes, key, drawing, **options):
    ends = options.pop("seed_ptr", [0, len(seeds) if isinstance(seeds, torch.Tensor) and seeds.dim() else 0])
    return ops.sample_layers_bulk(colptr, row, seeds, ends, num_nodes, [key], drawing, **options)


optional = st.one_of(st.none(), tensors())
threads = st.one_of(st.integers(0, 3), numbers)
keys = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), numbers)
flags = st.booleans()

quadrants = st.lists(st.floats(-1, 2) | st.just(0.25), max_size=4)
sampling = {
    "edge_id": optional,
    "time": optional,
    "seed_time": optional,
    "seed_start_time": optional,
    "replace": flags,
    "layers": flags,
    "with_edge_id": flags,
    "with_col": flags,
    "disjoint": st.sampled_from([False] * 9 + [True]),
    "threads": threads,
}
drawings = st.builds(
    ops.LayerDrawing,
    *(
        st.one_of(st.sampled_from([*known] * 4), st.sampled_from(["x", None]))
        for known in (METHODS, SCHEMES, SCORES, AGGREGATIONS, WEIGHTS)
    ),
    flags,
    flags,
)
counts = numbers.filter(lambda count: count != (1 << 31) - 1)  # the most that may be drawn, which would take minutes
hops = st.one_of(st.lists(st.integers(-1, 9), max_size=3), st.lists(counts, max_size=3))
layered = {"edge_id": optional, "score": optional, "layers": flags, "include_dst": flags}
of_layers = st.tuples(graphs(), tensors(), hops, keys, drawings)
aggregating = {"weight": optional, "edge": optional, "num_edges": numbers, "threads": threads}
extremes = {"edge": optional, "num_edges": numbers}
CALLS = {
    "first_outside": (st.tuples(tensors(), numbers, threads), {}),
    "check_colptr": (st.tuples(tensors(0), numbers, threads), {}),
    "coo_to_csc": (st.tuples(tensors(), tensors(), numbers, numbers, threads), {}),
    "gather_rows": (st.tuples(tensors(), tensors(), threads), {}),
    "random_bits": (st.tuples(st.integers(-3, 300), keys, numbers, threads), {}),
    "permutation": (st.tuples(st.integers(-3, 300), keys), {}),
    "rmat_edges": (st.tuples(numbers, st.integers(-2, 50), keys, quadrants, numbers, threads), {}),
    "sample_neighbors": (st.tuples(graphs(), tensors(), st.lists(numbers, max_size=4), keys), sampling),
    "sample_layers": (of_layers, layered),
    "sample_layers_bulk": (of_layers, {**layered, "seed_ptr": st.lists(numbers, max_size=3), "threads": threads}),
    "choose_nodes": (
        st.tuples(tensors(), tensors(1), counts, st.sampled_from([*SCHEMES, "x"]), keys, numbers),
        {},
    ),
    "choose_edges": (
        st.tuples(tensors(), tensors(1), st.lists(numbers, max_size=4), st.lists(keys, max_size=3), numbers, counts),
        {"scheme": st.sampled_from([*SCHEMES, "x"])},
    ),
    "cut_batch": (
        st.tuples(tensors(), st.lists(numbers, max_size=4), tensors(), tensors(), tensors(), counts, numbers),
        {},
    ),
    "aggregate": (st.tuples(graphs(), tensors(), st.sampled_from([*ops.REDUCTIONS, "x"])), aggregating),
    "edge_dot": (st.tuples(graphs(), tensors(), tensors(), numbers), {"edge": optional}),
    "edge_attention": (st.tuples(graphs(), tensors()), {"of_columns": optional, "of_entries": optional}),
    "edge_attention_backward": (st.tuples(graphs(), tensors(), optional, optional, tensors(), tensors()), {}),
    "share_of_extremes": (st.tuples(graphs(), tensors(), tensors(), tensors()), {}),
    "extreme_backward": (st.tuples(graphs(), tensors(), tensors(), tensors()), extremes),
}


WRAPPED = {"sample_neighbors": sample, "sample_layers": layers, "sample_layers_bulk": layer_bulk}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_arguments(name):
    call = WRAPPED.get(name) or getattr(ops, name)
    strategy, options = CALLS[name]

    @settings(max_examples=max(20, TOTAL // (len(CALLS) + 4)))
    @given(strategy, st.fixed_dictionaries({}, optional=options))
    def fuzz(arguments, chosen):
        if isinstance(arguments[0], tuple):
            arguments = (*arguments[0], *arguments[1:])
        try:
            out = call(*arguments, **chosen)
        except NATIVE:
            return
        if name == "sample_layers":
            assert out.edge_index[0].size(1) == len(out.edge_weight[0]) == sum(out.num_edges[0])
            assert bool((out.edge_weight[0] >= 0).all())
        if name == "choose_nodes" and len(arguments[0].unique()) == len(arguments[0]):
            assert bool((out[0].diff() > 0).all())
            assert bool((out[1] > 0).all())
        if name in WRAPPED:
            colptr, _, seeds = arguments[:3]
            if name == "sample_layers_bulk":
                (out,) = out
            if not chosen.get("include_dst", True):
                return  # sources have local ids of their own in each hop
            src = out.node[0][out.edge_index[0][0]]
            assert torch.equal(out.node[0][: len(seeds)], seeds.long())
            assert bool(((src >= 0) & (src < len(colptr) - 1)).all())
            assert len(src) == sum(out.num_edges[0]) == int(out.colptr[0][-1])

    fuzz()


# Files ###############################################################################################################


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    GraphStore.from_edge_index(edges_of(60, 400), 60).save(folder / "graph")
    store = FeatureStore()
    store.put_tensor(node_rows(torch.arange(60)), group_name=None, attr_name="x", index=None)
    store.put_tensor(torch.arange(60).to(torch.bfloat16), group_name="a", attr_name="y", index=None)
    store.save(folder / "features")
    return folder


def damage_bytes(file, draw):
    content = bytearray(file.read_bytes())
    kind, at = draw(st.integers(0, 3)), draw(st.integers(0, len(content)))
    some = draw(st.binary(max_size=8))
    if kind == 0:
        content = content[:at]
    elif kind == 1:
        content[at:at] = some
    elif kind == 2:
        content[at : at + len(some)] = some
    else:
        del content[at : at + draw(st.integers(0, 200))]
    file.write_bytes(content)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def damage_json(file, draw):
    manifest = json.loads(file.read_text())
    place = manifest
    for _ in range(draw(st.integers(0, 6))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        if draw(st.integers(0, 2)) == 0 or not isinstance(place[key], (dict, list)):
            place[key] = draw(json_values | st.integers(-2, 500) | st.sampled_from(["int32", "float64", "int64", [60]]))
            break
        place = place[key]
    if draw(st.booleans()):  # as if it had been saved so; else the checksum tells
        manifest["crc32"] = files._checksum(manifest)
    file.write_text(json.dumps(manifest))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["graph", "features"])
@pytest.mark.parametrize("damage", [damage_bytes, damage_json], ids=["bytes", "json"])
def test_files(saved, tmp_path, kind, damage):
    folder = tmp_path / kind

    @settings(max_examples=max(20, TOTAL // (len(CALLS) + 4)))
    @given(st.data())
    def fuzz(data):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(saved / kind, folder)
        names = sorted(file.name for file in folder.iterdir())
        name = files.MANIFEST if damage is damage_json else data.draw(st.sampled_from(names))
        damage(folder / name, data.draw)
        cls = GraphStore if kind == "graph" else FeatureStore
        with suppress(*FRIENDLY):
            cls.open(folder, verify=True)
        try:
            store = cls.open(folder, verify=False)
        except FRIENDLY:
            return
        if kind == "features":
            for attr in store.get_all_tensor_attrs():
                attr.index = torch.tensor([0, 3])
                with suppress(*FRIENDLY):
                    store.get_tensor(attr)
            return
        for attr in store.get_all_edge_attrs():
            csc = store.relation(attr.edge_type)
            with suppress(*NATIVE):
                ops.sample_neighbors(csc.relations(), [torch.arange(5)], [3, -1], 1)

    fuzz()


def crashes(helper, count, seconds, request):
    """What two processes that make ``count`` hostile cases of a helper found: none should be."""
    seed = request.config.getoption("hypothesis_seed")
    first = (int(seed) if str(seed).isdigit() else 0) << 20
    code = f"import sys; from helpers.{helper} import main; main(*sys.argv[1:])"
    starts = range(first, first + count, -(-count // 2))
    with ThreadPoolExecutor(len(starts)) as pool:
        each = [pool.submit(run, code, str(k), str(starts.step), timeout=120 + seconds * count) for k in starts]
        done = [process.result() for process in each]
    assert [process.returncode for process in done] == [0] * len(starts), [process.stderr for process in done]
    return [case for process in done for case in json.loads(process.stdout.splitlines()[-1])]


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, NIGHTLY(max(1600, TOTAL // 60))])
def test_crafted_directories(request, count):
    """Directories of parts, stores and tables with one fault and right checksums, used by one process or by two ranks:
    none crashes, hangs, returns rows that are in no file, or raises what is not meant for users."""
    assert crashes("crafted_cases", count, 5.0, request) == []


@pytest.mark.slow
def test_raw_calls(request):
    """Operators without their wrappers: an error or a result, as if everybody had meant well."""
    assert crashes("raw_calls", max(300, TOTAL // 10), 0.5, request) == []
