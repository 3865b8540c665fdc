"""Tasks and their graphs: generated, read from files, or from data sets of PyG and OGB."""

from .link_task import EventTask, LinkTask, load_events, load_links
from .node_task import NodeTask, load, load_types
from .part_tasks import about_task, task_of_part
from .planted import planted, planted_events, planted_links, planted_types
from .planted_shop import planted_shop, write_shop

__all__ = [
    "EventTask",
    "LinkTask",
    "NodeTask",
    "about_task",
    "load",
    "load_events",
    "load_links",
    "load_types",
    "planted",
    "planted_events",
    "planted_links",
    "planted_shop",
    "planted_types",
    "task_of_part",
    "write_shop",
]
