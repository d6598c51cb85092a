#pragma once

// A plan may have its step for several lengths of the samples, over the same states and in the same bytes: "train_step"
// for the longest, and "train_step.128" for inputs of length 128.

#include "ir/plan/plan.h"

namespace plimsoll {

std::string shorter_step_name(int64_t length);
// The length in such a name; none: it is the name of no shorter step.
std::optional<int64_t> length_of_shorter_step(llvm::StringRef function);
// Lengths of the plan's shorter steps, ascending.
std::vector<int64_t> shorter_lengths(const Plan& plan);

}  // namespace plimsoll
