"""Parts of a graph that no machine holds alone: who owns which node, and the files of each part."""

from .assignment import METHODS, Assignment, assign
from .book import PartitionBook, RowsMeta
from .directory import TOPOLOGIES
from .reading import Halo, StoredPart, StoredParts, open_parts, read_report
from .report import PartitionReport
from .writing import write

__all__ = [
    "Assignment", "Halo", "METHODS", "PartitionBook", "PartitionReport", "RowsMeta", "StoredPart", "StoredParts",
    "TOPOLOGIES", "assign", "open_parts", "read_report", "write",
]  # fmt: skip
