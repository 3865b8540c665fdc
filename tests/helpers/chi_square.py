"""Pearson's chi-square test."""

from __future__ import annotations

import torch
from torch import Tensor


def chi_square_p(found: Tensor, expected: Tensor, factor: float = 1.0) -> float:
    """The probability of counts at least as far from the expected ones as these, float64, in all cells.

    Args:
        found, expected: counts of one shape.
        factor: what multiplies the statistic, where the variance of counts is 1 / factor of that of a multinomial.
    """
    statistic = factor * ((found - expected) ** 2 / expected).sum()
    freedom = torch.tensor(found.numel() - 1, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic.to(torch.float64) / 2))
