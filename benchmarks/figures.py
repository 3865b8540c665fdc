"""Draws figures of docs/ again from the results in benchmarks/results.

python benchmarks/figures.py [bench_split ...]
"""

from __future__ import annotations

import argparse
import importlib
import json
from typing import Any

from common import RESULTS

RESULTS_OF = {"bench_split": "split", "sweep": "figure"}
"""The results that a benchmark's figure shows. No GPU has run bench_gpu_tiers yet."""


def saved(name: str) -> Any:
    """What the ``plot`` of a benchmark takes."""
    results = json.loads((RESULTS / f"{RESULTS_OF[name]}.json").read_text())["results"]
    return [*results] if name == "sweep" else {key: entry for key, entry in results.items() if key != "aims"}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("names", nargs="*", default=[*RESULTS_OF], help="benchmarks; all by default")
    for name in options.parse_args().names:
        importlib.import_module(name).plot(saved(name))


if __name__ == "__main__":
    main()
