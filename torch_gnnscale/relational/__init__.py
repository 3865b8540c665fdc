"""Relational databases: RelBench's tables and tasks, as graphs and loaders."""

from .database_graph import NEVER, HashedWords
from .loaders import LinkNeighborLoader
from .task_graph import TaskGraph, open_task, task_loaders

__all__ = ["NEVER", "HashedWords", "LinkNeighborLoader", "TaskGraph", "open_task", "task_loaders"]
