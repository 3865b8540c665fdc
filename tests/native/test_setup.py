"""What setup.py decides, without building: the CUDA part, and the description for a package index."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import setuptools
import torch
from torch.utils import cpp_extension

SETUP = Path(__file__).parents[2] / "setup.py"


@pytest.fixture
def decide(monkeypatch):
    """Runs setup.py with some environment, and returns its module and the libraries that it would build."""
    if not SETUP.is_file():
        pytest.skip("no checkout: setup.py is not here")
    for name in ("CUDA_HOME", "CUDA_PATH", "FORCE_CUDA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    monkeypatch.setenv("PATH", os.environ["PATH"])  # which setup.py changes
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    calls: list[dict] = []
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: calls.append(arguments))

    def run(**environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        spec = importlib.util.spec_from_file_location("setup_of_the_checkout", SETUP)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module, [extension.name.split(".")[-1] for extension in calls.pop()["ext_modules"]]

    return run


@pytest.fixture
def toolkit(tmp_path):
    """A CUDA toolkit of a version that torch was not built with."""
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 99.1, V99.1.5'\n")
    nvcc.chmod(0o755)
    return nvcc.parents[1]


@pytest.mark.parametrize("name", ["CUDA_HOME", "CUDA_PATH"])
def test_a_toolkit_that_is_not_there_is_left_out(decide, tmp_path, name):
    home = tmp_path / "nowhere"
    module, libraries = decide(**{name: home})
    assert libraries == ["_C"]
    assert module.CUDA_NOTE.endswith(f"left out: {name}={home} has no bin/nvcc")
    with pytest.raises(SystemExit, match=r"FORCE_CUDA=1, but CUDA_.*nowhere has no bin/nvcc"):
        decide(**{name: home, "FORCE_CUDA": 1})


def test_no_toolkit_at_all(decide, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    module, libraries = decide()
    assert libraries == ["_C"]
    assert module.CUDA_NOTE == "left out: no nvcc was found: set CUDA_HOME or put nvcc on PATH"
    with pytest.raises(SystemExit, match="FORCE_CUDA=1, but no nvcc was found"):
        decide(FORCE_CUDA=1)


def test_left_out_when_asked(decide, toolkit):
    module, libraries = decide(FORCE_CUDA=0, CUDA_HOME=toolkit)
    assert libraries == ["_C"]
    assert module.CUDA_NOTE == "left out: FORCE_CUDA=0"


@pytest.mark.parametrize("of_torch", ["12.8", "99.1"])
def test_a_toolkit_of_another_version_than_torchs(decide, toolkit, monkeypatch, of_torch):
    monkeypatch.setattr(torch.version, "cuda", of_torch)
    module, libraries = decide(CUDA_HOME=toolkit)
    assert libraries == ["_C", "_CUDA"]
    assert f"{toolkit}, CUDA 99.1" in module.CUDA_NOTE
    assert ("torch has 12.8: no match is needed" in module.CUDA_NOTE) == (of_torch == "12.8")


def test_a_torch_without_cuda_gets_no_cuda_part_unless_asked(decide, toolkit, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    module, libraries = decide(CUDA_HOME=toolkit)
    assert libraries == ["_C"]
    assert module.CUDA_NOTE.endswith("has no CUDA; FORCE_CUDA=1 compiles it all the same")
    module, libraries = decide(CUDA_HOME=toolkit, FORCE_CUDA=1)
    assert libraries == ["_C", "_CUDA"]
    assert f"{toolkit}, CUDA 99.1" in module.CUDA_NOTE


def test_nothing_of_torch_is_replaced(decide, toolkit):
    before = dict(vars(cpp_extension))
    decide(CUDA_HOME=toolkit, FORCE_CUDA=1)
    assert vars(cpp_extension) == before


@pytest.fixture
def compiler(toolkit):
    """A toolkit whose nvcc writes what it was told into the object."""
    if shutil.which("ninja", path=sysconfig.get_path("scripts")) is None:
        pytest.skip("ninja is not installed")
    nvcc = toolkit / "bin" / "nvcc"
    nvcc.write_text(
        """#!/bin/sh
case "$*" in *--version*) echo 'Cuda compilation tools, release 99.1, V99.1.5'; exit;; esac
case "$*" in *compute_11*) exit 3;; esac
told="$*"
while [ "$1" != -o ]; do [ "$1" = -c ] && source=$2; [ "$1" = -MF ] && list=$2; shift; done
echo "$2: $source" > "$list"
echo "$told" > "$2"
"""
    )
    return toolkit


@pytest.mark.slow
def test_the_cuda_part_is_compiled_where_it_changed(decide, compiler, tmp_path):
    def compiled(architectures: str) -> list[Path]:
        module, _ = decide(FORCE_CUDA=1, CUDA_HOME=compiler, TORCH_CUDA_ARCH_LIST=architectures, MAX_JOBS=2)
        made = module.compile_changed({"cu": module.cuda_command(str(compiler))}, tmp_path / "objects")
        return [Path(path) for path in made["cu"]]

    objects = compiled("8.0 9.0a+PTX")
    assert len(objects) == len(list((SETUP.parent / "cuda").rglob("*.cu"))) > 5
    told = objects[0].read_text()
    for expected in ("arch=compute_80,code=sm_80 ", "code=sm_90a ", "code=compute_90a ", "-DUSE_CUDA ", "-std=c++20 "):
        assert expected in told
    times = [made.stat().st_mtime_ns for made in objects]
    assert compiled("8.0 9.0a+PTX") == objects
    assert [made.stat().st_mtime_ns for made in objects] == times
    compiled("8.0")
    assert "90a" not in objects[0].read_text()  # other options: all are compiled again


def test_a_cuda_part_that_does_not_compile(decide, compiler, tmp_path):
    module, _ = decide(FORCE_CUDA=1, CUDA_HOME=compiler, TORCH_CUDA_ARCH_LIST="1.1")
    with pytest.raises(SystemExit, match=r"torch_gnnscale did not compile: ninja ended with \d"):
        module.compile_changed({"cu": module.cuda_command(str(compiler))}, tmp_path / "objects")


@pytest.mark.parametrize(
    ("options", "host", "flags"),
    [
        ("ccache gcc", "gcc", []), ("/opt/bin/gcc-12", "/opt/bin/gcc-12", []), (None, None, []),
        ("ccache gcc -m64", "gcc", ["-m64"]),
    ],
)  # fmt: skip
def test_a_compiler_of_several_words(decide, toolkit, monkeypatch, options, host, flags):
    monkeypatch.setenv("CXX", "ccache g++")
    monkeypatch.delenv("CC", raising=False)
    module, _ = decide(FORCE_CUDA=0, **({} if options is None else {"CC": options}))
    told = module.cpu_command([*(options or "gcc").split(), "-pthread"]).split()
    assert told[: 3 + len(flags)] == ["ccache", "g++", *flags, "-pthread"]
    assert "gcc" not in told
    told = module.cuda_command(str(toolkit)).split()
    assert (told[told.index("-ccbin") + 1] if host else None) == host
    assert ("-ccbin" in told) == (host is not None)


def test_names_of_architectures_are_refused(decide):
    with pytest.raises(SystemExit, match=r"architectures such as 8\.0;9\.0\+PTX, found 'Ampere' in '8.0;Ampere'"):
        decide(FORCE_CUDA=0)[0].architecture_flags("8.0;Ampere")


def test_links_of_the_readme_hold_on_an_index(decide):
    module, _ = decide(FORCE_CUDA=0)
    home = re.search(r'^Repository = "(.+)"', SETUP.with_name("pyproject.toml").read_text(), re.MULTILINE)[1]
    pattern = r"(!?)\[[^]]*\]\(([^)]+)\)"
    here = re.findall(pattern, SETUP.with_name("README.md").read_text())
    there = re.findall(pattern, module.description())
    assert len(here) == len(there) > 20
    for (image, target), (_, link) in zip(here, there, strict=True):
        if target.startswith("https://"):
            assert link == target
        else:
            assert (SETUP.parent / target.split("#")[0]).exists()
            assert link == f"{home}/{'raw' if image else 'blob'}/main/{target}"


@pytest.mark.parametrize(("absent", "expected"), [
    ("torch", r'here is none: first pip install "torch>=2\.11".*--no-build-isolation'),
    ("setuptools.command.bdist_wheel", r'is built by setuptools 77 or later: pip install "setuptools>=77"'),
])  # fmt: skip
def test_a_build_without_what_it_needs_says_what_to_install(decide, monkeypatch, absent, expected):
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(SystemExit, match=expected):
        decide(FORCE_CUDA=0)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "expected"), [
    ("setup.py", "torch_gnnscale is built against the torch that is installed, and here is none: first "),
    ("build_backend.py", "torch_gnnscale is built by setuptools against the torch that is installed, and here is no "),
])  # fmt: skip
def test_an_environment_without_packages_is_told_what_to_install(tmp_path, program, expected):
    """A new environment has neither torch nor, with older Pythons, a setuptools that knows wheels; with newer ones, no
    setuptools at all."""
    if not SETUP.is_file():
        pytest.skip("no checkout: setup.py is not here")
    venv.create(tmp_path / "env", symlinks=True)
    command = [tmp_path / "env/bin/python", "-S", SETUP.with_name(program), "--version"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.startswith(expected)
    assert len(run.stderr.splitlines()) == 1
