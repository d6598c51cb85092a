#pragma once

// What a run says about one of its steps, or about an evaluation after it, in the form that all its log files are
// written from.

#include "runtime/evaluator.h"

#include <variant>

namespace plimsoll {

struct LogField {
  std::string name;  // "loss", "step_ms": docs/interfaces.md
  std::variant<int64_t, double, bool> value;
};

struct LogRecord {
  int64_t step = 0;  // updates done
  bool is_evaluation = false;
  std::vector<LogField> fields;
};

LogRecord record_of(const StepMetrics& metrics, double items_per_s, int64_t device_bytes);
LogRecord record_of(int64_t step, const EvaluationResult& result, bool is_best);

// The fields that records of a run with this plan can have; their values mean nothing.
struct LogFields {
  std::vector<LogField> of_steps, of_evaluations;
};
LogFields fields_of(const Plan& plan);

}  // namespace plimsoll
