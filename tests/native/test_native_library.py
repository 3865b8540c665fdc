"""What the native libraries may need from outside, and what happens where they are missing."""

import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import forked

from torch_gnnscale import _library

PACKAGE = Path(_library.__file__).parent
LIBRARIES = ["_C", "_CUDA"]
SOURCES = Path(__file__).parents[2] / "cuda"


def library(name: str) -> Path:
    path = PACKAGE / f"{name}.so"
    if not path.exists():
        pytest.skip(f"{path.name} was not built")
    return path


def symbols(path: Path, *options: str) -> list[str]:
    if (nm := shutil.which("nm")) is None:
        pytest.skip("nm (binutils) is not installed")
    run = subprocess.run([nm, "-D", "-C", *options, str(path)], capture_output=True, text=True, check=True)
    return [line.split(maxsplit=1 if "--undefined-only" in options else 2)[-1] for line in run.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_only_the_stable_interface_of_torch_is_used(name):
    needed = symbols(library(name), "--undefined-only")
    assert any(symbol.startswith(("aoti_torch_", "torch_")) for symbol in needed)
    assert [symbol for symbol in needed if re.search(r"\b(c10|at|torch|caffe2)::", symbol)] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_no_python_is_used(name):
    path = library(name)
    assert [symbol for symbol in symbols(path, "--undefined-only") if symbol.startswith(("Py", "_Py"))] == []
    if shutil.which("readelf"):
        run = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True)
        libraries = [line.split("[")[1].rstrip("]") for line in run.stdout.splitlines() if "(NEEDED)" in line]
        assert libraries
        assert [name for name in libraries if "python" in name] == []


@pytest.mark.skipif(not SOURCES.is_dir(), reason="needs the sources")
def test_no_two_headers_define_a_type_of_the_same_name():
    """The linker would keep the code of one of them for both, without a word."""
    defined = re.compile(r"^(?:struct|class|enum(?: class)?) (\w+)[^;]*?\{", re.M)
    names = [name for path in SOURCES.rglob("*.h") for name in defined.findall(path.read_text())]
    assert len(names) > 100
    assert sorted({name for name in names if names.count(name) > 1}) == []


LATER = {"STABLE_TORCH_ERROR_CODE_CHECK", "C10_WARP_SIZE_LOWER_BOUND", "C10_WARP_SIZE_UPPER_BOUND", "AT_OPAQUE_TYPES"}
"""Macros of torch 2.13's headers that 2.11's lack; functions it lacks are not declared for TORCH_TARGET_VERSION."""


@pytest.mark.skipif(not SOURCES.is_dir(), reason="needs the sources")
def test_the_sources_compile_with_the_oldest_torchs_headers():
    words = {word for path in SOURCES.rglob("*.*") for word in re.findall(r"\w+", path.read_text())}
    assert "TORCH_ERROR_CODE_CHECK" in words
    assert words & LATER == set()


def test_status():
    assert _library.status["_C"] == "loaded"
    assert set(_library.status) == set(LIBRARIES)
    if not (PACKAGE / "_CUDA.so").exists():
        assert "not built" in _library.status["_CUDA"]
        assert _library.BUILD_COMMAND in _library.status["_CUDA"]
    elif torch.version.cuda is None:
        assert "built without CUDA" in _library.status["_CUDA"]
    elif not torch.cuda.is_available():
        assert "no CUDA device" in _library.status["_CUDA"]
    else:
        assert _library.status["_CUDA"] == "loaded"


@pytest.mark.parametrize(("cuda", "devices", "expected"), [
    (None, True, f"not loaded: torch {torch.__version__} was built without CUDA"),
    ("13.0", False, "not loaded: torch sees no CUDA device"),
    ("13.0", True, "what loading it says"),
])  # fmt: skip
def test_status_of_the_cuda_part(cuda, devices, expected, tmp_path, monkeypatch):
    (tmp_path / "_C.so").symlink_to(PACKAGE / "_C.so")
    (tmp_path / "_CUDA.so").touch()
    monkeypatch.setattr(_library, "__file__", str(tmp_path / "_library.py"))
    monkeypatch.setattr(_library, "status", {})
    monkeypatch.setattr(_library, "_load_cuda", lambda path: "what loading it says")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices)
    _library.load()
    assert _library.status == {"_C": "loaded", "_CUDA": expected}


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ((13000, 13000), "loaded"),
        ((13010, 13000), "loaded"),
        ((12080, 13000), "loaded"),
        ((13000, 12080), "not usable: it was built with CUDA 13.0, and the driver knows CUDA 12.8; update the driver,"),
        ((13000, 0), "not usable: it was built with CUDA 13.0, and the driver knows CUDA 0.0;"),
    ],
)
def test_a_driver_that_is_too_old_is_named(versions, expected, monkeypatch):
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    monkeypatch.setattr(_library, "cuda_versions", lambda path: versions)
    assert _library._load_cuda(PACKAGE / "_CUDA.so").startswith(expected)


def test_a_damaged_cuda_library_leaves_the_cpu(tmp_path):
    (tmp_path / "_CUDA.so").write_bytes(b"no library")
    state = _library._load_cuda(tmp_path / "_CUDA.so")
    assert state.startswith(f"not loaded: {tmp_path / '_CUDA.so'} cannot be loaded (")
    assert state.endswith(_library.BUILD_COMMAND)


def test_a_cuda_library_of_older_sources_is_to_be_built_anew(monkeypatch):
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    state = _library._load_cuda(library("_C"))  # which does not know its versions
    assert "undefined symbol: gnnscale_cuda_versions" in state
    assert state.endswith(_library.BUILD_COMMAND)


def test_versions_are_asked_without_a_gpu():
    if torch.version.cuda is None:
        pytest.skip("needs a torch with CUDA, which has the library's symbols")
    runtime, driver = _library.cuda_versions(library("_CUDA"))
    assert runtime >= 11000
    assert driver >= 0


def import_copy(tmp_path: Path, code: str = "import torch_gnnscale", fresh: bool = False) -> str:
    """The last line that a process prints which imports a copy of the package without its libraries; a fresh one has
    not imported torch and PyG, either."""
    for file in PACKAGE.rglob("*.py"):
        target = tmp_path / "torch_gnnscale" / file.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"
    another = functools.partial(subprocess.run, capture_output=True, text=True, check=False)
    done = another([sys.executable, "-c", code]) if fresh else forked.run(code)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_a_missing_library_says_how_to_build_it(tmp_path):
    message = import_copy(tmp_path)
    assert message.startswith("ImportError: ")
    assert f"{tmp_path / 'torch_gnnscale' / '_C.so'} is missing" in message
    assert message.endswith(_library.BUILD_COMMAND)


@pytest.mark.slow
def test_sources_whose_library_is_not_built_say_that_they_are_sources(tmp_path):
    (tmp_path / "setup.py").touch()
    message = import_copy(tmp_path)
    assert message.startswith(f"ImportError: torch_gnnscale was imported from the folder of its sources, {tmp_path}, ")
    assert "start Python in another folder" in message
    assert message.endswith(f"pip install --no-build-isolation -e {tmp_path}")


@pytest.mark.slow
def test_a_damaged_library_says_how_to_build_it(tmp_path):
    (tmp_path / "torch_gnnscale").mkdir()
    (tmp_path / "torch_gnnscale" / "_C.so").write_bytes(b"no library")
    message = import_copy(tmp_path)
    assert message.startswith("ImportError: ")
    assert "cannot be loaded" in message
    assert message.endswith(_library.BUILD_COMMAND)


@pytest.mark.slow
def test_an_old_torch_is_refused(tmp_path):
    message = import_copy(tmp_path, "import torch; torch.__version__ = '2.10.1+cpu'; import torch_gnnscale")
    assert message == ('ImportError: torch_gnnscale needs torch >= 2.11 (found 2.10.1+cpu): pip install "torch>=2.11"')


@pytest.mark.slow
@pytest.mark.parametrize("package", ["torch", "torch_geometric"])
def test_a_package_that_is_not_installed_is_named(tmp_path, package):
    absent = f"""
import importlib.abc
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {package!r}:
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Absent())
import torch_gnnscale
"""
    assert import_copy(tmp_path, absent, fresh=True) == (
        f"ImportError: torch_gnnscale needs {package}, which is not installed: "
        'pip install "torch>=2.11" torch_geometric'
    )


@pytest.mark.slow
def test_a_package_that_another_one_lacks_is_not_mistaken(tmp_path):
    broken = tmp_path / "torch_geometric"
    broken.mkdir()
    (broken / "__init__.py").write_text("import no_such_package")
    assert import_copy(tmp_path, fresh=True) == "ModuleNotFoundError: No module named 'no_such_package'"
