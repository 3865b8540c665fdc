"""What ranks of one machine do once for all of them: comparing checksums, and copying parts to a disk."""

import os
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.cluster import cluster
from helpers.parts import as_plain, homogeneous, loader_of_part
from torch import distributed as dist

from torch_gnnscale import files, partition
from torch_gnnscale.distributed import open_part, staging


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A directory of one part."""
    path = tmp_path_factory.mktemp("parts") / "parts"
    partition.write(homogeneous(), path, parts=1, method="random")
    return str(path)


def loader_of(part):
    return loader_of_part(part)


def verified(paths):
    """How many files' checksums this rank has compared."""
    load, found = files.load, []

    def counted(path, kind, verify=True):
        found.extend([path] * (verify and kind != "partition-book"))
        return load(path, kind, verify)

    files.load = counted
    try:
        with open_part(paths[dist.get_rank()]):
            return sorted(path.name for path in found)
    finally:
        files.load = load


@pytest.mark.slow
def test_checksums_are_compared_once_per_machine(parts, one, tmp_path):
    shared = ["complete", "graph", "ids"]
    found = cluster(2).run(verified, [one, one])
    assert found == [[*shared, "part-00000"], ["complete"]]
    assert cluster(2).run(verified, [parts, parts]) == [["attrs", *shared, "part-00000"], ["complete", "part-00001"]]
    shutil.copytree(one, tmp_path / "copy")
    assert cluster(2).run(verified, [one, str(tmp_path / "copy")]) == [[*shared, "part-00000"]] * 2


def batches(path, stages):
    """(the directory that was opened, the parts in it, the batches of an epoch)"""
    with open_part(path, stage=stages[dist.get_rank()]) as part:
        opened = part.parts.path
        return opened, sorted(file.name for file in opened.glob("part-*")), [as_plain(b) for b in loader_of(part)]


@pytest.mark.slow
def test_staged_parts(parts, tmp_path):
    whole = cluster(2).run(batches, parts, [None, None])
    disks = [str(tmp_path / "disk")] * 2
    found = cluster(2).run(batches, parts, disks)
    assert [entry[2] for entry in found] == [entry[2] for entry in whole]
    assert found[0][0] == found[1][0]
    assert found[0][0].parent == tmp_path / "disk"
    assert found[0][1] == ["part-00000", "part-00001"]
    assert cluster(2).run(batches, parts, disks) == found
    apart = cluster(2).run(batches, parts, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert [entry[1:] for entry in apart] == [([f"part-0000{rank}"], whole[rank][2]) for rank in range(2)]


@pytest.mark.parametrize("rank", range(2))
def test_a_machine_copies_the_parts_of_its_ranks(parts, tmp_path, rank):
    machines = ["this", "the other"] if rank == 0 else ["the other", "this"]
    rendezvous = SimpleNamespace(
        rank=rank, world=2, machines=machines, gather=lambda value: [value] * 2, all_made=lambda make: make()
    )
    copy = staging.staged(Path(parts), tmp_path, rendezvous, True, "copies")
    assert [folder.name for folder in copy.glob("part-*")] == [f"part-0000{rank}"]
    with (copy / f"part-0000{rank}" / "rows_0.npy").open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\x07")
    assert staging.staged(Path(parts), tmp_path, rendezvous, False, "copies") == copy
    with pytest.raises(ValueError, match=r"rows_0.npy: checksum of block 0 \(64 MiB each\) differs"):
        staging.staged(Path(parts), tmp_path, rendezvous, True, "copies")


def test_ranks_of_which_some_have_no_stage(parts, tmp_path):
    text = "ValueError: stage: expected a folder on all ranks or on none, found [True, False]"
    assert cluster(2).results(batches, parts, [str(tmp_path), None]) == [(False, text)] * 2


def test_a_copy_that_cannot_be_made(parts, tmp_path):
    (tmp_path / "file").touch()
    first, second = cluster(2).results(batches, parts, [str(tmp_path), str(tmp_path / "file" / "disk")])
    assert first == second
    assert first[1].startswith("ValueError: rank 1: NotADirectoryError: ")


def warned(path):
    """The warnings of this rank, if all file systems were networks'."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as found:
        patch.setattr(staging, "network_file_system", lambda _: "nfs4")
        with open_part(path):
            return [(str(warning.message), warning.filename) for warning in found]


def test_a_network_file_system(parts):
    first, second = cluster(2).run(warned, parts)
    assert second == []
    ((text, file),) = first
    assert file == __file__
    assert text.startswith(
        f"{parts}: expected a disk of this machine, found a file system of type nfs4, from which pages"
    )
    assert "open_part(..., stage=DIR), or gnnscale train --stage DIR, copies what this" in text
