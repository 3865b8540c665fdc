"""Training over many processes: partitioned stores and the exchange between ranks."""

from ..comm.exchange import Exchange, Traffic
from ..comm.mesh import Grid
from .feature_store import PartitionedFeatureStore, PartRows
from .graph_store import PartitionedGraphStore
from .part import Part, open_part

__all__ = [
    "Exchange", "Grid", "Part", "PartRows", "PartitionedFeatureStore", "PartitionedGraphStore", "Traffic", "open_part",
]  # fmt: skip
