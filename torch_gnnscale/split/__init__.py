"""Split parallelism: one mini-batch over all ranks, every node loaded and computed once (GSplit)."""

from .measuring import Measured, measure, plot
from .owners import WEIGHTS
from .parallel import Parallelized, parallelize
from .planning import plan
from .plans import Plan
from .shuffle_index import Shuffled, ShuffleIndex

__all__ = [
    "WEIGHTS", "Measured", "Parallelized", "Plan", "ShuffleIndex", "Shuffled", "measure", "parallelize", "plan", "plot",
]  # fmt: skip
