"""Models, batches and ranks that are refused, on all ranks, by exact errors."""

import re
import warnings

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.cluster import cluster
from helpers.narrow import CLASSES, FEATURES, HIDDEN, DegreesOfSources, Loops, OtherRows, Sized, sequence
from helpers.slow import SLOW, quick
from helpers.split import cut_batches, random_owners
from helpers.split_models import (
    NODES,
    ByHand,
    BySparse,
    Centers,
    DropsSources,
    NormsSources,
    Recomputed,
    own_batches,
    with_norm,
)
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import HeteroData

from torch_gnnscale.comm.rendezvous import rank_and_world
from torch_gnnscale.split import parallelize

REFUSED = {
    "graph norm": lambda: pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES, norm="GraphNorm"),
    "too deep": lambda: pyg_nn.GraphSAGE(FEATURES, HIDDEN, 4, CLASSES),
    "layer norm": lambda: pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES, norm="LayerNorm"),
    "two hops": sequence(*[lambda: pyg_nn.SGConv(FEATURES, FEATURES, K=2)] * 3),
    "degrees of sources": sequence(*[DegreesOfSources] * 3),
    "other edges": Loops,
    "cached": lambda: pyg_nn.GCN(FEATURES, HIDDEN, 3, CLASSES, cached=True),
    "flow": lambda: pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES, flow="target_to_source"),
    "checkpoint": Recomputed,
    "dropped": sequence(DropsSources, lambda: pyg_nn.SAGEConv(FEATURES, CLASSES)),
    "normed": sequence(NormsSources, lambda: pyg_nn.SAGEConv(FEATURES, CLASSES)),
    "sized": lambda: Sized((5, 5)),
    "other rows": lambda: OtherRows(lambda x: x[:-1]),
    "by hand": ByHand,
    "by hand, first": lambda: ByHand(first=True),
    "by hand, copied": lambda: ByHand(copies=True),
    "by hand, copied, first": lambda: ByHand(copies=True, first=True),
    "by a sparse matrix": lambda: BySparse("coo"),
    "by columns": lambda: BySparse("csc"),
    "by rows": lambda: BySparse("csr", sized=False),
    "in training": lambda: with_norm(Centers(True)),
    "instance norm": lambda: with_norm(pyg_nn.InstanceNorm(HIDDEN, track_running_stats=True)),
}
OTHERS_FOUND = "expected the seeds' rows to be those of the whole batch, found others"
LAYERS_ALONE = "expected a model that reads edges in MessagePassing layers alone, found"
SAID = {
    "graph norm": f"ValueError: norms.0 (GraphNorm): {OTHERS_FOUND}",
    "too deep": "ValueError: convs.3 (SAGEConv): expected one hop a layer, found that earlier layers used up the batch",
    "layer norm": f"ValueError: norms.0 (LayerNorm): {OTHERS_FOUND}",
    "two hops": f"ValueError: module_1 (SGConv): {OTHERS_FOUND}",
    "degrees of sources": f"ValueError: module_1 (DegreesOfSources): {OTHERS_FOUND}",
    "other edges": "ValueError: conv (GraphConv): expected the batch's edge_index itself, found other edges",
    "cached": "ValueError: convs.0 (GCNConv): expected cached=False, for every batch has other edges",
    "flow": "ValueError: convs.0 (SAGEConv): expected flow='source_to_target', found 'target_to_source'",
    "checkpoint": "NotImplementedError: conv (SAGEConv): expected each layer to run once, found it within torch.utils",
    "dropped": "NotImplementedError: module_0 (DropsSources): expected dropout of what a layer returns or gets",
    "normed": "NotImplementedError: module_0.norm (BatchNorm1d): expected rows that are one rank's own, found it",
    "sized": "ValueError: conv (SAGEConv): expected no size, found (5, 5); narrowing decides it",
    "other rows": "ValueError: conv (SAGEConv): expected input rows of whole hops [32, 75, 129, 194], found 193 rows",
    "by hand": f"NotImplementedError: mean (Mean): {LAYERS_ALONE} __getitem__ of rows of nodes by the batch's edge_ind",
    "by hand, first": f"NotImplementedError: mean (Mean): {LAYERS_ALONE} __getitem__ of rows of nodes by the batch's",
    "by hand, copied": f"ValueError: mean (Mean): {LAYERS_ALONE} rows of nodes that are not there: index",
    "by hand, copied, first": f"ValueError: mean (Mean): {LAYERS_ALONE} rows of nodes that are not there: index",
    "by a sparse matrix": f"ValueError: the model (BySparse): {LAYERS_ALONE} rows of nodes that are not there: size",
    "by columns": f"ValueError: the model (BySparse): {LAYERS_ALONE} rows of nodes that are not there: size is incon",
    "by rows": f"NotImplementedError: the model (BySparse): {LAYERS_ALONE} matmul of rows of nodes by a sparse matri",
    "in training": f"ValueError: norms.0 (Centers): {OTHERS_FOUND}",
    "instance norm": f"ValueError: norms.0 (InstanceNorm): {OTHERS_FOUND}",
}


def refused(name):
    rank, world = rank_and_world()
    torch.manual_seed(0)
    model = REFUSED[name]().double()
    _, batch, _ = next(own_batches(world, rank))
    split = parallelize(model)
    try:
        split(batch)
    finally:
        split.close()


@pytest.mark.parametrize("name", quick(list(REFUSED), "too deep"))
def test_models_that_cannot_be_split_are_refused_on_all_ranks(name):
    for returned, text in cluster(2).results(refused, name):
        assert not returned
        assert text.startswith(SAID[name])


def in_each_mode(training):
    """Steps in the mode in which the model can be split, and what is said in the other one."""
    rank, world = rank_and_world()
    torch.manual_seed(0)
    model = with_norm(Centers(training)).double()
    split = parallelize(model.train(not training))
    _, batch, _ = next(own_batches(world, rank))
    before = [buffer.clone() for buffer in model.buffers()]
    split(batch)
    changed = [not torch.equal(*pair) for pair in zip(before, model.buffers(), strict=True)]
    split.train(training)
    with pytest.raises(ValueError, match=r"^norms\.0 \(Centers\): expected the seeds' rows to be those of"):
        split(batch)
    split.close()
    return any(changed)


@pytest.mark.parametrize("training", [True, SLOW(False)])
def test_each_mode_is_looked_at_on_its_first_batch(training):
    assert cluster(2).run(in_each_mode, training) == [not training] * 2


def different(what):
    rank, world = rank_and_world()
    torch.manual_seed(0)
    whole, batch, _ = next(own_batches(world, rank))
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
    split = parallelize(model)
    if what == "model":
        model.convs[2] = pyg_nn.SAGEConv(HIDDEN, CLASSES, aggr="max" if rank else "mean", bias=bool(rank)).double()
    if what == "frozen" and rank == 1:
        model.convs[0].requires_grad_(False)
    if what == "batch_key":
        batch.batch_key = rank
    if what == "training":
        split.train(bool(rank))
    if what == "rows" and rank == 1:
        batch = cut_batches(whole, random_owners(NODES, world, 8), world, key=0)[rank]
    if what == "parts":
        batch = cut_batches(whole, random_owners(NODES, 1 + rank, 8), 1 + rank, key=0)[rank]
    try:
        split(batch)
    finally:
        split.close()


SAME = "expected the same on all ranks"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("model", f"split: model: {SAME}, found convs.2.aggr 'mean' and on rank 1 'max'"),
        SLOW("batch_key", f"split: batch_key: {SAME} of a batch, found 0 on rank 0 and 1 on rank 1"),
        SLOW("training", f"split: training: {SAME}, found False and on rank 1 True"),
        ("rows", "split: batch: expected ["),
        SLOW(
            "frozen",
            f"split: model: {SAME}, found convs.0.lin_l.weight float64 [8, 3] trained "
            f"and on rank 1 float64 [8, 3] not trained",
        ),
        SLOW("parts", "batch: expected as many parts on all ranks, found [1, 2]"),
    ],
)
def test_ranks_that_differ(what, said):
    for returned, text in cluster(2).results(different, what):
        assert not returned
        assert text.startswith(f"ValueError: {said}"), text


def test_models_and_batches_of_one_process_that_are_refused():
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
    whole, batch, _ = next(own_batches(1, 0))
    split = parallelize(model)
    with pytest.raises(
        ValueError, match=r"batch: expected one of NeighborLoader\(split=plan\) with shuffle_index, found"
    ):
        split(whole)
    with pytest.raises(NotImplementedError, match="split: expected a batch of a homogeneous graph, found a HeteroData"):
        split(HeteroData())
    with pytest.raises(ValueError, match=r"model: expected a model or weigh\(model\), found Parallelized within"):
        parallelize(split)
    split(batch)
    model.convs[1] = nn.Identity()
    with pytest.raises(TypeError):
        split(batch)
    split.close()
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # the only rank needs no memory of others
        alone = parallelize(model, transport="memory")
        alone(batch)
        alone.close()
    text = "split: expected a connection between the ranks, found one that was closed, or that failed"
    with pytest.raises(RuntimeError, match=f"^{text}$"):
        split(batch)


COMPILED = {
    "model": lambda model: parallelize(torch.compile(model)),
    "its layer": lambda model: (model.convs[1].compile(), parallelize(model))[1],
    "its layer, afterwards": lambda model: (parallelize(model), model.convs[1].compile())[0],
    "around": lambda model: torch.compile(parallelize(model)),
}
NOT_COMPILED = {
    "model": "model: expected a module that is not compiled, found a compiled one",
    "its layer": "convs.1: expected a module that is not compiled, found a compiled one",
    "its layer, afterwards": "convs.1: expected a module that is not compiled, found a compiled one",
    "around": "split: expected a model that is not compiled, found it within torch.compile",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.parametrize("what", COMPILED)
def test_compiled_models_are_refused(what):
    _, batch, _ = next(own_batches(1, 0))
    with pytest.raises(NotImplementedError, match=f"^{re.escape(NOT_COMPILED[what])}$"):
        COMPILED[what](pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double())(batch)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_model_within_a_checkpoint_is_refused(reentrant):
    _, batch, _ = next(own_batches(1, 0))
    split = parallelize(pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double())
    text = "split: expected each layer to run once, found it within torch.utils.checkpoint"
    with pytest.raises(NotImplementedError, match=f"^{text}"):
        checkpoint(split, batch, use_reentrant=reentrant)


def failing():
    """Rank 1 fails within the second batch."""
    rank, world = rank_and_world()
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
    split = parallelize(model)
    for number, (_, batch, _) in enumerate(own_batches(world, rank, 2)):
        if number == 1 and rank == 1:
            model.convs[1].register_forward_pre_hook(lambda *_: 1 // 0)
        split(batch).sum().backward()


@pytest.mark.slow
def test_an_error_of_one_rank_is_raised_on_all():
    results = cluster(2).results(failing)
    assert results[0] == (False, "RuntimeError: split: rank 1: ZeroDivisionError: integer division or modulo by zero")
    assert results[1] == (False, "ZeroDivisionError: integer division or modulo by zero")


def without_layers():
    """The error of a model that has no layers on rank 1."""
    rank, _ = rank_and_world()
    try:
        parallelize(nn.Linear(1, 1) if rank else pyg_nn.SAGEConv(FEATURES, CLASSES), timeout=20.0)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def test_a_model_that_one_rank_refuses_is_an_error_on_all():
    first, second = cluster(2).run(without_layers)
    assert second == "ValueError: model: expected one with MessagePassing layers, found none in Linear"
    assert first == f"RuntimeError: split: rank 1: {second}"


def in_ddp():
    rank, world = rank_and_world()
    _, batch, _ = next(own_batches(world, rank))
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
    with pytest.raises(ValueError, match=r"model: expected one without DistributedDataParallel, found one"):
        parallelize(nn.parallel.DistributedDataParallel(model))
    split = parallelize(model)
    around = nn.parallel.DistributedDataParallel(split)
    with pytest.raises(
        ValueError, match=re.escape("split: expected parallelize(model) by itself, found it within Distri")
    ):
        around(batch)
    split.close()


@pytest.mark.slow
def test_ddp_is_refused():
    cluster(2).run(in_ddp)
