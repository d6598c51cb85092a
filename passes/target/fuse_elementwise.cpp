#include "ir/fused_body.h"
#include "ir/support/units.h"
#include "passes/rewrite/patterns.h"
#include "passes/target/fusion_groups.h"
#include "passes/target/fusion_parts.h"
#include "passes/target/fusion_reductions.h"
#include "passes/target/fusion_remakes.h"

#include <map>

// Elementwise ops that read each other's results, or the same values, become one op, `fused`. What was between them is
// neither written nor read, and is not in memory. passes/target/fusion_groups.h says which are chosen.
//
// What only elementwise ops of backward read of forward is not saved where they can make it again
// (passes/target/fusion_remakes.h), and parts of other values are read where they lie (passes/target/fusion_parts.h).
//
// It is right because the body has the same ops on the same elements, each rounded to its own type as before, and
// because a group stands behind all that it reads and before all that reads it. Sums run in another order, which is
// that of the kernel as before.

namespace plimsoll {
namespace {

// The body of a group: its nodes on scalars, named by their order, so that equal groups have equal bodies.
class BodyMaker {
 public:
  explicit BodyMaker(const Graph& graph) : graph_(graph), builder_(body_) { body_.name = "body"; }

  std::string make(const FusionGroup& group) {
    reduces_ = llvm::any_of(group.nodes, [&](NodeId id) { return is_fusible_reduction(graph_, graph_.node(id)); });
    for (ValueId operand : group.operands) add_operand(operand, is_drawn_from(graph_, group.nodes, operand));
    for (NodeId id : group.nodes) add_node(graph_.node(id));
    for (ValueId result : group.results) add_result(inside_[result]);
    return fused_body_text(body_);
  }

 private:
  void add_operand(ValueId operand, bool is_counter) {
    const Type& type = graph_.type(operand);
    const std::string name = "x" + std::to_string(body_.inputs.size());
    inside_[operand] = body_.add_input(name, is_counter || reduces_ ? type : Type(type.dtype, {}));
  }

  // Two results may be one value, whose name is taken then.
  void add_result(ValueId value) {
    std::string name = body_.value(value).name;
    if (llvm::any_of(body_.outputs, [&](const Output& output) { return output.name == name; }))
      name = "y" + std::to_string(body_.outputs.size());
    body_.outputs.push_back({name, value});
  }

  void add_constant(ValueId value) {
    const Node& node = graph_.node(graph_.value(value).producer);
    inside_[value] = builder_.constant(node.attrs.get_tensor("value")->reshaped({}), next_name("c"));
  }

  // Two nodes that compute the same are one.
  void add_node(const Node& node) {
    llvm::SmallVector<ValueId, 4> operands;
    for (ValueId operand : node.operands) {
      if (!inside_.count(operand)) add_constant(operand);
      operands.push_back(inside_[operand]);
    }
    Attrs attrs = node.attrs;
    for (llvm::StringRef name : draw_attrs)
      if (node.op->name == "dropout") attrs.erase(name);
    if (is_fusible_reduction(graph_, node)) attrs.set("keep_dims", int64_t{1});
    const NodeId same = find_same(*node.op, operands, attrs);
    inside_[node.results[0]] = same != NodeId::None
                                   ? body_.node(same).results[0]
                                   : builder_.emit(node.op->name, operands, std::move(attrs), next_name("v"));
  }

  NodeId find_same(const OpDef& op, llvm::ArrayRef<ValueId> operands, const Attrs& attrs) const {
    for (NodeId id = body_.first_node(); id != NodeId::None; id = body_.next_node(id))
      if (body_.node(id).op == &op && llvm::ArrayRef<ValueId>(body_.node(id).operands) == operands &&
          body_.node(id).attrs == attrs)
        return id;
    return NodeId::None;
  }

  std::string next_name(const char* kind) { return kind + std::to_string(made_++); }

  const Graph& graph_;
  Graph body_;
  Builder builder_;
  std::map<ValueId, ValueId> inside_;
  size_t made_ = 0;
  bool reduces_ = false;
};

Attrs attrs_of(const Graph& graph, const FusionGroup& group) {
  Attrs attrs{{"body", BodyMaker(graph).make(group)}};
  for (NodeId id : group.nodes) {
    const Node& node = graph.node(id);
    if (node.op->name != "dropout") continue;
    for (llvm::StringRef name : draw_attrs)
      if (node.attrs.has(name)) attrs.set(name, node.attrs.get_int(name));
  }
  return attrs;
}

class Fuser {
 public:
  Fuser(Graph& graph, std::vector<bool> folded) : graph_(graph), order_(graph), folded_(std::move(folded)) {}

  void fuse(FusionGroup group) {
    for (ValueId& operand : group.operands) operand = now(operand);
    for (ValueId operand : group.operands) move_views_before(operand, group.place);
    Builder b = builder_at(graph_, group.place);
    Attrs attrs = attrs_of(graph_, group);
    const std::vector<ValueId> operands = with_wholes(group.operands, attrs);
    const llvm::SmallVector<ValueId, 4> made = b.emit_all("fused", operands, std::move(attrs));
    order_.add(made[0], group.place);
    for (size_t i = 0; i < made.size(); ++i) {
      ValueId result = made[i];
      const Shape& shape = graph_.type(group.results[i]).shape;
      if (graph_.type(result).shape != shape) {
        result = b.reshape(result, shape);
        order_.add(result, group.place);
      }
      move_views_behind(group.results[i], group.place);
      replace_and_rename(graph_, group.results[i], result);
      made_[group.results[i]] = result;
    }
    for (NodeId id : llvm::reverse(group.nodes)) graph_.erase_node(id);
  }

  int64_t parts() const { return parts_; }

 private:
  // The operands with wholes in the place of parts that are read there, which the attributes then say.
  std::vector<ValueId> with_wholes(const std::vector<ValueId>& operands, Attrs& attrs) {
    std::vector<ValueId> read = operands;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (index_of(operands[i]) >= folded_.size() || !folded_[index_of(operands[i])]) continue;
      const PartOfValue part = *readable_part(graph_, operands[i]);
      std::vector<ValueId> tried_operands = read;
      Attrs tried = attrs;
      tried_operands[i] = part.whole;
      add_operand_part(tried, {i, part.axis, part.start, part.size});
      llvm::SmallVector<const Type*, 8> types;
      for (ValueId operand : tried_operands) types.push_back(&graph_.type(operand));
      if (!try_infer(get_op("fused"), tried, types)) continue;
      read = std::move(tried_operands), attrs = std::move(tried);
      ++parts_;
    }
    return read;
  }

  // A value that an earlier group gave is that of its op.
  ValueId now(ValueId value) const {
    const auto found = made_.find(value);
    return found == made_.end() ? value : found->second;
  }

  // A constant or a view of what is made before `place` may stand behind it.
  void move_views_before(ValueId value, NodeId place) {
    const NodeId id = graph_.value(value).producer;
    if (id == NodeId::None || order_[id] < order_[place]) return;
    for (ValueId operand : graph_.node(id).operands) move_views_before(operand, place);
    graph_.move_before(id, place);
    order_.add(value, place);
  }

  // A view of a group's result stands before readers that all come behind `place`.
  void move_views_behind(ValueId value, NodeId place) {
    const llvm::SmallVector<NodeId, 4> users(graph_.value(value).users.begin(), graph_.value(value).users.end());
    for (NodeId user : users) {
      if (!graph_.node(user).op->is_view() || order_[user] > order_[place]) continue;
      graph_.move_before(user, place);
      order_.add(graph_.node(user).results[0], place);
      move_views_behind(graph_.node(user).results[0], place);
    }
  }

  Graph& graph_;
  NodeOrder order_;
  std::map<ValueId, ValueId> made_;
  std::vector<bool> folded_;  // by value
  int64_t parts_ = 0;
};

Result<bool> run_fuse_elementwise(Graph& graph, PassContext& context) {
  const int64_t remade = remake_in_backward(graph);
  context.count("remade", remade);
  std::vector<SavedPart> saved = read_saved_wholes(graph);
  FusionChoice choice = choose_fusions(graph);
  std::vector<bool> folded = folded_parts(graph, choice);
  while (give_back_unfolded(graph, saved, folded)) {
    choice = choose_fusions(graph);
    folded = folded_parts(graph, choice);
  }
  Fuser fuser(graph, std::move(folded));
  int64_t ops = 0;
  for (const FusionGroup& group : choice.groups) {
    ops += static_cast<int64_t>(group.nodes.size());
    fuser.fuse(group);
  }
  context.count("ops", ops);
  context.count("parts", fuser.parts());
  const auto kernels = static_cast<int64_t>(choice.groups.size());
  if (kernels > 0)
    context.decide("elementwise ops", std::to_string(ops) + " in " + std::to_string(kernels),
                   format_bytes(choice.saved_bytes) + " less are read and written in " + graph.name);
  return kernels > 0 || remade > 0;
}

}  // namespace

constinit const PassInfo pass_fuse_elementwise{
    .name = "fuse-elementwise",
    .summary = "make one op of elementwise ops and reductions that read each other's results or the same values",
    .run = run_fuse_elementwise,
};

}  // namespace plimsoll
