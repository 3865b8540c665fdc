"""Loaders where a process group exists."""

import os
import warnings

import pytest
import torch
import torch.distributed
from helpers.cluster import cluster
from helpers.data import make_data, plain
from helpers.slow import SLOW
from torch.utils.data import DistributedSampler

from torch_gnnscale import NeighborLoader


def loader_of(**options):
    return NeighborLoader(make_data(), [3], torch.arange(40), batch_size=10, seed=1, **options)


def rank_main(folder):
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if world > 1:
        with pytest.warns(UserWarning, match=rf"^torch.distributed has {world} ranks, and this loader"):
            loader = loader_of()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            loader = loader_of()
    torch.save([plain(batch) for batch in loader], os.path.join(folder, f"{world}-{rank}.pt"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        loader_of(shard=False)
        share = loader_of(sampler=DistributedSampler(range(40), world, rank, shuffle=False))
    assert sum(batch.batch_size for batch in share) == 40 // world


@pytest.mark.parametrize("world", [SLOW(1), 2])
def test_a_process_group_changes_no_batch_and_several_ranks_are_told_of(tmp_path, world):
    cluster(world).run(rank_main, str(tmp_path))
    expected = [plain(batch) for batch in loader_of()]
    for rank in range(world):
        assert torch.load(tmp_path / f"{world}-{rank}.pt") == expected
