#include "ir/kept_copies.h"
#include "ir/support/units.h"
#include "passes/analysis/plan_draft.h"
#include "passes/rewrite/patterns.h"

#include "llvm/ADT/STLExtras.h"

// The planning step keep-copies lets 16-bit copies of trained f32 parameters outlive a step: the op that updates a
// parameter writes its copy as well ({copy_dtype}), and the next step reads that in place of casting the parameter. It
// saves reading four bytes an element and a launch, and costs the bytes of the copies at the step's peak where not all
// casts are live there anyway.
//
// It is right because a copy is the parameter rounded, at the start of every call: as the parameter is loaded the copy
// is made of it, and nothing changes one without the other. So it applies where one adamw or sgd updates the whole
// parameter, and not to moments that were asked to be small.

namespace plimsoll {
namespace {

struct Copied {
  std::string parameter;
  DType dtype;
};

const State* find_parameter(const Graph& graph, llvm::StringRef name) {
  const auto found =
      llvm::find_if(graph.states, [&](const State& state) { return graph.value(state.value).name == name; });
  return found == graph.states.end() ? nullptr : &*found;
}

bool is_trained_in_f32(const Graph& graph, const State& state) {
  return state.role == StateRole::Parameter && state.trained && state.divisions.empty() &&
         state.space == MemorySpace::Device && graph.type(state.value).dtype == DType::F32;
}

// Casts of the value, or of reshaped views of it, to a 16-bit type.
std::vector<NodeId> casts_of(const Graph& graph, ValueId value, std::optional<DType> to = std::nullopt) {
  std::vector<NodeId> casts;
  for (NodeId user : graph.value(value).users) {
    const Node& node = graph.node(user);
    if (node.op->is_view()) llvm::append_range(casts, casts_of(graph, node.results[0], to));
    if (node.op->name != "cast") continue;
    const DType dtype = node.attrs.get_dtype("to");
    if (is_16_bit_float(dtype) && (!to || dtype == *to)) casts.push_back(user);
  }
  return casts;
}

// The op that makes the parameter's next value and can write a copy; None where there is no such op.
NodeId updater_of(const Graph& graph, ValueId parameter) {
  const auto update = llvm::find_if(graph.updates, [&](const Update& each) { return each.state == parameter; });
  if (update == graph.updates.end()) return NodeId::None;
  const NodeId id = graph.value(update->value).producer;
  if (id == NodeId::None) return NodeId::None;
  const Node& node = graph.node(id);
  const bool is_adamw = node.op->name == "adamw";
  if ((!is_adamw && node.op->name != "sgd") || node.results[0] != update->value || node.operands[0] != parameter)
    return NodeId::None;
  return is_adamw && graph.type(operand_of(node, "m")).dtype != DType::F32 ? NodeId::None : id;
}

// The type of the parameter's copy, if it is to have one: what the first cast makes, or what an earlier function of the
// program keeps already.
std::optional<DType> dtype_of_copy(const Program& program, llvm::StringRef parameter) {
  std::optional<DType> dtype;
  bool is_updated = false;
  for (const Graph& graph : program.functions) {
    for (const State& state : graph.states)
      if (!dtype && is_kept_copy(state.role, state.init) && state.init.source == parameter)
        dtype = graph.type(state.value).dtype;
    const State* state = find_parameter(graph, parameter);
    if (!state) continue;
    if (!is_trained_in_f32(graph, *state)) return std::nullopt;
    const bool changes = llvm::any_of(graph.updates, [&](const Update& each) { return each.state == state->value; });
    if (changes && updater_of(graph, state->value) == NodeId::None) return std::nullopt;
    is_updated |= changes;
    const std::vector<NodeId> casts = casts_of(graph, state->value);
    if (!dtype && !casts.empty()) dtype = graph.node(casts.front()).attrs.get_dtype("to");
  }
  return is_updated ? dtype : std::nullopt;
}

ValueId add_copy(Graph& graph, const State& parameter, DType dtype) {
  const std::string name = graph.value(parameter.value).name;
  const OriginId origin = parameter.origin;
  const Type type(dtype, graph.type(parameter.value).shape);
  // All functions must call it the same, also those in which the cast has the name.
  const std::string copy_name = name + "." + dtype_name(dtype).str();
  if (const ValueId taken = graph.find_value(copy_name); taken != ValueId::None) graph.rename(taken, name + ".cast");
  const ValueId copy = graph.add_state(copy_name, type, StateRole::Parameter, {StateInit::Kind::CopyOf, 0, name});
  graph.states.back().origin = origin;
  return copy;
}

void write_copy(Graph& graph, NodeId updater, ValueId copy) {
  const Node node = graph.node(updater);
  Attrs attrs = node.attrs;
  attrs.set("copy_dtype", graph.type(copy).dtype);
  Builder b = builder_at(graph, updater);
  const llvm::SmallVector<ValueId, 4> made = b.emit_all(node.op->name, node.operands, attrs);
  for (size_t i = 0; i < node.results.size(); ++i) replace_and_rename(graph, node.results[i], made[i]);
  graph.erase_node(updater);
  graph.rename(made.back(), graph.value(copy).name + ".next");
  graph.updates.push_back({copy, made.back()});
}

Result<bool> run(PlanDraft& draft, size_t function, PassContext& context) {
  Graph& graph = draft.program.functions[function];
  std::vector<Copied> copied;
  for (const State& state : graph.states) {
    const std::string& name = graph.value(state.value).name;
    if (!is_trained_in_f32(graph, state)) continue;
    if (const std::optional<DType> dtype = dtype_of_copy(draft.program, name)) copied.push_back({name, *dtype});
  }
  int64_t bytes = 0, kept = 0;
  bool has_updates = false;
  for (const Copied& each : copied) {
    const State parameter = *find_parameter(graph, each.parameter);
    const std::vector<NodeId> casts = casts_of(graph, parameter.value, each.dtype);
    const NodeId updater = updater_of(graph, parameter.value);
    if (casts.empty() && updater == NodeId::None) continue;
    const ValueId copy = add_copy(graph, parameter, each.dtype);
    for (NodeId cast : casts) {
      const ValueId made = graph.node(cast).results[0];
      graph.replace_uses(made, builder_at(graph, cast).reshape(copy, graph.type(made).shape));
      graph.erase_node(cast);
    }
    if (updater != NodeId::None) write_copy(graph, updater, copy), has_updates = true;
    bytes += graph.type(copy).bytes();
    ++kept;
  }
  if (kept == 0) return false;
  draft.functions[function] = {};
  context.count("copies", kept);
  if (has_updates)
    context.decide("copies of parameters", "states",
                   std::to_string(kept) + " in 16 bits, " + format_bytes(bytes) +
                       ", which updates write and the next step reads in place of casting");
  return true;
}

}  // namespace

constinit const PassInfo pass_keep_copies{
    .name = "keep-copies",
    .summary = "let 16-bit copies of trained parameters outlive a step, written by the ops that update these",
    .keeps_result = false,  // updates that were not there
    .plan = run,
};

}  // namespace plimsoll
