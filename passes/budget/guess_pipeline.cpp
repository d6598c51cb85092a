#include "passes/budget/guess_pipeline.h"

#include "ir/op_def.h"
#include "ir/support/align.h"
#include "passes/budget/step_of_stages.h"
#include "passes/remat/remat.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace plimsoll {
namespace {

// A function of a plan as the search for remats sees it. That updates overwrite what remats read is left out.
class PlanProblem {
 public:
  PlanProblem(const Plan& plan, size_t function)
      : plan_(plan), function_(static_cast<int32_t>(function)), value_of_(plan.slots.size(), -1) {
    for (const Instruction& instruction : plan.functions[function].instructions) add_op(instruction);
    for (const PlanOutput& output : plan.functions[function].outputs)
      if (const int32_t v = value(output.slot); v >= 0) problem_.live_out[v] = 1;
  }

  RematProblem take() { return std::move(problem_); }

 private:
  // -1: the slot is absent, persists or is on the host.
  int32_t value(SlotId id) {
    if (id < 0) return -1;
    const SlotId owner = plan_.storage_of(id);
    const Slot& slot = plan_.slots[owner];
    const bool is_transient = slot.function == function_ && slot.space == MemorySpace::Device &&
                              slot.offset >= plan_.arenas.front().persistent_bytes;
    if (!is_transient) return -1;
    if (value_of_[owner] < 0) {
      value_of_[owner] = static_cast<int32_t>(problem_.value_bytes.size());
      problem_.value_bytes.push_back(align_up(slot.bytes, plan_.device.alignment_bytes));
      problem_.live_out.push_back(0);
    }
    return value_of_[owner];
  }

  void add_op(const Instruction& instruction) {
    const OpDef* def = find_op(instruction.op);
    RematOp op;
    op.cost_us = instruction.predicted_us;
    op.repeatable = def && def->repeatable && def->engine == Engine::Compute && instruction.phase != Phase::Update;
    if (instruction.workspace >= 0) op.workspace_bytes = plan_.slots[instruction.workspace].bytes;
    for (SlotId operand : instruction.operands)
      if (const int32_t v = value(operand); v >= 0 && !llvm::is_contained(op.reads, v)) op.reads.push_back(v);
    for (SlotId result : instruction.results) {
      const int32_t v = value(result);
      if (v < 0) continue;
      op.writes.push_back(v);
      const int32_t read = value(plan_.slots[plan_.storage_of(result)].in_place_of);
      if (read >= 0 && problem_.value_bytes[read] == problem_.value_bytes[v]) op.in_place.push_back({v, read});
    }
    problem_.ops.push_back(std::move(op));
  }

  const Plan& plan_;
  int32_t function_;
  std::vector<int32_t> value_of_;  // by slot
  RematProblem problem_;
};

double computed_us(const Plan& plan) {
  double us = 0;
  for (size_t f = 0; f < plan.functions.size(); ++f)
    for (const Instruction& instruction : plan.functions[f].instructions)
      if (const OpDef* op = find_op(instruction.op); !op || op->engine == Engine::Compute)
        us += static_cast<double>(plan.calls_per_step(f)) * instruction.predicted_us;
  return us;
}

double added_us(const Plan& plan, int64_t budget_bytes) {
  if (plan.promised_bytes() <= budget_bytes) return 0;
  const int64_t limit = budget_bytes - plan.device.reserve_bytes() - plan.arenas.front().persistent_bytes;
  double us = 0;
  for (size_t f = 0; f < plan.functions.size(); ++f)
    us += static_cast<double>(plan.calls_per_step(f)) * added_us_of_descent(PlanProblem(plan, f).take(), limit);
  return us;
}

}  // namespace

std::optional<double> guess_pipeline_us(const Plan& plain, int64_t budget_bytes) {
  if (plain.later_stages.empty()) return std::nullopt;
  std::vector<const Plan*> stages;
  std::vector<double> us;
  for (const Plan* stage : plain.stages()) {
    stages.push_back(stage);
    us.push_back(computed_us(*stage));
  }
  const size_t slowest[] = {static_cast<size_t>(std::max_element(us.begin(), us.end()) - us.begin())};
  const double added = added_us(*stages[slowest[0]], budget_bytes);
  if (!std::isfinite(added)) return std::nullopt;
  return StepOfStages(stages, slowest, std::numeric_limits<double>::infinity()).us_with_more(slowest[0], added);
}

}  // namespace plimsoll
