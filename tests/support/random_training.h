#pragma once

// Training jobs drawn at random, and what is promised of a budget held against them.

#include "ir/machine/device.h"
#include "ir/machine/kernel_catalog.h"
#include "ir/plan/plan.h"
#include "passes/job.h"

#include <random>

namespace plimsoll::testing {

struct RandomJob {
  std::string text;         // the forward graph; its input, labels and loss are those of any model
  TrainingRequest request;  // optimizer, precision, accumulation, clipping
};

// A few blocks of transformers, of perceptrons or of convolutional nets over small sizes, some with skips that join
// late.
RandomJob random_job(std::mt19937& random);

struct PromiseCounts {
  int64_t graphs = 0, budgets = 0, refused = 0, repeating = 0, on_host = 0, split = 0, executed = 0, split_executed = 0;
};

struct PromiseOptions {
  int budgets = 3;       // of each graph, beside the least that a refusal names
  int split_every = 4;   // of so many graphs one may have its batch split; 0: none
  double effort = 0.01;  // of TrainingRequest: the promises hold however little is searched
  bool execute = false;  // also train: in poisoned memory, copies made early and late, against the plain plan: its
                         // bits, or where a batch is split, its numbers
};

// The job of `seed`, as it is or where asked with its batch split, under budgets from half of what the plain plan has
// above its states to all of it; half of the seeds have a host with memory of its own, and budgets from a third of the
// plain plan on, half of those a host budget too. Every plan passes the checker and is within its budgets, a larger
// budget takes no longer and is refused only where the smaller ones are, what a refusal asks for is enough, and the
// same budget gives the same bytes of a plan. Returns what is broken, or nothing.
std::string broken_promise(uint64_t seed, const PromiseOptions& options, PromiseCounts& counts);

}  // namespace plimsoll::testing
