"""Files as tensors: copy-on-write, of any size, and nothing of them remains."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.mapped import resident_bytes

from torch_gnnscale import FeatureStore, files, ops


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "bytes"
    file.write_bytes(bytes(range(256)) * 100)
    return file


@pytest.mark.parametrize(
    ("offset", "num_bytes"), [(0, None), (0, 10), (3, 5), (4095, 4098), (8192, 100), (25_599, 1), (25_600, None)]
)
def test_the_bytes_of_a_part(file, offset, num_bytes):
    found = ops.map_file(file, offset, num_bytes)
    assert found.dtype == torch.uint8
    assert bytes(found.tolist()) == file.read_bytes()[offset : None if num_bytes is None else offset + num_bytes]


def test_the_file_never_changes(file):
    file.chmod(0o444)
    before = file.read_bytes()
    one, other = ops.map_file(str(file)), ops.map_file(file, 5)
    one.zero_()
    assert one.sum() == 0
    assert bytes(other.tolist()) == before[5:] == file.read_bytes()[5:]


def test_a_name_that_is_no_text(tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff"
    with open(name, "wb") as file:
        file.write(b"abc")
    assert bytes(ops.map_file(os.fsdecode(name)).tolist()) == b"abc"


def test_bad_files(tmp_path, file):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ops.map_file(tmp_path / "nowhere")
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        ops.map_file(tmp_path)
    for arguments in ((0, 25_601), (25_600, 1), (30_000, 1)):
        with pytest.raises(ValueError, match=rf"bytes: expected at least {sum(arguments)} bytes, found 25600"):
            ops.map_file(file, *arguments)
    with pytest.raises(ValueError, match="bytes: expected at least 30000 bytes, found 25600"):
        ops.map_file(file, 30_000)  # up to the end, which lies before
    with pytest.raises(ValueError, match="offset: expected 0 <= offset"):
        ops.map_file(file, -1)


def test_a_file_that_cannot_be_mapped():
    file = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not file.exists() or file.stat().st_size == 0:
        pytest.skip(f"this system has no {file}")
    with pytest.raises(OSError, match=r"enabled: expected a file that can be mapped, .*: No such device$"):
        ops.map_file(file)


def mappings_and_descriptors(file) -> tuple[int, int]:
    with open("/proc/self/maps") as lines:
        mapped = sum(line.rstrip().endswith(str(file)) for line in lines)
    return mapped, len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system has no /proc")
def test_nothing_remains(file):
    before = mappings_and_descriptors(file)
    assert before[0] == 0
    for _ in range(100):
        tensor = ops.map_file(file, 4100, 9000)
        view = tensor.view(torch.int16)[5:]
        del tensor
        assert mappings_and_descriptors(file)[0] == 1  # the view holds it
        assert view[0] == 256 * 15 + 14
        del view
    assert mappings_and_descriptors(file) == before


def test_a_store_larger_than_the_memory(tmp_path):
    with open("/proc/meminfo") as lines:
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    rows = 2 * (kib["MemTotal"] + kib["SwapTotal"])  # of 1 KiB
    store = FeatureStore()
    store.put_tensor(torch.zeros(4, 256), group_name=None, attr_name="x", index=None)
    store.save(tmp_path / "store")
    with open(tmp_path / "store" / "0.npy", "r+b") as file:  # with holes that take no space on the disk
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, 256)}
        np.lib.format.write_array_header_1_0(file, header)
        try:
            file.truncate(file.tell() + rows * 1024)
        except OSError as error:
            pytest.skip(f"no sparse file of {rows} KiB: {error}")
    manifest = tmp_path / "store" / "gnnscale.json"
    edited = json.loads(manifest.read_text())
    edited["arrays"]["0"]["shape"] = [rows, 256]
    del edited["crc32"]
    manifest.write_text(json.dumps({**edited, "crc32": files._checksum(edited)}))
    opened = FeatureStore.open(tmp_path / "store", verify=False)
    assert opened.get_tensor_size(group_name=None, attr_name="x") == (rows, 256)
    assert opened[None, "x", torch.tensor([5, rows - 1])].abs().sum() == 0


@pytest.mark.parametrize("num_bytes", [1, 5000, (2 << 20) - 1, 2 << 20, (6 << 20) + 4097])
def test_shared_mappings_write_to_the_file(num_bytes):
    descriptor = os.memfd_create("shared")
    os.ftruncate(descriptor, num_bytes)
    first, second = (ops.map_shared(descriptor, num_bytes) for _ in range(2))
    assert first.data_ptr() != second.data_ptr()
    if num_bytes >= 2 << 20:
        assert first.data_ptr() % (2 << 20) == second.data_ptr() % (2 << 20) == 0
    first.copy_(torch.arange(num_bytes) % 251)
    os.close(descriptor)
    assert torch.equal(second, (torch.arange(num_bytes) % 251).to(torch.uint8))
    del first
    assert int(second[-1]) == (num_bytes - 1) % 251
    del second
    assert "memfd:shared" not in Path("/proc/self/maps").read_text()


def test_files_that_cannot_be_shared(file):
    with open(file, "rb") as stream:
        with pytest.raises(ValueError, match=r"^descriptor: expected a file of at least 25601 bytes, found 25600$"):
            ops.map_shared(stream.fileno(), 25_601)
        with pytest.raises(ValueError, match=r"^num_bytes: expected 1 <= num_bytes <= "):
            ops.map_shared(stream.fileno(), 0)
        for num_bytes in (100, 25_600):  # open for reading alone
            with pytest.raises(
                OSError, match=r"expected a file that can be mapped, found \d+ bytes: Permission denied"
            ):
                ops.map_shared(stream.fileno(), num_bytes)


@pytest.mark.skipif(not os.path.exists("/proc/self/pagemap"), reason="this system has no /proc/self/pagemap")
def test_pages_that_are_released_come_back(tmp_path):
    file = tmp_path / "numbers"
    expected = torch.arange(200_000)
    file.write_bytes(expected.numpy().tobytes())
    rows = ops.map_file(file).view(torch.int64).view(-1, 2)
    assert torch.equal(rows.view(-1), expected)
    assert resident_bytes(file) >= rows.nbytes
    ops.release_pages(rows[:, 0])
    assert resident_bytes(file) == 0
    assert torch.equal(rows.view(-1), expected)
    rows[50_000, 1] = -7
    ops.release_pages(rows[:, 0])
    assert resident_bytes(file) == os.sysconf("SC_PAGE_SIZE")  # the page that was written
    expected[100_001] = -7
    assert torch.equal(rows.view(-1), expected)
    ops.release_pages(rows[:0])


def test_memory_that_is_no_files_is_not_released():
    for tensor in (torch.arange(300_000), ops.empty_bytes(1 << 20).fill_(3), torch.arange(10)[::3]):
        before = tensor.clone()
        ops.release_pages(tensor)
        assert torch.equal(tensor, before)
    with pytest.raises(ValueError, match="tensor: expected a CPU tensor, found meta"):
        ops.release_pages(torch.ones(4, device="meta"))
