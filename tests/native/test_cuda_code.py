"""What nvcc makes of the kernels that gather or add rows, where it is there: no GPU is needed to see how they read
memory."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from torch.utils import cpp_extension

SOURCES = Path(__file__).parents[2] / "cuda"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(shutil.which, ("nvcc", "c++filt"))) or not SOURCES.is_dir(),
        reason="needs nvcc and c++filt on PATH, and the sources",
    ),
]


def ptx_of(source: str, folder: Path) -> dict[str, str]:
    """The PTX of each kernel of a source, by name."""
    ptx = folder / "code.ptx"
    include = [f"-I{path}" for path in cpp_extension.include_paths()]
    nvcc = ["nvcc", "-ptx", "-arch=sm_90", "-std=c++20", "-O3", "-DUSE_CUDA",
            "-DTORCH_TARGET_VERSION=0x020b000000000000"]  # fmt: skip
    subprocess.run([*nvcc, *include, SOURCES / source, "-o", ptx], check=True, capture_output=True)
    names = subprocess.run(["c++filt"], input=ptx.read_text(), capture_output=True, text=True, check=True).stdout
    found = re.findall(
        r"\.entry void gnnscale::(?:\(anonymous namespace\)::)?(\w+<.*?>)\(.*?\n\)(.*?)\n\}\n", names, re.S
    )
    return dict(found)


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """The PTX of each kernel that gathers rows."""
    return ptx_of("gather/gather_cuda.cu", tmp_path_factory.mktemp("ptx"))


WORD = {
    "uint4": "v4.u32",
    "unsigned long": "u64",
    "unsigned int": "u32",
    "unsigned short": "u16",
    "unsigned char": "u8",
}


def test_rows_are_read_in_words_as_wide_as_they_allow(code):
    """16 bytes at a time where rows are aligned so, those of 16-bit numbers that are widened included."""
    seen = set()
    for name, body in code.items():
        kept, widened = re.search(r"Keep<(.*?)>", name), re.search(r"Widen<.*?, (\d)>", name)
        # Ids and places are read beside them.
        loads = set(re.findall(r"ld\.global\.(?:nc\.)?([\w.]+)", body)) - {"s32", "s64"}
        word = WORD[kept[1]] if kept else {"8": "v4.u32", "2": "v2.u16", "1": "u16"}[widened[1]]
        assert loads - {"u32", "u64"} <= {word}, (name, loads)
        assert word in loads, (name, loads)
        seen.add(word)
    assert seen == {"v4.u32", "v2.u16", *WORD.values()}


def accesses(kind: str, body: str) -> set[str]:
    """How a kernel loads (ld) or stores (st) memory of the GPU, but for ids, bounds and addresses."""
    return set(re.findall(rf"{kind}\.global\.(?:nc\.)?([\w.]+)", body)) - {"s32", "s64", "u64"}


READ_AS = {
    ("float", "1"): "f32", ("float", "4"): "v4.f32", ("double", "1"): "f64", ("double", "2"): "v2.f64",
    ("BFloat16", "1"): "u16", ("BFloat16", "8"): "v4.u32", ("Half", "1"): "u16", ("Half", "8"): "v4.u32",
}  # fmt: skip
"""By type of the rows and items at a time: how a row is read."""


def test_sums_are_those_of_the_cpu(tmp_path):
    """No product is fused with a sum, nothing is added by atomics, and aligned rows are read 16 bytes at a time."""
    code = ptx_of("aggregate/aggregate_cuda.cu", tmp_path)
    seen, dots = set(), 0
    for name, body in code.items():
        if "Attend" in name:
            continue
        assert not re.search(r"\bfma\.rn|\batom\.|\bred\.", body), name
        if "dot_kernel" in name:  # eight lanes read 32 bytes of each row together, of 16-bit rows 16
            assert "shfl.sync.idx" in body, name
            of_rows = {READ_AS[item, "1"] for item in re.findall(r"float|double|BFloat16|Half", name)}
            assert accesses("ld", body) == of_rows, name
            dots += 1
            continue
        item, count = re.search(r"<(?:gnnscale::)?(float|double|BFloat16|Half), (?:.*, )?(\d)>", name).groups()
        words = READ_AS[item, count]
        if "JoinPieces" in name and item in ("BFloat16", "Half"):
            words = {"1": "f32", "8": "v4.f32"}[count]  # sums of pieces
        loads = re.findall(r"ld\.global\.(?:nc\.)?([\w.]+)", body)
        assert words in loads, (name, loads)
        seen.add((item, count))
    assert (seen, dots) == ({*READ_AS}, 6)


def test_rows_of_splits_are_read_and_written_in_words(tmp_path):
    """Added rows and rows that dropout passes: 16 bytes at a time where they are aligned to that; dropout, which draws
    for four numbers at once, takes 8 bytes of 16-bit rows."""
    seen = []
    for source, kernel in (
        ("shuffle/shuffle_cuda.cu", "add_kernel"),
        ("random/dropout_rows_cuda.cu", "dropout_kernel"),
    ):
        for name, body in ptx_of(source, tmp_path).items():
            if kernel not in name:
                continue
            item, count = re.search(r"<(?:gnnscale::)?(float|double|BFloat16|Half), (?:\w+, )?(\d)>", name).groups()
            word = READ_AS.get((item, count), "v4.u16")
            assert accesses("ld", body) == accesses("st", body) == {word}, name
            seen.append((kernel, item, count))
    assert len(seen) == len({*seen}) == 16
