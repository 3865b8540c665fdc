// Every operator of torch.ops.gnnscale. Their Python wrappers, with shapes, errors and sources, are in
// torch_gnnscale/ops/.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(gnnscale, library) {
  // Topology.
  library.def(
      "coo_to_csc(Tensor src, Tensor dst, int num_src, int num_dst, bool int32, int threads) -> (Tensor, Tensor)");
  library.def("colptr_of_sorted(Tensor dst, int num_dst, int threads) -> Tensor");
  library.def(
      "reverse_edges(Tensor colptr, Tensor row, Tensor? edge_id, Tensor? time, Tensor reverse_colptr, Tensor "
      "reverse_row, Tensor? reverse_edge_id, Tensor? reverse_time, int size, bool int32, int threads) -> (Tensor, "
      "bool)");
  library.def("first_outside(Tensor ids, int limit, int threads) -> Tensor");
  library.def("first_malformed(Tensor colptr, int num_edges, int threads) -> Tensor");
  library.def(
      "renumber(Tensor colptr, Tensor row, Tensor? edge_id, Tensor order, Tensor rank, bool int32, int threads) -> "
      "(Tensor, Tensor)");
  library.def(
      "reverse_pagerank(Tensor colptr, Tensor row, Tensor initial, int iterations, int teleport, int damping, "
      "int threads) -> Tensor");
  library.def("count_ids(Tensor ids, int size, int threads) -> Tensor");
  // Partitioning.
  library.def("transpose(Tensor colptr, Tensor row, int num_src, int threads) -> (Tensor, Tensor)");
  library.def(
      "contract(Tensor[] colptr, Tensor[] row, int[] ranges, Tensor? group, int num_groups, int most, int threads) -> "
      "(Tensor colptr, Tensor row, Tensor weight)");
  library.def(
      "propagate_labels(Tensor[] colptr, Tensor[] row, int[] ranges, int num_nodes, Tensor? group, Tensor label, "
      "Tensor weight, int[] most, int[] fewest, int rounds, int steps, int least, int key, int threads) -> Tensor");
  // Sampling.
  library.def(
      "hold_relations(Tensor[] colptr, Tensor[] row, Tensor?[] edge_id, Tensor?[] weight, Tensor?[] time, "
      "int[] src_type, int[] dst_type, int[] reverse, int[] sizes) -> Tensor");
  library.def(
      "sample_neighbors(Tensor graph, Tensor fanouts, Tensor[] seeds, Tensor?[] limits, int[] keys, int options, "
      "int threads) -> Tensor[]");
  library.def(
      "pick_neighbors(Tensor colptr, Tensor row, Tensor? edge_id, Tensor? weight, Tensor? time, int first, "
      "int num_src, Tensor node, int[] node_ptr, int[] keys, Tensor? tree, Tensor? node_time, Tensor? node_start_time, "
      "int relation, int hop, int fanout, int options, int threads) -> (Tensor num_edges, Tensor source, Tensor "
      "edge_id)");
  library.def(
      "relabel(Tensor known, Tensor ids, Tensor? known_tree, Tensor? tree) -> (Tensor local, Tensor node, "
      "Tensor tree)");
  library.def(
      "sample_bulk(Tensor[] colptr, Tensor[] row, Tensor[] edge_id, Tensor[] weight, Tensor[] time, int[] spread, "
      "int[] layout, int[] sizes, Tensor seeds, int[] seed_ptr, Tensor? seed_time, Tensor? seed_start_time, "
      "Tensor? exclude, int[] exclude_ptr, int[] fanouts, int[] keys, int options, int[] rooms, int threads) -> "
      "(Tensor node, Tensor colptr, Tensor edge_index, Tensor edge_id, Tensor tree, Tensor counts)");
  library.def(
      "sample_layers(Tensor graph, Tensor[] seeds, Tensor? score, int[] num_nodes, int[] keys, int[] choices, "
      "int options, int threads) -> Tensor[]");
  library.def(
      "sample_layers_bulk(Tensor colptr, Tensor[] row, Tensor[] edge_id, int[] spread, Tensor seeds, Tensor? score, "
      "int[] seed_ptr, int[] num_nodes, int[] keys, int[] choices, int options, int threads) -> (Tensor node, "
      "Tensor colptr, Tensor edge_index, Tensor edge_id, Tensor edge_weight, Tensor counts)");
  library.def("choose_nodes(Tensor node, Tensor score, int count, int scheme, int key, int hop) -> (Tensor, Tensor)");
  library.def(
      "choose_edges(Tensor source, Tensor degree, int[] column_ptr, int[] keys, int hop, int fanout, int scheme) -> "
      "(Tensor, Tensor)");
  library.def(
      "weigh_edges(Tensor degree, Tensor row, Tensor correction, Tensor? source_degree, Tensor? stored_source_degree, "
      "int aggregation, int weights) -> Tensor");
  library.def(
      "sample_negatives(int count, Tensor? src, int num_src, Tensor? src_node, Tensor? src_weight, Tensor? src_time, "
      "int num_dst, Tensor? dst_node, Tensor? dst_position, Tensor? dst_weight, Tensor? dst_time, Tensor? seed_time, "
      "Tensor? edge_ptr, Tensor? edge_dst, int key, int threads) -> (Tensor, int)");
  // Split parallelism.
  library.def(
      "cut_batch(Tensor node, int[] num_nodes, Tensor colptr, Tensor row, Tensor owner, int parts, int part) -> "
      "(Tensor local, Tensor colptr_out, Tensor row_out, Tensor edge, Tensor halo, Tensor sent, Tensor counts)");
  // Features.
  library.def("gather_rows(Tensor src, Tensor index, int threads) -> Tensor");
  library.def("gather_each(Tensor[] src, Tensor[] index, int[] counts, int threads) -> Tensor[]");
  library.def("gather_nested(Tensor values, Tensor offset, int columns, Tensor index) -> (Tensor, Tensor)");
  library.def("pack_rows(Tensor[] rows, Tensor[] index, int[] at, Tensor(a!) out, int threads) -> ()");
  library.def("join_rows(Tensor own, Tensor other, Tensor at, Tensor place, int threads) -> Tensor");
  library.def(
      "gather_tiers(Tensor[] segments, int[] spread, Tensor? place, Tensor index, bool disk, ScalarType dtype, "
      "Tensor(a!)? counts, int threads) -> Tensor");
  library.def(
      "gather_tables(Tensor[] segments, int[] spread, int[] layout, Tensor?[] place, Tensor[] index, "
      "Tensor(a!)[] counts, int threads) -> Tensor[]");
  // Aggregation.
  library.def(
      "aggregate(Tensor ptr, Tensor node, Tensor? edge, int num_edges, Tensor x, Tensor? more, Tensor? weight, "
      "str reduce, int threads) -> Tensor");
  library.def("edge_dot(Tensor ptr, Tensor node, Tensor? edge, Tensor x, Tensor y, int heads, int threads) -> Tensor");
  library.def(
      "edge_attention(Tensor ptr, Tensor node, Tensor of_sources, Tensor? of_columns, Tensor? of_entries, float slope, "
      "int threads) -> Tensor");
  library.def(
      "edge_attention_backward(Tensor ptr, Tensor node, Tensor of_sources, Tensor? of_columns, Tensor? of_entries, "
      "float slope, Tensor weight, Tensor grad, int threads) -> (Tensor of_entries, Tensor of_columns)");
  library.def(
      "share_of_extremes(Tensor ptr, Tensor node, Tensor x, Tensor extreme, Tensor grad, int threads) -> Tensor");
  library.def(
      "extreme_backward(Tensor ptr, Tensor node, Tensor? edge, int num_edges, Tensor x, Tensor extreme, Tensor share, "
      "int threads) -> Tensor");
  // Split batches.
  library.def(
      "shuffle_rows(Tensor? base, Tensor[] parts, Tensor? part, Tensor row, Tensor? ptr, int threads) -> Tensor");
  // Random numbers.
  library.def("dropout_rows(Tensor x, Tensor id, int key, int threshold, float scale, int threads) -> Tensor");
  library.def("random_bits(int count, int key, int offset, int threads) -> Tensor");
  library.def("permutation(int count, int key) -> Tensor");
  library.def("rmat_edges(int first, int count, int num_nodes, int[] thresholds, int key, int threads) -> Tensor");
  // Memory.
  library.def("empty_bytes(int count) -> Tensor");
  library.def("board_leave(Tensor(a!) board, Tensor sent, int rank, int round) -> ()");
  library.def("board_take(Tensor(a!) board, Tensor(b!) received, int rank, int round, int microseconds) -> bool");
  library.def("pool_stats() -> int[]");
  library.def("pool_limit(int num_bytes) -> ()");
  library.def("pool_trim() -> ()");
  library.def("huge_pages(Tensor tensor, int threads) -> ()");
  library.def("release_pages(Tensor tensor) -> ()");
  library.def("map_file(int descriptor, int offset, int num_bytes, bool shared) -> Tensor");
}
