"""Inference on all nodes."""

from .inference import infer

__all__ = ["infer"]
