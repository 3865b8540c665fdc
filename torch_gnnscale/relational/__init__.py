"""Relational databases: RelBench's tables and tasks, as graphs and loaders."""

from .task_graph import TaskGraph, open_task, task_loaders
from .text import HashedWords
from .times import NEVER

__all__ = ["NEVER", "HashedWords", "TaskGraph", "open_task", "task_loaders"]
