#pragma once

// The last pass: assignment, offsets, kernels and predicted times become plain data.

#include "ir/plan/plan.h"
#include "passes/analysis/plan_draft.h"

namespace plimsoll {

// Whether parts may lie inside their wholes (passes/place/place_parts.h). Plans for smaller budgets have them copied,
// as searches count: more budget could otherwise mean more time.
enum class Parts : uint8_t { Inside, Copied };

struct LoweringInput {
  const PlanDraft& draft;         // functions in final order
  int64_t budget_bytes;           // 0: the device's memory; recorded, not enforced
  int64_t host_budget_bytes = 0;  // of the host arena; 0: not limited; recorded, not enforced
  double placement_seconds = 2;   // of work for each function's layout, see PlacementOptions
  Parts parts = Parts::Inside;
  // Where what is alive shows that the plan promises more than this, `lower_quickly` takes all parts to lie inside, so
  // that instructions take as long as with any, or less, and its layouts are within 1 % where an order finds one; 0: it
  // never does.
  int64_t quick_above_bytes = 0;
};

// Adds the functions of `input` to a plan. States and equal constants are the plan's own; further ones are added, and
// every function's transient bytes move up behind them. The plan's budget stays as it is.
Result<Plan> add_to_plan(const LoweringInput& input, Plan plan);

// Lays out the arena and fills slots, functions, states, constants, gradients, origins and times. The plan's
// model and training are the caller's.
Result<Plan> lower_to_plan(const LoweringInput& input);

// The same with layouts that come from quick orders of the buffers, unless parts lie inside their wholes. Instructions
// and times are those of `lower_to_plan`; its arena is as high, or lower.
struct QuickPlan {
  Plan plan;
  bool is_final = true;  // `lower_to_plan` gives the same plan
};
Result<QuickPlan> lower_quickly(const LoweringInput& input);

}  // namespace plimsoll
