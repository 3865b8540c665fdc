"""Models that call split.exchange give what parallelize makes of the same layers, and what one process computes."""

import copy
import pickle

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.cluster import cluster
from helpers.narrow import CLASSES, FEATURES, HIDDEN
from helpers.slow import SLOW, quick
from helpers.split_models import own_batches, weights_of
from torch import distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_gnnscale.comm.rendezvous import rank_and_world
from torch_gnnscale.nn import narrow
from torch_gnnscale.split import ExchangingModel, exchange, parallelize


class Explicit(nn.Module):
    """Layers of PyG that read what the ranks exchange; ``edges``: attributes of edges, too."""

    def __init__(self, convs, edges=False):
        super().__init__()
        self.convs, self.edges = nn.ModuleList(convs), edges

    def forward(self, batch):
        x = batch.x
        for layer, conv in enumerate(self.convs):
            pair, edge_index = exchange(x, batch, layer)
            attributes = [batch.edge_attr[: edge_index.size(1), :2].to(x.dtype)] if self.edges else []
            x = conv(pair, edge_index, *attributes)
            if layer + 1 < len(self.convs):
                x = x.relu()
        return x


class Automatic(Explicit):
    """The same model as PyG's users write it."""

    def forward(self, x, edge_index, edge_attr=None):
        for layer, conv in enumerate(self.convs):
            x = conv(x, edge_index, *([] if edge_attr is None else [edge_attr[:, :2].to(x.dtype)]))
            if layer + 1 < len(self.convs):
                x = x.relu()
        return x


class Skips(nn.Module):
    """Two layers that read one tensor, which goes on by itself, too, and rows of more nodes than a layer reads."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(FEATURES, HIDDEN)
        self.left, self.right = pyg_nn.SAGEConv(HIDDEN, HIDDEN), pyg_nn.GraphConv(HIDDEN, HIDDEN)
        self.middle, self.last = pyg_nn.SAGEConv(HIDDEN, HIDDEN), pyg_nn.SAGEConv(HIDDEN, CLASSES)

    def forward(self, batch):
        first = self.encode(batch.x)
        pair, edges = exchange(first, batch, 0)
        again, _ = exchange(first, batch, 0)
        x = self.left(pair, edges) + self.right(again, edges) + first[: len(pair[1])]
        x = self.middle(*exchange(x, batch, 1)) + self.middle(*exchange(first, batch, 1))
        return self.last(*exchange(x, batch, 2))


class SkipsAlone(Skips):
    """The same on a whole batch."""

    def forward(self, x, edge_index):
        first = self.encode(x)
        x = self.left(first, edge_index) + self.right(first, edge_index) + first
        x = self.middle(x, edge_index) + self.middle(first, edge_index)
        return self.last(x, edge_index)


def layers_of(make):
    return [make(FEATURES, HIDDEN), make(HIDDEN, HIDDEN), make(HIDDEN, CLASSES)]


LAYERS = {
    "sage": pyg_nn.SAGEConv,
    "sage max": lambda a, b: pyg_nn.SAGEConv(a, b, aggr="max"),
    "gat": pyg_nn.GATv2Conv,
    "gine": lambda a, b: pyg_nn.GINEConv(nn.Linear(a, b), edge_dim=2),
}


def pair_of_models(name):
    if name == "skips":
        return Skips(), SkipsAlone()
    convs, edges = layers_of(LAYERS[name]), name == "gine"
    return Explicit(convs, edges), Automatic(copy.deepcopy(convs), edges)


def call_of(name):
    if name == "gine":
        return lambda model, batch: model(batch.x, batch.edge_index, batch.edge_attr)
    return lambda model, batch: model(batch.x, batch.edge_index)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def compare(name, owners, with_halo, transport="auto"):
    """Two batches of both forms, and of one process; the rounds of the last batch."""
    rank, world = rank_and_world()
    torch.manual_seed(rank)  # the weights are those of rank 0
    model, automatic = (made.double() for made in pair_of_models(name))
    explicit, wrapped = ExchangingModel(model, transport), parallelize(automatic, call_of(name), transport)
    automatic.load_state_dict(model.state_dict())
    alone = copy.deepcopy(automatic)
    whole_model, halo = narrow(alone, call_of(name), check=False), 0
    for whole, batch, own in own_batches(world, rank, 2, owners):
        if not with_halo:
            del batch.x_halo
        halo += len(batch.x_halo) if with_halo else 0
        for counted in (explicit, wrapped):
            before = {purpose: traffic.rounds for purpose, traffic in counted.traffic.items()}
            out = counted(batch)
            expected = whole_model(whole)
            close(out, expected[own])
            (out * weights_of(expected)[own]).sum().backward()
            if counted is explicit:
                rounds = {k: t.rounds - before.get(k, 0) for k, t in counted.traffic.items()}
        (expected * weights_of(expected)).sum().backward()
        for found, as_wrapped, of_one in zip(*(m.parameters() for m in (model, automatic, alone)), strict=True):
            close(found.grad, as_wrapped.grad)
            close(found.grad, of_one.grad)
    ours, theirs = explicit.work, wrapped.work
    edges, of_wrapper = sum(ours.edges.values()), sum(theirs.edges.values())
    assert (ours.rows, ours.halo) == (theirs.rows, theirs.halo)
    assert ours.halo == halo
    assert (
        edges <= of_wrapper if name == "skips" else edges == of_wrapper
    )  # the wrapper takes all rows that it is given
    explicit.close()
    wrapped.close()
    return {purpose: count for purpose, count in rounds.items() if count}, [p.grad for p in model.parameters()]


def run(world, *arguments):
    results = cluster(world).run(compare, *arguments) if world > 1 else [compare(*arguments)]
    for _, grads in results[1:]:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(grads, results[0][1], strict=True))
    return results[0][0]


@pytest.mark.parametrize("name", quick([*LAYERS, "skips"], "sage", "skips"))
@pytest.mark.parametrize("with_halo", [SLOW(False), True])
def test_outputs_and_gradients(name, with_halo):
    run(2, name, "random", with_halo)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["auto", "gloo"])
@pytest.mark.parametrize(
    ("world", "owners"), [(1, "random"), (3, "random"), (2, "50:1"), (3, "no seeds"), (4, "nothing")]
)
@pytest.mark.parametrize("name", ["sage", "skips"])
def test_owners_ranks_and_transports(name, world, owners, transport):
    run(world, name, owners, False, transport)


@pytest.mark.parametrize("with_halo", [SLOW(False), True])
def test_rounds(with_halo):
    """One before each layer and one on the way back, but none for features, whose rows come with the batch."""
    expected = {f"{way} layer {layer}": 1 for way in ("forward", "backward") for layer in (1, 2)}
    expected |= {"gradients": 1} | ({} if with_halo else {"forward layer 0": 1})
    assert run(2, "sage", "random", with_halo) == expected


def test_a_single_rank_takes_no_rounds():
    assert run(1, "sage", "random", True) == {}


def kept_and_pickled():
    """Gradients of two batches that are summed at once, and what a pickled copy computes."""
    rank, world = rank_and_world()
    torch.manual_seed(0)
    split = ExchangingModel(Explicit(layers_of(pyg_nn.SAGEConv)).double())
    (_, one, _), (_, two, _) = own_batches(world, rank, 2)
    split(one).sum().backward()
    split(two).sum().backward()
    apart = [weight.grad for weight in split.parameters()]
    split.zero_grad()
    with split.no_sync():
        split(one).sum().backward()
    split(two).sum().backward()
    for weight, grad in zip(split.parameters(), apart, strict=True):
        close(weight.grad, grad)
    again = pickle.loads(pickle.dumps(split))
    split.eval()
    again.eval()
    with torch.no_grad():
        close(again(one), split(one))
    split.close()
    again.close()


@pytest.mark.slow
def test_sums_that_wait_and_copies():
    cluster(2).run(kept_and_pickled)


class Calls(nn.Module):
    """Calls ``exchange`` with what ``how`` says."""

    def __init__(self, how="", norm=None):
        super().__init__()
        self.conv, self.how, self.norm = pyg_nn.SAGEConv(FEATURES, CLASSES), how, norm

    def forward(self, batch):
        x, layer, of = batch.x, 2, batch
        last = dist.is_initialized() and dist.get_rank() == 1
        if self.how == "layer 3":
            layer = 3
        elif self.how == "few rows":
            x = x[:1]
        elif self.how == "another batch":
            of = copy.copy(batch)
        elif self.how == "checkpoint":
            return self.conv(*checkpoint(lambda given: exchange(given, batch, 2), x, use_reentrant=False))
        elif self.how == "wide on rank 1" and last:
            x = x.repeat(1, 2)[:, : FEATURES + 1]
        elif self.how == "once more on rank 1" and last:
            exchange(x, of, 1)
        elif self.how == "number of rows":
            layer = 2 - getattr(self, "called", 0)
            self.called = 1
        elif self.how == "no call the second time" and getattr(self, "called", 0):
            return self.conv.lin_l(batch.x[: batch.batch_size])
        self.called = 1
        return self.conv(*exchange(x, of, layer))


def refused(how, count):
    """What the last of ``count`` batches raises."""
    rank, world = rank_and_world()
    torch.manual_seed(0)
    model = Calls(how, nn.BatchNorm1d(FEATURES) if how == "norm" else None).double()
    split = ExchangingModel(model)
    for number, (_, batch, _) in enumerate(own_batches(world, rank, count), 1):
        try:
            split(batch)
        except Exception as error:
            assert number == count
            return f"{type(error).__name__}: {error}"
    return "nothing"


ALONE = {
    "layer 3": (1, "ValueError: layer: expected one of 0 to 2, as the batch has hops, found 3"),
    "few rows": (1, "ValueError: x: expected rows of the 63 nodes that layer 2 reads, found 1"),
    "another batch": (1, "ValueError: batch: expected the one that the model was called with, found another"),
    "checkpoint": (
        1, "NotImplementedError: split.exchange: expected each layer to run once, found it within "
        "torch.utils.checkpoint, which would shuffle its rows again on the way back",
    ),
    "norm": (
        1, "NotImplementedError: norm (BatchNorm1d): expected a norm of each row, such as LayerNorm, found one with "
        "statistics of a rank's rows; split.parallelize(model) has those of all ranks",
    ),
    "number of rows": (
        2, "RuntimeError: split.exchange: expected the calls of the first batch, rows of [3] torch.float64 for layer 2 "
        "as number 0, found rows of [3] torch.float64 for layer 1",
    ),
    "no call the second time": (
        2, "RuntimeError: split.exchange: expected the calls of the first batch, rows of [3] torch.float64 for layer 2 "
        "as number 0, found no call",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", ALONE)
def test_what_a_process_refuses(how):
    count, text = ALONE[how]
    assert refused(how, count) == text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("wide on rank 1", "number 0 on all ranks, found rows of [3] torch.float64 for layer 2 on part 0; rows of [4]"),
        (
            "once more on rank 1",
            "number 0 on all ranks, found rows of [3] torch.float64 for layer 2 on part 0; rows of",
        ),
    ],
)
def test_calls_that_differ_between_ranks(how, found):
    for text in cluster(2).run(refused, how, 1):
        assert text.startswith(f"ValueError: split.exchange: expected the same call {found}")


def test_outside_of_a_model():
    (_, batch, _), *_ = own_batches(1, 0, 1)
    with pytest.raises(RuntimeError, match=r"^split.exchange: expected a call within the model of ExchangingModel"):
        exchange(batch.x, batch, 0)
