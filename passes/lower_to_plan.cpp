#include "passes/lower_to_plan.h"

// States and constants go to the arena's bottom, one after the other; every function then
// packs its transient buffers above them, so the arena is as high as the hungriest function. Host memory, where some is
// used, is another arena of the same kind.

#include "ir/plan/windows.h"
#include "ir/support/align.h"
#include "ir/support/units.h"
#include "passes/analysis/cost_model.h"
#include "passes/analysis/launches.h"
#include "passes/arena_windows.h"
#include "passes/lay_out_function.h"
#include "passes/place/place_buffers.h"
#include "passes/place/place_parts.h"
#include "passes/slow_kernels.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace plimsoll {
namespace {

Category category_of(StateRole role) {
  switch (role) {
    case StateRole::Parameter: return Category::Parameters;
    case StateRole::Gradient: return Category::Gradients;
    case StateRole::Optimizer: return Category::Optimizer;
    case StateRole::Buffer:
    case StateRole::Counter: return Category::Constants;
  }
  return Category::Constants;
}

class Lowering {
 public:
  explicit Lowering(const LoweringInput& input) : in_(input), alignment_(input.draft.device.alignment_bytes) {}

  Result<Plan> run() {
    plan_.device = in_.draft.device;
    plan_.origins = in_.draft.program.functions.front().origins;
    for (size_t i = 0; i < plan_.origins.size(); ++i) origins_.push_back(static_cast<int32_t>(i));
    add_functions();
    finish_arenas();
    slow_kernels_.report(plan_);
    return std::move(plan_);
  }

  Result<QuickPlan> run_quickly() {
    is_quick_ = true;
    Result<Plan> plan = run();
    if (!plan) return plan.takeError();
    return QuickPlan{std::move(*plan), is_final_};
  }

  Result<Plan> run(Plan plan) {
    plan_ = std::move(plan);
    first_function_ = plan_.functions.size();
    for (const PlanState& state : plan_.states) state_slots_[plan_.slots[state.slot].name] = state.slot;
    for (const PlanConstant& constant : plan_.constants) constant_slots_[content_of(*constant.value)] = constant.slot;
    for (const Arena& arena : plan_.arenas) persistent_bytes(arena.space) = arena.persistent_bytes;
    join_origins(in_.draft.program.functions.front().origins);
    if (!plan_.arenas.empty()) windows_ = ArenaWindows(plan_.arenas.front());
    const size_t slots = plan_.slots.size();
    add_functions();
    move_transient_slots(slots);
    const std::vector<Arena> before = std::move(plan_.arenas);
    plan_.arenas.clear();
    finish_arenas();
    for (const Arena& arena : before) include(arena);
    slow_kernels_.report(plan_);
    return std::move(plan_);
  }

 private:
  void add_functions() {
    for (const Graph& function : in_.draft.program.functions) add_states(function);
    for (size_t i = 0; i < in_.draft.program.functions.size(); ++i) add_function(i);
  }

  // The graph's origins are the plan's where these are equal.
  void join_origins(llvm::ArrayRef<Origin> origins) {
    llvm::StringMap<int32_t> known;
    const auto text = [](const Origin& origin) {
      return origin.node + '\0' + origin.op + '\0' + origin.module + '\0' + origin.source;
    };
    for (size_t i = 0; i < plan_.origins.size(); ++i) known.try_emplace(text(plan_.origins[i]), i);
    for (const Origin& origin : origins) {
      const auto [at, fresh] = known.try_emplace(text(origin), plan_.origins.size());
      if (fresh) plan_.origins.push_back(origin);
      origins_.push_back(at->second);
    }
  }

  int32_t origin_of(OriginId id) const { return id == OriginId::None ? -1 : origins_[index_of(id)]; }

  // Of the functions that were there, the first `slots` of all.
  void move_transient_slots(size_t slots) {
    for (const Arena& arena : plan_.arenas) {
      const int64_t more = persistent_bytes(arena.space) - arena.persistent_bytes;
      for (Slot& slot : llvm::MutableArrayRef<Slot>(plan_.slots).take_front(slots))
        if (slot.function >= 0 && slot.space == arena.space && slot.offset >= arena.persistent_bytes &&
            !is_in_window(slot.offset))
          slot.offset += more;
      if (arena.space != MemorySpace::Device) continue;
      for (PlanFunction& function : llvm::MutableArrayRef<PlanFunction>(plan_.functions).take_front(first_function_))
        function.peak_live_bytes += more;
    }
  }

  // What an arena was before functions were added.
  void include(const Arena& before) {
    auto arena = llvm::find_if(plan_.arenas, [&](const Arena& each) { return each.space == before.space; });
    if (arena == plan_.arenas.end()) return plan_.arenas.push_back(before);
    const int64_t more = arena->persistent_bytes - before.persistent_bytes;
    arena->bytes = std::max(arena->bytes, before.bytes + more);
    arena->peak_live_bytes = std::max(arena->peak_live_bytes, before.peak_live_bytes + more);
    arena->budget_bytes = before.budget_bytes;
  }

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
    slot.category = category;
    slot.origin = origin_of(origin);
    slot.offset = persistent_bytes(space);
    if (const auto joined = joined_offset_.find(name); joined != joined_offset_.end()) {
      slot.offset = joined->second;
      joined_offset_.erase(joined);
    } else {
      persistent_bytes(space) += align_up(slot.bytes, alignment_);
    }
    return add_slot(std::move(slot));
  }

  // States that are joined lie side by side, unless one of them has its place already.
  void place_joined_states(const Graph& function) {
    if (in_.parts == Parts::Copied) return;
    for (const llvm::SmallVector<ValueId, 4>& states : joined_states(function, alignment_)) {
      const auto has_place = [&](ValueId state) {
        const std::string& name = function.value(state).name;
        return state_slots_.count(name) || joined_offset_.count(name);
      };
      if (llvm::any_of(states, has_place)) continue;
      int64_t& end = persistent_bytes(MemorySpace::Device);
      for (ValueId state : states) {
        joined_offset_[function.value(state).name] = end;
        end += align_up(function.type(state).bytes(), alignment_);
      }
    }
  }

  void add_states(const Graph& function) {
    place_joined_states(function);
    for (const State& state : function.states) {
      llvm::StringRef name = function.value(state.value).name;
      if (state_slots_.count(name)) continue;
      SlotId slot =
          add_persistent(name, function.type(state.value), category_of(state.role), state.origin, state.space);
      state_slots_[name] = slot;
      plan_.states.push_back({slot, state.role, state.trained, state.init, state.divisions, state.channels_last});
    }
  }

  static std::string content_of(const Tensor& value) {
    return to_string(value.type()) +
           std::string(static_cast<const char*>(value.data()), static_cast<size_t>(value.type().bytes()));
  }

  SlotId constant_slot(const Graph& graph, const Node& node) {
    TensorRef value = node.attrs.get_tensor("value");
    // The functions of a program repeat small constants; bytes that are equal are kept once.
    auto [at, fresh] = constant_slots_.try_emplace(content_of(*value), -1);
    if (!fresh) return at->second;
    SlotId slot = add_persistent(graph.value(node.results[0]).name, value->type(), Category::Constants, node.origin);
    plan_.constants.push_back({slot, value});
    return at->second = slot;
  }

  void add_function(size_t index) {
    const Graph& graph = in_.draft.program.functions[index];
    function_ = static_cast<int32_t>(first_function_ + index);
    graph_ = &graph;
    const FunctionDraft& draft = in_.draft.functions[index];
    assignment_ = assign_buffers(graph, draft.writers, draft.copies, *in_.draft.catalog);
    done_.assign(graph.node_slots(), -1);
    for (const CopyInFlight& flight : draft.copies) done_[index_of(flight.copy)] = flight.done;
    slot_of_.assign(graph.value_count(), -1);
    is_remat_.assign(graph.node_slots(), false);
    for (NodeId id : draft.added) is_remat_[index_of(id)] = true;
    plan_.functions.emplace_back();
    plan_.functions.back().name = graph.name;
    launch_.clear();
    for (const State& state : graph.states)
      slot_of_[index_of(state.value)] = state_slots_[graph.value(state.value).name];
    place_parts_inside(draft);
    for (ValueId input : graph.inputs) add_input(input);
    for (NodeId id = graph.first_node(); id != NodeId::None; id = graph.next_node(id)) add_node(id);
    for (const Output& output : graph.outputs)
      plan_.functions.back().outputs.push_back({output.name, slot_of_[index_of(output.value)]});
    for (const Update& update : graph.updates)
      plan_.functions.back().updates.push_back({slot_of_[index_of(update.state)], slot_of_[index_of(update.value)]});
    finish_parts();
    add_gradients();
  }

  void place_parts_inside(const FunctionDraft& draft) {
    placements_.push_back(draft.placement);
    parts_ = {};
    if (draft.placement || in_.parts == Parts::Copied) return;
    std::vector<int64_t> state_offset(graph_->value_count(), -1);
    for (const State& state : graph_->states)
      state_offset[index_of(state.value)] = plan_.slots[slot_of_[index_of(state.value)]].offset;
    LayoutWithParts layout = lay_out_with_parts(*graph_, assignment_, state_offset, search());
    is_final_ &= layout.is_final;
    placements_.back() = std::move(layout.placement);
    if (layout.parts.count == 0) return;
    assignment_.buffers = layout.parts.buffers;
    parts_ = std::move(layout.parts);
  }

  // Wholes come behind their parts where these are joined.
  void finish_parts() {
    if (parts_.count == 0) return;
    for (size_t v = 0; v < slot_of_.size(); ++v) {
      const int32_t buffer = assignment_.buffer_of[v];
      if (buffer < 0 || slot_of_[v] < 0 || plan_.slots[slot_of_[v]].view_of >= 0) continue;
      if (const PlacedParts::Part& part = parts_.of[buffer]; part.whole != ValueId::None)
        plan_.slots[slot_of_[v]].part_of = slot_of_[index_of(part.whole)];
    }
    for (const PlacedParts::WholeLife& life : parts_.lives) {
      Slot& whole = plan_.slots[slot_of_[index_of(life.whole)]];
      if (whole.function != function_) continue;
      whole.first = std::min(whole.first, life.first);
      whole.last = std::max(whole.last, life.last);
    }
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
    // The longest step's next batch is read while a step runs; evaluation and shorter steps do without the bytes for
    // that.
    SlotId staging = in_.draft.device.backend == "cuda" && graph_->name == train_step_function
                         ? add_persistent(name + ".staging", graph_->type(input), Category::Input, OriginId::None)
                         : -1;
    plan_.functions.back().inputs.push_back(
        {name, slot_of_[index_of(input)], staging, llvm::is_contained(graph_->whole_inputs, input)});
    place_in_buffer(input);
  }

  void add_node(NodeId id) {
    const Node& node = graph_->node(id);
    if (node.op->is_view()) return add_view(node);
    if (!is_instruction(node)) {
      slot_of_[index_of(node.results[0])] = constant_slot(*graph_, node);
      return;
    }
    int32_t at = assignment_.position[index_of(id)];
    for (ValueId result : node.results) add_result(node, result, at);
    add_instruction(id, at);
    plan_.functions.back().instructions.back().done = done_[index_of(id)];
  }

  void add_view(const Node& node) {
    ValueId value = node.results[0], root = root_of(*graph_, value);
    SlotId owner = slot_of_[index_of(root)];
    Slot slot = plan_.slots[owner];
    slot.name = graph_->value(value).name;
    slot.type = graph_->type(value);
    slot.view_of = owner;
    slot.in_place_of = -1;
    slot.origin = origin_of(node.origin);
    SlotId id = add_slot(std::move(slot));
    slot_of_[index_of(value)] = id;
    place_in_buffer(value);
  }

  void add_result(const Node& node, ValueId result, int32_t at) {
    Slot slot = value_slot(result, at);
    slot.origin = origin_of(node.origin);
    slot.space = written_space(node.op->engine);
    slot.category = is_copy(node.op->engine) ? Category::Offload : Category::Temporary;
    if (node.phase == Phase::Forward) mark_if_saved(result, slot);
    if (is_remat_[index_of(graph_->value(result).producer)] && slot.category != Category::Offload)
      slot.category = Category::Recompute;
    if (ValueId root = assignment_.in_place_of[index_of(result)]; root != ValueId::None)
      slot.in_place_of = slot_of_[index_of(root)];
    const Buffer& buffer = assignment_.buffers[assignment_.buffer_of[index_of(result)]];
    if (buffer.kind == Buffer::Kind::State) {
      const Slot& state = plan_.slots[slot_of_[index_of(buffer.first_value)]];
      slot.category = state.category;
      slot.offset = state.offset + begin_in_state(node, slot.type);
    }
    if (buffer.kind == Buffer::Kind::Part) place_in_persistent(result, slot);
    slot_of_[index_of(result)] = add_slot(std::move(slot));
    place_in_buffer(result);
  }

  // A part of what persists lies there.
  void place_in_persistent(ValueId part, Slot& slot) const {
    const auto [outermost, begin] = parts_.outermost(assignment_.buffer_of[index_of(part)]);
    const Buffer& buffer = assignment_.buffers[outermost];
    if (buffer.kind == Buffer::Kind::State || buffer.kind == Buffer::Kind::Constant)
      slot.offset = plan_.slots[slot_of_[index_of(buffer.first_value)]].offset + begin;
  }

  // In bytes, of a piece of the state's next value.
  static int64_t begin_in_state(const Node& node, const Type& piece) {
    return node.op->engine == Engine::ToHost && node.attrs.has("begin")
               ? node.attrs.get_int("begin") * dtype_bytes(piece.dtype)
               : 0;
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
    int64_t begin_bytes = 0;
    if (assignment_.buffers[buffer].kind == Buffer::Kind::Part)
      std::tie(buffer, begin_bytes) = parts_.outermost(buffer);
    Buffer::Kind kind = assignment_.buffers[buffer].kind;
    if (kind == Buffer::Kind::Transient || kind == Buffer::Kind::Input)
      pending_.push_back({slot_of_[index_of(value)], function_, buffer, begin_bytes});
  }

  void add_instruction(NodeId id, int32_t at) {
    const Node& node = graph_->node(id);
    Instruction instruction;
    instruction.op = node.op->name.str();
    instruction.attrs = node.attrs;
    for (ValueId operand : node.operands)
      instruction.operands.push_back(operand == ValueId::None ? -1 : slot_of_[index_of(operand)]);
    for (ValueId result : node.results) instruction.results.push_back(slot_of_[index_of(result)]);
    const KernelCandidate kernel = chosen_kernel(*graph_, node, *in_.draft.catalog);
    instruction.kernel = kernel.name;
    Cost cost = cost_of(*graph_, node, in_.draft.device);
    instruction.flops = cost.flops;
    instruction.bytes_moved = cost.bytes_moved;
    instruction.predicted_us = predicted_us(*graph_, node, kernel, in_.draft.device);
    instruction.phase = node.phase;
    instruction.origin = origin_of(node.origin);
    instruction.reason = node.reason;
    slow_kernels_.note(instruction, cost, in_.draft.device);
    leave_parts_in_place(id, instruction);
    join_launch(id, kernel, instruction);
    if (const int32_t buffer = assignment_.workspace_of[index_of(id)]; buffer >= 0)
      instruction.workspace = add_workspace(node, buffer, at);
    plan_.functions.back().instructions.push_back(std::move(instruction));
  }

  // Of a split or a concatenation, parts that lie inside their whole are not copied.
  void leave_parts_in_place(NodeId id, Instruction& instruction) const {
    if (parts_.count == 0 || parts_.bytes_in_place[index_of(id)] == 0) return;
    int64_t bytes = 0;
    for (ValueId result : graph_->node(id).results) bytes += graph_->type(result).bytes();
    const double copied = 1 - static_cast<double>(parts_.bytes_in_place[index_of(id)]) / static_cast<double>(bytes);
    instruction.predicted_us *= copied;
    instruction.bytes_moved = std::llround(copied * static_cast<double>(instruction.bytes_moved));
  }

  // Does the launch before do this one, too?
  void join_launch(NodeId id, const KernelCandidate& kernel, Instruction& instruction) {
    const Node& node = graph_->node(id);
    const std::string kind = kernel.shares_launches ? kernel.name + " " + launch_kind(*graph_, node) : "";
    const auto is_made_there = [&](ValueId operand) {
      return operand != ValueId::None && llvm::is_contained(launch_, graph_->value(root_of(*graph_, operand)).producer);
    };
    instruction.joined =
        !launch_.empty() && !kind.empty() && kind == launch_kind_ && llvm::none_of(node.operands, is_made_there);
    if (!instruction.joined) {
      launch_.clear();
      launch_kind_ = kind;
    }
    launch_.push_back(id);
  }

  SlotId add_workspace(const Node& node, int32_t buffer, int32_t at) {
    const int64_t bytes = assignment_.buffers[buffer].bytes;
    Slot slot;
    slot.name = graph_->value(node.results[0]).name + ".workspace";
    slot.type = Type(DType::U8, {bytes});
    slot.bytes = bytes;
    slot.function = function_;
    slot.first = at;
    slot.last = assignment_.buffers[buffer].last;
    slot.category = Category::Workspace;
    slot.origin = origin_of(node.origin);
    SlotId id = add_slot(std::move(slot));
    pending_.push_back({id, function_, buffer, 0});
    return id;
  }

  void add_gradients() {
    for (const StateGradient& gradient : graph_->gradients) {
      SlotId slot = slot_of_[index_of(gradient.value)];
      NodeId producer = graph_->value(root_of(*graph_, gradient.value)).producer;
      int32_t at = producer == NodeId::None ? -1 : assignment_.position[index_of(producer)];
      // A collective is through when its first reader starts.
      if (producer != NodeId::None)
        at = std::max(at, std::min(done_[index_of(producer)], assignment_.instructions - 1));
      plan_.gradients.push_back({graph_->value(gradient.state).name, function_, at, slot});
      Slot& place = plan_.slots[slot];
      if (place.function >= 0) place.category = Category::Gradients;
      // A whole that is taken apart into gradients is counted for them.
      for (SlotId at = place.part_of; at >= 0; at = plan_.slots[at].part_of)
        if (plan_.slots[at].category == Category::Temporary) plan_.slots[at].category = Category::Gradients;
    }
    buffers_.push_back(std::move(assignment_.buffers));
  }

  // Packs each function above the persistent part.
  void finish_arenas() {
    for (MemorySpace space : {MemorySpace::Device, MemorySpace::Host}) {
      Arena arena;
      arena.space = space;
      arena.persistent_bytes = arena.bytes = arena.peak_live_bytes = persistent_bytes(space);
      for (size_t f = first_function_; f < plan_.functions.size(); ++f) {
        const BufferPlacement placed = place(static_cast<int32_t>(f), space);
        arena.bytes = std::max(arena.bytes, arena.persistent_bytes + placed.height_bytes);
        arena.peak_live_bytes = std::max(arena.peak_live_bytes, arena.persistent_bytes + placed.peak_bytes);
      }
      if (space == MemorySpace::Device) {
        windows_.put_into(arena, plan_.device);
        arena.budget_bytes = in_.budget_bytes > 0 ? in_.budget_bytes : in_.draft.device.memory_bytes;
      } else {
        arena.budget_bytes = in_.host_budget_bytes;
      }
      if (space == MemorySpace::Device || arena.bytes > 0) plan_.arenas.push_back(arena);
    }
  }

  // Constants of later functions may still be added to what persists.
  LayoutSearch search() {
    LayoutSearch search{alignment_, in_.placement_seconds};
    const int64_t beside = plan_.device.reserve_bytes() + persistent_bytes(MemorySpace::Device);
    if (is_quick_ && in_.quick_above_bytes > 0)
      search.quick_above_bytes = std::max<int64_t>(1, in_.quick_above_bytes - beside);
    return search;
  }

  BufferPlacement placed_alone(llvm::ArrayRef<Buffer> buffers, MemorySpace space, int32_t instructions) {
    if (!is_quick_) return lay_out_alone(buffers, space, instructions, search());
    QuickLayout layout = lay_out_quickly(buffers, space, instructions, search());
    is_final_ &= layout.is_final;
    return std::move(layout.placement);
  }

  BufferPlacement place(int32_t f, MemorySpace space) {
    PlanFunction& function = plan_.functions[f];
    const size_t added = static_cast<size_t>(f) - first_function_;
    const std::optional<BufferPlacement>& known = placements_[added];
    const auto instructions = static_cast<int32_t>(function.instructions.size());
    const bool is_known = space == MemorySpace::Device && known;
    BufferPlacement placed;
    if (!is_known)
      placed = placed_alone(buffers_[added], space, instructions);
    else if (!known->windows.empty())
      placed = *known;
    else
      placed = placed_at(buffers_[added], space, instructions, alignment_, known->offset);
    if (is_known) placed.method = known->method;
    const int64_t windows_further = windows_.add(placed);
    for (const Pending& pending : pending_)
      if (int64_t offset = pending.function == f ? placed.offset[pending.buffer] : -1; offset >= 0)
        plan_.slots[pending.slot].offset =
            offset + pending.begin_bytes + (is_in_window(offset) ? windows_further : persistent_bytes(space));
    if (space == MemorySpace::Device) {
      function.transient_bytes = placed.height_bytes;
      function.peak_live_bytes = persistent_bytes(space) + placed.peak_bytes;
      function.peak_instruction = placed.peak_instruction;
      plan_.decisions.push_back({"place", function.name, placed.method,
                                 format_bytes(placed.height_bytes) + " for " + std::to_string(placed.buffers) +
                                     " buffers; no layout of this order is below " +
                                     format_bytes(placed.lower_bound_bytes)});
    }
    return placed;
  }

  struct Pending {
    SlotId slot;
    int32_t function, buffer;
    int64_t begin_bytes;  // in the buffer
  };
  const LoweringInput& in_;
  int64_t alignment_;
  bool is_quick_ = false, is_final_ = true;  // see QuickPlan
  Plan plan_;
  int64_t persistent_bytes_[2] = {};  // by space
  llvm::StringMap<SlotId> state_slots_, constant_slots_;
  llvm::StringMap<int64_t> joined_offset_;  // by name, of states that a concatenation joins and that are no slots yet
  ArenaWindows windows_;                    // of the device's arena
  std::vector<Pending> pending_;
  SlowKernels slow_kernels_;
  size_t first_function_ = 0;                               // of those that are added
  std::vector<int32_t> origins_;                            // of the plan, by OriginId of the graphs
  std::vector<std::vector<Buffer>> buffers_;                // per added function
  std::vector<std::optional<BufferPlacement>> placements_;  // per added function, in device memory, where it is known

  const Graph* graph_ = nullptr;  // the function at hand
  int32_t function_ = 0;
  BufferAssignment assignment_;
  PlacedParts parts_;            // none where parts have bytes of their own
  std::vector<SlotId> slot_of_;  // by value of that function
  std::vector<bool> is_remat_;   // by node of that function
  std::vector<int32_t> done_;    // by node of that function: where a copy is waited for, -1: at once
  std::vector<NodeId> launch_;   // nodes of the last launch
  std::string launch_kind_;      // empty: no other joins it
};

}  // namespace

Result<Plan> lower_to_plan(const LoweringInput& input) { return Lowering(input).run(); }

Result<QuickPlan> lower_quickly(const LoweringInput& input) { return Lowering(input).run_quickly(); }

Result<Plan> add_to_plan(const LoweringInput& input, Plan plan) { return Lowering(input).run(std::move(plan)); }

}  // namespace plimsoll
