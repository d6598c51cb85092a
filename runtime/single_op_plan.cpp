#include "runtime/single_op_plan.h"

#include "ir/support/align.h"

namespace plimsoll {
namespace {

SlotId add_slot(Plan& plan, const Type& type) {
  Arena& arena = plan.arenas.front();
  Slot& slot = plan.slots.emplace_back();
  slot.name = "slot" + std::to_string(plan.slots.size());
  slot.type = type;
  slot.bytes = type.bytes();
  slot.offset = arena.bytes;
  arena.bytes += align_to_tensor(slot.bytes);
  arena.persistent_bytes = arena.bytes;
  return static_cast<SlotId>(plan.slots.size() - 1);
}

}  // namespace

Plan plan_of(const OneInstruction& what, const DeviceDescription& device, int64_t guard_bytes) {
  Plan plan;
  plan.device = device;
  plan.arenas.emplace_back();
  PlanFunction& function = plan.functions.emplace_back();
  function.name = what.op.name.str();
  Instruction& instruction = function.instructions.emplace_back();
  instruction.op = what.op.name.str();
  instruction.attrs = what.call.attrs;
  instruction.kernel = what.kernel;
  for (size_t i = 0; i < what.call.count(); ++i)
    instruction.operands.push_back(what.call.has(i) ? add_slot(plan, what.call.operand(i)) : -1);
  for (const Type& type : what.results) instruction.results.push_back(add_slot(plan, type));
  for (InPlace pair : what.overlaps)
    plan.slots[static_cast<size_t>(instruction.results[static_cast<size_t>(pair.result)])].offset =
        plan.slots[static_cast<size_t>(instruction.operands[static_cast<size_t>(pair.operand)])].offset;
  if (what.workspace_bytes > 0) instruction.workspace = add_slot(plan, Type(DType::U8, {what.workspace_bytes}));
  if (guard_bytes > 0) add_slot(plan, Type(DType::U8, {guard_bytes}));
  return plan;
}

}  // namespace plimsoll
