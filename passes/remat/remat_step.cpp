#include "ir/support/units.h"
#include "passes/analysis/plan_draft.h"
#include "passes/remat/remat_problem.h"

// The planning step rematerialise: one function under one limit of live bytes. The budget search does the same over
// many limits.

namespace plimsoll {
namespace {

// The cheapest plan within the limit.
Result<RematPlan> plan_within(const RematProblem& problem, int64_t limit_bytes) {
  std::vector<RematPlan> levels = remat_levels(problem, limit_bytes);
  for (const RematPlan& plan : levels)
    if (plan.peak_bytes <= limit_bytes) return plan;
  return budget_error("no plan needs less than " + llvm::Twine(levels.back().peak_bytes) + " bytes, the limit is " +
                      llvm::Twine(limit_bytes));
}

Result<bool> run_rematerialise(PlanDraft& draft, size_t f, PassContext& context) {
  Graph& graph = draft.program.functions[f];
  const std::vector<NodeId>& writers = draft.writers(f);
  delay_free_updates(graph, writers);
  const GraphRematProblem sequence =
      graph_remat_problem(graph, writers, draft.device, *draft.catalog, context.number("host"));
  const int64_t before = measure_remats(sequence.problem, {}).peak_bytes;
  if (before <= context.number("limit")) return false;
  Result<RematPlan> plan = plan_within(sequence.problem, context.number("limit"));
  if (!plan) return plan.takeError();
  llvm::append_range(draft.functions[f].added, rematerialise(graph, *plan, sequence.values));
  draft.drop_layout(f);
  context.report("peak " + llvm::Twine(before) + " bytes, " + llvm::Twine(plan->peak_bytes) + " with " +
                 llvm::Twine(plan->remats.size()) + " remats and " + llvm::Twine(plan->reloads.size()) + " reloads");
  return true;
}

constexpr PassOption remat_options[] = {{"limit", int64_t{0}, "most live bytes of a function, without states", 1},
                                        {"host", int64_t{0}, "bytes of values that may wait in host memory"}};

}  // namespace

constinit const PassInfo pass_rematerialise{
    .name = "rematerialise",
    .summary = "recomputes or reloads values instead of keeping them, at the least added time within a limit",
    .options = remat_options,
    .plan = run_rematerialise,
};

}  // namespace plimsoll
