"""Types of numbers, autocast, evaluation between steps, repeated seeds, and what is counted of an exchange."""

import copy

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.cluster import cluster
from helpers.data import make_data
from helpers.narrow import CLASSES, FEATURES, HIDDEN, MODELS
from helpers.slow import SLOW, quick
from helpers.split import GivenPlan, cut_batches, cut_of, loader_of, random_owners
from helpers.split_models import NODES, own_batches, weights_of

from torch_gnnscale import NeighborLoader
from torch_gnnscale.comm.exchange import Traffic
from torch_gnnscale.comm.rendezvous import rank_and_world
from torch_gnnscale.nn import forward_pass, narrow
from torch_gnnscale.split import Moved, parallelize


def of_type(name, dtype, casts):
    """A step with a model in another type, or under autocast to it, against narrow."""
    rank, world = rank_and_world()
    forward_pass.LEAST_SAVED = 0
    bound = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}[dtype]
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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["sage", "gcn", "gat", "pna"])
def test_types_of_numbers(name, dtype):
    cluster(2).run(of_type, name, dtype, False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sage", "gcn", "gat", "pna"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(name, dtype):
    cluster(2).run(of_type, name, dtype, True)


def starts():
    """The weights with which a model of other weights on each rank begins; their memory is not in their order."""
    rank, _ = rank_and_world()
    torch.manual_seed(rank)
    model = MODELS["sage"]()
    for weight in model.parameters():
        weight.data = weight.detach().t().contiguous().t()
    parallelize(model).close()
    assert any(not weight.is_contiguous() for weight in model.parameters())
    return [weight.detach().clone() for weight in model.parameters()]


@pytest.mark.slow
def test_weights_start_from_those_of_rank_0():
    first, second = cluster(2).run(starts)
    torch.manual_seed(0)
    assert all(map(torch.equal, first, MODELS["sage"]().parameters()))
    assert all(map(torch.equal, first, second))


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


@pytest.mark.slow
def test_evaluation_between_steps():
    cluster(2).run(evaluates)


def in_inference_mode(name):
    """The first batch, too, and one whose rows were changed after those of the halo came."""
    _, world = rank_and_world()
    torch.manual_seed(0)
    model, plan = MODELS[name]().double().eval(), GivenPlan(random_owners(200, world, 3), world)
    found = []
    for mode in (torch.no_grad, torch.inference_mode):
        split = parallelize(model)
        with mode():
            for batch in loader_of(plan, {"num_neighbors": [4, 3, 2]}):
                found.append(split(batch))
                batch.x *= 2
                found.append(split(batch))
        split.close()
    half = len(found) // 2
    for ours, theirs in zip(found[half:], found[:half], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["gcn", SLOW("sage"), SLOW("jumping, cat")])
def test_inference_mode(name):
    cluster(2).run(in_inference_mode, name)


def repeated(name):
    rank, world = rank_and_world()
    forward_pass.LEAST_SAVED = 0
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
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)
    split.close()
    return len(own)


@pytest.mark.parametrize("name", quick(["sage", "gcn", "gat"], "gcn"))
@pytest.mark.parametrize("world", [2, SLOW(3), SLOW(4)])
def test_repeated_seeds(name, world):
    assert sum(cluster(world).run(repeated, name)) == 11


def counted(transport):
    """What a step exchanges that wants the gradient of x, by purpose: (rounds, bytes sent, bytes received, rows sent,
    rows received); and what the shuffle index says of it."""
    rank, world = rank_and_world()
    split = parallelize(pyg_nn.GCN(FEATURES, HIDDEN, 3, CLASSES).double(), transport=transport)
    first, second = own_batches(world, rank, 2)
    split(first[1]).sum().backward()
    before, moved, batch = copy.deepcopy(split.traffic), split.work.shuffled, second[1]
    batch.x.requires_grad_()
    split(batch).sum().backward()
    found = {}
    for purpose, entry in split.traffic.items():
        was, rows = before.get(purpose, Traffic()), split.work.shuffled.get(purpose, Moved())
        before_it = moved.get(purpose, Moved())
        found[purpose] = (
            entry.rounds - was.rounds, entry.bytes_sent - was.bytes_sent, entry.bytes_received - was.bytes_received,
            rows.sent - before_it.sent, rows.received - before_it.received,
        )  # fmt: skip
    index, expected = batch.shuffle_index, {}

    def expect(purpose, columns, groups, back):
        rows = [sum(sum(levels[:groups]) for levels in counts) for counts in (index.num_sent, index.num_received)]
        rows = rows[::-1] if back else rows
        expected[purpose] = (1, *(8 * columns * count for count in rows), *rows)

    expect("forward degrees", 1, 3, False)
    for layer, columns in enumerate((FEATURES, HIDDEN, HIDDEN)):
        expect(f"forward convs.{layer}", columns, 3 - layer, False)
        expect(f"backward convs.{layer}", columns, 3 - layer, True)
    split.close()
    return {purpose: found[purpose] for purpose in expected}, expected, found.keys() - expected.keys()


@pytest.mark.parametrize("transport", ["memory", SLOW("gloo")])
@pytest.mark.parametrize("world", [2, SLOW(3), SLOW(4)])
def test_rounds_bytes_and_rows_are_those_of_the_index(transport, world):
    """L forward and L backward where x needs a gradient, and one of degrees."""
    for found, expected, others in cluster(world).run(counted, transport):
        assert found == expected
        assert others == {"header", "gradients"}


def works(name, parts, rank):
    """What a rank has loaded and computed, and the halo of its batches."""
    split, halo = parallelize(MODELS[name]().double()), 0
    for _, batch, _ in own_batches(parts, rank, 3):
        split(batch).sum().backward()
        halo += batch.shuffle_index.num_halo
    split.close()
    return split.work, halo


def works_here(name):
    rank, world = rank_and_world()
    return works(name, world, rank)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("name", ["sage", "gcn", "two layers on three hops"])
def test_work_of_all_ranks_is_that_of_one_process(name, world):
    """No row is loaded and no edge computed twice."""
    (alone, _), found = works(name, 1, 0), cluster(world).run(works_here, name)
    assert alone.batches == 3
    assert (alone.halo, alone.shuffled) == (0, {})
    assert sum(work.rows for work, _ in found) == alone.rows > 0
    for layer, edges in alone.edges.items():
        assert sum(work.edges[layer] for work, _ in found) == edges > 0
    for work, halo in found:
        assert (work.batches, work.halo) == (3, halo)
        assert work.edges.keys() == alone.edges.keys()


def test_each_batch_s_edges_are_counted_by_layer():
    """Layer 0 of three computes all edges, the last one those into the seeds."""
    split = parallelize(MODELS["sage"]().double())
    _, batch, _ = next(own_batches(1, 0))
    split(batch)
    first, second, third = batch.num_sampled_edges
    assert split.work.edges == {
        "convs.0": first + second + third, "convs.1": first + second, "convs.2": first
    }  # fmt: skip
    assert split.work.rows == batch.num_nodes
    split.close()
