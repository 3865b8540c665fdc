"""What all training jobs share: the loop, its clock, checkpoints, and the plot of a run."""

from .checkpoint import CHECKPOINT
from .plots import plot_run
from .trainer import Config, Trainer

__all__ = ["CHECKPOINT", "Config", "Trainer", "plot_run"]
