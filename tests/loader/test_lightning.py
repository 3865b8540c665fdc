"""Lightning and Accelerate with our loaders, and PyG's Lightning data modules, in interpreters of their own."""

import pytest
from helpers import forked
from helpers.data import environment
from helpers.slow import NIGHTLY

MODULES = """
import sys
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
@pytest.mark.parametrize(
    ("workers", "code"), [("0", LINKS + NODES + PATCHED), NIGHTLY("2", LINKS + NODES)], ids=["0", "2"]
)
def test_data_modules_of_pyg(workers, code):
    done = forked.run(MODULES + code, workers, **environment())
    assert done.returncode == 0, done.stderr


# Lightning's Trainer ##################################################################################################

FIT = """
import sys
import pytorch_lightning as lightning
import torch
from helpers.data import make_data
from torch_gnnscale import NeighborLoader

options, trainer_options, folder = eval(sys.argv[1]), eval(sys.argv[2]), sys.argv[3]
data = make_data()

def made(**more):
    return NeighborLoader(data, [3, 2], torch.arange(128), batch_size=16, shuffle=True, seed=3, **more)

def plain(batch):
    return batch.n_id.tolist(), batch.e_id.tolist(), batch.input_id.tolist()

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), []
    def training_step(self, batch, number):
        self.seen.append(plain(batch))
        return (self.weight * batch.x.float().mean()).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

class Batches(lightning.LightningDataModule):
    def train_dataloader(self):
        return made(**options)

class Save(lightning.Callback):
    def on_train_batch_end(self, trainer, *others):
        if trainer.global_step in (3, 5):
            trainer.save_checkpoint(f"{folder}/step{trainer.global_step}.ckpt")
        if trainer.global_step == steps:
            trainer.save_checkpoint(f"{folder}/last_step.ckpt")
    def on_train_epoch_end(self, trainer, module):
        if trainer.current_epoch == 0:
            trainer.save_checkpoint(f"{folder}/epoch.ckpt")

def fit(checkpoint=None, callbacks=()):
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=list(callbacks), **trainer_options,
    )
    trainer.fit(module, Batches(), ckpt_path=checkpoint)
    return module.seen, trainer.global_rank

ranks = trainer_options.get("devices", 1)
steps = 8 // ranks
found, rank = fit(callbacks=[Save()])
whole = made(shard=False)
expected = [plain(batch) for _ in range(3) for batch in whole]
if trainer_options.get("use_distributed_sampler", True) and ranks > 1:  # Lightning deals the inputs to the ranks
    seeds = torch.tensor([batch[2] for batch in found]).view(3, -1)
    every = [torch.empty_like(seeds) for _ in range(ranks)]
    torch.distributed.all_gather(every, seeds)
    assert torch.equal(torch.cat(every, dim=1).sort().values, torch.arange(128).expand(3, -1))
else:
    assert found == expected[rank::ranks]
for name, done in (("step3", 3), ("step5", 5), ("last_step", steps), ("epoch", steps)):
    resumed, _ = fit(f"{folder}/{name}.ckpt")
    assert resumed == found[done:], name
if ranks > 1:
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("reload", [0, 1], ids=["one loader", "a loader per epoch"])
def test_a_trainer_goes_on_where_a_checkpoint_was_saved(tmp_path, reload):
    trainer = {"reload_dataloaders_every_n_epochs": reload}
    done = forked.run(FIT, "{'prefetch': 4}", str(trainer), str(tmp_path), **environment())
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("dealt", "reload"), [(True, 0), *map(NIGHTLY, (True, False, False), (1, 0, 1))], ids=str)
def test_trainers_on_two_ranks(tmp_path, dealt, reload):
    trainer = {
        "devices": 2, "strategy": "ddp", "use_distributed_sampler": dealt, "reload_dataloaders_every_n_epochs": reload
    }  # fmt: skip
    for done in forked.run_ranks(2, FIT, "{}" if dealt else "{'shard': True}", str(trainer), str(tmp_path)):
        assert done.returncode == 0, done.stderr


# Accelerate ###########################################################################################################

PREPARED = """
import sys
import torch
from accelerate import Accelerator
from accelerate.data_loader import skip_first_batches
from helpers.data import make_data
from torch_gnnscale import NeighborLoader

data, accelerator = make_data(), Accelerator(cpu=True)
rank, world = accelerator.process_index, accelerator.num_processes

def made():
    return NeighborLoader(data, [3, 2], torch.arange(128), batch_size=16, shuffle=True, seed=3, shard=False)

def plain(batches):
    return [(batch.n_id.tolist(), batch.e_id.tolist(), batch.input_id.tolist(), batch.x.tolist()) for batch in batches]

loader, prepared = made(), accelerator.prepare(made())
for _ in range(3):
    assert plain(prepared) == plain(loader)[rank::world]
assert plain(skip_first_batches(accelerator.prepare(made()), 1)) == plain(made())[rank::world][1:]
accelerator.wait_for_everyone()
accelerator.end_training()
"""


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_prepared_loaders_deal_the_loader_s_batches(world):
    for done in forked.run_ranks(world, PREPARED, **environment()):
        assert done.returncode == 0, done.stderr
