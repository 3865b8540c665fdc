"""The tasks of ``gnnscale train --task``, and what they train."""

from ..training import Trainer
from .node_trainer import NodeConfig, NodeTrainer
from .relational import RelationalConfig, RelationalTrainer
from .temporal import EventConfig, EventTrainer
from .typed_trainers import HeteroConfig, HeteroTrainer, LinkConfig, LinkTrainer

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
