"""Split parallelism: one mini-batch over all ranks, every node loaded and computed once (GSplit)."""

from .measuring import Measured, measure, plot
from .parallel import Parallelized, parallelize
from .planning import WEIGHTS, plan
from .plans import Plan
from .shuffle_index import Shuffled, ShuffleIndex
from .transport import Moved, Work

__all__ = [
    "WEIGHTS", "Measured", "Moved", "Parallelized", "Plan", "ShuffleIndex", "Shuffled", "Work", "measure",
    "parallelize", "plan", "plot",
]  # fmt: skip
