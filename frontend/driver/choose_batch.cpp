#include "frontend/driver/choose_batch.h"

#include "ir/plan/page.h"

#include <optional>

namespace plimsoll {
namespace {

constexpr int64_t largest_tried = int64_t{1} << 30;

// A plan, no plan because it does not fit (the reason goes to `refusal`), or another failure.
Result<std::optional<Plan>> compile_if_fits(CompileRequest request, int64_t batch, int64_t accumulate, const CompileHooks& hooks,
                                            std::string& refusal) {
  request.training.batch = batch;
  request.training.accumulate = accumulate;
  Result<Plan> plan = compile_model(request, hooks);
  if (plan) return std::optional<Plan>(std::move(*plan));
  Diag diag = take_diag(plan.takeError());
  if (diag.fault() != Fault::Budget) return Status(llvm::make_error<Diag>(diag.fault(), diag.text()));
  refusal = diag.text();
  return std::optional<Plan>();
}

std::string times(int64_t accumulate, int64_t batch) { return std::to_string(accumulate) + " x " + std::to_string(batch); }

}  // namespace

Result<Plan> compile_global_batch(const CompileRequest& request, int64_t global_batch, const CompileHooks& hooks) {
  std::optional<Plan> best;
  std::string tried, refusal;
  for (int64_t batch = 1; batch <= global_batch; ++batch) {
    if (global_batch % batch != 0) continue;
    Result<std::optional<Plan>> plan = compile_if_fits(request, batch, global_batch / batch, hooks, refusal);
    if (!plan) return plan.takeError();
    if (!*plan) break;  // larger micro-batches need more
    tried += (tried.empty() ? "" : ", ") + times(global_batch / batch, batch) + " takes " + format_us((*plan)->predicted_step_us);
    if (!best || (*plan)->predicted_step_us < best->predicted_step_us) best = std::move(*plan);
  }
  if (!best) return budget_error("a micro-batch of one sample " + refusal);
  best->decisions.push_back({"micro-batch", "plan", times(best->training.accumulate, global_batch / best->training.accumulate), tried});
  return std::move(*best);
}

Result<Plan> compile_largest_batch(const CompileRequest& request, const CompileHooks& hooks) {
  std::optional<Plan> best;
  std::string refusal;
  int64_t fits = 0, refused = largest_tried;
  while (refused - fits > 1) {
    int64_t batch = refused == largest_tried ? std::max<int64_t>(1, 2 * fits) : fits + (refused - fits) / 2;
    Result<std::optional<Plan>> plan = compile_if_fits(request, batch, request.training.accumulate, hooks, refusal);
    if (!plan) return plan.takeError();
    if (*plan) {
      best = std::move(*plan);
      fits = batch;
    } else {
      refused = batch;
    }
  }
  if (!best) return budget_error("a batch of one sample " + refusal);
  best->decisions.push_back({"max-batch", "plan", std::to_string(fits), "a batch of " + std::to_string(refused) + " " + refusal});
  return std::move(*best);
}

}  // namespace plimsoll
