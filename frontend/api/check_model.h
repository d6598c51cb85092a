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

// What a job still has to say about the model, as guessed from its graph.
struct JobGuess {
  std::vector<std::string> inputs, outputs;           // "input_ids i64[8,64]"
  std::vector<std::pair<std::string, int64_t>> dims;  // open dimensions, and the sizes that the check took
  std::string loss;                                   // for --loss; empty: it was given, or the model has one
  std::vector<std::string>
      groups;  // kinds of trained weights that recipes treat apart: "26 matrices with 1,240,000 numbers"
  bool has_norms_and_biases = false;  // beside matrices
};

struct ModelCheck {
  std::vector<Finding> findings;  // blocking findings come first
  JobGuess guess;
  std::string trained;  // "12.3 M numbers in 40 of 42 weights, ..."; empty if the model was not read that far
  std::vector<IndexInput> index_inputs;  // empty likewise
};

// Ignores the request's device, budgets and searches. Dimensions without a size get one, and a model without a loss the
// likely one; both are findings that do not block. Fails if the file cannot be read.
Result<ModelCheck> check_model(const CompileRequest& request, const CompileHooks& hooks = {});

}  // namespace plimsoll
