"""Arguments that a loader of anchors refuses, or of which it says that they have no effect."""

import re

import pytest
import torch
from helpers.anchors import (
    POSITIVES,
    USERS,
    loader_of,
)
from helpers.links import RATES, heterogeneous
from helpers.refused import refuses
from torch_geometric.sampler import BaseSampler, NegativeSampling

from torch_gnnscale import NeighborLoader


class Foreign(BaseSampler):
    sample_from_nodes = sample_from_edges = None


ROWPTR, COL = POSITIVES


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"positives": (RATES, torch.zeros(41).long(), COL[:0])}, ValueError,
         "anchors: expected a positive for each, found none for anchors[0] = 39; use empty='skip' to leave such "
         "anchors out"),
        ({"empty": "no"}, ValueError, "empty: expected 'error' or 'skip', found 'no'"),
        ({"lists_of": "users"}, ValueError, "lists_of: expected 'nodes' or 'anchors', found 'users'"),
        ({"lists_of": "anchors"}, ValueError,
         "positives: rowptr: expected shape (11,), for a list of each of 10 anchors, found (41,)"),
        ({"lists_of": "anchors", "positives": RATES}, ValueError,
         "lists_of='anchors': expected positives in lists, found the graph's edges"),
        ({"num_positives": 0}, ValueError, "num_positives: expected at least 1, or -1 for all, found 0"),
        ({"neg_sampling": "binary"}, ValueError,
         "neg_sampling: expected triplets, whose negatives are of the anchors, found binary ones"),
        ({"positives": None}, ValueError, "positives: expected an edge type, or one and lists, found None"),
        ({"positives": POSITIVES}, ValueError, "positives: expected an edge type, or one and lists, found a tuple"),
        ({"positives": ("user", "sells", "item")}, ValueError, "positives: expected an edge type of "),
        ({"positives": (RATES, ROWPTR)}, TypeError,
         "positives: expected (rowptr, col), or these and times, found a tuple"),
        ({"positives": (RATES, ROWPTR[1:], COL)}, ValueError,
         "positives: rowptr: expected shape (41,), for a list of each of 40 nodes, found (40,)"),
        ({"positives": (RATES, ROWPTR, COL[1:])}, ValueError,
         "positives: rowptr[40] (the last): expected the number of edges 100, found 101"),
        ({"positives": (RATES, ROWPTR, COL + 50)}, IndexError, "positives: col[0] = "),
        ({"negatives": (ROWPTR, COL.float())}, TypeError, "negatives: col: expected a vector of int32 or int64, found"),
        ({"negatives": COL}, TypeError, "negatives: expected (rowptr, col), or these and times, found a Tensor"),
        ({"anchors": ("item", None)}, ValueError,
         "anchors: expected nodes of 'user', from which positives lead, found 'item'"),
        ({"anchors": {"user": USERS}}, TypeError, "anchors: expected those of one type, found a dictionary"),
        ({"anchors": ("user", torch.tensor([40]))}, IndexError,
         "anchors[0] = 40 is out of range: expected nodes in [0, 40)"),
        ({"anchor_time": [1.0] * 10, "time_attr": "time"}, TypeError, "anchor_time: expected a tensor, found list"),
        ({"batch_size": {"user": 2}}, TypeError,
         "batch_size: expected a number, because anchors is no dictionary, found a dict"),
        ({"anchor_time": torch.ones(10)}, ValueError, "anchor_time: expected none without time_attr, found some"),
        ({"anchor_time": torch.ones(9), "time_attr": "time"}, ValueError,
         "anchor_time: expected 10 times, found shape (9,)"),
        ({"neighbor_sampler": Foreign()}, TypeError,
         "neighbor_sampler: expected a NeighborSampler or a LayerSampler, found Foreign"),
        ({"device": "cuda"}, NotImplementedError, "anchors with device='cuda' are not implemented"),
        ({"time_window": 5, "time_attr": "time"}, NotImplementedError,
         "time_window: time windows of anchors are not implemented; anchor_time ends them"),
        ({"split": 1}, NotImplementedError, "anchors with split=1 are not implemented"),
        ({"input_id": torch.arange(9)}, ValueError, "input_id: expected 10 ids, one per input, found shape (9,)"),
    ],
)  # fmt: skip
def test_bad_arguments(options, error, text):
    with pytest.raises(error) as found:
        loader_of(**options)
    assert str(found.value).startswith(text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"strict_negatives": True}, "strict_negatives has no effect without neg_sampling: no negatives are drawn"),
        ({"neg_sampling": NegativeSampling("triplet", 2, src_weight=torch.ones(40))},
         "neg_sampling: src_weight has no effect in triplets, whose negatives have the sources of links"),
        ({"positives": (RATES, ROWPTR, COL, COL)}, "positives: times of the entries have no effect without time_attr"),
        ({"negatives": (ROWPTR, COL, COL), "time_attr": "time", "anchor_time": torch.full((10,), 10)},
         "negatives: times of the entries have no effect beside those of the nodes, which count"),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_named(options, text):
    with pytest.warns(UserWarning, match=f"^{re.escape(text)}$"):
        loader_of(empty="skip", **options)


def test_anchors_without_times():
    data = heterogeneous()
    del data["user"].time
    with refuses(ValueError, "anchor_time: expected times of the anchors, whose nodes have none, found none"):
        loader_of(data, time_attr="time")


def test_a_loader_of_seeds_has_no_anchors():
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        NeighborLoader(heterogeneous(), [2], "user", anchors=USERS)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), None], ids=repr)
def test_anchors_on_the_cpu(device):
    plain = next(iter(loader_of(empty="skip", seed=3)))
    batch = next(iter(loader_of(empty="skip", seed=3, device=device)))
    assert torch.equal(batch["user"].n_id, plain["user"].n_id)
