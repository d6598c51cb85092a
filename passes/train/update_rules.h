#pragma once

// What the update of each parameter does, by the groups that the caller named, by its layer and by the ops that read
// it.

#include "ir/graph.h"
#include "passes/job.h"

#include "llvm/ADT/StringMap.h"

namespace plimsoll {

class PassManager;  // passes/pass/pass_manager.h

struct UpdateRule {
  OptimizerKind optimizer = OptimizerKind::AdamW;
  double rate = 1;  // multiple of the learning rate
  double weight_decay = 0;
  friend bool operator==(const UpdateRule&, const UpdateRule&) = default;
};
using UpdateRules = llvm::StringMap<UpdateRule>;  // by the name of the trained state

// Of all trained states of a forward graph, which may be divided among ranks.
UpdateRules find_update_rules(const Graph& forward, const TrainingRequest& request);

// Errors where a group's pattern is no regular expression or matches no trained parameter, or where the optimizer
// cannot work on what the ranks hold of a parameter.
Status check_update_rules(const Graph& forward, const TrainingRequest& request);

// Tells the reader of the plan how many parameters have which rule, where they have different ones.
void note_update_rules(const Graph& forward, const TrainingRequest& request, PassManager& passes);

// Does the optimizer read a whole parameter to update one element of it?
bool needs_whole_parameters(OptimizerKind kind);

}  // namespace plimsoll
