"""Builds the native library for an emulated GPU: the operators of the .cu files, by threads, in place of the CPU's.

    python tests/emulation/build.py OBJECTS     # in a copy of the sources: see `make emulate`

The .cu files and the headers they share with the CPU are rewritten as C++, in a namespace of their own: a launch
becomes a call, and what is asked of a tensor's place is asked of the emulation. AddressSanitizer and UBSan watch.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch.utils import cpp_extension

HERE = Path(__file__).parent
COMPILER = shlex.split(os.environ.get("CXX", "c++"))
SOURCES, OUT = Path("cuda"), Path("build/emulated")
FLAGS = [
    "-std=c++20", "-fPIC", "-Og", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-Wall",
    "-Wno-unknown-pragmas", "-Wno-maybe-uninitialized", "-Wno-attributes",
    "-DTORCH_TARGET_VERSION=0x020b000000000000", "-DUSE_CUDA",
]  # fmt: skip
WITH_BARRIERS = ("gather_kernel", "gather_tables_kernel", "dot_kernel", "warp_phase")
LAUNCH = re.compile(r"(\w+(?:<[^<>;]*>)?)<<<(.*?)>>>\((.*?)\);")


def as_call(launch: re.Match) -> str:
    """A launch as a call; its arguments are copied, as those of a kernel are."""
    kernel, grid, arguments = launch.groups()
    blocks, threads = (entry.strip() for entry in grid.split(",")[:2])
    barriers = "true" if kernel.startswith(WITH_BARRIERS) else "false"
    return f"emulated::launch({blocks}, {threads}, {barriers}, [=] {{ {kernel}({arguments}); }});"


def rewritten(text: str) -> str:
    """A file for the emulation."""
    text = re.sub(r"namespace gnnscale\b", "namespace gnnscale_emulated", text)
    text = text.replace("STABLE_TORCH_LIBRARY_IMPL(gnnscale, CUDA,", "STABLE_TORCH_LIBRARY_IMPL(gnnscale, CPU,")
    text = re.sub(r"\b(\w+)\.is_cuda\(\)", r"emulated::is_cuda(\1)", text)
    text = re.sub(r"\b\w+\.get_device_index\(\)", "0", text)
    text = text.replace("torch::stable::accelerator::DeviceGuard", "emulated::DeviceGuard")
    text = text.replace("torch::stable::new_empty", "emulated::new_empty")
    return LAUNCH.sub(as_call, text)


def operators_of(source: Path) -> set[str]:
    """The operators that a source defines."""
    return set(re.findall(r'library\.impl\("(\w+)"', source.read_text()))


def compiled(source: Path) -> Path:
    """The object file of a source."""
    target = OUT / (str(source).replace("/", "_") + ".o")
    include = [f"-I{path}" for path in (HERE, *cpp_extension.include_paths())]
    subprocess.run([*COMPILER, *FLAGS, *include, "-c", source, "-o", target], check=True)
    return target


def main() -> None:
    """Writes torch_gnnscale/_C.so: the CPU's operators are the objects in a folder, which are sanitized, too."""
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.copytree(SOURCES, OUT / "cuda")
    kernels = [path for path in (OUT / "cuda").rglob("*.cu") if path.name != "versions_cuda.cu"]
    for path in [*kernels, *(OUT / "cuda").rglob("*.h")]:
        path.write_text(rewritten(path.read_text()))
    shutil.copy(HERE / "launch.h", OUT / "cuda/launch.h")
    copies = [path.rename(path.with_suffix(".emulated.cpp")) for path in kernels]
    operators = set().union(*map(operators_of, copies))
    replaced = {path.with_suffix(".o") for path in SOURCES.rglob("*.cpp") if operators_of(path) & operators}
    others = [path for path in Path(sys.argv[1]).rglob("*.o") if path.relative_to(sys.argv[1]) not in replaced]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = [*pool.map(compiled, [HERE / "emulated_cuda.cpp", *copies]), *others]
    library = [f"-L{path}" for path in cpp_extension.library_paths()]
    command = [*COMPILER, "-shared", "-fsanitize=address,undefined", *objects, *library]
    subprocess.run([*command, "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-o", "torch_gnnscale/_C.so"], check=True)


if __name__ == "__main__":
    sys.exit(main())
