// What the memory of a machine allows: loops that make a sampler's accesses and nothing else; and what its random
// numbers cost. Built by limits.py.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "../cuda/layerwise/draws_cpu.h"

namespace {

// See sampler_accesses.
template <typename Entry>
uint64_t accesses(const int64_t* colptr, const int64_t* expanded, int64_t num_expanded, const Entry* stored,
                  const int64_t* positions, uint32_t* map, const int64_t* sources, int64_t num_edges, int64_t* columns,
                  int64_t* row, int64_t* edge_id, int64_t* node, int64_t num_nodes) {
  constexpr int64_t kNodesAhead = 16, kBlock = 128;
  uint64_t sum = 0;
  for (int64_t i = 0; i < num_expanded; ++i) {
    if (i + kNodesAhead < num_expanded) GNNSCALE_PREFETCH(colptr + expanded[i + kNodesAhead]);
    columns[i] = colptr[expanded[i]];
    sum += static_cast<uint64_t>(columns[i]);
  }
  for (int64_t from = 0; from < num_edges + 2 * kBlock; from += kBlock) {
    for (int64_t e = from; e < from + kBlock && e < num_edges; ++e) GNNSCALE_PREFETCH(stored + positions[e]);
    for (int64_t e = from - kBlock; e >= 0 && e < from && e < num_edges; ++e) {
      const Entry entry = stored[positions[e]];
      sum += entry;
      if constexpr (sizeof(Entry) == 8) {
        edge_id[e] = static_cast<int64_t>(entry >> 32);
      } else {
        edge_id[e] = positions[e];
      }
      GNNSCALE_PREFETCH(map + sources[e]);
    }
    for (int64_t e = from - 2 * kBlock; e >= 0 && e < from - kBlock && e < num_edges; ++e) {
      const uint32_t cell = map[sources[e]];
      sum += cell;
      map[sources[e]] = cell;
      row[e] = cell;
    }
  }
  for (int64_t i = 0; i < num_nodes; ++i) node[i] = i;
  return sum;
}

}  // namespace

extern "C" {

// Reads a word of each line, in the order given, prefetched: what no program that needs these lines can leave out.
// Returns the sum of the words.
uint64_t line_reads(const uint64_t* const* lines, int64_t count) {
  constexpr int64_t kAhead = 128;
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) GNNSCALE_PREFETCH(lines[i + kAhead]);
    sum += *lines[i];
  }
  return sum;
}

// The memory accesses of a sample, in the sampler's order and prefetched: reads of colptr at every expanded node; for
// every edge its stored entry (of 4 bytes: its source, or of 8: source and edge id), the source's cell of the relabel
// map (4 bytes, read and written again) and the two output ids (16 bytes); and the writes of node ids and colptr (8
// bytes each). What to access is given, in place of the sampler's own arithmetic: two more arrays (16 bytes per edge)
// that are read in order. Returns a sum that depends on all reads.
uint64_t sampler_accesses(const int64_t* colptr, const int64_t* expanded, int64_t num_expanded, const void* stored,
                          int64_t entry_bytes, const int64_t* positions, uint32_t* map, const int64_t* sources,
                          int64_t num_edges, int64_t* columns, int64_t* row, int64_t* edge_id, int64_t* node,
                          int64_t num_nodes) {
  if (entry_bytes == 4) {
    return accesses(colptr, expanded, num_expanded, static_cast<const uint32_t*>(stored), positions, map, sources,
                    num_edges, columns, row, edge_id, node, num_nodes);
  }
  return accesses(colptr, expanded, num_expanded, static_cast<const uint64_t*>(stored), positions, map, sources,
                  num_edges, columns, row, edge_id, node, num_nodes);
}

// Reads the lists of nodes, in order, and adds 1 to the cell of each source, prefetched: what no sampler that looks at
// all edges into a frontier can leave out. entry_bytes: 4 or 8, of which the first 4 are the source. Returns the edges.
uint64_t list_touches(const int64_t* colptr, const int64_t* nodes, int64_t num_nodes, const char* stored,
                      int64_t entry_bytes, uint64_t* cells) {
  constexpr int64_t kListsAhead = 4, kSourcesAhead = 24;
  uint64_t edges = 0;
  const auto source = [&](int64_t e) { return *reinterpret_cast<const uint32_t*>(stored + e * entry_bytes); };
  for (int64_t i = 0; i < num_nodes; ++i) {
    if (i + 2 * kListsAhead < num_nodes) GNNSCALE_PREFETCH(colptr + nodes[i + 2 * kListsAhead]);
    if (i + kListsAhead < num_nodes) GNNSCALE_PREFETCH(stored + colptr[nodes[i + kListsAhead]] * entry_bytes);
    const int64_t first = colptr[nodes[i]], last = colptr[nodes[i] + 1];
    for (int64_t e = first; e < last; ++e) {
      if (e + kSourcesAhead < last) __builtin_prefetch(cells + source(e + kSourcesAhead), 1);
      ++cells[source(e)];
    }
    edges += static_cast<uint64_t>(last - first);
  }
  return edges;
}

// Reads the lists of nodes, in order, draws a random number for each source, and writes the stored positions of those
// that scheme `poisson` of LABOR draws: what no sampler by random numbers of sources can leave out. Returns how many
// these are. positions: room for all edges.
uint64_t list_draws(const int64_t* colptr, const int64_t* nodes, int64_t num_nodes, const char* stored,
                    int64_t entry_bytes, uint64_t key, uint64_t fanout, int64_t* positions) {
  constexpr int64_t kListsAhead = 4, kVector = 8;
  std::vector<int64_t> ids;
  std::vector<uint64_t> draws;
  uint64_t found = 0;
  for (int64_t i = 0; i < num_nodes; ++i) {
    if (i + 2 * kListsAhead < num_nodes) GNNSCALE_PREFETCH(colptr + nodes[i + 2 * kListsAhead]);
    if (i + kListsAhead < num_nodes) GNNSCALE_PREFETCH(stored + colptr[nodes[i + kListsAhead]] * entry_bytes);
    const int64_t first = colptr[nodes[i]], degree = colptr[nodes[i] + 1] - first;
    const int64_t size = (degree + kVector - 1) / kVector * kVector;
    if (static_cast<int64_t>(ids.size()) < size) {
      ids.resize(2 * size);
      draws.resize(2 * size);
    }
    for (int64_t e = 0; e < degree; ++e) {
      ids[e] = *reinterpret_cast<const uint32_t*>(stored + (first + e) * entry_bytes);
    }
    gnnscale::draw_nodes(key, 0, ids.data(), size, draws.data());
    for (int64_t e = 0; e < degree; ++e) {
      positions[found] = first + e;
      found += gnnscale::labor_draws(draws[e], static_cast<uint64_t>(degree), fanout) ? 1 : 0;
    }
  }
  return found;
}

// Reads the lists of nodes, in order, and draws the high word of a random number for each source: what no sampler that
// draws few of these sources can leave out. Returns how many high words are at most `limit`, rounded to 24 bits.
uint64_t list_high_words(const int64_t* colptr, const int64_t* nodes, int64_t num_nodes, const char* stored,
                         int64_t entry_bytes, uint64_t key, uint32_t limit) {
  constexpr int64_t kListsAhead = 4, kChunk = 512;
  uint32_t ids[kChunk] = {}, low[kChunk + gnnscale::kDrawsTogether];
  int64_t filled = 0, found = 0;
  const auto draw = [&] { return gnnscale::find_low_draws(key, 0, ids, &limit, 0, 1, kChunk, low); };
  for (int64_t i = 0; i < num_nodes; ++i) {
    if (i + 2 * kListsAhead < num_nodes) GNNSCALE_PREFETCH(colptr + nodes[i + 2 * kListsAhead]);
    if (i + kListsAhead < num_nodes) GNNSCALE_PREFETCH(stored + colptr[nodes[i + kListsAhead]] * entry_bytes);
    for (int64_t e = colptr[nodes[i]], last = colptr[nodes[i] + 1]; e < last;) {
      const int64_t some = std::min(last - e, kChunk - filled);
      for (int64_t k = 0; k < some; ++k) {
        ids[filled + k] = *reinterpret_cast<const uint32_t*>(stored + (e + k) * entry_bytes);
      }
      e += some;
      filled += some;
      if (filled < kChunk) continue;
      found += draw();
      filled = 0;
    }
  }
  found += std::lower_bound(low, low + draw(), static_cast<uint32_t>(filled)) - low;  // the others are of older ids
  return static_cast<uint64_t>(found);
}
}
