#include "ir/plan/check_layout.h"

#include "ir/op_def.h"
#include "ir/plan/windows.h"

#include "llvm/ADT/DenseSet.h"

#include <algorithm>

namespace plimsoll {
namespace {

Status wrong(const llvm::Twine& what) { return model_error("plan check: " + what); }

int64_t round_up(int64_t bytes, int64_t alignment) {
  return (std::max<int64_t>(bytes, 1) + alignment - 1) / alignment * alignment;
}

Status check_view(const Plan& plan, SlotId id) {
  const Slot &view = plan.slots[id], &storage = plan.slots[plan.storage_of(id)];
  if (!same_bytes(view, storage) || view.function != storage.function)
    return wrong(describe_slot(plan, id) + " is a view of " + describe_slot(plan, plan.storage_of(id)) +
                 ", but lies elsewhere");
  return Status::success();
}

// A part lies in the bytes and in the life of its whole.
Status check_part(const Plan& plan, SlotId id) {
  const Slot& part = plan.slots[id];
  const Slot& whole = plan.slots[part.part_of];
  const std::string both = describe_slot(plan, id) + " is a part of " + describe_slot(plan, part.part_of);
  if (part.view_of >= 0 || whole.view_of >= 0) return wrong(both + ", and one of them is a view");
  if (part.function == -1 || (whole.function != -1 && whole.function != part.function))
    return wrong(both + ", which another function has");
  if (part.space != whole.space || part.offset < whole.offset || part.offset + part.bytes > whole.offset + whole.bytes)
    return wrong(both + ", but lies elsewhere");
  if (whole.function != -1 && (part.first < whole.first || part.last > whole.last))
    return wrong(both + ", but lives from instruction " + llvm::Twine(part.first) + " to " + llvm::Twine(part.last) +
                 ", and that from " + llvm::Twine(whole.first) + " to " + llvm::Twine(whole.last));
  return Status::success();
}

// The slot that has the bytes of a part among its own; a slot itself where it is no part.
SlotId outermost(const Plan& plan, SlotId id) {
  while (plan.slots[id].part_of >= 0) id = plan.slots[id].part_of;
  return id;
}

Status check_persistent(const Plan& plan) {
  llvm::DenseSet<SlotId> filled;
  for (const PlanState& state : plan.states) filled.insert(state.slot);
  for (const PlanConstant& constant : plan.constants) filled.insert(constant.slot);
  for (const PlanFunction& function : plan.functions)
    for (const PlanInput& input : function.inputs)
      if (input.staging >= 0) filled.insert(input.staging);
  std::vector<SlotId> persistent;
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const Slot& slot = plan.slots[i];
    auto id = static_cast<SlotId>(i);
    if (slot.function != -1 || slot.view_of >= 0) continue;
    if (!filled.count(id))
      return wrong(describe_slot(plan, id) + " is persistent, but neither state, constant nor input staging");
    if (slot.offset + slot.bytes > plan.arenas[static_cast<size_t>(slot.space)].persistent_bytes)
      return wrong(describe_slot(plan, id) + " lies outside the persistent part");
    if (slot.bytes > 0) persistent.push_back(id);
  }
  llvm::sort(persistent, [&](SlotId a, SlotId b) {
    return std::pair(plan.slots[a].space, plan.slots[a].offset) < std::pair(plan.slots[b].space, plan.slots[b].offset);
  });
  for (size_t i = 1; i < persistent.size(); ++i)
    if (share_bytes(plan, plan.slots[persistent[i - 1]], plan.slots[persistent[i]]))
      return wrong(describe_slot(plan, persistent[i]) + " overlaps " + describe_slot(plan, persistent[i - 1]) +
                   ", and both are persistent");
  return Status::success();
}

bool is_in_transient_part(const Plan& plan, const Slot& slot) {
  if (slot.space != MemorySpace::Device) return true;
  const Arena& arena = plan.arenas.front();
  const int64_t end = arena.persistent_bytes + plan.functions[slot.function].transient_bytes;
  bool is_inside = true;
  for_each_run(arena, slot.offset, slot.offset + slot.bytes,
               [&](int64_t from, int64_t to) { is_inside &= from >= arena.persistent_bytes && to <= end; });
  return is_inside;
}

// Transient slots lie above the persistent part; only the next value of a state, parts of what persists and what is put
// together from it lie in it. Nothing else is written there, which is proven where instructions are followed.
Status check_transient(const Plan& plan) {
  llvm::DenseSet<SlotId> may_persist;
  for (const PlanFunction& function : plan.functions) {
    for (const PlanUpdate& update : function.updates) may_persist.insert(plan.storage_of(update.value));
    for (const Instruction& instruction : function.instructions)
      if (const OpDef* op = find_op(instruction.op); op && op->operand_runs)
        may_persist.insert(instruction.results.begin(), instruction.results.end());
  }
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const Slot& slot = plan.slots[i];
    auto id = static_cast<SlotId>(i);
    if (slot.function == -1) continue;
    const Arena& arena = plan.arenas[static_cast<size_t>(slot.space)];
    if (slot.offset < arena.persistent_bytes) {
      const SlotId whole = outermost(plan, plan.storage_of(id));
      if (plan.slots[whole].function != -1 && !may_persist.count(whole))
        return wrong(describe_slot(plan, id) + " lies in the persistent part, which ends at " +
                     llvm::Twine(arena.persistent_bytes));
    } else if (!is_in_transient_part(plan, slot)) {
      return wrong(describe_slot(plan, id) + " ends outside the " +
                   llvm::Twine(plan.functions[slot.function].transient_bytes) + " transient bytes of " +
                   plan.functions[slot.function].name);
    }
  }
  return Status::success();
}

// The sums of live device bytes of a function, of exact sizes and of sizes rounded up to the alignment. The claimed
// peak lies between them.
struct LiveSums {
  std::vector<int64_t> exact, rounded;
};

LiveSums live_sums(const Plan& plan, int32_t function) {
  const Arena& arena = plan.arenas.front();
  size_t count = plan.functions[function].instructions.size();
  LiveSums sums{std::vector<int64_t>(count + 1), std::vector<int64_t>(count + 1)};
  auto add = [&](int32_t first, int32_t last, int64_t bytes, int sign) {
    int64_t rounded = round_up(bytes, plan.device.alignment_bytes);
    sums.exact[first] += sign * bytes, sums.exact[last + 1] -= sign * bytes;
    sums.rounded[first] += sign * rounded, sums.rounded[last + 1] -= sign * rounded;
  };
  for (const Slot& slot : plan.slots) {
    if (slot.space != MemorySpace::Device || slot.view_of >= 0 || slot.part_of >= 0) continue;
    if (slot.function == -1) sums.exact[0] += slot.bytes;
    if (slot.function != function || slot.offset < arena.persistent_bytes) continue;
    add(slot.first, slot.last, slot.bytes, 1);
    if (slot.in_place_of < 0) continue;
    // Both slots are alive at this instruction, and are the same bytes.
    const Slot& operand = plan.slots[plan.storage_of(slot.in_place_of)];
    if (operand.function == function && operand.last == slot.first) add(slot.first, slot.first, slot.bytes, -1);
  }
  sums.rounded[0] += arena.persistent_bytes;
  for (size_t i = 1; i < count; ++i) sums.exact[i] += sums.exact[i - 1], sums.rounded[i] += sums.rounded[i - 1];
  sums.exact.pop_back(), sums.rounded.pop_back();
  return sums;
}

Status check_peak(const Plan& plan, int32_t index) {
  const PlanFunction& function = plan.functions[index];
  if (function.instructions.empty()) return Status::success();
  LiveSums sums = live_sums(plan, index);
  int64_t exact = *std::max_element(sums.exact.begin(), sums.exact.end());
  int64_t rounded = *std::max_element(sums.rounded.begin(), sums.rounded.end());
  if (function.peak_live_bytes < exact || function.peak_live_bytes > rounded)
    return wrong(function.name + ": claims a peak of " + llvm::Twine(function.peak_live_bytes) + " live bytes, it is " +
                 llvm::Twine(exact) + " (" + llvm::Twine(rounded) + " with padding)");
  if (sums.rounded[function.peak_instruction] < function.peak_live_bytes)
    return wrong(function.name + ": its peak is not at instruction " + llvm::Twine(function.peak_instruction));
  return Status::success();
}

Status check_arenas(const Plan& plan) {
  for (const Arena& arena : plan.arenas) {
    if (arena.persistent_bytes > arena.bytes || arena.peak_live_bytes > arena.bytes)
      return wrong("the " + space_name(arena.space) + " arena of " + llvm::Twine(arena.bytes) +
                   " bytes claims to hold more");
    bool on_device = arena.space == MemorySpace::Device;
    int64_t promised = on_device ? plan.promised_bytes() : arena.bytes;
    if (arena.budget_bytes > 0 && promised > arena.budget_bytes)
      return wrong(space_name(arena.space) + " arena" + (on_device ? " and reserves" : "") + " need " +
                   llvm::Twine(promised) + " bytes, the budget is " + llvm::Twine(arena.budget_bytes));
  }
  if (plan.arenas.empty()) return Status::success();
  const Arena& device = plan.arenas.front();
  for (const PlanFunction& function : plan.functions)
    if (device.persistent_bytes + function.transient_bytes > device.bytes)
      return wrong(function.name + " needs " + llvm::Twine(device.persistent_bytes + function.transient_bytes) +
                   " bytes, the device arena has " + llvm::Twine(device.bytes));
  return Status::success();
}

}  // namespace

std::string describe_slot(const Plan& plan, SlotId id) {
  const Slot& slot = plan.slots[id];
  return "%" + slot.name + " [" + std::to_string(slot.offset) + ", " + std::to_string(slot.offset + slot.bytes) + ")";
}

bool same_bytes(const Slot& a, const Slot& b) {
  return a.space == b.space && a.offset == b.offset && a.bytes == b.bytes;
}

Status check_layout(const Plan& plan) {
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    auto id = static_cast<SlotId>(i);
    if (plan.slots[i].part_of >= 0)
      if (Status s = check_part(plan, id)) return s;
    if (plan.slots[i].view_of >= 0) {
      if (Status s = check_view(plan, id)) return s;
    } else if (plan.slots[i].offset % plan.device.alignment_bytes != 0) {
      return wrong(describe_slot(plan, id) + " does not start at a multiple of " +
                   llvm::Twine(plan.device.alignment_bytes));
    }
  }
  if (Status s = check_persistent(plan)) return s;
  if (Status s = check_transient(plan)) return s;
  return check_arenas(plan);
}

Status check_peaks(const Plan& plan) {
  int64_t peak = 0;
  for (size_t i = 0; i < plan.functions.size(); ++i) {
    if (Status s = check_peak(plan, static_cast<int32_t>(i))) return s;
    peak = std::max(peak, plan.functions[i].peak_live_bytes);
  }
  if (!plan.arenas.empty() && plan.arenas.front().peak_live_bytes < peak)
    return wrong("the device arena claims a peak of " + llvm::Twine(plan.arenas.front().peak_live_bytes) +
                 " live bytes, a function has " + llvm::Twine(peak));
  return Status::success();
}

}  // namespace plimsoll
