"""Split parallelism: one mini-batch over all ranks, every node loaded and computed once (GSplit)."""

from ..comm.row_transport import Moved
from .explicit import ExchangingModel, LayerInput, exchange
from .parallel import Parallelized, parallelize
from .planning import WEIGHTS, Measured, measure, plan, plot
from .plans import Plan
from .shuffle_index import Shuffled, ShuffleIndex, Work

__all__ = [
    "WEIGHTS", "ExchangingModel", "LayerInput", "Measured", "Moved", "Parallelized", "Plan", "ShuffleIndex", "Shuffled",
    "Work", "exchange", "measure", "parallelize", "plan", "plot",
]  # fmt: skip
