"""What the settings of a task refuse, and what each of them does; models and scores, by hand."""

from types import SimpleNamespace

import pytest
import torch
import torch_geometric.loader
import torch_geometric.nn as pyg_nn
from helpers.refused import refuses
from torch_geometric.data import Data, HeteroData

from torch_gnnscale import NeighborLoader
from torch_gnnscale.comm.mesh import Ranks
from torch_gnnscale.datasets import EventTask, NodeTask, planted, planted_events, planted_types
from torch_gnnscale.datasets.planted import with_reverses
from torch_gnnscale.split import Plan, plan
from torch_gnnscale.tasks import (
    EventConfig,
    EventTrainer,
    HeteroConfig,
    HeteroTrainer,
    LinkConfig,
    NodeConfig,
    NodeTrainer,
)
from torch_gnnscale.tasks import node_trainer as classes
from torch_gnnscale.tasks.metrics import average_precision
from torch_gnnscale.tasks.node_trainer import (
    ResidualGNN,
    SeedScores,
    SplitNodeTrainer,
    SplitRanks,
    build_model,
    call_model,
)
from torch_gnnscale.tasks.temporal import _precision
from torch_gnnscale.training import Config, RankGroup, checkpoint
from torch_gnnscale.training.rank_group import launched_ranks

METHODS = "('neighbor', 'ladies', 'fastgcn', 'labor')"
SETTINGS = [
    (Config, {"seed": 2**64}, ValueError, f"seed: expected -2^63 <= seed < 2^64, found {2**64}"),
    (Config, {"seed": -(2**63) - 1}, ValueError, f"seed: expected -2^63 <= seed < 2^64, found {-(2**63) - 1}"),
    (HeteroConfig, {"loader": "x"}, ValueError, "loader: expected one of ('gnnscale', 'pyg'), found 'x'"),
    (NodeConfig, {"loader": "x"}, ValueError, "loader: expected one of ('gnnscale', 'pyg'), found 'x'"),
    (NodeConfig, {"model": "x"}, ValueError, "model: expected one of ('gat', 'gcn', 'mlp', 'sage'), found 'x'"),
    (NodeConfig, {"method": "x"}, ValueError, f"method: expected one of {METHODS}, found 'x'"),
    (NodeConfig, {"method": "labor", "loader": "pyg"}, ValueError,
     "method='labor': expected loader='gnnscale', found 'pyg'"),
    (NodeConfig, {"device": "tpu"}, ValueError, "device: expected 'cpu' or 'cuda', found 'tpu'"),
    (NodeConfig, {"model": "mlp", "residual": True}, ValueError,
     "residual: expected a model with convolutions (sage, gcn, gat), found 'mlp'"),
    (LinkConfig, {"negatives": 0}, ValueError, "negatives: expected at least 1 per link, found 0"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "given", "error", "message"), SETTINGS, ids=[message for *_, message in SETTINGS])
def test_settings_that_are_refused(kind, given, error, message):
    with refuses(error, message):
        kind(**given)


def test_the_last_settings_that_are_taken():
    assert LinkConfig(negatives=1).negatives == 1
    assert Config(seed=-(2**63)).seed == -(2**63)
    assert NodeConfig(model="gat", residual=True).residual


def test_fanouts_of_who_does_not_say():
    kinds = {NodeConfig: [10, 10], HeteroConfig: [10, 10], LinkConfig: [10, 10], EventConfig: [10]}
    assert {kind: kind().fanouts for kind in kinds} == kinds


@pytest.mark.parametrize(("pyg_lib", "sparse"), [(True, False), (False, True), (False, False)])
def test_pygs_loader_needs_one_of_two_packages(pyg_lib, sparse, monkeypatch):
    monkeypatch.setattr(classes, "WITH_PYG_LIB", pyg_lib)
    monkeypatch.setattr(classes, "WITH_TORCH_SPARSE", sparse)
    if pyg_lib or sparse:
        assert HeteroConfig(loader="pyg").loader == "pyg"
        return
    message = (
        "loader='pyg': expected the package pyg-lib or torch-sparse, which PyG's loader needs, found neither "
        "(loader='gnnscale' needs none)"
    )
    with refuses(ImportError, message):
        HeteroConfig(loader="pyg")


@pytest.mark.parametrize("value", ["0", "-1", "two", "", "1.0"])
def test_no_number_of_ranks(value, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", value)
    with refuses(ValueError, f"WORLD_SIZE: expected an integer of at least 1, found {value!r}"):
        launched_ranks()


# Nodes ###############################################################################################################


@pytest.fixture(scope="module")
def task():
    return NodeTask.from_data("small", planted(300, num_classes=3, num_features=4, seed=0))


@pytest.fixture
def with_pyg(monkeypatch):
    """The arguments with which PyG's loader is made; it has no batches."""
    made = []
    monkeypatch.setattr(classes, "WITH_PYG_LIB", True)
    monkeypatch.setattr(
        torch_geometric.loader, "NeighborLoader", lambda *given, **options: made.append((given, options))
    )
    return made


def test_pygs_loader_has_the_settings_of_the_configuration(task, with_pyg):
    config = NodeConfig(loader="pyg", hidden=4, fanouts=[3, 2], batch_size=7, num_workers=1)
    trainer = NodeTrainer(task, config, quiet=True)
    trainer._loader("val", [-1, -1], seed=0)
    (training, of_training), (validation, of_validation) = with_pyg
    assert of_training == {"batch_size": 7, "shuffle": True, "num_workers": 1}
    assert of_validation == {"batch_size": 70, "shuffle": False, "num_workers": 1}
    assert trainer._there(SimpleNamespace(to=lambda device: ("there", device))) == ("there", torch.device("cpu"))
    for (data, fanouts, seeds), expected, subset in ((training, [3, 2], "train"), (validation, [-1, -1], "val")):
        assert data is task.data
        assert fanouts == expected
        assert torch.equal(seeds, task.seeds(subset))


def test_a_run_with_pygs_loader_does_not_go_on(task, with_pyg, tmp_path):
    trainer = NodeTrainer(task, NodeConfig(loader="pyg", hidden=4), tmp_path, quiet=True)
    trainer.save_checkpoint()
    message = (
        f"{tmp_path}: expected a run with loader='gnnscale', found one with PyG's loader, which cannot continue within "
        f"an epoch"
    )
    with refuses(ValueError, message):
        trainer.resume()


def test_there_may_be_nothing_to_go_on_from(task, tmp_path):
    config = NodeConfig(hidden=4)
    assert not NodeTrainer(task, config, quiet=True).resume()
    assert not NodeTrainer(task, config, tmp_path / "none", quiet=True).resume()
    NodeTrainer(task, config, quiet=True).save_checkpoint()  # nowhere
    assert checkpoint.read(tmp_path, {}) is None


@pytest.mark.parametrize(
    ("given", "kind"),
    [("sage", pyg_nn.GraphSAGE), ("gcn", pyg_nn.GCN), ("gat", pyg_nn.GAT), ("mlp", pyg_nn.MLP)],
)
def test_models_are_those_of_the_configuration(task, given, kind):
    model = build_model(NodeConfig(model=given, hidden=8, fanouts=[1, 1, 1], dropout=0.25), task)
    assert type(model) is kind
    if given == "mlp":
        assert model.channel_list == [4, 8, 8, 3]
        assert model.dropout == [0.25, 0.25, 0.0]
    else:
        assert (model.in_channels, model.hidden_channels, model.out_channels, model.num_layers) == (4, 8, 3, 3)
        assert model.dropout.p == 0.25


@pytest.mark.parametrize(
    ("conv", "kind"), [("sage", pyg_nn.SAGEConv), ("gcn", pyg_nn.GCNConv), ("gat", pyg_nn.GATConv)]
)
def test_residual_layers_by_hand(task, conv, kind):
    model = build_model(NodeConfig(model=conv, residual=True, hidden=8, fanouts=[1, 1], dropout=0.25), task)
    assert isinstance(model, ResidualGNN)
    assert [type(layer) for layer in model.convs] == [kind] * 2
    assert (len(model.norms), model.dropout.p, model.decode.out_features) == (3, 0.25, 3)
    model.eval()
    for number, norm in enumerate(model.norms):  # each is another one
        torch.nn.init.constant_(norm.bias, number)
    x, edges = torch.randn(5, 4), torch.tensor([[0, 1, 2, 4], [1, 2, 3, 0]])
    h = model.encode(x).relu()
    for conv_of, norm in zip(model.convs, model.norms[:2], strict=True):
        h = h + conv_of(norm(h), edges).relu()
    torch.testing.assert_close(model(x, edges), model.decode(model.norms[2](h)))
    model.train()
    torch.manual_seed(0)
    assert (model.dropout(torch.ones(1000)) == 0).double().mean() == pytest.approx(0.25, abs=0.05)
    assert not torch.equal(model(x, edges), model(x, edges))


def test_an_mlp_scores_seeds_alone():
    batch = Data(x=torch.randn(9, 4, dtype=torch.float64), edge_index=torch.zeros(2, 0).long(), batch_size=3)
    model = pyg_nn.MLP([4, 5, 2])
    model.eval()
    expected = model(batch.x[:3].float())
    for found in (call_model(model, batch), SeedScores(model, False)(batch), SeedScores(model, True)(batch)):
        assert torch.equal(found, expected)


# Split ###############################################################################################################


@pytest.fixture(scope="module")
def split_plan(task) -> Plan:
    return plan(task.data, task.seeds("train"), [2], 2, weights="random", epochs=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loader": "pyg"}, "loader: expected 'gnnscale' with a split plan, found 'pyg'"),
        ({"model": "mlp"}, "model: expected one with messages to be split, found 'mlp'"),
    ],
)
def test_settings_that_are_not_split(task, split_plan, with_pyg, given, message):
    with refuses(ValueError, message):
        SplitNodeTrainer(task, NodeConfig(**given), plan=split_plan)


def test_losses_of_split_batches_are_those_of_whole_ones(task, split_plan):
    data = task.data.clone()
    data.y = torch.where(torch.arange(300) % 4 == 0, -1, data.y)
    some = NodeTask.from_data("some labels", data)
    config = NodeConfig(hidden=4, fanouts=[2], batch_size=20, dropout=0.0)
    ranks = SplitRanks(Ranks(0, 1))
    trainer = SplitNodeTrainer(some, config, plan=split_plan, order="owned", quiet=True, ranks=ranks)
    assert ranks.parallel(trainer.model, unused=True) is trainer.model
    assert trainer.drawing([2], training=True) == {"method": "neighbor", "split": split_plan, "seed_order": "owned"}
    assert trainer.drawing([-1], training=False) == {"split": split_plan, "uneven": "serve"}
    batch = next(iter(trainer.train_loader))
    scores, y = trainer.scores(batch), batch.y[:20].long()
    known = y >= 0
    loss, seeds = trainer.loss(batch)
    expected = torch.nn.functional.cross_entropy(scores[known], y[known], reduction="sum") / 20
    assert seeds == 20
    assert 0 < int(known.sum()) < 20
    torch.testing.assert_close(loss, expected)


# Types and events ####################################################################################################


def test_classes_of_one_type_by_hand():
    task = NodeTask.from_types("small", planted_types(60, 90, 8, 3, split=(0.4, 0.2), seed=0), "author")
    trainer = HeteroTrainer(task, HeteroConfig(hidden=8, fanouts=[2, 2], batch_size=16), quiet=True)
    batch = next(iter(trainer.train_loader))
    model = trainer.model.eval()
    scores = trainer.scores(batch)
    assert scores.shape == (batch["author"].batch_size, task.num_classes)
    torch.testing.assert_close(scores, model.classes(model.gnn(batch)["author"][: len(scores)]))
    loss, seeds = trainer.loss(batch)
    y = batch["author"].y[: len(scores)].long()
    assert seeds == len(scores)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(scores, y, ignore_index=-1))
    right = torch.eye(task.num_classes)
    x, y = torch.arange(7) % task.num_classes, torch.arange(7) % task.num_classes
    y[3] = (y[3] + 1) % task.num_classes
    assert trainer._accuracy(lambda rows: right[rows], x, y) == 6 / 7


@pytest.mark.slow
def test_the_baseline_of_types_by_hand():
    """100 steps of a training loop, each by the gradients of that step alone."""
    task = NodeTask.from_types("small", planted_types(60, 90, 8, 3, split=(0.4, 0.2), seed=0), "author")
    trainer = HeteroTrainer(task, HeteroConfig(hidden=4, dropout=0.0), quiet=True)
    torch.manual_seed(5)
    found = trainer.baseline()
    torch.manual_seed(5)
    model = pyg_nn.MLP([task.num_features, 4, task.num_classes], dropout=0.0, norm=None)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    scores = []
    for _ in range(100):
        loss = torch.nn.functional.cross_entropy(model(task.labelled("train")[0]), task.labelled("train")[1])
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        optimizer.step()
        with torch.no_grad():
            scores.append([float((model(x).argmax(1) == y).double().mean())
                           for x, y in map(task.labelled, ("val", "test"))])  # fmt: skip
    assert found == ("MLP on features alone", max(scores, key=lambda pair: pair[0])[1])


def test_scores_of_events_by_hand():
    data = planted_events(60, 20, 300, 5, seed=0)
    parts = dict(zip(("train", "val", "test"), torch.arange(300).tensor_split([200, 250]), strict=True))
    task = EventTask("small", data, ("user", "visits", "page"), parts)
    trainer = EventTrainer(task, EventConfig(hidden=4, fanouts=[2], batch_size=32), quiet=True)
    assert trainer.metric == "average precision"
    trainer.model.eval()
    found = [trainer.forward(batch) for batch in trainer._loader("val", seed=0)]
    assert len(found) == 2
    link, negative = (torch.cat(column) for column in zip(*found, strict=True))
    assert len(link) == len(negative) == 50
    positive = torch.tensor([True] * 50 + [False] * 50)
    assert trainer.score("val") == average_precision(torch.cat([link, negative]), positive)
    name, score = trainer.baseline()
    events, others = trainer.pairs("test")
    assert (name, score) == ("recency", _precision(trainer.recency(events), trainer.recency(others)))
    assert _precision(torch.tensor([2.0]), torch.tensor([1.0, 3.0])) == 0.5


def test_an_odd_width_has_no_two_heads():
    data = planted_events(20, 10, 60, 2, seed=0)
    task = EventTask("small", data, ("user", "visits", "page"), {"train": torch.arange(60)})
    with refuses(ValueError, "hidden: expected an even number, because layers have two heads, found 7"):
        EventTrainer(task, EventConfig(hidden=7), quiet=True)


def test_a_group_of_one_rank_does_nothing():
    ranks, rows, model = RankGroup(), torch.arange(3), torch.nn.Linear(1, 1)
    assert (ranks.rank, ranks.world, ranks.is_first) == (0, 1, True)
    assert ranks.parallel(model, True) is model
    assert ranks.total(rows) is ranks.gathered(rows) is rows
    assert (ranks.everyone(7), ranks.first(lambda: 8)) == ([7], 8)
    assert not RankGroup(Ranks(1, 2)).is_first


def test_an_event_of_the_second_before_is_seen():
    data = HeteroData()
    data["user"].num_nodes, data["page"].num_nodes = 2, 2
    data["user", "visits", "page"].edge_index = torch.tensor([[0, 0, 0], [0, 0, 0]])
    data["user", "visits", "page"].time = torch.tensor([9, 10, 10])
    parts = {"train": torch.arange(2), "val": torch.tensor([2])}
    task = EventTask("three events", with_reverses(data), ("user", "visits", "page"), parts)
    trainer = EventTrainer(task, EventConfig(hidden=4, fanouts=[5], batch_size=1), quiet=True)
    (batch,) = trainer._loader("val", seed=0)
    assert batch["user", "visits", "page"].time.unique().tolist() == [9]  # the other one is of the same second


def test_batches_of_training_are_shuffled(task):
    trainer = NodeTrainer(task, NodeConfig(hidden=4, fanouts=[2], batch_size=20), quiet=True)
    assert isinstance(trainer.train_loader, NeighborLoader)
    first = torch.cat([batch.n_id[: batch.batch_size] for batch in trainer.train_loader])
    assert not torch.equal(first, task.seeds("train"))
    assert torch.equal(first.sort().values, task.seeds("train").sort().values)
