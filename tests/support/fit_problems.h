#pragma once

// Random problems for passes/fit, and plain ways to measure what the searches measure incrementally.

#include "passes/offload/overlap.h"
#include "passes/remat/remat.h"

#include <map>
#include <random>
#include <set>
#include <utility>

namespace plimsoll {

int pick(std::mt19937& random, int below);

RematProblem random_problem(std::mt19937& random, int ops);
// Options for about half of the values that ops write.
void add_offloads(std::mt19937& random, RematProblem& problem);

using Extras = std::set<std::pair<int32_t, int32_t>>;  // before; the op that is repeated or the value that is reloaded

struct ExpandedSequence {
  RematProblem problem;
  std::vector<int32_t> places;               // of the base ops and of the end
  std::map<int32_t, int32_t> offloads_made;  // places of copies to the host, by value
};

// The schedule with remats and copies as ops in their places. What is made again has a new number, and so has a value
// on the host.
ExpandedSequence expand(const RematProblem& problem, const Extras& remats, const Extras& reloads);
inline RematProblem with_extras(const RematProblem& problem, const Extras& remats, const Extras& reloads) {
  return expand(problem, remats, reloads).problem;
}

// The peak of the schedule as it stands, by summing what is alive at each op.
int64_t plain_peak(const RematProblem& problem, llvm::ArrayRef<CopyInterval> windows = {});

// The time until all engines are through.
double total_us(const RematProblem& problem, llvm::ArrayRef<CopyInterval> intervals);

// The last level of intervals up to `limit_bytes`.
Overlap overlap_within(const RematProblem& problem, int64_t limit_bytes);

// The plan of the highest level that is within the limit; where there is none, of the lowest level.
RematPlan plan_within(const RematProblem& problem, int64_t limit_bytes, const RematOptions& options);

}  // namespace plimsoll
