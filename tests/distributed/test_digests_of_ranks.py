"""What each rank gets is, to the bit, what ``digests_of_ranks.json`` says: one digest per rank over two epochs.

The table pins batches across versions of the code; other tests compare ranks with one process of the same version. If
batches are meant to change, this rewrites it::

    PYTHONPATH=.:tests:tests/distributed python tests/distributed/test_digests_of_ranks.py
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from helpers import split
from helpers.boundary import boundary_graph, owners_of
from helpers.cluster import close_clusters, cluster
from helpers.hetero import PAPER, WRITES, make_hetero, with_times, with_weights
from helpers.parts import batches_of_rank
from helpers.slow import quick

from torch_gnnscale import partition

TABLE = Path(__file__).with_name("digests_of_ranks.json")
BUFFER = {"buffer": 0.3, "policy_options": {"gamma": 0.9, "delta": 2}}
LADIES = {"method": "ladies", "num_neighbors": [12, 9]}
FASTGCN = {"method": "fastgcn", "num_neighbors": [40, 30], "seed_order": "global"}
LABOR = {"method": "labor"}


class Case(NamedTuple):
    """Batches over parts; ``kind`` and ``options`` of :func:`helpers.parts.loader_over`."""

    topology: str
    kind: str = "nodes"
    options: dict[str, Any] = {}  # noqa: RUF012
    kept: dict[str, Any] = {}  # noqa: RUF012
    """Of the prefetch buffer."""
    types: bool = False
    world: int = 2
    count: int = 2
    """Of parts."""


OF_PARTS = {
    "replicated": Case("replicated"),
    "replicated, three parts, one of one row": Case("replicated", world=3, count=3),
    "replicated, copies": Case("replicated", world=4),
    "replicated, global, serve": Case("replicated", options={"seed_order": "global", "uneven": "serve"}),
    "replicated, times": Case("replicated", options={"time_attr": "time"}),
    "replicated, links": Case("replicated", "links"),
    "replicated, buffer": Case("replicated", kept=BUFFER),
    "replicated, lookahead": Case("replicated", kept={"buffer": 0.3, "policy": "lookahead"}),
    "replicated, types": Case("replicated", types=True),
    "replicated, types, times": Case("replicated", types=True, options={"time_attr": "time", "batch_size": 4}),
    "replicated, types, links": Case("replicated", "links", types=True),
    "replicated, ladies": Case("replicated", options=LADIES),
    "partitioned": Case("partitioned"),
    "partitioned, three parts, one of one row": Case("partitioned", world=3, count=3),
    "partitioned, copies, bulk": Case("partitioned", options={"bulk": 3}, world=4),
    "partitioned, times, buffer": Case("partitioned", options={"time_attr": "time"}, kept=BUFFER),
    "partitioned, ladies": Case("partitioned", options=LADIES),
    "partitioned, ladies, copies": Case("partitioned", options=LADIES, world=4),
    "partitioned, fastgcn": Case("partitioned", options=FASTGCN),
    "partitioned, labor": Case("partitioned", options=LABOR),
}
OF_SPLITS: dict[str, tuple[int, dict[str, Any]]] = {
    "split": (2, {}),
    "split, three ranks": (3, {"num_neighbors": [3, 2, 2]}),
    "split, weights": (2, {"weight_attr": "edge_kind"}),
    "split, ladies": (2, {"method": "ladies", "num_neighbors": [30, 20]}),
    "split, labor, bulk": (2, {"method": "labor", "bulk": 3}),
    "split, repeated seeds": (2, {"seeds": [7, 3, 7, 7, 150, 3, 9, 3], "batch_size": 5}),
}


def digest_of(function: Callable[..., Any], *arguments: Any) -> str:
    """12 hexadecimal digits of what a call returns on this rank, in plain values."""
    return hashlib.sha256(repr(function(*arguments)).encode()).hexdigest()[:12]


def digests_of_parts(case: Case, folder: Path) -> list[str]:
    path = folder / "parts"
    if case.types:
        data = with_weights(with_times(make_hetero()))
        seeds, links = (PAPER, torch.arange(0, 40, 2)), (WRITES, data[WRITES].edge_index[:, ::5])
        partition.write(
            data, path, case.count, method="random", splits={"train": seeds}, links={"train": links},
            graph_attrs=["time", "weight"],
        )  # fmt: skip
    else:
        data = boundary_graph()
        links = {"train": data.edge_index[:, ::7]}
        partition.write(
            data, path, case.count, owners=owners_of(case.count), links=links, graph_attrs=["time"],
            topology=case.topology,
        )  # fmt: skip
    return cluster(case.world).run(digest_of, batches_of_rank, str(path), case.kind, 2, case.options, case.kept)


def digests_of_split(world: int, options: dict[str, Any]) -> list[str]:
    plan = split.GivenPlan(split.random_owners(200, world), world)
    return cluster(world).run(digest_of, split.batches_of_rank, plan, 2, options)


def table() -> dict[str, list[str]]:
    return json.loads(TABLE.read_text())


def test_entries_are_cases_with_other_batches_on_each_rank():
    assert set(table()) == {*OF_PARTS, *OF_SPLITS}
    assert all(len(set(entry)) == len(entry) for entry in table().values())


@pytest.mark.parametrize(
    ("name", "case"),
    quick({n: (n, c) for n, c in OF_PARTS.items()}, "partitioned, copies, bulk", slow=list(OF_PARTS)[::3]),
)
def test_batches_over_parts(name, case, tmp_path):
    assert digests_of_parts(case, tmp_path) == table()[name]


@pytest.mark.parametrize(("name", "of"), quick({n: (n, of) for n, of in OF_SPLITS.items()}, "split, labor, bulk"))
def test_split_batches(name, of):
    assert digests_of_split(*of) == table()[name]


def rewrite() -> None:
    """Writes the table of what the code gives now."""
    made = {}
    for name, case in OF_PARTS.items():
        with tempfile.TemporaryDirectory() as folder:
            made[name] = digests_of_parts(case, Path(folder))
    made |= {name: digests_of_split(*of) for name, of in OF_SPLITS.items()}
    close_clusters()
    lines = [f"{json.dumps(name)}: {json.dumps(made[name])}" for name in sorted(made)]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    # As a module that ranks can import, for the functions that they are told to call are named by it.
    import test_digests_of_ranks

    torch.set_num_threads(1)
    test_digests_of_ranks.rewrite()
