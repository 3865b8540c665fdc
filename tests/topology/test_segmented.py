"""A graph whose edges lie on a GPU, interleaved over its peers, and in host memory: other processes share it, and what
does not fit is said. Host memory stands for GPUs where there is none."""

import multiprocessing.queues
import pickle
import re
from itertools import accumulate, pairwise

import pytest
import torch
import torch.multiprocessing
from helpers.data import make_data
from helpers.edges import random_edges
from helpers.graphs import assert_same
from helpers.hetero import make_hetero

from torch_gnnscale import CSC, LayerSampler, NeighborSampler, ops
from torch_gnnscale import memory as host_memory
from torch_gnnscale.memory import format_bytes
from torch_gnnscale.sampler.executor import GPUExecutor, on_gpu
from torch_gnnscale.sampler.minibatch import PreparedSeeds
from torch_gnnscale.topology import segmented
from torch_gnnscale.topology.segmented import Given, SegmentedCSC, _ends_of

CPU = torch.device("cpu")
SEEDS = [torch.arange(20), torch.arange(5)]
FORMS = ["beside", "apart", "without ids"]


def csc_of(form: str) -> CSC:
    csc = CSC.from_data(make_data())
    if form == "beside":  # columns of one matrix
        return csc
    return CSC(csc.colptr, csc.row.contiguous(), csc.edge_id.contiguous() if form == "apart" else None, csc.num_src)


def sizes_of(csc: CSC) -> tuple[int, int]:
    """The bytes of the column pointers and of an edge."""
    return csc.colptr.nbytes, csc.row.element_size() * (1 if csc.edge_id is None else 2)


def drawn(graph: SegmentedCSC) -> list[torch.Tensor]:
    bulks = ops.PreparedBulks([graph.edges()], [len(graph.colptr) - 1], [3, -1], graph.device)
    samples = bulks.sample_many([[ids] for ids in SEEDS], [1, 2])
    return [
        getattr(sample, name)[0].cpu() for sample in samples for name in ("node", "colptr", "edge_index", "edge_id")
    ]


def assert_all_equal(found, expected) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("num_edges", [0, 1, 60])
@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_a_cut_has_every_edge(num_edges, share):
    csc = CSC.from_edge_index(random_edges(20, 20, num_edges), 20)
    room = int(share * (csc.colptr.nbytes + csc.row.nbytes + csc.edge_id.nbytes))
    cut = SegmentedCSC.cut(csc, CPU, room, copied=False)
    assert torch.equal(cut.colptr, csc.colptr)
    assert torch.equal(torch.cat(cut.row), csc.row)
    assert torch.equal(torch.cat(cut.edge_id), csc.edge_id)


def test_ids_that_are_no_columns_of_the_sources_matrix_stay_apart():
    csc = csc_of("beside")
    (edges,) = _ends_of(csc)
    assert edges.shape == (csc.num_edges, 2)
    assert all(torch.equal(mine, given) for mine, given in zip(edges.unbind(1), (csc.row, csc.edge_id), strict=True))
    other = torch.stack([csc.row, csc.edge_id], 1)[:, 1]  # of the same strides, in another matrix
    wide, plain = csc.edge_id.long(), csc.edge_id.contiguous()
    for edge_id in (other, wide, plain):
        row, found = _ends_of(CSC(csc.colptr, csc.row, edge_id, csc.num_src))
        assert row is csc.row
        assert found is edge_id
    one = torch.arange(2 * csc.num_edges, dtype=torch.int32)
    apart = CSC(csc.colptr, one[: csc.num_edges], one[1 : csc.num_edges + 1], csc.num_src)  # begins beside it
    assert len(_ends_of(apart)) == 2


def test_graphs_are_equal_if_they_are_the_same():
    one, other = (SegmentedCSC.cut(csc_of("apart"), CPU, 0, copied=False) for _ in range(2))
    assert len({one, other, one}) == 2
    assert one != other


def test_host_memory_of_a_graph_is_moved_to_huge_pages(monkeypatch):
    moved = []
    monkeypatch.setattr(segmented.HostMemory, "use_huge_pages", lambda memory: moved.append(memory))
    assert [SegmentedCSC.cut(csc_of("apart"), CPU, 0, copied=True).memory] == moved


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("peers", [1, 2, 3, 4])
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_edges_interleaved_over_peers(device, copied, peers, form):
    """Edges are where the tiers' arithmetic looks for them, and samples are the same as of one memory."""
    if device == "cuda" and not copied:
        pytest.skip("a GPU reads no host memory that is not pinned")
    csc, where = csc_of(form), torch.device(device)
    expected = drawn(SegmentedCSC.cut(csc, CPU, 0, copied=False))
    pointers, edge = sizes_of(csc)
    all_edges = csc.num_edges
    for own, share in [(0, 0), (0, 1), (0, 40), (7, 30), (all_edges - 1, 5), (0, all_edges), (all_edges, 3), (None, 9)]:
        room = 0 if own is None else pointers if own == 0 else pointers + own * edge + edge - 1
        graph = SegmentedCSC.cut(csc, where, room, copied, [where] * peers, share * edge + edge - 1)
        pointers_there, own = own is not None, own or 0
        on_peers = min(share * peers, all_edges - own)
        assert (graph.memory is None) == (not copied or (pointers_there and own + on_peers == all_edges))
        counts = {"gpu": own, "peers": on_peers, "host": all_edges - own - on_peers}
        assert graph.tiers == {name: peers if name == "peers" else 1 for name, count in counts.items() if count}
        begin = 0
        for first, last in pairwise(accumulate(counts.values(), initial=0)):
            width = 0 if first == last else peers if (first, last) == (own, own + on_peers) and on_peers else 1
            for number in range(width):
                assert torch.equal(graph.row[begin + number].cpu(), csc.row[first:last][number::width])
            begin += width
        assert_all_equal(drawn(graph), expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kinds", [("weight",), ("time",), ("weight", "time")])
def test_weights_and_times_lie_where_their_edges_do(form, kinds):
    csc = csc_of(form)
    pointers, edge = sizes_of(csc)
    values = {kind: torch.arange(csc.num_edges) * 3 + at for at, kind in enumerate(kinds)}
    room = pointers + 50 * (edge + 8 * len(kinds))
    for peers, given in (([], None), ([CPU] * 2, Given(csc, 0.5, [1, 1], **values))):
        graph = SegmentedCSC.cut(csc, CPU, room, bool(peers), peers, 40 * (edge + 8 * len(kinds)), given, **values)
        graphs = [graph, pickle.loads(pickle.dumps(graph))] if peers else [graph]
        for of in graphs:
            sizes = [50, 40, 40, csc.num_edges - 130] if peers else [50, csc.num_edges - 50]
            assert [len(part) for part in of.row] == sizes
            for kind in ("weight", "time"):
                parts = getattr(of, kind)
                assert (parts is not None) == (kind in kinds)
                if parts is not None:
                    assert [len(part) for part in parts] == sizes
                    assert torch.equal(parts[0], values[kind][:50])
                    assert torch.equal(parts[-1], values[kind][-sizes[-1] :])


@pytest.mark.parametrize("form", FORMS)
def test_another_process_shares_peers_and_host_memory(form):
    csc = csc_of(form)
    pointers, edge = sizes_of(csc)
    for room in (pointers + 50 * edge, 0):
        graph = SegmentedCSC.cut(csc, CPU, room, True, [CPU] * 3, 40 * edge, Given(csc, 0.5, [1, 1, 1]))
        other = pickle.loads(pickle.dumps(graph))
        assert other.tiers == graph.tiers
        assert_all_equal(drawn(other), drawn(graph))
        graph.row[-1][0] += 1  # in host memory, which both have
        assert torch.equal(other.row[-1], graph.row[-1])
        assert graph.memory is not None
        assert other.memory is not graph.memory


def test_another_gpu_has_its_own_first_edges(monkeypatch):
    csc = csc_of("apart")
    pointers, edge = sizes_of(csc)
    graph = SegmentedCSC.cut(csc, CPU, pointers + 50 * edge, True, [CPU] * 2, 40 * edge, Given(csc, 0.5, [1, 1]))
    monkeypatch.setattr(segmented, "checked_device", torch.device)
    assert graph.on("cpu") is graph
    monkeypatch.setattr(segmented, "unreadable_peer", lambda device, count: None)
    other = graph.on("meta")
    assert (other.device, other.tiers) == (torch.device("meta"), graph.tiers)
    assert [part.device.type for part in (other.colptr, *other.row)] == ["meta", "meta", "cpu", "cpu", "cpu"]
    for mine, theirs in zip(graph.row[1:], other.row[1:], strict=True):
        assert mine.data_ptr() == theirs.data_ptr()
    monkeypatch.setattr(segmented, "unreadable_peer", lambda device, count: count - 1)
    with pytest.raises(ValueError, match=r"^device: expected a GPU that can read GPU 1, found meta$"):
        graph.on("meta")
    with pytest.raises(ValueError, match=r"^device: expected a GPU for a graph of meta, found cpu$"):
        other.on("cpu")


@pytest.fixture
def gpus(monkeypatch):
    """GPUs with 10^6 free bytes each, that read each other. Returns what a graph is cut into."""
    asked = []

    def cut(csc, device, room, copied, peers, share, given, **_):
        asked.append((room, copied, [peer.index for peer in peers], share))

    monkeypatch.setattr(segmented, "free_on_gpu", lambda device, wanted: 10**6)
    monkeypatch.setattr(segmented, "unreadable_peer", lambda device, count: None)
    monkeypatch.setattr(SegmentedCSC, "cut", cut)
    return asked


GPU = torch.device("cuda", 0)


def test_what_each_gpu_is_to_hold(gpus, monkeypatch):
    csc = csc_of("apart")
    pointers, edge = sizes_of(csc)
    size = pointers + csc.num_edges * edge
    SegmentedCSC.on_gpu(csc, GPU, None, ["25%", 0.25])
    SegmentedCSC.on_gpu(csc, GPU, 0.5, [100])
    SegmentedCSC.on_gpu(csc, GPU, 0, [100] * 3)
    assert gpus == [
        (pointers, True, [0, 1], size // 4), (size // 2, True, [0], 100), (0, True, [0, 1, 2], 100),
    ]  # fmt: skip
    monkeypatch.setattr(segmented, "unreadable_peer", lambda device, count: 1 if count else None)
    message = r"^graph_on_peers=\[100, 100\]: their edges are left to host memory, for cuda:0 cannot read GPU 1$"
    with pytest.warns(UserWarning, match=message):
        SegmentedCSC.on_gpu(csc, GPU, 0.5, [100, 100])
    assert gpus[-1] == (size // 2, True, [], 0)
    with pytest.warns(UserWarning, match=message):
        SegmentedCSC.on_gpu(csc, GPU, None, [100, 100])
    assert gpus[-1] == (pointers, True, [], 0)  # not the whole graph, though it would fit


@pytest.mark.parametrize("pinned", [False, True])
def test_a_graph_without_a_budget_is_on_the_gpu_if_it_fits(gpus, pinned, monkeypatch):
    csc = csc_of("apart")
    size = csc.colptr.nbytes + csc.row.nbytes + csc.edge_id.nbytes
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: pinned)
    monkeypatch.setattr(segmented, "_SPARE", 1000)
    monkeypatch.setattr(segmented, "free_on_gpu", lambda device, wanted: size + 1000)
    SegmentedCSC.on_gpu(csc, GPU)
    monkeypatch.setattr(segmented, "free_on_gpu", lambda device, wanted: size + 999)
    if pinned:
        SegmentedCSC.on_gpu(csc, GPU)
        assert gpus == [(0, False, [], 0)] * 2
        return
    message = (
        f"the graph's {format_bytes(size)} do not fit beside what is in cuda:0's memory ({format_bytes(size + 999)} "
        f"free): pinned host memory holds them, which is read over the bus; graph_on_gpu= says how much of the graph "
        f"the GPU is to hold"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        SegmentedCSC.on_gpu(csc, GPU)
    assert gpus == [(size, True, [], 0), (0, True, [], 0)]


def test_one_budget_for_all_relations(gpus, monkeypatch):
    graphs = [csc_of("apart"), csc_of("without ids"), csc_of("apart")]
    relations = [segmented.Edges(csc) for csc in graphs]
    sizes = [(csc.colptr.nbytes, csc.num_edges * sizes_of(csc)[1]) for csc in graphs]
    pointers, edges = (sum(of) for of in zip(*sizes, strict=True))
    room = pointers + edges // 3
    SegmentedCSC.all_on_gpu(relations, GPU, room, [edges // 4] * 2)
    on_gpu = [of * (edges // 3) // edges for _, of in sizes]
    left = edges - sum(on_gpu)
    assert gpus == [
        (pointer + there, True, [0, 1], (edges // 4) * (of - there) // left)
        for (pointer, of), there in zip(sizes, on_gpu, strict=True)
    ]
    assert room - len(graphs) <= sum(held for held, *_ in gpus) <= room
    gpus.clear()
    SegmentedCSC.all_on_gpu(relations, GPU, None, ["10%"])  # the column pointers alone
    assert [held for held, *_ in gpus] == [pointer for pointer, _ in sizes]
    gpus.clear()
    SegmentedCSC.all_on_gpu(relations, GPU, sizes[0][0] + 1)  # only the first relation's fit
    assert [held for held, *_ in gpus] == [sizes[0][0] + sizes[0][1] // edges, 0, 0]
    monkeypatch.setattr(segmented, "free_on_gpu", lambda device, wanted: room - 1)
    message = rf"^graph_on_gpu: expected {room} bytes of memory on cuda:0, found {room - 1} free$"
    with pytest.raises(MemoryError, match=message):
        SegmentedCSC.all_on_gpu(relations, GPU, room)
    assert len(gpus) == 3


def test_peers_hold_no_more_than_their_budget(gpus):
    """Where the edges of relations whose column pointers do not fit lie on peers and in host memory alone."""
    relations = [segmented.Edges(csc_of("apart"))] * 3
    pointers, _ = sizes_of(relations[0].csc)
    SegmentedCSC.all_on_gpu(relations, GPU, 2 * pointers - 1, [100])
    assert [held >= pointers for held, *_ in gpus] == [True, False, False]
    assert 98 <= sum(share for *_, share in gpus) <= 100


def test_a_relation_made_anew_holds_as_much(monkeypatch):
    """In another process, of which the budget is a share of the relation."""
    found = []
    monkeypatch.setattr(segmented, "free_on_gpu", lambda device, wanted: 1 << 40)
    monkeypatch.setattr(SegmentedCSC, "cut", lambda csc, device, room, *_, **__: found.append(room))
    relations = [segmented.Edges(csc_of(form)) for form in FORMS]
    for percent in range(0, 101, 4):
        budgets = []
        for relation, part in zip(relations, _budgets(relations, percent / 100), strict=True):
            room, _, given = part
            budgets.append(room)
            SegmentedCSC.on_gpu(relation.csc, CPU, given.budget)
        assert found == budgets
        found.clear()


def _budgets(relations, share):
    sizes = [(of.csc.colptr.nbytes, of.csc.num_edges * sizes_of(of.csc)[1]) for of in relations]
    pointers, edges = zip(*sizes, strict=True)
    return segmented._budgets_of(relations, pointers, edges, int(share * (sum(pointers) + sum(edges))), 0, share, ())


@pytest.mark.parametrize("budget", [0, "20%", 0.7, "1GiB"])
def test_relations_within_one_budget_are_drawn_from(budget, monkeypatch):
    """By the phases of a GPU, in place of which the host holds its share."""
    monkeypatch.setattr(segmented, "free_on_gpu", lambda device, wanted: 1 << 40)
    sampler = NeighborSampler(make_hetero(), [3, 2])
    cscs = on_gpu(sampler.graph, CPU, budget, ())
    seeds = [PreparedSeeds([torch.arange(5)] * len(sampler.graph.sizes), (0,))]
    (expected,) = sampler.executor.draw(seeds, [1], sampler.drawing)
    for graph in (cscs, [pickle.loads(pickle.dumps(csc)) for csc in cscs]):
        (found,) = GPUExecutor(sampler.graph, CPU, graph).draw(seeds, [1], sampler.drawing)
        assert_same(found, expected)
        shares = [csc.row[0].numel() / max(sum(map(len, csc.row)), 1) for csc in graph if csc.tiers.get("gpu")]
        assert len(shares) == (0 if budget == 0 else len(cscs))
        assert max(shares, default=0) - min(shares, default=0) < 0.1


def test_a_gpu_without_room(gpus):
    csc = csc_of("apart")
    size = csc.colptr.nbytes + csc.row.nbytes + csc.edge_id.nbytes
    assert size < 10**6
    SegmentedCSC.on_gpu(csc, GPU, 1 << 40)
    assert gpus == [(size, True, [], 0)]  # no more than there is


@pytest.mark.parametrize(("budget", "peers"), [(100, []), ("100B", []), ("1%", []), (None, ["1%"])], ids=str)
def test_bytes_that_are_left_to_the_host_are_taken_although_less_is_available(budget, peers, monkeypatch):
    csc = csc_of("apart")
    monkeypatch.setattr(host_memory, "available_memory", lambda: 100)
    found = r"^graph: expected \d+ bytes of memory, found 100 available"
    if budget in (100, "100B"):
        with pytest.warns(UserWarning, match=f"{found}: they are taken, as asked, and the process is killed"):
            assert SegmentedCSC.cut(csc, CPU, 100, copied=True, given=Given(csc, budget, peers)).memory is not None
        return
    with pytest.raises(MemoryError, match=f"{found}; raise graph_on_gpu= or graph_on_peers=$"):
        SegmentedCSC.cut(csc, CPU, 100, copied=True, given=Given(csc, budget, peers))


def test_a_peer_without_room(gpus, monkeypatch):
    csc = csc_of("apart")
    pointers, _ = sizes_of(csc)
    free = {0: 10**6, 1: 50}
    monkeypatch.setattr(segmented, "free_on_gpu", lambda device, wanted: free[device.index])
    with pytest.raises(MemoryError, match=r"^graph_on_peers: expected 100 bytes of memory on cuda:1, found 50 free$"):
        SegmentedCSC.on_gpu(csc, GPU, None, [100, 100])
    free[0] = pointers + 99  # room for the column pointers, but not for a share beside them
    expected = rf"^graph_on_peers: expected {pointers + 100} bytes of memory on cuda:0, found {pointers + 99} free$"
    with pytest.raises(MemoryError, match=expected):
        SegmentedCSC.on_gpu(csc, GPU, None, [100, 100])
    monkeypatch.setattr(segmented, "free_on_gpu", lambda device, wanted: pointers - 1)
    for given, name, asked in (((None, [9]), "peers", pointers), ((0.5, []), "gpu", None)):
        with pytest.raises(MemoryError) as caught:
            SegmentedCSC.on_gpu(csc, GPU, *given)
        asked = asked or (pointers + csc.num_edges * sizes_of(csc)[1]) // 2
        found = f"graph_on_{name}: expected {asked} bytes of memory on cuda:0, found {pointers - 1} free"
        assert str(caught.value) == found
    assert gpus == []
    monkeypatch.setattr(segmented, "free_on_gpu", lambda device, wanted: pointers + 100 if device.index == 0 else 100)
    SegmentedCSC.on_gpu(csc, GPU, None, [100, 100])
    assert gpus == [(pointers, True, [0, 1], 100)]  # just enough


def draw_there(samplers: list, found: multiprocessing.queues.Queue) -> None:
    """In another process: sends samples as bytes, so that no tensor depends on its life."""
    torch.cuda.set_device(0)
    found.put([
        [value.cpu().numpy().tobytes() for value in (sample.node, sample.row)]
        for sample in (sampler.on("cuda:0").sample(torch.arange(30), None, key=5) for sampler in samplers)
    ])  # fmt: skip


@pytest.mark.cuda
@pytest.mark.slow
def test_two_processes_on_one_gpu():
    """One process's memory, of its GPU and pinned, is read by the other."""
    data = make_data()
    options = {"device": "cuda", "graph_on_gpu": "40%", "graph_on_peers": ["20%"]}
    samplers = [NeighborSampler(data, [3, 2], **options), LayerSampler(data, [20, 10], **options)]
    csc = samplers[0].executor.cscs[0]
    assert csc.tiers == {"gpu": 1, "peers": 1, "host": 1}
    several = NeighborSampler(data, [3, 2], device="cuda")  # one GPU stands for three peers
    given = samplers[0].graph.relations[0].csc
    pointers, edge = sizes_of(given)
    cut = SegmentedCSC.cut(given, csc.device, pointers, True, [csc.device] * 3, 50 * edge, Given(given, None, [1] * 3))
    several.executor = GPUExecutor(several.graph, csc.device, [cut])
    context = torch.multiprocessing.get_context("spawn")
    found = context.Queue()
    process = context.Process(target=draw_there, args=([*samplers, several], found))
    process.start()
    there = found.get(timeout=120)
    process.join(60)
    assert process.exitcode == 0
    here = [NeighborSampler(data, [3, 2]), LayerSampler(data, [20, 10]), NeighborSampler(data, [3, 2])]
    for sampler, values in zip(here, there, strict=True):
        sample = sampler.sample(torch.arange(30), None, key=5)
        assert values == [value.numpy().tobytes() for value in (sample.node, sample.row)]
