#pragma once

// Both executors begin with this when they load a plan: where slots lie, and instructions with nothing left to look up.

#include "ir/plan/windows.h"
#include "runtime/kernels/kernel_call.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

// A slot in memory, one allocation for each of the plan's arenas, with the windows behind it.
template <typename Memory>
TensorView view_in(const std::vector<Memory>& arenas, const Plan& plan, SlotId id) {
  const Slot& slot = plan.slots[static_cast<size_t>(id)];
  size_t arena = 0;
  while (plan.arenas[arena].space != slot.space) ++arena;
  return {slot.type, arenas[arena].data() + ArenaAddresses(plan.arenas[arena]).address_of(slot.offset)};
}

struct PlannedStep {
  const OpDef* op = nullptr;
  const Attrs* attrs = nullptr;
  llvm::SmallVector<const Type*, 6> operand_types;
  llvm::SmallVector<TensorView, 6> operands, results;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;

  OpCall op_call() const { return {*op, *attrs, operand_types}; }
  KernelCall kernel_call(const OpCall& call) const { return {call, operands, results, workspace}; }
};

Result<PlannedStep> plan_step(const Plan& plan, const Instruction& instruction,
                              llvm::function_ref<TensorView(SlotId)> view);

}  // namespace plimsoll
