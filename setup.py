"""Builds the native library: ``_C`` for the CPU and, where nvcc is found, ``_CUDA`` beside it.

FORCE_CUDA=0 leaves the CUDA part out, FORCE_CUDA=1 insists on it; TORCH_CUDA_ARCH_LIST and MAX_JOBS mean what they mean
to every torch extension; GNNSCALE_SANITIZE=1 builds with AddressSanitizer and UBSan.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

try:
    import torch
    from torch.utils import cpp_extension
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise SystemExit(
        'torch_gnnscale is built against the torch that is installed, and none is: pip install "torch>=2.11"'
    ) from error

ROOT = Path(__file__).parent
TARGET = "0x020b000000000000"  # the stable ABI of torch 2.11: one library for that version and all later ones
DEFAULT_ARCHITECTURES = "7.5;8.0;9.0+PTX"


def find_cuda_home() -> tuple[str | None, str]:
    """The CUDA toolkit's folder: CUDA_HOME, or where the nvcc on PATH really lives; or None, and why."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(name):
            found = Path(home, "bin", "nvcc").is_file()
            return (home, "") if found else (None, f"{name}={home} has no bin/nvcc")
    if (nvcc := shutil.which("nvcc")) is None:
        return None, "no nvcc was found: set CUDA_HOME or put nvcc on PATH"
    plan = subprocess.run([nvcc, "--dryrun", "-E", os.devnull], capture_output=True, text=True).stderr
    here = re.search(r"_HERE_=(.*)", plan)
    return str(Path(here.group(1)).parent) if here else str(Path(nvcc).resolve().parent.parent), ""


def versions(cuda_home: str) -> str:
    """The toolkit's version, and torch's where it is another."""
    said = subprocess.run([str(Path(cuda_home, "bin", "nvcc")), "--version"], capture_output=True, text=True).stdout
    release = re.search(r"release (\d+\.\d+)", said)
    toolkit = release.group(1) if release else "of unknown version"
    if torch.version.cuda in (None, toolkit):
        return f"CUDA {toolkit}"
    return f"CUDA {toolkit} (torch has {torch.version.cuda}: no match is needed, but a driver that knows {toolkit})"


def description() -> str:
    """README.md for a package index: links to files of the repository become links below the URL that pyproject.toml
    gives as its home, whether or not it is published there."""
    home = re.search(r'^Repository = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE).group(1)
    text = (ROOT / "README.md").read_text()
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{home}/raw/main/", text)
    return re.sub(r"(?<!!)(\[[^]]*\]\()(?!https?:|#)", rf"\1{home}/blob/main/", text)


def sources(pattern: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "cuda").rglob(pattern))


def extension(name: str, files: list[str], cuda_home: str | None) -> cpp_extension.CppExtension:
    common = ["-std=c++20", "-O3", f"-DTORCH_TARGET_VERSION={TARGET}"]
    cxx = [*common, "-g0", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter"]
    cxx += ["-ffp-contract=off"]  # products are rounded before they are added, as on a GPU (cuda/aggregate/columns.h)
    cxx += ["-Wno-maybe-uninitialized"]  # GCC 12 finds it in its own header of AVX-512
    link = ["-Wl,--no-as-needed", "-ltorch"]
    if os.environ.get("GNNSCALE_SANITIZE") == "1":
        cxx += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g1", "-Og"]
        link += ["-fsanitize=address,undefined"]
    options: dict = {"extra_compile_args": {"cxx": cxx}}
    if cuda_home is not None:
        options["extra_compile_args"]["nvcc"] = [*common, "-DUSE_CUDA", "-Xcompiler", "-fvisibility=hidden"]
        options["include_dirs"] = [str(Path(cuda_home, "include"))]
        options["library_dirs"] = [
            str(Path(cuda_home, lib)) for lib in ("lib64", "lib") if Path(cuda_home, lib).is_dir()
        ]
        link = ["-l:libcudart_static.a", "-lrt", "-ldl", "-lpthread", *link]
    return cpp_extension.CppExtension(
        f"torch_gnnscale.{name}", files, py_limited_api=True, extra_link_args=link, **options
    )


class BuildExtension(cpp_extension.BuildExtension):
    """Libraries without a Python ABI in their names, and a summary of what is built."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, no_python_abi_suffix=True, **kwargs)

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_temp = str(ROOT / "build" / "objects")  # shared: a wheel needs no file compiled again

    def build_extensions(self) -> None:
        print(f"torch_gnnscale: torch {torch.__version__}, stable ABI of 2.11 (TORCH_TARGET_VERSION={TARGET})")
        print(
            f"torch_gnnscale: CPU part: {len(sources('*.cpp'))} files, MAX_JOBS={os.environ.get('MAX_JOBS', 'unset')}"
        )
        print(f"torch_gnnscale: CUDA part: {CUDA_NOTE}", flush=True)
        super().build_extensions()


class PlatformWheel(bdist_wheel):
    """A wheel for the platform alone: the library needs no particular Python."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


force_cuda = os.environ.get("FORCE_CUDA")
cuda_home, reason = (None, "FORCE_CUDA=0") if force_cuda == "0" else find_cuda_home()
modules = [extension("_C", sources("*.cpp"), None)]
if cuda_home is not None:
    cpp_extension.CUDA_HOME = cuda_home  # torch leaves it unset when torch itself was built without CUDA
    # Torch refuses a toolkit of another version than its own: that matters to its C++ interface, not to the stable ABI.
    cpp_extension._check_cuda_version = lambda *_: None
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", DEFAULT_ARCHITECTURES)
    modules.append(extension("_CUDA", sources("*.cu"), cuda_home))
    CUDA_NOTE = (
        f"{len(sources('*.cu'))} files, {cuda_home}, {versions(cuda_home)}, "
        f"architectures {os.environ['TORCH_CUDA_ARCH_LIST']}"
    )
elif force_cuda == "1":
    raise SystemExit(f"torch_gnnscale: FORCE_CUDA=1, but {reason}")
else:
    CUDA_NOTE = f"left out: {reason}"

setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    ext_modules=modules,
    cmdclass={"build_ext": BuildExtension, "bdist_wheel": PlatformWheel},
)
