"""Training over many processes: partitioned stores and the exchange between ranks."""

from .exchange import Exchange, Traffic
from .feature_store import PartitionedFeatureStore
from .graph_store import PartitionedGraphStore
from .grid import Grid
from .part import Part, open_part

__all__ = ["Exchange", "Grid", "Part", "PartitionedFeatureStore", "PartitionedGraphStore", "Traffic", "open_part"]
