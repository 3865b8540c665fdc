"""A generated shop: a relational database with times, as tables, and written as RelBench's manifest and parquet
tables."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..files import creating
from ..ops.arguments import check_int
from .planted import Stream

SCHEMA = """\
nodes:
  user:
    files: users.parquet
    key: user_id
    columns:
      age: {kind: number, missing: mean}
      premium: boolean
      country: category
      joined: time
    label: segment
    split: {val: 0.1, test: 0.1}
  item:
    files: items.csv
    key: item_id
    columns:
      price: number
      brand: category
edges:
  user.buys.item:
    files: orders/*.parquet
    source: user_id
    destination: item_id
    time: at
    columns: {payment: category}
    split: {by: time, val: 0.1, test: 0.1}
    undirected: reverse
    dangling: drop
"""
"""The schema of the tables."""


def write_shop(
    folder: str | os.PathLike,
    num_users: int = 1000,
    num_items: int = 500,
    num_orders: int = 20_000,
    *,
    segments: int = 4,
    loyalty: float = 0.7,
    seed: int = 0,
) -> Path:
    """Writes ``users.parquet``, ``items.csv``, ``orders/*.parquet`` and their schema, ``shop.yaml``, into a folder.

    Users have a segment, a tenth of them an unknown one, and items a hidden one; an order is of an item of the user's
    own segment with probability ``loyalty``, else of any. Ages and countries are missing here and there, and one order
    in a thousand is of an item that is in no table.

    Returns:
        The path of ``shop.yaml``.

    Raises:
        TypeError, ValueError: a number that is none, or less than 1.
        ImportError: pyarrow is missing.
    """
    import pyarrow
    from pyarrow import csv, parquet

    users, items, orders = (
        check_int(name, value, 1)
        for name, value in (("num_users", num_users), ("num_items", num_items), ("num_orders", num_orders))
    )
    random, path = np.random.default_rng(seed), Path(folder)
    if not 1 <= check_int("segments", segments) <= 10:
        raise ValueError(f"segments: expected 1 to 10, found {segments}")
    (path / "orders").mkdir(parents=True, exist_ok=True)
    of_user = random.integers(0, segments, users)
    names = np.array([f"u-{number:x}" for number in random.permutation(users)])
    codes = np.array([f"SKU{number:06d}" for number in random.permutation(items)])
    segment = np.array([f"segment {letter}" for letter in "ABCDEFGHIJ"[:segments]])[of_user]
    age = random.normal(30 + 5 * of_user, 12).clip(16, 90)
    country = np.array(["DE", "FR", "PL", "SE"])[random.integers(0, 4, users)]
    start = np.datetime64("2023-01-01", "s")
    parquet.write_table(
        pyarrow.table({
            "user_id": names,
            "age": pyarrow.array(age.astype(np.int32), mask=random.random(users) < 0.1),
            "premium": random.random(users) < 0.1 + 0.1 * of_user,
            "country": pyarrow.array(country, mask=random.random(users) < 0.05),
            "joined": start - random.integers(0, 10**8, users).astype("timedelta64[s]"),
            "segment": pyarrow.array(segment, mask=random.random(users) < 0.1),
        }),
        path / "users.parquet",
    )  # fmt: skip
    prices, brands = random.lognormal(3, 1, items).round(2), random.integers(0, 20, items)
    csv.write_csv(
        pyarrow.table({"item_id": codes, "price": prices, "brand": [f"brand {number}" for number in brands]}),
        path / "items.csv",
    )
    buyer = random.integers(0, users, orders)
    own = random.integers(0, -(-items // segments), orders) * segments + of_user[buyer]
    item = np.where((random.random(orders) < loyalty) & (own < items), own, random.integers(0, items, orders))
    sold = np.where(random.random(orders) < 0.001, "SKU-gone", codes[item])
    payment = np.array(["card", "invoice", "voucher"])[random.integers(0, 3, orders)]
    columns = {"user_id": names[buyer], "item_id": sold, "payment": payment}
    columns["at"] = start + random.integers(0, 31_536_000, orders).astype("timedelta64[s]")
    table = pyarrow.table(columns)
    for number in range(4):
        some = table.slice(number * orders // 4, (number + 1) * orders // 4 - number * orders // 4)
        parquet.write_table(some, path / "orders" / f"part-{number}.parquet")
    (path / "shop.yaml").write_text(SCHEMA)
    return path / "shop.yaml"


DAY = 86_400
BEGIN = 1_640_995_200
"""2022-01-01 in seconds since 1970."""
VAL, TEST, END = 540, 600, 720
"""Days after BEGIN: up to which there are inputs for validation and for testing, and where the data end."""
WINDOW = 30
"""Days after a seed's time in which its label is decided."""
CATEGORIES = ["garden", "kitchen", "books", "toys", "tools", "music"]
WORDS = {
    "good": ["fine", "sturdy", "pretty", "useful"],
    "plain": ["plain", "usual", "fair", "common"],
    "bad": ["flimsy", "late", "broken", "dull"],
}
TABLES = {
    "categories": ("category_id", None, {}),
    "products": ("product_id", None, {"category_id": "categories"}),
    "customers": ("customer_id", "signup", {"favorite_id": "categories"}),
    "orders": ("order_id", "placed", {"customer_id": "customers"}),
    "order_lines": (None, "placed", {"order_id": "orders", "product_id": "products"}),
    "reviews": ("review_id", "written", {"customer_id": "customers", "product_id": "products"}),
}
"""Of each table the primary key, the column of times, and the foreign keys with the tables that they point to."""

_BOUGHT = """
SELECT t.timestamp AS date, o.customer_id, {column}
FROM timestamps t
JOIN orders o ON o.placed > t.timestamp AND o.placed <= t.timestamp + INTERVAL '{{timedelta}}'
JOIN customers c ON c.customer_id = o.customer_id AND c.signup <= t.timestamp
JOIN order_lines l ON l.order_id = o.order_id
JOIN products p ON p.product_id = l.product_id
GROUP BY t.timestamp, o.customer_id
"""
_OF_CUSTOMER = """
SELECT t.timestamp AS date, c.customer_id, {column}
FROM timestamps t
JOIN customers c ON c.signup <= t.timestamp
LEFT JOIN orders o ON o.customer_id = c.customer_id
    AND o.placed > t.timestamp AND o.placed <= t.timestamp + INTERVAL '{{timedelta}}'
LEFT JOIN order_lines l ON l.order_id = o.order_id
GROUP BY t.timestamp, c.customer_id
"""

_OF_MASKS = _BOUGHT.format(column="bit_or(1::INTEGER << p.category_id::INTEGER) AS bought")
"""Of each row of ``customer-categories`` the sum of 2^k over the categories k that were bought."""


def planted_shop(path: str | os.PathLike, customers: int = 1000, *, seed: int = 0) -> Path:
    """Writes a database of a shop, with tasks whose labels can be predicted from its rows, into the new folder
    ``path``.

    Six tables: categories, products, customers, orders, order lines, reviews. There are five tasks:
    ``customer-orders`` (whether a customer orders in the next 30 days), ``customer-spending`` (how much),
    ``customer-categories`` (of which categories, several labels), ``customer-products`` (which products: a
    recommendation), and ``review-stars`` (the column ``stars`` of reviews). An order's ``returned`` is known only some
    time after the order: it is hidden from the tasks of customers. RelBench sorts the lists that a query makes: the
    stored labels of ``customer-categories`` are right, but those of ``load_task(..., regenerate=True)`` are sorted.

    Args:
        path: of the folder.
        customers: how many; there are 1/5 as many products, about 10 times as many orders and 20 times as many lines.
        seed: of all random numbers: equal arguments give equal tables.

    Returns:
        The folder: ``manifest.yaml``, ``db/TABLE.parquet`` and ``tasks/TASK/{manifest.yaml,SPLIT.parquet}``.

    Raises:
        FileExistsError: ``path`` exists and is not an empty directory.
        ImportError: relbench is not installed.
    """
    count = check_int("customers", customers, 10)
    try:
        from relbench import load_dataset
        from relbench.manifest import DatasetManifest, TableSpec, TaskManifest
    except ImportError as error:
        raise ImportError("planted_shop needs relbench: pip install 'torch_gnnscale[relational]'") from error
    with creating(path) as folder:
        (folder / "db").mkdir()
        for name, frame in _tables(count, Stream(seed)).items():
            frame.to_parquet(folder / "db" / f"{name}.parquet")
        specs = {name: TableSpec(*spec) for name, spec in TABLES.items()}
        manifest = DatasetManifest("planted-shop", _date(VAL), _date(TEST), "A generated shop.", specs)
        manifest.save(folder / "manifest.yaml")
        for task in _tasks():
            TaskManifest(**task).save(folder / "tasks" / task["name"] / "manifest.yaml")
        dataset = load_dataset(folder)
        for task in _tasks():
            made, masks = dataset.load_task(task["name"]), None
            if task["task_type"] == "multilabel_classification":  # RelBench sorts the lists that a query makes
                masks = TaskManifest(**{**task, "task_type": "regression", "sql": _OF_MASKS})
                masks.save(folder / "tasks" / "masks" / "manifest.yaml")
                made = dataset.load_task("masks")
            for split in ("train", "val", "test"):
                frame = made.get_table(split, mask_input_cols=False).df
                if masks is not None:
                    frame["bought"] = [[mask >> k & 1 for k in range(len(CATEGORIES))] for mask in frame["bought"]]
                frame.to_parquet(folder / "tasks" / task["name"] / f"{split}.parquet")
        shutil.rmtree(folder / "tasks" / "masks")
    return Path(path)


def _tasks() -> list[dict[str, Any]]:
    """What RelBench's TaskManifest takes, of each task."""
    forecast = {"kind": "forecast", "time_col": "date", "timedelta": f"{WINDOW} days"}
    hidden = {"remove_columns": [["orders", "returned"]]}
    customer = {**forecast, **hidden, "entity_table": "customers", "entity_col": "customer_id"}
    each = ", ".join(f"CAST(bool_or(p.category_id = {k}) AS INTEGER)" for k in range(len(CATEGORIES)))
    ordered = "CAST(count(o.order_id) > 0 AS INTEGER) AS orders_soon"
    spent = "round(COALESCE(sum(l.quantity * l.unit_price), 0), 2) AS spending"  # threads add in any order
    return [
        {**customer, "name": "customer-orders", "task_type": "binary_classification", "target_col": "orders_soon",
         "sql": _OF_CUSTOMER.format(column=ordered)},
        {**customer, "name": "customer-spending", "task_type": "regression", "target_col": "spending",
         "sql": _OF_CUSTOMER.format(column=spent)},
        {**customer, "name": "customer-categories", "task_type": "multilabel_classification",
         "target_col": "bought", "sql": _BOUGHT.format(column=f"[{each}] AS bought")},
        {**forecast, **hidden, "name": "customer-products", "task_type": "recommendation",
         "src_entity_table": "customers", "src_entity_col": "customer_id", "dst_entity_table": "products",
         "dst_entity_col": "product_id", "eval_k": 10,
         "sql": _BOUGHT.format(column="list(DISTINCT l.product_id) AS product_id")},
        {"name": "review-stars", "kind": "autocomplete", "task_type": "regression", "entity_table": "reviews",
         "target_col": "stars"},
    ]  # fmt: skip


def _date(day: int) -> str:
    return str(_times(torch.tensor([day * DAY]))[0])


def _times(seconds: Tensor) -> Any:
    """Seconds after BEGIN as a pandas DatetimeIndex of whole seconds."""
    import pandas as pd

    return pd.to_datetime((BEGIN + seconds).numpy(), unit="s")


def _tables(count: int, random: Stream) -> dict[str, Any]:
    """The tables as DataFrames, each in the order of its times."""
    import numpy as np
    import pandas as pd

    kinds, items, orders = len(CATEGORIES), max(20, count // 5), 10 * count
    category = random.integers(items, kinds)
    price = (5 + 95 * random.uniform(items) ** 2).round(decimals=2)
    quality = random.integers(items, 3)  # good, plain, bad
    by_category = torch.argsort(category, stable=True)
    held = torch.bincount(category, minlength=kinds)
    first = held.cumsum(0) - held

    def said(of: Tensor) -> list[str]:
        """Two words of each quality."""
        words = [list(entry) for entry in WORDS.values()]
        one, two = random.integers(len(of), 4).tolist(), random.integers(len(of), 4).tolist()
        return [f"{words[k][i]} and {words[k][j]}" for k, i, j in zip(of.tolist(), one, two, strict=True)]

    signup = torch.sort((random.uniform(count) * 0.5 * END * DAY).long())[0]
    favorite = random.integers(count, kinds)
    activity = random.uniform(count) ** 2 + 0.02
    share = (activity / activity.sum()).cumsum(0)
    buyer = torch.searchsorted(share, random.uniform(orders).to(share)).clamp(max=count - 1)
    placed = signup[buyer] + (random.uniform(orders) * (END * DAY - signup[buyer])).long()
    by_time = torch.argsort(placed, stable=True)
    buyer, placed = buyer[by_time], placed[by_time]

    order = torch.repeat_interleave(torch.arange(orders), 1 + random.integers(orders, 3))
    lines = len(order)
    liked = favorite[buyer[order]]
    own = (random.uniform(lines) < 0.7) & (held[liked] > 0)
    of_liked = by_category[(first[liked] + (random.uniform(lines) * held[liked]).long()).clamp(max=items - 1)]
    product = torch.where(own, of_liked, random.integers(lines, items))

    chosen = (random.uniform(lines) < 0.3).nonzero().view(-1)
    written = placed[order[chosen]] + ((1 + 20 * random.uniform(len(chosen))) * DAY).long()
    chosen, written = chosen[kept := written < END * DAY], written[kept]
    by_time = torch.argsort(written, stable=True)
    chosen, written = chosen[by_time], written[by_time]
    stars = (5 - 2 * quality[product[chosen]] + random.integers(len(chosen), 2)).clamp(1, 5)

    age = (18 + 60 * random.uniform(count)).numpy()
    age[(random.uniform(count) < 0.1).numpy()] = np.nan
    return {
        "categories": pd.DataFrame({"category_id": np.arange(kinds), "name": CATEGORIES}),
        "products": pd.DataFrame({
            "product_id": np.arange(items), "category_id": category.numpy(), "price": price.numpy(),
            "description": said(quality),
            "labels": [["new", "cheap", "heavy"][: k + 1] for k in random.integers(items, 3).tolist()],
        }),
        "customers": pd.DataFrame({
            "customer_id": np.arange(count), "favorite_id": favorite.numpy(), "signup": _times(signup), "age": age,
            "country": np.array(["AT", "DE", "FR", "IT"])[random.integers(count, 4).numpy()],
        }),
        "orders": pd.DataFrame({
            "order_id": np.arange(orders), "customer_id": buyer.numpy(), "placed": _times(placed),
            "channel": np.array(["web", "phone", "store"])[random.integers(orders, 3).numpy()],
            "returned": (random.uniform(orders) < 0.1).numpy(),
        }),
        "order_lines": pd.DataFrame({
            "order_id": order.numpy(), "product_id": product.numpy(), "placed": _times(placed[order]),
            "quantity": (1 + random.integers(lines, 3)).numpy(), "unit_price": price[product].numpy(),
        }),
        "reviews": pd.DataFrame({
            "review_id": np.arange(len(chosen)), "customer_id": buyer[order[chosen]].numpy(),
            "product_id": product[chosen].numpy(), "written": _times(written), "stars": stars.numpy(),
            "text": said(quality[product[chosen]]),
        }),
    }  # fmt: skip
