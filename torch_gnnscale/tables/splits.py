"""Which rows are for training, validation and testing."""

from __future__ import annotations

from ..splits import first_of
from .engine import Engine
from .schema import Split
from .survey import times_at


def split_sql(engine: Engine, split: Split, staged: str, kept: str) -> str:
    """The number of a row's split (0 train, 1 val, 2 test), in SQL, of the columns of ``staged``.

    By time as of :func:`torch_gnnscale.splits.by_time`, of the rows that are kept.
    """
    if split.by == "key":
        return "staged.split"
    count = sum(rows for (rows,) in engine.ask(staged, f"SELECT count(*) FROM {{}} WHERE {kept}"))
    firsts = [
        (number, first) for number, first in enumerate(first_of(count, split.val, split.test), 1) if first < count
    ]
    if not firsts:
        return "0"
    begins = times_at(engine, staged, kept, [first for _, first in firsts])
    whens = [f"WHEN staged.time >= {begin} THEN {number}" for (number, _), begin in zip(firsts, begins, strict=True)]
    return f"CASE {' '.join(reversed(whens))} ELSE 0 END"
