"""What the twin of cutting says, against the definition of a cut: each property by itself, in sets and loops."""

from collections import Counter
from itertools import accumulate, pairwise

import pytest
import reference
import torch
from helpers.data import make_data, node_rows
from helpers.slow import examples
from helpers.split import Whole, cut_batches, cut_of, own_and_halo, random_owners, wholes
from hypothesis import given
from hypothesis import strategies as st

from torch_gnnscale import NeighborLoader


def groups_of(whole: Whole) -> list[int]:
    return [g for g, count in enumerate(whole.num_nodes) for _ in range(count)]


def edges_of(whole: Whole) -> list[tuple[int, int, int]]:
    """(source, destination, number) per edge."""
    ends = whole.colptr.tolist()
    each = [(dst, edge) for dst in range(len(ends) - 1) for edge in range(ends[dst], ends[dst + 1])]
    return [(int(whole.row[edge]), dst, edge) for dst, edge in each]


def check_cuts(whole: Whole, cuts: list, parts: int) -> None:
    """Asserts that these are the cuts of all ranks."""
    group, owner, ids, edges = groups_of(whole), whole.owner.tolist(), whole.node.tolist(), edges_of(whole)
    hops = len(whole.num_nodes) - 1
    assert sorted(i for cut in cuts for i in cut.local.tolist()) == list(range(len(ids)))
    assert sorted(e for cut in cuts for e in cut.edge.tolist()) == list(range(len(edges)))
    for part, cut in enumerate(cuts):
        own = cut.local.tolist()
        assert all(owner[i] == part for i in own)
        assert [group[i] for i in own] == sorted(group[i] for i in own)
        assert cut.num_nodes == [sum(group[i] == g for i in own) for g in range(hops + 1)]
        begins = [0, *accumulate(cut.num_nodes)]
        assert own[: begins[1]] == sorted(own[: begins[1]])
        for g in range(1, hops + 1):
            of_group = [ids[i] for i in own[begins[g] : begins[g + 1]]]
            assert of_group == sorted(of_group)
        # the edges lead where they led, in their order
        place = own + cut.halo.tolist()
        found = [
            (place[int(cut.row[at])], own[i], int(cut.edge[at]))
            for i in range(len(cut.colptr) - 1)
            for at in range(int(cut.colptr[i]), int(cut.colptr[i + 1]))
        ]
        assert sorted(found) == sorted(edge for edge in edges if owner[edge[1]] == part)
        assert [edge for *_, edge in found] == cut.edge.tolist()
        assert all(a[2] < b[2] for a, b in pairwise(found) if a[1] == b[1])
        assert cut.num_edges == [sum(group[dst] == g for _, dst, _ in found) for g in range(hops)]
        # the halo and its levels
        level = {src: 1 + min(group[d] for s, d, _ in found if s == src) for src, *_ in found if owner[src] != part}
        halo = cut.halo.tolist()
        assert halo == sorted(level, key=lambda i: (owner[i], level[i], ids[i]))
        counts = Counter((owner[i], level[i]) for i in halo)
        assert cut.num_received == [[counts[p, g + 1] for g in range(hops)] for p in range(parts)]
        assert sum(map(sum, cut.num_received)) == len(halo)
        # what rank p sends to this one is what this one expects of rank p
        for p, sender in enumerate(cuts):
            sent = sender.sent.split([sum(row) for row in sender.num_sent])[part]
            assert [int(sender.local[i]) for i in sent] == [i for i in halo if owner[i] == p]
            assert sender.num_sent[part] == cut.num_received[p]


@examples(30)
@given(st.data(), st.integers(1, 4))
def test_the_twin_cuts_by_its_definition(data, parts):
    whole = data.draw(wholes(parts))
    check_cuts(whole, [reference.cut_batch(*whole, parts, part) for part in range(parts)], parts)


def test_a_level_is_that_of_the_least_group():
    """Seed 0 of rank 0 and node 2 of hop 1 both have an edge from node 1 of rank 1: it is needed for seeds, level 1."""
    whole = Whole(
        torch.tensor([5, 9, 3, 4]), [1, 2, 1], torch.tensor([0, 2, 2, 4]), torch.tensor([1, 2, 1, 3]),
        torch.tensor([0, 1, 0, 1]),
    )  # fmt: skip
    cut = reference.cut_batch(*whole, 2, 0)
    assert (cut.halo.tolist(), cut.num_received) == ([1, 3], [[0, 0], [1, 1]])
    assert cut.row.tolist() == [2, 1, 2, 3]


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_cut_batches_of_a_loader(parts):
    data = make_data()
    seeds = torch.tensor([7, 3, 7, 50, 150, 3])
    owners = random_owners(200, parts, seed=1)
    for batch in NeighborLoader(data, [4, 3, 2], seeds, batch_size=6, seed=2):
        colptr = torch.bincount(batch.edge_index[1], minlength=sum(batch.num_sampled_nodes[:-1])).cumsum(0)
        whole = Whole(
            batch.n_id, batch.num_sampled_nodes, torch.cat([colptr.new_zeros(1), colptr]), batch.edge_index[0],
            owners[batch.n_id],
        )  # fmt: skip
        cuts = [cut_of(batch, owners, parts, part) for part in range(parts)]
        check_cuts(whole, cuts, parts)
        found = cut_batches(batch, owners, parts)
        for part, (of_rank, cut) in enumerate(zip(found, cuts, strict=True)):
            ids = torch.cat([of_rank.n_id, batch.n_id[cut.halo]])
            assert torch.equal(ids[of_rank.edge_index], data.edge_index[:, of_rank.e_id])
            assert torch.equal(of_rank.x_halo, node_rows(batch.n_id[cut.halo]))
            rows = own_and_halo(found, part, [other.x for other in found])
            assert torch.equal(rows, torch.cat([of_rank.x, of_rank.x_halo]))
