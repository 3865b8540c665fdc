"""What the benchmarks of a GPU decide without one: what a figure is worth."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
if not FOLDER.is_dir():
    pytest.skip("the benchmarks are not beside the tests", allow_module_level=True)
sys.path.append(str(FOLDER))

from common import judged, ratio  # noqa: E402


def test_figures_are_judged_by_their_bound():
    assert judged(0.8, least=0.8) == {"found": 0.8, "least": 0.8, "met": True}
    assert judged(0.8, most=0.7)["met"] is False
    assert [judged(found, within=0.02)["met"] for found in (-0.03, -0.02, 0.0, 0.03)] == [False, True, True, False]
    assert judged(ratio(1, 0), most=0.7) == {"found": None, "most": 0.7, "met": None}
