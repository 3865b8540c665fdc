"""Negative links: equal to the twin, distributed as they should be, never what they must not be."""

import itertools

import pytest
import reference
import torch
from helpers.chi_square import chi_square_p

from torch_gnnscale import ops
from torch_gnnscale.ops import candidates, edge_set, sample_negatives


def random_edges(num_src, num_dst, share, seed):
    """About a share of all links, in random order, some of them twice."""
    generator = torch.Generator().manual_seed(seed)
    src, dst = (torch.rand(num_src, num_dst, generator=generator) < share).nonzero().t()
    order = torch.randperm(len(src), generator=generator)
    order = torch.cat([order, order[: len(order) // 5]])
    return src[order], dst[order]


def random_candidates(num_nodes, seed, weighted, timed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.rand(num_nodes, generator=generator) ** 4
    weight[torch.rand(num_nodes, generator=generator) < 0.3] = 0
    weight[seed % num_nodes] = 1
    time = torch.randint(6, (num_nodes,), generator=generator)
    return candidates(num_nodes, weight if weighted else None, time if timed else None)


def every_time(dst, src=None):
    times = [ends.time.min() for ends in (dst, src) if ends is not None and ends.time is not None]
    return int(max(times, default=torch.tensor(0)))


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("share", [None, 0.1, 0.97])
def test_equals_the_twin(given, weighted, timed, share):
    for seed in range(3):
        num_src, num_dst, count = 7 + seed, 9, 40
        dst = random_candidates(num_dst, seed, weighted, timed)
        ends = random_candidates(num_src, seed + 50, weighted, timed)
        earliest = every_time(dst, None if given else ends)
        seed_time = torch.arange(count) % 6 + earliest if timed else None
        edges = None
        if share is not None:
            src, to = random_edges(num_src, num_dst, share, seed)
            keep = to != int((dst.node if dst.node is not None else torch.arange(num_dst))[0])  # one is always free
            edges = edge_set(src[keep], to[keep], num_src, num_dst)
        src = torch.arange(count) % num_src if given else ends
        options = {"seed_time": seed_time, "edges": edges}
        expected = reference.sample_negatives(count, src, dst, seed - 1, **options)
        for threads in (1, 2):
            assert torch.equal(sample_negatives(count, src, dst, seed - 1, threads=threads, **options), expected)
        if given:
            assert torch.equal(sample_negatives(count, src.int(), dst, seed - 1, **options), expected)


@pytest.mark.parametrize("weight", [[0, 0, 0], [3, 5, 0], [3, 5, -1]])
def test_weights_that_do_not_rise_draw_a_candidate_all_the_same(weight):
    """The operator itself, called with sums of weights that no user can give: by the last one, nothing or all is left
    to draw."""
    of = [3, None, torch.tensor(weight), None]
    nothing = [None] * 3
    links, _ = torch.ops.gnnscale.sample_negatives(50, None, *of, *of[:2], None, *of[2:], *nothing, 1, 1)
    assert ((links >= 0) & (links < 3)).all()


def test_threads_do_not_matter():
    src, to = random_edges(60, 70, 0.9, 1)
    edges, dst, src = (
        edge_set(src, to, 60, 70),
        random_candidates(70, 2, True, True),
        random_candidates(60, 1, True, True),
    )
    options = {"seed_time": torch.arange(9000) % 6 + every_time(dst, src), "edges": edges}
    one, two = (sample_negatives(9000, src, dst, 5, threads=threads, **options) for threads in (1, 2))
    assert torch.equal(one, two)


def test_a_negative_is_a_function_of_its_number():
    dst, src = random_candidates(70, 2, True, False), candidates(60)
    whole = sample_negatives(3000, src, dst, 5)
    assert torch.equal(sample_negatives(100, src, dst, 5), whole[:, :100])
    assert not torch.equal(sample_negatives(100, src, dst, 6), whole[:, :100])


def test_links_and_times_and_weights_are_respected():
    src, to = random_edges(60, 70, 0.5, 3)
    dst, ends = random_candidates(70, 4, True, True), random_candidates(60, 5, True, True)
    weights = torch.zeros(70).index_fill(0, dst.node, 1)
    times = torch.full((70,), 99).index_copy(0, dst.node, dst.time)
    seed_time = torch.arange(5000) % 6 + every_time(dst, ends)
    known = set(zip(src.tolist(), to.tolist(), strict=True))
    negatives = sample_negatives(5000, ends, dst, 1, seed_time=seed_time, edges=edge_set(src, to, 60, 70))
    assert not known & set(zip(*negatives.tolist(), strict=True))
    assert bool((times[negatives[1]] <= seed_time).all())
    assert bool((weights[negatives[1]] > 0).all())


# Distribution ########################################################################################################

BOUND = 1e-3  # each test is one of a dozen, with a fixed key


def p_value(found, expected):
    """Of the numbers of draws of each outcome, where ``expected`` are their probabilities; others never happen."""
    assert not found[expected == 0].any()
    found, expected = found[expected > 0], expected[expected > 0].double()
    return chi_square_p(found.double(), expected / expected.sum() * found.sum())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("share", [None, 0.5, 0.99])
def test_pairs_are_drawn_in_proportion_to_their_weights(weighted, share):
    num_src, num_dst, count = 6, 8, 60_000
    generator = torch.Generator().manual_seed(9)
    of_src, of_dst = (torch.randint(4, (size,), generator=generator).float() for size in (num_src, num_dst))
    of_src[0] = of_dst[0] = 4
    dense = torch.zeros(num_src, num_dst)
    if share is not None:
        dense[random_edges(num_src, num_dst, share, 3)] = 1
        dense[0, 0] = dense[0, 3] = dense[4, 0] = 0
    ends = [candidates(size, w if weighted else None) for size, w in ((num_src, of_src), (num_dst, of_dst))]
    links = sample_negatives(count, *ends, 77, edges=edge_set(*dense.nonzero().t(), num_src, num_dst))
    expected = (torch.outer(of_src, of_dst) if weighted else torch.ones(num_src, num_dst)) * (1 - dense)
    assert (
        p_value(torch.bincount(links[0] * num_dst + links[1], minlength=num_src * num_dst), expected.view(-1)) > BOUND
    )


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("linked", [0, 5, 296])
def test_destinations_are_drawn_in_proportion_to_their_weights(timed, weighted, linked):
    num_nodes, count, limit = 300, 30_000, 7
    weight = torch.tensor([3.0, 1.0, 0.5, 2.0, 0.0]).repeat(60)
    time = torch.arange(num_nodes).flip(0) % 10
    dst = candidates(num_nodes, weight if weighted else None, time if timed else None)
    to = torch.arange(linked) + 2
    edges = edge_set(torch.ones_like(to), to, 2, num_nodes)
    options = {"seed_time": torch.full((count,), limit)} if timed else {}
    found = sample_negatives(count, torch.ones(count).long(), dst, 3, edges=edges, **options)
    expected = weight if weighted else torch.ones(num_nodes)
    expected = expected * (time <= limit) if timed else expected.clone()
    expected[to] = 0
    if int(expected.count_nonzero()) > 1:
        assert p_value(torch.bincount(found[1], minlength=num_nodes), expected) > BOUND
    else:
        assert bool((found[1] == int(expected.argmax())).all())


def test_draws_of_both_ends_are_independent():
    links = sample_negatives(50_000, candidates(5), candidates(7), 4)
    assert p_value(torch.bincount(links[0] * 7 + links[1], minlength=35), torch.ones(35)) > BOUND


# Preparation #########################################################################################################


def test_times_need_not_be_contiguous():
    times = torch.tensor([[1, 9], [1, 0], [2, 0], [5, 9]])[:, 0]
    found, expected = (
        sample_negatives(50, candidates(3), candidates(4, time=time), 1, seed_time=torch.full((50,), 2))
        for time in (times, times.clone())
    )
    assert torch.equal(found, expected)


def test_candidates():
    plain = candidates(3)
    assert plain == (3, 3, None, None, None, None)
    assert candidates(3, time=torch.tensor([1, 1, 2])).node is None
    timed = candidates(3, time=torch.tensor([2, 3, 1]))
    assert [x.tolist() for x in (timed.node, timed.position, timed.time)] == [[2, 0, 1], [1, 2, 0], [1, 2, 3]]
    both = candidates(4, torch.tensor([0.0, 2, 1, 4]), torch.tensor([0, 9, 8, 8]))
    assert (both.num_nodes, both.size) == (4, 3)
    assert both.node.tolist() == [2, 3, 1]
    assert both.position.tolist() == [-1, 2, 0, 1]
    assert both.weight.tolist() == [1 << 30, 5 << 30, 7 << 30]
    assert candidates(0) == (0, 0, None, None, None, None)
    assert len(candidates(0, torch.empty(0)).weight) == 0


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_edge_set(dtype):
    src, dst = random_edges(20, 30, 0.3, 1)
    edges = edge_set(src.to(dtype), dst.to(dtype), 20, 30)
    expected = sorted(zip(src.tolist(), dst.tolist(), strict=True))
    found = list(zip(torch.repeat_interleave(edges.ptr.diff()).tolist(), edges.dst.tolist(), strict=True))
    assert found == expected
    by_source = torch.argsort(src, stable=True)
    by_destination = by_source[torch.argsort(dst[by_source], stable=True)]
    sorted_already = edge_set(src[by_destination].to(dtype), dst[by_destination].to(dtype), 20, 30)
    assert all(torch.equal(a, b) for a, b in zip(edges, sorted_already, strict=True))


# What is refused #####################################################################################################

COMPLETE = edge_set(*torch.ones(3, 4).nonzero().t(), 3, 4)
NAN = float("nan")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: candidates(-1), ValueError, "num_nodes: expected 0 <= num_nodes <= 1099511627776, found -1"),
        (lambda: candidates(2, torch.ones(3)), ValueError, "weight: expected shape (2,), found (3,)"),
        (lambda: candidates(2, [1, 2]), TypeError, "weight: expected a tensor, found list"),
        (lambda: candidates(2, torch.ones(2).bool()), TypeError, "weight: expected real numbers, found torch.bool"),
        (lambda: candidates(1, torch.ones(1) * 1j), TypeError, "weight: expected real numbers, found torch.complex64"),
        (
            lambda: candidates(2, torch.tensor([0, -1.0])),
            ValueError, "weight[1] = -1.0: expected a finite number that is not negative",
        ),
        (
            lambda: candidates(2, torch.tensor([NAN, 1])),
            ValueError, "weight[0] = nan: expected a finite number that is not negative",
        ),
        (
            lambda: candidates(2, torch.tensor([1, float("inf")])),
            ValueError, "weight[1] = inf: expected a finite number that is not negative",
        ),
        (lambda: candidates(2, torch.zeros(2)), ValueError, "weight: expected a number above 0, found none"),
        (lambda: candidates(2, time=torch.zeros(2)), TypeError, "time: expected int64, found torch.float32"),
        (lambda: candidates(2, time=torch.arange(3)), ValueError, "time: expected shape (2,), found (3,)"),
        (lambda: sample_negatives(-1, candidates(2), candidates(2), 1), ValueError, "count: expected 0 <= count"),
        (
            lambda: sample_negatives(2, torch.arange(3), candidates(2), 1),
            ValueError, "src: expected 2 sources, found 3",
        ),
        (lambda: sample_negatives(2, torch.ones(2), candidates(2), 1), TypeError, "src: expected int32 or int64 ids"),
        (
            lambda: sample_negatives(2, torch.tensor([0, 3]), candidates(4), 1, edges=COMPLETE),
            IndexError, "src[1] = 3 is out of range: expected nodes in [0, 3)",
        ),
        (
            lambda: sample_negatives(2, candidates(2), candidates(4), 1, edges=COMPLETE),
            ValueError, "edges: expected those of 2 sources, found 3",
        ),
        (
            lambda: sample_negatives(2, candidates(2), candidates(2, time=torch.arange(2)), 1),
            ValueError, "seed_time: required if candidates have times",
        ),
        (
            lambda: sample_negatives(
                2, candidates(2), candidates(2, time=torch.arange(2)), 1, seed_time=torch.zeros(2)
            ),
            TypeError, "seed_time: expected int64, found torch.float32",
        ),
        (
            lambda: sample_negatives(2, candidates(3), candidates(4), 1, edges=COMPLETE),
            ValueError, "negative 0: expected a link that is not an edge, found none",
        ),
        (
            lambda: sample_negatives(2, torch.tensor([2, 1]), candidates(4), 1, edges=COMPLETE),
            ValueError, "negative 0: expected a destination for source 2 that is not an edge, found none",
        ),
        (
            lambda: sample_negatives(
                3, torch.zeros(3).long(), candidates(2, time=torch.tensor([5, 6])), 1,
                seed_time=torch.tensor([6, 5, 4]),
            ),
            ValueError, "negative 2: expected a destination for source 0 of nodes not later than 4, found none",
        ),
        (lambda: sample_negatives(1, candidates(2), candidates(0), 1), ValueError, "negative 0: expected a link"),
    ],
)  # fmt: skip
def test_bad_input(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)


def test_devices():
    for call in (
        lambda: candidates(2, torch.ones(2, device="meta")),
        lambda: candidates(2, time=torch.arange(2, device="meta")),
        lambda: sample_negatives(2, torch.arange(2, device="meta"), candidates(2), 1),
    ):
        with pytest.raises(NotImplementedError, match=r"expected a tensor in host memory, found one on meta; move it"):
            call()


def test_none():
    for src in (candidates(0), torch.empty(0, dtype=torch.int64)):
        assert sample_negatives(0, src, candidates(0), 1).shape == (2, 0)


def test_one_free_link_is_found_among_many():
    num_nodes = 400
    dense = torch.ones(num_nodes, num_nodes)
    dense[123, 321] = 0
    edges = edge_set(*dense.nonzero().t(), num_nodes, num_nodes)
    ends = candidates(num_nodes)
    assert sample_negatives(3, ends, ends, 1, edges=edges).tolist() == [[123] * 3, [321] * 3]
    heavy = candidates(
        num_nodes, torch.full((num_nodes,), 1e30, dtype=torch.float64).index_fill(0, torch.tensor(321), 1)
    )
    assert sample_negatives(3, heavy, heavy, 1, edges=edges).tolist() == [[123] * 3, [321] * 3]


def test_all_combinations_of_small_graphs():
    # Every graph of two sources and two destinations.
    ends = candidates(2)
    links = list(itertools.product(range(2), range(2)))
    for present in itertools.product([False, True], repeat=4):
        known = [link for link, there in zip(links, present, strict=True) if there]
        edges = edge_set(*torch.tensor(known, dtype=torch.int64).reshape(-1, 2).t(), 2, 2)
        if len(known) == 4:
            with pytest.raises(ValueError, match="found none"):
                sample_negatives(1, ends, ends, 1, edges=edges)
            continue
        found = set(zip(*sample_negatives(200, ends, ends, 1, edges=edges).tolist(), strict=True))
        assert found == set(links) - set(known)
        assert torch.equal(
            reference.sample_negatives(50, ends, ends, 1, edges=edges),
            ops.sample_negatives(50, ends, ends, 1, edges=edges),
        )


def test_undecided_negatives_of_one_destination_limit_and_two_source_limits():
    """Nearly all the weight is on destinations with edges from everywhere, so that the table of all pairs decides."""
    src = candidates(3, time=torch.tensor([0, 5, 9]))
    dst = candidates(3, torch.tensor([1.0, 1.0, 1e-9]), torch.zeros(3, dtype=torch.int64))
    edges = edge_set(torch.arange(3).repeat_interleave(2), torch.tensor([0, 1] * 3), 3, 3)
    options = {"seed_time": torch.tensor([2, 20] * 20), "edges": edges}
    found = sample_negatives(40, src, dst, 3, **options)
    assert torch.equal(found, reference.sample_negatives(40, src, dst, 3, **options))
    assert found[1].tolist() == [2] * 40
    assert set(found[0, ::2].tolist()) == {0}
    assert set(found[0, 1::2].tolist()) == {0, 1, 2}


def test_undecided_negatives_of_one_source_limit_and_two_destination_limits():
    src = candidates(3, time=torch.zeros(3, dtype=torch.int64))
    dst = candidates(4, torch.tensor([1.0, 1.0, 1e-9, 1e-9]), torch.tensor([0, 0, 0, 9]))
    edges = edge_set(torch.arange(3).repeat_interleave(2), torch.tensor([0, 1] * 3), 3, 4)
    options = {"seed_time": torch.tensor([2, 20] * 20), "edges": edges}
    found = sample_negatives(40, src, dst, 3, **options)
    assert torch.equal(found, reference.sample_negatives(40, src, dst, 3, **options))
    assert set(found[1, ::2].tolist()) == {2}
    assert set(found[1, 1::2].tolist()) == {2, 3}
