"""What all training jobs share: the loop, its ranks, its clock, checkpoints, and the plot of a run."""

from .checkpoint import CHECKPOINT, Interrupts
from .clock import plot_run
from .rank_group import RankGroup
from .trainer import Config, Trainer

__all__ = ["CHECKPOINT", "Config", "Interrupts", "RankGroup", "Trainer", "plot_run"]
