"""The tables of a generated shop: what a graph of tables is made of."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..ops.arguments import check_int

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
