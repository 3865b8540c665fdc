"""The training tasks on graphs of several node types, links and events; on real data where there is some."""

import math
from types import SimpleNamespace

import pytest
import torch
from helpers.data import REAL, silent
from helpers.slow import NIGHTLY
from torch.utils.data import SequentialSampler
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GraphSAGE

from torch_gnnscale import LayerSampler, NeighborSampler, tasks
from torch_gnnscale.datasets import EventTask, LinkTask, NodeTask, planted, planted_events, planted_links, planted_types
from torch_gnnscale.datasets.planted import with_reverses
from torch_gnnscale.tasks import TASKS, EventConfig, EventTrainer, NodeConfig, NodeTrainer
from torch_gnnscale.tasks.metrics import Accuracy, RocAuc, average_precision, ranking, roc_auc
from torch_gnnscale.tasks.node_trainer import SeedScores, SplitNodeTrainer, fanouts_of_tests
from torch_gnnscale.tasks.temporal import Pairs
from torch_gnnscale.tasks.typed_trainers import Categories, Encoder, HeteroSAGE, LinkTrainer, _among
from torch_gnnscale.training import RankGroup

SMALL = {
    "hetero": {"epochs": 6},
    "links": {"epochs": 4, "batch_size": 256, "negatives": 4},
    "temporal": {"epochs": 4, "lr": 0.01},
}


def small_task(kind):
    if kind == "hetero":
        data = planted_types(1000, 2000, 24, 6, split=(0.4, 0.2), seed=0)
        return NodeTask.from_types("small", data, "author")
    if kind == "links":
        data, links = planted_links(400, 300, 8000, 10, seed=0)
        return LinkTask("small", data, ("user", "chooses", "item"), links)
    data = planted_events(300, 100, 8000, 5, seed=0)
    parts = dict(zip(("train", "val", "test"), torch.arange(8000).tensor_split([5600, 6800]), strict=True))
    return EventTask("small", data, ("user", "visits", "page"), parts)


def trainer_of(kind, folder=None, **changes):
    trainer = TASKS[kind]
    config = trainer.config_type(**{**SMALL[kind], "hidden": 32, **changes})
    return trainer(small_task(kind), config, folder, quiet=True, checkpoint_every=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hetero", "links", pytest.param("temporal", marks=pytest.mark.slow)])
def test_the_model_beats_the_baseline(kind, one_thread):
    lines = []
    summary = trainer_of(kind).run(lines.append)
    assert summary["test"] > summary["baseline"]["test"] + 0.02
    assert f"test {summary['metric']} {summary['test']:.4f}" in lines[-3]
    assert f"{summary['baseline']['name']}: {summary['baseline']['test']:.4f}" in lines[-3]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hetero", "links", "temporal"])
def test_a_stopped_run_goes_on_to_the_same_weights(kind, tmp_path, one_thread):
    class Stopped(Exception):
        pass

    expected = trainer_of(kind, epochs=2)
    summary = expected.run(silent)
    stopped = trainer_of(kind, tmp_path, epochs=2)
    steps = 0

    def stop(*_):
        nonlocal steps
        steps += 1
        if steps == 5:
            raise Stopped

    stopped.optimizer.register_step_post_hook(stop)
    with pytest.raises(Stopped):
        stopped.run(silent)
    torch.manual_seed(1)
    resumed = trainer_of(kind, tmp_path, epochs=2)
    assert resumed.resume()
    found = resumed.run(silent)
    weights = expected.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in resumed.model.state_dict().items())
    assert (found["test"], found["baseline"]) == (summary["test"], summary["baseline"])


EVALUATION = {
    "hetero": (lambda trainer: trainer._loader("val", [-1, -1], seed=0), 480),
    "links": (lambda trainer: trainer._nodes_of("item", [-1, -1]), 480),
    "temporal": (lambda trainer: trainer._loader("val", seed=0), 48),
}
"""By task, its loader of evaluation, and the size of its batches where those of training have 48."""
DRAWN = {
    "links": {"exclude_seed_edges": "reverse", "strict_negatives": True},
    "temporal": {"temporal_strategy": "last", "time_attr": "time", "disjoint": True},
}
"""By task, what its sampler is told besides fanouts."""


@pytest.mark.parametrize("kind", EVALUATION)
def test_loaders_have_the_settings_of_the_configuration(kind):
    trainer = trainer_of(kind, batch_size=48, fanouts=[3, 2], seed=11)
    (evaluation_of, size), training = EVALUATION[kind], trainer.train_loader
    evaluation = evaluation_of(trainer)
    assert (training.batch_size, training.seed, training.num_workers) == (48, 11, 0)
    assert (evaluation.batch_size, evaluation.seed) == (size, 0)
    assert isinstance(evaluation.sampler, SequentialSampler)
    assert not isinstance(training.sampler, SequentialSampler)
    options = training._sampler.options()
    assert options["num_neighbors"][0] == [3, 2]
    assert evaluation._sampler.options()["num_neighbors"][0] == ([3, 2] if kind == "temporal" else [-1, -1])
    assert {name: options[name] for name in DRAWN.get(kind, {})} == DRAWN.get(kind, {})
    if kind != "hetero":
        assert (training.neg_sampling.is_triplet(), training.neg_sampling.amount) == (True, 4 if kind == "links" else 1)


def test_the_step_of_the_baseline_that_is_best_in_validation_counts():
    trainer = trainer_of("hetero")
    found = iter([0.5, 0.9, 0.7, 0.6, 0.7, 0.8, *[0.1, 0.95] * 97])
    trainer._accuracy = lambda *_: next(found)
    assert trainer.baseline() == ("MLP on features alone", 0.6)


def test_batches_without_hops_have_scores_of_their_seeds():
    batch = Data(x=torch.randn(9, 4), edge_index=torch.tensor([[4, 5, 6], [0, 1, 2]]), batch_size=3)
    model = GraphSAGE(4, 5, 1, 2)
    assert torch.equal(SeedScores(model, False)(batch), model(batch.x, batch.edge_index)[:3])


def test_workers_are_those_of_the_configuration():
    with pytest.warns(UserWarning, match="num_workers=2: threads prepare the batches"):
        assert len(next(iter(trainer_of("hetero", num_workers=2).train_loader))) > 0


def test_all_neighbors_are_taken_in_small_graphs_when_a_model_is_tested():
    assert fanouts_of_tests([3, 2], 20_000_000) == [-1, -1]
    assert fanouts_of_tests([3, 2], 20_000_001) == [3, 2]


@pytest.mark.parametrize(("method", "kind"), [("neighbor", NeighborSampler), ("ladies", LayerSampler)])
def test_training_draws_by_the_method_and_testing_takes_all_neighbors(method, kind):
    task = NodeTask.from_data("small", planted(300, num_classes=3, num_features=4, seed=0))
    trainer = NodeTrainer(task, NodeConfig(method=method, fanouts=[9, 9], batch_size=20, hidden=4), quiet=True)
    assert type(trainer.train_loader._sampler) is kind
    assert type(trainer._loader("val", [-1, -1], seed=0)._sampler) is NeighborSampler
    assert (trainer.scores(next(iter(trainer.train_loader))).shape, trainer.metric) == ((20, 3), "accuracy")


def test_a_checkpoint_of_another_task_is_refused(tmp_path):
    trainer_of("links", tmp_path).save_checkpoint()
    with pytest.raises(ValueError, match="expected trainer='EventTrainer', found 'LinkTrainer'"):
        trainer_of("temporal", tmp_path).resume()


@pytest.mark.parametrize("kind", ["links", "temporal"])
def test_no_batch_holds_what_it_is_asked(kind):
    trainer = trainer_of(kind)
    edge_type = trainer.task.edge_type
    src_type, rel, dst_type = edge_type
    reverse = (dst_type, f"rev_{rel}", src_type)
    for batch in trainer.train_loader:
        src, dst = batch[src_type], batch[dst_type]
        if kind == "links":
            size = trainer.task.data[dst_type].num_nodes
            asked = src.n_id[src.src_index] * size + dst.n_id[dst.dst_pos_index]
            one, other = batch[edge_type].edge_index, batch[reverse].edge_index.flip(0)
            for users, items in (one, other):
                assert not torch.isin(src.n_id[users] * size + dst.n_id[items], asked).any()
            train = trainer.task.links["train"]
            negative = src.n_id[src.src_index][:, None] * size + dst.n_id[dst.dst_neg_index]
            assert not torch.isin(negative, train[0] * size + train[1]).any()
        else:
            for store, ends in ((batch[edge_type], dst), (batch[reverse], src)):
                events = trainer.task.events["train"][batch[edge_type].input_id]
                time = trainer.task.data[edge_type].time[events]
                assert (store.time < time[ends.batch[store.edge_index[1]]]).all()


def test_recency_is_what_a_loop_finds():
    trainer = trainer_of("temporal")
    store = trainer.task.data[trainer.task.edge_type]
    users, pages, times = *store.edge_index.tolist(), store.time.tolist()
    for pairs in trainer.pairs("val"):
        found = trainer.recency(pairs)
        for user, page, time, score in list(zip(*(column.tolist() for column in pairs), found.tolist(), strict=True))[
            ::97
        ]:
            of_page = [(u, t) for u, p, t in zip(users, pages, times, strict=True) if p == page and t <= time]
            own = [t for u, t in of_page if u == user]
            span = max(times) + 2
            far = span + (time - max(t for _, t in of_page) if of_page else span)
            assert -score == (time - max(own) if own else far)


def test_an_event_at_the_very_time_asked_is_the_latest():
    data = HeteroData()
    data["user"].num_nodes, data["page"].num_nodes = 3, 2
    data["user", "visits", "page"].edge_index = torch.tensor([[0, 0, 1], [0, 0, 1]])
    data["user", "visits", "page"].time = torch.tensor([10, 20, 20])
    task = EventTask("three events", with_reverses(data), ("user", "visits", "page"), {"train": torch.arange(3)})
    trainer = EventTrainer(task, EventConfig(hidden=4, fanouts=[1], batch_size=1), quiet=True)
    source, destination = torch.tensor([0, 0, 0, 2, 2]), torch.tensor([0, 0, 0, 1, 1])
    time = torch.tensor([10, 19, 20, 20, 19])
    # The last two pairs never met. They count page 1's latest event, at time 20, from span = 20 + 2 on.
    span = 22
    assert (-trainer.recency(Pairs(source, destination, time))).tolist() == [0, 9, 0, span, 2 * span]


# Metrics #############################################################################################################


def test_average_precision_counts_ties_together():
    score, positive = torch.tensor([3.0, 2.0, 2.0, 1.0, 0.0]), torch.tensor([True, True, False, False, True])
    assert average_precision(score, positive) == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)
    generator = torch.Generator().manual_seed(0)
    score, positive = torch.rand(300, generator=generator), torch.rand(300, generator=generator) < 0.4
    ranked = positive[torch.argsort(-score)].double()
    expected = (ranked * ranked.cumsum(0) / torch.arange(1, 301)).sum() / ranked.sum()
    assert average_precision(score, positive) == pytest.approx(float(expected))


@pytest.mark.parametrize(
    ("ids", "expected"),
    [([], [[], []]), ([0], [[0], [9]]), ([1, 3], [[0, 1], [8, 7]]), ([5], [[0], [6]]), ([2], [[], []])],
)
def test_links_of_own_sources_before_between_and_after_the_others(ids, expected):
    links = torch.tensor([[0, 1, 3, 5], [9, 8, 7, 6]])
    assert _among(torch.tensor(ids, dtype=torch.int64), links).tolist() == expected


def test_links_of_earlier_splits_are_not_recommended(monkeypatch):
    trainer, found = trainer_of("links"), {}
    links, sizes = trainer.task.links, trainer.task.sizes
    recall = lambda s, d, asked, known, *_: found.update(known=known) or {"recall": 0.0}  # noqa: E731
    monkeypatch.setattr(tasks.typed_trainers, "ranking", recall)
    ids, destinations = torch.arange(sizes["user"].num_nodes), torch.zeros(sizes["item"].num_nodes, 2)
    for subset, before in (("train", []), ("val", ["train"]), ("test", ["train", "val"])):
        trainer._recall(subset, ids, torch.zeros(len(ids), 2), destinations)
        expected = torch.cat([links["train"][:, :0], *(links[name] for name in before)], dim=1)
        assert torch.equal(found["known"], expected)


def test_roc_auc_is_of_the_second_class():
    metric = RocAuc()
    metric.add(torch.tensor([[0.0, 1.0], [5.0, 5.5]]), torch.tensor([1, 0]))
    metric.add(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    assert metric.value(RankGroup()) == 1.0


def test_ties_count_half_in_roc_auc():
    score, positive = torch.tensor([1.0, 1.0, 2.0, 0.0, 2.0]), torch.tensor([True, False, True, False, False])
    pairs = [(a > b) + 0.5 * (a == b) for a in score[positive].tolist() for b in score[~positive].tolist()]
    assert roc_auc(score, positive) == sum(pairs) / len(pairs)


def test_a_link_is_chosen_among_it_and_its_negatives():
    trainer = LinkTrainer.__new__(LinkTrainer)
    trainer.task = SimpleNamespace(edge_type=("user", "chooses", "item"))
    rows = {"user": torch.eye(2), "item": torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])}
    trainer.forward = lambda batch: rows
    ends = {"dst_pos_index": torch.tensor([0, 1]), "dst_neg_index": torch.tensor([[1, 2], [0, 2]])}
    batch = {"user": SimpleNamespace(src_index=torch.tensor([0, 1])), "item": SimpleNamespace(**ends)}
    loss, links = trainer.loss(batch)
    expected = sum(math.log(1 + 2 * math.exp(-score)) for score in (3.0, 4.0)) / 2
    assert (float(loss), links) == (pytest.approx(expected), 2)


def test_popularity_recommends_what_has_most_links():
    trainer = trainer_of("links")
    links, items = trainer.task.links, trainer.task.sizes["item"].num_nodes
    known = torch.cat([links["train"], links["val"]], dim=1)
    popularity = torch.bincount(links["train"][1], minlength=items).float()
    users = trainer.task.sizes["user"].num_nodes
    expected = ranking(torch.ones(users, 1), popularity[:, None], links["test"], known)["recall"]
    assert trainer.baseline() == ("popularity", pytest.approx(expected))


def test_each_event_and_its_negative_are_scored():
    data = planted_events(60, 20, 600, 5, seed=0)
    parts = dict(zip(("train", "val", "test"), torch.arange(600).tensor_split([400, 500]), strict=True))
    task = EventTask("small", data, ("user", "visits", "page"), parts)
    trainer = EventTrainer(task, EventConfig(hidden=8, fanouts=[3], batch_size=32), quiet=True)
    batch = next(iter(trainer.train_loader))
    assert [out.shape for out in trainer.forward(batch)] == [(32,), (32,)]
    loss, events = trainer.loss(batch)
    loss.backward()
    assert events == 32
    assert all(bool(parameter.grad.isfinite().all()) for parameter in trainer.model.parameters())


def test_embeddings_have_the_standard_deviation_asked_for():
    data = HeteroData()
    data["node"].num_nodes = 500
    table = Encoder(data, 16, scale=0.125).rows["node"].weight
    assert float(table.std()) == pytest.approx(0.125, rel=0.1)


@pytest.mark.parametrize("name", ["items", "type", "forward"])
def test_types_with_names_of_what_modules_have(name):
    """``items.csv`` becomes the type ``items``."""
    data = HeteroData()
    data[name].x, data[name].category = torch.ones(3, 2), torch.ones(3, 1, dtype=torch.int64)
    data["other"].num_nodes = 4
    data[name, "of", "other"].edge_index = torch.tensor([[0, 1], [2, 3]])
    data["other"].n_id = torch.arange(4)
    found = HeteroSAGE(data, 8, 1, 0.0, scale=1.0)(data)
    assert {of: tuple(rows.shape) for of, rows in found.items()} == {name: (3, 8), "other": (4, 8)}


def test_each_category_of_each_column_has_a_row_of_its_own():
    codes = torch.tensor([[0, 1, 0], [2, 0, 0], [1, 1, 3]])
    categories = Categories(codes, 5)
    columns = categories.rows.weight.split([3, 2, 4])
    expected = sum(rows[codes[:, column]] for column, rows in enumerate(columns))
    assert torch.equal(categories(codes), expected)
    assert len(Categories(codes[:0], 5)(codes[:0])) == 0


def test_a_rank_starts_from_its_share_of_the_mean_over_a_split_batch():
    trainer, batch = SplitNodeTrainer.__new__(SplitNodeTrainer), SimpleNamespace(global_batch_size=12)
    assert float(trainer.objective(torch.tensor(2.0), 3, batch)) == 0.5
    assert float(trainer.objective(torch.tensor(0.0), 0, batch)) == 0.0


def test_accuracy_of_no_nodes_is_no_number():
    assert math.isnan(Accuracy().value(RankGroup()))


@pytest.mark.parametrize("positive", [[], [True, True], [False]], ids=["nothing", "no negatives", "no positives"])
def test_ranking_of_one_kind_or_nothing_is_no_number(positive):
    score, positive = torch.arange(len(positive)).float(), torch.tensor(positive, dtype=torch.bool)
    assert math.isnan(roc_auc(score, positive))
    if not positive.any():
        assert math.isnan(average_precision(score, positive))
    assert math.isnan(RocAuc().value(RankGroup()))


# Real data ###########################################################################################################


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [
        ("hetero", "dblp_hetero", {"epochs": 8}),
        NIGHTLY("links", "lastfm_hetero", {"epochs": 1, "fanouts": [5, 5]}),
        NIGHTLY("temporal", "wikipedia_temporal", {"epochs": 1}),
    ],
)
def test_real_data(kind, name, options, one_thread):
    if not (REAL / name).is_dir():
        pytest.skip(f"no {name} in {REAL}")
    trainer = TASKS[kind]
    task = trainer.load(name, REAL)
    if kind == "temporal":  # the latest will do
        task.events["train"] = task.events["train"][-40_000:]
    summary = trainer(task, trainer.config_type(**options), quiet=True).run(silent)
    assert summary["test"] > summary["baseline"]["test"]
