"""Loads the native library and remembers what was loaded, or why not."""

from __future__ import annotations

from pathlib import Path

import torch

BUILD_COMMAND = (
    "pip install --no-build-isolation torch_gnnscale  (in a checkout: pip install --no-build-isolation -e .)"
)
OLDEST_TORCH = (2, 11)

status: dict[str, str] = {}
"""Library name to ``"loaded"`` or the reason why it is not."""


def load() -> None:
    """Loads ``_C``, and ``_CUDA`` where torch sees a GPU.

    Raises:
        ImportError: torch is too old, or the library was not built; names the command that builds it.
    """
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST_TORCH:
        raise ImportError(f"torch_gnnscale needs torch >= 2.11 (found {torch.__version__})")
    folder = Path(__file__).parent
    path = folder / "_C.so"
    if not path.exists():
        raise ImportError(f"torch_gnnscale's native library {path} is missing; build it with: {BUILD_COMMAND}")
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"torch_gnnscale's native library {path} cannot be loaded ({error}); build it anew with: {BUILD_COMMAND}"
        ) from error
    status["_C"] = "loaded"
    path = folder / "_CUDA.so"
    if not path.exists():
        status["_CUDA"] = f"not built (no nvcc at build time, or FORCE_CUDA=0); build it with: {BUILD_COMMAND}"
    elif torch.version.cuda is None:
        status["_CUDA"] = f"not loaded: torch {torch.__version__} was built without CUDA"
    elif not torch.cuda.is_available():
        status["_CUDA"] = "not loaded: torch sees no CUDA device"
    else:
        torch.ops.load_library(str(path))
        status["_CUDA"] = "loaded"
