#pragma once

// Draws random training jobs and checks the promises about budgets on them.

#include "ir/machine/device.h"
#include "ir/machine/kernel_catalog.h"
#include "ir/plan/plan.h"
#include "passes/job.h"

#include <random>

namespace plimsoll::testing {

struct RandomJob {
  std::string text;         // the forward graph, with input, labels and loss
  TrainingRequest request;  // optimizer, precision, accumulation, clipping
};

// Makes a few small blocks of transformers, perceptrons or convolutional nets, some with long skip connections.
RandomJob random_job(std::mt19937& random);

struct PromiseCounts {
  int64_t graphs = 0, budgets = 0, refused = 0, repeating = 0, on_host = 0, split = 0, executed = 0, split_executed = 0;
};

struct PromiseOptions {
  int budgets = 3;       // per graph, besides the smallest one, which a refusal names
  int split_every = 4;   // one of this many graphs may have its batch split; 0: none
  double effort = 0.01;  // TrainingRequest::effort; the promises hold for any
  bool execute = false;  // also trains in poisoned memory, with early and late copies, and compares with the
                         // plain plan: bit for bit, or up to rounding if the batch is split
};

// Compiles the job of `seed` within budgets from half of the plain plan's transient bytes to all of them. Half of the
// seeds have a host with memory of its own, and budgets from a third of the plain plan on; half of those also have a
// host budget. Checks that every plan passes the checker and is within its budgets, that a larger budget takes no
// longer and is refused only if the smaller ones are, that the size named by a refusal is enough, and that the same
// budget gives the same plan. Returns the broken promise, or an empty string.
std::string broken_promise(uint64_t seed, const PromiseOptions& options, PromiseCounts& counts);

}  // namespace plimsoll::testing
