"""Split parallelism: one mini-batch over all ranks, every node loaded and computed once (GSplit)."""

from .owners import WEIGHTS
from .planning import plan
from .plans import Plan
from .shuffle_index import Shuffled, ShuffleIndex

__all__ = ["WEIGHTS", "Plan", "ShuffleIndex", "Shuffled", "plan"]
