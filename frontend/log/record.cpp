#include "frontend/log/record.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {

LogRecord record_of(const StepMetrics& metrics, double items_per_s, int64_t device_bytes) {
  LogRecord record{metrics.step,
                   false,
                   {{"loss", metrics.loss},
                    {"step_ms", metrics.step_ms},
                    {"grad_norm", metrics.grad_norm},
                    {"learning_rate", metrics.learning_rate},
                    {"tokens_or_samples_per_s", items_per_s},
                    {"device_bytes", device_bytes}}};
  if (metrics.loss_scale) {
    record.fields.push_back({"loss_scale", *metrics.loss_scale});
    record.fields.push_back({"skipped_steps", metrics.skipped_steps});
  }
  return record;
}

LogRecord record_of(int64_t step, const EvaluationResult& result, bool is_best) {
  LogRecord record{step, true, {}};
  for (const Metric& metric : result.metrics) record.fields.push_back({metric.name, metric.value});
  record.fields.push_back({"samples", result.samples});
  record.fields.push_back({"seconds", result.seconds});
  record.fields.push_back({"best", is_best});
  return record;
}

LogFields fields_of(const Plan& plan) {
  StepMetrics metrics;
  const bool has_loss_scale = llvm::any_of(plan.states, [&](const PlanState& state) {
    return plan.slots[static_cast<size_t>(state.slot)].name == "loss_scale";
  });
  if (has_loss_scale) metrics.loss_scale = 1;
  LogFields fields{record_of(metrics, 0, 0).fields, {}};
  if (plan.evaluation.batch == 0) return fields;
  EvaluationResult result;
  result.metrics.push_back({"loss", 0});
  for (llvm::StringRef asked : plan.evaluation.metrics)
    if (llvm::StringRef name = asked.split(':').first; name != "loss") result.metrics.push_back({name.str(), 0});
  fields.of_evaluations = record_of(0, result, false).fields;
  return fields;
}

}  // namespace plimsoll
