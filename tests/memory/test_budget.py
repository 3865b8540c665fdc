"""Amounts of memory as users say them."""

import re

import pytest

from torch_gnnscale.memory import budget_bytes, format_bytes, is_bytes


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (0, 0), (7, 7), ("7B", 7), ("8 KiB", 8192), ("1.5MB", 1_500_000), ("2GiB", 2 << 30), ("3TB", 3 * 10**12),
        (0.25, 250), ("25%", 250), (1.0, 1000), ("100%", 1000), ("12.5%", 125), (" 25% ", 250),
    ],
)  # fmt: skip
def test_budgets(budget, expected):
    assert budget_bytes("host", budget, 1000) == expected


@pytest.mark.parametrize(
    ("budget", "error", "message"),
    [
        (-1, ValueError, "host: expected 0 <= host <= "),
        (1.5, ValueError, "host: expected a share of 0 to 1, found 1.5"),
        (float("nan"), ValueError, "host: expected a share of 0 to 1, found nan"),
        ("101%", ValueError, "host: expected a share of 0 to 1, found '101%'"),
        ("0.5", ValueError, "host: expected a number and a unit such as '8GiB', '500MB' or '25%', found '0.5'"),
        ("8gib", ValueError, "host: expected a number and a unit such as '8GiB', '500MB' or '25%', found '8gib'"),
        (True, TypeError, "host: expected bytes, a share or a string such as '8GiB', found bool"),
        (None, TypeError, "host: expected bytes, a share or a string such as '8GiB', found NoneType"),
    ],
)
def test_wrong_budgets(budget, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        budget_bytes("host", budget, 1000)


@pytest.mark.parametrize(("budget", "expected"), [(7, True), (" 8 KiB ", True), (0.5, False), (" 25% ", False)])
def test_what_says_bytes(budget, expected):
    assert is_bytes(budget) == expected


def test_bytes_are_printed():
    assert [format_bytes(n) for n in (0, 1, 1023, 1024, 3 << 29, 5 << 50)] == [
        "0 B", "1 B", "1023 B", "1.0 KiB", "1.5 GiB", "5120.0 TiB",
    ]  # fmt: skip
