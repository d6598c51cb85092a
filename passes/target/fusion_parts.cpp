#include "passes/target/fusion_parts.h"

#include "passes/rewrite/match.h"
#include "passes/target/fusion_remakes.h"
#include "passes/target/row_scatters.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

// Do parts along the axis lie apart in the whole? And does more than one element of each, so that threads find runs?
bool is_apart(llvm::ArrayRef<int64_t> whole, int64_t axis, int64_t size) {
  return size > 1 && element_count(whole.take_front(static_cast<size_t>(axis))) > 1;
}

std::optional<PartOfValue> part_of_split(const Graph& graph, const Node& split, ValueId value) {
  PartOfValue part{split.operands[0], split.attrs.get_int("axis"), 0, 0};
  for (ValueId result : split.results) {
    part.size = graph.type(result).shape[static_cast<size_t>(part.axis)];
    if (result == value) return part;
    part.start += part.size;
  }
  return std::nullopt;
}

std::optional<PartOfValue> part_of_slice(const Graph& graph, const Node& slice) {
  PartOfValue part{slice.operands[0], -1, 0, 0};
  const Shape &whole = graph.type(slice.operands[0]).shape, &own = graph.type(slice.results[0]).shape;
  const llvm::ArrayRef<int64_t> starts = slice.attrs.get_ints("starts"), steps = slice.attrs.get_ints("steps");
  for (size_t d = 0; d < whole.size(); ++d) {
    if (own[d] == whole[d] && steps[d] == 1) continue;
    if (part.axis >= 0 || steps[d] != 1) return std::nullopt;
    part.axis = static_cast<int64_t>(d), part.start = starts[d], part.size = own[d];
  }
  if (part.axis < 0) return std::nullopt;
  return part;
}

// Puts a slice of the concatenation, as long as the value and from `start` on, in front of the value's readers in
// backward.
SavedPart read_part(Graph& graph, NodeId concat, ValueId value, int64_t start) {
  const llvm::SmallVector<NodeId, 4> users(graph.value(value).users.begin(), graph.value(value).users.end());
  const auto reads_in_backward = [&](NodeId user) { return graph.node(user).phase == Phase::Backward; };
  Builder b = builder_at(graph, *llvm::find_if(users, reads_in_backward));
  const ValueId whole = graph.node(concat).results[0];
  b.insert_before(node_behind(graph, whole));
  const Shape& shape = graph.type(value).shape;
  Ints starts(shape.size(), 0);
  starts[static_cast<size_t>(graph.node(concat).attrs.get_int("axis"))] = start;
  const ValueId part =
      b.emit("slice", {whole},
             {{"starts", starts}, {"sizes", Ints(shape.begin(), shape.end())}, {"steps", Ints(shape.size(), 1)}},
             graph.value(value).name + ".part");
  for (NodeId user : users)
    for (size_t i = 0; i < graph.node(user).operands.size(); ++i)
      if (reads_in_backward(user) && graph.node(user).operands[i] == value) graph.set_operand(user, i, part);
  return {part, value};
}

}  // namespace

std::optional<PartOfValue> readable_part(const Graph& graph, ValueId value) {
  const NodeId id = graph.value(value).producer;
  if (id == NodeId::None) return std::nullopt;
  const Node& node = graph.node(id);
  std::optional<PartOfValue> part;
  if (node.op->name == "split") part = part_of_split(graph, node, value);
  if (node.op->name == "slice") part = part_of_slice(graph, node);
  if (!part || !is_apart(graph.type(part->whole).shape, part->axis, part->size)) return std::nullopt;
  return part;
}

std::vector<SavedPart> read_saved_wholes(Graph& graph) {
  std::vector<SavedPart> parts;
  for (NodeId id : graph.order()) {
    const Node& concat = graph.node(id);
    if (concat.op->name != "concat" || concat.phase != Phase::Forward || !is_read_in_backward(graph, concat.results[0]))
      continue;
    const int64_t axis = concat.attrs.get_int("axis");
    const Shape whole = graph.type(concat.results[0]).shape;
    int64_t start = 0;
    for (ValueId value : llvm::SmallVector<ValueId, 8>(concat.operands.begin(), concat.operands.end())) {
      const int64_t size = graph.type(value).shape[static_cast<size_t>(axis)];
      const NodeId producer = graph.value(value).producer;
      if (producer != NodeId::None && graph.node(producer).phase == Phase::Forward && !leaves_graph(graph, value) &&
          is_apart(whole, axis, size) && only_elementwise_reads_in_backward(graph, value))
        parts.push_back(read_part(graph, id, value, start));
      start += size;
    }
  }
  return parts;
}

std::vector<bool> folded_parts(const Graph& graph, const FusionChoice& choice) {
  std::vector<bool> is_fused(graph.node_slots()), folded(graph.value_count());
  for (const FusionGroup& group : choice.groups)
    for (NodeId id : group.nodes) is_fused[index_of(id)] = true;
  for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) {
    const Node& node = graph.node(id);
    const bool folds = llvm::all_of(node.results, [&](ValueId value) {
      return readable_part(graph, value) && !leaves_graph(graph, value) &&
             llvm::all_of(graph.value(value).users, [&](NodeId user) { return is_fused[index_of(user)]; });
    });
    for (ValueId value : node.results) folded[index_of(value)] = folds;
  }
  return folded;
}

bool give_back_unfolded(Graph& graph, std::vector<SavedPart>& parts, const std::vector<bool>& folded) {
  const size_t before = parts.size();
  llvm::erase_if(parts, [&](const SavedPart& saved) {
    if (folded[index_of(saved.part)]) return false;
    graph.replace_uses(saved.part, saved.value);
    return true;
  });
  return parts.size() < before;
}

}  // namespace plimsoll
