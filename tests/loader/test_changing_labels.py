"""Labels of links are as they are when their batch is delivered, however far ahead batches are made."""

import dataclasses

import pytest
import torch
from helpers.data import make_data
from helpers.modes import MODES

from torch_gnnscale import LinkNeighborLoader

LINKS = torch.stack([torch.arange(60), torch.arange(60).flip(0)])


@pytest.mark.parametrize("negatives", [None, "binary"])
def test_labels_of_links(negatives):
    def run(options, change=True):
        labels = torch.arange(1.0, 61)
        loader = LinkNeighborLoader(
            make_data(), [3], LINKS, labels, batch_size=16, seed=1, shuffle=True, neg_sampling=negatives,
            input_id=torch.arange(60) * 3, **options
        )  # fmt: skip
        for batch in loader:
            links = batch.input_id // 3
            assert torch.equal(batch.edge_label[: len(links)], labels[links])
            assert not batch.edge_label[len(links) :].any()
            assert len(batch.edge_label) == batch.edge_label_index.size(1)
            labels += change

    for options in (*MODES, {"prefetch": 2, "transform_sampler_output": dataclasses.replace}):
        run(options)
    run({"prefetch": 2}, change=False)


@pytest.mark.parametrize("negatives", [None, "binary"])
def test_labels_that_learn_are_those_of_the_delivery(negatives):
    """Labels that require grad have no number by which a change is seen."""
    for options in MODES:
        labels = torch.arange(1.0, 61).requires_grad_()
        loader = LinkNeighborLoader(
            make_data(), [3], LINKS, labels, batch_size=16, seed=1, neg_sampling=negatives, **options
        )
        for batch in loader:
            found = batch.edge_label[: len(batch.input_id)]
            assert torch.equal(found, labels[batch.input_id]), options
            labels.grad = None
            found.sum().backward()
            assert labels.grad.nonzero().view(-1).tolist() == batch.input_id.tolist(), options
            with torch.no_grad():
                labels += 1


@pytest.mark.parametrize(("smallest", "follow"), [(-1, True), (0, False), (1, True)])
def test_labels_of_links_follow_unless_they_are_a_copy(smallest, follow):
    """With binary negatives PyG adds 1 to a copy of labels whose smallest is 0."""
    for options in MODES:
        labels = torch.full((60,), smallest)
        loader = LinkNeighborLoader(
            make_data(), [3], LINKS, labels, batch_size=16, seed=1, neg_sampling="binary", **options
        )
        found = []
        for batch in loader:
            found.append(int(batch.edge_label[0]))
            labels.fill_(10 + len(found))
        assert found == ([smallest, 11, 12, 13] if follow else [1] * 4), options


@pytest.mark.slow
@pytest.mark.parametrize("filter_per_worker", [True, False])
def test_labels_of_links_in_worker_processes(filter_per_worker):
    labels = torch.arange(1.0, 61)
    loader = LinkNeighborLoader(
        make_data(), [3], LINKS, labels, batch_size=16, num_workers=1, multiprocessing_context="fork",
        filter_per_worker=filter_per_worker,
    )  # fmt: skip
    iterator = iter(loader)
    for _ in range(2):
        batch = next(iterator)
        assert torch.equal(batch.edge_label, labels[batch.input_id])
    labels += 1
    if filter_per_worker:
        with pytest.raises(RuntimeError, match=r"^'edge_label': expected attributes that stay as they are"):
            next(iterator)
    else:
        batch = next(iterator)
        assert torch.equal(batch.edge_label, labels[batch.input_id])
