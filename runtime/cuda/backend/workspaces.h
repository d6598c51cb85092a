#pragma once

// What cuDNN asks for, found out on machines that lack the card.

#include "ir/plan/plan.h"

namespace plimsoll {

// By instruction of the plan's first function, all of which are cuDNN's: what it takes of its workspace on a card so
// described.
Status cudnn_workspaces(const Plan& plan, llvm::StringRef description, std::vector<int64_t>& bytes);

}  // namespace plimsoll
