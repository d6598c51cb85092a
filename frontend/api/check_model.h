#pragma once

// Runs the stages of a compile one after the other and collects every obstacle to training. It continues after a
// failure where later stages can still say something.

#include "frontend/api/job.h"

namespace plimsoll {

struct Finding {
  std::string title;    // "unsupported operator Det"
  std::string message;  // says what it means and what to do
  std::vector<std::string> nodes;
  std::string freezing;  // says whether leaving weights untrained helps
  bool blocks = true;
};

struct ModelCheck {
  std::vector<Finding> findings;  // blocking findings come first
  std::string trained;            // "12.3 M numbers in 40 of 42 weights, ..."; empty if the model was not read that far
};

// Ignores the request's device, budgets and searches. Fails if the file cannot be read.
Result<ModelCheck> check_model(const CompileRequest& request, const CompileHooks& hooks = {});

}  // namespace plimsoll
