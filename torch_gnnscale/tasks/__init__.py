"""The tasks of ``gnnscale train --task``, one module each."""

from ..training import Trainer
from .hetero_trainer import HeteroConfig, HeteroTrainer
from .link_trainer import LinkConfig, LinkTrainer
from .node_trainer import NodeConfig, NodeTrainer
from .relational import RelationalConfig, RelationalTrainer
from .temporal import EventConfig, EventTrainer

TASKS: dict[str, type[Trainer]] = {
    "nodes": NodeTrainer,
    "hetero": HeteroTrainer,
    "links": LinkTrainer,
    "temporal": EventTrainer,
}
"""The trainer of each ``--task``."""

__all__ = [
    "EventConfig",
    "EventTrainer",
    "HeteroConfig",
    "HeteroTrainer",
    "LinkConfig",
    "LinkTrainer",
    "NodeConfig",
    "NodeTrainer",
    "RelationalConfig",
    "RelationalTrainer",
    "TASKS",
]
