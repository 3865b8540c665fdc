"""Loaders of links whose links are of several relations."""

import pytest
import torch
from helpers.data import plain, processes, stop_workers
from helpers.links import FRIENDS, RATED, RATES, SIZES, heterogeneous, pairs_of
from helpers.parts import stores_of
from helpers.refused import refuses
from helpers.slow import SLOW
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, HeteroSamplerOutput, NegativeSampling

from torch_gnnscale import LinkNeighborLoader, NeighborSampler, ops, partition
from torch_gnnscale.random import Purpose, batch_key
from torch_gnnscale.sampler import KeyedSampler
from torch_gnnscale.sampler.base import LinksByType

DATA = heterogeneous()
SOME = DATA[RATES].edge_index[:, ::5]  # 40 ratings; with all 150 edges between users these are 190 links
LINKS = {RATES: SOME, FRIENDS: None}
GIVEN = {RATES: SOME, FRIENDS: DATA[FRIENDS].edge_index}
TIMES = {RATES: torch.arange(40) % 6 + 4, FRIENDS: torch.arange(150) % 5 + 5}
BINARY, TRIPLET = NegativeSampling("binary", 1.5), NegativeSampling("triplet", 2)


def loader_of(data=DATA, links=LINKS, **options):
    return LinkNeighborLoader(data, [3, 2], links, **{"batch_size": 32, "shuffle": True, "seed": 3, **options})


def inputs_of(epoch=0, size=32):
    """By the definition: per batch, the positions of its inputs among the links of each relation."""
    count = sum(links.size(1) for links in GIVEN.values())
    for chunk in ops.permutation(count, batch_key(3, epoch, 0, Purpose.SHUFFLE)).split(size):
        yield {RATES: chunk[chunk < 40], FRIENDS: chunk[chunk >= 40] - 40}


def ends_of(batch, edge_type, index):
    return torch.stack([batch[end].n_id[at] for end, at in zip(edge_type[::2], index, strict=True)])


def negatives_by_definition(number, edge_type, links, batch, amount, src=None):
    """The negatives of the ``number``-th relation in a batch of the first epoch."""
    key = batch_key(batch_key(3, 0, batch), number, purpose=Purpose.NEGATIVE)
    candidates = [ops.candidates(SIZES[end]) for end in edge_type[::2]]
    return ops.sample_negatives(amount, candidates[0] if src is None else src, candidates[1], key)


@pytest.mark.parametrize("exclude", [False, True, "reverse"])
def test_links_labels_and_negatives_of_each_relation(exclude):
    labels = {RATES: torch.arange(40) % 3, FRIENDS: torch.arange(150) % 2 + 1}
    options = {"edge_label": labels, "neg_sampling": BINARY, "exclude_seed_edges": exclude}
    for number, (batch, positions) in enumerate(zip(loader_of(**options), inputs_of(), strict=True)):
        for relation, (edge_type, at) in enumerate(positions.items()):
            store = batch[edge_type]
            found = ends_of(batch, edge_type, store.edge_label_index)
            links, count = GIVEN[edge_type][:, at], -(-3 * len(at) // 2)
            assert torch.equal(store.input_id, at)
            assert torch.equal(found[:, : len(at)], links)
            negatives = negatives_by_definition(relation, edge_type, links, number, count)
            assert torch.equal(found[:, len(at) :], negatives)
            of_links = labels[edge_type][at] + (edge_type == RATES)  # whose smallest is 0
            assert torch.equal(store.edge_label, torch.cat([of_links, torch.zeros(count).long()]))
            if exclude:
                drawn = ends_of(batch, edge_type, store.edge_index)
                assert not pairs_of(drawn) & pairs_of(links)
            if exclude == "reverse":
                turned = RATED if edge_type == RATES else FRIENDS
                drawn = ends_of(batch, turned, batch[turned].edge_index)
                assert not pairs_of(drawn) & pairs_of(links.flip(0))


def test_every_end_is_a_seed_once_and_the_sample_is_theirs():
    sampler = NeighborSampler(DATA, [3, 2])
    for number, (batch, positions) in enumerate(zip(loader_of(neg_sampling=BINARY), inputs_of(), strict=True)):
        ends = {"user": [], "item": []}
        for relation, (edge_type, at) in enumerate(positions.items()):
            links = GIVEN[edge_type][:, at]
            negatives = negatives_by_definition(relation, edge_type, links, number, -(-3 * len(at) // 2))
            for end, nodes in zip(edge_type[::2], torch.cat([links, negatives], dim=1), strict=True):
                ends[end].append(nodes)
        seeds = {end: torch.cat(nodes).unique() for end, nodes in ends.items()}
        out = sampler.sample(seeds, None, batch_key(3, 0, number))
        for end, nodes in seeds.items():
            assert batch[end].num_sampled_nodes[0] == len(nodes)
            assert torch.equal(batch[end].n_id, out.node[end])
        for edge_type in DATA.edge_types:
            assert torch.equal(batch[edge_type].e_id, out.edge[edge_type])


def test_three_relations_of_two_types():
    given = {FRIENDS: DATA[FRIENDS].edge_index[:, :20], RATES: SOME, RATED: SOME.flip(0)[:, 5:]}
    seen = dict.fromkeys(given, 0)
    for batch in loader_of(links=given, neg_sampling=BINARY):
        for edge_type, links in given.items():
            at = batch[edge_type].input_id
            found = ends_of(batch, edge_type, batch[edge_type].edge_label_index)
            assert torch.equal(found[:, : len(at)], links[:, at])
            seen[edge_type] += len(at)
    assert seen == {edge_type: links.size(1) for edge_type, links in given.items()}


def test_triplets_are_fields_of_the_relations():
    loader = loader_of(neg_sampling={RATES: TRIPLET, FRIENDS: NegativeSampling("triplet", 1)})
    for number, (batch, positions) in enumerate(zip(loader, inputs_of(), strict=True)):
        for relation, (edge_type, at) in enumerate(positions.items()):
            store, links, amount = batch[edge_type], GIVEN[edge_type][:, at], 2 - relation
            src, dst = (batch[end].n_id for end in edge_type[::2])
            assert torch.equal(src[store.src_index], links[0])
            assert torch.equal(dst[store.dst_pos_index], links[1])
            sources = links[0].repeat(amount)
            drawn = negatives_by_definition(relation, edge_type, links, number, amount * len(at), sources)[1]
            assert store.dst_neg_index.shape == ((len(at), 2) if amount == 2 else (len(at),))
            assert torch.equal(dst[store.dst_neg_index].view(len(at), -1), drawn.view(amount, -1).t())
            assert "edge_label_index" not in store
            assert "src_index" not in batch["user"]


def test_negatives_of_one_relation_alone():
    for batch, positions in zip(loader_of(neg_sampling={FRIENDS: BINARY}), inputs_of(), strict=True):
        assert batch[RATES].edge_label_index.size(1) == len(positions[RATES])
        assert "edge_label" not in batch[RATES]
        assert batch[FRIENDS].edge_label_index.size(1) == len(positions[FRIENDS]) + -(-3 * len(positions[FRIENDS]) // 2)


@pytest.mark.parametrize("negatives", [None, BINARY, TRIPLET])
def test_times_and_trees_of_each_relation(negatives):
    loader = loader_of(edge_label_time=TIMES, time_attr="time", neg_sampling=negatives)
    for batch, positions in zip(loader, inputs_of(), strict=True):
        limits = torch.cat([TIMES[edge_type][at] for edge_type, at in positions.items()])  # by tree: of each link
        first = 0
        for end in SIZES:
            seeds = batch[end].num_sampled_nodes[0]
            later = batch[end].time > limits[batch[end].batch]
            assert not later[seeds:].any()
        for edge_type, at in positions.items():
            store, numbers = batch[edge_type], torch.arange(first, first + len(at))
            if negatives is TRIPLET:
                index = [store.src_index, store.dst_pos_index]
                assert torch.equal(store.seed_time, TIMES[edge_type][at])
                of_negatives = batch[edge_type[2]].batch[store.dst_neg_index]
                assert torch.equal(of_negatives, numbers[:, None].expand(-1, 2))
                assert not (batch[edge_type[2]].time[store.dst_neg_index] > TIMES[edge_type][at][:, None]).any()
            else:
                index = store.edge_label_index
                assert torch.equal(store.edge_label_time[: len(at)], TIMES[edge_type][at])
            for end, found in zip(edge_type[::2], index, strict=True):
                assert torch.equal(batch[end].batch[found][: len(at)], numbers)
            first += len(at)


@pytest.mark.parametrize("links", [RATES, (RATES, SOME), (FRIENDS, None)])
@pytest.mark.parametrize("negatives", [None, BINARY, TRIPLET])
def test_one_relation_by_a_dictionary_is_that_relation(links, negatives):
    edge_type, given = links if isinstance(links[0], tuple) else (links, None)
    count = DATA[edge_type].edge_index.size(1) if given is None else given.size(1)
    time = torch.arange(count) % 4 + 5
    one = loader_of(links=links, neg_sampling=negatives, edge_label_time=time, time_attr="time")
    options = {"neg_sampling": negatives if negatives is BINARY else {edge_type: negatives}, "time_attr": "time"}
    same = loader_of(links={edge_type: given}, edge_label_time={edge_type: time}, **options)
    assert plain(list(one)) == plain(list(same))
    assert one.state_dict() == same.state_dict()


def test_a_fixed_number_of_each_relation():
    loader = loader_of(batch_size={FRIENDS: 30, RATES: 10})
    found = [(batch[RATES].input_id.numel(), batch[FRIENDS].input_id.numel()) for batch in loader]
    assert found == [(10, 30)] * 4 + [(0, 30)]


WAYS = {"prefetch": {"prefetch": 4}, "bulk": {"bulk": 3, "prefetch": 2}, "processes": processes(2)}


@pytest.mark.parametrize("way", ["prefetch", "bulk", SLOW("processes")])
@pytest.mark.parametrize("negatives", [BINARY, {RATES: TRIPLET, FRIENDS: BINARY}])
def test_every_way_makes_the_same_batches(way, negatives):
    expected = plain(list(loader_of(neg_sampling=negatives, prefetch=0)))
    iterator = iter(loader_of(neg_sampling=negatives, **WAYS[way]))
    assert plain(list(iterator)) == expected
    stop_workers(iterator)


def test_a_state_goes_on_and_knows_negatives():
    loader, other = loader_of(neg_sampling=BINARY), loader_of(neg_sampling=BINARY)
    iterator = iter(loader)
    next(iterator)
    other.load_state_dict(loader.state_dict())
    assert plain(list(other)) == plain(list(iterator))
    with pytest.raises(ValueError, match=r"^state: expected a loader with negatives="):
        loader_of(neg_sampling={RATES: BINARY}).load_state_dict(loader.state_dict())


@pytest.mark.parametrize("prefetch", [0, 4])
def test_labels_that_change_in_the_loop(prefetch):
    labels = {RATES: torch.ones(40), FRIENDS: torch.ones(150)}
    loader = loader_of(edge_label=labels, neg_sampling=BINARY, prefetch=prefetch)
    for number, (batch, positions) in enumerate(zip(loader, inputs_of(), strict=True)):
        for edge_type, at in positions.items():
            of_links = batch[edge_type].edge_label[: len(at)]
            assert (of_links == (number + 1 if edge_type == FRIENDS else 1)).all()
            assert (batch[edge_type].edge_label[len(at) :] == 0).all()
        labels[FRIENDS].add_(1)


def test_strict_negatives_of_each_relation():
    known = {RATES: torch.stack([torch.arange(40), torch.zeros(40).long()])}
    for strict in (True, known):
        loader = loader_of(neg_sampling=NegativeSampling("binary", 3), strict_negatives=strict)
        for batch, positions in zip(loader, inputs_of(), strict=True):
            for edge_type, at in positions.items():
                drawn = ends_of(batch, edge_type, batch[edge_type].edge_label_index[:, len(at) :])
                assert not pairs_of(drawn) & pairs_of(DATA[edge_type].edge_index)
                if strict is known and edge_type == RATES:
                    assert not (drawn[1] == 0).any()


@pytest.mark.parametrize("links", [("user", "item"), {("user", "item"): None, FRIENDS: None}])
@pytest.mark.parametrize("short", [("user", "item"), "rates"])
def test_links_that_are_no_negatives_may_be_of_a_shortened_type(links, short):
    src, dst = torch.arange(SIZES["user"]), torch.arange(1, SIZES["item"])
    known = torch.cartesian_prod(src, dst).t()  # so that item 0 alone is left
    for batch in loader_of(links=links, neg_sampling=BINARY, strict_negatives={short: known}):
        links = batch[RATES].edge_label_index[:, batch[RATES].edge_label == 0]
        assert not ends_of(batch, RATES, links)[1].any()


def test_renumbered_stores_take_and_give_the_user_s_ids(tmp_path):
    partition.write(DATA, tmp_path / "parts", parts=2, method="random")
    stores = stores_of(DATA, str(tmp_path / "parts"))
    weight = torch.zeros(SIZES["item"]).index_fill_(0, torch.tensor([3, 7]), 1.0)
    negatives = {RATES: NegativeSampling("triplet", 1, dst_weight=weight), FRIENDS: BINARY}
    for batch, positions in zip(loader_of(stores, neg_sampling=negatives), inputs_of(), strict=True):
        store, links = batch[RATES], SOME[:, positions[RATES]]
        assert torch.equal(batch["user"].n_id[store.src_index], links[0])
        assert torch.equal(batch["item"].n_id[store.dst_pos_index], links[1])
        assert set(batch["item"].n_id[store.dst_neg_index].tolist()) <= {3, 7}
        found = ends_of(batch, FRIENDS, batch[FRIENDS].edge_label_index)
        assert torch.equal(found[:, : len(positions[FRIENDS])], GIVEN[FRIENDS][:, positions[FRIENDS]])


class Foreign(BaseSampler):
    sample_from_nodes = sample_from_edges = None


class Plain(KeyedSampler):
    """Takes links of one relation: the ends themselves, without neighbors."""

    def sample_from_edges(self, inputs, neg_sampling=None, key=None):
        (src, _, dst), links = inputs.input_type, torch.arange(len(inputs.row))
        assert neg_sampling is None or neg_sampling.is_binary()
        metadata = inputs.input_id, torch.stack([links, links]), inputs.label, inputs.time
        return HeteroSamplerOutput({src: inputs.row, dst: inputs.col}, {}, {}, {}, metadata=metadata)


@pytest.mark.parametrize("negatives", [None, BINARY, {RATES: BINARY}])
def test_a_sampler_of_plain_links_takes_one_relation_by_a_dictionary(negatives):
    for batch in loader_of(links={RATES: SOME}, neighbor_sampler=Plain(), neg_sampling=negatives):
        assert torch.equal(ends_of(batch, RATES, batch[RATES].edge_label_index), SOME[:, batch[RATES].input_id])


@pytest.mark.parametrize(
    ("links", "options", "error", "text"),
    [
        ({}, {}, ValueError, "edge_label_index: expected links of at least one edge type, found an empty dictionary"),
        ({RATES: SOME, ("user", "rates", "item", "x"): None}, {}, ValueError,
         f"edge_label_index: expected an edge type of {[RATES, RATED, FRIENDS]}, found "),
        ({RATES: SOME, FRIENDS: torch.tensor([[0], [40]])}, {}, IndexError,
         f"edge_label_index[{FRIENDS}][1, 0] = 40 is out of range: expected nodes of 'user' in [0, 40)"),
        (LINKS, {"edge_label": {RATES: torch.ones(39)}}, ValueError,
         f"edge_label[{RATES}]: expected one for each of 40 links, found 39"),
        (LINKS, {"edge_label": torch.ones(40)}, TypeError,
         "edge_label: expected a dictionary by type, as edge_label_index, found Tensor"),
        (LINKS, {"edge_label_time": {RATED: torch.ones(40)}, "time_attr": "time"}, ValueError,
         f"edge_label_time: expected types of {[RATES, FRIENDS]}, found {[RATED]}"),
        (LINKS, {"neg_sampling": {RATED: BINARY}}, ValueError,
         f"neg_sampling: expected types of {[RATES, FRIENDS]}, found {[RATED]}"),
        (LINKS, {"neg_sampling": {RATES: TRIPLET}, "edge_label": {RATES: torch.ones(40)}}, ValueError,
         f"edge_label[{RATES}]: expected none with negatives in triplets, found some"),
        (LINKS, {"batch_size": {RATES: 3}}, ValueError,
         f"batch_size: expected a number for each of {[RATES, FRIENDS]}, found none for {[FRIENDS]}"),
        ((RATES, SOME), {"batch_size": {RATES: 3}}, TypeError,
         "batch_size: expected a number, because edge_label_index is no dictionary, found a dict"),
        (LINKS, {"input_id": {RATES: torch.arange(40)}}, ValueError,
         f"input_id: expected ids of the links of all relations, found none of {[FRIENDS]}"),
        (LINKS, {"strict_negatives": SOME, "neg_sampling": BINARY}, TypeError,
         "strict_negatives: expected a bool or a dictionary by edge type, found Tensor"),
        (LINKS, {"strict_negatives": {RATED: SOME}, "neg_sampling": BINARY}, ValueError,
         f"strict_negatives: expected types of {[RATES, FRIENDS]}, found {[RATED]}"),
        ((RATES, SOME), {"strict_negatives": {FRIENDS: SOME}, "neg_sampling": BINARY}, ValueError,
         f"strict_negatives: expected types of {[RATES]}, found {[FRIENDS]}"),
        (LINKS, {"neighbor_sampler": Foreign()}, ValueError,
         "edge_label_index: expected links of one relation with a Foreign, which is no KeyedSampler that takes "
         "several (takes_types), found a dictionary"),
        (LINKS, {"neighbor_sampler": Plain()}, ValueError,
         "edge_label_index: expected links of one relation with a Plain, which is no KeyedSampler that takes "
         "several (takes_types), found a dictionary"),
    ],
)  # fmt: skip
def test_bad_arguments(links, options, error, text):
    with pytest.raises(error) as found:
        loader_of(links=links, **options)
    assert str(found.value).startswith(text)


@pytest.mark.parametrize("given", LINKS)
@pytest.mark.parametrize("name", ["edge_label_time", "edge_label_start_time"])
def test_times_of_some_relations_alone_are_refused(name, given):
    (without,) = LINKS.keys() - {given}
    options = {"edge_label_time": TIMES, name: {given: TIMES[given]}}
    text = f"{name}: expected times of the links of all relations, found none of {[without]}"
    with refuses(ValueError, text):
        loader_of(**options, time_attr="time")


@pytest.mark.parametrize("name", ["time", "start_time"])
def test_a_sampler_refuses_times_of_some_relations_alone(name):
    links = [EdgeSamplerInput(None, *GIVEN[of], time=TIMES[of], input_type=of) for of in (RATES, FRIENDS)]
    for of in links:
        of.start_time = TIMES[of.input_type]
    setattr(links[1], name, None)
    sampler = NeighborSampler(DATA, [3, 2], time_attr="time")
    text = f"{name}: expected times of the links of all relations, found none of {[FRIENDS]}"
    with refuses(ValueError, text):
        sampler.sample_from_edges(LinksByType(links), key=1)
