"""Parts of a graph that no machine holds alone: who owns which node, and the files of each part."""

from .assignment import METHODS, Assignment, assign
from .directory import TOPOLOGIES, PartitionBook, RowsMeta
from .reading import Halo, StoredPart, StoredParts, open_parts, read_report
from .whole import PartitionReport
from .writing import write

__all__ = [
    "Assignment", "Halo", "METHODS", "PartitionBook", "PartitionReport", "RowsMeta", "StoredPart", "StoredParts",
    "TOPOLOGIES", "assign", "open_parts", "read_report", "write",
]  # fmt: skip
