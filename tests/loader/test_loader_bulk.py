"""The loader's batches are the same when they are drawn many at a time, on a CPU or a GPU."""

import copy
import warnings
from dataclasses import dataclass

import pytest
import torch
from helpers.data import make_data, plain, processes
from helpers.loader_cases import check_same_batch, draw_by_phases
from helpers.slow import SLOW
from torch_geometric import EdgeIndex
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PyGNeighborLoader
from torch_geometric.sampler import BaseSampler

from torch_gnnscale import CSC, FeatureStore, GraphStore, NeighborLoader, NeighborSampler, ops
from torch_gnnscale.loader.execution import Unpacked, tensors_of
from torch_gnnscale.topology import segmented
from torch_gnnscale.topology.segmented import SegmentedCSC

STEP = {"dealt": {"bulk": 3}, "phases": {"bulk": 3}, "cuda": {"device": "cuda"}}
PLACE = {"dealt": "cpu", "phases": "cpu", "cuda": "cuda"}


@pytest.fixture(params=["dealt", "phases", pytest.param("cuda", marks=pytest.mark.cuda)])
def way(request) -> str:
    """How bulks are drawn: dealt to a CPU's threads; by a GPU's executor and its phases, in host memory; on a GPU."""
    return request.param


def loader_of(data, way, **options):
    if way == "cuda" and isinstance(data, Data):
        data = data.clone().to("cuda")
    loader = NeighborLoader(
        data, options.pop("fanouts", [3, 2]), **{"batch_size": 16, "seed": 1, **STEP[way], **options}
    )
    if way == "phases":
        draw_by_phases(loader.node_sampler)
    return loader


def assert_equal(found, expected, way="dealt"):
    check_same_batch(found, expected, PLACE[way], PLACE[way])


@pytest.mark.parametrize("prefetch", [SLOW(0), SLOW(1), 4, SLOW(7)])
@pytest.mark.parametrize("options", [
    {}, {"shuffle": True}, {"shuffle": True, "drop_last": True}, {"layers": True}, {"replace": True},
    {"edge_layout": "EdgeIndex"}, {"edge_layout": "sparse_csr"},
    {"fanouts": [-1, 4]}, {"batch_size": 1, "input_nodes": torch.arange(40)}, {"bulk": 2}, {"bulk": 50},
    {"input_nodes": torch.tensor([3, 3, 9] * 7)},
])  # fmt: skip
def test_bulks_are_the_same_batches(way, options, prefetch):
    data = make_data()
    data.edge_attr = torch.arange(data.num_edges).view(-1, 1) * 0.5
    here = {name: value for name, value in options.items() if name != "bulk"}
    expected = NeighborLoader(data, here.pop("fanouts", [3, 2]), **{"batch_size": 16, "seed": 1, **here})
    loader = loader_of(data, way, prefetch=prefetch, **options)
    assert len(loader) == len(expected)
    for _ in range(2):  # epochs
        for found, batch in zip(loader, expected, strict=True):
            assert_equal(found, batch, way)
            if options.get("edge_layout") == "EdgeIndex":
                assert isinstance(found.edge_index, EdgeIndex)


@pytest.mark.parametrize(("prefetch", "taken"), [(0, 0), (1, 4), (4, 4), (5, 8), (8, 8)])
def test_prefetch_is_rounded_up_to_whole_bulks(prefetch, taken):
    asked = []
    batches = (asked.append(i) or [i] for i in range(40))
    iterator = iter(NeighborLoader(make_data(), [2], batch_sampler=batches, bulk=4, prefetch=prefetch))
    assert len(asked) == taken
    iterator.close()


def test_a_batch_has_all_fields_of_pygs(way):
    loader = loader_of(make_data(), way, input_nodes=torch.arange(40))
    batch = next(iter(loader))
    for name in ("x", "y", "edge_index", "n_id", "e_id", "input_id"):
        assert batch[name].device.type == PLACE[way]
    assert batch.batch_size == 16
    assert len(batch.num_sampled_nodes) == 3
    assert len(batch.num_sampled_edges) == 2
    assert issubclass(NeighborLoader, PyGNeighborLoader)


def test_stores(way):
    data = make_data()
    features = FeatureStore.from_data(data.clone().to(PLACE[way]))
    stores = (features, GraphStore.from_data(data))
    expected = NeighborLoader((FeatureStore.from_data(data), stores[1]), [3, 2], batch_size=16, seed=1)
    for found, batch in zip(loader_of(stores, way), expected, strict=True):
        assert_equal(found, batch, way)


def test_one_batch_of_given_nodes(way):
    data = make_data()
    index = torch.tensor([4, 1, 4])
    expected = NeighborLoader(data, [3, 2], batch_size=16, seed=1)(index)
    assert_equal(loader_of(data, way)(index), expected, way)


def test_going_on_within_a_bulk(way):
    data = make_data()
    expected = list(NeighborLoader(data, [3, 2], batch_size=16, seed=1, shuffle=True))
    first = loader_of(data, way, shuffle=True)
    iterator = iter(first)
    for at in range(4):
        assert_equal(next(iterator), expected[at], way)
    second = loader_of(data, way, shuffle=True)
    second.load_state_dict(first.state_dict())
    for found, batch in zip(second, expected[4:], strict=True):
        assert_equal(found, batch, way)


def test_transforms_see_batches_in_order(way):
    data, seen = make_data(), []

    def transform(batch):
        seen.append(int(batch.input_id[0]))
        return batch

    def reverse(out):
        out.node = out.node.flip(0)
        return out

    loader = loader_of(data, way, transform=transform, transform_sampler_output=reverse)
    expected = NeighborLoader(data, [3, 2], batch_size=16, seed=1, transform_sampler_output=reverse)
    for found, batch in zip(loader, expected, strict=True):
        assert_equal(found, batch, way)
    assert seen == list(range(0, data.num_nodes, 16))


def test_an_error_in_a_bulk_is_raised_where_its_batch_would_come(way):
    def fail(out):
        if out.metadata[0][0] >= 64:
            raise RuntimeError("batch 4")
        return out

    batches = iter(loader_of(make_data(), way, bulk=3, transform_sampler_output=fail))
    for _ in range(4):
        next(batches)
    with pytest.raises(RuntimeError, match="batch 4"):
        next(batches)


def test_time_is_counted(way):
    loader = loader_of(make_data(), way)
    assert len(list(loader)) == len(loader)
    assert set(loader.seconds) == {"sample", "gather"} | ({"stall"} if way == "cuda" else set())
    assert loader.seconds["sample"] > 0
    assert loader.seconds["gather"] > 0
    with pytest.raises(TypeError):
        loader.seconds["sample"] = 0.0


class Marking(NeighborSampler):
    def sample_from_nodes(self, inputs, key=None):
        out = super().sample_from_nodes(inputs, key)
        out.fields = {"mark": len(out.node)}
        return out


def test_what_a_subclass_changes_of_one_batch_is_in_bulks_too(data):
    loaders = [NeighborLoader(data, [3], neighbor_sampler=Marking(data, [3]), batch_size=50, seed=1, bulk=bulk)
               for bulk in (1, 3)]  # fmt: skip
    for one, other in zip(*loaders, strict=True):
        assert plain(one) == plain(other)
        assert one.mark == one.num_nodes


def test_samplers_of_others_do_not_draw_in_bulk():
    class Own(BaseSampler):
        edge_permutation = None

        def sample_from_nodes(self, inputs):
            raise AssertionError("it is not asked")

        sample_from_edges = sample_from_nodes

    with pytest.raises(ValueError, match="bulk=2: expected a neighbor_sampler that is a KeyedSampler, found Own"):
        NeighborLoader(make_data(), [2], neighbor_sampler=Own(), bulk=2, prefetch=0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bulk": 0}, ValueError, "bulk: expected at least 1, found 0"),
        ({"bulk": 1.5}, TypeError, "bulk: expected an int, found float"),
        ({"bulk": 2, **processes(1)}, ValueError, "bulk=2: expected num_workers=0, found 1"),
        ({"device": "xpu"}, ValueError, "device: expected 'cpu' or 'cuda', found 'xpu'"),
        ({"device": "nowhere"}, ValueError, "device: expected 'cpu' or 'cuda', found 'nowhere'"),
        ({"device": f"cuda:{torch.cuda.device_count()}"}, ValueError,
         rf"device: expected one that torch sees \(it sees {torch.cuda.device_count()} CUDA devices\), found 'cuda:"),
    ],
)  # fmt: skip
def test_bad_input(options, error, message):
    with pytest.raises(error, match=message):
        NeighborLoader(make_data(), [3, 2], batch_size=16, **options)


def test_a_sampler_beside_device_and_bulk():
    data = make_data()
    with pytest.raises(ValueError, match="device: expected none beside a neighbor_sampler"):
        NeighborLoader(data, [3], neighbor_sampler=NeighborSampler(data, [3]), device="cpu")
    loader = NeighborLoader(data, [3], neighbor_sampler=NeighborSampler(data, [3]), bulk=2, batch_size=16, seed=1)
    for found, batch in zip(loader, NeighborLoader(data, [3], batch_size=16, seed=1), strict=True):
        assert_equal(found, batch)


def test_device_cpu_is_what_it_was():
    data = make_data()
    loader = NeighborLoader(data, [3, 2], batch_size=16, seed=1, device="cpu")
    assert loader.bulk == 1
    assert set(loader.seconds) == {"sample", "gather"}
    for found, batch in zip(loader, NeighborLoader(data, [3, 2], batch_size=16, seed=1), strict=True):
        assert_equal(found, batch)


# On a GPU ############################################################################################################


@pytest.mark.cuda
def test_features_in_host_memory_are_announced_and_come_along():
    data = make_data()
    with pytest.warns(UserWarning, match="data.x is in host memory: its rows are gathered there"):
        loader = NeighborLoader(data, [3, 2], batch_size=16, seed=1, device="cuda")
    for found, batch in zip(loader, NeighborLoader(data, [3, 2], batch_size=16, seed=1), strict=True):
        assert_equal(found, batch, "cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("with_ids", [False, True])
def test_a_graph_on_the_gpu_or_pinned(with_ids, monkeypatch):
    data = make_data()
    csc = CSC.from_data(data) if with_ids else CSC.from_csc(torch.tensor([0, 2, 2, 3]), torch.tensor([1, 1, 0]))
    moved = SegmentedCSC.on_gpu(csc, torch.device("cuda", 0))
    assert [part.is_cuda for part in moved.row] == [True]
    assert moved.row[0].stride() == csc.row.stride()
    most = SegmentedCSC.on_gpu(csc, torch.device("cuda", 0), 0.9)
    assert [part.is_cuda for part in most.row] == [True, False]
    assert most.row[1].is_pinned()
    copied = copy.deepcopy(most)
    monkeypatch.setattr(segmented, "free_on_gpu", lambda device, wanted: 0)
    with pytest.warns(UserWarning, match="do not fit beside what is in cuda:0's memory"):
        pinned = SegmentedCSC.on_gpu(csc, torch.device("cuda", 0))
    assert all(part.is_pinned() for part in pinned.row)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        theirs = CSC(pinned.colptr, pinned.row[0], None if pinned.edge_id is None else pinned.edge_id[0], csc.num_src)
        assert SegmentedCSC.on_gpu(theirs, torch.device("cuda", 0)).row[0].data_ptr() == theirs.row.data_ptr()
    with pytest.raises(MemoryError, match=r"^graph_on_gpu: expected \d+ bytes of memory on cuda:0, found 0 free"):
        SegmentedCSC.on_gpu(csc, torch.device("cuda", 0), "100%")
    for other in (moved, most, pinned, copied):
        for ours, theirs in ((other.row, csc.row), (other.edge_id, csc.edge_id)):
            assert (ours is None) == (theirs is None)
            assert ours is None or torch.equal(torch.cat([part.cpu() for part in ours]), theirs)
        assert torch.equal(other.colptr.cpu(), csc.colptr)


@pytest.mark.cuda
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 1.0, "3KB"])
@pytest.mark.parametrize("layers", [False, True])
def test_a_part_of_the_graph_on_the_gpu(share, layers):
    data = make_data()
    options = {"batch_size": 16, "seed": 1, "layers": layers}
    loader = NeighborLoader(data.clone().to("cuda"), [3, 2], device="cuda", graph_on_gpu=share, **options)
    for found, batch in zip(loader, NeighborLoader(data, [3, 2], **options), strict=True):
        assert_equal(found, batch, "cuda")
    sampler = NeighborSampler(data, [3, 2], device="cuda", graph_on_gpu=share)
    seeds = torch.arange(30)
    assert torch.equal(
        sampler.sample(seeds, None, key=5).node.cpu(), NeighborSampler(data, [3, 2]).sample(seeds, None, key=5).node
    )


def drawn_from(graph, seeds):
    bulks = ops.PreparedBulks([graph.edges()], [len(graph.colptr) - 1], [3, -1], graph.device)
    return bulks.sample_many([[ids] for ids in seeds], [1, 2])


@pytest.mark.parametrize("form", ["beside", "apart", "without ids"])
def test_first_edges_in_another_memory(device, form):
    """Whatever has room there, samples are the same."""
    csc = CSC.from_data(make_data())
    if form != "beside":
        edge_id = None if form == "without ids" else csc.edge_id.contiguous()
        csc = CSC(csc.colptr, csc.row.contiguous(), edge_id, csc.num_src)
    seeds = [torch.arange(20), torch.arange(5)]
    expected = drawn_from(SegmentedCSC.cut(csc, torch.device("cpu"), 0, copied=False), seeds)
    if device == "cuda":
        edge_id = None if csc.edge_id is None else csc.edge_id.pin_memory()
        csc = CSC(csc.colptr.pin_memory(), csc.row.pin_memory(), edge_id, csc.num_src)
    size = csc.colptr.nbytes + csc.num_edges * csc.row.element_size() * (1 if form == "without ids" else 2)
    counts = []
    for room in (0, csc.colptr.nbytes - 1, csc.colptr.nbytes, csc.colptr.nbytes + 100, size - 1, size):
        graph = SegmentedCSC.cut(csc, torch.device(device), room, copied=False)
        counts.append([len(part) for part in graph.row])
        found = drawn_from(graph, seeds)
        for ours, theirs in zip(found, expected, strict=True):
            for name in ("node", "colptr", "edge_index", "edge_id"):
                assert torch.equal(getattr(ours, name)[0].cpu(), getattr(theirs, name)[0])
    edge_bytes = csc.row.element_size() * (1 if form == "without ids" else 2)
    some, all_edges = 100 // edge_bytes, csc.num_edges
    assert counts == [*[[all_edges]] * 3, [some, all_edges - some], [all_edges - 1, 1], [all_edges]]


def test_a_budget_for_the_graph_without_a_gpu():
    with pytest.raises(ValueError, match=r"^graph_on_gpu='1GiB': expected a GPU as device, found cpu$"):
        NeighborLoader(make_data(), [3], graph_on_gpu="1GiB")
    sampler = NeighborSampler(make_data(), [3])
    with pytest.raises(ValueError, match=r"^graph_on_gpu: expected none beside a neighbor_sampler"):
        NeighborLoader(make_data(), [3], neighbor_sampler=sampler, graph_on_gpu=0.5)


@pytest.mark.cuda
def test_memory_is_not_reused_before_the_batch_was():
    """The consumer's stream is behind by far when later batches are made."""
    data = make_data()
    data.x = torch.arange(data.num_nodes, dtype=torch.float32).view(-1, 1).expand(-1, 256).contiguous()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for batch in loader_of(data, "cuda", prefetch=8):
        torch.cuda._sleep(10_000_000)
        wrong += (batch.x[:, 255] != batch.n_id).sum()
    assert int(wrong) == 0


def test_lists_are_closed_when_they_end():
    class Lists:
        left, closed = [[1, 2], [3]], False

        def __next__(self):
            if not self.left:
                raise StopIteration
            return self.left.pop(0)

        def close(self):
            self.closed = True

    lists = Lists()
    assert list(Unpacked(lists, str)) == ["1", "2", "3"]
    assert lists.closed


def test_tensors_of_edges_are_those_of_their_index_and_pointer(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    edges = EdgeIndex(torch.tensor([[1, 0], [0, 1]]), sparse_size=(2, 2), sort_order="col")
    edges._indptr = torch.tensor([0, 1, 2])
    found = [tensor.data_ptr() for tensor in tensors_of(edges)]
    assert found == [edges.as_tensor().data_ptr(), edges._indptr.data_ptr()]


@dataclass(slots=True)
class Slotted:
    rows: torch.Tensor


def test_tensors_of_what_batches_consist_of():
    def pointers(value):
        return {tensor.data_ptr() for tensor in tensors_of(value)}

    class OnGPU(torch.Tensor):
        is_cuda = True

    plain, other = torch.ones(3), torch.zeros(2)
    ours = [tensor.as_subclass(OnGPU) for tensor in (plain, other)]
    assert pointers(plain) == set()
    assert pointers([ours[0], {"a": (ours[1], "text", None, 3)}]) == {plain.data_ptr(), other.data_ptr()}
    assert pointers(Slotted(ours[0])) == set()  # whose attributes nobody lists
    assert pointers(Data(x=ours[0], layers=[ours[1]])) == {plain.data_ptr(), other.data_ptr()}
