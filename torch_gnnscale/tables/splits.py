"""Which rows are for training, validation and testing."""

from __future__ import annotations

from ..splits import first_of
from .engine import Engine
from .schema import Split


def split_sql(engine: Engine, split: Split, staged: str, kept: str) -> str:
    """The number of a row's split (0 train, 1 val, 2 test), in SQL, of the columns of ``staged``.

    By time as of :func:`torch_gnnscale.splits.by_time`, of the rows that are kept.
    """
    if split.by == "key":
        return "staged.split"
    (count,) = engine.row(f"SELECT count(*) FROM {staged} WHERE {kept}")
    whens = []
    for number, first in reversed(list(enumerate(first_of(count, split.val, split.test), 1))):
        if first < count:
            (begin,) = engine.row(f"SELECT time FROM {staged} WHERE {kept} ORDER BY time LIMIT 1 OFFSET {first}")
            whens.append(f"WHEN staged.time >= {begin} THEN {number}")
    return f"CASE {' '.join(whens)} ELSE 0 END" if whens else "0"
