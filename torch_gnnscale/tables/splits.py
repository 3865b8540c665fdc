"""Which rows are for training, validation and testing."""

from __future__ import annotations

from .engine import Engine
from .schema import Split


def split_sql(engine: Engine, split: Split, staged: str, kept: str) -> str:
    """The number of a row's split (0 train, 1 val, 2 test), in SQL, of the columns of ``staged``.

    By time, of n rows that are kept, test begins with the time of row n - floor(n test) in the order of times, and val
    with that of row n - floor(n test) - floor(n val), counted from 0: rows of one time are in one split.
    """
    if split.by == "key":
        return "staged.split"
    (count,) = engine.row(f"SELECT count(*) FROM {staged} WHERE {kept}")
    test, val = int(count * split.test), int(count * split.val)
    whens = []
    for number, first in ((2, count - test), (1, count - test - val)):
        if first < count:
            (begin,) = engine.row(f"SELECT time FROM {staged} WHERE {kept} ORDER BY time LIMIT 1 OFFSET {first}")
            whens.append(f"WHEN staged.time >= {begin} THEN {number}")
    return f"CASE {' '.join(whens)} ELSE 0 END" if whens else "0"
