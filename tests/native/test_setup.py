"""What setup.py decides, without building: the CUDA part, and the description for a package index."""

import importlib.util
import re
import sys
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
    for name in ("CUDA_HOME", "_check_cuda_version"):
        monkeypatch.setattr(cpp_extension, name, getattr(cpp_extension, name))
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


@pytest.mark.parametrize("of_torch", [None, "12.8", "99.1"])
def test_a_toolkit_of_another_version_than_torchs(decide, toolkit, monkeypatch, of_torch):
    monkeypatch.setattr(torch.version, "cuda", of_torch)
    module, libraries = decide(CUDA_HOME=toolkit)
    assert libraries == ["_C", "_CUDA"]
    assert f"{toolkit}, CUDA 99.1" in module.CUDA_NOTE
    assert ("torch has 12.8: no match is needed" in module.CUDA_NOTE) == (of_torch == "12.8")
    cpp_extension._check_cuda_version("g++", torch.torch_version.TorchVersion("12.2.0"))  # what torch's build asks


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


def test_a_build_without_torch_says_what_to_install(decide, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match=r'none is: pip install "torch>=2\.11"'):
        decide(FORCE_CUDA=0)
