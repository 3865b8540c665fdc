"""Types of numbers, autocast, evaluation between steps, repeated seeds, and what is counted of an exchange."""

import copy

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.cluster import cluster
from helpers.data import make_data
from helpers.narrow import CLASSES, FEATURES, HIDDEN, MODELS
from helpers.slow import quick
from helpers.split import cut_batches, cut_of, random_owners
from test_parallelize import weights_of
from test_parallelize_training import NODES, own_batches

from torch_gnnscale import NeighborLoader
from torch_gnnscale.distributed.meeting import rank_and_world
from torch_gnnscale.nn import narrow, saving
from torch_gnnscale.split import parallelize


def of_type(name, dtype, casts):
    """A step with a model in another type, or under autocast to it, against narrow."""
    rank, world = rank_and_world()
    saving.LEAST_SAVED = 0
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    torch.manual_seed(0)
    model = MODELS[name]().to(torch.float32 if casts else dtype)
    alone = copy.deepcopy(model)
    split, whole_model = parallelize(model), narrow(alone, check=False)
    for whole, batch, own in own_batches(world, rank, 2):
        for of in (whole, batch):
            of.x = of.x.to(torch.float32 if casts else dtype)
        with torch.autocast("cpu", dtype, enabled=casts):
            out, expected = split(batch), whole_model(whole)
        assert out.dtype == expected.dtype
        torch.testing.assert_close(out, expected[own], rtol=bound, atol=bound)
        (out * weights_of(expected)[own]).float().sum().backward()
        (expected * weights_of(expected)).float().sum().backward()
    grads = [(ours.grad, theirs.grad) for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True)]
    largest = max(float(theirs.abs().max()) for _, theirs in grads)
    for ours, theirs in grads:  # partial sums of ranks are rounded
        assert float((ours.double() - theirs.double()).abs().max()) < bound * largest
    split.close()


@pytest.mark.parametrize("dtype", quick({"float32": torch.float32, "bfloat16": torch.bfloat16}, "bfloat16"))
@pytest.mark.parametrize("name", quick(["sage", "gcn", "gat", "pna"], "gcn"))
def test_types_of_numbers(name, dtype):
    cluster(2).run(of_type, name, dtype, False)


@pytest.mark.parametrize("name", quick(["sage", "gcn", "gat", "pna"], "sage"))
def test_autocast(name):
    cluster(2).run(of_type, name, torch.bfloat16, True)


def evaluates():
    """Steps of training, each followed by an evaluation of its batch, with loaders of other hops."""
    rank, world = rank_and_world()
    torch.manual_seed(0)
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 2, CLASSES, dropout=0.5, norm="BatchNorm").double()
    split, alone = parallelize(model), copy.deepcopy(model)
    whole_model, owners = narrow(alone, check=False), random_owners(NODES, world, 3)
    for fanouts in ([2, 2, 2], [4, 3], [-1, -1], [2, 2, 2]):
        loader = NeighborLoader(make_data(), fanouts, torch.arange(0, 200, 3), batch_size=24, seed=1, shard=False)
        whole = next(iter(loader))
        batch, cut = cut_batches(whole, owners, world)[rank], cut_of(whole, owners, world, rank)
        split(batch).sum().backward()
        alone.load_state_dict(model.state_dict())
        alone.eval()
        split.eval()
        expected = whole_model(whole)[cut.local[: cut.num_nodes[0]]].detach()
        for without_gradients in (torch.no_grad, torch.inference_mode):
            with without_gradients():
                torch.testing.assert_close(split(batch), expected, rtol=1e-12, atol=1e-12)
        split.train()
    split.close()


def test_evaluation_between_steps():
    cluster(2).run(evaluates)


def repeated(name):
    rank, world = rank_and_world()
    saving.LEAST_SAVED = 0
    torch.manual_seed(0)
    model = MODELS[name]().double()
    alone = copy.deepcopy(model)
    split, whole_model = parallelize(model), narrow(alone, check=False)
    seeds = torch.tensor([7, 3, 7, 7, 150, 3, 9, 3, 0, 199, 0])
    whole = next(iter(NeighborLoader(make_data(), [4, 3, 2], seeds, batch_size=11, seed=1, shard=False)))
    owners = random_owners(NODES, world, 3)
    batch, cut = cut_batches(whole, owners, world)[rank], cut_of(whole, owners, world, rank)
    own = cut.local[: cut.num_nodes[0]]
    out, expected = split(batch), whole_model(whole)
    torch.testing.assert_close(out, expected[own], rtol=1e-12, atol=1e-12)
    (out * weights_of(expected)[own]).sum().backward()
    (expected * weights_of(expected)).sum().backward()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-12)
    split.close()
    return len(own)


@pytest.mark.parametrize("name", quick(["sage", "gcn", "gat"], "gcn"))
def test_repeated_seeds(name):
    assert sum(cluster(2).run(repeated, name)) == 11


def counted(transport):
    """What a step exchanges that wants the gradient of x: (rounds, bytes sent, bytes received) by purpose, and what
    the shuffle index says of it."""
    rank, world = rank_and_world()
    split = parallelize(pyg_nn.GCN(FEATURES, HIDDEN, 3, CLASSES).double(), transport=transport)
    first, second = own_batches(world, rank, 2)
    split(first[1]).sum().backward()
    before, batch = copy.deepcopy(split.traffic), second[1]
    batch.x.requires_grad_()
    split(batch).sum().backward()
    found = {}
    for purpose, entry in split.traffic.items():
        was = before.get(purpose, type(entry)())
        found[purpose] = tuple(
            getattr(entry, name) - getattr(was, name) for name in ("rounds", "bytes_sent", "bytes_received")
        )
    index, expected = batch.shuffle_index, {}
    for layer, columns in enumerate((FEATURES, HIDDEN, HIDDEN)):
        sent, received = (
            8 * columns * sum(sum(levels[: 3 - layer]) for levels in counts)
            for counts in (index.num_sent, index.num_received)
        )
        expected[f"forward convs.{layer}"], expected[f"backward convs.{layer}"] = (
            (1, sent, received),
            (1, received, sent),
        )
    every = [8 * sum(map(sum, counts)) for counts in (index.num_sent, index.num_received)]
    expected["forward degrees"] = (1, *every)
    split.close()
    return {purpose: found[purpose] for purpose in expected}, expected, found.keys() - expected.keys()


@pytest.mark.parametrize("transport", ["peers", "all_to_all"])
def test_rounds_and_bytes_are_those_of_the_index(transport):
    """L forward and L backward where x needs a gradient, and one of degrees."""
    for found, expected, others in cluster(2).run(counted, transport):
        assert found == expected
        assert others == {"header", "gradients"}
