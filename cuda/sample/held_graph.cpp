// The operator hold_relations, and the graphs that it keeps.
#include "held_graph.h"

#include <pthread.h>

#include <mutex>
#include <unordered_map>

#include "../memory/checks.h"
#include "../pick.h"

namespace gnnscale {
namespace {

constexpr int64_t kMostNodes = int64_t{1} << 40;  // of a type, as in ops/arguments.py

struct Registry {
  std::mutex lock;
  std::unordered_map<int64_t, std::shared_ptr<const HeldGraph>> graphs;
  int64_t last = 0;
};

// Never destroyed, and locked by the thread that forks; pool.cpp gives the reasons.
Registry& registry() {
  static Registry* const instance = [] {
    pthread_atfork([] { registry().lock.lock(); }, [] { registry().lock.unlock(); }, [] { registry().lock.unlock(); });
    return new Registry;
  }();
  return *instance;
}

// Forgets the graph of a number.
void release(int64_t number) {
  std::shared_ptr<const HeldGraph> graph;  // destroyed after `guard`: its tensors are freed without the lock
  const std::lock_guard guard(registry().lock);
  const auto found = registry().graphs.find(number);
  graph = std::move(found->second);
  registry().graphs.erase(found);
}

// Raises unless the tensors of relation r are of the types and sizes that it says. What they hold is checked where it
// is read.
void check_relation(size_t r, const HeldRelation& of, const std::vector<int64_t>& sizes) {
  const int64_t edges = of.row.numel();
  STD_TORCH_CHECK(of.colptr.numel() == sizes[of.dst] + 1, "relation ", r, " does not fit its node types");
  for (const auto* const of_edges : {&of.edge_id, &of.weight, &of.time}) {
    STD_TORCH_CHECK(!of_edges->has_value() || (*of_edges)->numel() == edges, "relation ", r, " has ", edges,
                    " edges and another number of their ids, weights or times");
  }
  check_int64("colptr", of.colptr);
  check_ids("row", of.row);
  if (of.edge_id.has_value()) check_ids("edge_id", *of.edge_id, edges);
  check_int64("weight", of.weight, edges);
  check_int64("time", of.time, edges);
  for (const auto* const given : {&of.colptr, &of.row}) {
    STD_TORCH_CHECK(on_host(*given), "relation ", r, ": expected it in host memory");
  }
  for (const auto* const given : {&of.edge_id, &of.weight, &of.time}) {
    STD_TORCH_CHECK(!given->has_value() || on_host(**given), "relation ", r, ": expected it in host memory");
  }
}

IncomingRelations incoming_relations(const HeldGraph& graph, int type) {
  IncomingRelations found;
  const int64_t nodes = graph.sizes[type];
  for (size_t r = 0; r < graph.relations.size(); ++r) {
    if (graph.relations[r].dst == type && graph.relations[r].colptr.numel() == nodes + 1) {
      found.numbers.push_back(static_cast<int>(r));
    }
  }
  if (found.numbers.size() < IncomingRelations::kFrom) return {};
  found.words = (static_cast<int64_t>(found.numbers.size()) + 63) / 64;
  found.bits.assign(static_cast<size_t>(nodes * found.words), 0);
  for (size_t i = 0; i < found.numbers.size(); ++i) {
    const int64_t* const colptr = data_or_null(graph.relations[found.numbers[i]].colptr);
    uint64_t* const word = found.bits.data() + i / 64;
    for (int64_t node = 0; node < nodes; ++node) {
      word[node * found.words] |= uint64_t{colptr[node] != colptr[node + 1]} << i % 64;
    }
  }
  return found;
}

using Tensors = std::vector<Tensor>;
using OptionalTensors = std::vector<std::optional<Tensor>>;
using Ints = std::vector<int64_t>;

// See torch_gnnscale.ops.relations, which checks the arguments. Returns the number of the graph in a tensor: int64,
// shape [1]. The graph is kept until this tensor is freed; until then, copies of the tensor name the same graph.
Tensor hold_relations(const Tensors& colptr, const Tensors& row, const OptionalTensors& edge_id,
                      const OptionalTensors& weight, const OptionalTensors& time, const Ints& src_type,
                      const Ints& dst_type, const Ints& reverse, const Ints& sizes) {
  const size_t relations = colptr.size();
  for (const size_t given :
       {row.size(), edge_id.size(), weight.size(), time.size(), src_type.size(), dst_type.size(), reverse.size()}) {
    STD_TORCH_CHECK(given == relations, "expected one entry for each of ", relations, " relations, found ", given);
  }
  STD_TORCH_CHECK(static_cast<int64_t>(relations) <= kMaxRelations, "expected at most ", kMaxRelations,
                  " relations, found ", relations);
  for (const int64_t size : sizes) {
    STD_TORCH_CHECK(size >= 0 && size <= kMostNodes, "sizes: expected numbers in [0, ", kMostNodes, "], found ", size);
  }
  auto graph = std::make_shared<HeldGraph>();
  graph->sizes = sizes;
  for (size_t r = 0; r < relations; ++r) {
    for (const int64_t type : {src_type[r], dst_type[r]}) {
      STD_TORCH_CHECK(type >= 0 && type < static_cast<int64_t>(sizes.size()), "relation ", r,
                      " does not fit its node types");
    }
    STD_TORCH_CHECK(reverse[r] >= -1 && reverse[r] < static_cast<int64_t>(relations), "relation ", r,
                    ": expected a reverse among ", relations, " relations or -1, found ", reverse[r]);
    graph->relations.push_back({colptr[r], row[r], edge_id[r], weight[r], time[r], static_cast<int>(src_type[r]),
                                static_cast<int>(dst_type[r]), static_cast<int>(reverse[r])});
    check_relation(r, graph->relations.back(), sizes);
  }
  for (size_t t = 0; t < sizes.size(); ++t) graph->incoming.push_back(incoming_relations(*graph, static_cast<int>(t)));
  auto memory = std::make_unique<int64_t>();
  {
    const std::lock_guard guard(registry().lock);
    *memory = ++registry().last;
    registry().graphs.emplace(*memory, std::move(graph));
  }
  const int64_t size = 1, number = *memory;
  // The number is not read from the tensor again: somebody may have written another one, of a graph that is held still.
  return torch::stable::from_blob(memory.release(), {&size, 1}, {&size, 1},
                                  torch::stable::Device(torch::headeronly::DeviceType::CPU), ScalarType::Long,
                                  [number](void* address) {
                                    delete static_cast<int64_t*>(address);
                                    release(number);
                                  });
}

STABLE_TORCH_LIBRARY_IMPL(gnnscale, CompositeExplicitAutograd, library) {
  library.impl("hold_relations", TORCH_BOX(&hold_relations));
}

// Whether no id is in `row` twice, nor one outside [0, num_src).
bool ids_differ(const Tensor& row, int64_t num_src) {
  const int64_t count = row.numel(), stride = row.stride(0);
  if (count > num_src) return false;
  Vector<uint64_t> seen(static_cast<size_t>(num_src) / 64 + 1, 0);
  bool differ = true;
  dispatch_index(dtype_of(row), [&](auto* tag) {
    const auto* const ids = static_cast<const std::remove_pointer_t<decltype(tag)>*>(row.const_data_ptr());
    for (int64_t k = 0; k < count && differ; ++k) {
      const uint64_t id = static_cast<uint64_t>(static_cast<int64_t>(ids[k * stride]));
      differ = id < static_cast<uint64_t>(num_src) && (seen[id / 64] >> id % 64 & 1) == 0;
      if (differ) seen[id / 64] |= uint64_t{1} << id % 64;
    }
  });
  return differ;
}

// Whether colptr[i] is i.
bool counts_up(const Tensor& colptr) {
  const int64_t* const entries = data_or_null(colptr);
  int64_t i = 0;
  while (i < colptr.numel() && entries[i] == i) ++i;
  return i == colptr.numel();
}

// The answer that is kept in `known`, or find()'s, which is kept then.
template <typename Find>
bool ask_once(std::atomic<HeldRelation::Found>& known, Find&& find) {
  using Found = HeldRelation::Found;
  Found found = known.load(std::memory_order_relaxed);
  if (found == Found::kUnknown) {
    found = find() ? Found::kYes : Found::kNo;
    known.store(found, std::memory_order_relaxed);
  }
  return found == Found::kYes;
}

}  // namespace

bool HeldRelation::sources_differ(int64_t num_src) const {
  return ask_once(found[0], [&] { return ids_differ(row, num_src); });
}

bool HeldRelation::one_each() const {
  return row.numel() + 1 == colptr.numel() && ask_once(found[1], [&] { return counts_up(colptr); });
}

std::shared_ptr<const HeldGraph> held_graph(const Tensor& tensor) {
  STD_TORCH_CHECK(dtype_of(tensor) == ScalarType::Long && tensor.numel() == 1 && on_host(tensor),
                  "graph: expected what hold_relations returned");
  const std::lock_guard guard(registry().lock);
  const auto found = registry().graphs.find(*static_cast<const int64_t*>(tensor.const_data_ptr()));
  STD_TORCH_CHECK(found != registry().graphs.end(), "graph: expected what hold_relations returned and is still held");
  return found->second;
}

}  // namespace gnnscale
