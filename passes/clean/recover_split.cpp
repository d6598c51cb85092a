#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

// Slices that cut one value along one axis into adjoining pieces become one split. Its gradient is a concatenation
// instead of a sum of zero-padded pieces.

#include <algorithm>
#include <map>

namespace plimsoll {
namespace {

struct Piece {
  NodeId node;
  int64_t start, size;
};

// The one axis a unit-step slice cuts; -1 when it cuts none or several.
int64_t cut_axis(const Graph& graph, const Node& node) {
  const Shape& shape = graph.type(node.operands[0]).shape;
  llvm::ArrayRef<int64_t> sizes = node.attrs.get_ints("sizes"), steps = node.attrs.get_ints("steps");
  int64_t axis = -1;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (steps[i] != 1) return -1;
    if (sizes[i] == shape[i]) continue;
    if (axis >= 0) return -1;
    axis = static_cast<int64_t>(i);
  }
  return axis;
}

bool try_split(Graph& graph, ValueId source, int64_t axis, std::vector<Piece> pieces) {
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.start < b.start; });
  Ints sizes;
  llvm::SmallVector<std::string, 4> names;
  int64_t at = 0;
  for (const Piece& piece : pieces) {
    if (piece.start != at) return false;
    at += piece.size;
    sizes.push_back(piece.size);
    names.push_back(graph.value(graph.node(piece.node).results[0]).name);
  }
  if (pieces.size() < 2 || at != graph.type(source).shape[axis]) return false;
  // The split stands right behind the value that all pieces read, so before the first of them.
  NodeId first = pieces.front().node;
  NodeId producer = graph.value(source).producer;
  NodeId before = producer == NodeId::None ? graph.first_node() : graph.next_node(producer);
  Builder b(graph, before);
  b.origin = graph.node(first).origin;
  b.phase = graph.node(first).phase;
  auto parts = b.emit_all("split", {source}, {{"axis", axis}, {"sizes", sizes}});
  for (size_t i = 0; i < pieces.size(); ++i) replace_and_rename(graph, graph.node(pieces[i].node).results[0], parts[i]);
  return true;
}

Result<bool> run_recover_split(Graph& graph, PassContext& context) {
  std::map<std::pair<ValueId, int64_t>, std::vector<Piece>> cuts;  // ordered: the result does not depend on addresses
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (node.op->name != "slice" || !graph.is_used(node.results[0])) continue;
    int64_t axis = cut_axis(graph, node);
    if (axis < 0) continue;
    auto i = static_cast<size_t>(axis);
    cuts[{node.operands[0], axis}].push_back({id, node.attrs.get_ints("starts")[i], node.attrs.get_ints("sizes")[i]});
  }
  int64_t splits = 0;
  for (auto& [key, pieces] : cuts) splits += try_split(graph, key.first, key.second, std::move(pieces));
  context.count("split", splits);
  return splits > 0;
}

}  // namespace

constinit const PassInfo pass_recover_split{
    .name = "recover-split",
    .summary = "turn adjoining slices of one value into one split",
    .run = run_recover_split,
};

}  // namespace plimsoll
