"""The version of the package; loads the native library and remembers what was loaded, or why not; and imports what is
needed at times."""

from __future__ import annotations

import ctypes
import importlib
from pathlib import Path
from typing import Any

try:
    import torch
    import torch_geometric  # noqa: F401 (every module of the package needs it)
except ModuleNotFoundError as error:
    if error.name not in ("torch", "torch_geometric"):
        raise
    raise ImportError(
        f'torch_gnnscale needs {error.name}, which is not installed: pip install "torch>=2.11" torch_geometric'
    ) from error

__version__ = "0.1.0"

BUILD_COMMAND = "pip install --no-build-isolation -e .  (in a folder with torch_gnnscale's sources)"
OLDEST_TORCH = (2, 11)

status: dict[str, str] = {}
"""Library name to ``"loaded"`` or the reason why it is not."""


def needed(module: str, why: str) -> Any:
    """A module of a package that may be missing: then raises ImportError with the text ``why``."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(why) from error


def load() -> None:
    """Loads ``_C``, and ``_CUDA`` where torch sees a GPU.

    Raises:
        ImportError: torch is too old, or the library was not built; names the command that builds it.
    """
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST_TORCH:
        raise ImportError(f'torch_gnnscale needs torch >= 2.11 (found {torch.__version__}): pip install "torch>=2.11"')
    folder = Path(__file__).parent
    path = folder / "_C.so"
    if not path.exists():
        raise ImportError(_missing(path))
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise ImportError(
            f"torch_gnnscale's native library {path} cannot be loaded ({error}); build it anew with: {BUILD_COMMAND}"
        ) from error
    status["_C"] = "loaded"
    path = folder / "_CUDA.so"
    if not path.exists():
        status["_CUDA"] = (
            f"not built (it needs nvcc, and FORCE_CUDA=1 if torch has no CUDA); build it with: {BUILD_COMMAND}"
        )
    elif torch.version.cuda is None:
        status["_CUDA"] = f"not loaded: torch {torch.__version__} was built without CUDA"
    elif not torch.cuda.is_available():
        status["_CUDA"] = "not loaded: torch sees no CUDA device"
    else:
        status["_CUDA"] = _load_cuda(path)


def _missing(path: Path) -> str:
    """What to do where a library is not in the package's folder."""
    sources = path.parents[1]
    if (sources / "setup.py").is_file():
        return (
            f"torch_gnnscale was imported from the folder of its sources, {sources}, where its native library is not "
            f"built. If you installed the package, start Python in another folder. If you work on the sources, build "
            f"the library there: pip install --no-build-isolation -e {sources}"
        )
    return f"torch_gnnscale's native library {path} is missing; build it with: {BUILD_COMMAND}"


def _load_cuda(path: Path) -> str:
    """Loads the CUDA part; returns its status. What is on the CPU works without it."""
    try:
        torch.ops.load_library(str(path))
        runtime, driver = cuda_versions(path)
    except (OSError, AttributeError) as error:  # no library, or one of older sources
        return f"not loaded: {path} cannot be loaded ({error}); build it anew with: {BUILD_COMMAND}"
    if driver // 1000 < runtime // 1000:  # drivers run what a toolkit of their own major version made
        return (
            f"not usable: it was built with CUDA {_version(runtime)}, and the driver knows CUDA {_version(driver)}; "
            f"update the driver, or build with a toolkit of CUDA {driver // 1000} (CUDA_HOME=...): {BUILD_COMMAND}"
        )
    return "loaded"


def cuda_versions(path: Path) -> tuple[int, int]:
    """Of the library's own CUDA runtime and of the driver: 1000 * major + 10 * minor; 0 if there is none."""
    runtime, driver = ctypes.c_int(), ctypes.c_int()
    ctypes.CDLL(str(path)).gnnscale_cuda_versions(ctypes.byref(runtime), ctypes.byref(driver))
    return runtime.value, driver.value


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
