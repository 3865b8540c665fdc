"""Split parallelism: one mini-batch over all ranks, every node loaded and computed once (GSplit)."""

from ..comm.exchange import Moved
from .explicit import ExchangingModel, LayerInput, exchange
from .local_rows import Work
from .parallel import Parallelized, parallelize
from .planning import WEIGHTS, Measured, measure, plan, plot
from .plans import Plan
from .rank_rows import Shuffled, ShuffleIndex

__all__ = [
    "WEIGHTS", "ExchangingModel", "LayerInput", "Measured", "Moved", "Parallelized", "Plan", "ShuffleIndex", "Shuffled",
    "Work", "exchange", "measure", "parallelize", "plan", "plot",
]  # fmt: skip
