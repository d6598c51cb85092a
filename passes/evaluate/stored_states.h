#pragma once

// States as a plan stores them, which a graph made of the model alone does not know.

#include "ir/plan/plan.h"

namespace plimsoll {

struct StoredState {
  Type type, model_type;  // as it lies in memory, and in the model's order of dimensions
  bool channels_last = false;
};
// A state of any stage, or a rank's piece of it; none where there is none of that name.
std::optional<StoredState> find_stored_state(const Plan& plan, llvm::StringRef name);

// Lets the graph read weights with channels last where the plan stores them so. Were there any? Then transposes stand
// in front of their readers, which may cancel with others.
bool read_as_stored(Graph& graph, const Plan& plan);

}  // namespace plimsoll
