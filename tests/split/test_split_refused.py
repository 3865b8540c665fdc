"""What split parallelism refuses, by its whole message: by one process, and by ranks in one of their steps."""

import re

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.cluster import cluster
from helpers.data import ForeignFeatureStore, make_data, our_stores
from helpers.hetero import make_hetero
from helpers.narrow import CLASSES, FEATURES, HIDDEN, OtherRows, Sized, sequence
from helpers.refused import refuses
from helpers.slow import quick
from helpers.split import GivenPlan, loader_of, random_owners
from helpers.split_models import DropsSources, NormsSources, Recomputed, own_batches
from torch import nn
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput, SamplerOutput

from torch_gnnscale import FeatureStore, GraphStore, LinkNeighborLoader, NeighborLoader, NeighborSampler, split
from torch_gnnscale.comm.exchange import Exchange
from torch_gnnscale.comm.mesh import Grid
from torch_gnnscale.comm.rendezvous import rank_and_world
from torch_gnnscale.ops.ranks import MAX_TABLES
from torch_gnnscale.sampler.base import KeyedSampler, keyed
from torch_gnnscale.split import parallelize, plans
from torch_gnnscale.split.agreement import _grid_of
from torch_gnnscale.split.cut_sampler import SplitSampler, check_sampler
from torch_gnnscale.split.parallel import Parallelized
from torch_gnnscale.split.rank_rows import ShuffleIndex

PLAN = GivenPlan(random_owners(200, 2), 2)
MOST = 2**31 - 1


class Alone(NeighborSampler):
    """A sampler that draws one batch at a time."""

    def check_many(self, inputs, how):
        raise NotImplementedError(f"{how} of one batch at a time")


class Together(NeighborSampler):
    """A sampler of ranks that sample together."""

    collective = True


def loader(data=None, plan=PLAN, **options) -> NeighborLoader:
    return NeighborLoader(make_data() if data is None else data, [3, 2], batch_size=20, split=plan, **options)


def foreign_stores():
    return ForeignFeatureStore(), our_stores(make_data())[1]


def plain(out) -> SamplerOutput:
    return SamplerOutput(out.node, out.row, out.col, out.edge)


def checked(data=None, kind=NeighborSampler, **options):
    check_sampler(kind(make_data() if data is None else data, [2], **options))


def other_parts(parts: int):
    return SplitSampler(NeighborSampler(make_data(), [2]), random_owners(199, parts), parts)


LACKS = "with split parallelism is not implemented"
ALONE = [
    (lambda: check_sampler(keyed(3)), ValueError,
     "split: expected a neighbor_sampler that is a KeyedSampler, found int"),
    (lambda: checked(make_hetero()), NotImplementedError, f"HeteroData {LACKS}"),
    (lambda: checked(layers=True), NotImplementedError, f"layers=True {LACKS}"),
    (lambda: checked(disjoint=True), NotImplementedError, f"disjoint=True {LACKS}"),
    (lambda: checked(subgraph_type="induced"), NotImplementedError, f"subgraph_type='induced' {LACKS}"),
    (lambda: checked(subgraph_type="bidirectional"), NotImplementedError, f"subgraph_type='bidirectional' {LACKS}"),
    (lambda: checked(sample_direction="backward"), NotImplementedError, f"sample_direction='backward' {LACKS}"),
    (lambda: checked(kind=Together), NotImplementedError, f"a collective sampler {LACKS}"),
    (lambda: loader(time_attr="y"), NotImplementedError, f"time_attr, input_time {LACKS}"),
    (lambda: other_parts(2), ValueError, "split: expected a plan of 200 nodes, found one of 199"),
    (lambda: loader(plan=GivenPlan(random_owners(201, 2), 2)), ValueError,
     "split: expected a plan of 200 nodes, found one of 201"),
    (lambda: LinkNeighborLoader(make_data(), [2], make_data().edge_index, split=PLAN), NotImplementedError,
     "links with split= are not implemented; use NeighborLoader"),
    (lambda: next(iter(loader(foreign_stores()))), ValueError,
     "data: expected stores that threads may read (thread_safe) with split=, found others"),
    (lambda: next(iter(loader(transform_sampler_output=plain))), ValueError,
     "transform_sampler_output: expected the sampler's own output with split=, found SamplerOutput"),
    (lambda: loader(timeout=-5), ValueError, "timeout: expected at least 0, found -5"),
    (lambda: loader(neighbor_sampler=Alone(make_data(), [3, 2]), bulk=2), NotImplementedError,
     "bulk=2 of one batch at a time"),
    (lambda: Parallelized(nn.Linear(1, 1), transport="mpi"), ValueError,
     "transport: expected one of ('auto', 'gloo', 'nccl', 'memory'), found 'mpi'"),
    (lambda: _grid_of([0, 0, 1, 2], 2), ValueError,
     "batch: expected ranks of the parts [0, 0, 1, 1] or [0, 1, 0, 1], found [0, 0, 1, 2]"),
    (lambda: ShuffleIndex(1, 0, torch.arange(0), [[0]], [[0]]).check_balances([1], Exchange(None, 1, 0), [0]),
     AssertionError, "the hashes of equal numbers differ"),
    (lambda: ShuffleIndex(1, 0, torch.arange(0), [[1]], [[0]]).check_balances([1], Exchange(None, 1, 0), [0]),
     ValueError, "split: batch: expected [0] rows by level from part 0 for part 0, found others"),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "error", "message"), ALONE, ids=[message for *_, message in ALONE])
def test_what_one_process_refuses(ask, error, message):
    with refuses(error, message):
        ask()


PLANS = [
    ({"parts": 0}, ValueError, f"parts: expected 1 <= parts <= {MOST}, found 0"),
    ({"parts": MOST + 1}, ValueError, f"parts: expected 1 <= parts <= {MOST}, found {MOST + 1}"),
    ({"epochs": -1}, ValueError, f"epochs: expected 0 <= epochs <= {2**62}, found -1"),
    ({"epochs": 0}, ValueError, "epochs: expected at least 1 for weights='presampled', found 0"),
    ({"epochs": 0, "weights": "node"}, ValueError, "epochs: expected at least 1 for weights='node', found 0"),
    ({"seed": "1"}, TypeError, "seed: expected an int, found str"),
    ({"weights": "best"}, ValueError,
     "weights: expected one of ('presampled', 'node', 'edge', 'random') or the part of each node, found 'best'"),
    ({"weights": torch.zeros(199, dtype=torch.int64)}, ValueError,
     "owners: expected the parts of 200 nodes, found shape (199,)"),
    ({"weights": torch.full((200,), 2)}, IndexError, "owners[0] = 2 is out of range: expected parts in [0, 2)"),
    ({"load": "nodes"}, ValueError, "load: expected one of ('edges', 'layers'), found 'nodes'"),
    ({"data": []}, TypeError,
     "data: expected a Data, a HeteroData or a (FeatureStore, GraphStore) pair, found list"),
    ({"data": make_hetero()}, NotImplementedError, "a split plan of a HeteroData is not implemented: use a Data"),
    ({"data": (FeatureStore(), GraphStore.from_data(make_hetero()))}, NotImplementedError,
     "a split plan of a graph with types is not implemented: expected one without"),
    ({"disjoint": True}, NotImplementedError, f"disjoint=True {LACKS}"),
    ({"layers": True}, NotImplementedError, f"layers=True {LACKS}"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "error", "message"), PLANS, ids=[message for *_, message in PLANS])
def test_plans_that_are_not_made(given, error, message):
    given = {"data": make_data(), "parts": 2, "weights": "presampled", "epochs": 1, **given}
    with refuses(error, message):
        split.plan(given.pop("data"), torch.arange(20), [2], **given)


def with_rows(name: str, rows: torch.Tensor, group) -> FeatureStore:
    store = FeatureStore.from_data(make_data())
    store.remove_tensor(group_name=(None, None), attr_name="edge_attr", index=None)
    store.put_tensor(rows, group_name=group, attr_name=name, index=None)
    return store


STORES = [
    (lambda: with_rows("z", torch.ones(9), "book"), {}, NotImplementedError,
     "tiers of typed nodes or of edges are not implemented, found [('book', 'z')]; give names="),
    (lambda: FeatureStore.from_data(make_data()), {}, NotImplementedError,
     "tiers of typed nodes or of edges are not implemented, found [((None, None), 'edge_attr')]; give names="),
    (lambda: FeatureStore.from_data(make_data()), {"names": ["lost"]}, ValueError,
     "names: expected some of ['x', 'y', 'edge_attr'], found ['lost']"),
    (lambda: with_rows("z", torch.ones(199), None), {}, ValueError,
     "data: expected a row of 'z' for each of 200 nodes, found 199"),
    (lambda: with_rows("z", torch.ones(201), None), {}, ValueError,
     "data: expected a row of 'z' for each of 200 nodes, found 201"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "given", "error", "message"), STORES, ids=[message for *_, message in STORES])
def test_stores_that_are_not_made(make, given, error, message):
    plan = split.plan(make_data(), torch.arange(20), [2], 2, weights="random", epochs=0)
    with refuses(error, message):
        plan.store(make(), **given)


# Models ##############################################################################################################


class Noisy(nn.Module):
    """A layer after a function that is given rows of nodes."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.conv = function, pyg_nn.SAGEConv(FEATURES, CLASSES)

    def forward(self, x, edge_index):
        return self.conv(self.function(x), edge_index)


class NormsThree(nn.Module):
    """A norm of rows of several columns each."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(FEATURES, track_running_stats=False)
        self.conv = pyg_nn.SAGEConv(FEATURES, CLASSES)

    def forward(self, x, edge_index):
        return self.conv(self.norm(x[:, :, None])[:, :, 0], edge_index)


class Embeds(nn.Module):
    """Rows from a table whose gradients are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.conv = nn.Embedding(CLASSES, FEATURES, sparse=True), pyg_nn.SAGEConv(FEATURES, CLASSES)

    def forward(self, x, edge_index):
        return self.conv(x + self.table(x[:, 0].long() % CLASSES), edge_index)


class AlwaysAlpha(nn.Module):
    """Noise in evaluation mode, too."""

    def forward(self, x):
        return alpha(x)


def alpha(x):
    return nn.functional.alpha_dropout(x, 0.5, True)


def batch_norm(x):
    return nn.functional.batch_norm(x, None, None, training=True)


def last_layer():
    return pyg_nn.SAGEConv(FEATURES, CLASSES)


OTHERS = (
    "expected the seeds' rows to be those of the whole batch, found others; it reads more than a node and its sampled "
    "neighbors (the degrees of sources, several hops, statistics of all rows), so the model cannot be split"
)
MODELS = {
    "noise": (lambda: Noisy(alpha), NotImplementedError,
              "the model (Noisy): expected dropout of rows of nodes by F.dropout, found alpha_dropout"),
    "own noise": (lambda: Noisy(AlwaysAlpha()), NotImplementedError,
                  "function (AlwaysAlpha): expected dropout of rows of nodes by F.dropout, found alpha_dropout"),
    "noise made while it runs": (lambda: Noisy(lambda x: AlwaysAlpha()(x)), NotImplementedError,
                                 "the model (Noisy): expected dropout of rows of nodes by F.dropout, found "
                                 "alpha_dropout"),
    "three": (NormsThree, NotImplementedError,
              "norm (BatchNorm1d): expected a matrix of rows, found (194, 3, 1)"),
    "normed": (sequence(NormsSources, last_layer), NotImplementedError,
               "module_0.norm (BatchNorm1d): expected rows that are one rank's own, found it within a layer on rows of "
               "sources, of which several ranks have copies"),
    "dropped": (sequence(DropsSources, last_layer), NotImplementedError,
                "module_0 (DropsSources): expected dropout of what a layer returns or gets, found it within a layer on "
                "rows of sources"),
    "checkpoint": (Recomputed, NotImplementedError,
                   "conv (SAGEConv): expected each layer to run once, found it within torch.utils.checkpoint, which "
                   "would shuffle its rows again on the way back"),
    "graph norm": (lambda: pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES, norm="GraphNorm"), ValueError,
                   f"norms.0 (GraphNorm): {OTHERS}"),
    "sized": (lambda: Sized((5, 5)), ValueError,
              "conv (SAGEConv): expected no size, found (5, 5); narrowing decides it"),
    "sized, lazy": (lambda: Sized((5, 5), -1), ValueError,
                    "conv (SAGEConv): expected no size, found (5, 5); narrowing decides it"),
    "sized within": (sequence(lambda: pyg_nn.SAGEConv(FEATURES, FEATURES), lambda: Sized((5, 5))), ValueError,
                     "module_1.conv (SAGEConv): expected no size, found (5, 5); narrowing decides it"),
    "no rows": (lambda: OtherRows(lambda x: None), ValueError,
                "conv (SAGEConv): expected input rows of whole hops [32, 75, 129, 194], found no tensor"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "error", "message"), quick(MODELS, *(name for name in MODELS if name != "normed")))
def test_models_that_one_process_refuses(make, error, message):
    torch.manual_seed(0)
    _, batch, _ = next(own_batches(1, 0))
    made = parallelize(make().double())
    with refuses(error, message):
        made(batch)
    made.close()


def test_parts_of_which_no_kernel_knows_the_tables():
    made = parallelize(last_layer())
    made._connection.exchange = lambda columns: 1 // 0  # what comes next
    with refuses(ZeroDivisionError, "integer division or modulo by zero"):
        made._transport_between(Grid(MAX_TABLES, MAX_TABLES), ())
    with refuses(ValueError, f"batch: expected at most {MAX_TABLES} parts, found {MAX_TABLES + 1}"):
        made._transport_between(Grid(MAX_TABLES + 1, MAX_TABLES + 1), ())
    made.close()


def test_steps_that_cannot_be_made_leave_no_meeting(monkeypatch):
    closed = []
    monkeypatch.setattr(plans.Rendezvous, "close", lambda rendezvous: closed.append(rendezvous.world))
    monkeypatch.setattr(plans, "Steps", lambda *_, **__: 1 // 0)
    made = PLAN.of_loader(NeighborSampler(make_data(), [2]), NodeSamplerInput, make_data(), None)
    with refuses(ZeroDivisionError, "integer division or modulo by zero"):
        made.open_steps()
    del made
    assert closed == [1]


# Ranks ###############################################################################################################


def of_ranks() -> dict[str, str]:
    """What each case came to on this rank."""
    rank, world = rank_and_world()

    def trained(model):
        _, batch, _ = next(own_batches(world, rank))
        made = parallelize(model.double())
        try:
            made(batch).sum().backward()
        finally:
            made.close()

    cases = {
        "outside": lambda: loader_of(PLAN, {}).collate_fn([0]),
        "batch norm": lambda: trained(Noisy(batch_norm)),
        "sparse": lambda: trained(Embeds()),
    }
    said = {}
    for name, ask in cases.items():
        torch.manual_seed(0)
        try:
            ask()
            said[name] = "nothing"
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


@pytest.mark.slow
def test_what_ranks_refuse():
    expected = {
        "outside": "RuntimeError: split: expected to read in steps that all ranks take together; iterate over the "
        "loader",
        "batch norm": "NotImplementedError: the model (Noisy): expected statistics of rows of nodes by "
        "nn.BatchNorm1d, found F.batch_norm",
        "sparse": "NotImplementedError: table.weight: expected dense gradients, found sparse ones; make "
        "Embedding(sparse=False)",
    }
    assert cluster(2).run(of_ranks) == [expected] * 2


class Foreign(KeyedSampler):
    def sample_from_nodes(self, inputs, key=None):
        return SamplerOutput(torch.arange(2), torch.tensor([1]), torch.tensor([0]), None)


def with_times():
    data = make_data()
    data.time = torch.arange(200)
    return data


REFUSED = [
    ({"subgraph_type": "induced"}, "subgraph_type='induced' with split parallelism is not implemented"),
    ({"subgraph_type": "bidirectional"}, "subgraph_type='bidirectional' with split parallelism is not implemented"),
    ({"disjoint": True}, "disjoint=True with split parallelism is not implemented"),
    ({"layers": True}, "layers=True with split parallelism is not implemented"),
    ({"time_attr": "time"}, "time_attr, input_time with split parallelism is not implemented"),
    ({"edge_layout": "EdgeIndex"}, "edge_layout='EdgeIndex' with split= is not implemented; use 'coo'"),
    (
        {"num_workers": 2, "multiprocessing_context": "fork"},
        "worker processes (num_workers=2) with split= are not implemented; num_workers alone means threads",
    ),
]


@pytest.mark.parametrize(("options", "text"), REFUSED)
def test_refused_by_name(options, text):
    with pytest.raises(NotImplementedError, match=f"^{re.escape(text)}$"):
        NeighborLoader(with_times(), [3, 2], batch_size=10, split=PLAN, **options)


def test_graphs_and_inputs_that_are_refused():
    with pytest.raises(NotImplementedError, match=r"^HeteroData with split parallelism is not implemented$"):
        NeighborLoader(make_hetero(), [3, 2], input_nodes="paper", split=PLAN)
    with pytest.raises(NotImplementedError, match=r"^links with split= are not implemented; use NeighborLoader$"):
        LinkNeighborLoader(make_data(), [3, 2], split=PLAN)


@pytest.mark.parametrize(
    ("data", "options", "error", "text"),
    [
        (make_data(), {"split": "PLAN"}, TypeError, "split: expected a split plan, found str"),
        (make_data(100), {}, ValueError, "split: expected a plan of 100 nodes, found one of 200"),
        (make_data(), {"shard": True}, ValueError,
         "shard: expected none with split=, by which ranks share each batch, found True"),
        (make_data(), {"sampler": range(3)}, ValueError,
         "split: expected neither sampler nor batch_sampler beside it, found one"),
    ],
)  # fmt: skip
def test_bad_arguments(data: Data, options, error, text):
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        NeighborLoader(data, [3, 2], **{"split": PLAN, **options})


def test_samples_that_cannot_be_cut():
    sampler = SplitSampler(Foreign(), PLAN.owners)
    with pytest.raises(ValueError, match=r"^key: expected one, by which all ranks draw the same batch, found None$"):
        sampler.sample_from_nodes(None)
    with pytest.raises(NotImplementedError, match=r"^split of samples of Foreign is not implemented: expected Neig"):
        sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(1)), 1)
