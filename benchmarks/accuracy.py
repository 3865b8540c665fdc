"""Test scores of one model trained with this loader and with PyG's: means over five seeds must agree.

    GNNSCALE_DATA=path/to/data python benchmarks/accuracy.py

PyG's loader needs pyg-lib or torch-sparse. The data sets are read from GNNSCALE_DATA.
"""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import replace
from statistics import mean, stdev

from common import parser, save

from torch_gnnscale import datasets
from torch_gnnscale.tasks import NodeConfig, NodeTrainer

SEEDS = range(5)
TASKS = {
    "cora": NodeConfig(fanouts=[25, 10], hidden=64, batch_size=140, epochs=40, lr=0.01, weight_decay=5e-4, dropout=0.5),
    "tolokers": NodeConfig(
        residual=True, fanouts=[10, 10], hidden=64, batch_size=512, epochs=25, lr=0.003, dropout=0.2
    ),
    "fb100/JohnsHopkins55": NodeConfig(fanouts=[10, 10], hidden=64, batch_size=512, epochs=12, lr=0.005),
}


def main() -> None:
    """Trains 2 loaders x 5 seeds on each task and prints means, standard errors and the verdict."""
    options = parser((__doc__ or "").splitlines()[0], graphs=False, rounds=False).parse_args()
    warnings.simplefilter("ignore", UserWarning)
    results = {}
    for name, config in TASKS.items():
        task = datasets.load(name, os.environ.get("GNNSCALE_DATA", "data"))
        tests: dict[str, list[float]] = {}
        for loader in ("gnnscale", "pyg"):
            tests[loader] = []
            for seed in SEEDS:
                summary = NodeTrainer(task, replace(config, loader=loader, seed=seed), quiet=True).run(lambda _: None)
                tests[loader].append(summary["test"])
        means = {loader: mean(values) for loader, values in tests.items()}
        errors = {loader: stdev(values) / math.sqrt(len(values)) for loader, values in tests.items()}
        difference, bound = abs(means["gnnscale"] - means["pyg"]), 2 * math.hypot(*errors.values())
        results[name] = {
            "metric": task.metric,
            "tests": tests,
            "mean": means,
            "standard_error": errors,
            "difference": difference,
            "two_standard_errors": bound,
            "equal": difference < bound,
        }
        print(
            f"{name:24s} {task.metric:9s} gnnscale {means['gnnscale']:.4f} ± {errors['gnnscale']:.4f}   "
            f"PyG {means['pyg']:.4f} ± {errors['pyg']:.4f}   difference {difference:.4f}, two standard errors "
            f"{bound:.4f}: {'equal' if difference < bound else 'DIFFERENT'}",
            flush=True,
        )
        if not options.no_save:
            save("accuracy", results)


if __name__ == "__main__":
    main()
