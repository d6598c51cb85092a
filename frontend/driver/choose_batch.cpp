#include "frontend/driver/choose_batch.h"

#include "frontend/driver/machine.h"
#include "ir/plan/page.h"

#include "llvm/ADT/STLExtras.h"

#include <optional>

namespace plimsoll {
namespace {

constexpr int64_t largest_tried = int64_t{1} << 30;
constexpr double bracket_effort = 0.05;

// A plan, no plan because it does not fit (the reason goes to `refusal`), or another failure.
Result<std::optional<Plan>> if_it_fits(Result<Plan> plan, std::string& refusal) {
  if (plan) return std::optional<Plan>(std::move(*plan));
  Diag diag = take_diag(plan.takeError());
  if (diag.fault() != Fault::Budget) return Status(llvm::make_error<Diag>(diag.fault(), diag.text()));
  refusal = diag.text();
  return std::optional<Plan>();
}

Result<std::optional<Plan>> compile_if_fits(const OpenedModel& model, CompileRequest request, int64_t batch, int64_t accumulate,
                                            const CompileHooks& hooks, std::string& refusal) {
  request.training.batch = batch;
  request.training.accumulate = accumulate;
  return if_it_fits(compile_opened(model, request, hooks), refusal);
}

std::string times(int64_t accumulate, int64_t batch) { return std::to_string(accumulate) + " x " + std::to_string(batch); }

// The largest that fits below `refused`; 0: none.
Result<int64_t> largest_batch(const OpenedModel& model, const CompileRequest& request, int64_t refused, const CompileHooks& hooks,
                              std::optional<Plan>& best, std::string& refusal) {
  int64_t fits = 0;
  while (refused - fits > 1) {
    int64_t batch = refused == largest_tried ? std::max<int64_t>(1, 2 * fits) : fits + (refused - fits) / 2;
    Result<std::optional<Plan>> plan = compile_if_fits(model, request, batch, request.training.accumulate, hooks, refusal);
    if (!plan) return plan.takeError();
    if (*plan) {
      best = std::move(*plan);
      fits = batch;
    } else {
      refused = batch;
    }
  }
  return fits;
}

// From the most exact on.
std::vector<const char*> precisions_to_try(const DeviceDescription& device) {
  auto multiplies = [&](DType dtype) { return llvm::any_of(device.matmul_tflops, [&](const auto& entry) { return entry.first == dtype; }); };
  std::vector<const char*> precisions = {device.compute_capability >= 80 ? "tf32" : "fp32"};
  if (multiplies(DType::BF16))
    precisions.push_back("bf16");
  else if (multiplies(DType::F16))
    precisions.push_back("fp16");
  return precisions;
}

double sample_us(const Plan& plan) {
  return plan.predicted_step_us / static_cast<double>(std::max<int64_t>(plan.training.batch, 1) * plan.training.accumulate);
}

}  // namespace

Result<Plan> compile_global_batch(const OpenedModel& model, const CompileRequest& request, int64_t global_batch, const CompileHooks& hooks) {
  std::optional<Plan> best;
  std::string tried, refusal;
  for (int64_t batch = 1; batch <= global_batch; ++batch) {
    if (global_batch % batch != 0) continue;
    Result<std::optional<Plan>> plan = compile_if_fits(model, request, batch, global_batch / batch, hooks, refusal);
    if (!plan) return plan.takeError();
    if (!*plan) break;  // larger micro-batches need more
    tried += (tried.empty() ? "" : ", ") + times(global_batch / batch, batch) + " takes " + format_us((*plan)->predicted_step_us);
    if (!best || (*plan)->predicted_step_us < best->predicted_step_us) best = std::move(*plan);
  }
  if (!best) return budget_error("a micro-batch of one sample " + refusal);
  best->decisions.push_back({"micro-batch", "plan", times(best->training.accumulate, global_batch / best->training.accumulate), tried});
  return std::move(*best);
}

// A short search finds the batch, a whole one its plan; only where that refuses it are smaller ones searched for at length.
Result<Plan> compile_largest_batch(const OpenedModel& model, const CompileRequest& request, const CompileHooks& hooks) {
  std::optional<Plan> best;
  std::string refusal;
  CompileRequest quick = request;
  quick.training.effort *= bracket_effort;
  Result<int64_t> fits = largest_batch(model, quick, largest_tried, hooks, best, refusal);
  if (!fits) return fits.takeError();
  const std::string above = "a batch of " + std::to_string(*fits + 1) + " " + refusal;
  if (*fits > 0) {
    best.reset();
    Result<std::optional<Plan>> plan = compile_if_fits(model, request, *fits, request.training.accumulate, hooks, refusal);
    if (!plan) return plan.takeError();
    best = std::move(*plan);
    if (!best) fits = largest_batch(model, request, *fits, hooks, best, refusal);
    if (!fits) return fits.takeError();
  }
  if (!best) return budget_error("a batch of one sample " + refusal);
  best->decisions.push_back({"max-batch", "plan", std::to_string(*fits), above});
  return std::move(*best);
}

Result<Plan> compile_fastest_precision(const CompileRequest& request, CompileOne compile) {
  if (!request.training.precision_rules.empty()) return usage_error("--precision-file needs --precision bf16 or fp16, not auto");
  Result<DeviceDescription> device = find_device(request.device, request.device_file);
  if (!device) return device.takeError();
  std::optional<Plan> best;
  std::string tried, refusal;
  for (const char* precision : precisions_to_try(*device)) {
    CompileRequest one = request;
    one.training.precision = precision;
    Result<std::optional<Plan>> plan = if_it_fits(compile(one), refusal);
    if (!plan) return plan.takeError();
    tried += (tried.empty() ? "" : "; ") + std::string(precision) + (*plan ? " takes " + format_us(sample_us(**plan)) + " a sample" : " " + refusal);
    if (*plan && (!best || sample_us(**plan) < sample_us(*best))) best = std::move(*plan);
  }
  if (!best) return budget_error(refusal);
  best->decisions.push_back({"precision", "plan", best->training.precision, tried});
  return std::move(*best);
}

}  // namespace plimsoll
