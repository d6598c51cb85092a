#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

// Slices that cut one value along one axis into adjoining pieces become one split. Its gradient is a concatenation
// instead of a sum of zero-padded pieces. A small part of the value may be in no slice, such as the last of the chunks
// that a recurrence goes through, or what a padded convolution makes beyond the end: the split makes it too, and
// nothing reads it. Slices that cut other axes as well, such as rows of one of queries, keys and values, become slices
// of the parts.

#include <algorithm>
#include <map>

namespace plimsoll {
namespace {

// The slices that take each part, or parts of it, by where the part begins and its size; none where no slice does.
using Parts = std::map<std::pair<int64_t, int64_t>, llvm::SmallVector<NodeId, 2>>;

// The axes that a unit-step slice cuts; none where it has other steps.
Ints cut_axes(const Graph& graph, const Node& node) {
  const Shape& shape = graph.type(node.operands[0]).shape;
  Ints axes;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (node.attrs.get_ints("steps")[i] != 1) return {};
    if (node.attrs.get_ints("sizes")[i] != shape[i]) axes.push_back(static_cast<int64_t>(i));
  }
  return axes;
}

// One part in so many may be absent. The split writes it in vain, which takes less time than the gradients of as many
// slices, each of which reads and writes the whole.
constexpr int64_t parts_of_one_absent = 8;

// Puts parts that no slice takes between the others. False if two overlap.
bool fill_gaps(Parts& parts, int64_t size) {
  int64_t at = 0;
  for (const auto& [place, slices] : Parts(parts)) {
    if (place.first < at) return false;
    if (place.first > at) parts[{at, place.first - at}];
    at = place.first + place.second;
  }
  if (at < size) parts[{at, size - at}];
  return true;
}

// Slices that cut other axes as well become slices of the parts.
bool try_split(Graph& graph, ValueId source, int64_t axis, llvm::ArrayRef<NodeId> slices) {
  const auto i = static_cast<size_t>(axis);
  const Type whole = graph.type(source);
  Parts parts;
  int64_t absent = whole.elements();
  for (NodeId id : slices) {
    const Attrs& attrs = graph.node(id).attrs;
    parts[{attrs.get_ints("starts")[i], attrs.get_ints("sizes")[i]}].push_back(id);
    absent -= graph.type(graph.node(id).results[0]).elements();
  }
  if (!fill_gaps(parts, whole.shape[i]) || parts.size() < 2) return false;
  if (absent * parts_of_one_absent > whole.elements()) return false;
  Ints sizes;
  for (const auto& [place, takers] : parts) sizes.push_back(place.second);
  // The split stands right behind the value that all pieces read, so before the first of them.
  NodeId producer = graph.value(source).producer;
  NodeId before = producer == NodeId::None ? graph.first_node() : graph.next_node(producer);
  Builder b(graph, before);
  b.origin = graph.node(slices.front()).origin;
  b.phase = graph.node(slices.front()).phase;
  auto values = b.emit_all("split", {source}, {{"axis", axis}, {"sizes", sizes}});
  for (const auto& [part, value] : llvm::zip(parts, values))
    for (NodeId id : part.second) {
      Attrs attrs = graph.node(id).attrs;
      const llvm::ArrayRef<int64_t> was = attrs.get_ints("starts");
      Ints starts(was.begin(), was.end());
      starts[i] = 0;
      attrs.set("starts", starts);
      const bool is_whole = cut_axes(graph, graph.node(id)).size() == 1;
      replace_and_rename(graph, graph.node(id).results[0], is_whole ? value : b.emit("slice", {value}, attrs));
    }
  return true;
}

int64_t split_slices(Graph& graph) {
  std::map<std::pair<ValueId, int64_t>, std::vector<NodeId>> cuts;  // ordered: the result does not depend on addresses
  for (NodeId id : graph.order())
    if (const Node& node = graph.node(id); node.op->name == "slice" && graph.is_used(node.results[0]))
      for (int64_t axis : cut_axes(graph, node)) cuts[{node.operands[0], axis}].push_back(id);
  int64_t splits = 0;
  for (auto& [key, slices] : cuts) {
    llvm::erase_if(slices, [&](NodeId id) { return !graph.is_used(graph.node(id).results[0]); });
    if (try_split(graph, key.first, key.second, slices)) {
      ++splits;
      continue;
    }
    llvm::erase_if(slices, [&](NodeId id) { return cut_axes(graph, graph.node(id)).size() > 1; });
    splits += try_split(graph, key.first, key.second, slices);
  }
  return splits;
}

Result<bool> run_recover_split(Graph& graph, PassContext& context) {
  int64_t splits = 0;
  while (const int64_t more = split_slices(graph)) splits += more;  // parts may be split in turn
  context.count("split", splits);
  return splits > 0;
}

}  // namespace

constinit const PassInfo pass_recover_split{
    .name = "recover-split",
    .summary = "turn slices that take most of one value in adjoining pieces into one split",
    .run = run_recover_split,
};

}  // namespace plimsoll
