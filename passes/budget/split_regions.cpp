#include "passes/budget/split_regions.h"

#include "passes/analysis/dependence.h"
#include "passes/analysis/single_value_cuts.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr int regions_tried = 5;
constexpr int64_t chunk_counts_tried[] = {2, 4, 8, 16};

// For each cut, the bytes that forward makes after it.
std::vector<int64_t> bytes_behind(const Graph& graph, llvm::ArrayRef<ValueId> cuts) {
  const ParameterValues parameters(graph);
  const std::vector<bool> needed = find_needed(graph);
  std::vector<int64_t> behind(cuts.size(), 0);
  int64_t bytes = 0;
  size_t left = cuts.size();
  for (NodeId id = graph.last_node(); id != NodeId::None; id = graph.node(id).previous) {
    const Node& node = graph.node(id);
    while (left > 0 && llvm::is_contained(node.results, cuts[left - 1])) behind[--left] = bytes;
    if (!needed[index_of(id)] || node.op->is_view() || parameters.alone[index_of(node.results[0])]) continue;
    for (ValueId result : node.results) bytes += graph.type(result).bytes();
  }
  return behind;
}

}  // namespace

std::vector<ValueId> regions_to_try(const Graph& graph) {
  std::vector<ValueId> cuts;
  for (const SingleValueCut& cut : find_single_value_cuts(graph)) cuts.push_back(cut.value);
  const std::vector<int64_t> behind = bytes_behind(graph, cuts);
  std::vector<ValueId> regions;
  for (int i = 0; i < regions_tried && !cuts.empty(); ++i) {
    size_t at = cuts.size() - 1;
    while (at > 0 && behind[at] < behind[0] >> i) --at;
    if (regions.empty() || regions.back() != cuts[at]) regions.push_back(cuts[at]);
  }
  return regions;
}

// For each of chunk_counts_tried the smallest from there on that divides the batch.
std::vector<int64_t> chunks_to_try(int64_t batch, int64_t asked) {
  if (asked > 1) return {asked};
  std::vector<int64_t> chunks;
  for (int64_t least : chunk_counts_tried) {
    int64_t count = least;
    while (count < batch && batch % count != 0) ++count;
    if (count <= batch && (chunks.empty() || chunks.back() != count)) chunks.push_back(count);
  }
  return chunks;
}

double share_behind(const Graph& graph, ValueId value) {
  int64_t behind = 0, all = 0;
  bool passed = false;
  for (NodeId id = graph.last_node(); id != NodeId::None; id = graph.node(id).previous, ++all) {
    passed |= llvm::is_contained(graph.node(id).results, value);
    behind += !passed;
  }
  return static_cast<double>(behind) / static_cast<double>(std::max<int64_t>(all, 1));
}

}  // namespace plimsoll
