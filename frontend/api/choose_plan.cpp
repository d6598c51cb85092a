#include "frontend/api/choose_plan.h"

#include "frontend/api/batch_search.h"
#include "frontend/api/choose_mesh.h"
#include "ir/support/units.h"
#include "passes/budget/budget_report.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>
#include <optional>

namespace plimsoll {
namespace {

constexpr double bracket_effort = 0.05;

Result<CompileResult> compile_on_mesh(const Job& job, const TrainingRequest& request, const CompileHooks& hooks) {
  const MeshQuestion question = mesh_question(job.request(), request);
  return question.cards > 0 ? choose_mesh(job, request, question, hooks) : job.compile(request, hooks);
}

// Follows the batch through the graph as it was read. Where an op does not allow that and the model leaves its batch
// open, the model is read again for the batch.
Result<CompileResult> compile_batch(const Job& job, TrainingRequest request, int64_t batch, int64_t accumulate,
                                    const CompileHooks& hooks) {
  request.batch = batch;
  request.accumulate = accumulate;
  Result<CompileResult> result = compile_on_mesh(job, request, hooks);
  if (!result && !job.batch_dims().empty()) {
    Result<Job> again = job.read_for_batch(batch);
    if (again) {
      llvm::consumeError(result.takeError());
      request.batch = 0;
      result = compile_on_mesh(*again, request, hooks);
    } else {
      llvm::consumeError(again.takeError());
    }
  }
  if (!result) return result;
  for (Plan* plan : result->plans()) {
    plan->training.batch = batch;
    for (auto& [name, size] : plan->dims)
      if (llvm::is_contained(job.batch_dims(), name)) size = batch;
  }
  return result;
}

std::string times(int64_t accumulate, int64_t batch) {
  return std::to_string(accumulate) + " x " + std::to_string(batch);
}

// What the plan needs of its budgets, of the one that it exceeds most.
double needed_share(const Plan& plan) {
  const auto share = [](int64_t bytes, int64_t budget) {
    return static_cast<double>(bytes) / static_cast<double>(budget);
  };
  double most = share(plan.promised_bytes(), plan.arenas.front().budget_bytes);
  for (const Arena& arena : plan.arenas)
    if (arena.space == MemorySpace::Host && arena.budget_bytes > 0)
      most = std::max(most, share(arena.bytes, arena.budget_bytes));
  return most;
}

// Short searches find the largest batch that fits, and a full search makes its plan. So do those of batches that are 1,
// 2, 4 and so on larger, up to the first that is refused, and of others in between or below.
class LargestBatch {
 public:
  LargestBatch(const Job& job, const TrainingRequest& request, const CompileHooks& hooks)
      : job_(job), request_(request), hooks_(hooks) {}

  Result<CompileResult> run() {
    TrainingRequest quick = request_;
    quick.effort *= bracket_effort;
    Result<int64_t> found = search(quick, {});
    if (!found) return found.takeError();
    best_.reset();
    refused_ = 0;  // a full search may fit it
    BatchSearch batches;
    const int64_t first = std::max<int64_t>(*found, 1);
    for (int64_t more = 0; first + more <= BatchSearch::max_tried; more = std::max<int64_t>(1, 2 * more)) {
      if (Status s = try_batch(request_, first + more, batches)) return s;
      if (!fits_) break;
    }
    if (best_ || *found > 1)
      if (Result<int64_t> largest = search(request_, batches); !largest) return largest.takeError();
    if (!best_) return std::move(*smallest_);
    Plan& plan = best_->plan;
    const std::string above = refused_ > 0 ? "a batch of " + std::to_string(refused_) + " " + refusal_ : "";
    plan.decisions.push_back({"max-batch", "plan", std::to_string(plan.training.batch), above});
    return std::move(*best_);
  }

 private:
  Status try_batch(const TrainingRequest& request, int64_t batch, BatchSearch& batches) {
    Result<CompileResult> result = compile_batch(job_, request, batch, request.accumulate, hooks_);
    if (!result) return result.takeError();
    fits_ = result->fits;
    if (fits_) {
      batches.fits(batch);
      best_ = std::move(*result);
      return Status::success();
    }
    batches.refused(batch, needed_share(result->plan));
    refused_ = batch;
    refusal_ = shortfall(*result);
    if (!smallest_ || result->plan.promised_bytes() < smallest_->plan.promised_bytes()) smallest_ = std::move(*result);
    return Status::success();
  }

  Result<int64_t> search(const TrainingRequest& request, BatchSearch batches) {
    while (std::optional<int64_t> batch = batches.next())
      if (Status s = try_batch(request, *batch, batches)) return s;
    return batches.largest();
  }

  const Job& job_;
  const TrainingRequest& request_;
  const CompileHooks& hooks_;
  std::optional<CompileResult> best_, smallest_;  // of the batch that fitted last; of the one that lacked least
  bool fits_ = false;                             // the batch tried last
  int64_t refused_ = 0;                           // the batch that was refused last, and why
  std::string refusal_;
};

double sample_us(const Plan& plan) {
  return plan.predicted_step_us /
         static_cast<double>(std::max<int64_t>(plan.training.batch, 1) * plan.training.accumulate);
}

// A larger batch takes less time per sample until it needs remats and copies, and from there on more. So the least is
// at the largest batch that needs none, at the largest that fits, or in between.
Result<CompileResult> compile_best_batch(const Job& job, const TrainingRequest& request, const CompileHooks& hooks) {
  constexpr int between = 2;
  Result<CompileResult> best = LargestBatch(job, request, hooks).run();
  if (!best || !best->fits) return best;
  const int64_t largest = best->plan.training.batch;
  std::string tried =
      std::to_string(largest) + ", the largest that fits, takes " + format_us(sample_us(best->plan)) + " per sample";
  TrainingRequest plain = request;
  plain.recompute = plain.offload = false;
  Result<CompileResult> first = LargestBatch(job, plain, hooks).run();
  if (!first) return first;
  const int64_t smallest = first->fits ? first->plan.training.batch : 1;
  for (int step = 0; step <= between; ++step) {
    const double growth =
        std::pow(static_cast<double>(largest) / static_cast<double>(smallest), step / (between + 1.0));
    const auto batch = static_cast<int64_t>(static_cast<double>(smallest) * growth);
    if (batch >= largest || (step > 0 && batch == smallest)) break;
    Result<CompileResult> result = compile_batch(job, request, batch, request.accumulate, hooks);
    if (!result) return result;
    if (!result->fits) continue;
    tried += "; " + std::to_string(batch) + " takes " + format_us(sample_us(result->plan));
    if (sample_us(result->plan) < sample_us(best->plan)) best = std::move(*result);
  }
  best->plan.decisions.push_back({"best-batch", "plan", std::to_string(best->plan.training.batch), tried});
  return best;
}

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

// In ascending order, as far as a micro-batch may go.
std::vector<int64_t> divisors_of(int64_t number) {
  std::vector<int64_t> divisors, above;
  for (int64_t divisor = 1; divisor * divisor <= number; ++divisor) {
    if (number % divisor != 0) continue;
    divisors.push_back(divisor);
    if (divisor * divisor < number) above.push_back(number / divisor);
  }
  divisors.insert(divisors.end(), above.rbegin(), above.rend());
  llvm::erase_if(divisors, [](int64_t divisor) { return divisor > BatchSearch::max_tried; });
  return divisors;
}

Result<CompileResult> compile_global_batch(const Job& job, const TrainingRequest& request, int64_t global_batch,
                                           const CompileHooks& hooks) {
  std::optional<CompileResult> best;
  std::string tried;
  for (int64_t batch : divisors_of(global_batch)) {
    Result<CompileResult> result = compile_batch(job, request, batch, global_batch / batch, hooks);
    if (!result) return result.takeError();
    if (!result->fits && best) break;  // larger micro-batches need more
    if (!result->fits) return result;
    const double step_us = result->plan.predicted_step_us;
    tried += (tried.empty() ? "" : ", ") + times(global_batch / batch, batch) + " takes " + format_us(step_us);
    if (!best || step_us < best->plan.predicted_step_us) best = std::move(*result);
  }
  Plan& plan = best->plan;
  plan.decisions.push_back(
      {"micro-batch", "plan", times(plan.training.accumulate, global_batch / plan.training.accumulate), tried});
  return std::move(*best);
}

Result<CompileResult> choose_batch(const Job& job, const TrainingRequest& training, const CompileHooks& hooks) {
  if (const int64_t samples = job.request().global_batch) return compile_global_batch(job, training, samples, hooks);
  if (job.request().best_batch) return compile_best_batch(job, training, hooks);
  return job.request().max_batch ? LargestBatch(job, training, hooks).run() : compile_on_mesh(job, training, hooks);
}

}  // namespace

Result<CompileResult> choose_plan(const Job& job, const TrainingRequest& training, const CompileHooks& hooks) {
  if (training.precision != "auto") return choose_batch(job, training, hooks);
  std::optional<CompileResult> best;
  std::string tried;
  for (const char* precision : precisions_to_try(job.device())) {
    TrainingRequest one = training;
    one.precision = precision;
    Result<CompileResult> result = choose_batch(job, one, hooks);
    if (!result) return result.takeError();
    const Plan& plan = result->plan;
    tried += (tried.empty() ? "" : "; ") + std::string(precision) +
             (result->fits ? " takes " + format_us(sample_us(plan)) + " per sample" : " " + shortfall(*result));
    const bool better = !best || (result->fits != best->fits ? result->fits
                                  : result->fits             ? sample_us(plan) < sample_us(best->plan)
                                                             : plan.promised_bytes() < best->plan.promised_bytes());
    if (better) best = std::move(*result);
  }
  best->plan.decisions.push_back({"precision", "plan", best->plan.training.precision, tried});
  return std::move(*best);
}

TrainingRequest with_choices_of(const Plan& plan, TrainingRequest training, const CompileRequest& request) {
  if (request.chooses_batch()) {
    training.batch = plan.training.batch;
    training.accumulate = plan.training.accumulate;
  }
  training.precision = plan.training.precision;
  return with_mesh_of(plan, std::move(training));
}

llvm::StringRef tried_batch(const CompileRequest& request) {
  if (request.global_batch > 0) return "a micro-batch of one sample ";
  return request.chooses_batch() ? "a batch of one sample " : "";
}

std::string refusal_of(const CompileResult& result, const CompileRequest& request) {
  return tried_batch(request).str() + shortfall(result);
}

}  // namespace plimsoll
