"""Split parallelism: one mini-batch over all ranks, every node loaded and computed once (GSplit)."""

from ..comm.row_transport import Moved
from .explicit import ExchangingModel, LayerInput, exchange
from .halo_layers import Work
from .measuring import Measured, measure, plot
from .parallel import Parallelized, parallelize
from .planning import WEIGHTS, plan
from .plans import Plan
from .shuffle_index import Shuffled, ShuffleIndex

__all__ = [
    "WEIGHTS", "ExchangingModel", "LayerInput", "Measured", "Moved", "Parallelized", "Plan", "ShuffleIndex", "Shuffled",
    "Work", "exchange", "measure", "parallelize", "plan", "plot",
]  # fmt: skip
