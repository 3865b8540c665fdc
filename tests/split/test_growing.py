"""Cuts that ranks make hop by hop, here in turns of one process: equal to the twin's cuts of the whole batch."""

import reference
import torch
from helpers.data import make_data
from helpers.slow import examples
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.sampler import NodeSamplerInput

from torch_gnnscale import NeighborSampler, ops
from torch_gnnscale.split.cut_sampler import GrowingCut

NODES, KEY = 60, 5


def grown(graph, fanouts, seeds, bounds):
    """The cuts of all ranks, and by hop the ids that each sent to each."""
    parts = range(len(bounds) - 1)
    own = [seeds[(seeds >= bounds[part]) & (seeds < bounds[part + 1])] for part in parts]
    cuts, messages = [GrowingCut(own[part], bounds, part) for part in parts], []
    for hop, fanout in enumerate(fanouts):
        sent = [
            cut.drawn(ops.pick_neighbors(graph, cut.frontier, [0, len(cut.frontier)], [KEY], hop, fanout))
            for cut in cuts
        ]
        for part, cut in enumerate(cuts):
            cut.came([sent[other][part] for other in parts])
        messages.append(sent)
    return [cut.cut() for cut in cuts], messages


@examples(40)
@given(st.data())
def test_equals_the_twin(data):
    parts = data.draw(st.integers(1, 4))
    ends = sorted(data.draw(st.lists(st.integers(0, NODES), min_size=parts - 1, max_size=parts - 1)))
    bounds = torch.tensor([0, *ends, NODES])
    fanouts = data.draw(st.lists(st.sampled_from([0, 1, 3, -1]), min_size=1, max_size=3))
    seeds = torch.tensor(data.draw(st.lists(st.integers(0, NODES - 1), max_size=9)), dtype=torch.int64)
    sampler = NeighborSampler(make_data(NODES, 200), fanouts)
    whole = sampler.sample_from_nodes(NodeSamplerInput(None, seeds), KEY)
    owner = torch.searchsorted(bounds, whole.node, right=True) - 1
    found, messages = grown(sampler.graph.stored, sampler.fanouts[0], seeds, bounds)
    for part, ours in enumerate(found):
        theirs = reference.cut_batch(whole.node, whole.num_sampled_nodes, whole.colptr, whole.row, owner, parts, part)
        theirs = theirs._replace(
            local=whole.node[theirs.local], edge=whole.edge[theirs.edge], halo=whole.node[theirs.halo]
        )
        for name in ops.Cut._fields:
            one, other = getattr(ours, name), getattr(theirs, name)
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other, name
        asked = torch.cat([ids for sent in messages for ids in sent[part]])
        assert len(asked) == len(asked.unique()) == len(ours.halo)  # each remote node once


def test_a_batch_without_hops_has_its_seeds_alone():
    cut = GrowingCut(torch.tensor([3, 1, 3]), torch.tensor([0, 4, 9]), 0).cut()
    assert (cut.local.tolist(), cut.num_nodes, cut.num_edges, cut.colptr.tolist()) == ([3, 1, 3], [3], [], [0])
    assert [len(tensor) for tensor in (cut.row, cut.edge, cut.halo, cut.sent)] == [0] * 4
    assert (cut.num_sent, cut.num_received) == ([[], []], [[], []])
