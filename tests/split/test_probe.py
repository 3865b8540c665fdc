"""What is told of a batch, so that all ranks make one like it."""

import torch
from helpers.narrow import batches
from helpers.split import cut_batches

from torch_gnnscale.split.agreement import Field, Fields, fields_of, probe_batch


def test_a_batch_without_nodes_has_the_fields_of_others():
    owners = torch.zeros(200, dtype=torch.int64)
    whole, nothing = map(fields_of, cut_batches(next(iter(batches())), owners, 2))
    assert (nothing.hops, nothing.num_nodes, nothing.has_halo) == (whole.hops, 0, True)
    assert not nothing.tensors["x"].of_edges
    assert nothing.tensors["x"].rows.shape == (0, *whole.tensors["x"].rows.shape[1:])


def test_a_field_that_is_one_number_has_no_rows():
    (batch,) = cut_batches(next(iter(batches())), torch.zeros(200, dtype=torch.int64), 1)
    known = fields_of(batch)
    batch.temperature = torch.tensor(0.5)
    found = fields_of(batch)
    assert found.tensors.keys() == known.tensors.keys()


def test_a_field_with_a_number_per_node_or_edge_has_rows():
    (batch,) = cut_batches(next(iter(batches())), torch.zeros(200, dtype=torch.int64), 1)
    nodes, edges = torch.arange(batch.num_nodes), torch.arange(batch.edge_index.size(1))
    batch.z, batch.edge_weight, batch.distance = nodes, edges, edges + 1
    found = fields_of(batch)
    for name, of_edges in {"z": False, "edge_weight": True, "distance": True}.items():
        field = found.tensors[name]
        assert field.of_edges == of_edges
        assert len(field.rows) > 0
        assert torch.equal(field.rows, batch[name][: len(field.rows)])
    assert not found.others.keys() & {"z", "edge_weight", "distance"}


def test_a_field_without_rows_has_some_on_the_probe():
    tensors = {"edge_attr": Field(True, torch.empty(0, 2)), "z": Field(False, torch.empty(0, dtype=torch.int64))}
    batch = probe_batch(Fields(2, 0, tensors, {}, False), torch.device("cpu"))
    assert batch.edge_attr.shape == (batch.edge_index.size(1), 2)
    assert batch.edge_attr.unique().numel() == batch.edge_attr.numel()
    assert batch.z.tolist() == [0] * batch.num_nodes


def test_edges_of_the_probe_are_counted_by_the_hop_of_their_destination():
    batch = probe_batch(Fields(3, 0, {}, {}, False), torch.device("cpu"))
    nodes, edges = batch.num_sampled_nodes, batch.num_sampled_edges
    assert (len(nodes), len(edges), sum(nodes)) == (4, 3, batch.num_nodes)
    assert sum(edges) == batch.edge_index.size(1)
    hop = torch.arange(4).repeat_interleave(torch.tensor(nodes))[batch.edge_index[1]]
    assert torch.bincount(hop, minlength=4).tolist() == [*edges, 0]
