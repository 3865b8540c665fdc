"""Training over many processes: partitioned stores and the exchange between ranks."""

from .exchange import Exchange, Traffic
from .feature_store import PartitionedFeatureStore
from .grid import Grid
from .part import Part, open_part

__all__ = ["Exchange", "Grid", "Part", "PartitionedFeatureStore", "Traffic", "open_part"]
