#include "frontend/driver/choose_batch.h"

#include "frontend/api/machine.h"
#include "frontend/driver/batch_search.h"
#include "frontend/inspect/text_table.h"

#include "llvm/ADT/STLExtras.h"

#include <optional>

namespace plimsoll {
namespace {

constexpr double bracket_effort = 0.05;

// Returns the plan, or none if it does not fit (`refusal` then has the reason); other failures stay errors.
Result<std::optional<Plan>> if_it_fits(Result<Plan> plan, std::string& refusal) {
  if (plan) return std::optional<Plan>(std::move(*plan));
  Diag diag = take_diag(plan.takeError());
  if (diag.fault() != Fault::Budget) return Status(llvm::make_error<Diag>(diag.fault(), diag.text()));
  refusal = diag.text();
  return std::optional<Plan>();
}

Result<std::optional<Plan>> compile_if_fits(const OpenedModel& model, CompileRequest request, int64_t batch,
                                            int64_t accumulate, const CompileHooks& hooks, std::string& refusal) {
  request.training.batch = batch;
  request.training.accumulate = accumulate;
  return if_it_fits(compile_opened(model, request, hooks), refusal);
}

std::string times(int64_t accumulate, int64_t batch) {
  return std::to_string(accumulate) + " x " + std::to_string(batch);
}

// Short searches find the largest batch that fits, and one full search makes its plan. If the full search refuses that
// batch, smaller ones get full searches.
class LargestBatch {
 public:
  LargestBatch(const OpenedModel& model, const CompileRequest& request, const CompileHooks& hooks)
      : model_(model), request_(request), whole_(hooks) {
    quiet_.pipeline = hooks.pipeline;
    quiet_.on_phase = hooks.on_phase;
    quiet_.on_refused = [&](const Plan& smallest) { needed_share_ = in_budgets(smallest); };
    whole_.on_refused = [&](const Plan& smallest) {
      quiet_.on_refused(smallest);
      if (hooks.on_refused) hooks.on_refused(smallest);
    };
  }

  Result<Plan> run() {
    CompileRequest quick = request_;
    quick.training.effort *= bracket_effort;
    Result<int64_t> batch = search(quick, {});
    if (!batch) return batch.takeError();
    above_ = "a batch of " + std::to_string(*batch + 1) + " " + refusal_;
    best_.reset();
    if (Status s = try_batch(request_, std::max<int64_t>(*batch, 1), whole_)) return s;
    if (!best_ && *batch > 1) {
      above_ = "a batch of " + std::to_string(*batch) + " " + refusal_;
      BatchSearch below;
      below.refused(*batch, needed_share_);
      if (batch = search(request_, below); !batch) return batch.takeError();
    }
    if (!best_) return budget_error("a batch of one sample " + refusal_);
    best_->decisions.push_back({"max-batch", "plan", std::to_string(best_->training.batch), above_});
    return std::move(*best_);
  }

 private:
  static double in_budgets(const Plan& plan) {
    return static_cast<double>(plan.promised_bytes()) / static_cast<double>(plan.arenas.front().budget_bytes);
  }

  Status try_batch(const CompileRequest& request, int64_t batch, const CompileHooks& hooks) {
    Result<std::optional<Plan>> plan =
        compile_if_fits(model_, request, batch, request.training.accumulate, hooks, refusal_);
    if (!plan) return plan.takeError();
    if (*plan) best_ = std::move(*plan);
    fits_ = plan->has_value();
    return Status::success();
  }

  Result<int64_t> search(const CompileRequest& request, BatchSearch batches) {
    while (std::optional<int64_t> batch = batches.next()) {
      if (Status s = try_batch(request, *batch, quiet_)) return s;
      if (fits_)
        batches.fits(*batch);
      else
        batches.refused(*batch, needed_share_);
    }
    return batches.largest();
  }

  const OpenedModel& model_;
  const CompileRequest& request_;
  CompileHooks whole_, quiet_;  // `quiet_` is for batches that are only tried
  std::optional<Plan> best_;    // the plan of the last batch that fitted
  bool fits_ = false;  // about the last batch tried; if it does not fit, the next two members say why and by how much
  std::string refusal_, above_;
  double needed_share_ = 0;
};

// The most exact precision comes first.
std::vector<const char*> precisions_to_try(const DeviceDescription& device) {
  auto multiplies = [&](DType dtype) {
    return llvm::any_of(device.matmul_tflops, [&](const auto& entry) { return entry.first == dtype; });
  };
  std::vector<const char*> precisions = {device.compute_capability >= 80 ? "tf32" : "fp32"};
  if (multiplies(DType::BF16))
    precisions.push_back("bf16");
  else if (multiplies(DType::F16))
    precisions.push_back("fp16");
  return precisions;
}

double sample_us(const Plan& plan) {
  return plan.predicted_step_us /
         static_cast<double>(std::max<int64_t>(plan.training.batch, 1) * plan.training.accumulate);
}

}  // namespace

Result<Plan> compile_global_batch(const OpenedModel& model, const CompileRequest& request, int64_t global_batch,
                                  const CompileHooks& hooks) {
  std::optional<Plan> best;
  std::string tried, refusal;
  for (int64_t batch = 1; batch <= global_batch; ++batch) {
    if (global_batch % batch != 0) continue;
    Result<std::optional<Plan>> plan = compile_if_fits(model, request, batch, global_batch / batch, hooks, refusal);
    if (!plan) return plan.takeError();
    if (!*plan) break;  // larger micro-batches need more
    tried += (tried.empty() ? "" : ", ") + times(global_batch / batch, batch) + " takes " +
             format_us((*plan)->predicted_step_us);
    if (!best || (*plan)->predicted_step_us < best->predicted_step_us) best = std::move(*plan);
  }
  if (!best) return budget_error("a micro-batch of one sample " + refusal);
  best->decisions.push_back(
      {"micro-batch", "plan", times(best->training.accumulate, global_batch / best->training.accumulate), tried});
  return std::move(*best);
}

Result<Plan> compile_largest_batch(const OpenedModel& model, const CompileRequest& request, const CompileHooks& hooks) {
  return LargestBatch(model, request, hooks).run();
}

Result<Plan> compile_fastest_precision(const CompileRequest& request, CompileOne compile) {
  Result<DeviceDescription> device = find_device(request.device, request.device_file);
  if (!device) return device.takeError();
  std::optional<Plan> best;
  std::string tried, refusal;
  for (const char* precision : precisions_to_try(*device)) {
    CompileRequest one = request;
    one.training.precision = precision;
    Result<std::optional<Plan>> plan = if_it_fits(compile(one), refusal);
    if (!plan) return plan.takeError();
    tried += (tried.empty() ? "" : "; ") + std::string(precision) +
             (*plan ? " takes " + format_us(sample_us(**plan)) + " per sample" : " " + refusal);
    if (*plan && (!best || sample_us(**plan) < sample_us(*best))) best = std::move(*plan);
  }
  if (!best) return budget_error(refusal);
  best->decisions.push_back({"precision", "plan", best->training.precision, tried});
  return std::move(*best);
}

}  // namespace plimsoll
