"""Inference on all nodes."""

from .disk import result_name
from .inference import infer
from .results import Results, open_results

__all__ = ["Results", "infer", "open_results", "result_name"]
