"""Builds the native library: ``_C`` for the CPU and, where torch has CUDA and nvcc is found, ``_CUDA`` beside it.

FORCE_CUDA=0 leaves the CUDA part out, FORCE_CUDA=1 insists on it, whatever torch has; TORCH_CUDA_ARCH_LIST and MAX_JOBS
mean what they mean to every torch extension; GNNSCALE_SANITIZE=1 builds with AddressSanitizer and UBSan.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

try:
    import torch
    from torch.utils import cpp_extension
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise SystemExit(
        "torch_gnnscale is built against the torch that is installed, and here is none: first "
        'pip install "torch>=2.11" "setuptools>=77" wheel ninja, then run pip with --no-build-isolation'
    ) from None

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ModuleNotFoundError:
    raise SystemExit('torch_gnnscale is built by setuptools 77 or later: pip install "setuptools>=77"') from None

ROOT = Path(__file__).absolute().parent
# Ninja as pip installs it, whether or not the environment is activated.
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
LAUNCHERS = {"ccache", "distcc", "sccache"}
"""Programs that start a compiler; nvcc wants the compiler itself."""
TARGET = "0x020b000000000000"  # the stable ABI of torch 2.11: one library for that version and all later ones
ARCHITECTURES = os.environ.get("TORCH_CUDA_ARCH_LIST") or "7.5;8.0;9.0+PTX"
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
SANITIZE = SANITIZE if os.environ.get("GNNSCALE_SANITIZE") == "1" else []


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


def extension(name: str, libraries: list[str], options: list[str]) -> Extension:
    """A library of the objects that compile_changed makes. Torch's own classes would compile no .cu file with a toolkit
    of another version than torch's: that matters to its C++ interface, not to the stable ABI.

    All of torch's libraries are linked, before libstdc++: torch, too, is built to run with an older one, and c10 and
    torch_cpu have what that lacks.
    """
    torchs = ["-Wl,--no-as-needed", "-ltorch"] if sys.platform == "linux" else ["-ltorch"]
    return Extension(
        f"torch_gnnscale.{name}",
        [],
        language="c++",
        libraries=["c10", "torch_cpu"],
        library_dirs=[*cpp_extension.library_paths(), *libraries],
        extra_link_args=[*options, *torchs, *SANITIZE],
    )


def words_of(command: list[str]) -> int:
    """How many words name the compiler that a command begins with, such as "ccache gcc"; its flags follow."""
    return next((number for number, word in enumerate(command, 1) if Path(word).name not in LAUNCHERS), len(command))


def cpu_command(compiler: list[str]) -> str:
    """Compiles a .cpp file, as a rule of ninja; ``compiler`` is what setuptools compiles C with."""
    flags = ["-g0", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter"]
    flags += ["-ffp-contract=off"]  # products are rounded before they are added, as on a GPU (cuda/aggregate/columns.h)
    flags += ["-fno-trapping-math"]  # GCC makes vectors of choices between numbers; nobody reads what they would raise
    if sys.platform == "linux":
        flags += ["-Wno-maybe-uninitialized"]  # GCC 12 finds it in its own header of AVX-512
    compiler = [*shlex.split(os.environ.get("CXX", "c++")), *compiler[words_of(compiler) :], "-fPIC"]
    return command(compiler, [], [*flags, *(SANITIZE and [*SANITIZE, "-g1", "-Og"])])


def cuda_command(cuda_home: str) -> str:
    """Compiles a .cu file, as a rule of ninja."""
    flags = ["-DUSE_CUDA", "--expt-relaxed-constexpr", "-Xcompiler", "-fPIC,-fvisibility=hidden"]
    flags += architecture_flags(ARCHITECTURES)
    if words := shlex.split(os.environ.get("CC", "")):
        flags += ["-ccbin", words[words_of(words) - 1]]
    return command([str(Path(cuda_home, "bin", "nvcc"))], [str(Path(cuda_home, "include"))], flags)


def command(compiler: list[str], include: list[str], flags: list[str]) -> str:
    common = ["-std=c++20", "-O3", f"-DTORCH_TARGET_VERSION={TARGET}"]
    folders = [f"-I{path}" for path in (*cpp_extension.include_paths(), *include)]
    return f"{shlex.join([*compiler, *folders, *common, *flags])} -MD -MF $out.d -c $in -o $out"


def architecture_flags(names: str) -> list[str]:
    """nvcc's options for TORCH_CUDA_ARCH_LIST, such as "8.0;9.0+PTX"."""
    flags = []
    for name in filter(None, names.replace(" ", ";").split(";")):
        if (found := re.fullmatch(r"(\d+)\.(\d+[af]?)(\+PTX)?", name)) is None:
            raise SystemExit(
                f"TORCH_CUDA_ARCH_LIST: expected architectures such as 8.0;9.0+PTX, found {name!r} in {names!r}"
            )
        number = found[1] + found[2]
        flags += [f"-gencode=arch=compute_{number},code=sm_{number}"]
        flags += [f"-gencode=arch=compute_{number},code=compute_{number}"] if found[3] else []
    return flags


def compile_changed(commands: dict[str, str], folder: Path) -> dict[str, list[str]]:
    """Compiles those sources of each suffix that have changed, or a header of theirs, or the command.

    Returns the objects of each suffix. They lie below ``folder`` as the sources do below the root.
    """
    objects = {suffix: {str(folder / Path(path).with_suffix(".o")): path for path in sources(f"*.{suffix}")}
               for suffix in commands}  # fmt: skip
    lines = []
    for suffix, rule in commands.items():
        lines += [f"rule {suffix}", f"  command = {rule}", "  depfile = $out.d", "  deps = gcc"]
        for out, path in objects[suffix].items():
            made, source = (str(name).replace(" ", "$ ") for name in (out, ROOT / path))
            lines += [f"build {made}: {suffix} {source}", f"  description = {path}"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "build.ninja").write_text("\n".join([*lines, ""]))
    jobs = ["-j", os.environ["MAX_JOBS"]] if os.environ.get("MAX_JOBS") else []
    try:
        subprocess.run(["ninja", *jobs], check=True, cwd=folder)
    except FileNotFoundError:
        raise SystemExit("torch_gnnscale is compiled by ninja, which is not installed: pip install ninja") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"torch_gnnscale did not compile: ninja ended with {error.returncode}") from None
    return {suffix: list(made) for suffix, made in objects.items()}


class BuildExtension(build_ext):
    """Libraries without a Python ABI in their names, and a summary of what is built."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_temp = str(ROOT / "build" / "objects")  # shared: a wheel needs no file compiled again
        self.force = True  # ninja knows which objects have changed; linking takes no time

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', os.sep)}.so"

    def build_extensions(self) -> None:
        print(f"torch_gnnscale: torch {torch.__version__}, stable ABI of 2.11 (TORCH_TARGET_VERSION={TARGET})")
        print(
            f"torch_gnnscale: CPU part: {len(sources('*.cpp'))} files, MAX_JOBS={os.environ.get('MAX_JOBS', 'unset')}"
        )
        print(f"torch_gnnscale: CUDA part: {CUDA_NOTE}", flush=True)
        commands = {"cpp": cpu_command(self.compiler.compiler_so)}
        if cuda_home is not None:
            commands["cu"] = cuda_command(cuda_home)
        objects = compile_changed(commands, Path(self.build_temp))
        for library, made in zip(self.extensions, objects.values(), strict=True):
            library.extra_objects = made
        super().build_extensions()


class PlatformWheel(bdist_wheel):
    """A wheel for the platform alone: the library needs no particular Python."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


force_cuda = os.environ.get("FORCE_CUDA")
if force_cuda == "0":
    cuda_home, reason = None, "FORCE_CUDA=0"
elif force_cuda != "1" and torch.version.cuda is None:
    cuda_home, reason = None, f"torch {torch.__version__} has no CUDA; FORCE_CUDA=1 compiles it all the same"
else:
    cuda_home, reason = find_cuda_home()
modules = [extension("_C", [], [])]
if cuda_home is not None:
    folders = [str(Path(cuda_home, lib)) for lib in ("lib64", "lib") if Path(cuda_home, lib).is_dir()]
    modules.append(extension("_CUDA", folders, ["-l:libcudart_static.a", "-lrt", "-ldl", "-lpthread"]))
    CUDA_NOTE = f"{len(sources('*.cu'))} files, {cuda_home}, {versions(cuda_home)}, architectures {ARCHITECTURES}"
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
