"""What layers share in a forward pass over a rank's share of a batch, without processes."""

from types import SimpleNamespace

import pytest
import torch
import torch_geometric.nn as pyg_nn
from helpers.narrow import batches
from helpers.split import cut_batches, random_owners
from helpers.waits import NoWaits

from torch_gnnscale.comm.exchange import Exchange
from torch_gnnscale.comm.row_transport import RowTransport
from torch_gnnscale.nn.narrowed_layer import ForwardPass
from torch_gnnscale.nn.wrapper import Call, Calls, Read
from torch_gnnscale.split.local_rows import OwnHops
from torch_gnnscale.split.split_layer import SplitLayer, SplitPass


@pytest.fixture
def forward_pass():
    """Of the only part of a batch, as if there were others."""
    (batch,) = cut_batches(next(iter(batches())), random_owners(200, 1), 1)
    found = SplitPass(OwnHops(batch, False), RowTransport(Exchange(None, 1, 0)), batch, [], knows_halo=True)
    found.alone = False
    return found


def test_a_tensor_that_was_changed_travels_again(forward_pass):
    groups = len(forward_pass.hops.rows)
    x = torch.ones(forward_pass.hops.rows[-1], 2)
    mixed = forward_pass.mixed(x, groups, "conv")
    assert forward_pass.mixed(x, groups, "conv") is mixed
    x += 1
    assert torch.equal(forward_pass.mixed(x, groups, "conv"), x)


@pytest.mark.parametrize("part", range(3))
def test_rows_of_fewer_groups_are_taken_from_those_of_more(part):
    batch = cut_batches(next(iter(batches())), random_owners(200, 3), 3)[part]
    hops = OwnHops(batch, False)
    for most in range(2, len(hops.rows) + 1):
        for groups in range(2, most + 1):
            with NoWaits():
                places = hops.places(groups, most)
            of_halo = torch.isin(hops.moves(most - 1).halo, hops.moves(groups - 1).halo).nonzero()[:, 0]
            own = torch.arange(hops.rows[groups - 1])
            assert torch.equal(places, torch.cat([own, hops.rows[most - 1] + of_halo]))
            assert len(places) == hops.mixed_rows(groups)


def test_rows_that_the_loader_exchanged(forward_pass):
    batch = forward_pass.batch
    batch.x_halo = torch.arange(8.0).view(4, 2)
    for halo in ([0, 1, 2, 3], [3, 1]):
        moves = SimpleNamespace(halo=torch.tensor(halo))
        assert torch.equal(forward_pass._known_halo(batch.x, moves), batch.x_halo[halo])
    assert forward_pass._known_halo(batch.x.clone(), moves) is None
    batch.x.requires_grad_()
    assert forward_pass._known_halo(batch.x, moves) is None


def test_each_dropout_has_random_numbers_of_its_own(forward_pass):
    x = torch.ones(forward_pass.hops.rows[-1], 8)
    first, second = (forward_pass._drop(x, 0.5, len(x)) for _ in range(2))
    assert 0 < int((first == 0).sum()) < x.numel()
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    "drop",
    [lambda x: torch.dropout_(x, 0.5, True), lambda x: torch.nn.functional.dropout(x, 0.5, inplace=True)],
    ids=["dropout_", "inplace"],
)
def test_dropout_in_place(forward_pass, drop):
    x = torch.ones(forward_pass.hops.rows[-1], 8)
    forward_pass.own_rows.mark(x, len(forward_pass.hops.rows))
    with forward_pass.own_rows:
        out = drop(x)
    assert out is x
    assert 0 < int((x == 0).sum()) < x.numel()


@pytest.mark.parametrize("loops", [False, True])
def test_weights_by_degrees_are_those_of_the_whole_batch(forward_pass, loops):
    options = (forward_pass.hops.only, None, False, loops, "source_to_target", torch.float64)
    expected = ForwardPass(forward_pass.hops).normalized(*options)[1]
    assert (forward_pass.hops.only.edges.edges.forward.ptr.diff() == 0).any()
    torch.testing.assert_close(forward_pass.normalized(*options)[1], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", [ForwardPass, SplitPass])
def test_each_weight_is_normalized_by_itself(forward_pass, kind):
    found = forward_pass if kind is SplitPass else ForwardPass(forward_pass.hops)
    weights = [torch.full((found.hops.only.ends[-1],), value, dtype=torch.float64) for value in (1.0, 3.0)]
    norms = [
        found.normalized(found.hops.only, weight, False, True, "source_to_target", torch.float64)[1]
        for weight in weights
    ]
    assert not torch.equal(*norms)
    again = found.normalized(found.hops.only, weights[0], False, True, "source_to_target", torch.float64)[1]
    assert again is norms[0]
    improved = found.normalized(found.hops.only, weights[0], True, True, "source_to_target", torch.float64)[1]
    assert not torch.equal(improved, again)
    narrow = found.normalized(found.hops.only, None, False, True, "source_to_target", torch.float32)[1]
    wide = found.normalized(found.hops.only, None, False, True, "source_to_target", torch.float64)[1]
    assert (narrow.dtype, wide.dtype) == (torch.float32, torch.float64)
    without_loops = found.normalized(found.hops.only, weights[0], False, False, "source_to_target", torch.float64)[1]
    assert len(without_loops) == found.hops.only.ends[-1] < len(again)


def test_calls_come_in_the_order_of_the_first_batch(forward_pass):
    forward_pass.calls = Calls([Call("one", 3), Call("two", 2), Call("one", 1)])
    with pytest.raises(RuntimeError, match="that the first batch had, one as number 0, found two; layers that are"):
        forward_pass.next_call("two")
    assert [forward_pass.next_call(title).groups for title in ("one", "two", "one")] == [3, 2, 1]
    with pytest.raises(RuntimeError, match="that the first batch had, no further layer as number 3, found two; layers"):
        forward_pass.next_call("two")


@pytest.mark.parametrize("lacking", ["x", "edge_weight"])
def test_calls_have_the_arguments_of_the_first_batch(lacking):
    layer = SplitLayer("conv", pyg_nn.GraphConv(2, 2))
    layer.forward_pass, layer._call = SimpleNamespace(calls=Calls([])), Call("", 2, Read(("x",), ("edge_weight",)))
    given = {"x": torch.ones(1), "edge_weight": torch.ones(1)}
    assert layer.read(given, 1) == layer._call.read
    with pytest.raises(RuntimeError, match=f"expected the arguments that the first batch had, found no {lacking}$"):
        layer.read({**given, lacking: None}, 1)


@pytest.mark.parametrize(
    ("conv", "alone"),
    [
        pytest.param(pyg_nn.SAGEConv(4, 4), True, id="mean"),
        pytest.param(pyg_nn.GraphConv(4, 4), True, id="sum"),
        pytest.param(pyg_nn.SAGEConv(4, 4, aggr="max"), False, id="max"),
        pytest.param(pyg_nn.SAGEConv(4, 4, project=True), False, id="projected"),
        pytest.param(pyg_nn.GCNConv(4, 4), False, id="multiplies sources"),
    ],
)
def test_rows_of_others_are_summed_apart_where_a_layer_reads_their_sum_alone(forward_pass, conv, alone):
    layer = SplitLayer("conv", conv)
    layer.enter(forward_pass)
    try:
        assert layer._reads_sum_alone(torch.ones(3, 4), None) is alone
        assert not layer._reads_sum_alone(torch.ones(3, 4, dtype=torch.bfloat16), None)
        assert not layer._reads_sum_alone(torch.ones(3, 4), torch.ones(5, requires_grad=True))
    finally:
        layer.leave()
