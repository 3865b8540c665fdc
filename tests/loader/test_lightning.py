"""PyG's Lightning data modules with our samplers and loaders, in an interpreter of its own."""

import pytest
from helpers import forked

MODULES = """
import sys, types
try:
    import pytorch_lightning
except ImportError:  # PyG's data modules need no more of it than the class that they derive from
    module = sys.modules["pytorch_lightning"] = types.ModuleType("pytorch_lightning")
    module.LightningDataModule = type("LightningDataModule", (), {})
import torch
from torch_geometric.data.lightning import LightningLinkData, LightningNodeData
from helpers.links import RATES, homogeneous, heterogeneous, pairs_of
import torch_gnnscale
from torch_gnnscale import NeighborSampler

def epochs(module):
    return [[batch for batch in loader()] for loader in (module.train_dataloader, module.val_dataloader)]
"""
LINKS = """
workers = int(sys.argv[1])
for data, edge_type in ((homogeneous(), None), (heterogeneous(), RATES)):
    links = data.edge_index if edge_type is None else data[edge_type].edge_index
    sampler = NeighborSampler(data, [3, 2], exclude_seed_edges=True, strict_negatives=True)
    module = LightningLinkData(
        data, edge_type, input_val_edges=links[:, :40] if edge_type is None else (edge_type, links[:, :40]),
        link_sampler=sampler, batch_size=32, num_workers=workers, neg_sampling="binary", pin_memory=False,
        eval_loader_kwargs={"num_neighbors": [1], "exclude_seed_edges": False, "strict_negatives": False,
                            "subgraph_type": "induced"},
    )
    assert (sampler.exclude_seed_edges, sampler.strict_negatives, sampler.num_neighbors.values) == (True, True, [3, 2])
    later = module.eval_graph_sampler
    assert (later.exclude_seed_edges, later.strict_negatives, later.num_neighbors.values) == (False, False, [1])
    train, evaluation = epochs(module)
    assert len(train) == -(-links.size(1) // 32) and len(evaluation) == 2
    for batches, strict in ((train, True), (evaluation, False)):
        negatives = set()
        for batch in batches:
            link, *ends = (batch,) * 3 if edge_type is None else (batch[edge_type], batch["user"], batch["item"])
            found = torch.stack([end.n_id[index] for end, index in zip(ends, link.edge_label_index)])
            sampled = torch.stack([end.n_id[index] for end, index in zip(ends, link.edge_index)])
            negatives |= pairs_of(found[:, link.edge_label == 0])
            assert bool(pairs_of(found[:, link.edge_label == 1]) & pairs_of(sampled)) != strict
        assert not strict or not negatives & pairs_of(links)
"""
NODES = """
workers = int(sys.argv[1])
data = homogeneous()
module = LightningNodeData(
    data, torch.arange(50), None, torch.arange(10), node_sampler=NeighborSampler(data, [3, 2]), batch_size=16,
    num_workers=workers, pin_memory=False,
)
train, evaluation = epochs(module)
assert sorted(int(i) for batch in train for i in batch.n_id[:batch.batch_size]) == list(range(50))
assert [batch.batch_size for batch in evaluation] == [10]
"""
PATCHED = """
data = homogeneous()
with torch_gnnscale.patch_pyg():
    nodes = LightningNodeData(data, torch.arange(50), loader="neighbor", num_neighbors=[3, 2], batch_size=16)
    links = LightningLinkData(data, data.edge_index, loader="neighbor", num_neighbors=[3, 2], batch_size=32)
    assert len(list(nodes.train_dataloader())) == 4
    assert sum(len(batch.input_id) for batch in links.train_dataloader()) == 300
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("code", [LINKS, NODES], ids=["links", "nodes"])
def test_with_our_sampler(code, workers):
    done = forked.run(MODULES + code, workers)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_with_pyg_patched():
    done = forked.run(MODULES + PATCHED)
    assert done.returncode == 0, done.stderr
