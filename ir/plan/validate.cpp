#include "ir/plan/validate.h"

#include "ir/kept_copies.h"
#include "ir/plan/windows.h"
#include "ir/verify.h"

#include "llvm/ADT/StringMap.h"
#include "llvm/Support/JSON.h"

#include <cmath>

namespace plimsoll {
namespace {

constexpr int64_t max_bytes = int64_t{1} << 52;  // what any one thing may weigh; keeps sums from overflowing

Status broken(const llvm::Twine& what) { return model_error("plan: " + what); }

class Validator {
 public:
  explicit Validator(const Plan& plan) : plan_(plan) {}
  Status run();

 private:
  Status device();
  Status arenas();
  Status windows(const Arena& arena);
  Status slot(SlotId id);
  static bool lies_in(const Arena& arena, const Slot& slot);
  Status chains(SlotId Slot::*next, llvm::StringRef what);
  Status function(size_t index);
  Status instruction(const PlanFunction& function, size_t index);
  Status states();
  Status copy(const PlanState& state, const PlanState& source);
  Status transpose(const PlanState& state, const PlanState& source);
  Status gradient(const PlanGradient& gradient);

  bool is_slot(SlotId id) const { return id >= 0 && static_cast<size_t>(id) < plan_.slots.size(); }
  bool is_slot_or_none(SlotId id) const { return id == -1 || is_slot(id); }
  bool is_origin_or_none(int32_t id) const {
    return id >= -1 && (id == -1 || static_cast<size_t>(id) < plan_.origins.size());
  }

  const Plan& plan_;
};

bool is_text(llvm::StringRef text) { return llvm::json::isUTF8(text); }
bool is_amount(int64_t bytes) { return bytes >= 0 && bytes <= max_bytes; }

// The bytes of a type. Returns none if a dimension is negative or the product overflows.
std::optional<int64_t> sane_bytes(const Type& type) {
  if (!is_countable(type.shape) || type.bytes() > max_bytes) return std::nullopt;
  return type.bytes();
}

Status Validator::device() {
  const DeviceDescription& device = plan_.device;
  if (device.alignment_bytes <= 0) return broken("the device's alignment is " + llvm::Twine(device.alignment_bytes));
  for (const Reserve& reserve : device.reserves)
    if (!is_amount(reserve.bytes))
      return broken("reserve " + reserve.name + ": " + llvm::Twine(reserve.bytes) + " bytes");
  return Status::success();
}

Status Validator::arenas() {
  if (plan_.arenas.size() > 2) return broken(llvm::Twine(plan_.arenas.size()) + " arenas, at most 2 spaces");
  for (size_t i = 0; i < plan_.arenas.size(); ++i) {
    const Arena& arena = plan_.arenas[i];
    if (i == 0 ? arena.space != MemorySpace::Device : arena.space != MemorySpace::Host)
      return broken("the arenas are device, then host");
    if (!is_amount(arena.bytes) || !is_amount(arena.persistent_bytes) || !is_amount(arena.peak_live_bytes) ||
        !is_amount(arena.budget_bytes))
      return broken(space_name(arena.space) + " arena: bytes out of range");
    if (Status s = windows(arena)) return s;
  }
  return Status::success();
}

// Windows lie one behind the other and show pages of the transient part.
Status Validator::windows(const Arena& arena) {
  if (arena.bytes > windows_begin)
    return broken(space_name(arena.space) + " arena: " + llvm::Twine(arena.bytes) + " bytes, no more than " +
                  llvm::Twine(windows_begin) + " have offsets of their own");
  if (arena.windows.empty()) return Status::success();
  if (arena.space != MemorySpace::Device) return broken("the " + space_name(arena.space) + " arena has windows");
  const int64_t page = arena.page_bytes;
  if (page <= 0 || page % plan_.device.alignment_bytes != 0)
    return broken(space_name(arena.space) + " arena: windows of pages of " + llvm::Twine(page) + " bytes");
  const int64_t count = (std::max<int64_t>(arena.bytes - arena.persistent_bytes, 0) + page - 1) / page;
  int64_t offset = windows_begin;
  for (const PageWindow& window : arena.windows) {
    const std::string where = space_name(arena.space).str() + " arena, window at " + std::to_string(window.offset);
    if (window.offset != offset) return broken(where + ": it does not begin at " + llvm::Twine(offset));
    if (window.pages.empty()) return broken(where + ": it shows no page");
    std::vector<int64_t> pages = window.pages;
    llvm::sort(pages);
    if (std::adjacent_find(pages.begin(), pages.end()) != pages.end()) return broken(where + ": it shows a page twice");
    if (pages.front() < 0 || pages.back() >= count)
      return broken(where + ": it shows pages " + llvm::Twine(pages.front()) + " to " + llvm::Twine(pages.back()) +
                    " of " + llvm::Twine(count));
    offset += static_cast<int64_t>(pages.size()) * page;
    if (!is_amount(offset)) return broken(where + ": it ends out of range");
  }
  return Status::success();
}

// Whether all addresses of the slot are the arena's, or one window's.
bool Validator::lies_in(const Arena& arena, const Slot& slot) {
  const int64_t end = slot.offset + slot.bytes;
  if (!is_in_window(slot.offset)) return end <= arena.bytes;
  const PageWindow* window = window_at(arena, slot.offset);
  return window && end <= window->offset + static_cast<int64_t>(window->pages.size()) * arena.page_bytes;
}

Status Validator::slot(SlotId id) {
  const Slot& slot = plan_.slots[id];
  std::string where = "slot " + std::to_string(id) + " (" + slot.name + "): ";
  if (!is_text(slot.name) || !is_text(slot.reason)) return broken("slot " + llvm::Twine(id) + ": text is not UTF-8");
  if (!is_slot_or_none(slot.view_of) || !is_slot_or_none(slot.in_place_of) || !is_slot_or_none(slot.part_of) ||
      !is_origin_or_none(slot.origin))
    return broken(where + "refers to something that does not exist");
  auto type_bytes = sane_bytes(slot.type);
  if (!type_bytes) return broken(where + "no such type");
  if (!is_amount(slot.bytes) || !is_amount(slot.offset)) return broken(where + "bytes out of range");
  if (slot.bytes < *type_bytes)
    return broken(where + llvm::Twine(slot.bytes) + " bytes for " + to_string(slot.type) + ", which has " +
                  llvm::Twine(*type_bytes));
  if (static_cast<size_t>(slot.space) >= plan_.arenas.size()) return broken(where + "no arena in its space");
  const Arena& arena = plan_.arenas[static_cast<size_t>(slot.space)];
  if (!lies_in(arena, slot))
    return broken(where + "ends at byte " + llvm::Twine(slot.offset + slot.bytes) + ", the " + space_name(slot.space) +
                  " arena has " + llvm::Twine(arena.bytes));
  if (slot.function == -1) return Status::success();
  if (slot.function < -1 || static_cast<size_t>(slot.function) >= plan_.functions.size())
    return broken(where + "no function " + llvm::Twine(slot.function));
  auto count = static_cast<int32_t>(plan_.functions[slot.function].instructions.size());
  if (slot.first < 0 || slot.first > slot.last || slot.last > std::max(count - 1, 0))
    return broken(where + "lives from instruction " + llvm::Twine(slot.first) + " to " + llvm::Twine(slot.last) +
                  " of " + llvm::Twine(count));
  return Status::success();
}

// Views form chains without cycles, and so do parts.
Status Validator::chains(SlotId Slot::*next, llvm::StringRef what) {
  std::vector<char> ends(plan_.slots.size());  // known to lead to an end
  llvm::SmallVector<SlotId, 8> chain;
  for (size_t id = 0; id < plan_.slots.size(); ++id) {
    chain.clear();
    SlotId at = static_cast<SlotId>(id);
    for (; at >= 0 && !ends[at]; at = plan_.slots[at].*next) {
      if (chain.size() > 64) return broken("slot " + llvm::Twine(id) + ": " + what + " of itself");
      chain.push_back(at);
    }
    for (SlotId link : chain) ends[link] = 1;
  }
  return Status::success();
}

Status Validator::instruction(const PlanFunction& function, size_t index) {
  const Instruction& instruction = function.instructions[index];
  auto exists = [&](SlotId id) { return is_slot(id); };
  if (!llvm::all_of(instruction.operands, [&](SlotId id) { return is_slot_or_none(id); }) ||
      !llvm::all_of(instruction.results, exists) || !is_slot_or_none(instruction.workspace) ||
      !is_origin_or_none(instruction.origin))
    return broken(function.name + " instruction " + llvm::Twine(index) + " (" + instruction.op +
                  ") refers to something that does not exist");
  if (!is_text(instruction.op) || !is_text(instruction.kernel) || !is_text(instruction.reason))
    return broken(function.name + " instruction " + llvm::Twine(index) + ": text is not UTF-8");
  auto count = static_cast<int32_t>(function.instructions.size());
  if (instruction.done != -1 && (instruction.done <= static_cast<int32_t>(index) || instruction.done > count))
    return broken(function.name + " instruction " + llvm::Twine(index) + " is waited for before instruction " +
                  llvm::Twine(instruction.done) + " of " + llvm::Twine(count));
  if (!std::isfinite(instruction.predicted_us) || instruction.predicted_us < 0)
    return broken(function.name + " instruction " + llvm::Twine(index) + ": no possible predicted time");
  if (instruction.joined && (index == 0 || function.instructions[index - 1].op != instruction.op ||
                             function.instructions[index - 1].kernel != instruction.kernel))
    return broken(function.name + " instruction " + llvm::Twine(index) + " (" + instruction.op +
                  ") joins no launch of its kernel");
  return Status::success();
}

Status Validator::function(size_t index) {
  const PlanFunction& function = plan_.functions[index];
  for (size_t i = 0; i < function.instructions.size(); ++i)
    if (Status s = instruction(function, i)) return s;
  for (const PlanInput& input : function.inputs)
    if (!is_slot(input.slot) || !is_text(input.name) || (input.staging != -1 && !is_slot(input.staging)))
      return broken(function.name + ": input " + input.name + " has no slot");
  for (const PlanOutput& output : function.outputs)
    if (!is_slot(output.slot) || !is_text(output.name))
      return broken(function.name + ": output " + output.name + " has no slot");
  for (const PlanUpdate& update : function.updates)
    if (!is_slot(update.state) || !is_slot(update.value)) return broken(function.name + ": an update has no slot");
  auto last = static_cast<int32_t>(function.instructions.size()) - 1;
  if (function.peak_instruction < 0 || function.peak_instruction > std::max(last, 0))
    return broken(function.name + ": its peak is at instruction " + llvm::Twine(function.peak_instruction));
  return Status::success();
}

Status Validator::states() {
  llvm::StringMap<const PlanState*> by_name;
  for (const PlanState& state : plan_.states) {
    if (!is_slot(state.slot)) return broken("a state has no slot");
    const Slot& slot = plan_.slots[state.slot];
    if (state.channels_last && (slot.type.rank() < 3 || !state.divisions.empty()))
      return broken(slot.name + " is " + (state.divisions.empty() ? to_string(slot.type) : std::string("a piece")) +
                    ", and has channels last");
    by_name[plan_.slots[state.slot].name] = &state;
  }
  for (const PlanState& state : plan_.states) {
    if (!state.init.is_derived()) continue;
    const bool is_turned = state.init.kind == StateInit::Kind::TransposeOf;
    const PlanState* source = by_name.lookup(state.init.source);
    if (!source)
      return broken(plan_.slots[state.slot].name + (is_turned ? " is the transpose of " : " starts as a copy of ") +
                    state.init.source + ", which is no state");
    if (is_turned)
      if (Status s = transpose(state, *source)) return s;
    if (is_kept_copy(state.role, state.init))
      if (Status s = copy(state, *source)) return s;
  }
  return Status::success();
}

// What changes one of the two changes the other.
Status Validator::copy(const PlanState& state, const PlanState& source) {
  const Slot &own = plan_.slots[state.slot], &other = plan_.slots[source.slot];
  if (own.type.shape != other.type.shape || !is_16_bit_float(own.type.dtype))
    return broken(own.name + " is " + to_string(own.type) + " but a 16-bit copy of " + other.name + ", " +
                  to_string(other.type));
  if (state.channels_last != source.channels_last)
    return broken(own.name + " and " + other.name + ", of which it is a copy, have channels in different places");
  for (const PlanFunction& function : plan_.functions) {
    const auto changes = [&](const PlanState& each) {
      return llvm::any_of(function.updates, [&](const PlanUpdate& update) { return update.state == each.slot; });
    };
    if (changes(state) != changes(source))
      return broken(own.name + " is the 16-bit copy of " + other.name + ", and " + function.name + " changes only " +
                    (changes(state) ? "the copy" : "the parameter"));
  }
  return Status::success();
}

// It is made once, before the first step, so no step may change either of the two.
Status Validator::transpose(const PlanState& state, const PlanState& source) {
  const Slot &own = plan_.slots[state.slot], &other = plan_.slots[source.slot];
  if (!is_transpose(other.type, own.type) || !state.divisions.empty() || !source.divisions.empty())
    return broken(own.name + " is " + to_string(own.type) + " but the transpose of " + other.name + ", " +
                  to_string(other.type));
  for (const PlanFunction& function : plan_.functions)
    for (const PlanUpdate& update : function.updates)
      if (update.state == state.slot || update.state == source.slot)
        return broken(own.name + " is the transpose of " + other.name + ", and " + function.name + " changes " +
                      plan_.slots[update.state].name);
  return Status::success();
}

Status Validator::gradient(const PlanGradient& gradient) {
  bool exists = gradient.function >= 0 && static_cast<size_t>(gradient.function) < plan_.functions.size() &&
                gradient.instruction >= -1 && is_slot(gradient.slot) &&
                gradient.instruction < static_cast<int32_t>(plan_.functions[gradient.function].instructions.size());
  return exists ? Status::success() : broken("the gradient of " + gradient.parameter + " stands nowhere");
}

Status Validator::run() {
  if (Status s = device()) return s;
  if (Status s = arenas()) return s;
  for (size_t i = 0; i < plan_.slots.size(); ++i)
    if (Status s = slot(static_cast<SlotId>(i))) return s;
  if (Status s = chains(&Slot::view_of, "a view")) return s;
  if (Status s = chains(&Slot::part_of, "a part")) return s;
  for (size_t i = 0; i < plan_.functions.size(); ++i)
    if (Status s = function(i)) return s;
  if (plan_.evaluation.batch < 0 || (plan_.evaluation.batch > 0) != plan_.find_function(evaluate_function).has_value())
    return broken("a batch of evaluation of " + llvm::Twine(plan_.evaluation.batch) +
                  (plan_.evaluation.batch > 0 ? " without its function" : " with a function for it"));
  if (Status s = states()) return s;
  for (const PlanConstant& constant : plan_.constants)
    if (!is_slot(constant.slot) || !constant.value || constant.value->type() != plan_.slots[constant.slot].type)
      return broken("a constant has no slot of its type");
  for (const PlanGradient& entry : plan_.gradients)
    if (Status s = gradient(entry)) return s;
  for (const Origin& origin : plan_.origins)
    if (!is_text(origin.node) || !is_text(origin.op) || !is_text(origin.module) || !is_text(origin.source))
      return broken("origin " + origin.node + ": text is not UTF-8");
  return Status::success();
}

}  // namespace

Status validate_plan(const Plan& plan) {
  for (const Plan* stage : plan.stages())
    if (Status s = Validator(*stage).run()) return s;
  return Status::success();
}

}  // namespace plimsoll
