#include "passes/lower_to_plan.h"

// States and constants go to the arena's bottom, one after the other; every function then
// packs its transient buffers above them, so the arena is as high as the hungriest function. Host memory, where some is
// used, is another arena of the same kind.

#include "ir/support/align.h"
#include "ir/support/units.h"
#include "passes/analysis/cost_model.h"
#include "passes/place/placement.h"

#include <algorithm>
#include <numeric>

namespace plimsoll {
namespace {

Category category_of(StateRole role) {
  switch (role) {
    case StateRole::Parameter:
      return Category::Parameters;
    case StateRole::Gradient:
      return Category::Gradients;
    case StateRole::Optimizer:
      return Category::Optimizer;
    case StateRole::Buffer:
    case StateRole::Counter:
      return Category::Constants;
  }
  return Category::Constants;
}

class Lowering {
 public:
  explicit Lowering(const LoweringInput& input) : in_(input), alignment_(input.device.alignment_bytes) {}

  Result<Plan> run() {
    plan_.device = in_.device;
    plan_.origins = in_.program.functions.front().origins;
    for (const Graph& function : in_.program.functions) add_states(function);
    for (size_t i = 0; i < in_.program.functions.size(); ++i) add_function(static_cast<int32_t>(i));
    finish_arenas();
    return std::move(plan_);
  }

 private:
  SlotId add_slot(Slot slot) {
    plan_.slots.push_back(std::move(slot));
    return static_cast<SlotId>(plan_.slots.size() - 1);
  }

  int64_t& persistent_bytes(MemorySpace space) { return persistent_bytes_[static_cast<size_t>(space)]; }

  SlotId add_persistent(llvm::StringRef name, const Type& type, Category category, OriginId origin,
                        MemorySpace space = MemorySpace::Device) {
    Slot slot;
    slot.name = name.str();
    slot.type = type;
    slot.bytes = type.bytes();
    slot.space = space;
    slot.offset = persistent_bytes(space);
    slot.category = category;
    slot.origin = static_cast<int32_t>(origin);
    persistent_bytes(space) += align_up(slot.bytes, alignment_);
    return add_slot(std::move(slot));
  }

  void add_states(const Graph& function) {
    for (const State& state : function.states) {
      llvm::StringRef name = function.value(state.value).name;
      if (state_slots_.count(name)) continue;
      SlotId slot =
          add_persistent(name, function.type(state.value), category_of(state.role), state.origin, state.space);
      state_slots_[name] = slot;
      plan_.states.push_back({slot, state.role, state.trained, state.init});
    }
  }

  SlotId constant_slot(const Graph& graph, const Node& node) {
    TensorRef value = node.attrs.get_tensor("value");
    // The functions of a program repeat small constants; bytes that are equal are kept once.
    std::string key = to_string(value->type()) +
                      std::string(static_cast<const char*>(value->data()), static_cast<size_t>(value->type().bytes()));
    auto [at, fresh] = constant_slots_.try_emplace(key, -1);
    if (!fresh) return at->second;
    SlotId slot = add_persistent(graph.value(node.results[0]).name, value->type(), Category::Constants, node.origin);
    plan_.constants.push_back({slot, value});
    return at->second = slot;
  }

  void add_function(int32_t index) {
    const Graph& graph = in_.program.functions[static_cast<size_t>(index)];
    function_ = index;
    graph_ = &graph;
    llvm::ArrayRef<CopyInFlight> copies;
    if (!in_.copies.empty()) copies = in_.copies[static_cast<size_t>(index)];
    assignment_ = assign_buffers(graph, in_.writers[static_cast<size_t>(index)], copies);
    done_.assign(graph.node_slots(), -1);
    for (const CopyInFlight& flight : copies) done_[index_of(flight.copy)] = flight.done;
    slot_of_.assign(graph.value_count(), -1);
    is_remat_.assign(graph.node_slots(), false);
    if (!in_.remats.empty())
      for (NodeId id : in_.remats[static_cast<size_t>(index)]) is_remat_[index_of(id)] = true;
    plan_.functions.emplace_back();
    plan_.functions.back().name = graph.name;
    for (const State& state : graph.states)
      slot_of_[index_of(state.value)] = state_slots_[graph.value(state.value).name];
    for (ValueId input : graph.inputs) add_input(input);
    for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) add_node(id);
    for (const Output& output : graph.outputs)
      plan_.functions.back().outputs.push_back({output.name, slot_of_[index_of(output.value)]});
    for (const Update& update : graph.updates)
      plan_.functions.back().updates.push_back({slot_of_[index_of(update.state)], slot_of_[index_of(update.value)]});
    add_gradients();
  }

  Slot value_slot(ValueId value, int32_t first) {
    Slot slot;
    slot.name = graph_->value(value).name;
    slot.type = graph_->type(value);
    slot.bytes = slot.type.bytes();
    slot.function = function_;
    slot.first = first;
    slot.last = std::max(
        first, std::min(assignment_.last_use[index_of(root_of(*graph_, value))], assignment_.instructions - 1));
    return slot;
  }

  void add_input(ValueId input) {
    Slot slot = value_slot(input, 0);
    slot.category = Category::Input;
    slot_of_[index_of(input)] = add_slot(std::move(slot));
    const std::string& name = graph_->value(input).name;
    SlotId staging = in_.device.backend == "cuda"
                         ? add_persistent(name + ".staging", graph_->type(input), Category::Input, OriginId::None)
                         : -1;
    plan_.functions.back().inputs.push_back({name, slot_of_[index_of(input)], staging});
    place_in_buffer(input);
  }

  void add_node(NodeId id) {
    const Node& node = graph_->node(id);
    if (node.op->view_of >= 0) return add_view(node);
    if (!is_instruction(node)) {
      slot_of_[index_of(node.results[0])] = constant_slot(*graph_, node);
      return;
    }
    int32_t at = assignment_.position[index_of(id)];
    for (ValueId result : node.results) add_result(node, result, at);
    add_instruction(node, at);
    plan_.functions.back().instructions.back().done = done_[index_of(id)];
  }

  void add_view(const Node& node) {
    ValueId value = node.results[0], root = root_of(*graph_, value);
    SlotId owner = slot_of_[index_of(root)];
    Slot slot = plan_.slots[static_cast<size_t>(owner)];
    slot.name = graph_->value(value).name;
    slot.type = graph_->type(value);
    slot.view_of = owner;
    slot.in_place_of = -1;
    slot.origin = static_cast<int32_t>(node.origin);
    SlotId id = add_slot(std::move(slot));
    slot_of_[index_of(value)] = id;
    place_in_buffer(value);
  }

  void add_result(const Node& node, ValueId result, int32_t at) {
    Slot slot = value_slot(result, at);
    slot.origin = static_cast<int32_t>(node.origin);
    slot.space = written_space(node.op->engine);
    slot.category = node.op->engine == Engine::Compute ? Category::Temporary : Category::Offload;
    if (node.phase == Phase::Forward) mark_if_saved(result, slot);
    if (is_remat_[index_of(graph_->value(result).producer)] && slot.category != Category::Offload)
      slot.category = Category::Recompute;
    if (ValueId root = assignment_.in_place_of[index_of(result)]; root != ValueId::None)
      slot.in_place_of = slot_of_[index_of(root)];
    const Buffer& buffer = assignment_.buffers[static_cast<size_t>(assignment_.buffer_of[index_of(result)])];
    if (buffer.kind == Buffer::Kind::State) {
      const Slot& state = plan_.slots[static_cast<size_t>(slot_of_[index_of(buffer.first_value)])];
      slot.category = state.category;
      slot.offset = state.offset;
    }
    slot_of_[index_of(result)] = add_slot(std::move(slot));
    place_in_buffer(result);
  }

  void mark_if_saved(ValueId result, Slot& slot) const {
    if (slot.category == Category::Offload) return;
    for (NodeId reader : readers_of(*graph_, result)) {
      const Node& node = graph_->node(reader);
      if (node.phase == Phase::Forward) continue;
      slot.category = Category::Saved;
      slot.reason = "saved for " + graph_->value(node.results[0]).name + " (" + node.op->name.str() + ")";
      return;
    }
  }

  // Slots of transient buffers get their offsets when the function is packed.
  void place_in_buffer(ValueId value) {
    int32_t buffer = assignment_.buffer_of[index_of(value)];
    Buffer::Kind kind = assignment_.buffers[static_cast<size_t>(buffer)].kind;
    if (kind == Buffer::Kind::Transient || kind == Buffer::Kind::Input)
      pending_.push_back({slot_of_[index_of(value)], function_, buffer});
  }

  void add_instruction(const Node& node, int32_t at) {
    Instruction instruction;
    instruction.op = node.op->name.str();
    instruction.attrs = node.attrs;
    for (ValueId operand : node.operands)
      instruction.operands.push_back(operand == ValueId::None ? -1 : slot_of_[index_of(operand)]);
    for (ValueId result : node.results) instruction.results.push_back(slot_of_[index_of(result)]);
    llvm::SmallVector<const Type*, 4> types = operand_types(*graph_, node);
    KernelCandidate kernel =
        in_.catalog.candidates(*node.op, OpCall(node.attrs, types), result_types(*graph_, node)).front();
    instruction.kernel = kernel.name;
    Cost cost = cost_of(*graph_, node, in_.device);
    instruction.flops = cost.flops;
    instruction.bytes_moved = cost.bytes_moved;
    instruction.predicted_us = predicted_us(*graph_, node, kernel, in_.device);
    instruction.phase = node.phase;
    instruction.origin = static_cast<int32_t>(node.origin);
    instruction.reason = node.reason;
    if (kernel.workspace_bytes > 0) instruction.workspace = add_workspace(node, kernel.workspace_bytes, at);
    plan_.functions.back().instructions.push_back(std::move(instruction));
  }

  SlotId add_workspace(const Node& node, int64_t bytes, int32_t at) {
    Slot slot;
    slot.name = graph_->value(node.results[0]).name + ".workspace";
    slot.type = Type(DType::U8, {bytes});
    slot.bytes = bytes;
    slot.function = function_;
    slot.first = slot.last = at;
    slot.category = Category::Workspace;
    slot.origin = static_cast<int32_t>(node.origin);
    assignment_.buffers.push_back({Buffer::Kind::Transient, ValueId::None, MemorySpace::Device, bytes, at, at});
    SlotId id = add_slot(std::move(slot));
    pending_.push_back({id, function_, static_cast<int32_t>(assignment_.buffers.size() - 1)});
    return id;
  }

  void add_gradients() {
    for (const StateGradient& gradient : graph_->gradients) {
      SlotId slot = slot_of_[index_of(gradient.value)];
      NodeId producer = graph_->value(root_of(*graph_, gradient.value)).producer;
      int32_t at = producer == NodeId::None ? -1 : assignment_.position[index_of(producer)];
      plan_.gradients.push_back({graph_->value(gradient.state).name, function_, at, slot});
      Slot& place = plan_.slots[static_cast<size_t>(slot)];
      if (place.function >= 0) place.category = Category::Gradients;
    }
    buffers_.push_back(std::move(assignment_.buffers));
  }

  // Packs each function above the persistent part.
  void finish_arenas() {
    for (MemorySpace space : {MemorySpace::Device, MemorySpace::Host}) {
      Arena arena;
      arena.space = space;
      arena.persistent_bytes = arena.bytes = arena.peak_live_bytes = persistent_bytes(space);
      for (size_t f = 0; f < plan_.functions.size(); ++f) {
        Packed packed = pack(static_cast<int32_t>(f), space);
        arena.bytes = std::max(arena.bytes, arena.persistent_bytes + packed.transient_bytes);
        arena.peak_live_bytes = std::max(arena.peak_live_bytes, packed.peak_live_bytes);
      }
      if (space == MemorySpace::Device)
        arena.budget_bytes = in_.budget_bytes > 0 ? in_.budget_bytes : in_.device.memory_bytes;
      else
        arena.budget_bytes = in_.host_budget_bytes;
      if (space == MemorySpace::Device || arena.bytes > 0) plan_.arenas.push_back(arena);
    }
  }

  struct Packed {
    int64_t transient_bytes, peak_live_bytes;
  };

  Packed pack(int32_t f, MemorySpace space) {
    const std::vector<Buffer>& buffers = buffers_[static_cast<size_t>(f)];
    std::vector<Interval> intervals;
    std::vector<int32_t> interval_of(buffers.size(), -1);
    for (size_t i = 0; i < buffers.size(); ++i) {
      const Buffer& buffer = buffers[i];
      if ((buffer.kind != Buffer::Kind::Transient && buffer.kind != Buffer::Kind::Input) || buffer.space != space)
        continue;
      interval_of[i] = static_cast<int32_t>(intervals.size());
      intervals.push_back({std::max<int64_t>(buffer.bytes, 1), buffer.first, buffer.last});
    }
    PlacementOptions options;
    options.alignment = alignment_;
    options.seconds = in_.placement_seconds;
    Placement placement = place_intervals(intervals, options);
    for (const Pending& pending : pending_)
      if (int32_t interval = pending.function == f ? interval_of[static_cast<size_t>(pending.buffer)] : -1;
          interval >= 0)
        plan_.slots[static_cast<size_t>(pending.slot)].offset =
            persistent_bytes(space) + placement.offsets[static_cast<size_t>(interval)];
    PlanFunction& function = plan_.functions[static_cast<size_t>(f)];
    Peak peak = find_peak(function, intervals);
    if (space == MemorySpace::Device) {
      function.transient_bytes = placement.height_bytes;
      function.peak_live_bytes = persistent_bytes(space) + peak.bytes;
      function.peak_instruction = peak.instruction;
      plan_.decisions.push_back({"lay-out", function.name, placement.method,
                                 format_bytes(placement.height_bytes) + " for " + std::to_string(intervals.size()) +
                                     " buffers; no layout of this order is below " +
                                     format_bytes(placement.lower_bound_bytes)});
    }
    return {placement.height_bytes, persistent_bytes(space) + peak.bytes};
  }

  struct Peak {
    int64_t bytes;
    int32_t instruction;
  };

  Peak find_peak(const PlanFunction& function, llvm::ArrayRef<Interval> intervals) const {
    // One place past the last instruction, and one instruction at least: a graph that folded away has only inputs.
    std::vector<int64_t> change(function.instructions.size() + 2, 0);
    for (const Interval& interval : intervals) {
      change[static_cast<size_t>(interval.first)] += align_up(interval.bytes, alignment_);
      change[static_cast<size_t>(interval.last) + 1] -= align_up(interval.bytes, alignment_);
    }
    std::partial_sum(change.begin(), change.end(), change.begin());
    auto top = std::max_element(change.begin(), change.end());
    return {*top, static_cast<int32_t>(top - change.begin())};
  }

  struct Pending {
    SlotId slot;
    int32_t function, buffer;
  };

  const LoweringInput& in_;
  int64_t alignment_;
  Plan plan_;
  int64_t persistent_bytes_[2] = {};  // by space
  llvm::StringMap<SlotId> state_slots_, constant_slots_;
  std::vector<Pending> pending_;
  std::vector<std::vector<Buffer>> buffers_;  // per function

  const Graph* graph_ = nullptr;  // the function at hand
  int32_t function_ = 0;
  BufferAssignment assignment_;
  std::vector<SlotId> slot_of_;  // by value of that function
  std::vector<bool> is_remat_;   // by node of that function
  std::vector<int32_t> done_;    // by node of that function: where a copy is waited for, -1: at once
};

}  // namespace

Result<Plan> lower_to_plan(const LoweringInput& input) { return Lowering(input).run(); }

}  // namespace plimsoll
