"""Each option of ``open_part`` reaches what it is for."""

import pytest
import torch
from helpers.parts import HERE, homogeneous, loader_of_part

from torch_gnnscale import partition
from torch_gnnscale.comm.mesh import Grid
from torch_gnnscale.comm.steps import Steps
from torch_gnnscale.distributed import open_part, part
from torch_gnnscale.distributed.buffer import Kept


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory of one part of edges."""
    path = tmp_path_factory.mktemp("options") / "parts"
    partition.write(homogeneous(), path, parts=1, method="ranges", topology="partitioned")
    return path


def opened(folder, look, **options):
    with open_part(folder, **options) as found:
        return look(found)


def kept(found):
    return found.features._kept


def tiers(found):
    return None if found.features.tiers is None else [tier.name for tier in found.features.tiers.plan.tiers]


OPTIONS = {
    "none": (kept, {}, Kept(None, None, None)),
    "buffer": (kept, {"buffer": "2KiB"}, Kept("2KiB", None, None)),
    "policy": (kept, {"buffer": 0.5, "policy": "static"}, Kept(0.5, "static", None)),
    "policy options": (kept, {"buffer": 0.5, "policy_options": {"delta": 3}}, Kept(0.5, None, {"delta": 3})),
    "no tiers": (tiers, {}, None),
    "tiers": (tiers, {"tiers": {"host": "25%", "hotness": "out_degree"}}, ["host", "disk"]),
    "all rows in memory": (tiers, {"tiers": {"hotness": "out_degree"}}, ["host"]),
    "timeout": (lambda found: found._rendezvous._timeout, {"timeout": 7.5}, 7.5),
    "no timeout": (lambda found: found._rendezvous._timeout, {}, 600.0),
    "auto": (lambda found: (found._transport, found.features.rows_here), {}, ("auto", False)),
    "rows here": (lambda found: (found._transport, found.features.rows_here), HERE, (HERE["transport"], True)),
    "copies": (lambda found: (found._grid, found.ranks.consecutive), {}, (Grid(1, 1), "copies")),
    "parts": (lambda found: (found._grid, found.ranks.consecutive), {"consecutive": "parts"},
              (Grid(1, 1, "parts"), "parts")),
}  # fmt: skip


@pytest.mark.parametrize(("look", "options", "expected"), OPTIONS.values(), ids=OPTIONS)
def test_each_option_is_seen(folder, look, options, expected):
    assert opened(folder, look, **options) == expected


def test_a_stage_is_opened_in_place_of_the_directory(folder, tmp_path):
    path, verified = opened(folder, lambda found: (found.parts.path, found.parts._verify), stage=tmp_path / "disk")
    assert path.parent == tmp_path / "disk"
    assert not verified  # the copy was
    assert opened(folder, lambda found: found.parts.path) == folder


@pytest.mark.parametrize("verify", [True, False])
def test_checksums_are_compared_if_it_is_said(tmp_path, verify):
    partition.write(homogeneous(), tmp_path / "parts", parts=1, method="ranges")
    (file,) = (tmp_path / "parts" / "part-00000").glob("rows_0.npy")
    intact = file.read_bytes()
    file.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    if verify:
        with pytest.raises(ValueError, match=rf"^{file}: checksum of block 0 \(64 MiB each\) differs: the file is"):
            open_part(tmp_path / "parts")
    else:
        assert opened(tmp_path / "parts", lambda found: found.stored.number, verify=False) == 0


def test_an_error_ends_the_meeting(folder, monkeypatch):
    closed = []
    monkeypatch.setattr(part.Rendezvous, "close", lambda rendezvous: closed.append(rendezvous.rank))
    with pytest.raises(ValueError, match=r"^transport: "):
        open_part(folder, transport="mpi")
    assert closed == [0]


def test_loaders_and_their_steps_are_those_of_the_part(folder):
    with open_part(folder) as found:
        unused, loader = loader_of_part(found), loader_of_part(found, seed_order="global", prefetch=0)
        count = sum(1 for _ in loader)
        assert (count, len(unused)) == (len(loader), len(loader))
        assert [type(steps) for steps in found._steps] == [Steps] * 2
        stats = found.stats()
        rounds = {purpose: entry["rounds"] for purpose, entry in stats.items() if entry["rounds"]}
        assert rounds == {"requests": 2 * count, "picks": 2 * count, "ids": count, "rows": count}
        assert stats["headers"]["headers"] >= count
        identity = found._steps[0]._identity
        assert identity["partition book"] == found.parts.fingerprint
        found._open_steps({"more": 3}, by_column=True)
        assert found._steps[2]._identity == {**identity, "more": 3}
    assert all(steps._closed for steps in found._steps)
    assert torch.equal(found.stored.user_ids[None], torch.arange(200))
