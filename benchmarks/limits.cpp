// What the memory of a machine allows: loops that make a sampler's accesses and nothing else. Built by limits.py.
#include <cstdint>

extern "C" {

// The random accesses of a sample, in the sampler's order, each prefetched: colptr at every expanded node; and for
// every edge its stored entry (8 bytes: source and edge id) and the source's cell of the relabel map (4 bytes).
// Returns a sum that depends on all of them.
uint64_t sampler_accesses(const int64_t* colptr, const int64_t* expanded, int64_t num_expanded, const uint64_t* stored,
                          const int64_t* positions, const uint32_t* map, const int64_t* sources, int64_t num_edges) {
  constexpr int64_t kNodesAhead = 16, kBlock = 128;
  uint64_t sum = 0;
  for (int64_t i = 0; i < num_expanded; ++i) {
    if (i + kNodesAhead < num_expanded) __builtin_prefetch(colptr + expanded[i + kNodesAhead]);
    sum += static_cast<uint64_t>(colptr[expanded[i]]);
  }
  for (int64_t from = 0; from < num_edges + 2 * kBlock; from += kBlock) {
    for (int64_t e = from; e < from + kBlock && e < num_edges; ++e) __builtin_prefetch(stored + positions[e]);
    for (int64_t e = from - kBlock; e >= 0 && e < from && e < num_edges; ++e) {
      sum += stored[positions[e]];
      __builtin_prefetch(map + sources[e]);
    }
    for (int64_t e = from - 2 * kBlock; e >= 0 && e < from - kBlock && e < num_edges; ++e) sum += map[sources[e]];
  }
  return sum;
}

// Reads every 64-byte line of the given rows of a table, each prefetched. Returns a sum that depends on all of them.
uint64_t row_accesses(const char* table, int64_t row_bytes, const int64_t* rows, int64_t num_rows) {
  constexpr int64_t kRowsAhead = 16;
  uint64_t sum = 0;
  for (int64_t i = 0; i < num_rows; ++i) {
    if (i + kRowsAhead < num_rows) {
      const char* ahead = table + rows[i + kRowsAhead] * row_bytes;
      for (int64_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(ahead + at);
    }
    const char* row = table + rows[i] * row_bytes;
    for (int64_t at = 0; at < row_bytes; at += 64) sum += static_cast<unsigned char>(row[at]);
  }
  return sum;
}
}
