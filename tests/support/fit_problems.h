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

RecomputeProblem random_problem(std::mt19937& random, int ops);
// Options for about half of the values that ops write.
void add_offloads(std::mt19937& random, RecomputeProblem& problem);

using Extras = std::set<std::pair<int32_t, int32_t>>;  // before; the op that is repeated or the value that is fetched

struct ExpandedSequence {
  RecomputeProblem problem;
  std::vector<int32_t> places;  // of the base ops and of the end
  std::map<int32_t, int32_t> stores;  // places of copies to the host, by value
};

// The sequence with repeats and copies as ops in their places. What is made again has a new number, and so has a value on the host.
ExpandedSequence expand(const RecomputeProblem& problem, const Extras& repeats, const Extras& fetches);
inline RecomputeProblem with_extras(const RecomputeProblem& problem, const Extras& repeats, const Extras& fetches) {
  return expand(problem, repeats, fetches).problem;
}

// Of the sequence as it stands, by summing what is alive at each op.
int64_t plain_peak(const RecomputeProblem& problem, llvm::ArrayRef<CopyWindow> windows = {});

}  // namespace plimsoll
