import dataclasses
import re

import pytest
import torch
from helpers.data import double, loader_of, node_rows, plain
from helpers.hetero import PAPER, WRITES, make_hetero
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, SamplerOutput

from torch_gnnscale import NeighborSampler


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("filter_per_worker", [True, False, None])
def test_transform(data, prefetch, filter_per_worker):
    for batch in loader_of(data, transform=double, prefetch=prefetch, filter_per_worker=filter_per_worker):
        assert torch.equal(batch.x, node_rows(batch.n_id) * 2)
    assert list(loader_of(data, transform=lambda batch: batch.batch_size)) == [32] * 6 + [8]


def same_output(out):
    return out


def every_other_edge_in_place(out):
    out.row, out.col, out.edge = out.row[::2], out.col[::2], out.edge[::2]
    return out


def every_other_edge_anew(out):
    return SamplerOutput(node=out.node, row=out.row[::2], col=out.col[::2], edge=out.edge[::2], batch=out.batch,
                         num_sampled_nodes=out.num_sampled_nodes, num_sampled_edges=out.num_sampled_edges,
                         metadata=out.metadata)  # fmt: skip


def every_other_edge_replaced(out):
    return dataclasses.replace(out, row=out.row[::2], col=out.col[::2], edge=out.edge[::2])


def unsorted_edges(out):
    order = torch.arange(out.row.numel()).flip(0)
    return dataclasses.replace(out, row=out.row[order], col=out.col[order], edge=out.edge[order])


def ids_only(out):
    out.edge = out.edge.flip(0)
    return out


def edges_in(batch, layout):
    """The edges as a model reads them."""
    if layout == "coo":
        return batch.edge_index
    if layout == "sparse_csr":
        colptr, row = batch.adj_t.crow_indices(), batch.adj_t.col_indices()
    else:
        batch.edge_index.validate()
        (colptr, row), _ = batch.edge_index.get_csc()
    return torch.stack([row, torch.repeat_interleave(colptr.diff())])


@pytest.mark.parametrize("layout", ["coo", "EdgeIndex", "sparse_csr"])
@pytest.mark.parametrize(
    "change", [same_output, every_other_edge_in_place, every_other_edge_anew, every_other_edge_replaced, unsorted_edges]
)
def test_transform_sampler_output(data, change, layout):
    changed = loader_of(data, transform_sampler_output=change, edge_layout=layout)
    for found, whole in zip(changed, loader_of(data), strict=True):
        out = change(SamplerOutput(whole.n_id, *whole.edge_index, whole.e_id, metadata=(None, None)))
        assert torch.equal(found.n_id, whole.n_id)
        expected, edges = torch.stack([out.row, out.col]), edges_in(found, layout)
        order = out.col.sort(stable=True).indices if layout != "coo" else slice(None)
        assert torch.equal(edges, expected[:, order])
        # Edge ids and features stay beside their edges.
        assert torch.equal(found.n_id[edges], data.edge_index[:, found.e_id])
        assert torch.equal(found.edge_attr[:, 0], -1.0 - found.e_id)


@pytest.mark.parametrize("layout", ["coo", "EdgeIndex", "sparse_csr"])
def test_transform_sampler_output_of_types(layout):
    data, types = make_hetero(), set()

    def change(out):
        return dataclasses.replace(
            out,
            **{
                name: {t: ends.flip(0)[::2] for t, ends in getattr(out, name).items()}
                for name in ("row", "col", "edge")
            },
        )

    for batch in loader_of(data, input_nodes=PAPER, transform_sampler_output=change, edge_layout=layout):
        for src, name, dst in batch.edge_types:
            edges = edges_in(batch[src, name, dst], layout)
            ends = torch.stack([batch[src].n_id[edges[0]], batch[dst].n_id[edges[1]]])
            assert torch.equal(ends, data[src, name, dst].edge_index[:, batch[src, name, dst].e_id])
            types |= {len(batch[src].n_id) > len(batch[dst].n_id)} if edges.numel() else set()
    assert types == {False, True}  # more sources than destinations, and fewer


def test_transform_sampler_output_of_edge_ids(data):
    for found, whole in zip(loader_of(data, transform_sampler_output=ids_only), loader_of(data), strict=True):
        assert torch.equal(found.e_id, whole.e_id.flip(0))
        assert torch.equal(found.edge_attr, whole.edge_attr.flip(0))


@pytest.mark.parametrize("layout", ["coo", "EdgeIndex", "sparse_csr"])
@pytest.mark.parametrize("end", ["row", "col"])
def test_transform_sampler_output_of_one_end(data, end, layout):
    def change(out):
        setattr(out, end, torch.zeros_like(getattr(out, end)))
        return out

    for found, whole in zip(loader_of(data, transform_sampler_output=change, edge_layout=layout), loader_of(data),
                            strict=True):  # fmt: skip
        expected = whole.edge_index.clone()
        expected[["row", "col"].index(end)] = 0
        assert torch.equal(edges_in(found, layout), expected)


def no_edge_index(out):
    out.row, out.col = out.row.clone(), out.col.clone()
    out.edge_index = None
    return out


def test_transform_sampler_output_that_removes_the_edge_index(data):
    for found, whole in zip(loader_of(data, transform_sampler_output=no_edge_index), loader_of(data), strict=True):
        assert torch.equal(found.edge_index, whole.edge_index)


def without_writes(out):
    for by_type in (out.row, out.col, out.edge, out.edge_index):
        del by_type[WRITES]
    return out


def test_transform_sampler_output_that_removes_a_type():
    data = make_hetero()
    for found, whole in zip(loader_of(data, input_nodes=PAPER, transform_sampler_output=without_writes),
                            loader_of(data, input_nodes=PAPER), strict=True):  # fmt: skip
        assert whole[WRITES].edge_index.numel()
        assert "edge_index" not in found[WRITES] or not found[WRITES].edge_index.numel()
        for edge_type in set(data.edge_types) - {WRITES}:
            assert torch.equal(found[edge_type].edge_index, whole[edge_type].edge_index)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_transform_sampler_output_can_be_set_between_epochs(data, prefetch):
    """As PyG reads it: for each batch."""
    changed, whole = loader_of(data, prefetch=prefetch), loader_of(data)
    for change in (None, every_other_edge_in_place, None):
        changed.transform_sampler_output = change
        for found, expected in zip(changed, whole, strict=True):
            assert torch.equal(found.e_id, expected.e_id[:: 1 if change is None else 2])


def other_weights(out):
    out.edge_weight = out.edge_weight[::2]
    return every_other_edge_in_place(out)


def turned_around(out):
    out.row, out.col = out.col, out.row
    return out


def without_ids(out):
    out.row, out.col, out.edge = out.row[::2], out.col[::2], None
    return out


def fewer_edges(out):
    out.row, out.col = out.row[::2], out.col[::2]
    return out


WEIGHTS_LEFT = (
    "^transform_sampler_output: expected edge_weight{} to be changed with row, col and edge, found the weights of the "
    "edges before$"
)


@pytest.mark.parametrize(
    "change", [every_other_edge_in_place, every_other_edge_replaced, unsorted_edges, without_ids, fewer_edges]
)
def test_transform_sampler_output_that_leaves_the_weights_of_other_edges_is_refused(data, change):
    with pytest.raises(ValueError, match=WEIGHTS_LEFT.format("")):
        next(iter(loader_of(data, method="ladies", transform_sampler_output=change)))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_transform_sampler_output_that_leaves_the_weights_of_a_type_is_refused(prefetch):
    def change(out):
        for ends in (out.row, out.col, out.edge):
            ends[WRITES] = ends[WRITES][::2]
        return out

    data = make_hetero()
    sampler = WeightedOutputs(data, [3, 2])
    with pytest.raises(ValueError, match=WEIGHTS_LEFT.format(f" of {re.escape(str(WRITES))}")):
        next(iter(loader_of(data, input_nodes=PAPER, neighbor_sampler=sampler, transform_sampler_output=change,
                            prefetch=prefetch)))  # fmt: skip


class WeightedOutputs(NeighborSampler):
    """Gives every edge the weight 1."""

    def sample_inputs(self, inputs, key, neg_sampling=None):
        out = super().sample_inputs(inputs, key, neg_sampling)
        out.edge_weight = {edge_type: torch.ones(ids.numel()) for edge_type, ids in out.edge.items()}
        return out


@pytest.mark.parametrize("change", [same_output, other_weights, turned_around])
def test_weights_that_belong_to_the_edges_of_the_transform_stay(data, change):
    for found, whole in zip(loader_of(data, method="ladies", transform_sampler_output=change),
                            loader_of(data, method="ladies"), strict=True):  # fmt: skip
        step = 2 if change is other_weights else 1
        assert torch.equal(found.edge_weight, whole.edge_weight[::step])
        edges = whole.edge_index.flip(0) if change is turned_around else whole.edge_index
        assert torch.equal(found.edge_index, edges[:, ::step])


def test_edge_ids_become_int64(data):
    def narrow(out):
        out.edge = out.edge.int()
        return out

    assert all(batch.e_id.dtype == torch.int64 for batch in loader_of(data, transform_sampler_output=narrow))


def test_fields_of_the_users_stay(data):
    mine = data.clone()
    mine.n_id, mine.e_id = torch.arange(data.num_nodes) * 2, torch.arange(data.num_edges) * 2
    for found, whole in zip(loader_of(mine), loader_of(data), strict=True):
        assert torch.equal(found.n_id, whole.n_id * 2)
        assert torch.equal(found.e_id, whole.e_id * 2)
        assert not any("_cached_attr" in vars(store) for store in found.stores), "deep copies would share it"


class SelfLoops(BaseSampler):
    """A sampler that is not ours: seeds with an edge to themselves."""

    def __init__(self, data, order=None):
        self.data, self.order = data, order

    def sample_from_nodes(self, inputs):
        count = inputs.node.numel()
        rows = torch.arange(count)
        return SamplerOutput(node=inputs.node, row=rows, col=rows, edge=inputs.node, num_sampled_nodes=[count, 0],
                             num_sampled_edges=[count], metadata=(inputs.input_id, inputs.time))  # fmt: skip

    def sample_from_edges(self, inputs, neg_sampling=None):
        raise NotImplementedError

    @property
    def edge_permutation(self):
        return self.order


@pytest.mark.parametrize("layout", ["coo", "EdgeIndex", "sparse_csr"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_any_base_sampler(data, layout, prefetch):
    order = torch.arange(1500).flip(0)
    for permutation in (None, order):
        sampler = SelfLoops(data, permutation)
        for batch in loader_of(data, neighbor_sampler=sampler, edge_layout=layout, prefetch=prefetch):
            expected = batch.n_id if permutation is None else order[batch.n_id]
            assert torch.equal(batch.e_id, expected)
            assert torch.equal(batch.edge_attr[:, 0], -1.0 - expected)
            assert torch.equal(batch.x, node_rows(batch.n_id))


def test_our_sampler_shared_by_loaders(data):
    sampler = NeighborSampler(data, [3, 2])
    for one, other in zip(loader_of(data, neighbor_sampler=sampler), loader_of(data), strict=True):
        assert plain(one) == plain(other)


def test_is_sorted(data):
    order = data.edge_index[1].sort(stable=True).indices
    given = Data(x=data.x, edge_index=data.edge_index[:, order], edge_attr=data.edge_attr)
    for sorted_batch, batch in zip(loader_of(given, is_sorted=True), loader_of(given), strict=True):
        assert plain(sorted_batch) == plain(batch)
    with pytest.raises(ValueError, match=r"^is_sorted: expected edges sorted by destination"):
        loader_of(data, is_sorted=True)


def test_a_sample_that_is_collated_twice_is_transformed_once(data):
    loader = loader_of(data, transform_sampler_output=every_other_edge_anew, filter_per_worker=False)
    sample = loader.collate_fn([0, 5, 7])
    first, again = loader.filter_fn(sample), loader.filter_fn(sample)
    assert plain(first) == plain(again)


class SomeSorted(NeighborSampler):
    def sample_from_nodes(self, inputs, key=None):
        out = super().sample_from_nodes(inputs, key)
        out.colptr = {edge_type: colptr for edge_type, colptr in out.colptr.items() if edge_type == WRITES}
        return out


def test_relations_without_column_pointers_keep_their_edges():
    data = make_hetero()
    usual, some = (
        loader_of(data, input_nodes=PAPER, seed=1, neighbor_sampler=kind(data, [3, 2]), edge_layout="EdgeIndex")
        for kind in (NeighborSampler, SomeSorted)
    )
    for batch, other in zip(usual, some, strict=True):
        assert plain(batch.edge_index_dict) == plain(other.edge_index_dict)
        assert sum(map(len, batch.e_id_dict.values())) > len(batch[WRITES].e_id)


def test_original_edges_pass_a_transform(data):
    def loader_with(**options):
        sampler = NeighborSampler(data, [3, 2], "bidirectional")
        sampler.keep_orig_edges = True
        return loader_of(data, neighbor_sampler=sampler, **options)

    for found, expected in zip(loader_with(transform_sampler_output=same_output), loader_with(), strict=True):
        assert torch.equal(found._orig_edge_index, expected._orig_edge_index)
        assert torch.equal(found.edge_index, expected.edge_index)
