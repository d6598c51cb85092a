#include "frontend/api/adapters.h"
#include "frontend/api/job.h"
#include "frontend/driver/job_ranks.h"
#include "frontend/driver/run_evaluation.h"
#include "ir/plan/check.h"
#include "ir/plan/serialize.h"
#include "ir/support/output_file.h"
#include "ir/support/units.h"
#include "runtime/data/safetensors.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"

#include <cmath>
#include <cstring>

// The commands evaluate and predict: a plan's function "evaluate" on weights from a file.

namespace plimsoll {

namespace {

// What each rank finds by itself.
struct Opened {
  Plan plan;
  Weights weights;
};

Result<Opened> open_files(const EvaluateOptions& options) {
  Result<Plan> plan = load_plan(options.plan);
  if (!plan) return plan.takeError();
  if (Status s = check_plan(*plan)) return in_context(options.plan, std::move(s));
  Result<Weights> weights = open_weights(options.weights);
  if (!weights) return weights.takeError();
  return Opened{std::move(*plan), std::move(*weights)};
}

Result<Session*> open_session(const EvaluateOptions& options, JobRanks& ranks, Console& console) {
  console.progress.phase("load");
  Result<Opened> opened = open_files(options);
  if (Status s = ranks.agreed(opened ? Status::success() : opened.takeError())) return s;
  Result<Session*> session =
      ranks.open_session(std::move(opened->plan), {.threads = options.threads, .poison = options.poison});
  if (!session) return session;
  const Weights& weights = opened->weights;
  if (Status s = (*session)->initialise(weights.load, options.seed, weights.load_range, weights.type_of)) return s;
  if (options.adapter.empty() && adapters_of((*session)->plan()))
    return usage_error(options.plan + ": has adapters; give those that were trained with --adapter");
  if (!options.adapter.empty())
    if (Status s = load_adapter(**session, options.adapter)) return s;
  return session;
}

Status write_metrics(llvm::StringRef path, const EvaluationResult& result) {
  if (path.empty()) return Status::success();
  std::string text;
  llvm::raw_string_ostream out(text);
  llvm::json::OStream json(out);
  json.object([&] {
    json.attribute("samples", result.samples);
    json.attribute("seconds", result.seconds);
    for (const Metric& metric : result.metrics)
      json.attribute(metric.name,
                     std::isfinite(metric.value) ? llvm::json::Value(metric.value) : llvm::json::Value(nullptr));
  });
  out << "\n";
  return write_output_file(path, [&](llvm::raw_ostream& file) {
    file << out.str();
    return Status::success();
  });
}

// Rows of the outputs for all samples, in host memory.
class Predictions {
 public:
  Status add(const PlanOutput& output, const TensorView& rows) {
    Collected& to = outputs_[output.name];
    to.type = rows.type;
    to.samples += rows.type.shape[0];
    to.bytes.append(static_cast<const char*>(rows.data), static_cast<size_t>(rows.type.bytes()));
    return Status::success();
  }

  Status write(llvm::StringRef path) const {
    std::vector<TensorEntry> entries;
    for (const auto& [name, output] : outputs_) {
      Type type = output.type;
      type.shape[0] = output.samples;
      entries.push_back({name, type});
    }
    return write_safetensors(path, entries, [&](const TensorEntry& entry, void* out) {
      const std::string& bytes = outputs_.at(entry.name).bytes;
      std::memcpy(out, bytes.data(), bytes.size());
      return Status::success();
    });
  }

  std::string describe() const {
    std::string text;
    for (const auto& [name, output] : outputs_) {
      Type type = output.type;
      type.shape[0] = output.samples;
      text += (text.empty() ? "" : ", ") + name + " " + to_string(type);
    }
    return text;
  }

 private:
  struct Collected {
    Type type;  // of the last batch
    int64_t samples = 0;
    std::string bytes;
  };
  std::map<std::string, Collected> outputs_;
};

Status evaluate(const EvaluateOptions& options, JobRanks& ranks, Console& console) {
  Result<Session*> session = open_session(options, ranks, console);
  if (!session) return session.takeError();
  Result<Evaluator> evaluator = Evaluator::create(**session);
  if (!evaluator) return in_context(options.plan, evaluator.takeError());
  Result<std::unique_ptr<BatchSource>> data = open_evaluation_data(
      {options.data, options.transforms, options.hold_out, options.seed, options.document_end, options.labels},
      *evaluator);
  if (!data) return data.takeError();
  console.progress.phase("evaluate");
  Result<EvaluationResult> result = evaluator->run(**data, options.batches);
  if (!result) return in_context(options.data, result.takeError());
  console.progress.finish();
  if (!ranks.is_first()) return Status::success();
  console.out << format_count(result->samples) << (result->samples == 1 ? " sample in " : " samples in ")
              << format_us(1e6 * result->seconds) << "\n";
  for (const Metric& metric : result->metrics)
    console.out << llvm::formatv("{0,-12} {1:f6}\n", metric.name, metric.value);
  return write_metrics(options.output, *result);
}

Status predict(const EvaluateOptions& options, JobRanks& ranks, Console& console) {
  Result<Session*> session = open_session(options, ranks, console);
  if (!session) return session.takeError();
  Result<Evaluator> evaluator = Evaluator::create(**session);
  if (!evaluator) return in_context(options.plan, evaluator.takeError());
  if (evaluator->rows().empty())
    return model_error(options.plan +
                       ": the model has no output with a row per sample, so there is nothing to predict");
  evaluator->feed_predictions_only();
  Result<std::unique_ptr<BatchSource>> data = open_evaluation_data(
      {options.data, options.transforms, options.hold_out, options.seed, options.document_end, options.labels},
      *evaluator);
  if (!data) return data.takeError();
  console.progress.phase("predict");
  Predictions predictions;
  Result<EvaluationResult> result = evaluator->run(
      **data, options.batches,
      [&](const PlanOutput& output, int64_t, const TensorView& rows) { return predictions.add(output, rows); });
  if (!result) return in_context(options.data, result.takeError());
  if (!ranks.is_first()) return Status::success();
  if (Status s = predictions.write(options.output)) return s;
  console.progress.finish();
  console.out << "wrote " << options.output << ": " << predictions.describe() << "\n";
  return Status::success();
}

}  // namespace

Status evaluate_command(const EvaluateOptions& options, Console& console) {
  return JobRanks::run(console, default_patience_s, [&](JobRanks& ranks) { return evaluate(options, ranks, console); });
}

Status predict_command(const EvaluateOptions& options, Console& console) {
  return JobRanks::run(console, default_patience_s, [&](JobRanks& ranks) { return predict(options, ranks, console); });
}

}  // namespace plimsoll
