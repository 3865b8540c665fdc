"""What torch.compile needs to know of the operators: the shapes of their results, and the derivatives of some."""

from __future__ import annotations

import torch

from . import arguments  # noqa: F401  loads the library
from .graph_arguments import BIDIRECTIONAL, DISJOINT, INDUCED, WITH_COL, WITH_EDGE_ID


@torch.library.register_fake("gnnscale::coo_to_csc")
def _(src, dst, num_src, num_dst, int32, threads):
    edges = src.new_empty((src.numel(), 2), dtype=torch.int32 if int32 else torch.int64)
    return src.new_empty(num_dst + 1, dtype=torch.int64), edges


@torch.library.register_fake("gnnscale::colptr_of_sorted")
def _(dst, num_dst, threads):
    return dst.new_empty(num_dst + 1, dtype=torch.int64)


@torch.library.register_fake("gnnscale::reverse_edges")
def _(colptr, row, edge_id, time, reverse_colptr, reverse_row, reverse_edge_id, reverse_time, size, int32, threads):
    return row.new_empty(size, dtype=torch.int32 if int32 else torch.int64), True


@torch.library.register_fake("gnnscale::first_outside")
def _(ids, limit, threads):
    return ids.new_empty((), dtype=torch.int64)


@torch.library.register_fake("gnnscale::first_malformed")
def _(colptr, num_edges, threads):
    return colptr.new_empty(())


@torch.library.register_fake("gnnscale::renumber")
def _(colptr, row, edge_id, order, rank, int32, threads):
    dtype = torch.int32 if int32 else torch.int64
    return colptr.new_empty(colptr.shape), row.new_empty((row.numel(), 2), dtype=dtype)


@torch.library.register_fake("gnnscale::reverse_pagerank")
def _(colptr, row, initial, iterations, teleport, damping, threads):
    return initial.new_empty(initial.shape)


@torch.library.register_fake("gnnscale::count_ids")
def _(ids, size, threads):
    return ids.new_empty(size, dtype=torch.int64)


@torch.library.register_fake("gnnscale::transpose")
def _(colptr, row, num_src, threads):
    dtype = torch.int32 if colptr.numel() - 1 <= 1 << 31 else torch.int64
    return colptr.new_empty(num_src + 1), row.new_empty(row.numel(), dtype=dtype)


@torch.library.register_fake("gnnscale::contract")
def _(colptr, row, ranges, group, num_groups, most, threads):
    edges = torch.library.get_ctx().new_dynamic_size()
    return tuple(torch.empty(size, dtype=torch.int64) for size in (num_groups + 1, edges, edges))


@torch.library.register_fake("gnnscale::propagate_labels")
def _(colptr, row, ranges, num_nodes, group, label, weight, most, fewest, rounds, steps, least, key, threads):
    return label.new_empty(label.shape)


@torch.library.register_fake("gnnscale::hold_relations")
def _(colptr, row, edge_id, weight, time, src_type, dst_type, reverse, sizes):
    return torch.empty(1, dtype=torch.int64)


@torch.library.register_fake("gnnscale::sample_neighbors")
def _(graph, fanouts, seeds, limits, keys, options, threads):
    context = torch.library.get_ctx()
    (relations, hops), batches = fanouts.shape, len(keys)
    types = len(seeds) // batches if batches else 0
    shapes: list[tuple] = []
    for _ in keys:
        nodes = [context.new_dynamic_size() for _ in range(types)]
        edges = [context.new_dynamic_size() for _ in range(relations)]
        shapes += (
            *((size,) for size in nodes),
            *((2 if options & WITH_COL else 1, size) for size in edges),
            *((context.new_dynamic_size(),) for _ in edges),
            *((size,) for size in edges if options & WITH_EDGE_ID),
            *((size,) for size in nodes if options & DISJOINT),
        )
    shapes.append((batches, types * (hops + 1) + relations * hops))
    return [graph.new_empty(shape, dtype=torch.int64) for shape in shapes]


@torch.library.register_fake("gnnscale::pick_neighbors")
def _(colptr, row, edge_id, weight, time, first, num_src, node, node_ptr, keys, tree, node_time, node_start_time,
      relation, hop, fanout, options, threads):  # fmt: skip
    edges = torch.library.get_ctx().new_dynamic_size()
    return node.new_empty(node.shape), node.new_empty(edges), node.new_empty(edges if options & WITH_EDGE_ID else 0)


@torch.library.register_fake("gnnscale::relabel")
def _(known, ids, known_tree, tree):
    added = torch.library.get_ctx().new_dynamic_size()
    return ids.new_empty(ids.shape), ids.new_empty(added), ids.new_empty(0 if tree is None else added)


@torch.library.register_fake("gnnscale::cut_batch")
def _(node, num_nodes, colptr, row, owner, parts, part):
    context, hops = torch.library.get_ctx(), len(num_nodes) - 1
    own, columns, edges, halo, sent = (context.new_dynamic_size() for _ in range(5))
    counts = torch.empty(2 * hops + 1 + 2 * parts * hops, dtype=torch.int64, device="cpu")
    return *(node.new_empty(size) for size in (own, columns, edges, edges, halo, sent)), counts


@torch.library.register_fake("gnnscale::sample_bulk")
def _(colptr, row, edge_id, weight, time, spread, layout, sizes, seeds, seed_ptr, seed_time, seed_start_time, exclude,
      exclude_ptr, fanouts, keys, options, rooms, threads):  # fmt: skip
    context = torch.library.get_ctx()
    edges, batches, relations = context.new_dynamic_size(), len(keys), len(colptr)
    nodes, hops = context.new_dynamic_size(), len(fanouts) // max(relations, 1)
    of_segments = hops + 1 if options & (INDUCED | BIDIRECTIONAL) else hops
    counts = batches * (len(sizes) * (hops + 1) + relations * of_segments) + 1
    return (
        seeds.new_empty(nodes),
        seeds.new_empty(context.new_dynamic_size()),
        seeds.new_empty(edges * (2 if options & WITH_COL else 1)),
        seeds.new_empty(edges if options & WITH_EDGE_ID else 0),
        seeds.new_empty(nodes if options & DISJOINT else 0),
        torch.empty(counts, dtype=torch.int64, device="cpu"),
    )


@torch.library.register_fake("gnnscale::sample_layers")
def _(graph, seeds, score, num_nodes, keys, choices, options, threads):
    context, batches, hops = torch.library.get_ctx(), len(keys), len(num_nodes)
    found = []
    for _ in keys:
        nodes, edges, columns = (context.new_dynamic_size() for _ in range(3))
        found += [graph.new_empty(shape, dtype=torch.int64) for shape in (nodes, (2, edges), columns, edges)]
        found.append(graph.new_empty(edges, dtype=torch.float32))
    return [*found, graph.new_empty((batches, 2 * hops + 1))]


@torch.library.register_fake("gnnscale::sample_layers_bulk")
def _(colptr, row, edge_id, spread, seeds, score, seed_ptr, num_nodes, keys, choices, options, threads):
    context = torch.library.get_ctx()
    edges, hops, batches = context.new_dynamic_size(), len(num_nodes), len(keys)
    return (
        seeds.new_empty(context.new_dynamic_size()),
        seeds.new_empty(context.new_dynamic_size()),
        seeds.new_empty(2 * edges),
        seeds.new_empty(edges),
        seeds.new_empty(edges, dtype=torch.float32),
        torch.empty(batches * (2 * hops + 1) + 1, dtype=torch.int64, device="cpu"),
    )


@torch.library.register_fake("gnnscale::choose_nodes")
def _(node, score, count, scheme, key, hop):
    found = torch.library.get_ctx().new_dynamic_size()
    return node.new_empty(found), node.new_empty(found, dtype=torch.float64)


@torch.library.register_fake("gnnscale::choose_edges")
def _(source, degree, column_ptr, keys, hop, fanout, scheme):
    found = torch.library.get_ctx().new_dynamic_size()
    return source.new_empty(found), source.new_empty(found, dtype=torch.float64)


@torch.library.register_fake("gnnscale::weigh_edges")
def _(degree, row, correction, source_degree, stored_source_degree, aggregation, weights):
    return torch.empty_like(row, dtype=torch.float32)


@torch.library.register_fake("gnnscale::sample_negatives")
def _(count, src, num_src, src_node, src_weight, src_time, num_dst, dst_node, dst_position, dst_weight, dst_time,
      seed_time, edge_ptr, edge_dst, key, threads):  # fmt: skip
    return torch.empty((2, count), dtype=torch.int64), -1


@torch.library.register_fake("gnnscale::empty_bytes")
def _(count):
    return torch.empty(count, dtype=torch.uint8)


@torch.library.register_fake("gnnscale::pack_rows")
def _(rows, index, at, out, threads):
    return None


@torch.library.register_fake("gnnscale::join_rows")
def _(own, other, at, place, threads):
    return own.new_empty((place.numel(), *own.shape[1:]))


@torch.library.register_fake("gnnscale::gather_rows")
def _(src, index, threads):
    return src.new_empty((index.numel(), *src.shape[1:]))


@torch.library.register_fake("gnnscale::gather_each")
def _(src, index, counts, threads):
    indices = [of for of, count in zip(index, counts, strict=True) for _ in range(count)]
    return [of.new_empty((ids.numel(), *of.shape[1:])) for of, ids in zip(src, indices, strict=True)]


@torch.library.register_fake("gnnscale::gather_nested")
def _(values, offset, columns, index):
    count = torch.library.get_ctx().new_dynamic_size()
    return values.new_empty(count), offset.new_empty(index.numel() * columns + 1)


@torch.library.register_fake("gnnscale::gather_tiers")
def _(segments, spread, place, index, disk, dtype, counts, threads):
    return index.new_empty((index.numel(), *segments[0].shape[1:]), dtype=dtype)


@torch.library.register_fake("gnnscale::gather_tables")
def _(segments, spread, layout, place, index, counts, threads):
    found, tier, segment = [], 0, 0
    for of, tiers, item in zip(index, layout[::3], layout[2::3], strict=True):
        rows = segments[segment]
        dtype = {0: rows.dtype, 4: torch.float32, 8: torch.float64}[item]
        found.append(of.new_empty((of.numel(), *rows.shape[1:]), dtype=dtype))
        segment += sum(spread[tier : tier + tiers])
        tier += tiers
    return found


@torch.library.register_fake("gnnscale::huge_pages")
def _(tensor, threads):
    return None


@torch.library.register_fake("gnnscale::release_pages")
def _(tensor):
    return None


@torch.library.register_fake("gnnscale::board_leave")
def _(board, sent, rank, round):
    pass


@torch.library.register_fake("gnnscale::board_take")
def _(board, received, rank, round, microseconds):
    return True


@torch.library.register_fake("gnnscale::pool_stats")
def _():
    return [0] * 5  # fake tensors have no memory


@torch.library.register_fake("gnnscale::pool_limit")
def _(num_bytes):
    return None


@torch.library.register_fake("gnnscale::pool_trim")
def _():
    return None


@torch.library.register_fake("gnnscale::map_file")
def _(descriptor, offset, num_bytes, shared):
    return torch.empty(num_bytes, dtype=torch.uint8)


@torch.library.register_fake("gnnscale::shuffle_rows")
def _(base, parts, part, row, ptr, threads):
    return row.new_empty((row.numel() if ptr is None else ptr.numel() - 1, *parts[0].shape[1:]), dtype=parts[0].dtype)


@torch.library.register_fake("gnnscale::dropout_rows")
def _(x, id, key, threshold, scale, threads):
    return torch.empty_like(x)


@torch.library.register_fake("gnnscale::random_bits")
def _(count, key, offset, threads):
    return torch.empty(count, dtype=torch.int64)


@torch.library.register_fake("gnnscale::permutation")
def _(count, key):
    return torch.empty(count, dtype=torch.int64)


@torch.library.register_fake("gnnscale::rmat_edges")
def _(first, count, num_nodes, thresholds, key, threads):
    return torch.empty((2, count), dtype=torch.int64)


def _setup_context(ctx, inputs, output):
    src, index, _ = inputs
    ctx.save_for_backward(index)
    ctx.shape = src.shape


def _backward(ctx, grad):
    (index,) = ctx.saved_tensors
    return grad.new_zeros(ctx.shape).index_add_(0, index, grad), None, None


torch.library.register_autograd("gnnscale::gather_rows", _backward, setup_context=_setup_context)


def _setup_mask(ctx, inputs, output):
    _, id, *ctx.mask = inputs
    ctx.save_for_backward(id)


def _drop_again(ctx, grad):
    grad = torch.ops.gnnscale.dropout_rows(grad.contiguous(), ctx.saved_tensors[0], *ctx.mask)
    return grad, None, None, None, None, None


torch.library.register_autograd("gnnscale::dropout_rows", _drop_again, setup_context=_setup_mask)


@torch.library.register_fake("gnnscale::aggregate")
def _(ptr, node, edge, num_edges, x, more, weight, reduce, threads):
    return (x if weight is None else weight).new_empty((ptr.numel() - 1, x.size(1)))


@torch.library.register_fake("gnnscale::edge_dot")
def _(ptr, node, edge, x, y, heads, threads):
    return y.new_empty((node.numel(), heads))


@torch.library.register_fake("gnnscale::edge_attention")
def _(ptr, node, of_sources, of_columns, of_entries, slope, threads):
    return of_sources.new_empty((node.numel(), of_sources.size(1)))


@torch.library.register_fake("gnnscale::edge_attention_backward")
def _(ptr, node, of_sources, of_columns, of_entries, slope, weight, grad, threads):
    return torch.empty_like(weight), of_sources.new_empty((ptr.numel() - 1, of_sources.size(1)))


@torch.library.register_fake("gnnscale::share_of_extremes")
def _(ptr, node, x, extreme, grad, threads):
    return torch.empty_like(extreme)


@torch.library.register_fake("gnnscale::extreme_backward")
def _(ptr, node, edge, num_edges, x, extreme, share, threads):
    return torch.empty_like(x)
