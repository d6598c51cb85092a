#include "frontend/driver/run_evaluation.h"

#include "frontend/driver/transforms_file.h"
#include "ir/support/units.h"
#include "runtime/data/image_files.h"
#include "runtime/data/tensor_files.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"

#include <cmath>

namespace plimsoll {

std::string describe_evaluation(const EvaluationResult& result) {
  std::string text = format_count(result.samples) + (result.samples == 1 ? " sample:" : " samples:");
  for (const Metric& metric : result.metrics)
    text +=
        (&metric == result.metrics.data() ? " " : ", ") + metric.name + llvm::formatv(" {0:f4}", metric.value).str();
  return text;
}

// Images are shown as in training, without what training draws.
static ImageTransforms without_chance(ImageTransforms transforms) {
  if (transforms.crop == Crop::Random || transforms.crop == Crop::RandomResized) transforms.crop = Crop::Center;
  transforms.flip = transforms.brightness = transforms.contrast = transforms.saturation = 0;
  transforms.mixup = transforms.cutmix = 0;
  return transforms;
}

Result<std::unique_ptr<BatchSource>> open_evaluation_data(const EvaluationData& from, const Evaluator& evaluator) {
  DataOptions options = evaluator.rows_of_rank(from.seed);
  if (from.hold_out > 0) {
    options.hold_out = from.hold_out;
    options.part = SamplePart::Kind::HeldOut;
  }
  options.shuffle = false;
  options.last_batch = LastBatch::Fill;
  const bool is_tokens =
      !has_images(from.path) && !is_tensor_file(from.path) && !llvm::sys::fs::is_directory(from.path);
  if (is_tokens) options.document_end = from.document_end;
  Result<size_t> labels = read_choice("--labels", from.labels, {"auto", "same", "next"});
  if (!labels) return labels.takeError();
  options.labels = static_cast<LabelTokens>(*labels);
  if (!from.transforms.empty()) {
    Result<Transforms> transforms = read_transforms(from.transforms);
    if (!transforms) return transforms.takeError();
    if (transforms->image && has_images(from.path)) options.transforms = without_chance(*transforms->image);
    options.padding = transforms->padding;
  }
  return open_data(from.path, evaluator.inputs(), options);
}

Status RunEvaluation::open(Session& session, const RunStart& start) {
  const bool has_function = session.plan().find_function(evaluate_function).has_value();
  const bool is_held_out = options_.data.empty() && run_.data_request.hold_out > 0;
  if (options_.data.empty() && !(is_held_out && has_function)) {
    if (options_.every > 0 || options_.early_stop > 0)
      return usage_error(llvm::Twine(options_.every > 0 ? "--evaluate-every" : "--early-stop") +
                         ": the run has nothing to evaluate with; give --evaluate-data FILE" +
                         (is_held_out ? ", or compile the plan with --evaluate to use what --hold-out keeps" : ""));
    return Status::success();
  }
  if (options_.early_stop > 0 && options_.every == 0)
    return usage_error("--early-stop counts the evaluations of --evaluate-every N, which is missing");
  Result<Evaluator> evaluator = Evaluator::create(session);
  if (!evaluator) return in_context("--evaluate-data", evaluator.takeError());
  evaluator_.emplace(std::move(*evaluator));
  if (Status s = choose_metric(session.plan().evaluation)) return s;
  EvaluationData from{options_.data, run_.data_request.transforms, 0, start.seed};
  from.document_end = run_.data_request.document_end;
  from.labels = run_.data_request.labels;
  if (is_held_out) {
    from.path = run_.data;
    from.hold_out = run_.data_request.hold_out;
  }
  Result<std::unique_ptr<BatchSource>> data = open_evaluation_data(from, *evaluator_);
  if (!data) return data.takeError();
  data_ = std::move(*data);
  if (options_.every > 0) next_step_ = (start.steps / options_.every + 1) * options_.every;
  return Status::success();
}

// The first metric that the plan was asked for, else the loss.
Status RunEvaluation::choose_metric(const EvaluationSummary& plan) {
  std::vector<std::string> known{"loss"};
  for (const std::string& metric : plan.metrics) known.push_back(llvm::StringRef(metric).split(':').first.str());
  std::string& metric = best_.metric;
  metric = !options_.best_by.empty() ? options_.best_by : known.size() > 1 ? known[1] : known[0];
  if (llvm::is_contained(known, metric)) return Status::success();
  return usage_error("--best-by " + metric + ": the plan evaluates " + llvm::join(known, ", "));
}

void RunEvaluation::resume(const BestEvaluation& best) {
  if (best.metric == best_.metric) best_ = best;
}

Result<std::optional<EvaluationResult>> RunEvaluation::after_step(int64_t step) {
  if (step < next_step_) return std::nullopt;
  next_step_ = (step / options_.every + 1) * options_.every;
  return evaluate(step);
}

Result<std::optional<EvaluationResult>> RunEvaluation::after_last_step(int64_t step) {
  if (!is_wanted() || step == evaluated_step_) return std::nullopt;
  return evaluate(step);
}

std::string RunEvaluation::describe_best() const {
  if (is_best()) return "";
  return "; best " + best_.metric + llvm::formatv(" {0:f4} at step ", best_.value).str() + std::to_string(best_.step);
}

Result<std::optional<EvaluationResult>> RunEvaluation::evaluate(int64_t step) {
  Result<EvaluationResult> result = evaluator_->run(*data_, options_.batches);
  if (!result) return in_context("evaluation", result.takeError());
  evaluated_step_ = step;
  const double value = result->find(best_.metric)->value;
  const bool is_better = best_.step < 0 || std::isnan(best_.value) ||
                         (is_better_when_larger(best_.metric) ? value > best_.value : value < best_.value);
  ++best_.since;
  if (is_better) best_ = {best_.metric, value, step, 0};
  return std::optional<EvaluationResult>(std::move(*result));
}

}  // namespace plimsoll
