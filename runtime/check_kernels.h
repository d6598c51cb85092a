#pragma once

#include "ir/op_def.h"
#include "ir/plan/plan.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <optional>

namespace plimsoll {

// Bytes of workspace that this program's kernel of that name takes for a call; none where it has no such kernel, or one
// that does not take the call.
using WorkspaceNeed = llvm::function_ref<std::optional<int64_t>(const OpCall& call, llvm::ArrayRef<Type> results,
                                                                llvm::StringRef kernel)>;

// Refuses a plan, as another version of the program may have made it, whose kernels are not here or take more workspace
// than the plan gives them: they would write behind it without a word.
Status check_kernels(const Plan& plan, WorkspaceNeed need);

}  // namespace plimsoll
