#pragma once

// Plans of several ranks of which one sum was left out, so that each rank goes on with its own summand, or made once
// more than it should be.

#include "ir/op_def.h"
#include "ir/plan/check.h"
#include "ir/plan/check_layout.h"
#include "ir/plan/check_sums.h"

#include "llvm/ADT/STLExtras.h"

#include <string>
#include <vector>

namespace plimsoll::testing {

struct ChangedSums {
  int64_t refused = 0;
  std::vector<std::string> accepted;  // by what was left out, or added up once more
};

// Visits all instructions: visit(stage, function, instruction) by their places in the plan.
template <typename Visit>
void for_each_instruction(const Plan& plan, Visit visit) {
  for (size_t s = 0; s < plan.stages().size(); ++s)
    for (size_t f = 0; f < plan.stages()[s]->functions.size(); ++f)
      for (size_t i = 0; i < plan.stages()[s]->functions[f].instructions.size(); ++i) visit(s, f, i);
}

// Leaves out each sum over ranks by itself, but for those along data of constants, without which losses have another
// scale, and those of a batch norm, without which it is a local one. Along tensor, where sums come in pieces, what they
// are made of is not always known.
inline ChangedSums drop_each_sum(const Plan& good) {
  ChangedSums dropped;
  for_each_instruction(good, [&](size_t s, size_t f, size_t i) {
    const Plan& of_stage = *good.stages()[s];
    const Instruction& sum = of_stage.functions[f].instructions[i];
    if (sum.op != "reduce_all" && sum.op != "reduce_pieces") return;
    const std::string axis = sum.attrs.get_string("axis").str();
    const bool is_of_batch_norm = of_stage.slots[static_cast<size_t>(sum.operands[0])].name.find("batch_norm") == 0;
    const bool is_of_constant = llvm::any_of(of_stage.constants, [&](const PlanConstant& constant) {
      return constant.slot == of_stage.storage_of(sum.operands[0]);
    });
    if (axis == "data" ? is_of_batch_norm || is_of_constant : sum.op == "reduce_pieces") return;
    Plan plan = good;
    Plan& changed = s == 0 ? plan : plan.later_stages[s - 1];
    Instruction& each = changed.functions[f].instructions[i];
    if (each.op == "reduce_all") each.attrs = {};
    each.op = each.op == "reduce_all" ? "neg" : "take_piece", each.done = -1;
    Status status = check_plan(plan);
    if (status)
      ++dropped.refused;
    else
      dropped.accepted.push_back(describe_slot(of_stage, sum.operands[0]) + " along " + axis);
    llvm::consumeError(std::move(status));
  });
  return dropped;
}

// Adds up once more what each sum or gather gave to all ranks. Looks at sums alone: slots may not be written twice.
inline ChangedSums repeat_each_sum(const Plan& good) {
  ChangedSums repeated;
  for_each_instruction(good, [&](size_t s, size_t f, size_t i) {
    const Instruction& sum = good.stages()[s]->functions[f].instructions[i];
    const Collective& collective = get_op(sum.op).collective;
    if (!collective || collective.to != MeshPlacement::Whole || sum.attrs.get_string("axis") == "stage") return;
    Plan plan = good;
    std::vector<Instruction>& all = (s == 0 ? plan : plan.later_stages[s - 1]).functions[f].instructions;
    Instruction again = sum;
    again.op = "reduce_all";
    again.operands = again.results;
    all.insert(all.begin() + static_cast<std::ptrdiff_t>(i) + 1, again);
    Status status = check_sums(plan);
    if (status)
      ++repeated.refused;
    else
      repeated.accepted.push_back(describe_slot(*good.stages()[s], sum.results[0]));
    llvm::consumeError(std::move(status));
  });
  return repeated;
}

}  // namespace plimsoll::testing
