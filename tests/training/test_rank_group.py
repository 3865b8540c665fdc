"""What ranks that train one model sum, gather and tell each other."""

import pytest
import torch
from helpers.cluster import cluster
from helpers.slow import SLOW
from torch import distributed as dist
from torch import nn

from torch_gnnscale.comm.mesh import Ranks
from torch_gnnscale.training import RankGroup
from torch_gnnscale.training.rank_group import launched, launched_ranks


def group():
    return RankGroup(Ranks(dist.get_rank(), dist.get_world_size()))


def summed_and_gathered(sizes):
    ranks = group()
    own = torch.arange(sizes[ranks.rank] * 2, dtype=torch.float64).view(-1, 2) + 100 * ranks.rank
    found = {
        "total": ranks.total(torch.tensor([ranks.rank, 10])).tolist(),
        "rows": ranks.gathered(own).tolist(),
        "bools": ranks.gathered(own[:, 0] % 4 == 0).tolist(),
        "no columns": tuple(ranks.gathered(own[:, :0]).shape),
        "everyone": ranks.everyone({"rank": ranks.rank}),
        "first": ranks.first(lambda: f"of rank {ranks.rank}"),
    }
    assert own[0, 0] == 100 * ranks.rank if len(own) else True, "what was given is as before"
    return found


@pytest.mark.parametrize("sizes", [[3, 1], [0, 2], [0, 0]])
def test_all_ranks_have_the_sums_and_rows_of_all(sizes):
    rows = [[2.0 * i + 100 * rank, 2.0 * i + 1 + 100 * rank] for rank, size in enumerate(sizes) for i in range(size)]
    expected = {
        "total": [1, 20], "rows": rows, "bools": [row[0] % 4 == 0 for row in rows],
        "no columns": (sum(sizes), 0),
        "everyone": [{"rank": 0}, {"rank": 1}], "first": "of rank 0",
    }  # fmt: skip
    assert cluster(2).run(summed_and_gathered, sizes) == [expected] * 2


def test_a_rank_alone_needs_no_process_group():
    ranks, module, rows = RankGroup(), nn.Linear(2, 1), torch.arange(3)
    assert ranks.is_first
    assert ranks.parallel(module, unused=True) is module
    assert torch.equal(ranks.total(rows), rows)
    assert torch.equal(ranks.gathered(rows), rows)
    assert (ranks.everyone(3), ranks.first(lambda: 4)) == ([3], 4)


def fails_first(error):
    ranks = group()

    def make():
        assert ranks.is_first, "rank 0 alone makes it"
        raise error

    ranks.first(make)


def test_an_error_of_rank_0_is_raised_on_all():
    for error in (ValueError("lr: expected another"), OSError(28, "the disk is full")):
        text = f"{type(error).__name__}: {error}"
        assert cluster(2).results(fails_first, error) == [(False, text)] * 2
    first, second = cluster(2).results(fails_first, KeyError("no luck"))
    assert (first, second) == ((False, "KeyError: 'no luck'"), (False, "RuntimeError: rank 0: KeyError: 'no luck'"))


def gradients(steps):
    """The gradients of each step, and what each rank's own would have been. A branch is left out in odd steps."""
    ranks = group()
    torch.manual_seed(ranks.rank)
    model = nn.ModuleDict({"a": nn.Linear(5, 3), "b": nn.Linear(3, 3), "c": nn.Linear(3, 1)})

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x, both):
            found = self.model["a"](x)
            return self.model["c"](self.model["b"](found) if both else found)

    module = Branching()
    trained = ranks.parallel(module, unused=True)
    begin = [p.detach().clone() for p in model.parameters()]
    found = []
    for step in range(steps):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + ranks.rank))
        module(x, step % 2 == 0).sum().backward()
        alone = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        trained(x, step % 2 == 0).sum().backward()
        together = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        found.append((alone, together))
    return begin, found


@pytest.mark.parametrize("world", [2, SLOW(3)])
def test_gradients_are_means_in_the_order_of_ranks(world):
    found = cluster(world).run(gradients, 3)
    assert all(torch.equal(a, b) for begin, _ in found for a, b in zip(begin, found[0][0], strict=True))
    for step in range(3):
        for place in range(6):
            total = torch.zeros(())
            for _, steps in found:
                total = total + steps[step][0][place]
            for _, steps in found:
                together = steps[step][1][place]
                if together is None:
                    assert step % 2 == 1
                    assert place in (2, 3)
                else:
                    assert torch.equal(together, total / world)


@pytest.mark.parametrize("value", ["0", "-1", "two", ""])
def test_a_world_size_that_is_none(value, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", value)
    with pytest.raises(ValueError, match=f"^WORLD_SIZE: expected an integer of at least 1, found '{value}'$"):
        launched_ranks()


def test_ranks_of_a_restart_meet_under_keys_of_their_own(monkeypatch):
    store, made = dist.HashStore(), []
    monkeypatch.setattr(dist, "rendezvous", lambda _: iter([(store, 1, 2)]))
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **options: made.append(options))
    ends = []
    monkeypatch.setattr(dist, "barrier", lambda: ends.append("barrier"))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: ends.append("destroy"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    for attempt in ("0", "3"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        with launched():
            made[-1]["store"].set("key", attempt)
    assert [(options["rank"], options["world_size"]) for options in made] == [(1, 2)] * 2
    assert ends == ["barrier", "destroy"] * 2
    assert [options["store"].get("key") for options in made] == [b"0", b"3"]
