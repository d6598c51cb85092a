#include "ir/channels_last_weight.h"
#include "ir/kept_copies.h"
#include "ir/support/units.h"
#include "passes/analysis/plan_draft.h"
#include "passes/rewrite/patterns.h"

#include "llvm/ADT/STLExtras.h"

// The planning step order-updates lets updates read gradients of convolutions' weights and write kept copies of these
// with channels last, as convolutions make the ones and read the others. The transposes between go away; parameters,
// moments and files stay in the model's order.
//
// A gradient is read so where it is a transpose that updates and sums of squares alone read, perhaps past a sum over
// ranks. A copy is written so where all that reads it, in any function, are such transposes.
//
// It is right because both orders have the same elements. Norms that updates give are of the same blocks; sums of
// squares run in another order.

namespace plimsoll {
namespace {

// The other way round to with_channels_last.
Ints to_first(size_t rank) {
  Ints perm{0, static_cast<int64_t>(rank) - 1};
  for (size_t d = 1; d + 1 < rank; ++d) perm.push_back(static_cast<int64_t>(d));
  return perm;
}
Ints to_last(size_t rank) {
  Ints perm{0};
  for (size_t d = 2; d < rank; ++d) perm.push_back(static_cast<int64_t>(d));
  perm.push_back(1);
  return perm;
}

// Kernels update runs of about 1000 elements, and go through memory in runs of as many channels as these have: of up to
// so many taps, whole sectors.
constexpr int64_t max_taps = 64;
bool is_weight_of_few_taps(const Type& parameter) {
  return parameter.rank() > 2 && element_count(llvm::ArrayRef<int64_t>(parameter.shape).drop_front(2)) <= max_taps;
}

bool is_update(const Node& node) { return node.op->name == "adamw" || node.op->name == "sgd"; }

bool is_transpose_by(const Node& node, llvm::ArrayRef<int64_t> perm) {
  return node.op->name == "transpose" && node.attrs.get_ints("perm") == perm;
}

// Puts the same update with that attribute in the node's place.
NodeId with_attr(Graph& graph, NodeId id, llvm::StringRef attr, llvm::ArrayRef<ValueId> operands) {
  const Node node = graph.node(id);
  Attrs attrs = node.attrs;
  attrs.set(attr, int64_t{1});
  Builder b = builder_at(graph, id);
  const llvm::SmallVector<ValueId, 4> made = b.emit_all(node.op->name, operands, attrs);
  for (size_t i = 0; i < node.results.size(); ++i) {
    const std::string name = graph.value(node.results[i]).name;
    if (graph.type(made[i]) == graph.type(node.results[i])) graph.replace_uses(node.results[i], made[i]);
    for (Update& update : graph.updates)
      if (update.value == node.results[i]) update.value = made[i];
    graph.rename(node.results[i], name + ".before");
    graph.rename(made[i], name);
  }
  graph.erase_node(id);
  return graph.value(made[0]).producer;
}

// ---- Gradients ----

// Do updates of such weights and sums of squares alone read the value?
bool is_for_updates(const Graph& graph, ValueId value) {
  return !leaves_graph(graph, value) && llvm::all_of(graph.value(value).users, [&](NodeId user) {
    const Node& node = graph.node(user);
    return node.op->name == "sum_squares" ||
           (is_update(node) && llvm::count(node.operands, value) == 1 && operand_of(node, "grad") == value);
  });
}

// The gradient with channels last, of a transpose its operand, and of a sum over ranks of one another such sum. None
// where it is neither.
ValueId gradient_before(Graph& graph, ValueId gradient) {
  const NodeId id = graph.value(gradient).producer;
  if (id == NodeId::None) return ValueId::None;
  const Node node = graph.node(id);
  const Ints perm = to_first(graph.type(gradient).shape.size());
  if (is_transpose_by(node, perm)) return node.operands[0];
  const Node* inner = node.op->name == "reduce_all" ? producer_of(graph, node.operands[0], "transpose") : nullptr;
  if (!inner || !is_transpose_by(*inner, perm) || !has_one_reader(graph, node.operands[0])) return ValueId::None;
  const ValueId turned = inner->operands[0];
  return builder_at(graph, id).emit("reduce_all", {turned}, node.attrs, graph.value(gradient).name + ".channels_last");
}

bool read_turned(Graph& graph, NodeId id) {
  const ValueId gradient = operand_of(graph.node(id), "grad"), parameter = operand_of(graph.node(id), "param");
  // Who reads gradients finds their order by the update of their parameter.
  const bool is_of_another = llvm::any_of(
      graph.gradients, [&](const StateGradient& each) { return each.value == gradient && each.state != parameter; });
  if (is_of_another || !is_weight_of_few_taps(graph.type(parameter)) || !is_for_updates(graph, gradient)) return false;
  const ValueId before = gradient_before(graph, gradient);
  if (before == ValueId::None) return false;
  for (StateGradient& each : graph.gradients)
    if (each.value == gradient) each.value = before;
  const llvm::SmallVector<NodeId, 2> users(graph.value(gradient).users.begin(), graph.value(gradient).users.end());
  for (NodeId user : users) {
    llvm::SmallVector<ValueId, 4> operands(graph.node(user).operands.begin(), graph.node(user).operands.end());
    std::replace(operands.begin(), operands.end(), gradient, before);
    if (is_update(graph.node(user)))
      with_attr(graph, user, "grad_channels_last", operands);
    else
      for (size_t i = 0; i < operands.size(); ++i) graph.set_operand(user, i, operands[i]);
  }
  return true;
}

// ---- Copies ----

const State* find_copy(const Graph& graph, llvm::StringRef name) {
  const ValueId value = graph.find_value(name);
  return value == ValueId::None ? nullptr : graph.find_state(value);
}

// Is each reader of the copy, in all functions, a transpose to channels last?
bool is_read_turned(const Program& program, llvm::StringRef name) {
  bool is_read = false;
  for (const Graph& graph : program.functions) {
    const State* copy = find_copy(graph, name);
    if (!copy) continue;
    const size_t rank = graph.type(copy->value).shape.size();
    if (!is_weight_of_few_taps(graph.type(copy->value))) return false;
    for (NodeId user : graph.value(copy->value).users) {
      if (!is_transpose_by(graph.node(user), to_last(rank))) return false;
      is_read = true;
    }
  }
  return is_read;
}

void write_turned(Graph& graph, llvm::StringRef name) {
  const State* copy = find_copy(graph, name);
  if (!copy) return;
  const ValueId value = copy->value;
  const llvm::SmallVector<NodeId, 2> transposes(graph.value(value).users.begin(), graph.value(value).users.end());
  const Type type(graph.type(value).dtype, with_channels_last(graph.type(value).shape));
  const auto written = llvm::find_if(graph.updates, [&](const Update& each) { return each.state == value; });
  const NodeId updater = written == graph.updates.end() ? NodeId::None : graph.value(written->value).producer;
  graph.set_type(value, type);
  for (NodeId transpose : transposes) {
    graph.replace_uses(graph.node(transpose).results[0], value);
    graph.erase_node(transpose);
  }
  if (updater != NodeId::None) with_attr(graph, updater, "copy_channels_last", graph.node(updater).operands);
}

Result<bool> run(PlanDraft& draft, size_t function, PassContext& context) {
  Graph& graph = draft.program.functions[function];
  int64_t gradients = 0, bytes = 0;
  for (NodeId id : graph.order()) {
    if (graph.node(id).erased || !is_update(graph.node(id))) continue;
    const int64_t moved = 2 * graph.type(operand_of(graph.node(id), "grad")).bytes();
    if (read_turned(graph, id)) ++gradients, bytes += moved;
  }
  std::vector<std::string> copies;
  for (const State& state : graph.states)
    if (is_kept_copy(state.role, state.init) && is_read_turned(draft.program, graph.value(state.value).name)) {
      copies.push_back(graph.value(state.value).name);
      bytes += 2 * graph.type(state.value).bytes();
    }
  for (size_t i = 0; !copies.empty() && i < draft.program.functions.size(); ++i) {
    for (const std::string& name : copies) write_turned(draft.program.functions[i], name);
    draft.functions[i] = {};
  }
  if (gradients == 0 && copies.empty()) return false;
  draft.functions[function] = {};
  context.count("gradients", gradients);
  context.count("copies", static_cast<int64_t>(copies.size()));
  context.decide("weights of convolutions", "channels last in updates",
                 std::to_string(gradients) + " gradients are read and " + std::to_string(copies.size()) +
                     " copies written so, and transposes of " + format_bytes(bytes) + " read and written are left out");
  return true;
}

}  // namespace

constinit const PassInfo pass_order_updates{
    .name = "order-updates",
    .summary = "let updates read gradients and write kept copies with channels last, as convolutions have them",
    .keeps_result = false,  // copies in another order
    .plan = run,
};

}  // namespace plimsoll
