"""A graph in parts: the partition book, methods that choose parts, and files of parts."""

from .book import PartitionBook, RowsMeta
from .methods import Assignment, PartitionReport, assign, report
from .reading import Halo, StoredPart, StoredParts, open_parts
from .writing import write

__all__ = [
    "Assignment", "Halo", "PartitionBook", "PartitionReport", "RowsMeta", "StoredPart", "StoredParts", "assign",
    "open_parts", "report", "write",
]  # fmt: skip
