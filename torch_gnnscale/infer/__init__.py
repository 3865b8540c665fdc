"""Inference on all nodes."""

from .disk import Results, open_results, result_name
from .inference import infer

__all__ = ["Results", "infer", "open_results", "result_name"]
