"""Which files of a directory of parts a rank opens: those that all ranks share, and its own part's."""

import functools
import sys
from pathlib import Path

import pytest
from helpers.cluster import cluster
from helpers.parts import homogeneous, loader_of_part
from helpers.slow import SLOW, quick

from torch_gnnscale import partition
from torch_gnnscale.distributed import open_part

SHARED = {
    "replicated": ["attrs", "book", "complete", "graph", "ids"],
    "partitioned": ["attrs", "book", "complete", "ids"],
}
_opened: list[str] = []


def watch(event, arguments):
    if event == "open":
        _opened.append(str(arguments[0]))


@functools.cache
def watched():
    """The files that this process opens from the first call on."""
    sys.addaudithook(watch)  # for ever
    return _opened


def touched(path, options):
    """(This rank's part, in which folders it opened files during an epoch, of which folders it has mapped files)."""
    watched().clear()
    with open_part(path, **options) as part:
        assert list(loader_of_part(part))
        maps = Path("/proc/self/maps").read_text().splitlines()
        return part.ranks.part, folders(watched(), path), folders([row[row.find("/") :] for row in maps], path)


def folders(files, path):
    return sorted({Path(file).relative_to(path).parts[0] for file in files if file.startswith(f"{path}/")})


@pytest.mark.parametrize("topology", quick(list(SHARED), "partitioned"))
@pytest.mark.parametrize(
    ("world", "options"),
    [
        (2, {}),
        SLOW(2, {"buffer": 0.25, "policy": "lookahead"}),
        SLOW(2, {"tiers": {"host": "25%"}}),
        SLOW(4, {}),
        SLOW(4, {"consecutive": "parts", "tiers": {}}),
    ],
)  # fmt: skip
def test_a_rank_opens_what_is_shared_and_its_own_part(tmp_path, topology, world, options):
    partition.write(
        homogeneous(), tmp_path / "parts", parts=2, method="random", topology=topology, graph_attrs=["time"]
    )
    found = cluster(world).run(touched, str(tmp_path / "parts"), options)
    for rank, (part, opened, mapped) in enumerate(found):
        assert part == (rank % 2 if "consecutive" in options or world == 2 else rank // 2)
        assert opened == [*SHARED[topology], f"part-0000{part}"]
        assert mapped == [folder for folder in opened if folder != "complete"]
