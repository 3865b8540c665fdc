"""Relational databases: RelBench's tables and tasks, as graphs and loaders."""

from .columns import NEVER
from .graph import HashedWords
from .link_loader import LinkNeighborLoader
from .task_graph import TaskGraph, open_task, task_loaders

__all__ = ["NEVER", "HashedWords", "LinkNeighborLoader", "TaskGraph", "open_task", "task_loaders"]
