#pragma once

// A plan as bytes and as a file (ir/plan/plan.proto). The same plan gives the same bytes.

#include "ir/plan/plan.h"

namespace plimsoll {

Result<std::string> plan_to_bytes(const Plan& plan);
// Refuses what is no plan, is damaged, comes from a newer program, or does not pass validate_plan.
Result<Plan> plan_from_bytes(llvm::StringRef bytes);

Status save_plan(const Plan& plan, llvm::StringRef path);
Result<Plan> load_plan(llvm::StringRef path);

}  // namespace plimsoll
