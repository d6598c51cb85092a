#pragma once

// Plans of several ranks of which one sum was left out, so that each rank goes on with its own summand.

#include "ir/plan/check.h"
#include "ir/plan/check_layout.h"

#include "llvm/ADT/STLExtras.h"

#include <string>
#include <vector>

namespace plimsoll::testing {

struct DroppedSums {
  int64_t refused = 0;
  std::vector<std::string> accepted;  // by what was left out
};

// Leaves out each sum over ranks by itself, but for two along the data axis: without the sum of the samples' weights,
// one number, ranks stay alike, with losses of another scale; and a batch norm whose sums are a rank's own is a local
// one.
inline DroppedSums drop_each_sum(const Plan& good) {
  DroppedSums dropped;
  for (size_t s = 0; s < good.stages().size(); ++s)
    for (size_t f = 0; f < good.stages()[s]->functions.size(); ++f)
      for (size_t i = 0; i < good.stages()[s]->functions[f].instructions.size(); ++i) {
        const Plan& of_stage = *good.stages()[s];
        const Instruction& sum = of_stage.functions[f].instructions[i];
        if (sum.op != "reduce_all") continue;
        const std::string axis = sum.attrs.get_string("axis").str();
        const bool is_of_batch_norm = of_stage.slots[static_cast<size_t>(sum.operands[0])].name.find("batch_norm") == 0;
        if (axis == "data" && is_of_batch_norm) continue;
        if (axis == "data" && of_stage.slots[static_cast<size_t>(sum.results[0])].type.elements() == 1) continue;
        Plan plan = good;
        Plan& changed = s == 0 ? plan : plan.later_stages[s - 1];
        Instruction& each = changed.functions[f].instructions[i];
        each.op = "neg", each.attrs = {}, each.done = -1;
        Status status = check_plan(plan);
        if (status)
          ++dropped.refused;
        else
          dropped.accepted.push_back(describe_slot(of_stage, sum.operands[0]) + " along " + axis);
        llvm::consumeError(std::move(status));
      }
  return dropped;
}

}  // namespace plimsoll::testing
