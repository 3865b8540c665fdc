"""Copies of parts on a machine's own disk, and directories on network file systems."""

import errno
import os
import re
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.buckets import PLACES, place
from helpers.data import make_data
from helpers.forked import run
from helpers.refused import refuses

from torch_gnnscale import files
from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed.staging import network_file_system, stage
from torch_gnnscale.partition import open_parts, write


@pytest.fixture
def parts(tmp_path):
    """A directory of three parts."""
    write(make_data(), tmp_path / "parts", 3, method="random", graph_attrs=["x"])
    return tmp_path / "parts"


def test_a_copy_has_what_a_machine_needs(parts, tmp_path):
    copy = stage(parts, tmp_path / "disk", [2, 0, 2])
    names = {"attrs", "book", "complete", "graph", "ids", "part-00000", "part-00002"}
    assert {folder.name for folder in copy.iterdir()} == names
    for name in names:
        for file in (parts / name).iterdir():
            assert (copy / name / file.name).read_bytes() == file.read_bytes()
    with open_parts(copy) as opened:
        assert opened.fingerprint == open_parts(parts).fingerprint
        opened.part(0), opened.part(2)


@pytest.mark.parametrize("kind", PLACES)
def test_parts_come_from_a_remote_file_system(parts, tmp_path, monkeypatch, kind):
    with place(kind, monkeypatch) as (url, remote):
        remote.put(str(parts), f"{url}/parts", recursive=True)
        expected = stage(parts, tmp_path / "here", [0, 2])
        copy = stage(f"{url}/parts", tmp_path / "disk", lambda count: [0, count - 1])
        there, here = (
            {str(f.relative_to(of)): f.read_bytes() for f in of.rglob("*") if f.is_file()} for of in (copy, expected)
        )
        assert there == here
        assert stage(f"{url}/parts", tmp_path / "disk", [0, 1]) == copy
        (copy / "part-00001" / files.MANIFEST).write_bytes((copy / "part-00000" / files.MANIFEST).read_bytes())
        with refuses(ValueError, f"{copy}/part-00001: expected a copy of {url}/parts/part-00001, found something else; "
                                 f"remove it"):  # fmt: skip
            stage(f"{url}/parts", tmp_path / "disk", [1])
        name = next(file for file in remote.find(f"{url}/parts/ids") if file.endswith(".npy"))
        remote.pipe_file(name, remote.cat_file(name)[:-1] + b"x")
        with pytest.raises(ValueError, match="checksum of block 0"):
            stage(f"{url}/parts", tmp_path / "other", [0])
        with pytest.raises(FileNotFoundError):
            stage(f"{url}/nothing", tmp_path / "other", [0])
        with refuses(ValueError, f"path: expected a folder, or stage= beside a URL, found '{url}/parts'"):
            open_part(f"{url}/parts")
        write(make_data(), tmp_path / "one", 1, method="ranges")
        remote.put(str(tmp_path / "one"), f"{url}/one", recursive=True)
        with open_part(f"{url}/one", stage=tmp_path / "disk") as part:
            assert torch.equal(part.features.get_tensor(group_name=None, attr_name="x", index=None), make_data().x)


@pytest.mark.parametrize("below", [".", "disk", "disk/../graph"])
def test_a_directory_is_not_copied_into_itself(parts, below):
    before = sorted(parts.rglob("*"))
    with refuses(ValueError, f"to: expected a directory outside {parts}, found {parts / below}"):
        stage(parts, parts / below, [0])
    assert sorted(parts.rglob("*")) == before


@pytest.mark.slow
def test_what_is_there_is_not_copied_again(parts, tmp_path):
    copy = stage(parts, tmp_path / "disk", [0])
    before = {folder.name: folder.stat().st_ino for folder in copy.iterdir()}
    shutil.rmtree(copy / "ids")  # as if a process had been killed before it
    assert stage(parts, tmp_path / "disk", [0, 1]) == copy
    after = {folder.name: folder.stat().st_ino for folder in copy.iterdir()}
    assert {**after, "ids": 0} == {**before, "ids": 0, "part-00001": after["part-00001"]}


@pytest.mark.slow
def test_parts_of_other_rows_have_another_copy(parts, tmp_path):
    data = make_data()
    data.x += 1
    write(data, tmp_path / "others", 3, method="random", graph_attrs=["x"])
    assert stage(parts, tmp_path / "disk", [0]) != stage(tmp_path / "others", tmp_path / "disk", [0])


def flip(file):
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)


def test_damage(parts, tmp_path):
    """Files that are damaged at their source, or in a copy that is there, are refused; no damaged copy is left."""
    copy = stage(parts, tmp_path / "disk", [0])
    (file,) = (copy / "part-00000").glob("rows_0*.npy")
    flip(file)
    with pytest.raises(ValueError, match=rf"^{file}: checksum of block 0 \(64 MiB each\) differs"):
        stage(parts, tmp_path / "disk", [0])
    assert stage(parts, tmp_path / "disk", [0], verify=False) == copy
    (file,) = (parts / "part-00001").glob("rows_0*.npy")
    flip(file)
    with pytest.raises(ValueError, match=r"rows_0.*: checksum of block 0 \(64 MiB each\) differs"):
        stage(parts, tmp_path / "disk", [1])
    assert not (copy / "part-00001").exists()
    assert not [name for name in os.listdir(copy) if name.startswith(files._PARTIAL)]


SLOWLY = """
import shutil, sys, time
from torch_gnnscale.distributed import open_part
from torch_gnnscale.distributed.staging import stage
plain = shutil.copyfile
def slowly(*files):
    time.sleep(0.05)
    plain(*files)
shutil.copyfile = slowly
stage(sys.argv[1], sys.argv[2], [0, int(sys.argv[3])])
"""


def test_a_link_in_place_of_the_lock_is_not_followed(parts, tmp_path):
    """Whatever it leads to stays as it was."""
    copy = stage(parts, tmp_path / "disk", [0])
    lock = copy.with_suffix(".lock")
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    lock.write_text("kept")
    assert stage(parts, tmp_path / "disk", [0]) == copy
    assert lock.read_text() == "kept"
    precious = tmp_path / "precious"
    lock.rename(precious)
    lock.symlink_to(precious)
    expected = f"[Errno {errno.ELOOP}] expected a file of this package, found a link: '{lock}'"
    with refuses(OSError, expected):
        stage(parts, tmp_path / "disk", [0])
    assert precious.read_text() == "kept"


@pytest.mark.slow
def test_a_folder_that_is_no_copy(parts, tmp_path):
    """Whole, by its checksums, but of other parts."""
    copy, data = stage(parts, tmp_path / "disk", [0]), make_data()
    data.x += 1
    write(data, tmp_path / "others", 3, method="random", graph_attrs=["x"])
    shutil.rmtree(copy / "part-00000")
    shutil.copytree(tmp_path / "others" / "part-00000", copy / "part-00000")
    expected = f"{copy}/part-00000: expected a copy of {parts}/part-00000, found something else; remove it"
    for verify in (True, False):
        with refuses(ValueError, expected):
            stage(parts, tmp_path / "disk", [0], verify)


@pytest.mark.slow
def test_two_runs_at_once(parts, tmp_path):
    """The second one waits for what both need, then copies its own part."""
    with ThreadPoolExecutor(2) as pool:
        given = [(str(parts), str(tmp_path / "disk"), str(part)) for part in (1, 2)]
        ended = list(pool.map(lambda arguments: run(SLOWLY, *arguments), given))
    assert [process.returncode for process in ended] == [0, 0]
    waited = f"{tmp_path / 'disk'}: another process copies the same parts there; waiting until it has ended"
    assert sorted(waited in process.stderr for process in ended) == [False, True]
    copy = stage(parts, tmp_path / "disk", [0, 1, 2])
    names = {"attrs", "book", "complete", "graph", "ids", *(f"part-0000{part}" for part in range(3))}
    assert {folder.name for folder in copy.iterdir()} == names


def test_too_little_space(parts, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(
        OSError, match=rf"^{tmp_path}/disk: expected \d+ bytes of free space for a copy of {parts}, found 10$"
    ) as raised:
        stage(parts, tmp_path / "disk", [0])
    enough = int(re.search(r"expected (\d+)", str(raised.value))[1])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=enough))
    copy = stage(parts, tmp_path / "disk", [0])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    assert stage(parts, tmp_path / "disk", [0]) == copy  # what is there needs no space


@pytest.mark.parametrize(
    ("kind", "found"),
    [("nfs4", "nfs4"), ("fuse.sshfs", "fuse.sshfs"), ("lustre", "lustre"), ("fuseblk", None), ("ext4", None)],
)
def test_network_file_systems(tmp_path, kind, found):
    device = os.stat(tmp_path).st_dev
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(
        "22 27 0:999999 / /proc rw,relatime - nfs proc rw\n"
        f"36 35 {os.major(device)}:{os.minor(device)} / /mnt rw,noatime master:1 shared:2 - {kind} host:/x rw\n"
    )
    assert network_file_system(tmp_path, tmp_path) == found


def test_this_file_system(tmp_path):
    assert network_file_system(tmp_path) is None
    assert network_file_system(tmp_path, tmp_path) is None  # no mountinfo
