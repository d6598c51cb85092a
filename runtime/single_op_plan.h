#pragma once

// A plan of a single instruction, for timing a kernel and for testing it: every operand, result and workspace has
// persistent bytes of its own.

#include "ir/machine/device.h"
#include "ir/op_def.h"
#include "ir/plan/plan.h"

namespace plimsoll {

struct OneInstruction {
  const OpDef& op;
  const OpCall& call;
  llvm::ArrayRef<Type> results;
  std::string kernel;
  int64_t workspace_bytes = 0;
  llvm::ArrayRef<InPlace> overlaps = {};  // results that take their operand's bytes
};

// The plan's one function holds one instruction. `guard_bytes` lie behind everything else, in the last slot.
Plan plan_of(const OneInstruction& instruction, const DeviceDescription& device, int64_t guard_bytes = 0);

}  // namespace plimsoll
