"""Builds the native library with ThreadSanitizer in the files whose threads write to the same memory.

    python tests/native/races.py OBJECTS     # in a copy of the sources: see `make races`

The other files' objects are those of the plain library.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from torch.utils import cpp_extension

WATCHED = Path("cuda/gather/gather_tiers_cpu.cpp")
FLAGS = ["-std=c++20", "-fPIC", "-O1", "-g", "-fsanitize=thread", "-DTORCH_TARGET_VERSION=0x020b000000000000"]


def main() -> None:
    """Writes torch_gnnscale/_C.so."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    include = [f"-I{path}" for path in cpp_extension.include_paths()]
    subprocess.run([*compiler, *FLAGS, *include, "-c", WATCHED, "-o", "watched.o"], check=True)
    others = [
        Path(sys.argv[1], path).with_suffix(".o") for path in sorted(Path("cuda").rglob("*.cpp")) if path != WATCHED
    ]
    library = [f"-L{path}" for path in cpp_extension.library_paths()]
    command = [*compiler, "-shared", "-fsanitize=thread", "watched.o", *others, *library]
    subprocess.run([*command, "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-o", "torch_gnnscale/_C.so"], check=True)


if __name__ == "__main__":
    sys.exit(main())
