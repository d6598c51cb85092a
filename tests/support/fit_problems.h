#pragma once

// Random problems for passes/remat and passes/offload, and plain versions of what their searches compute incrementally.

#include "passes/offload/overlap.h"
#include "passes/remat/remat.h"

#include <random>
#include <set>
#include <utility>

namespace plimsoll {

int pick(std::mt19937& random, int below);

RematProblem random_problem(std::mt19937& random, int ops);
// Ops read what was made up to 20 ops before, so that an op that runs again mostly needs others.
RematProblem tangled_problem(std::mt19937& random, int ops);
// Returns options for about half of the values that ops write.
void add_offloads(std::mt19937& random, RematProblem& problem);

using Extras =
    std::set<std::pair<int32_t, int32_t>>;  // op before which it happens; rematerialised op or reloaded value

Extras extras_of(llvm::ArrayRef<Remat> remats);
Extras extras_of(llvm::ArrayRef<Reload> reloads);

// The schedule with remats and copies as ops.
RematProblem with_extras(const RematProblem& problem, const Extras& remats, const Extras& reloads);

// Returns the peak of the schedule by summing the live bytes at each op.
int64_t plain_peak(const RematProblem& problem, llvm::ArrayRef<CopyInterval> intervals = {});

// Returns the time at which all engines are done.
double total_us(const RematProblem& problem, llvm::ArrayRef<CopyInterval> intervals);

// Returns the copy intervals of the highest level within `limit_bytes`.
Overlap overlap_within(const RematProblem& problem, int64_t limit_bytes);

// Returns the plan of the highest level within the limit, or of the lowest level if there is none.
RematPlan plan_within(const RematProblem& problem, int64_t limit_bytes, const RematOptions& options);

}  // namespace plimsoll
