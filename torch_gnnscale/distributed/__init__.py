"""Training over many processes: partitioned stores and the exchange between ranks."""

from ..comm.exchange import Exchange, Traffic
from ..comm.mesh import Grid
from .part import Part, open_part
from .partitioned_features import PartitionedFeatureStore, PartRows
from .partitioned_graph import PartitionedGraphStore

__all__ = [
    "Exchange", "Grid", "Part", "PartRows", "PartitionedFeatureStore", "PartitionedGraphStore", "Traffic", "open_part",
]  # fmt: skip
