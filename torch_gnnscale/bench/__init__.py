"""Measures this package beside PyG on the machine that it runs on; ``gnnscale bench`` and the benchmarks use it."""

from .figures import FIGURES, Case, compare, generated_cases, machine, measure, step, table_of, trimmed, whole

__all__ = [
    "FIGURES", "Case", "compare", "generated_cases", "machine", "measure", "step", "table_of", "trimmed", "whole",
]  # fmt: skip
