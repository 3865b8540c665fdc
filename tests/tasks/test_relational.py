"""Tasks of a relational database: trained, evaluated as by RelBench, resumed to the same bits."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers.slow import quick
from pandas import Series
from torch import nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import SAGEConv

from torch_gnnscale import relational
from torch_gnnscale.cli.command import main
from torch_gnnscale.tasks import RelationalConfig, RelationalTrainer
from torch_gnnscale.tasks.metrics import mean_roc_auc
from torch_gnnscale.tasks.relational import best_rows, label_loss, most_popular, pair_loss, row_times

SMALL = {"hidden": 16, "fanouts": [4, 4], "batch_size": 64, "epochs": 2, "blocks": 1}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def trainer_of(shop, cache, task, folder=None, **options):
    graph = relational.open_task(shop, task, cache=cache)
    return RelationalTrainer(graph, RelationalConfig(**SMALL, **options), folder, quiet=True, checkpoint_every=2)


METRICS = {
    "customer-orders": "roc_auc",
    "customer-spending": "-nmae",
    "customer-categories": "mean roc_auc",
    "customer-products": "map",
    "review-stars": "-nmae",
}


@pytest.mark.parametrize("task", quick(METRICS.keys(), "customer-orders", "customer-spending", "customer-products"))
def test_every_kind_of_task(shop, cache, task):
    metric = METRICS[task]
    trainer = trainer_of(shop, cache, task)
    if task == "customer-spending":
        known = trainer.task.task.get_table("train").df[trainer.task.task.target_col].to_numpy()
        assert trainer._range == pytest.approx(np.quantile(known, [0.02, 0.98]))
        assert trainer.model.decide.bias.tolist() == pytest.approx([np.sort(known)[(len(known) - 1) // 2]])
    summary = trainer.run(report=lambda _: None)
    assert summary["metric"] == metric
    losses = [entry["loss"] for entry in summary["history"]]
    assert losses[1] < losses[0]
    table = trainer.task.task.get_table("test", mask_input_cols=False)
    with torch.no_grad():
        predicted = trainer.model.eval() and trainer.predictions("test").numpy()
    if metric != "mean roc_auc":
        (score,) = trainer.task.task.evaluate(predicted, table).values()
        assert summary["test"] == pytest.approx(-score if metric == "-nmae" else score)
    assert len(predicted) == len(table.df)


@pytest.mark.parametrize(
    ("positive", "negative", "pairs"),
    [
        ([[0, 1], [2, -1]], [[1, 0], [0, 3]], [(0, 0, 1), (0, 1, 0), (1, 2, 0)]),
        ([[3, 0], [0, 0]], [[-1, -1], [-1, 0]], [(1, 0, 0)]),
        ([[-1, -1], [0, 1]], [[0, 1], [-1, -1]], []),
    ],
)
def test_the_loss_of_recommendation_is_of_the_pairs_that_are_there(positive, negative, pairs):
    """A pair: the source, and rows of what it chose and of what it did not; the first row is 0, and none is -1."""
    sources, rows = torch.rand(2, 3), torch.rand(4, 3, requires_grad=True)
    loss = pair_loss(sources, rows, torch.tensor(positive), torch.tensor(negative))
    each = [-((sources[s] @ (rows[p] - rows[n])).sigmoid().log()) for s, p, n in pairs]
    assert float(loss.detach()) == pytest.approx(sum(float(of.detach()) for of in each) / max(len(each), 1))
    loss.backward()


@pytest.mark.slow
@pytest.mark.parametrize("more", [0, 100])
def test_several_classes(shop, cache, more):
    """Categories as classes: the first of a row's labels, after training ``more`` than that, which no model knows."""
    trainer = trainer_of(shop, cache, "customer-categories")
    of = trainer.task.task
    whole = of.get_table

    def get_table(*args, **kwargs):
        table = whole(*args, **kwargs)
        if of.target_col in table.df:
            add = 0 if args[0] == "train" else more
            table.df[of.target_col] = [int(np.argmax(labels)) + add for labels in table.df[of.target_col]]
        return table

    of.get_table, of.task_type = get_table, type(of.task_type).MULTICLASS_CLASSIFICATION
    trainer = RelationalTrainer(trainer.task, RelationalConfig(**SMALL), quiet=True)
    assert trainer.metric == "accuracy"
    assert (trainer.run(report=lambda _: None)["test"] > 0) == (more == 0)
    known = max(of.get_table("train").df[of.target_col])
    assert trainer.predictions("val").size(1) == known + 1


def test_a_model_has_a_number_for_each_class_and_adds_up_neighbors(shop, cache):
    task = relational.open_task(shop, "customer-orders", cache=cache)
    task.task.task_type = type(task.task.task_type).MULTICLASS_CLASSIFICATION
    model = RelationalTrainer(task, RelationalConfig(**SMALL), quiet=True).model
    assert set(task.task.get_table("train").df[task.task.target_col]) == {0, 1}
    assert model.decide.out_features == 2
    assert {layer.aggr for layer in model.convolve.modules() if isinstance(layer, SAGEConv)} == {"sum"}


KINDS = {
    "binary_classification": (1, [1, 0, 1], nn.BCEWithLogitsLoss()),
    "multilabel_classification": (2, [[1, 0], [0, 0], [1, 1]], nn.BCEWithLogitsLoss()),
    "multiclass_classification": (4, [3, 0, 1], nn.CrossEntropyLoss()),
    "regression": (1, [0.5, -2.0, 7.0], nn.L1Loss()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_labels_are_means(kind):
    width, y, expected = KINDS[kind]
    scores = torch.randn(3, width, generator=torch.Generator().manual_seed(0))
    target = torch.tensor(y) if kind == "multiclass_classification" else torch.tensor(y).float().view(3, width)
    loss = label_loss(kind, scores, torch.tensor(y, dtype=torch.float64))
    assert float(loss) == pytest.approx(float(expected(scores, target)))


@pytest.mark.parametrize("task", ["customer-orders", "customer-spending", "customer-products"])
def test_the_loss_is_of_the_seeds_of_a_batch(shop, cache, task):
    trainer = trainer_of(shop, cache, task, dropout=0.0)
    batch = next(iter(trainer.training_batches()))
    with torch.no_grad():
        every, (loss, count) = trainer.forward(batch), trainer.loss(batch)
    out, seeds = every["customers"], batch["customers"]
    assert len(out) > 64
    if task == "customer-products":
        found = batch["products"]
        expected = pair_loss(out[seeds.src_index], every["products"], found.dst_pos_index, found.dst_neg_index)
    else:
        expected = label_loss(trainer.kind, out[:64], seeds.y)
    assert (float(loss), count) == (pytest.approx(float(expected)), 64)


@pytest.mark.parametrize("targets", [1, 3, 8])
def test_a_recommendation_has_as_many_places_as_are_evaluated(targets):
    """1,025 sources are ranked in two blocks; -1 is no destination."""
    generator = torch.Generator().manual_seed(1)
    of_source, of_target = (torch.randn(n, 4, generator=generator) for n in (1025, targets))
    found = best_rows(of_source, of_target, 5)
    best = (of_source @ of_target.t()).argsort(1, descending=True)[:, :5]
    assert found.dtype == torch.int64
    assert torch.equal(found, nn.functional.pad(best, (0, 5 - best.size(1)), value=-1))
    assert best_rows(of_source[:0], of_target, 5).shape == (0, 5)


@pytest.mark.parametrize("side", [0, 1])
def test_predictions_of_a_regression_lie_in_its_range(shop, cache, side):
    trainer = trainer_of(shop, cache, "customer-spending")
    with torch.no_grad():
        trainer.model.decide.bias.fill_([-1e6, 1e6][side])
        assert set(trainer.predictions("val").tolist()) == {torch.tensor(trainer._range[side]).item()}


@pytest.mark.parametrize(("chosen", "best"), [([[4, 2], [2], [2, 4, 1], [7, 1, 7, 7, 7]], [7, 2]), ([[3]], [3, -1])])
def test_the_most_popular_are_chosen_most_often(chosen, best):
    assert most_popular(Series(chosen), 2).tolist() == best


@pytest.mark.parametrize("task", ["customer-orders", "customer-spending", "customer-products"])
def test_baselines(shop, cache, task):
    trainer = trainer_of(shop, cache, task)
    train, test = (trainer.task.task.get_table(split, mask_input_cols=False) for split in ("train", "test"))
    if task == "customer-orders":
        assert trainer.baseline() is None
    elif task == "customer-spending":
        known = np.sort(train.df[trainer.task.task.target_col].to_numpy())
        (nmae,) = trainer.task.task.evaluate(np.full(len(test.df), known[(len(known) - 1) // 2]), test).values()
        assert trainer.baseline() == ("median", pytest.approx(-nmae))
    else:
        best = most_popular(train.df[trainer.task.task.dst_entity_col], trainer.task.task.eval_k)
        (score,) = trainer.task.task.evaluate(np.tile(best, (len(test.df), 1)), test).values()
        assert trainer.baseline() == ("most popular", pytest.approx(score))


@pytest.mark.parametrize("own", [False, True])
def test_rows_are_asked_about_at_one_time_or_their_own(own):
    """A row of a table without times, or that has none, has no time of its own."""
    data = HeteroData()
    data["order"].num_nodes = data["product"].num_nodes = 3
    data["order"].time = torch.tensor([10, relational.NEVER, 40])
    assert row_times(data["order"], 30, own).tolist() == ([10, 30, 40] if own else [30, 30, 30])
    assert row_times(data["product"], 30, own).tolist() == [30, 30, 30]


@pytest.mark.parametrize(
    ("task", "tables"), [("review-stars", ["reviews"]), ("customer-products", ["customers", "products"])]
)
def test_every_row_is_embedded(shop, cache, task, tables):
    trainer = trainer_of(shop, cache, task)
    found = trainer.embeddings()
    assert list(found) == tables
    for table, rows in found.items():
        assert len(rows) == trainer.task.data[table].num_nodes
        assert rows.isfinite().all()


def test_labels_that_all_rows_have_count_in_no_mean():
    """Of the labels, the first is ranked rightly, the second wrongly, and all rows have the third."""
    scores = torch.tensor([[2, 0, 1], [1, 1, 0], [0, 2, 2]])
    assert mean_roc_auc(scores, torch.tensor([[1, 1, 1], [0, 1, 1], [0, 0, 1]]) > 0) == 0.5


class Stopped(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("task", ["customer-orders", "customer-products"])
def test_a_run_that_was_stopped_reaches_the_same_weights(shop, cache, tmp_path, task):
    whole = trainer_of(shop, cache, task)
    whole.run(report=lambda _: None)
    stopped = trainer_of(shop, cache, task, tmp_path)
    batches = iter(range(3))

    def stop():
        if next(batches, None) is None:
            raise Stopped

    stopped.between_batches = stop
    with pytest.raises(Stopped):
        stopped.run(report=lambda _: None)
    again = trainer_of(shop, cache, task, tmp_path)
    assert again.resume()
    assert again._epoch["batches"] > 0
    again.run(report=lambda _: None)
    for name, value in whole.model.state_dict().items():
        assert bool(value.isfinite().all()), name
        assert torch.equal(again.model.state_dict()[name], value), name


@pytest.mark.slow
def test_the_command(shop, tmp_path, capsys):
    options = ["train", "--relbench", str(shop), "--task", "customer-products", "--cache", str(tmp_path / "cache"),
               "--out", str(tmp_path / "run")]  # fmt: skip
    for name, value in SMALL.items():
        options += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
    main(options)
    said = capsys.readouterr().out
    assert said.startswith("shop customer-products: recommendation; 6 categories, 20 products, 60 customers, ")
    assert "test map 0." in said
    assert "; most popular: 0." in said
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["task"] == "shop customer-products"
    main([*options, "--resume"])
    assert "continues after epoch 2" in capsys.readouterr().out
    embed = ["embed", "--run", str(tmp_path / "run"), "--out", str(tmp_path / "rows")]
    main([*embed, "--relbench", str(shop), "--cache", str(tmp_path / "cache")])
    assert capsys.readouterr().out == "".join(
        f"{table}: {count} rows of 16 numbers in {tmp_path}/rows/{table}.npy\n"
        for table, count in [("customers", 60), ("products", 20)]
    )
    graph = relational.open_task(shop, "customer-products")
    trainer = RelationalTrainer(graph, RelationalConfig(**SMALL), tmp_path / "run", quiet=True)
    trainer.resume()
    trainer.model.load_state_dict(trainer.best_model)
    trainer.model.eval()
    best = trainer.predictions("test")
    rows = {table: torch.from_numpy(np.load(tmp_path / "rows" / f"{table}.npy")) for table in ("customers", "products")}
    assert rows["products"].isfinite().all()
    asked = torch.from_numpy(graph.task.get_table("test").df["customer_id"].to_numpy().copy())
    again = (rows["customers"][asked] @ rows["products"].t()).topk(10).indices
    assert (again == best).double().mean() > 0.5  # other neighbors of some are drawn
    with pytest.raises(SystemExit):
        main(embed)
    assert "--relbench: expected the database that the run learned from, found none" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*options[:3], "--task", "unheard"])
    assert "no task 'unheard'" in capsys.readouterr().err


@pytest.mark.slow
def test_several_processes_train_one_model(shop, tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1",
                "--nproc-per-node=2", "-m", "torch_gnnscale", "train", "--relbench", str(shop), "--task",
                "customer-orders", "--out", str(tmp_path), "--hidden", "8", "--fanouts", "3", "--batch-size", "64",
                "--epochs", "1", "--blocks", "1"]  # fmt: skip
    given = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(launcher, env=given, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test roc_auc ") == 1
    assert "2 ranks x 64 = 128 seeds per step (one process: 64)\n" in done.stdout
    assert len(torch.load(tmp_path / "checkpoint.pt", weights_only=True)["ranks"]) == 2
