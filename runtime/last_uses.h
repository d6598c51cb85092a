#pragma once

// For poisoned runs: which slots' bytes may be overwritten when.

#include "ir/plan/plan.h"

namespace plimsoll {

struct InstructionDeaths {
  llvm::SmallVector<SlotId, 4> fresh;       // about to be written for the first time: nothing reads their old bytes
  llvm::SmallVector<SlotId, 4> dead_after;  // nothing may read them once the instruction has run
};

// One entry an instruction of the function.
std::vector<InstructionDeaths> find_deaths(const Plan& plan, size_t function);

}  // namespace plimsoll
