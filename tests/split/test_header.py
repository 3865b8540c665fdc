"""What ranks compare before a batch: one that differs, or fails before, is named on all of them; none waits."""

import re
from dataclasses import replace

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.cluster import cluster
from helpers.narrow import CLASSES, FEATURES, HIDDEN
from helpers.slow import SLOW, quick
from helpers.split import cut_batches, random_owners
from helpers.split_models import NODES, own_batches
from torch import distributed as dist
from torch_geometric.data import Data

from torch_gnnscale.comm.mesh import Grid
from torch_gnnscale.comm.rendezvous import rank_and_world
from torch_gnnscale.nn import forward_pass, narrow
from torch_gnnscale.split import parallelize
from torch_gnnscale.split.agreement import _COMMON, Description, _grid_of, compare_headers, own_header
from torch_gnnscale.split.rank_rows import ShuffleIndex


def sage():
    torch.manual_seed(0)
    return pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES, dropout=0.5, norm="BatchNorm").double()


def differs(what, parts):
    """Rank 1 is another in its second step; returns its error, which comes long before the timeout."""
    rank, _ = rank_and_world()
    forward_pass.LEAST_SAVED = 0
    model, (_, batch, _) = sage(), next(own_batches(parts, rank % parts))
    split = parallelize(model, timeout=20.0)
    split(batch).sum().backward()
    autocast = False
    if rank == 1:
        if what == "autocast":
            autocast = True
        elif what == "type of x":
            batch.x = batch.x.float()
        elif what == "width of x":
            batch.x = batch.x[:, :2]
        elif what == "gradient":
            batch.x.requires_grad_()
        elif what == "norm":
            model.norms[1].eval()
        elif what == "all":
            model.eval()
        elif what == "no edges":
            del batch.num_sampled_edges
        elif what == "aggr":
            model.convs[1] = pyg_nn.SAGEConv(HIDDEN, HIDDEN, aggr="max").double()
        elif what == "rows":
            index = batch.shuffle_index
            more = [[count + 1 for count in levels] for levels in index.num_received]
            batch.shuffle_index = replace(index, num_received=more)
        elif what == "p":
            model.dropout = torch.nn.Dropout(0.4)
        elif what == "p in place":
            model.dropout.p = 0.4
        elif what == "eps in place":
            model.norms[1].module.eps = 1e-3
        elif what == "attributes of its own":
            model.rank = model.convs[0].device_of_rank = rank
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = split(batch)
        out.sum().backward()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        split.close()
    return None


SAME = "expected the same on all ranks, found"
SAID = {
    "autocast": f"ValueError: split: autocast: {SAME} none and on rank 1 bfloat16",
    "type of x": f"ValueError: split: x: {SAME} rows of 3 float64 and on rank 1 rows of 3 float32",
    "width of x": f"ValueError: split: x: {SAME} rows of 3 float64 and on rank 1 rows of 2 float64",
    "gradient": f"ValueError: split: gradient of x: {SAME} not wanted and on rank 1 wanted",
    "norm": f"ValueError: split: model: {SAME} norms.1.training True and on rank 1 False",
    "aggr": f"ValueError: split: model: {SAME} convs.1.aggr 'mean' and on rank 1 'max'",
    "p": f"ValueError: split: model: {SAME} dropout.p 0.5 and on rank 1 0.4",
    "p in place": f"ValueError: split: model: {SAME} dropout.p 0.5 and on rank 1 0.4",
    "eps in place": f"ValueError: split: model: {SAME} norms.1.module.eps 1e-05 and on rank 1 0.001",
}


@pytest.mark.parametrize("what", quick(list(SAID), "aggr"))
def test_ranks_that_differ(what):
    assert cluster(2).run(differs, what, 2) == [SAID[what]] * 2


@pytest.mark.slow
def test_attributes_that_may_differ():
    assert cluster(2).run(differs, "attributes of its own", 2) == [None] * 2


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_rows_that_two_ranks_do_not_expect_alike(world):
    found = cluster(world).run(differs, "rows", 2)
    text = r"ValueError: split: batch: expected \[\d+(, \d+)*\] rows by level from part 0 for part 1, found others"
    assert len(set(found)) == 1
    assert re.fullmatch(text, found[0])


@pytest.mark.parametrize("what", ["norm", SLOW("p")])
def test_copies_that_differ(what):
    assert cluster(2).run(differs, what, 1) == [SAID[what]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("what", ["norm", "aggr", "type of x"])
def test_a_rank_of_one_column_that_differs(what):
    assert cluster(4).run(differs, what, 2) == [SAID[what]] * 4


@pytest.mark.slow
def test_a_batch_that_lacks_a_field_on_one_rank():
    first, second = cluster(2).run(differs, "no edges", 2)
    assert re.match(r"\w+Error: .*num_sampled_edges", second)
    assert first == f"RuntimeError: split: rank 1: {second}"


def lacks_edges_at_first():
    rank, world = rank_and_world()
    _, batch, _ = next(own_batches(world, rank))
    if rank == 1:
        del batch.edge_index
    try:
        parallelize(sage(), timeout=20.0)(batch)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.slow
def test_a_first_batch_that_lacks_a_field_on_one_rank():
    first, second = cluster(2).run(lacks_edges_at_first)
    assert second.startswith("AttributeError: ")
    assert first == f"RuntimeError: split: rank 1: {second}"


def two_grids():
    """Batches of loaders whose columns are ranks of consecutive parts, and of consecutive copies."""
    rank, found = dist.get_rank(), []
    model = pyg_nn.GraphSAGE(FEATURES, HIDDEN, 3, CLASSES).double()
    split, alone = parallelize(model, timeout=20.0), narrow(model)
    wholes = [whole for whole, *_ in own_batches(2, 0, 2)]
    for kind in ("parts", "copies", "parts"):
        grid = Grid(4, 2, consecutive=kind)
        whole, part = wholes[grid.copy(rank)], grid.part(rank)
        owners = random_owners(NODES, 2, 3)
        batch = cut_batches(whole, owners, 2, key=grid.copy(rank))[part]
        seeds = (owners[whole.n_id[: whole.batch_size]] == part).nonzero()[:, 0]
        torch.testing.assert_close(split(batch), alone(whole)[seeds], rtol=1e-12, atol=1e-12)
        found.append(len(split._connection.transports))
    split.close()
    return found


@pytest.mark.slow
def test_loaders_whose_columns_are_other_ranks():
    assert cluster(4).run(two_grids) == [[1, 2, 2]] * 4


def test_a_description_follows_modes_types_modules_and_hyperparameters():
    model = sage()
    model.act = pyg_nn.MLP([HIDDEN, HIDDEN], dropout=[0.5])
    description = Description(model)
    seen = {description.digest}
    for change in (
        lambda: model.norms[0].eval(),
        lambda: model.convs[0].lin_l.weight.requires_grad_(False),
        lambda: model.float(),
        lambda: setattr(model, "dropout", torch.nn.Dropout(0.1)),
        lambda: setattr(model.dropout, "p", 0.2),
        lambda: setattr(model.convs[1], "aggr", None),
        lambda: setattr(model.convs[1], "normalize", True),
        lambda: model.act.dropout.__setitem__(0, 0.3),
        lambda: model.register_parameter("more", torch.nn.Parameter(torch.ones(2))),
    ):
        change()
        assert description.digest not in seen
        seen.add(description.digest)
    assert description.entries is description.entries
    assert Description(model).digest == description.digest
    assert description.entries["the type of convs.2"] == "SAGEConv"
    assert description.entries["convs.2.normalize"] == "False"


class Heard:
    """The headers of all ranks, of which this is rank 0."""

    def __init__(self, keys, parts, part_of, knows_halo):
        common = [parts, 2, 1, 1, -1, 5, 0, 99]
        self.said = [
            [*common, part, key, 0, 1, halo, -1, 0] for part, key, halo in zip(part_of, keys, knows_halo, strict=True)
        ]
        self.size, self.rank = len(keys), 0

    def numbers(self, sent, purpose):
        return torch.tensor(self.said)


INDEX = ShuffleIndex(2, 0, torch.arange(0), [[0], [0]], [[0], [0]])


def test_a_halo_is_that_of_one_tensor_as_it_was():
    x = torch.zeros(3)
    index = INDEX.with_halo_of(x)
    assert index.knows_halo_of(x)
    assert not INDEX.knows_halo_of(x)
    assert not INDEX.knows_halo_of(None)
    assert not index.knows_halo_of(x.clone())
    x.add_(1)
    assert not index.knows_halo_of(x)
    assert index.with_halo_of(x).knows_halo_of(x)
    with torch.inference_mode():
        assert INDEX.with_halo_of(torch.zeros(3)) is INDEX, "which has no version"


@pytest.mark.parametrize(
    ("entries", "change"),
    [
        ({"parts"}, lambda model, batch: batch.update({"shuffle_index": replace(INDEX, parts=3)})),
        ({"hops"}, lambda model, batch: batch.update({"num_sampled_edges": [4]})),
        ({"training", "model"}, lambda model, batch: model.eval()),
        ({"model"}, lambda model, batch: model.norms[1].eval()),
        ({"x"}, lambda model, batch: batch.update({"x": batch.x.float()})),
        ({"x"}, lambda model, batch: batch.update({"x": None})),
        ({"gradient of x"}, lambda model, batch: batch.x.requires_grad_()),
        ({"grad mode"}, lambda model, batch: torch.set_grad_enabled(False)),
        ({"autocast"}, lambda model, batch: torch.set_autocast_enabled("cpu", True)),
    ],
)
def test_a_header_tells_what_differs(entries, change):
    model, batch = sage(), Data(x=torch.ones(3, 2, dtype=torch.float64), num_sampled_edges=[4, 2], batch_key=7)
    batch.shuffle_index = INDEX
    before = own_header(Description(model), batch, 2, True)
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):  # which both end with the block
        change(model, batch)
        after = own_header(Description(model), batch, 2, True)
    assert {name for name, one, other in zip(_COMMON, before, after, strict=False) if one != other} == entries
    assert before[len(_COMMON) :] == after[len(_COMMON) :]


@pytest.mark.parametrize("knows_halo", [(1, 1), (1, 0), (0, 1)])
def test_the_halo_is_known_where_all_ranks_of_a_batch_know_it(knows_halo):
    heard = Heard([7, 7], 2, [0, 1], knows_halo)
    assert compare_headers(heard.said[0], None, INDEX, heard).knows_halo == all(knows_halo)
    others = Heard([7, 8, 7, 8], 2, [0, 0, 1, 1], (1, knows_halo[0], 1, knows_halo[1]))
    assert compare_headers(others.said[0], None, INDEX, others).knows_halo


def test_ranks_have_the_parts_of_one_of_two_grids():
    assert _grid_of([0, 0, 1, 1], 2) == Grid(4, 2)
    assert _grid_of([0, 1, 0, 1], 2) == Grid(4, 2, "parts")
    text = r"^batch: expected ranks of the parts \[0, 0, 1, 1\] or \[0, 1, 0, 1\], found \[0, 1, 1, 0\]$"
    with pytest.raises(ValueError, match=text):
        _grid_of([0, 1, 1, 0], 2)


@pytest.mark.parametrize(("keys", "ranks"), [([7, 5, 8, 5], (0, 2)), ([7, 5, 7, 6], (1, 3))])
def test_keys_of_each_batch_are_compared(keys, ranks):
    heard = Heard(keys, 2, [0, 0, 1, 1], [1] * 4)
    first, second = ranks
    text = f"{keys[first]} on rank {first} and {keys[second]} on rank {second}$"
    with pytest.raises(ValueError, match=f"batch_key: expected the same on all ranks of a batch, found {text}"):
        compare_headers(heard.said[0], None, INDEX, heard)


def test_an_index_knows_the_halo_of_rows_that_were_neither_moved_nor_changed():
    x = torch.ones(3, 2)
    index = replace(INDEX, x=x, x_version=x._version)
    assert index.knows_halo_of(x)
    assert not index.knows_halo_of(x.clone())
    assert index.to("cpu") is index
    assert not index.to("meta").knows_halo_of(x)
    there = torch.ones(3, 2, device="meta")
    assert replace(INDEX, x=there, x_version=there._version).to("meta").knows_halo_of(there)
    x += 1
    assert not index.knows_halo_of(x)
