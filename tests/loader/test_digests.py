"""Batches are, to the bit, those of ``digests.json``.

The table has, for each case, a digest of every field over the batches of two epochs. A case is made in several ways
(with threads or worker processes ahead, in bulk, stopped and resumed): all must give what the one entry says. If
batches are meant to change, this rewrites the table, and raises if the ways of a case disagree::

    PYTHONPATH=.:tests python tests/loader/test_digests.py
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.digest_cases import CASES
from helpers.digests import differing, digests
from helpers.slow import NIGHTLY, SLOW

TABLE = Path(__file__).with_name("digests.json")
ENTRIES = {name for name, case in CASES.items() if case.like is None}


def table() -> dict[str, dict[str, str]]:
    return json.loads(TABLE.read_text())


def test_every_entry_of_the_table_is_a_case_and_another_one():
    assert set(table()) == ENTRIES
    assert len({str(entry) for entry in table().values()}) == len(ENTRIES)


def kind(name: str, way: str) -> Callable:
    """Who makes the case in this way: ``make quick`` in one, the first case in all without worker processes; of every
    third case, ``make test`` in another one, too; ``make nightly`` in all. One that is resumed was ahead before, and is
    plain after."""
    ways = [way for way in ("resumed", "bulk") if way in CASES[name].ways]
    ways += [way for way in CASES[name].ways if way not in ("plain", *ways)] + ["plain"]
    turn = list(CASES).index(name)
    if way == ways[turn % min(2, len(ways))]:
        return pytest.param
    if name == "uniform":
        return SLOW if "workers" in way else pytest.param
    return SLOW if turn % 3 == 0 and way == ways[(turn + 1 + turn // 3) % len(ways)] else NIGHTLY


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "way"),
    [kind(name, way)(name, way) for name, case in CASES.items() for way in case.ways],
)
def test_batches_are_those_of_the_table(name, way, tmp_path):
    found, expected = digests(CASES[name].batches(tmp_path, way)), table()[CASES[name].like or name]
    assert not (wrong := differing(found, expected)), f"{name}, {way}: not as in {TABLE.name}: {', '.join(wrong)}"


def rewrite() -> None:
    """Writes the table of what the code gives now."""
    made: dict[str, dict[str, str]] = {}
    for name, case in CASES.items():
        for way in case.ways:
            with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = digests(case.batches(Path(folder), way))
            if wrong := differing(found, made.setdefault(case.like or name, found)):
                raise ValueError(f"{name}, {way}: expected the same as in other ways, found other {', '.join(wrong)}")
    lines = [f"{json.dumps(name)}: {json.dumps(made[name])}" for name in sorted(made)]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    rewrite()
