"""Inference on all nodes."""

from .disk import result_name
from .inference import infer

__all__ = ["infer", "result_name"]
