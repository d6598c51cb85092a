#include "passes/pass/pass.h"
#include "passes/rewrite/match.h"

// Slices that cut one value along one axis into adjoining pieces become one split. Its gradient is a concatenation
// instead of a sum of zero-padded pieces. A small part of the value may be in no slice, such as the last of the chunks
// that a recurrence goes through, or what a padded convolution makes beyond the end: the split makes it too, and
// nothing reads it.

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

// One part in so many may be absent. The split writes it in vain, which takes less time than the gradients of as many
// slices, each of which reads and writes the whole.
constexpr int64_t parts_of_one_absent = 8;

// Puts pieces that no slice takes between the others, which come in order. False if two overlap.
bool fill_gaps(std::vector<Piece>& pieces, int64_t size) {
  std::vector<Piece> all;
  int64_t at = 0;
  for (const Piece& piece : pieces) {
    if (piece.start < at) return false;
    if (piece.start > at) all.push_back({NodeId::None, at, piece.start - at});
    all.push_back(piece);
    at = piece.start + piece.size;
  }
  if (at < size) all.push_back({NodeId::None, at, size - at});
  pieces = std::move(all);
  return true;
}

bool try_split(Graph& graph, ValueId source, int64_t axis, std::vector<Piece> pieces) {
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.start < b.start; });
  const NodeId first = pieces.front().node;
  const int64_t whole = graph.type(source).shape[axis];
  if (!fill_gaps(pieces, whole) || pieces.size() < 2) return false;
  Ints sizes;
  int64_t absent = 0;
  for (const Piece& piece : pieces) {
    sizes.push_back(piece.size);
    if (piece.node == NodeId::None) absent += piece.size;
  }
  if (absent * parts_of_one_absent > whole) return false;
  // The split stands right behind the value that all pieces read, so before the first of them.
  NodeId producer = graph.value(source).producer;
  NodeId before = producer == NodeId::None ? graph.first_node() : graph.next_node(producer);
  Builder b(graph, before);
  b.origin = graph.node(first).origin;
  b.phase = graph.node(first).phase;
  auto parts = b.emit_all("split", {source}, {{"axis", axis}, {"sizes", sizes}});
  for (const auto& [piece, part] : llvm::zip(pieces, parts))
    if (piece.node != NodeId::None) replace_and_rename(graph, graph.node(piece.node).results[0], part);
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
    .summary = "turn slices that take most of one value in adjoining pieces into one split",
    .run = run_recover_split,
};

}  // namespace plimsoll
