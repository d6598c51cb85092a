#pragma once

// Workspaces that cuDNN asks for, found out on machines that lack the card.

#include "ir/plan/plan.h"

namespace plimsoll {

// Bytes that each instruction of the plan's first function takes of its workspace on a card so described. All of them
// are cuDNN's.
Status cudnn_workspaces(const Plan& plan, llvm::StringRef description, std::vector<int64_t>& bytes);

}  // namespace plimsoll
