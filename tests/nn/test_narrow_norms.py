"""Norms in training normalize, in every batch, over the rows that each layer must compute."""

import copy
import warnings

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.narrow import CLASSES, FEATURES, HIDDEN, batches
from helpers.slow import SLOW, examples
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn.norm import HeteroBatchNorm

from torch_gnnscale import NeighborLoader
from torch_gnnscale.nn import forward_pass, narrow
from torch_gnnscale.nn.hops import BatchHops
from torch_gnnscale.nn.trial import with_nodes_in_every_group

CONVS = {"sage": pyg_nn.SAGEConv, "gcn": pyg_nn.GCNConv, "gat": pyg_nn.GATConv}
NORMS = {
    "BatchNorm1d": nn.BatchNorm1d,
    "BatchNorm": pyg_nn.BatchNorm,
    "InstanceNorm": lambda width: pyg_nn.InstanceNorm(width, affine=True, track_running_stats=True),
    "DiffGroupNorm": lambda width: pyg_nn.DiffGroupNorm(width, groups=3),
}


class Normed(nn.Module):
    """Layers followed by norms, with residuals or a join of all layers' rows, or with one layer that is called again
    and again."""

    def __init__(self, conv="sage", norm="BatchNorm1d", joins="", shared=False, layers=3):
        super().__init__()
        self.encode = nn.Linear(FEATURES, HIDDEN)
        first = CONVS[conv](HIDDEN, HIDDEN)
        self.convs = nn.ModuleList(first if shared else CONVS[conv](HIDDEN, HIDDEN) for _ in range(layers))
        self.norms = nn.ModuleList(NORMS[norm](HIDDEN) for _ in range(layers))
        self.kept, self.joins = list(range(layers)), joins
        self.decode = nn.Linear(HIDDEN * (layers if joins == "cat" else 1), CLASSES)

    def forward(self, x, edge_index, convolve=lambda conv, *given: conv(*given), common=lambda *rows: rows):
        x, outs = self.encode(x), []
        for conv, norm in ((self.convs[number], self.norms[number]) for number in self.kept):
            out = norm(convolve(conv, x, edge_index)).tanh()  # smooth, for some rows are equal but for rounding
            if self.joins == "residual":
                x, out = common(x, out)
                out = x + out
            outs.append(out)
            x = out
        return self.decode(torch.cat(list(common(*outs)), 1) if self.joins == "cat" else x)


def exact(model, batch):
    """The model on exact levels, by PyG alone: each layer computes the whole batch from the rows that it gets, and what
    the layers after it need is kept."""
    nodes, hops = batch.num_sampled_nodes, iter(range(len(batch.num_sampled_edges))[::-1])

    def convolve(conv, x, edge_index):
        missing = x.new_zeros(sum(nodes) - len(x), x.size(1))
        return conv(torch.cat([x, missing]), edge_index)[: sum(nodes[: next(hops) + 1])]

    def common(*rows):
        return [of[: min(map(len, rows))] for of in rows]

    return model(batch.x, batch.edge_index, convolve, common)[: batch.batch_size]


def check_one_step(model, batch, check=True):
    """Compares outputs, gradients and buffers after one training step, and then outputs in evaluation mode."""
    expected = copy.deepcopy(model)
    narrowed = narrow(model, check=check)
    for run in ("train", "eval", "train"):
        getattr(expected, run)(), getattr(narrowed, run)()
        theirs, ours = exact(expected, batch), narrowed(batch)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
        scale = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(0))
        for out, of in ((theirs, expected), (ours, model)):
            of.zero_grad()
            (out * scale).sum().backward()
        for first, second in zip(model.parameters(), expected.parameters(), strict=True):
            if first.grad is None or second.grad is None:
                assert first.grad is second.grad is None
            else:
                torch.testing.assert_close(first.grad, second.grad, rtol=1e-10, atol=1e-10)
        for first, second in zip(model.buffers(), expected.buffers(), strict=True):
            torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


@st.composite
def sparse_batches(draw):
    """Batches of three hops of graphs with few edges, so that hops often find nothing."""
    nodes, seed = draw(st.integers(2, 24)), draw(st.integers(0, 1 << 30))
    edges, seeds = draw(st.integers(0, 2 * nodes)), draw(st.integers(2, nodes))
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(nodes, (2, edges), generator=generator)
    data = Data(x=torch.randn(nodes, FEATURES, generator=generator, dtype=torch.float64), edge_index=index)
    return next(iter(NeighborLoader(data, [2, 2, 2], torch.arange(seeds), batch_size=seeds, seed=seed)))


@pytest.mark.slow
@examples(150)
@given(sparse_batches(), st.sampled_from(sorted(CONVS)), st.sampled_from(sorted(NORMS)), st.sampled_from([1, 2, 3]),
       st.sampled_from(["", "residual", "cat"]), st.booleans(), st.booleans())  # fmt: skip
def test_levels_are_exact_in_sparse_graphs(batch, conv, norm, layers, joins, shared, check):
    torch.manual_seed(0)
    check_one_step(Normed(conv, norm, joins, shared, layers).double(), batch, check)


def batch_whose_last_hop_finds_nothing(**options):
    """A chain of three seeds and their neighbors, and a ring that leads back: groups of 4, 4, 2 and 0 nodes."""
    edges = torch.tensor([[4, 5, 6, 7, 8, 9, 4, 5], [0, 1, 2, 3, 4, 5, 8, 9]])
    generator = torch.Generator().manual_seed(1)
    data = Data(x=torch.randn(12, FEATURES, generator=generator, dtype=torch.float64), edge_index=edges)
    batch = next(iter(NeighborLoader(data, [2, 2, 2], torch.arange(4), batch_size=4, seed=1, **options)))
    assert batch.num_sampled_nodes == [4, 4, 2, 0]
    return batch


@pytest.mark.parametrize(
    ("conv", "norm", "joins", "shared", "check"),
    [
        ("sage", "BatchNorm1d", "", False, True),
        ("gcn", "BatchNorm", "cat", False, False),
        SLOW("gat", "InstanceNorm", "residual", True, True),
        SLOW("sage", "DiffGroupNorm", "cat", True, False),
    ],
)
def test_a_hop_that_finds_no_node(conv, norm, joins, shared, check):
    torch.manual_seed(0)
    check_one_step(Normed(conv, norm, joins, shared).double(), batch_whose_last_hop_finds_nothing(), check)


def test_no_layer_computes_more_rows_than_it_must_where_a_hop_finds_no_node():
    model, batch, rows = Normed().double(), batch_whose_last_hop_finds_nothing(), []
    narrowed = narrow(model, check=False)
    narrowed(batch)  # the calls of layers are found out
    for conv in model.convs:
        conv.lin_l.register_forward_hook(lambda module, args, out: rows.append(len(out)))
    narrowed(batch)
    assert rows == [10, 8, 4]


@pytest.mark.slow
def test_batches_that_are_not_worth_it_are_narrowed_all_the_same(monkeypatch):
    """In training, where they would otherwise be normalized over other rows than the next batch."""
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", 1 << 62)
    for make in (pyg_nn.BatchNorm, nn.BatchNorm1d, lambda width: HeteroBatchNorm(width, 1)):
        model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
        model.norms = nn.ModuleList(make(HIDDEN).double() for _ in range(2))
        for norm in model.norms:
            if isinstance(norm, HeteroBatchNorm):
                normalize = norm.forward
                norm.forward = lambda x, of=normalize: of(x, torch.zeros(len(x), dtype=torch.int64))
        model.norms.append(nn.Identity())
        narrowed, rows = narrow(model), []
        batch = next(iter(batches()))
        model.convs[0].register_forward_hook(lambda module, args, out, rows=rows: rows.append(len(out)))
        narrowed(batch)
        rows.clear()
        narrowed(batch), narrowed.eval()(batch)
        narrowed(batch), narrowed.train()(batch)
        first = batch.num_nodes - batch.num_sampled_nodes[-1]
        # In evaluation mode the first batch is compared with the whole: narrowed, whole, and then computed whole.
        assert rows == [first, first, batch.num_nodes, batch.num_nodes, batch.num_nodes, first]


@pytest.mark.parametrize(
    "norm",
    [
        pyg_nn.GraphNorm(HIDDEN), pyg_nn.PairNorm(), pyg_nn.MeanSubtractionNorm(), pyg_nn.LayerNorm(HIDDEN),
        pyg_nn.InstanceNorm(HIDDEN), nn.BatchNorm1d(HIDDEN, track_running_stats=False),
    ],
    ids=lambda norm: type(norm).__name__,
)  # fmt: skip
@pytest.mark.parametrize("training", [True, False])
def test_norms_that_read_other_rows_in_evaluation_mode_too_are_refused(norm, training):
    model = Normed().double()
    model.norms[0] = copy.deepcopy(norm).double()
    text = rf"norms.0 \({type(norm).__name__}\): expected the seeds' rows to be those of the whole batch"
    narrowed, batch = narrow(model.train(training)), next(iter(batches()))
    with pytest.raises(ValueError, match=text):
        narrowed(batch)


@pytest.mark.parametrize("norm", [pyg_nn.MessageNorm(), pyg_nn.LayerNorm(HIDDEN, mode="node"), nn.LayerNorm(HIDDEN)],
                         ids=lambda norm: type(norm).__name__)  # fmt: skip
def test_norms_of_single_rows_are_narrowed_where_it_pays(norm, monkeypatch):
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", 1 << 62)
    given, norm = isinstance(norm, pyg_nn.MessageNorm), copy.deepcopy(norm).double()
    model, rows = Normed().double(), []
    model.norms[0] = norm
    if given:
        normalize = norm.forward
        norm.forward = lambda x: normalize(x, 2 * x)
    for number in (1, 2):
        model.norms[number] = nn.Identity()
    batch = next(iter(batches()))
    narrowed = narrow(model)
    narrowed(batch)
    model.convs[0].register_forward_hook(lambda module, args, out: rows.append(len(out)))
    narrowed(batch)
    assert rows == [batch.num_nodes]


class NormedByKind(nn.Module):
    """Its norm reads, in training, the kinds of the rows that it is given."""

    def __init__(self, norm):
        super().__init__()
        self.first, self.last = pyg_nn.SAGEConv(FEATURES, HIDDEN), pyg_nn.SAGEConv(HIDDEN, CLASSES)
        self.norm = norm

    def forward(self, x, edge_index):
        x = self.first(x, edge_index)
        return self.last(self.norm(x, torch.zeros(len(x), dtype=torch.int64)), edge_index)


@pytest.mark.parametrize("norm", [HeteroBatchNorm(HIDDEN, 1), NORMS["InstanceNorm"](HIDDEN)], ids=str)
def test_what_norms_call_in_training_alone_is_nothing_new(norm):
    narrowed, batch = narrow(NormedByKind(copy.deepcopy(norm)).double()), next(iter(batches()))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for training in (True, False, True):
            narrowed.train(training)(batch)
    assert "forward" not in vars(narrowed.norm)


class Centered(nn.Module):
    """A norm of one's own, of which this package knows nothing."""

    def forward(self, x):
        return x - x.mean(0) if self.training else x


class Noise(nn.Module):
    """Adds random numbers in training."""

    def forward(self, x):
        return x + torch.randn_like(x) if self.training else x


def test_a_norm_of_ones_own_is_named_and_gets_the_same_rows_in_every_batch(monkeypatch):
    monkeypatch.setattr(forward_pass, "LEAST_SAVED", 1 << 62)
    model, batch = Normed().double(), batch_whose_last_hop_finds_nothing()
    model.norms = nn.ModuleList(Centered() for _ in range(3))
    narrowed = narrow(model)
    with pytest.warns(UserWarning, match=r"^norms.1 \(Centered\): in training, expected the seeds' rows to be"):
        found = narrowed(batch)
    torch.testing.assert_close(found, exact(model, batch), rtol=0, atol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        torch.testing.assert_close(narrowed(batch), exact(model, batch), rtol=0, atol=1e-12)


def test_random_numbers_in_training_are_no_difference():
    model, batch = Normed().double(), next(iter(batches()))
    model.norms[1] = Noise()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        narrow(model)(batch)


def test_the_first_batch_is_compared_without_a_trace():
    """Dropout draws for the batch as if nothing had been compared."""
    model = Normed(norm="BatchNorm").double()
    model.norms[1] = nn.Sequential(nn.Dropout(0.5), pyg_nn.BatchNorm(HIDDEN).double())
    other, batch, found = copy.deepcopy(model), batch_whose_last_hop_finds_nothing(), []
    for of, check in ((model, True), (other, False)):
        torch.manual_seed(7)
        found.append((narrow(of, check=check)(batch), torch.rand(()), *of.buffers()))
        assert all(module.training for module in of.modules())
    assert all(map(torch.equal, *found))


def test_layers_that_are_not_called_in_every_batch():
    """Rows are exact as long as their numbers tell groups; where they do not, it is said that norms get more."""
    model, full, short = Normed().double(), next(iter(batches())), batch_whose_last_hop_finds_nothing()
    narrowed = narrow(model, check=False)
    narrowed(short)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for model.kept in ([0, 2], [1, 2], [0, 1, 2]):
            for _ in range(2):
                torch.testing.assert_close(narrowed(full), exact(model, full), rtol=0, atol=1e-12)
    model.kept = [0, 2]
    with pytest.warns(UserWarning, match=r"^convs.2 \(SAGEConv\): expected layers to be called as in earlier batches"):
        narrowed(short)
    torch.testing.assert_close(narrowed(short), exact(model, short), rtol=0, atol=1e-12)  # found out again


@pytest.mark.parametrize("layout", ["coo", "EdgeIndex"])
def test_a_node_in_every_group(layout):
    batch = batch_whose_last_hop_finds_nothing(edge_layout=layout)
    batch.positions, batch.num_sampled_nodes = torch.arange(10), [4, 0, 6, 0]
    full = with_nodes_in_every_group(batch)
    assert full.num_sampled_nodes == [4, 1, 6, 1]
    assert full.positions.tolist() == [0, 1, 2, 3, 0, 4, 5, 6, 7, 8, 9, 0]
    assert torch.equal(full.x, batch.x[full.positions])
    index = full.edge_index
    if layout == "EdgeIndex":
        assert isinstance(index, EdgeIndex)
        index.validate()
        index = index.as_tensor()
    assert torch.equal(full.positions[index], torch.as_tensor(batch.edge_index))
    assert not torch.isin(torch.tensor([4, 11]), index).any()
    assert batch.num_nodes == 10


@pytest.mark.parametrize(
    ("sizes", "larger"),
    [([0, 1, 0], [0, 2, 1]), ([0, 0, 3], [0, 2, 3]), ([0, 0, 0], [0, 2, 1]), ([1, 0, 2], [1, 1, 2])],
)
def test_the_first_nodes_of_a_type_without_seeds_are_two(sizes, larger):
    batch = HeteroData()
    batch["seed"].x, batch["seed"].num_sampled_nodes = torch.rand(2, 3), [2, 0, 0]
    batch["other"].x, batch["other"].num_sampled_nodes = torch.rand(sum(sizes), 3), sizes
    batch["other", "to", "seed"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    full = with_nodes_in_every_group(batch)
    assert (full["other"].num_sampled_nodes, len(full["other"].x)) == (larger, sum(larger))
    assert full["seed"].num_sampled_nodes == [2, 1, 1]


def test_whether_rows_tell_groups():
    assert BatchHops(next(iter(batches()))).tell
    assert not BatchHops(batch_whose_last_hop_finds_nothing()).tell


def test_batches_that_no_trial_takes():
    """Without seeds, and with as many edges as nodes, where sizes do not say which fields are nodes'."""
    data = Data(x=torch.rand(9, FEATURES, dtype=torch.float64), edge_index=torch.arange(18).view(2, 9) % 9)
    narrowed = narrow(Normed(layers=2).double()).train()
    empty = NeighborLoader(data, [2, 2], batch_size=4)(torch.empty(0, dtype=torch.int64))
    assert narrowed(empty).shape == (0, CLASSES)
    ring = Data(x=torch.rand(4, FEATURES, dtype=torch.float64), dist=torch.rand(4, 1, dtype=torch.float64),
                edge_index=torch.tensor([[3, 2, 0, 1], [0, 0, 1, 2]]))  # fmt: skip
    ring.num_sampled_nodes, ring.num_sampled_edges, ring.batch_size = [3, 1, 0], [4, 0], 3
    gat = pyg_nn.GAT(FEATURES, HIDDEN, 2, CLASSES, edge_dim=1, norm="BatchNorm").double().train()
    narrowed = narrow(gat, lambda model, batch: model(batch.x, batch.edge_index, edge_attr=batch.dist))
    assert narrowed(ring).shape == (3, CLASSES)


class Alternating(nn.Module):
    """Calls its layers in another order in every batch."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(pyg_nn.SAGEConv(FEATURES, FEATURES) for _ in range(2))
        self.norm, self.calls = nn.BatchNorm1d(FEATURES), 0

    def forward(self, x, edge_index):
        self.calls += 1
        for conv in self.convs if self.calls % 2 else list(self.convs)[::-1]:
            x = self.norm(conv(x, edge_index))
        return x


@pytest.mark.slow
def test_a_model_without_an_order_is_not_tried_for_ever():
    model, short = Alternating().double().train(), batch_whose_last_hop_finds_nothing()
    narrowed = narrow(model, check=False)
    with warnings.catch_warnings(record=True):
        for _ in range(40):
            narrowed(short)
    assert model.calls <= 40 + 8 + 1


def test_a_norm_of_one_s_own_beside_noise_reads_the_batch():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg_nn.SAGEConv(FEATURES, CLASSES)

        def forward(self, x, edge_index):
            out = self.conv(x, edge_index)
            return out - out.mean(0) + 0.1 * torch.randn_like(out) if self.training else out

    narrowed = narrow(Noisy().double().train())
    narrowed(next(iter(batches())))
    assert narrowed._reads_statistics()
