"""Loaders of the tasks of a generated database."""

import shutil

import numpy as np
import pytest
import torch
from helpers.slow import quick

from torch_gnnscale import relational
from torch_gnnscale.relational.task_graph import check_repr

ENTITIES = ["customer-categories", "customer-orders", "customer-spending", "review-stars"]


def neighbors(graph):
    """{(type, node): the nodes to which an edge leads from or to it}, as (type, node), with repeats."""
    found = {}
    for (src, _, dst), store in graph.data.edge_items():
        for i, j in store.edge_index.t().tolist():
            found.setdefault((dst, j), []).append((src, i))
    return found


def trees_of(graph, found, seed, time, hops):
    """The nodes that a breadth-first search from a seed finds, of those not later than ``time``."""
    times = {of: store.time.tolist() for of, store in graph.data.node_items() if "time" in store}
    seen = frontier = {seed}
    for _ in range(hops):
        near = {near for node in frontier for near in found.get(node, [])}
        frontier = {(of, node) for of, node in near if of not in times or times[of][node] <= time} - seen
        seen = seen | frontier
    return seen


@pytest.mark.parametrize("task", quick([*ENTITIES, "customer-products"], "customer-orders", "customer-products"))
def test_no_row_of_a_batch_is_later_than_its_seed(graph_of, task):
    graph = graph_of(task)
    rows = 0
    for loader in graph.loaders([4, 4, 4], batch_size=32, seed=0).values():
        for batch in loader:
            (time,) = batch.collect("seed_time").values()
            for store in batch.node_stores:
                if "time" in store:
                    assert bool((store.time <= time[store.batch]).all())
                    rows += len(store.time)
    assert rows > 1000


@pytest.mark.parametrize("task", quick(ENTITIES, "customer-orders"))
def test_a_sample_of_all_neighbors_is_that_of_a_plain_search(graph_of, task):
    graph = graph_of(task)
    of, found = graph.task.entity_table, neighbors(graph)
    batch = next(iter(graph.loaders([-1, -1], batch_size=16, seed=0)["val"]))
    trees = [set() for _ in range(batch[of].batch_size)]
    for store in batch.node_stores:
        for node, tree in zip(store.n_id.tolist(), store.batch.tolist(), strict=True):
            trees[tree].add((store._key, node))
    for place, tree in enumerate(trees):
        seed = (of, int(batch[of].n_id[place]))
        assert tree == trees_of(graph, found, seed, int(batch[of].seed_time[place]), hops=2)


@pytest.mark.parametrize("task", quick(ENTITIES, "customer-categories", "review-stars"))
def test_batches_have_rows_and_labels(graph_of, task):
    graph = graph_of(task)
    of, target = graph.task.entity_table, graph.task.target_col
    for split, loader in graph.loaders([3, 3], batch_size=16, seed=0).items():
        table = graph.task.get_table(split, mask_input_cols=False).df
        assert len(loader.input_data.node) == len(table)
        for batch in loader:
            at = batch[of].input_id
            assert batch[of].n_id[: len(at)].tolist() == table[graph.task.entity_col].iloc[at.tolist()].tolist()
            moments = table[graph.task.time_col].iloc[at.tolist()]
            assert batch[of].seed_time.tolist() == [int(moment.timestamp()) for moment in moments]
            for node_type in graph.data.node_types:
                assert batch[node_type].tf == graph.data[node_type].tf[batch[node_type].n_id]
            assert ("y" in batch[of]) == (split != "test")
            if split != "test":
                assert batch[of].y.tolist() == [
                    list(label) if hasattr(label, "__len__") else label for label in table[target].iloc[at.tolist()]
                ]


def test_a_recommendation_s_anchors_have_the_destinations_of_their_row(graph_of):
    graph = graph_of("customer-products")
    loaders = graph.loaders([4, 4], batch_size=16, seed=0, num_positives=2, strict_negatives=True)
    assert [*loaders] == ["train", "val", "val_targets", "test", "test_targets"]
    table, seen, by_customer = graph.task.get_table("train").df, [], {}
    for customer, products in zip(table["customer_id"], table["product_id"], strict=True):
        by_customer.setdefault(customer, set()).update(products)
    assert table["customer_id"].duplicated().any()
    for batch in loaders["train"]:
        ids, src = batch["customers"].input_id, batch["customers"].src_index
        seen += ids.tolist()
        rows = table.iloc[ids.tolist()]
        assert batch["customers"].n_id[src].tolist() == rows["customer_id"].tolist()
        assert batch["customers"].seed_time.tolist() == [int(moment.timestamp()) for moment in rows["date"]]
        found, others = batch["products"].dst_pos_index, batch["products"].dst_neg_index
        for place, (customer, products) in enumerate(zip(rows["customer_id"], rows["product_id"], strict=True)):
            positives = batch["products"].n_id[found[place][found[place] >= 0]].tolist()
            assert len(set(positives)) == min(2, len(products))
            assert set(positives) <= set(products)
            assert int(batch["products"].n_id[others[place, 0]]) not in by_customer[customer]
        assert others.shape == (len(ids), 1)
    assert sorted(seen) == list(range(len(table)))


def test_a_recommendation_is_evaluated_by_sources_and_targets(graph_of):
    graph = graph_of("customer-products")
    loaders = graph.loaders([2], batch_size=64, seed=0)
    for split in ("val", "test"):
        table = graph.task.get_table(split).df
        sources, targets = ([*loaders[name]] for name in (split, f"{split}_targets"))
        of_sources = torch.cat([batch["customers"].n_id[: batch["customers"].batch_size] for batch in sources])
        of_targets = torch.cat([batch["products"].n_id[: batch["products"].batch_size] for batch in targets])
        assert of_sources.tolist() == table["customer_id"].tolist()
        assert of_targets.tolist() == list(range(graph.data["products"].num_nodes))
        times = {int(moment.timestamp()) for moment in table["date"]}
        assert {*torch.cat([batch["products"].seed_time for batch in targets]).tolist()} == times
        scores = np.tile(np.arange(10), (len(table), 1))
        assert 0 < graph.task.evaluate(scores, graph.task.get_table(split, mask_input_cols=False))["map"] < 1


def test_wrong_destinations(shop, tmp_path):
    import pandas as pd

    shutil.copytree(shop, tmp_path / "shop")
    folder = tmp_path / "shop" / "tasks" / "customer-products"
    right = {split: pd.read_parquet(folder / f"{split}.parquet") for split in ("train", "val")}
    graph = relational.open_task(tmp_path / "shop", "customer-products")

    def wrong(split, column, row, value):
        for name, frame in right.items():
            changed = frame.copy()
            if name == split:
                changed[column] = [value if at == row else was for at, was in enumerate(frame[column])]
            changed.to_parquet(folder / f"{name}.parquet")

    begin = "^customer-products, train: product_id: expected keys of products"
    wrong("train", "product_id", 5, [3, 20])
    with pytest.raises(ValueError, match=f"{begin}, from 0 to 19, found 20 in row 5$"):
        graph.loaders([2])
    wrong("train", "product_id", 4, [None])
    with pytest.raises(ValueError, match=f"{begin}, found a missing one in row 4$"):
        graph.loaders([2])
    wrong("val", "date", 1, pd.Timestamp("2023-06-01"))
    early = r"^customer-products, val: expected times from 2023-06-25 00:00:00 on, .* found 1685577600 .* in row 1$"
    with pytest.raises(ValueError, match=early):
        graph.loaders([2])
    wrong("val", "date", 1, pd.Timestamp("2023-07-20"))
    later = graph.loaders([2], batch_size=64, splits=["val"])
    assert [*later] == ["val", "val_targets"]
    moment = int(pd.Timestamp("2023-06-25").timestamp())
    for loader in later.values():
        assert {int(time) for batch in loader for (times,) in [batch.collect("seed_time").values()] for time in times} \
            == {moment}  # fmt: skip
    wrong("train", "product_id", 0, [])
    with pytest.warns(UserWarning, match=r"train: product_id: 1 of \d+ rows have no destination that is not later"):
        assert len(graph.loaders([2])["train"].input_data.node) == len(right["train"]) - 1
    wrong("train", "product_id", 0, [3])
    graph.data["products"].time = torch.full((20,), 1_640_000_000)
    graph.data["products"].time[3] = 2_000_000_000
    with (
        pytest.warns(UserWarning, match=r"rows have no destination that is not later"),
        pytest.warns(UserWarning, match=r"product_id: \d+ of \d+ destinations are later than the times of their rows"),
    ):
        loaders = graph.loaders([2], seed=0, batch_size=100)
    assert 0 not in loaders["train"].input_data.input_id
    for batch in loaders["train"]:
        assert 3 not in batch["products"].n_id


def columns_of(graph):
    return {(of, name) for of, store in graph.data.node_items() for names in store.tf.col_names_dict.values()
            for name in names}  # fmt: skip


def test_columns_that_a_task_must_not_see_are_in_no_row(graph_of):
    orders, stars = columns_of(graph_of("customer-orders")), columns_of(graph_of("review-stars"))
    assert orders ^ stars == {("orders", "returned"), ("reviews", "stars")}
    assert ("orders", "returned") in stars
    assert ("reviews", "stars") in orders
    keys = {"category_id", "product_id", "customer_id", "order_id", "review_id", "favorite_id"}
    assert not keys & {name for _, name in orders}


def test_rows_later_than_the_test_time_are_there_only_if_they_are_asked_about(graph_of):
    test = graph_of("customer-orders").task.dataset.test_timestamp.timestamp()
    times = graph_of("customer-orders").data["reviews"].time
    asked = graph_of("review-stars").data["reviews"].time
    assert times.max() <= test < asked.max()
    assert torch.equal(asked[: len(times)], times)


def test_the_user_has_transforms_shuffles_and_other_arguments(graph_of):
    def transform(batch):
        batch.seen = batch["customers"].y.sum()
        return batch

    graph = graph_of("customer-orders")
    loaders = graph.loaders([2], batch_size=8, seed=3, transform=transform)
    batch = next(iter(loaders["train"]))
    assert batch.seen == batch["customers"].y.sum()
    assert batch["customers"].input_id.tolist() != list(range(8))
    assert next(iter(loaders["val"]))["customers"].input_id.tolist() == list(range(8))
    plain = graph.loaders([2], batch_size=8, shuffle=False)["train"]
    assert next(iter(plain))["customers"].input_id.tolist() == list(range(8))


def test_relbenchs_model_reads_batches(graph_of):
    from relbench.modeling.nn import HeteroEncoder, HeteroTemporalEncoder

    graph = graph_of("customer-orders")
    names = {of: graph.data[of].tf.col_names_dict for of in graph.data.node_types}
    encoder = HeteroEncoder(8, names, graph.col_stats)
    temporal = HeteroTemporalEncoder([of for of in graph.data.node_types if "time" in graph.data[of]], 8)
    batch = next(iter(graph.loaders([4, 4], batch_size=8, seed=0)["train"]))
    x = encoder(batch.tf_dict)
    seen = temporal(batch["customers"].seed_time, batch.time_dict, batch.batch_dict)
    assert {of: value.shape for of, value in x.items()} == {of: (len(batch[of].n_id), 8) for of in x}
    assert {of: value.shape for of, value in seen.items()} == {of: x[of].shape for of in seen}
    assert all(bool(value.isfinite().all()) for value in [*x.values(), *seen.values()])


def test_labels_are_those_of_the_tasks_queries(shop):
    from relbench import load_dataset

    dataset = load_dataset(shop)
    for name in dataset.get_task_names():
        if name == "customer-categories":
            continue  # RelBench sorts what its query makes
        stored, made = (dataset.load_task(name, regenerate=again).get_table("val").df for again in (False, True))
        rows = [[(*map(np.asarray, row),) for row in frame.itertuples(index=False)] for frame in (stored, made)]
        np.testing.assert_equal(*rows)


def test_several_labels_are_the_categories_that_were_bought(shop):
    import pandas as pd

    tables = {name: pd.read_parquet(shop / "db" / f"{name}.parquet") for name in ("orders", "order_lines", "products")}
    lines = tables["order_lines"].merge(tables["orders"][["order_id", "customer_id"]]).merge(
        tables["products"][["product_id", "category_id"]]
    )  # fmt: skip
    for split in ("train", "val", "test"):
        table = pd.read_parquet(shop / "tasks" / "customer-categories" / f"{split}.parquet")
        for date, customer, bought in zip(table["date"], table["customer_id"], table["bought"], strict=True):
            after = (lines["placed"] > date) & (lines["placed"] <= date + pd.Timedelta(days=30))
            found = {*lines["category_id"][after & (lines["customer_id"] == customer)]}
            assert bought.tolist() == [int(k in found) for k in range(6)]


@pytest.mark.slow
def test_equal_seeds_give_equal_tables(shop, tmp_path):
    import pandas as pd

    from torch_gnnscale.datasets import planted_shop

    again, other = planted_shop(tmp_path / "again", 60), planted_shop(tmp_path / "other", 60, seed=1)
    for file in sorted((shop / "db").iterdir()):
        frames = [pd.read_parquet(folder / "db" / file.name) for folder in (shop, again, other)]
        assert frames[0].map(str).equals(frames[1].map(str))
        assert file.stem == "categories" or not frames[0].map(str).equals(frames[2].map(str))


def damaged(shop, folder, table, change):
    """A copy of the shop with one table changed."""
    import pandas as pd

    shutil.copytree(shop, folder)
    file = folder / "db" / f"{table}.parquet"
    change(frame := pd.read_parquet(file)).to_parquet(file)
    return folder, frame


def test_wrong_databases_are_refused(shop, tmp_path):
    def wrong_key(frame):
        frame.loc[7, "product_id"] = 10_000
        return frame

    folder, _ = damaged(shop, tmp_path / "key", "order_lines", wrong_key)
    with pytest.raises(ValueError, match=r"^order_lines\.product_id: expected keys of products, from 0 to 19, or none, "
                       r"found 10000 in row 7$"):  # fmt: skip
        relational.open_task(folder, "customer-orders")

    def mixed(frame):
        frame["placed"] = frame["placed"].to_numpy()[::-1]
        return frame

    folder, _ = damaged(shop, tmp_path / "mixed", "orders", mixed)
    with pytest.raises(ValueError, match=r"^orders\.order_id: expected keys from 0 to \d+ in the order of rows where "
                       r"rows later than 2023-08-24 00:00:00 are left out, found \d+ in row 0$"):  # fmt: skip
        relational.open_task(folder, "customer-orders")


def test_a_row_without_a_time_is_never_sampled(shop, tmp_path):
    def without(frame):
        frame.loc[::2, "placed"] = None
        return frame

    folder, _ = damaged(shop, tmp_path / "shop", "order_lines", without)
    graph = relational.open_task(folder, "review-stars")
    assert (graph.data["order_lines"].time[::2] == relational.NEVER).all()
    rows = torch.cat(
        [batch["order_lines"].n_id for batch in graph.loaders([-1, -1, -1], batch_size=32, seed=0)["test"]]
    )
    assert len(rows) > 100
    assert (rows % 2 == 1).all()


def test_wrong_seeds_are_refused(shop, tmp_path):
    import pandas as pd

    shutil.copytree(shop, tmp_path / "shop")
    file = tmp_path / "shop" / "tasks" / "customer-orders" / "train.parquet"
    graph, right = relational.open_task(tmp_path / "shop", "customer-orders"), pd.read_parquet(file)
    for column, value, error in [
        ("customer_id", 60, "customer-orders, train: customer_id: expected keys of customers, from 0 to 59, found 60 in"
         " row 3"),
        ("date", None, "customer-orders, train.date: expected a time in each row, found none in row 3"),
        ("date", pd.Timestamp(10**6, unit="s"), None),
    ]:  # fmt: skip
        frame = right.copy()
        frame.loc[3 if error else slice(None), column] = value
        frame.to_parquet(file)
        error = error or "customer-orders, train.date: expected times in the unit of those of customers, found medians"
        with pytest.raises(ValueError, match=f"^{error}"):
            graph.loaders([2])
    frame = right.copy()
    frame.loc[frame.customer_id == 59, "date"] = pd.Timestamp("2022-01-01")
    frame.to_parquet(file)
    with pytest.warns(
        UserWarning, match=r"train\.date: \d+ of \d+ times are earlier than those of their own rows of cu"
    ):
        graph.loaders([2])


def test_what_is_not_there(shop, tmp_path):
    with pytest.raises(FileNotFoundError, match="no manifest"):
        relational.open_task(tmp_path, "customer-orders")
    with pytest.raises(ValueError, match="no task 'customers'"):
        relational.open_task(shop, "customers")


def test_without_the_packages(shop, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch_frame", None)
    monkeypatch.delitem(sys.modules, "relbench.modeling.graph", raising=False)
    monkeypatch.delitem(sys.modules, "relbench.modeling", raising=False)
    with pytest.raises(ImportError, match=r"torch_frame is missing: pip install 'torch_gnnscale\[relational\]'"):
        relational.open_task(shop, "customer-orders")


def batches_of(graph, **options):
    """Ids, rows and labels of the batches of the split ``val``."""
    loader = graph.loaders([3, 3], batch_size=8, seed=0, **options)["val"]
    return [
        ({of: batch[of].n_id.tolist() for of in batch.node_types}, batch.tf_dict, batch["customers"].y.tolist())
        for batch in loader
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"prefetch": 3},
        {"bulk": 2},
        {"num_workers": 1, "multiprocessing_context": "fork"},
        {"num_workers": 2, "multiprocessing_context": "fork", "filter_per_worker": True},
    ],
    ids=["threads", "bulks", "a worker", "workers that gather"],
)
def test_every_way_makes_the_same_batches(graph_of, options):
    graph = graph_of("customer-orders")
    assert batches_of(graph, **options) == batches_of(graph, prefetch=0)


def test_ranks_share_the_seeds(graph_of):
    graph = graph_of("customer-orders")
    shares = [batches_of(graph, shard=(rank, 2), uneven="serve") for rank in range(2)]
    whole = batches_of(graph)
    assert [whole[0::2], whole[1::2]] == shares


def test_rows_are_kept_of_embedders_that_say_what_they_do():
    check_repr(relational.HashedWords(8))
    with pytest.raises(ValueError, match=r"^cache: expected a text_embedder whose repr says what it makes of texts, "):
        check_repr(lambda texts: texts)
