"""Training over many processes: partitioned stores and the exchange between ranks."""

from .exchange import Exchange, Traffic
from .feature_store import PartitionedFeatureStore
from .graph_store import PartitionedGraphStore
from .grid import Grid
from .part import Part, open_part
from .part_rows import PartRows

__all__ = [
    "Exchange", "Grid", "Part", "PartRows", "PartitionedFeatureStore", "PartitionedGraphStore", "Traffic", "open_part",
]  # fmt: skip
